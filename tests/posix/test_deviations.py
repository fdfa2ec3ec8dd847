"""What differs from a bare directory and cannot be helped here: docs/posix-deviations.md, kept true."""

import ctypes
import errno
import fcntl
import os
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.pairs import OWNER, STRANGER, Child, Places, as_user, looks, tried, write

GET_FLAGS = 0x80086601  # FS_IOC_GETFLAGS, linux/fs.h
FIEMAP = 0xC020660B  # FS_IOC_FIEMAP
_libc = ctypes.CDLL(None, use_errno=True)


def fallocate() -> Any:
    fd = os.open("f", os.O_CREAT | os.O_RDWR)
    failed = _libc.fallocate(fd, 0, ctypes.c_long(0), ctypes.c_long(4096))
    return errno.errorcode[ctypes.get_errno()] if failed else "done"


def first_hole() -> Any:
    fd = os.open("f", os.O_CREAT | os.O_RDWR)
    os.pwrite(fd, b"x", 1 << 20)
    return os.lseek(fd, 0, os.SEEK_HOLE)


def nameless_file() -> Any:
    return os.close(os.open(".", os.O_TMPFILE | os.O_RDWR))


def flags_of_a_file() -> Any:
    write("f")
    return len(fcntl.ioctl(os.open("f", os.O_RDONLY), GET_FLAGS, b"\0" * 8))


def extents_of_a_file() -> Any:
    write("f")
    return len(fcntl.ioctl(os.open("f", os.O_RDONLY), FIEMAP, struct.pack("QQIIII", 0, 4096, 0, 0, 0, 0)))


def limits_of_paths() -> Any:
    write("f")
    return os.pathconf("f", "PC_LINK_MAX"), os.pathconf("f", "PC_FILESIZEBITS")


def birth_time_is_known() -> Any:
    write("f")
    return subprocess.run(["stat", "-c", "%W", "f"], capture_output=True, check=True).stdout.strip() not in (b"0", b"-")


def create_and_replace_an_attribute() -> Any:
    write("f")
    return os.setxattr("f", "user.a", b"1", os.XATTR_CREATE | os.XATTR_REPLACE)


def umask_under_a_default_list() -> Any:
    os.umask(0o077)
    os.mkdir("d")
    subprocess.run(["setfacl", "-d", "-m", "u::rwx,g::rwx,o::r", "d"], check=True)
    write("d/f")
    return looks("d/f")[0]


def a_strangers_chown_of_nothing() -> Any:
    write("f", owner=OWNER)
    os.chmod("f", 0o2767)
    return as_user(STRANGER, os.chown, "f", -1, -1)


@pytest.mark.parametrize(
    ("operation", "bare", "mounted"),
    [
        (fallocate, "done", "ENOTSUP"),
        (first_hole, 0, (1 << 20) + 1),
        (nameless_file, None, "ENOTSUP"),
        (flags_of_a_file, 8, "ENOTTY"),
        (extents_of_a_file, 32, "ENOTSUP"),
        (limits_of_paths, (65000, 64), (127, 32)),
        (birth_time_is_known, True, False),
        (create_and_replace_an_attribute, "ENODATA", None),
        (umask_under_a_default_list, "-rw-rw-r--", "-rw-------"),
        (a_strangers_chown_of_nothing, "EPERM", None),
    ],
)
def test_as_listed(places: Places, operation: Callable[[], Any], bare: Any, mounted: Any) -> None:
    assert places.on_bare(operation) == bare
    assert places.on_mount(operation) == mounted


def test_the_root_has_a_number_of_its_own(places: Places) -> None:
    assert places.mount.point.stat().st_ino == 1
    assert places.mount.backing.stat().st_ino != 1


def test_one_device_and_one_file_system(places: Places, islands: list[Path]) -> None:
    """The island is another device and far smaller, which neither stat nor statfs can say."""
    mounted = places.mount.point / islands[0].name
    assert islands[0].stat().st_dev != places.mount.backing.stat().st_dev
    assert mounted.stat().st_dev == places.mount.point.stat().st_dev
    assert os.statvfs(mounted).f_blocks == os.statvfs(places.mount.backing).f_blocks != os.statvfs(islands[0]).f_blocks


def test_locks_are_not_seen_below(places: Places) -> None:
    mounted = places.fresh()[1]
    below = places.mount.backing / mounted.name
    with (mounted / "f").open("w") as held, (below / "f").open("r+") as other:
        fcntl.flock(held, fcntl.LOCK_EX)
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)

        def again() -> None:
            fcntl.flock(os.open(mounted / "f", os.O_RDWR), fcntl.LOCK_EX | fcntl.LOCK_NB)

        assert Child(again).result() == "EAGAIN"


def test_a_directorys_times_may_be_a_second_old(places: Places) -> None:
    """Its names are never old: what stands at one is asked for each time."""
    mounted = places.fresh()[1]
    below = places.mount.backing / mounted.name
    before = mounted.stat()
    (below / "d").mkdir()
    assert mounted.stat().st_nlink in (before.st_nlink, before.st_nlink + 1)
    assert (mounted / "d").is_dir()
    assert tried(os.rmdir, str(mounted / "d")) is None
