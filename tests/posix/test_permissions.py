"""Who may do what: modes, uids, supplementary groups, sticky and setgid directories, set-ID bits, umask."""

import os
import socket
import stat
from collections.abc import Callable
from typing import Any

import pytest

from tests.helpers.pairs import MATE, OWNER, SHARED, STRANGER, Places, as_user, looks, opened, read, tried, write


def open_as_each() -> Any:
    answers = []
    for mode in (0o000, 0o004, 0o040, 0o060, 0o400, 0o600, 0o644, 0o664, 0o666):
        write("f", mode=mode, owner=OWNER)
        os.chown("f", OWNER, SHARED)
        for who in (OWNER, (MATE, SHARED), STRANGER):
            flags = (os.O_RDONLY, os.O_WRONLY, os.O_RDWR, os.O_RDONLY | os.O_TRUNC)
            answers += [as_user(who, opened, "f", flag) for flag in flags]
    return answers


def directory_bits() -> Any:
    answers = []
    steps: tuple[Callable[[], object], ...] = (
        lambda: sorted(os.listdir("d")),
        lambda: os.stat("d/f").st_size,
        lambda: read("d/f"),
        lambda: write("d/new"),
        lambda: os.unlink("d/new"),
        lambda: os.mkdir("d/sub"),
        lambda: os.rmdir("d/sub"),
        lambda: os.rename("d/f", "d/g"),
        lambda: os.rename("d/g", "d/f"),
        lambda: os.chdir("d"),
    )
    for mode in (0o700, 0o500, 0o600, 0o300, 0o100, 0o755, 0o733, 0o711, 0o744):
        os.mkdir("d")
        write("d/f", owner=OWNER)
        os.chown("d", OWNER, OWNER)
        os.chmod("d", mode)
        answers += [as_user(who, step) for who in (OWNER, STRANGER) for step in steps]
        os.unlink("d/f")
        os.rmdir("d")
    return answers


def attributes_are_the_owners() -> Any:
    write("f", mode=0o666, owner=OWNER)
    answers: list[Any] = []
    for uid in (OWNER, STRANGER):
        steps: tuple[tuple[Any, ...], ...] = (
            (os.chmod, "f", 0o640),
            (os.chmod, "f", 0o666),
            (os.utime, "f"),
            (os.utime, "f", (1, 2)),
            (os.chown, "f", -1, uid),
            (os.chown, "f", STRANGER, -1),
            (os.chown, "f", -1, SHARED),
            (os.setxattr, "f", "user.x", b"1"),
            (os.setxattr, "f", "trusted.x", b"1"),
            (os.setxattr, "f", "security.x", b"1"),
            (os.truncate, "f", 3),
            (os.link, "f", "g"),
        )
        answers += [(as_user(uid, *step), looks("f")) for step in steps]
    answers.append(as_user((OWNER, SHARED), os.chown, "f", -1, SHARED))
    return answers, looks("f")


def new_things_are_the_callers() -> Any:
    os.chmod(".", 0o777)

    def make() -> Any:
        write("f")
        os.mkdir("d")
        os.symlink("f", "s")
        os.mkfifo("p")
        os.mknod("n", 0o600 | stat.S_IFREG)
        with socket.socket(socket.AF_UNIX) as server:
            server.bind("k")
        os.link("f", "h")
        return tried(os.mknod, "null", 0o600 | stat.S_IFCHR, os.makedev(1, 3))

    return as_user((OWNER, SHARED), make), [(name, looks(name)) for name in sorted(os.listdir("."))]


def the_group_is_the_effective_one() -> Any:
    os.chmod(".", 0o777)

    def make() -> None:
        write("f")
        os.mkdir("d")

    def switched() -> None:
        os.setgroups((OWNER,))
        os.setegid(SHARED)
        os.seteuid(MATE)
        make()

    return as_user(0, switched), looks("f"), looks("d")


def setgid_directory() -> Any:
    os.mkdir("d")
    os.chown("d", OWNER, SHARED)
    os.chmod("d", 0o2777)

    def make() -> None:
        write("d/f")
        os.mkdir("d/sub")
        os.mkdir("d/bits")
        os.chmod("d/bits", 0o2770)
        os.symlink("x", "d/s")
        os.mkfifo("d/p")
        os.close(os.open("d/gid", os.O_CREAT | os.O_WRONLY, 0o2775))
        os.close(os.open("d/gidnox", os.O_CREAT | os.O_WRONLY, 0o2664))
        os.mknod("d/n", 0o2775 | stat.S_IFREG)

    answers = [as_user(MATE, make), [(name, looks(f"d/{name}")) for name in sorted(os.listdir("d"))]]
    for name in os.listdir("d"):
        os.rename(f"d/{name}", f"{name}-by-mate")
    answers += [as_user((MATE, SHARED), make), [(name, looks(f"d/{name}")) for name in sorted(os.listdir("d"))]]
    return answers


def set_ids_at_creation() -> Any:
    os.chmod(".", 0o777)
    answers = []
    for uid in (0, OWNER):
        for mode in (0o4755, 0o2755, 0o6777, 0o1644, 0o2644):
            answers += [as_user(uid, opened, "f", os.O_CREAT | os.O_EXCL, mode), looks("f")]
            os.unlink("f")
            answers += [as_user(uid, os.mkdir, "d", mode), looks("d")]
            os.rmdir("d")
            answers += [as_user(uid, os.mknod, "n", mode | stat.S_IFIFO), looks("n")]
            os.unlink("n")
    return answers


def sticky_directory() -> Any:
    os.mkdir("t")
    os.chmod("t", 0o1777)
    answers = []
    for name, owner in (("mine", OWNER), ("other", MATE), ("roots", 0)):
        write(f"t/{name}", mode=0o666, owner=owner)
        os.mkdir(f"t/d-{name}")
        os.chown(f"t/d-{name}", owner, owner)
    for name in ("mine", "other", "roots"):
        steps: tuple[tuple[Any, ...], ...] = (
            (os.rename, f"t/{name}", "t/moved"),
            (os.rename, "t/moved", f"t/{name}"),
            (os.rename, f"t/{name}", "t/other"),
            (os.unlink, f"t/{name}"),
            (os.rmdir, f"t/d-{name}"),
        )
        answers += [(as_user(OWNER, *step), sorted(os.listdir("t"))) for step in steps]
    return answers


def set_ids_and_writes() -> Any:
    """Another user's write takes the bits; root's does not; nor does the owner keep them."""
    acts: dict[str, Callable[[], object]] = {
        "write": lambda: write_at("f", b"x"),
        "append": lambda: write_at("f", b"x", os.O_APPEND),
        "truncate": lambda: os.truncate("f", 1),
        "same size": lambda: os.truncate("f", 8),
        "ftruncate": lambda: ftruncate("f"),
        "O_TRUNC": lambda: opened("f", os.O_WRONLY | os.O_TRUNC),
        "nothing": lambda: opened("f", os.O_WRONLY),
        "empty write": lambda: write_at("f", b""),
        "chown": lambda: os.chown("f", -1, os.getgid()),
        "utime": lambda: os.utime("f"),
        "xattr": lambda: os.setxattr("f", "user.x", b"1"),
        "sendfile": lambda: send_into("f"),
    }
    answers = []
    write("source")
    for uid in (0, OWNER, STRANGER):
        for mode in (0o4777, 0o2777, 0o6777, 0o2767, 0o6666, 0o7777):
            for name, act in acts.items():
                write("f", owner=OWNER)
                os.chmod("f", mode)
                answers.append((name, uid, oct(mode), as_user(uid, act), looks("f")))
    return answers


def write_at(path: str, data: bytes, flags: int = 0) -> int:
    fd = os.open(path, os.O_WRONLY | flags)
    try:
        return os.write(fd, data)
    finally:
        os.close(fd)


def ftruncate(path: str) -> None:
    fd = os.open(path, os.O_RDWR)
    os.ftruncate(fd, 2)
    os.close(fd)


def send_into(path: str) -> int:
    fd, source = os.open(path, os.O_WRONLY), os.open("source", os.O_RDONLY)
    return os.sendfile(fd, source, 0, 4)


def root_chown_takes_the_bits() -> Any:
    answers = []
    for mode in (0o4755, 0o2755, 0o6755, 0o2745, 0o6644):
        for uid, gid in ((OWNER, -1), (-1, OWNER), (OWNER, OWNER), (0, 0)):
            write("f")
            os.chown("f", 0, 0)
            os.chmod("f", mode)
            os.chown("f", uid, gid)
            answers.append(looks("f"))
            os.mkdir("d")
            os.chmod("d", mode)
            os.chown("d", uid, gid)
            answers.append(looks("d"))
            os.rmdir("d")
    os.symlink("nowhere", "s")
    os.lchown("s", OWNER, SHARED)
    return answers, looks("s")


def bits_survive_the_owners_chmod() -> Any:
    write("f", owner=OWNER)
    answers = []
    for mode in (0o4755, 0o2755, 0o1755, 0o7777):
        for who in (OWNER, (OWNER, SHARED)):
            os.chown("f", OWNER, SHARED)
            answers.append((as_user(who, os.chmod, "f", mode), looks("f")))
    return answers


def umasks() -> Any:
    answers = []
    for umask in (0, 0o022, 0o027, 0o077, 0o777, 0o002):
        os.umask(umask)
        os.close(os.open("f", os.O_CREAT | os.O_EXCL, 0o666))
        os.close(os.open("x", os.O_CREAT | os.O_EXCL, 0o7777))
        os.mkdir("d", 0o777)
        os.mkfifo("p", 0o666)
        os.mknod("n", stat.S_IFREG | 0o666)
        os.symlink("t", "s")
        with socket.socket(socket.AF_UNIX) as server:
            server.bind("k")
        answers.append([looks(name) for name in "fxdpnsk"])
        for name in "fxpnsk":
            os.unlink(name)
        os.rmdir("d")
    return answers


def read_only_and_still_writable() -> Any:
    os.chmod(".", 0o777)

    def make() -> Any:
        fd = os.open("f", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o444)
        os.write(fd, b"text")
        os.ftruncate(fd, 3)
        return tried(os.open, "f", os.O_WRONLY), read("f"), looks("f")

    return as_user(OWNER, make), as_user(0, make)


def access_as_each() -> Any:
    answers = []
    for mode in (0o000, 0o111, 0o444, 0o755, 0o222, 0o060, 0o007):
        write("f", mode=mode, owner=OWNER)
        os.chown("f", OWNER, SHARED)
        for who in (0, OWNER, (MATE, SHARED), STRANGER):
            kinds = (os.R_OK, os.W_OK, os.X_OK, os.F_OK)
            answers += [as_user(who, os.access, "f", kind) for kind in kinds]
    return answers


def protected_links() -> Any:
    os.mkdir("t")
    os.chmod("t", 0o1777)
    write("t/roots", mode=0o600)
    os.symlink("roots", "t/link")
    os.lchown("t/link", STRANGER, STRANGER)
    return (
        as_user(OWNER, lambda: os.link("t/roots", "t/hard")),
        as_user(OWNER, lambda: read("t/link")),
        tried(read, "t/link"),
        as_user(OWNER, lambda: os.close(os.open("t/roots", os.O_CREAT | os.O_WRONLY))),
    )


def descriptors_keep_their_rights() -> Any:
    write("f", mode=0o644, owner=OWNER)
    fd = os.open("f", os.O_RDWR)
    os.fchmod(fd, 0)
    return as_user(STRANGER, lambda: (os.pread(fd, 10, 0), os.pwrite(fd, b"x", 0))), looks(fd)


@pytest.mark.parametrize(
    "operation",
    [
        open_as_each,
        directory_bits,
        attributes_are_the_owners,
        new_things_are_the_callers,
        the_group_is_the_effective_one,
        setgid_directory,
        set_ids_at_creation,
        sticky_directory,
        set_ids_and_writes,
        root_chown_takes_the_bits,
        bits_survive_the_owners_chmod,
        umasks,
        read_only_and_still_writable,
        access_as_each,
        protected_links,
        descriptors_keep_their_rights,
    ],
)
def test_same_as_bare(places: Places, operation: Callable[[], Any]) -> None:
    places.compare(operation)
