"""Bytes: offsets, holes, appends, mappings, locks, files that have lost their name, and programs run from here."""

import ctypes
import errno
import fcntl
import hashlib
import mmap
import os
import random
import resource
import shutil
import signal
import stat
import struct
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from tests.helpers.pairs import OWNER, Child, Places, as_user, looks, read, tried, write

GIB = 1 << 30
_libc = ctypes.CDLL(None, use_errno=True)


def unlinked_while_open() -> Any:
    write("f", b"first")
    fd = os.open("f", os.O_RDWR)
    os.unlink("f")
    answers: list[Any] = [os.pwrite(fd, b"text", 3), os.pread(fd, 100, 0), looks(fd)]
    os.ftruncate(fd, 2)
    os.fchmod(fd, 0o640)
    os.fchown(fd, OWNER, OWNER)
    os.utime(fd, ns=(1_000_000_001, 2_000_000_002))
    os.setxattr(fd, "user.a", b"1")
    st = os.fstat(fd)
    answers += [looks(fd), st.st_size, st.st_mtime_ns, os.getxattr(fd, "user.a"), tried(os.fsync, fd)]
    write("f", b"second")
    answers += [os.fstat(fd).st_ino != os.stat("f").st_ino, os.pread(fd, 100, 0), read("f")]
    again = os.open(f"/proc/self/fd/{fd}", os.O_RDWR)
    answers += [os.pwrite(again, b"!", 0), os.pread(fd, 9, 0)]
    answers.append(tried(os.link, f"/proc/self/fd/{fd}", "back", src_dir_fd=None))
    os.close(again)
    os.close(fd)
    return answers, os.listdir(".")


def rmdir_of_the_parent() -> Any:
    os.mkdir("d")
    write("d/f", b"text")
    fd, dir_fd = os.open("d/f", os.O_RDWR), os.open("d", os.O_RDONLY)
    os.unlink("d/f")
    os.rmdir("d")
    return [
        os.write(fd, b"TE"),
        os.pread(fd, 9, 0),
        looks(fd),
        looks(dir_fd)[:3],
        os.listdir(dir_fd),
        tried(os.open, "f", os.O_CREAT | os.O_RDWR, dir_fd=dir_fd),
        tried(os.stat, "f", dir_fd=dir_fd),
        tried(os.mkdir, "d"),
        os.listdir("d"),
        os.listdir(dir_fd),
        tried(os.fsync, fd),
    ]


def replaced_while_open() -> Any:
    write("f", b"old")
    write("g", b"new")
    old = os.open("f", os.O_RDWR)
    os.rename("g", "f")
    new = os.open("f", os.O_RDWR)
    os.pwrite(old, b"OLD!", 0)
    os.pwrite(new, b"NEW!", 0)
    return os.pread(old, 9, 0), os.pread(new, 9, 0), read("f"), looks(old), looks(new)


def path_descriptors_outlive_names() -> Any:
    write("f", b"text")
    fd = os.open("f", os.O_PATH)
    other = os.open("f", os.O_RDONLY)
    os.unlink("f")
    os.close(other)
    answers: list[Any] = [looks(fd), tried(os.read, fd, 1)]
    again = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY)
    return answers, os.read(again, 9), tried(os.open, "f", os.O_RDONLY)


def sixty_rounds_of_one_name() -> Any:
    answers: list[Any] = []
    for number in range(60):
        write("f", b"x" * number, mode=0o600 + number % 8)
        os.setxattr("f", "user.n", b"%d" % number)
        st = os.stat("f")
        answers.append((st.st_size, stat.filemode(st.st_mode), os.getxattr("f", "user.n"), read("f"), st.st_nlink))
        os.unlink("f")
        answers.append(tried(os.stat, "f"))
        (os.mkdir if number % 3 == 0 else os.mkfifo)("g")
        answers.append(looks("g"))
        (os.rmdir if number % 3 == 0 else os.unlink)("g")
    return answers


def open_to_truncate_under_a_reader() -> Any:
    write("f", b"long content")
    reader = os.open("f", os.O_RDONLY)
    answers: list[Any] = [os.read(reader, 4)]
    for flags in (os.O_RDWR | os.O_TRUNC, os.O_RDWR, os.O_WRONLY | os.O_TRUNC | os.O_CREAT, os.O_RDONLY | os.O_TRUNC):
        fd = os.open("f", flags)
        answers += [
            os.fstat(reader).st_size,
            tried(os.write, fd, b"new"),
            os.pread(reader, 99, 0),
            os.stat("f").st_size,
        ]
        os.close(fd)
    return answers


def offsets_beyond_four_gib() -> Any:
    fd = os.open("f", os.O_CREAT | os.O_RDWR)
    answers: list[Any] = [os.pwrite(fd, b"far", 5 * GIB + 1), os.pwrite(fd, b"mid", 4 * GIB - 1), os.fstat(fd).st_size]
    answers += [os.pread(fd, 9, 5 * GIB), os.pread(fd, 4, 4 * GIB - 2), os.pread(fd, 2, 3 * GIB)]
    answers += [os.stat("f").st_blocks < 4096, os.lseek(fd, -2, os.SEEK_END), os.read(fd, 9)]
    os.ftruncate(fd, 8 * GIB)
    answers += [os.fstat(fd).st_size, tried(os.ftruncate, fd, -1), tried(os.truncate, "f", 1 << 62)]
    answers += [tried(os.pwrite, fd, b"x", (1 << 63) - 1), os.lseek(fd, 0, os.SEEK_CUR)]
    return answers


def blocks_are_told_honestly() -> Any:
    answers: list[Any] = []
    fd = os.open("f", os.O_CREAT | os.O_RDWR)
    for length, offset in ((0, 0), (1, 0), (4096, 0), (65536, 0), (4096, 1 << 20)):
        os.pwrite(fd, b"x" * length, offset)
        tried(os.fsync, fd)
        answers.append((os.stat("f").st_blocks, os.fstat(fd).st_size, os.fstat(fd).st_blksize))
    os.ftruncate(fd, 100)
    answers.append(os.stat("f").st_blocks)
    return answers


def seeking_holes_is_safe() -> Any:
    """Data may be told where there is a hole, never a hole where there is data."""
    fd = os.open("f", os.O_CREAT | os.O_RDWR)
    os.pwrite(fd, b"x", 1 << 20)
    end = os.fstat(fd).st_size
    return [
        os.lseek(fd, 0, os.SEEK_DATA) <= 1 << 20,
        os.lseek(fd, 1 << 20, os.SEEK_DATA),
        os.lseek(fd, 1 << 20, os.SEEK_HOLE) == end,
        tried(os.lseek, fd, end, os.SEEK_DATA),
        tried(os.lseek, fd, end + 5, os.SEEK_HOLE),
    ]


def sparse_copy() -> Any:
    fd = os.open("f", os.O_CREAT | os.O_RDWR)
    os.pwrite(fd, b"middle", 3 << 20)
    os.ftruncate(fd, 5 << 20)
    subprocess.run(["cp", "--sparse=always", "f", "g"], check=True)
    subprocess.run(["cp", "f", "h"], check=True)
    return read("f") == read("g") == read("h"), os.stat("g").st_size, os.stat("g").st_blocks < 100


def allocation_has_a_fallback() -> Any:
    fd = os.open("f", os.O_CREAT | os.O_RDWR)
    os.write(fd, b"text")
    os.posix_fallocate(fd, 0, 100_000)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    return os.fstat(fd).st_size, os.pread(fd, 6, 0), os.stat("f").st_blocks >= 192


def copies_inside_the_kernel() -> Any:
    write("f", os.urandom(1) * 300_000 + b"end")
    source = os.open("f", os.O_RDONLY)
    answers: list[Any] = []
    one = os.open("g", os.O_CREAT | os.O_RDWR)
    answers.append(os.sendfile(one, source, 0, 1 << 20))
    two = os.open("h", os.O_CREAT | os.O_RDWR)
    answers.append(os.copy_file_range(source, two, 1 << 20, 0, 0))
    answers.append(os.copy_file_range(source, two, 3, 300_000, 10))
    inside = tried(os.copy_file_range, two, two, 10, 0, 400_000)
    shutil.copyfile("f", "i")
    return answers, inside, read("g") == read("f") == read("i"), os.pread(two, 5, 9)[1:4], os.fstat(two).st_size


def splices_through_a_pipe() -> Any:
    write("f", b"0123456789" * 1000)
    out, into = os.pipe()
    source, target = os.open("f", os.O_RDONLY), os.open("g", os.O_CREAT | os.O_WRONLY)
    moved = os.splice(source, into, 5000)
    moved_out = os.splice(out, target, 5000)
    return moved, moved_out, read("g") == read("f")[:5000]


def mapping_shared() -> Any:
    write("f", b"a" * 10_000)
    fd = os.open("f", os.O_RDWR)
    with mmap.mmap(fd, 0) as first, mmap.mmap(fd, 0) as second:
        first[5000:5004] = b"SEEN"
        answers = [second[4999:5005]]
        first.flush()
        answers += [os.pread(fd, 6, 4999), read("f")[4999:5005]]
        os.pwrite(fd, b"FILE", 0)
        answers.append(first[:5])
        first[9999] = 33
    os.close(fd)
    return answers, read("f")[-3:], os.stat("f").st_size


def mapping_private() -> Any:
    write("f", b"a" * 5000)
    fd = os.open("f", os.O_RDONLY)
    with mmap.mmap(fd, 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE) as view:
        view[0:4] = b"mine"
        answers = [view[:5], read("f")[:5]]
    denied = tried(mmap.mmap, fd, 0, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    return answers, denied


def mapping_outlives_descriptor_and_name() -> Any:
    write("f", b"a" * 5000)
    fd = os.open("f", os.O_RDWR)
    view = mmap.mmap(fd, 0)
    os.close(fd)
    os.link("f", "g")
    os.unlink("f")
    view[10:12] = b"xy"
    view.flush()
    answers: list[Any] = [read("g")[9:13]]
    os.unlink("g")
    view[20:22] = b"zz"
    view.flush()
    answers.append(view[19:23])
    view.close()
    return answers


def mappings_of_two_processes() -> Any:
    write("f", b"\0" * 4096)
    view = mmap.mmap(os.open("f", os.O_RDWR), 0)

    def set_it() -> None:
        with mmap.mmap(os.open("f", os.O_RDWR), 0) as other:
            other[100] = 7

    Child(set_it).result()
    return view[100]


def four_writers_append() -> Any:
    def append(name: bytes) -> Callable[[], None]:
        def lines() -> None:
            fd = os.open("f", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            for number in range(200):
                os.write(fd, b"%s %d\n" % (name, number))

        return lines

    children = [Child(append(name)) for name in (b"a", b"b", b"c", b"d")]
    for child in children:
        child.result()
    lines = read("f").splitlines()
    return len(lines), [[line for line in lines if line.startswith(name)] for name in (b"a", b"b", b"c", b"d")]


def append_flags() -> Any:
    write("f", b"one\n")
    fd = os.open("f", os.O_RDWR | os.O_APPEND)
    answers: list[Any] = [os.write(fd, b"two\n"), os.lseek(fd, 0, os.SEEK_CUR), os.pwrite(fd, b"three\n", 0), read("f")]
    os.truncate("f", 2)
    answers += [os.write(fd, b"!"), read("f")]
    fcntl.fcntl(fd, fcntl.F_SETFL, 0)
    os.lseek(fd, 0, os.SEEK_SET)
    answers += [os.write(fd, b"X"), read("f"), fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_APPEND]
    other = os.open("f", os.O_WRONLY | os.O_APPEND)
    fcntl.fcntl(other, fcntl.F_SETFL, 0)
    answers += [os.pwrite(other, b"Y", 0), read("f")]
    plain = os.open("f", os.O_RDWR)
    fcntl.fcntl(plain, fcntl.F_SETFL, os.O_APPEND)
    return answers, os.write(plain, b"end"), read("f")


def locks_between_processes() -> Any:
    write("f", b"x" * 100)
    fd = os.open("f", os.O_RDWR)
    answers: list[Any] = []

    def flock(kind: int) -> Callable[[], None]:
        return lambda: fcntl.flock(os.open("f", os.O_RDWR), kind | fcntl.LOCK_NB)

    def lockf(kind: int, length: int, start: int) -> Callable[[], None]:
        return lambda: fcntl.lockf(os.open("f", os.O_RDWR), kind | fcntl.LOCK_NB, length, start)

    fcntl.flock(fd, fcntl.LOCK_EX)
    answers += [Child(flock(fcntl.LOCK_EX)).result(), Child(flock(fcntl.LOCK_SH)).result()]
    fcntl.flock(fd, fcntl.LOCK_SH)
    answers += [Child(flock(fcntl.LOCK_EX)).result(), Child(flock(fcntl.LOCK_SH)).result()]
    fcntl.flock(fd, fcntl.LOCK_UN)
    answers.append(Child(flock(fcntl.LOCK_EX)).result())
    fcntl.lockf(fd, fcntl.LOCK_EX, 10, 20)
    for start, length in ((0, 20), (0, 21), (29, 1), (30, 5)):
        answers.append(Child(lockf(fcntl.LOCK_EX, length, start)).result())
    query = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    told = Child(lambda: struct.unpack("hhqqi4x", fcntl.fcntl(os.open("f", os.O_RDWR), fcntl.F_GETLK, query))[:4])
    answers.append(told.result())
    os.close(os.open("f", os.O_RDONLY))  # POSIX: any close drops the process's record locks.
    answers.append(Child(lockf(fcntl.LOCK_EX, 100, 0)).result())
    return answers


def a_lock_that_is_waited_for() -> Any:
    write("f")
    fd = os.open("f", os.O_RDWR)
    fcntl.flock(fd, fcntl.LOCK_EX)
    fcntl.lockf(fd, fcntl.LOCK_EX)

    def wait() -> bytes:
        other = os.open("f", os.O_RDWR)
        fcntl.flock(other, fcntl.LOCK_EX)
        fcntl.lockf(other, fcntl.LOCK_EX)
        return os.pread(other, 5, 0)

    child = Child(wait)
    os.pwrite(fd, b"after", 0)
    fcntl.flock(fd, fcntl.LOCK_UN)
    os.close(fd)
    return child.result()


def text_file_busy() -> Any:
    shutil.copy("/bin/true", "program")
    answers: list[Any] = [subprocess.run(["./program"], check=False).returncode]
    writer = os.open("program", os.O_WRONLY)
    answers.append(tried(lambda: subprocess.run(["./program"], check=False).returncode))
    os.close(writer)
    shutil.copy("/bin/cat", "program")
    running = subprocess.Popen(["./program"], stdin=subprocess.PIPE)
    answers.append(tried(os.open, "program", os.O_WRONLY))
    answers.append(tried(os.truncate, "program", 0))
    os.rename("program", "moved")
    answers.append(tried(os.open, "moved", os.O_RDWR))
    os.unlink("moved")
    assert running.stdin is not None
    running.stdin.close()
    answers.append(running.wait())
    return answers


def programs_run_from_here() -> Any:
    write("script", b"#!/bin/sh\necho from $0 $1\n", mode=0o755)
    write("nested", b"#!./script\n", mode=0o755)
    write("plain", b"#!/bin/sh\n", mode=0o644)
    write("empty", b"", mode=0o755)
    write("lost", b"#!/no/such\n", mode=0o755)
    shutil.copy("/bin/echo", "program")
    os.chmod("program", 0o111)
    os.symlink("program", "link")

    def out(*args: str) -> Any:
        return tried(lambda: subprocess.run(args, capture_output=True, check=False).stdout)

    answers: list[Any] = [
        out(name, "x") for name in ("./script", "./nested", "./plain", "./empty", "./lost", "./program", "./link")
    ]
    fd = os.open("script", os.O_RDONLY)
    answers.append(out(f"/proc/self/fd/{fd}"))
    return answers, as_user(OWNER, out, "./program", "y"), as_user(OWNER, read, "program")


def set_uid_programs_take_effect() -> Any:
    shutil.copy(shutil.which("id") or "/usr/bin/id", "id")
    os.chown("id", OWNER, OWNER)
    os.chmod("id", 0o6755)
    return subprocess.run(["./id", "-u"], capture_output=True, check=True).stdout


def synchronised() -> Any:
    fd = os.open("f", os.O_CREAT | os.O_RDWR | os.O_SYNC)
    answers: list[Any] = [os.write(fd, b"text"), tried(os.fsync, fd), tried(os.fdatasync, fd)]
    other = os.open("g", os.O_CREAT | os.O_WRONLY | os.O_DSYNC)
    answers += [os.write(other, b"text"), tried(os.fsync, other)]
    reader = os.open("f", os.O_RDONLY)
    answers += [tried(os.fsync, reader), tried(os.fdatasync, reader)]
    directory = os.open(".", os.O_RDONLY)
    answers += [tried(os.fsync, directory), tried(os.fdatasync, directory)]
    return answers, tried(os.write, directory, b"x"), tried(os.read, directory, 1), tried(os.read, other, 1)


def vectors_and_ends() -> Any:
    fd = os.open("f", os.O_CREAT | os.O_RDWR)
    answers: list[Any] = [os.writev(fd, [b"one", b"", b"two"]), os.pwritev(fd, [b"A", b"B"], 1), os.pread(fd, 99, 0)]
    buffers = [bytearray(2), bytearray(9)]
    answers += [os.preadv(fd, buffers, 1), bytes(buffers[1]), os.read(fd, 5), os.pread(fd, 5, 100)]
    big = bytes(range(256)) * 12_000
    answers += [os.pwrite(fd, big, 7), os.pread(fd, len(big), 7) == big, os.fstat(fd).st_size]
    answers += [tried(os.pread, fd, 1, -1), tried(os.lseek, fd, -1, os.SEEK_SET), os.write(fd, b"")]
    return answers


def file_size_limit() -> Any:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
    fd = os.open("f", os.O_CREAT | os.O_RDWR)
    return [
        os.pwrite(fd, b"x" * 9_999, 0),
        os.pwrite(fd, b"x" * 10, 9_995),
        tried(os.pwrite, fd, b"x", 10_000),
        tried(os.ftruncate, fd, 20_000),
        os.fstat(fd).st_size,
    ]


def descriptors_passed_on() -> Any:
    write("f", b"0123456789")
    fd = os.open("f", os.O_RDWR)
    os.read(fd, 3)
    duplicate = os.dup(fd)
    Child(lambda: os.read(fd, 2)).result()
    return (
        os.read(duplicate, 2),
        os.lseek(fd, 0, os.SEEK_CUR),
        tried(os.close, fd),
        os.write(duplicate, b"!"),
        read("f"),
    )


def access_modes_hold() -> Any:
    write("f", b"text")
    reader, writer = os.open("f", os.O_RDONLY), os.open("f", os.O_WRONLY)
    return [
        tried(os.write, reader, b"x"),
        tried(os.read, writer, 1),
        tried(os.ftruncate, reader, 1),
        tried(os.ftruncate, writer, 3),
        tried(mmap.mmap, writer, 3),
        read("f"),
    ]


def any_order_of_calls() -> Any:
    """Reads, writes, truncations and mappings as fsx makes them, from fixed random numbers."""
    dice = random.Random(20)
    fd = os.open("f", os.O_CREAT | os.O_RDWR)
    answers: list[Any] = []
    for _ in range(1500):
        offset, length = dice.randrange(200_000), dice.randrange(1, 40_000)
        act = dice.randrange(7)
        size = os.fstat(fd).st_size
        if act == 0:
            answers.append(os.pwrite(fd, dice.randbytes(length), offset))
        elif act == 1:
            answers.append(hash_of(os.pread(fd, length, offset)))
        elif act == 2:
            os.ftruncate(fd, offset)
        elif act == 3 and size > offset + length:
            with mmap.mmap(fd, size) as view:
                view[offset : offset + length] = dice.randbytes(length)
        elif act == 4 and size > offset + length:
            with mmap.mmap(fd, size, prot=mmap.PROT_READ) as view:
                answers.append(hash_of(view[offset : offset + length]))
        elif act == 5:
            os.close(fd)
            fd = os.open("f", os.O_RDWR)
        elif act == 6:
            other = os.open("f", os.O_WRONLY | os.O_APPEND)
            answers.append(os.write(other, dice.randbytes(100)))
            os.close(other)
        answers.append(os.fstat(fd).st_size)
    return answers, hash_of(read("f")), os.stat("f").st_size


def hash_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:8]


@pytest.mark.parametrize(
    "operation",
    [
        any_order_of_calls,
        unlinked_while_open,
        rmdir_of_the_parent,
        replaced_while_open,
        path_descriptors_outlive_names,
        sixty_rounds_of_one_name,
        open_to_truncate_under_a_reader,
        offsets_beyond_four_gib,
        blocks_are_told_honestly,
        seeking_holes_is_safe,
        sparse_copy,
        allocation_has_a_fallback,
        copies_inside_the_kernel,
        splices_through_a_pipe,
        mapping_shared,
        mapping_private,
        mapping_outlives_descriptor_and_name,
        mappings_of_two_processes,
        four_writers_append,
        append_flags,
        locks_between_processes,
        a_lock_that_is_waited_for,
        text_file_busy,
        programs_run_from_here,
        set_uid_programs_take_effect,
        synchronised,
        vectors_and_ends,
        file_size_limit,
        descriptors_passed_on,
        access_modes_hold,
    ],
)
def test_same_as_bare(places: Places, operation: Callable[[], Any]) -> None:
    places.compare(operation)


def test_no_file_is_left_hidden(places: Places) -> None:
    """What is unlinked while open leaves no name behind, neither above nor below."""
    places.on_mount(unlinked_while_open)
    hidden = [name for _, _, names in os.walk(places.mount.backing) for name in names if name.startswith(".fuse")]
    assert not hidden


def test_a_nameless_file_is_made_or_honestly_refused(places: Places) -> None:
    answer = places.on_mount(lambda: os.close(os.open(".", os.O_TMPFILE | os.O_RDWR)))
    assert answer == errno.errorcode[errno.EOPNOTSUPP]
