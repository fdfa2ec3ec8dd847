"""What a session over very many files costs the daemon."""

import os
from pathlib import Path

from guardfs.config import Settings
from guardfs.control import client
from guardfs.control.protocol import Status
from tests.helpers.mounted import Mount, until

FILES = 1_000_000 if os.environ.get("GUARDFS_LONG") else 40_000
IN_EACH = 1_000
"""Files in one directory."""
MOST_BYTES = 300_000_000
READ_ALL = """
import os
for directory in sorted(os.listdir('many')):
    for name in sorted(os.listdir(f'many/{directory}')):
        fd = os.open(f'many/{directory}/{name}', os.O_RDONLY)
        os.read(fd, 100)
        os.close(fd)
"""


def test_a_session_over_many_files_stays_small(mount: Mount) -> None:
    for number in range(FILES // IN_EACH):
        directory = mount.backing / "many" / f"package{number}"
        directory.mkdir(parents=True)
        for each in range(IN_EACH):
            (directory / f"module_{each}.py").write_text(f"x{number}{each}\n")
    (mount.base / "read.py").write_text(READ_ALL)
    agent = mount.agent()
    assert agent.run("cat f && python3 ../read.py").status == 0
    assert resident(mount) < MOST_BYTES
    until(lambda: nodes(mount) < 35_000, "the kernel forgot what is not in use")
    assert agent.run("echo x > many/package0/module_0.py").refused == (Settings().max_records < FILES)
    assert agent.run("cat many/package1/module_1.py && echo x > many/package1/module_1.py").status == 0


def nodes(mount: Mount) -> int:
    state = client.ask(mount.state, Status()).state
    assert state is not None
    return state.nodes


def resident(mount: Mount) -> int:
    """Bytes of memory that the daemon has now, its maps of files with them: proc_pid_statm(5)."""
    pages = int(Path(f"/proc/{mount.note.process.pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
