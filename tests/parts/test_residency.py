"""Pages of a map that are given back: they count no more, and nothing is lost."""

import mmap
import re
from pathlib import Path

from guardfs.state.residency import give_back

BYTES = 8 << 20


def resident_kib(path: Path) -> int:
    """What this process has of a file's pages: proc_pid_smaps(5)."""
    of_file = Path("/proc/self/smaps").read_text().split(str(path))[1]
    return int(re.findall(r"Rss:\s+(\d+) kB", of_file)[0])


def test_pages_come_back_when_they_are_touched(tmp_path: Path) -> None:
    path = tmp_path / "a name with odd parts"
    path.write_bytes(b"x" * BYTES)
    other = tmp_path / "other"
    other.write_bytes(b"y" * BYTES)
    with path.open("r+b") as file, other.open("r+b") as beside:
        shared, untouched = mmap.mmap(file.fileno(), BYTES), mmap.mmap(beside.fileno(), BYTES)
        assert shared[:] == b"x" * BYTES
        assert untouched[:] == b"y" * BYTES
        shared[:3] = b"new"
        assert resident_kib(path) >= BYTES >> 10
        give_back(path)
        assert resident_kib(path) == 0
        assert resident_kib(other) >= BYTES >> 10
        assert shared[:4] == b"newx"
        shared.close()
        untouched.close()
