"""What /proc says of processes and programs.

Only ``stat``, ``status`` and ``exe`` are read while a request waits: ``environ`` takes the target's memory
lock, which a page fault on this very mount may hold. Used by the census and by the launcher.
"""

import ctypes
import os
import shutil
import struct
import subprocess
from collections.abc import Iterable

from guardfs.core.model import ProcId
from guardfs.core.wording import escape

ExeId = tuple[int, int]

_libc = ctypes.CDLL(None, use_errno=True)
_AT_EMPTY_PATH = 0x1000
_AT_STATX_DONT_SYNC = 0x4000
_STATX_INO = 0x100
_STATX_BYTES = 256
_INO_AT, _DEV_AT = 32, 136
"""Offsets in struct statx (statx(2), linux/stat.h): stx_ino, and stx_dev_major with stx_dev_minor behind it."""


def identity_unasked(path: bytes) -> ExeId:
    """Device and inode of a file from what the kernel holds already: no request to any file system.

    Opening with O_PATH asks for nothing, nor does statx(2) with AT_STATX_DONT_SYNC. Raises OSError.
    """
    held = ctypes.create_string_buffer(_STATX_BYTES)
    fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        if _libc.statx(fd, b"", _AT_EMPTY_PATH | _AT_STATX_DONT_SYNC, _STATX_INO, held) != 0:
            raise OSError(ctypes.get_errno(), "statx")
    finally:
        os.close(fd)
    (inode,) = struct.unpack_from("Q", held, _INO_AT)
    major, minor = struct.unpack_from("II", held, _DEV_AT)
    return os.makedev(major, minor), inode


def _read(path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, 4096)
    finally:
        os.close(fd)


def _stat_fields(pid: int) -> list[bytes]:
    """proc_pid_stat(5) from field 3 on; the name in field 2 may hold spaces and parentheses."""
    return _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()


def own_pid() -> int:
    """This process's own id."""
    return os.getpid()


def process(pid: int) -> ProcId:
    """The process that has this id now. Raises OSError where there is none."""
    return ProcId(pid, int(_stat_fields(pid)[19]))


def parent(pid: int) -> int:
    """The id of a process's parent, 0 for none."""
    return int(_stat_fields(pid)[1])


def is_alive(proc: ProcId) -> bool:
    """Whether this very process still runs; a zombie does not."""
    try:
        fields = _stat_fields(proc.pid)
    except OSError:
        return False  # /proc shows the living to everybody who could have tracked them.
    return int(fields[19]) == proc.start and not _has_ended(fields)


def is_zombie(pid: int) -> bool:
    """Whether a process has ended and only waits to be reaped; true for one that is gone."""
    try:
        return _has_ended(_stat_fields(pid))
    except OSError:
        return True


def _has_ended(fields: list[bytes]) -> bool:
    """A process whose main thread has ended looks like a zombie while its other threads run on."""
    return fields[0] in (b"Z", b"X") and int(fields[17]) <= 1


def thread_group(tid: int) -> int:
    """The process that a thread belongs to. Raises OSError where there is no such thread."""
    for line in _read(f"/proc/{tid}/status").splitlines():
        if line.startswith(b"Tgid:"):
            return int(line.split()[1])
    raise ProcessLookupError(tid)


def exe_of(pid: int) -> tuple[ExeId | None, str]:
    """The program that a process runs: its file's identity, and its name for people, escaped.

    The program may lie on the mount that this daemon serves, so its file is identified without asking for it.
    """
    link = os.fsencode(f"/proc/{pid}/exe")
    try:
        name = os.path.basename(os.readlink(link)).removesuffix(b" (deleted)")
        return identity_unasked(link), escape(name)
    except OSError:
        # A kernel thread, a zombie or somebody else's process: it has no program that we could name.
        return None, "?"


def find_programs(names: Iterable[str]) -> frozenset[ExeId]:
    """The files that are meant by program names, on PATH or by path; absent ones are left out."""
    found = set()
    for name in names:
        for path in _places(name):
            try:
                st = os.stat(path)
            except OSError:
                continue  # Not installed: then nobody can run it either.
            found.add((st.st_dev, st.st_ino))
    return frozenset(found)


def _places(name: str) -> list[str]:
    """A program by path, or every file of its name on PATH: a shim may stand before the real one."""
    if os.path.dirname(name):
        return [name]
    found = [path for place in os.get_exec_path() if (path := shutil.which(name, path=place)) is not None]
    if name == "git" and found:
        # git runs its own commands from a second copy of itself.
        answer = subprocess.run([found[0], "--exec-path"], capture_output=True, text=True, check=False)
        found.append(os.path.join(answer.stdout.strip(), "git"))
    return found


def children(pid: int) -> list[int]:
    """The living children of all threads of a process (proc_tid_children(5))."""
    found: list[int] = []
    try:
        for tid in os.listdir(f"/proc/{pid}/task"):
            found += map(int, _read_all(f"/proc/{pid}/task/{tid}/children").split())
    except OSError:
        pass  # The process is gone; what it left behind belongs to its reaper now.
    return found


def _read_all(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def descendants(pid: int) -> list[int]:
    """All processes below one, nearest first."""
    found: list[int] = []
    queue = [pid]
    while queue:
        below = children(queue.pop(0))
        found += below
        queue += below
    return found


def environment(pid: int) -> dict[bytes, bytes]:
    """A process's first environment. Never inside a handler: see the module's note."""
    try:
        items = _read_all(f"/proc/{pid}/environ").split(b"\0")
    except OSError:
        return {}  # Gone, or somebody else's: no evidence.
    return dict(item.split(b"=", 1) for item in items if b"=" in item)
