"""What an operation will do to a file's bytes, from the bits the kernel sends.

The numbers are Linux's asm-generic ones (fcntl(2)); ``core`` imports no ``os``, so a test holds them equal.
Used by ``fuse_ops`` to unpack and by ``policy`` to decide.
"""

from enum import StrEnum

import msgspec

O_ACCMODE = 0o3
O_WRONLY = 0o1
O_RDWR = 0o2
O_CREAT = 0o100
O_EXCL = 0o200
O_TRUNC = 0o1000
O_APPEND = 0o2000
FMODE_EXEC = 0x20
"""Set by the kernel in the flags of an open that execve(2) makes (include/linux/fs.h)."""


class Intent(StrEnum):
    """What will happen to the bytes at a target."""

    READ = "read"
    APPEND = "append"
    WRITE = "write"
    TRUNCATE = "truncate"
    REPLACE = "replace"
    DELETE = "delete"
    CREATE = "create"


class OpenIntent(msgspec.Struct, frozen=True, gc=False):
    """An open, in meaning.

    ``now`` is what has to be judged at the open itself; ``later`` what the first write through the handle
    will be. ``reads_now`` makes a record at open, ``reads_later`` at the first read.
    """

    now: Intent | None
    later: Intent | None
    reads_now: bool
    reads_later: bool
    truncates: bool


def of_open(flags: int) -> OpenIntent:
    """Turn open(2) flags into meaning.

    O_WRONLY is judged at open, where nothing has happened yet, and so is O_TRUNC whatever the access mode.
    O_RDWR without it is neither a read nor a write until one arrives. An execve runs and does not read.
    """
    access = flags & O_ACCMODE
    truncates = bool(flags & O_TRUNC)
    writing = Intent.APPEND if flags & O_APPEND and not truncates else Intent.WRITE
    if access == O_WRONLY:
        return OpenIntent(Intent.TRUNCATE if truncates else writing, None, False, False, truncates)
    if access == O_RDWR:
        if truncates:
            return OpenIntent(Intent.TRUNCATE, None, False, True, True)
        return OpenIntent(None, writing, False, True, False)
    reads = not flags & FMODE_EXEC
    if truncates:
        return OpenIntent(Intent.TRUNCATE, None, reads, False, True)
    return OpenIntent(None, None, reads, False, False)
