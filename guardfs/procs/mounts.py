"""What is mounted where, and how a mount is taken away. Reads /proc/self/mountinfo (proc_pid_mountinfo(5)).

A dead mount answers ENOTCONN to everything: its daemon is gone and the kernel has aborted the connection.
"""

import errno
import os
import re
import subprocess
from pathlib import Path

FS_TYPE = "fuse.guardfs"


class UnmountError(Exception):
    """A mount could not be taken away; the message is what the tool said."""


def guarded() -> list[str]:
    """The mount points of all guardfs mounts in this mount namespace, in the order of mounting."""
    return [point for point, kind in _mounts() if kind == FS_TYPE]


def is_guarded(path: str) -> bool:
    """Whether a guardfs mount is what stands at this very path."""
    kinds = [kind for point, kind in _mounts() if point == path]
    return bool(kinds) and kinds[-1] == FS_TYPE


def is_dead(path: str) -> bool:
    """Whether the mount at a path has lost its daemon; statfs is asked, since the kernel never caches its answer."""
    try:
        os.statvfs(path)
    except OSError as error:
        return error.errno in (errno.ENOTCONN, errno.ECONNABORTED)
    return False


def unmount(path: str, *, lazy: bool = False) -> None:
    """Take the mount at a path away; ``lazy`` detaches it from the tree while it is still in use.

    Blocks, and may send requests to the daemon: never on its event loop. Raises UnmountError.
    """
    flags = "-uz" if lazy else "-u"
    done = subprocess.run(
        ["fusermount3", flags, "--", path],
        cwd="/",
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode != 0:
        raise UnmountError(done.stderr.strip().removeprefix("fusermount3: ") or f"fusermount3 exited {done.returncode}")


def clear_dead(path: str) -> bool:
    """Take dead guardfs mounts at a path away; whether there was one. Raises UnmountError."""
    cleared = False
    while is_guarded(path) and is_dead(path):
        unmount(path, lazy=True)
        cleared = True
    return cleared


def _mounts() -> list[tuple[str, str]]:
    lines = Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines()
    return [(_unescaped(fields[4]), fields[fields.index("-") + 1]) for fields in map(str.split, lines)]


def _unescaped(path: str) -> str:
    """mountinfo writes space, tab, newline and backslash as octal."""
    return re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), path)
