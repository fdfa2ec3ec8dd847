"""Both ways of taking requests from the kernel, on a mount that is busy and on one that is not."""

from pathlib import Path

import pytest

from guardfs.control import client
from guardfs.control.protocol import Status
from tests.conftest import MakeMount
from tests.helpers.mounted import Mount

HAMMER = "import os\nwhile not os.path.exists('../stop'):\n    os.close(os.open('f', os.O_RDONLY))\n"


@pytest.mark.parametrize("loop", ["quick", "stock"])
def test_either_loop_serves_and_answers_questions_meanwhile(tmp_path: Path, make_mount: MakeMount, loop: str) -> None:
    (tmp_path / "ws").mkdir()
    (tmp_path / "ws" / ".guardfs.toml").write_text(f'loop = "{loop}"\n')
    mount = make_mount()
    (mount.base / "hammer.py").write_text(HAMMER)
    agent, user = mount.agent(), mount.user()
    assert agent.run("echo x > f").refused
    assert user.run("python3 ../hammer.py & python3 ../hammer.py &").status == 0
    for _ in range(50):
        assert client.ask(mount.state, Status()).state is not None
    assert user.run("touch ../stop; wait").status == 0
    assert agent.run("cat f; echo x > f").status == 0


def test_an_idle_daemon_rests(mount: Mount) -> None:
    assert mount.user().run("cat f").status == 0
    before = ticks(mount)
    mount.user().run("sleep 3")  # Idleness has nothing that could be waited for.
    assert ticks(mount) - before <= 1


def ticks(mount: Mount) -> int:
    """The clock ticks, of 10 ms mostly, that the daemon has spent so far: proc_pid_stat(5)."""
    fields = Path(f"/proc/{mount.note.process.pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])
