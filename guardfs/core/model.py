"""The nouns of guardfs as frozen data.

Owns what a file, a process, a session and a record *are*. Must not know how any of them is found.
Used by every other module.
"""

from enum import StrEnum
from typing import NewType

import msgspec

SessionId = NewType("SessionId", str)
HandleId = NewType("HandleId", int)


class FileId(msgspec.Struct, frozen=True, order=True, gc=False, array_like=True):
    """Names one file while something pins its inode: two file systems below one root share numbers."""

    dev: int
    ino: int


class ProcId(msgspec.Struct, frozen=True, order=True, gc=False, array_like=True):
    """One process for its whole life. ``start`` is field 22 of proc_pid_stat(5), in clock ticks."""

    pid: int
    start: int


class Stamp(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """What stat(2) says of a file's content: sizes in bytes, times in ns."""

    file: FileId
    size: int
    mtime_ns: int
    ctime_ns: int


class Fingerprint(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A stamp and the SHA-256 of the bytes; no digest where the file is above ``hash_limit``."""

    stamp: Stamp
    digest: bytes | None


class How(StrEnum):
    """How a session came to know a file's bytes."""

    READ = "read"
    WRITE = "write"
    CREATE = "create"


class Record(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """What a session knows of one file.

    ``taken_ns`` is wall-clock ns. ``proved`` is False after a restart of the daemon, until the digest has
    been compared once. ``path`` is where the file was last seen, relative to the mount, for people only.
    """

    fingerprint: Fingerprint
    taken_ns: int
    how: How
    path: bytes = b""
    proved: bool = True

    @property
    def file(self) -> FileId:
        """The file that the bytes were read from or written to."""
        return self.fingerprint.stamp.file


class Author(msgspec.Struct, frozen=True, gc=False):
    """Who changed a file last, where guardfs saw it; ``session`` is None for an untracked process."""

    pid: int
    program: str
    session: SessionId | None
    when_ns: int
