"""The benchmark runs all its work on all its columns."""

import json
import subprocess
from pathlib import Path

TREE = Path(__file__).parents[2]
DEADLINE_S = 110


def test_a_short_run_measures_everything(tmp_path: Path) -> None:
    told = tmp_path / "figures"
    done = subprocess.run(
        [TREE / "scripts" / "bench", "--rounds", "1", "--files", "1000", "--json", told],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[2] == "| work | bare, ms | bindfs | guardfs | guardfs tracked |"
    figures = json.loads(told.read_text())["seconds"]
    assert len(figures) == len(lines) - 5 == 17
    assert all(seconds > 0 for work in figures.values() for seconds in work.values())
