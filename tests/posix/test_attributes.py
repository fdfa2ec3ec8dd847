"""Times, extended attributes, access control lists and what statfs says."""

import ctypes
import os
import stat
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from tests.helpers.pairs import MATE, OWNER, SHARED, STRANGER, Places, as_user, looks, opened, read, tried, write

NOW, OMIT = (1 << 30) - 1, (1 << 30) - 2
AT_FDCWD, AT_SYMLINK_NOFOLLOW = -100, 0x100
_libc = ctypes.CDLL(None, use_errno=True)
Pair = tuple[int, int]


class Timespec(ctypes.Structure):
    _fields_ = (("sec", ctypes.c_long), ("nsec", ctypes.c_long))


def utimens(path: str | int, atime: Pair, mtime: Pair, flags: int = 0) -> None:
    times = (Timespec * 2)(Timespec(*atime), Timespec(*mtime))
    if isinstance(path, int):
        result = _libc.futimens(path, times)
    else:
        result = _libc.utimensat(AT_FDCWD, os.fsencode(path), times, flags)
    if result:
        raise OSError(ctypes.get_errno(), "utimensat")


def both(path: str | int) -> tuple[int, int]:
    st = os.stat(path) if isinstance(path, int) else os.lstat(path)
    return st.st_atime_ns, st.st_mtime_ns


def moved(path: str, act: Callable[[], Any]) -> Any:
    """Which times an act moves, with its answer."""
    utimens(path, (1_000, 1), (2_000, 2), AT_SYMLINK_NOFOLLOW)
    before = os.lstat(path)
    write_elsewhere_until_the_clock_ticks(before.st_ctime_ns)
    answer = tried(act)
    after = os.lstat(path)
    return answer, after.st_mtime_ns != before.st_mtime_ns, after.st_ctime_ns != before.st_ctime_ns


def write_elsewhere_until_the_clock_ticks(ctime_ns: int) -> None:
    while True:
        write(".tick")
        if os.stat(".tick").st_ctime_ns > ctime_ns:
            return


def nanoseconds() -> Any:
    write("f")
    os.mkdir("d")
    os.symlink("f", "s")
    os.mkfifo("p")
    answers: list[Any] = []
    for name in ("f", "d", "s", "p"):
        for atime, mtime in (
            ((1, 1), (2, 999_999_999)),
            ((1_700_000_000, 123_456_789), (1_700_000_001, 987_654_321)),
            ((0, 0), (0, 0)),
            ((-1, 5), (-100, 999_999_999)),
            ((2**31 + 7, 1), (2**32 + 9, 2)),
            ((9, 9), (0, OMIT)),
            ((0, OMIT), (8, 8)),
            ((0, OMIT), (0, OMIT)),
        ):
            answers.append((tried(utimens, name, atime, mtime, AT_SYMLINK_NOFOLLOW), both(name)))
    answers.append((tried(utimens, "s", (5, 5), (6, 6)), both("s")[1], both("f")))
    answers.append((tried(utimens, "f", (5, 1_000_000_000), (6, 6)), both("f")))
    fd = os.open("f", os.O_RDONLY)
    answers.append((tried(utimens, fd, (7, 7), (8, 8)), both(fd)))
    return answers


def now_is_now() -> Any:
    write("f")
    answers = []
    for atime, mtime in (((0, NOW), (5, 5)), ((5, 5), (0, NOW)), ((0, NOW), (0, NOW)), ((0, NOW), (0, OMIT))):
        utimens("f", (100, 0), (100, 0))
        utimens("f", atime, mtime)
        st = os.stat("f")
        answers.append((st.st_atime > 1_000_000_000, st.st_mtime > 1_000_000_000, st.st_atime_ns == st.st_mtime_ns))
    return answers


def times_as_each() -> Any:
    write("f", mode=0o664, owner=OWNER)
    os.chown("f", OWNER, SHARED)
    answers = []
    for who in (OWNER, (MATE, SHARED), STRANGER):
        for atime, mtime in (((0, NOW), (0, NOW)), ((0, OMIT), (0, OMIT)), ((0, NOW), (0, OMIT)), ((1, 1), (2, 2))):
            answers += [as_user(who, utimens, "f", atime, mtime)]
    return answers


def which_times_move() -> Any:
    write("f", b"text")
    write("g", b"text")
    os.mkdir("d")
    os.symlink("f", "s")
    return [
        moved("f", lambda: write("f", b"new")),
        moved("f", lambda: os.truncate("f", 1)),
        moved("f", lambda: os.truncate("f", 1)),
        moved("f", lambda: os.close(os.open("f", os.O_WRONLY))),
        moved("f", lambda: os.close(os.open("f", os.O_WRONLY | os.O_TRUNC))),
        moved("f", lambda: os.close(os.open("f", os.O_WRONLY | os.O_TRUNC))),
        moved("f", lambda: os.chmod("f", 0o600)),
        moved("f", lambda: os.chown("f", 1, 1)),
        moved("f", lambda: os.link("f", "h")),
        moved("f", lambda: os.unlink("h")),
        moved("f", lambda: os.setxattr("f", "user.a", b"1")),
        moved("f", lambda: os.removexattr("f", "user.a")),
        moved("d", lambda: write("d/x")),
        moved("d", lambda: write("d/x")),
        moved("d", lambda: os.rename("d/x", "d/y")),
        moved("d", lambda: os.unlink("d/y")),
        moved("d", lambda: os.mkdir("d/e")),
        moved("d", lambda: os.rmdir("d/e")),
        moved("d", lambda: os.symlink("x", "d/s")),
        moved("d", lambda: os.link("g", "d/l")),
        moved("d", lambda: os.rename("g", "d/l")),
        moved("d", lambda: os.listdir("d").sort()),
        moved(".", lambda: os.rename("d/s", "s2")),
        moved("s", lambda: os.lchown("s", 1, 1)),
    ]


def times_of_creation_are_one() -> Any:
    write_elsewhere_until_the_clock_ticks(0)
    parent = os.stat(".").st_mtime_ns
    fd = os.open("f", os.O_CREAT | os.O_WRONLY)
    st = os.fstat(fd)
    return st.st_mtime_ns >= parent, st.st_ctime_ns >= st.st_mtime_ns, os.stat("f") == os.fstat(fd)


def extended_attributes() -> Any:
    write("f")
    os.mkdir("d")
    create, replace = os.XATTR_CREATE, os.XATTR_REPLACE
    answers: list[Any] = []
    for name in ("f", "d"):
        answers += [
            os.listxattr(name),
            tried(os.getxattr, name, "user.none"),
            tried(os.removexattr, name, "user.none"),
            tried(os.setxattr, name, "user.a", b"one"),
            tried(os.setxattr, name, "user.a", b"two", create),
            tried(os.setxattr, name, "user.b", b"two", replace),
            tried(os.setxattr, name, "user.b", b"two", create),
            tried(os.setxattr, name, "user.a", b"three", replace),
            tried(os.setxattr, name, "user.empty", b""),
            tried(os.setxattr, name, "user.\xff\n", b"\0\xff"),
            tried(os.setxattr, name, "user." + "n" * 250, b"1"),
            tried(os.setxattr, name, "user." + "n" * 251, b"1"),
            tried(os.setxattr, name, "user.", b"1"),
            tried(os.setxattr, name, "none.such", b"1"),
            tried(os.setxattr, name, "trusted.t", b"1"),
            tried(os.setxattr, name, "security.s", b"1"),
            tried(os.setxattr, name, "system.s", b"1"),
            tried(os.setxattr, name, "user.big", b"x" * 2000),
            tried(os.setxattr, name, "user.bigger", b"x" * 65_536),
            tried(os.setxattr, name, "user.too-big", b"x" * 65_537),
            sorted(os.listxattr(name)),
            [(key, tried(os.getxattr, name, key)) for key in sorted(os.listxattr(name))],
            tried(os.removexattr, name, "user.a"),
            sorted(os.listxattr(name)),
        ]
    return answers


def attributes_of(path: str) -> list[str]:
    return sorted(os.listxattr(path))


def who_sees_which_attributes() -> Any:
    write("f", mode=0o644, owner=OWNER)
    for name in ("user.u", "trusted.t", "security.s"):
        os.setxattr("f", name, b"1")
    answers: list[Any] = [attributes_of("f")]
    for uid in (OWNER, STRANGER):
        answers.append(as_user(uid, attributes_of, "f"))
        for name in ("user.u", "trusted.t", "security.s"):
            answers += [as_user(uid, os.getxattr, "f", name), as_user(uid, os.removexattr, "f", name)]
    os.mkfifo("p")
    os.symlink("f", "s")
    answers += [tried(os.setxattr, "p", "user.a", b"1"), tried(os.setxattr, "p", "trusted.a", b"1"), os.listxattr("p")]
    answers += [os.listxattr("s", follow_symlinks=False), sorted(os.listxattr("s"))]
    return answers


def sizes_of_attribute_buffers() -> Any:
    write("f")
    os.setxattr("f", "user.a", b"12345")

    def call(size: int, function: Any, *names: bytes) -> tuple[int, bytes, int]:
        buffer = ctypes.create_string_buffer(max(size, 1))
        got = function(*names, buffer, size)
        return got, buffer.raw[: max(got, 0)] if size else b"", ctypes.get_errno() if got < 0 else 0

    sizes = (0, 4, 5, 100)
    return [
        [call(size, _libc.getxattr, b"f", b"user.a") for size in sizes],
        [call(size, _libc.listxattr, b"f") for size in sizes],
    ]


def attributes_travel() -> Any:
    write("f")
    os.setxattr("f", "user.a", b"1")
    os.rename("f", "g")
    os.link("g", "h")
    write("g", b"other")
    subprocess.run(["cp", "-a", "g", "i"], check=True)
    return [os.getxattr(name, "user.a") for name in ("g", "h", "i")]


def acl(path: str) -> str:
    return subprocess.run(["getfacl", "-cpn", path], capture_output=True, check=True, text=True).stdout


def setfacl(*args: str) -> Any:
    return subprocess.run(["setfacl", *args], capture_output=True, check=False, text=True).returncode


def access_lists() -> Any:
    write("f", mode=0o600, owner=OWNER)
    os.mkdir("d", 0o700)
    write("d/f", mode=0o644)
    answers: list[Any] = [setfacl("-m", f"u:{MATE}:rw,g:{SHARED}:r", "f"), acl("f"), looks("f")]
    answers.append(setfacl("-m", f"u:{MATE}:rx", "d"))
    for who in (OWNER, MATE, (STRANGER, SHARED), STRANGER):
        answers += [as_user(who, read, "f"), as_user(who, opened, "f", os.O_WRONLY)]
        answers += [as_user(who, os.access, "f", os.W_OK), as_user(who, os.listdir, "d"), as_user(who, read, "d/f")]
        answers.append(as_user(who, setfacl, "-m", f"u:{STRANGER}:rwx", "f"))
    os.chmod("f", 0o640)
    answers += [acl("f"), as_user(MATE, opened, "f", os.O_WRONLY)]
    answers += [setfacl("-b", "f"), acl("f"), looks("f"), as_user(MATE, read, "f"), sorted(os.listxattr("d"))]
    return answers


def default_lists() -> Any:
    os.mkdir("d")
    os.chmod("d", 0o777)
    answers: list[Any] = [setfacl("-d", "-m", f"u::rwx,g::rx,o::-,u:{MATE}:rwx", "d"), acl("d")]
    for uid in (0, OWNER):

        def make() -> None:
            write("d/f")
            os.mkdir("d/e")
            os.mkfifo("d/p")
            os.close(os.open("d/x", os.O_CREAT | os.O_WRONLY, 0o700))
            os.symlink("x", "d/s")

        answers.append(as_user(uid, make))
        answers += [(looks(f"d/{name}"), acl(f"d/{name}") if name != "s" else None) for name in "fepxs"]
        answers.append(as_user(MATE, write, "d/f", b"mate"))
        for name in ("f", "p", "x", "s"):
            os.unlink(f"d/{name}")
        os.rmdir("d/e")
    return answers, tried(os.setxattr, "d", "system.posix_acl_access", b"junk")


def set_group_bit_and_lists() -> Any:
    write("f", owner=OWNER)
    os.chown("f", OWNER, SHARED)
    answers = []
    for who in (OWNER, (OWNER, SHARED)):
        os.chmod("f", 0o2755)
        answers.append((as_user(who, setfacl, "-m", f"u:{MATE}:rx", "f"), looks("f")))
        setfacl("-b", "f")
    return answers


def file_system() -> Any:
    write("f")
    st, fst = os.statvfs("f"), os.fstatvfs(os.open("f", os.O_RDONLY))
    flags = os.ST_RDONLY | os.ST_NOSUID | os.ST_NODEV | os.ST_NOEXEC
    fixed = [(s.f_bsize, s.f_frsize, s.f_blocks, s.f_files, s.f_namemax, s.f_flag & flags) for s in (st, fst)]
    return fixed, st.f_bavail <= st.f_bfree, os.pathconf("f", "PC_NAME_MAX"), os.pathconf("f", "PC_LINK_MAX") > 0


def unusual_calls_of_stat() -> Any:
    write("f", b"text")
    os.symlink("f", "s")
    fd = os.open("f", os.O_RDONLY)
    same = [os.stat("f") == os.fstat(fd), os.stat("s") == os.stat("f"), os.lstat("s") != os.stat("f")]
    with os.scandir(".") as entries:
        kinds = sorted((entry.name, entry.is_file(), entry.is_symlink(), entry.inode() > 1) for entry in entries)
    st = os.stat("f")
    numbers = {os.stat("f").st_ino for _ in range(5)}
    return same, kinds, len(numbers), stat.S_IFMT(st.st_mode), st.st_rdev, st.st_blksize


@pytest.mark.parametrize(
    "operation",
    [
        nanoseconds,
        now_is_now,
        times_as_each,
        which_times_move,
        times_of_creation_are_one,
        extended_attributes,
        who_sees_which_attributes,
        sizes_of_attribute_buffers,
        attributes_travel,
        access_lists,
        set_group_bit_and_lists,
        file_system,
        unusual_calls_of_stat,
    ],
)
def test_same_as_bare(places: Places, operation: Callable[[], Any]) -> None:
    places.compare(operation)


def test_default_lists(places: Places) -> None:
    """The kernel applies the umask before we are asked, so what differs shows with a umask only."""

    def without_umask() -> Any:
        os.umask(0)
        return default_lists()

    places.compare(without_umask)
