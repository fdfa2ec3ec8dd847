"""Names, links and special files: lengths, bytes, kinds, counts, and what rename does to each."""

import ctypes
import os
import socket
import stat
from collections.abc import Callable
from typing import Any

import pytest

from tests.helpers.pairs import Places, looks, opened, read, tried, write

NOREPLACE, EXCHANGE, WHITEOUT = 1, 2, 4
_libc = ctypes.CDLL(None, use_errno=True)


def renameat2(old: str, new: str, flags: int) -> None:
    if _libc.renameat2(-100, os.fsencode(old), -100, os.fsencode(new), flags):
        raise OSError(ctypes.get_errno(), "renameat2")


def content(path: str) -> Any:
    """What stands at a path, whatever it is."""
    try:
        kind = stat.S_IFMT(os.lstat(path).st_mode)
    except OSError as error:
        return error.errno
    if kind == stat.S_IFREG:
        return read(path)
    if kind == stat.S_IFLNK:
        return "->", os.readlink(path)
    if kind == stat.S_IFDIR:
        return "dir", sorted((name, content(f"{path}/{name}")) for name in os.listdir(path))
    return stat.filemode(kind)


def full_directory(path: str) -> None:
    os.mkdir(path)
    write(f"{path}/in")


KINDS: dict[str, Callable[[str], object]] = {
    "file": lambda path: write(path, path.encode()),
    "empty dir": os.mkdir,
    "full dir": full_directory,
    "symlink to file": lambda path: os.symlink("target", path),
    "symlink to dir": lambda path: os.symlink("directory", path),
    "dangling": lambda path: os.symlink("nowhere", path),
    "fifo": os.mkfifo,
    "same inode": lambda path: os.link("target", path),
    "nothing": lambda path: None,
}


def remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        for name in os.listdir(path):
            remove(f"{path}/{name}")
        os.rmdir(path)
    elif os.path.lexists(path):
        os.unlink(path)


@pytest.mark.parametrize("flags", [0, NOREPLACE, EXCHANGE, NOREPLACE | EXCHANGE, 8])
def test_rename_matrix(places: Places, flags: int) -> None:
    def every() -> Any:
        write("target")
        os.mkdir("directory")
        answers: list[Any] = []
        for one, make_one in KINDS.items():
            for other, make_other in KINDS.items():
                make_one("a")
                make_other("b")
                answer = tried(renameat2, "a", "b", flags)
                answers.append((one, other, answer, content("a"), content("b"), os.stat("target").st_nlink))
                answers += [looks(name) for name in ("a", "b") if os.path.lexists(name)]
                remove("a")
                remove("b")
        return answers

    places.compare(every)


def rename_around() -> Any:
    os.makedirs("d/e/f")
    write("d/x")
    os.symlink("d", "s")
    return [
        tried(os.rename, "d", "d/e/g"),
        tried(os.rename, "d", "d"),
        tried(os.rename, "d/e", "d"),
        tried(os.rename, "d/e/f", "d"),
        tried(os.rename, "d/.", "g"),
        tried(os.rename, "d/e/..", "g"),
        tried(os.rename, "s/", "g"),
        tried(os.rename, "d/x", "d/x/"),
        tried(os.rename, "d/x", "new/"),
        tried(os.rename, "d/", "new/"),
        tried(os.rename, "missing", "missing"),
        tried(os.rename, "missing", "new"),
        tried(os.rename, "new/x", "missing/x"),
        tried(os.rename, "new/x/y", "z"),
        tried(os.rename, "new", "/proc/self/new"),
        tried(renameat2, "new/e", "new/e/f/g", EXCHANGE),
        content("."),
    ]


def renamed_directories_keep_their_trees() -> Any:
    answers: list[Any] = []
    os.makedirs("a/b")
    write("a/b/f")
    for _ in range(20):
        read("a/b/f")
        os.rename("a", "z")
        answers.append((read("z/b/f"), tried(read, "a/b/f"), write("z/b/g"), sorted(os.listdir("z/b"))))
        os.unlink("z/b/g")
        os.rename("z", "a")
    os.chdir("a/b")
    os.rename("../../a", "../../y")
    answers.append((read("f"), os.listdir("."), os.path.basename(os.path.dirname(os.getcwd()))))
    return answers


def link_counts() -> Any:
    write("f")
    answers: list[Any] = [looks("f")]
    os.link("f", "g")
    answers += [looks("f"), looks("g"), os.path.samefile("f", "g")]
    os.rename("f", "g")
    answers += [looks("f"), sorted(os.listdir("."))]
    os.unlink("f")
    answers.append(looks("g"))
    write("g", b"new")
    os.mkdir("d")
    answers.append(looks("d"))
    os.mkdir("d/e")
    answers.append(looks("d"))
    os.rename("d/e", "e")
    answers += [looks("d"), looks(".")[0]]
    os.symlink("g", "s")
    os.link("s", "t", follow_symlinks=False)
    answers += [looks("s"), looks("t"), os.readlink("t")]
    os.unlink("s")
    answers += [looks("t"), os.readlink("t"), tried(os.link, "d", "x"), tried(os.link, "nope", "x")]
    answers += [tried(os.link, "g", "t"), tried(os.link, "g", "d"), tried(os.link, "g", "nope/x")]
    os.mkfifo("p")
    os.link("p", "q")
    os.link("t", "follow", follow_symlinks=True)
    return [*answers, looks("q"), looks("follow")]


def many_names_for_one_inode() -> Any:
    write("f", b"x")
    for number in range(400):
        os.link("f", f"f{number}")
    with os.scandir(".") as entries:
        listed = [(entry.name, entry.is_file(), entry.inode() == os.stat(entry.name).st_ino) for entry in entries]
    for number in range(0, 400, 2):
        os.unlink(f"f{number}")
    write("f399", b"yy")
    return sorted(listed), looks("f"), {read(name) for name in os.listdir(".")}


def long_names() -> Any:
    answers: list[Any] = []
    for length in (1, 254, 255, 256, 257, 1000, 1024, 1025, 4095, 4096):
        name = "n" * length
        steps: tuple[tuple[Any, ...], ...] = (
            (write, name),
            (read, name),
            (os.rename, name, "m"),
            (os.rename, "m", name),
            (os.link, name, "h"),
            (os.unlink, name),
            (os.mkdir, name),
            (os.rmdir, name),
            (os.symlink, "t", name),
            (os.readlink, name),
            (os.unlink, name),
            (os.mkfifo, name),
            (os.remove, name),
            (os.symlink, name, "s"),
            (os.readlink, "s"),
            (os.remove, "s"),
            (os.remove, "h"),
        )
        answers += [tried(*step) for step in steps]
    name = "ü" * 127
    write(name)
    return answers, os.listdir(".")


def names_are_bytes() -> Any:
    names = [bytes([byte]) for byte in range(1, 256) if byte not in b"./"]
    names += [
        b"new\nline",
        b"\xff\xfe",
        b"tab\t",
        b" ",
        b"-",
        b"...",
        "é".encode(),
        "e\u0301".encode(),
        b"a" * 254 + b"\xff",
    ]
    for name in names:
        write(name, name)
    os.mkdir(b"\xffd\n")
    os.rename(b"\xff\xfe", b"\xffd\n/\x80")
    os.symlink(b"\xff\n", b"\x01link")
    os.setxattr(b"\xc3", b"user.n\xff", b"\n")
    listed = sorted(os.listdir(b"."))
    return (
        [(name, read(name)) for name in listed if os.path.isfile(name)],
        os.listdir(b"\xffd\n"),
        os.readlink(b"\x01link"),
        os.listxattr(b"\xc3"),
    )


def deeper_than_a_path() -> Any:
    name = "d" * 200
    for depth in range(40):
        os.mkdir(name)
        os.chdir(name)
        write("f", b"%d" % depth)
    long_path = "/".join([name] * 19)
    answers: list[Any] = [read("f"), os.listdir("."), os.stat("..").st_nlink]
    answers.append(tried(os.stat, "x/" * 2100))
    for _ in range(40):
        os.chdir("..")
    answers += [read(long_path + "/f"), tried(os.stat, long_path + "/" + long_path), content(long_path + "/f")]
    return answers


def eight_hundred_levels() -> Any:
    for _ in range(800):
        os.mkdir("d")
        os.chdir("d")
    write("f", b"bottom")
    os.rename("f", "g")
    answers: list[Any] = [read("g"), os.listdir("."), looks(".")]
    os.unlink("g")
    for _ in range(800):
        os.chdir("..")
        answers.append(os.listdir("."))
        os.rmdir("d")
    return answers


def path_errors() -> Any:
    write("f")
    os.mkdir("d")
    os.symlink("loop", "loop")
    os.symlink("d", "s")
    os.symlink("missing", "dangling")
    answers: list[Any] = []
    kept = ("f", "s", "loop", "dangling")
    paths = ("", "f/", "f/x", "d/", "d/x", "d/.", "d/..", "loop", "loop/x", "s", "s/", "s/x", "dangling", "x/y", ".")
    for path in paths:
        steps: tuple[tuple[Any, ...], ...] = (
            (kind_of, path, True),
            (kind_of, path, False),
            (os.mkdir, path),
            (os.rmdir, path),
            (os.unlink, path if path not in kept else "missing"),
            (os.symlink, "t", path),
            (os.link, "f", path),
            (os.mkfifo, path),
            (os.readlink, path),
            (os.listdir, path),
            (opened, path, os.O_RDWR),
            (opened, path, os.O_RDWR | os.O_CREAT | os.O_EXCL),
            (os.truncate, path, 2),
        )
        answers += [(path, tried(*step)) for step in steps]
        os.makedirs("d", exist_ok=True)
    return answers


def kind_of(path: str, follow: bool) -> int:
    return stat.S_IFMT(os.stat(path, follow_symlinks=follow).st_mode)


def open_flags() -> Any:
    write("f")
    os.mkdir("d")
    os.symlink("f", "s")
    os.symlink("d", "sd")
    os.symlink("missing", "dangling")
    os.mkfifo("p")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("k")
    answers: list[Any] = []
    all_flags = (
        os.O_RDONLY | os.O_NOFOLLOW,
        os.O_RDONLY | os.O_DIRECTORY,
        os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW,
        os.O_PATH | os.O_NOFOLLOW,
        os.O_WRONLY | os.O_NONBLOCK,
        os.O_RDONLY | os.O_NONBLOCK,
        os.O_CREAT | os.O_EXCL | os.O_WRONLY,
        os.O_CREAT | os.O_NOFOLLOW | os.O_RDWR,
        os.O_CREAT | os.O_DIRECTORY,
        os.O_RDONLY | os.O_NOATIME | os.O_NONBLOCK,
        os.O_RDWR | os.O_SYNC,
        os.O_RDONLY | os.O_TRUNC | os.O_NONBLOCK,
    )
    for name in ("f", "d", "s", "sd", "dangling", "k", "p", "new"):
        answers += [(name, flags, tried(opened, name, flags | os.O_NONBLOCK)) for flags in all_flags]
        answers.append(tried(read, "new"))
        if os.path.exists("new"):
            os.unlink("new")
        if os.path.exists("missing"):
            os.unlink("missing")
    return answers, looks("f"), os.stat("f").st_size


def special_files() -> Any:
    os.mkfifo("p", 0o640)
    write_end = os.open("p", os.O_RDWR)
    os.write(write_end, b"through")
    os.mknod("null", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    os.mknod("loop", 0o660 | stat.S_IFBLK, os.makedev(7, 250))
    os.mknod("big", 0o660 | stat.S_IFCHR, os.makedev(300, 70000))
    server = socket.socket(socket.AF_UNIX)
    server.bind("k")
    server.listen()
    client = socket.socket(socket.AF_UNIX)
    client.connect("k")
    taken, _ = server.accept()
    client.send(b"hello")
    answers: list[Any] = [os.read(write_end, 7), taken.recv(5), tried(socket.socket(socket.AF_UNIX).bind, "k")]
    with open("null", "r+b", buffering=0) as null:
        answers += [null.write(b"gone"), null.read()]
    answers += [(looks(name), os.lstat(name).st_rdev) for name in ("p", "null", "loop", "big", "k")]
    answers.append(tried(os.mknod, "d", 0o755 | stat.S_IFDIR))
    os.unlink("k")
    return answers, sorted(os.listdir("."))


def symlinks() -> Any:
    answers: list[Any] = []
    for target in (b"f", b"/absolute", b"x" * 4095, b"\xff\n", b"a/../b"):
        os.symlink(target, b"s")
        st = os.lstat(b"s")
        answers.append((os.readlink(b"s"), st.st_size, stat.filemode(st.st_mode)))
        os.unlink(b"s")
    answers += [tried(os.symlink, "x" * 4096, "s"), tried(os.symlink, "", "s")]
    os.symlink("here", "s")
    answers.append(tried(lambda: os.chmod("s", 0o600)))
    os.utime("s", ns=(5, 7), follow_symlinks=False)
    answers += [os.lstat("s").st_mtime_ns, tried(os.setxattr, "s", "user.a", b"", follow_symlinks=False)]
    answers.append(tried(os.setxattr, "s", "trusted.a", b"1", follow_symlinks=False))
    answers.append(os.listxattr("s", follow_symlinks=False))
    return answers


def rmdir_errors() -> Any:
    os.makedirs("d/e")
    write("f")
    os.symlink("d", "s")
    return [
        tried(os.rmdir, "d"),
        tried(os.rmdir, "f"),
        tried(os.rmdir, "s"),
        tried(os.rmdir, "d/."),
        tried(os.rmdir, "d/e/.."),
        tried(os.rmdir, "missing"),
        tried(os.unlink, "d"),
        tried(os.unlink, "missing"),
        tried(os.rmdir, "d/e"),
        tried(os.rmdir, "d"),
        content("."),
    ]


def standing_in_a_removed_directory() -> Any:
    os.mkdir("d")
    os.chdir("d")
    os.rmdir("../d")
    return [
        os.stat(".").st_nlink,
        os.listdir("."),
        tried(write, "f"),
        tried(os.mkdir, "e"),
        tried(os.stat, "../x"),
        tried(os.getcwd),
        tried(lambda: os.chmod(".", 0o700)),
        tried(os.rmdir, "../d"),
    ]


def nlink_of_replaced() -> Any:
    write("a")
    os.link("a", "b")
    write("c")
    fd = os.open("a", os.O_RDONLY)
    os.rename("c", "a")
    answers: list[Any] = [os.fstat(fd).st_nlink, looks("b")]
    os.rename("a", "b")
    return answers, os.fstat(fd).st_nlink, os.pread(fd, 10, 0)


@pytest.mark.parametrize(
    "operation",
    [
        rename_around,
        renamed_directories_keep_their_trees,
        link_counts,
        many_names_for_one_inode,
        long_names,
        names_are_bytes,
        deeper_than_a_path,
        eight_hundred_levels,
        path_errors,
        open_flags,
        special_files,
        symlinks,
        rmdir_errors,
        standing_in_a_removed_directory,
        nlink_of_replaced,
    ],
)
def test_same_as_bare(places: Places, operation: Callable[[], Any]) -> None:
    places.compare(operation)
