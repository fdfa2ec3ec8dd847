"""The same work on several file systems, in turns: see scripts/bench."""

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

GIT = "git -c user.name=n -c user.email=e@x -c gc.auto=0"
PYTHON = "import os, sqlite3\n"
WORK = {
    "find": "find . -name .git -prune -o -type f -print | wc -l",
    "find again": "find . -name .git -prune -o -type f -print | wc -l",
    "git status": "git status --porcelain",
    "git status again": "git status --porcelain",
    "rg of a word": "rg -c needle | wc -l",
    "cat of every file": "cat src/*/*.py | wc -c",
    "20,000 stats": "for i in range(20000): os.stat('src/p0/m0.py')",
    "5,000 absent names": "for i in range(5000): os.path.exists('src/p0/absent')",
    "5,000 open and close": "for i in range(5000): os.close(os.open('src/p0/m0.py', os.O_RDONLY))",
    "1,000 writes of 4 KiB": "f = open('out', 'wb', 0)\nfor i in range(1000): f.write(b'x' * 4096)",
    "write 100 MB": "f = open('out', 'wb', 0)\nfor i in range(100): f.write(b'x' * 1048576)",
    "read 100 MB": "f = open('out', 'rb', 0)\nwhile f.read(1048576): pass",
    "1,000 edits": "for i in range(1000):\n t = open('e').read()\n open('e.t', 'w').write(t)\n os.replace('e.t', 'e')",
    "cp, tar, rm of 500 files": "cp -r src/p0 c && tar cf ../t.tar c && mkdir x && tar xf ../t.tar -C x && rm -r c x",
    "compileall": "python3 -m compileall -q -f src/p1",
    "sqlite, 2,000 rows": (
        "d = sqlite3.connect('d.sqlite'); d.execute('create table t(a)')\n"
        "for i in range(20):\n with d: d.executemany('insert into t values (?)', [(j,) for j in range(100)])\n"
        "d.close(); os.unlink('d.sqlite')"
    ),
    "list 5,000 names": "for i in range(5): os.listdir('wide')",
}
"""Shell lines, or Python, each by a session of its own; in this order, since some need what one before them made."""
COLUMNS = ("bare", "bindfs", "guardfs", "guardfs tracked")


def build(top: Path, files: int) -> None:
    """A repository of small Python files, and a wide directory."""
    for number in range(files):
        package = top / "src" / f"p{number // 500}"
        package.mkdir(parents=True, exist_ok=True)
        word = "needle" if number % 100 == 0 else "straw"
        (package / f"m{number % 500}.py").write_text(f"def f{number}():\n    return '{word}'\n" * 20)
    (top / "wide").mkdir()
    for number in range(5000):
        (top / "wide" / str(number)).touch()
    (top / "e").write_text("text\n" * 100)
    (top / ".gitignore").write_text("__pycache__/\nout\nd.sqlite*\n")
    subprocess.run(
        f"git init -q . && git add -A && {GIT} commit -qm one", shell=True, cwd=top, check=True, capture_output=True
    )


@contextmanager
def mounted(column: str, bare: Path, point: Path, state: Path) -> Iterator[list[str]]:
    """Puts a column's file system up; gives the command line that work begins with there."""
    env = {"GUARDFS_STATE": str(state)}
    guardfs = [sys.executable, "-P", "-m", "guardfs"]
    if column == "bare":
        yield []
        return
    up = ["bindfs", bare, point] if column == "bindfs" else [*guardfs, "mount", bare, point]
    down = ["fusermount3", "-u", point] if column == "bindfs" else [*guardfs, "unmount", point]
    subprocess.run(up, check=True, env=os.environ | env, capture_output=True)
    try:
        track = f'GUARDFS_STATE={state} {sys.executable} -P -m guardfs track $$ >/dev/null && exec "$@"'
        yield ["bash", "-c", f"cd {point} && {track}", "track"] if column == "guardfs tracked" else []
    finally:
        subprocess.run(down, check=True, env=os.environ | env, capture_output=True)


def timed(top: Path, work: str) -> list[str]:
    """The command that does one piece of work and prints how long it took, in seconds."""
    is_python = work.startswith(("for ", "f =", "d ="))
    command = [sys.executable, "-I", "-S", "-c", PYTHON + work] if is_python else ["bash", "-c", work]
    program = (
        "import subprocess, sys, time\nbegan = time.perf_counter()\n"
        f"done = subprocess.run({command!r}, cwd={str(top)!r}, capture_output=True)\n"
        "print(done.returncode, time.perf_counter() - began, done.stderr.decode()[-200:])"
    )
    return [sys.executable, "-I", "-S", "-c", program]


def measure(column: str, bare: Path, point: Path, state: Path) -> dict[str, float]:
    """All work on one column, from a fresh mount on."""
    top = bare if column == "bare" else point
    found = {}
    with mounted(column, bare, point, state) as begin:
        if column == "guardfs tracked":  # Its own files are to be known, as an agent's are.
            subprocess.run([*begin, "cat", "e", "src/p0/m0.py"], check=True, capture_output=True)
        for name, work in WORK.items():
            done = subprocess.run([*begin, *timed(top, work)], check=True, capture_output=True, text=True)
            status, seconds, *error = done.stdout.split(maxsplit=2)
            if status != "0":
                sys.exit(f"bench: {column}: {name}: exit {status}: {' '.join(error)}")
            found[name] = float(seconds)
    subprocess.run("git clean -fdxq", shell=True, cwd=bare, check=True)
    return found


def main() -> None:
    """Build, measure in turns, report."""
    parser = argparse.ArgumentParser(prog="scripts/bench")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    base = Path(tempfile.mkdtemp(prefix="guardfs-bench-"))
    try:
        bare, point = base / "bare", base / "point"
        bare.mkdir()
        point.mkdir()
        build(bare, given.files)
        rounds = [
            {column: measure(column, bare, point, base / "state") for column in COLUMNS} for _ in range(given.rounds)
        ]
    finally:
        shutil.rmtree(base)
    medians = {
        name: {column: statistics.median(each[column][name] for each in rounds) for column in COLUMNS} for name in WORK
    }
    report(medians, given.rounds, given.files)
    if given.json:
        machine = {"kernel": platform.release(), "cpus": os.cpu_count(), "python": platform.python_version()}
        given.json.write_text(json.dumps({"machine": machine, "when": time.time(), "seconds": medians}, indent=1))


def report(medians: dict[str, dict[str, float]], rounds: int, files: int) -> None:
    """The table, as docs/performance.md has it."""
    write = sys.stdout.write
    write(f"kernel {platform.release()}, {os.cpu_count()} processors, {files} files, medians of {rounds} rounds\n\n")
    write("| work | bare, ms | bindfs | guardfs | guardfs tracked |\n|---|---|---|---|---|\n")
    ratios: dict[str, list[float]] = {column: [] for column in COLUMNS[1:]}
    for name, seconds in medians.items():
        for column, each in ratios.items():
            each.append(seconds[column] / seconds["bare"])
        write(
            f"| {name} | {seconds['bare'] * 1000:.1f} | " + " | ".join(f"{r[-1]:.1f}" for r in ratios.values()) + " |\n"
        )
    means = [statistics.geometric_mean(each) for each in ratios.values()]
    write("| geometric mean | | " + " | ".join(f"{mean:.2f}" for mean in means) + " |\n")


if __name__ == "__main__":
    main()
