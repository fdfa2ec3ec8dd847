"""Changes that come from below the mount, and one name replaced in a loop while others read it."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.pairs import Child, Places, read, tried, write

OPENS = 1500


class Sides:
    """One directory, seen through the mount and from below."""

    def __init__(self, places: Places) -> None:
        self.mounted = places.fresh()[1]
        self.below = places.mount.backing / self.mounted.name


@pytest.fixture
def sides(places: Places) -> Sides:
    return Sides(places)


def test_an_append_is_seen_at_once(sides: Sides) -> None:
    (sides.mounted / "f").write_bytes(b"one\n")
    for number in range(20):
        with (sides.below / "f").open("ab") as file:
            file.write(b"%d\n" % number)
        expected = (sides.below / "f").read_bytes()
        assert (sides.mounted / "f").stat().st_size == len(expected)
        assert (sides.mounted / "f").read_bytes() == expected


def test_an_append_is_seen_through_an_open_descriptor(sides: Sides) -> None:
    (sides.mounted / "f").write_bytes(b"one\n")
    with (sides.mounted / "f").open("rb", buffering=0) as file:
        assert file.read() == b"one\n"
        with (sides.below / "f").open("ab") as below:
            below.write(b"two\n")
        assert os.fstat(file.fileno()).st_size == 8
        assert file.read() == b"two\n"


def test_same_size_and_restored_times_are_seen(sides: Sides) -> None:
    """No stat field but ctime tells of it, so pages of the earlier bytes must not survive an open."""
    (sides.mounted / "f").write_bytes(b"a" * 9000)
    for byte in b"bcdef":
        assert len(set((sides.mounted / "f").read_bytes())) == 1
        st = (sides.below / "f").stat()
        with (sides.below / "f").open("r+b") as file:
            file.write(bytes([byte]) * 9000)
        os.utime(sides.below / "f", ns=(st.st_atime_ns, st.st_mtime_ns))
        assert (sides.mounted / "f").stat().st_mtime_ns == st.st_mtime_ns
        assert (sides.mounted / "f").read_bytes() == bytes([byte]) * 9000


def test_a_replacement_is_seen(sides: Sides) -> None:
    (sides.mounted / "f").write_bytes(b"old")
    with (sides.mounted / "f").open("rb", buffering=0) as file:
        (sides.below / "g").write_bytes(b"newer")
        os.rename(sides.below / "g", sides.below / "f")
        assert (sides.mounted / "f").read_bytes() == b"newer"
        assert (sides.mounted / "f").stat().st_size == 5
        assert file.read() == b"old"
        assert os.fstat(file.fileno()).st_nlink == 0
    assert sorted(os.listdir(sides.mounted)) == ["f"]


def test_a_deleted_file_is_gone(sides: Sides) -> None:
    (sides.mounted / "f").write_bytes(b"text")
    (sides.mounted / "f").read_bytes()
    os.unlink(sides.below / "f")
    assert not (sides.mounted / "f").exists()
    assert tried(os.unlink, str(sides.mounted / "f")) == "ENOENT"
    (sides.mounted / "f").write_bytes(b"again")
    assert (sides.below / "f").read_bytes() == b"again"


def test_a_renamed_file_is_at_its_new_name(sides: Sides) -> None:
    (sides.mounted / "f").write_bytes(b"text")
    fd = os.open(sides.mounted / "f", os.O_RDWR)
    os.rename(sides.below / "f", sides.below / "g")
    assert tried(read, str(sides.mounted / "f")) == "ENOENT"
    assert (sides.mounted / "g").read_bytes() == b"text"
    assert os.pwrite(fd, b"TEXT", 0) == 4
    assert os.fstat(fd).st_ino == (sides.mounted / "g").stat().st_ino
    os.close(fd)
    assert (sides.below / "g").read_bytes() == b"TEXT"


def test_a_name_that_changes_its_kind(sides: Sides) -> None:
    makers: list[Callable[[Path], Any]] = [
        lambda path: path.write_bytes(b"text"),
        os.mkfifo,
        lambda path: path.symlink_to("elsewhere"),
        lambda path: path.write_bytes(b"more"),
    ]
    for _ in range(5):
        for make in makers:
            make(sides.below / "f")
            assert os.lstat(sides.mounted / "f").st_mode == os.lstat(sides.below / "f").st_mode
            assert os.lstat(sides.mounted / "f").st_size == os.lstat(sides.below / "f").st_size
            os.unlink(sides.below / "f")


def test_a_process_stands_in_a_directory_that_is_moved(sides: Sides) -> None:
    (sides.mounted / "a" / "b").mkdir(parents=True)
    (sides.mounted / "a" / "b" / "f").write_bytes(b"text")
    into, out = os.pipe()

    def stand() -> Any:
        os.chdir(sides.mounted / "a" / "b")
        write(f"/proc/self/fd/{out}", b"!")
        while not os.path.exists("../../z"):
            os.sched_yield()
        return read("f"), write("g", b"new"), sorted(os.listdir(".")), os.stat(".").st_nlink

    child = Child(stand)
    assert os.read(into, 1) == b"!"
    os.rename(sides.below / "a", sides.below / "y")
    (sides.below / "z").mkdir()
    assert child.result() == (b"text", 3, ["f", "g"], 2)
    assert (sides.below / "y" / "b" / "g").read_bytes() == b"new"
    os.close(into)
    os.close(out)


def test_names_come_and_go_in_a_known_directory(sides: Sides) -> None:
    for number in range(30):
        (sides.below / f"f{number}").write_bytes(b"text")
        assert f"f{number}" in os.listdir(sides.mounted)
        assert (sides.mounted / f"f{number}").read_bytes() == b"text"
        if number % 3:
            os.unlink(sides.below / f"f{number}")
            assert f"f{number}" not in os.listdir(sides.mounted)


def test_a_mode_changed_below_is_seen(sides: Sides) -> None:
    (sides.mounted / "f").write_bytes(b"text")
    for mode in (0o600, 0o755, 0o444):
        os.chmod(sides.below / "f", mode)
        assert (sides.mounted / "f").stat().st_mode & 0o7777 == mode


def replace_until_told(directory: Path, stop: int) -> Callable[[], int]:
    def replace() -> int:
        os.set_blocking(stop, False)
        os.chdir(directory)
        count = 0
        while tried(os.read, stop, 1) == "EAGAIN":
            count += 1
            write("new", b"%06d\n" % (count % 1_000_000) * 700)
            os.rename("new", "f")
        return count

    return replace


@pytest.mark.parametrize("road", ["mounted", "below", "both"])
def test_a_replaced_file_is_always_there_and_whole(sides: Sides, road: str) -> None:
    """Never ENOENT, never ESTALE, never two versions in one."""
    (sides.mounted / "f").write_bytes(b"000000\n" * 700)
    (sides.mounted / "own").mkdir()
    stop, tell = os.pipe()
    roads = {"mounted": [sides.mounted], "below": [sides.below], "both": [sides.mounted]}[road]
    writers = [Child(replace_until_told(directory, stop)) for directory in roads]
    if road == "both":
        writers.append(Child(replace_below_by_link(sides.below, stop)))
    faults: set[str] = set()
    for _ in range(OPENS):
        try:
            data = (sides.mounted / "f").read_bytes()
            size = (sides.mounted / "f").stat().st_size
        except OSError as error:
            faults.add(repr(error))
            continue
        if len(data) != 4900 or size != 4900 or data != data[:7] * 700:
            faults.add(f"torn: {len(data)} bytes, {size} by stat, {sorted(set(data.split()))}")
    os.write(tell, b"!" * len(writers))
    assert all(writer.result() for writer in writers)
    os.close(stop)
    os.close(tell)
    assert not faults


def replace_below_by_link(directory: Path, stop: int) -> Callable[[], int]:
    """A second writer with a name of its own for the new version."""

    def replace() -> int:
        os.set_blocking(stop, False)
        os.chdir(directory)
        count = 0
        while tried(os.read, stop, 1) == "EAGAIN":
            count += 1
            write("other", b"%06d\n" % (count % 1_000_000) * 700)
            os.rename("other", "f")
        return count

    return replace


def test_many_files_outlive_their_pins(sides: Sides) -> None:
    """More files and directories than descriptors are kept for, found again by parent and name."""
    for number in range(700):
        directory = sides.below / f"d{number % 70}" / f"e{number}"
        directory.mkdir(parents=True)
        (directory / "f").write_bytes(b"%d" % number)
    fds = [os.open(sides.mounted / f"d{number % 70}" / f"e{number}", os.O_PATH) for number in range(700)]
    os.rename(sides.mounted / "d0", sides.mounted / "moved")
    for number, fd in enumerate(fds):
        assert os.stat("f", dir_fd=fd).st_size == len(str(number))
        file = os.open("f", os.O_RDONLY, dir_fd=fd)
        assert os.read(file, 9) == b"%d" % number
        os.close(file)
    for fd in fds:
        os.close(fd)
    shutil.rmtree(sides.mounted)
