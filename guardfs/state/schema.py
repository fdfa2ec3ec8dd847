"""The layout of the store and what its parts mean.

========== ============================================ =============================================
database   key                                          value
========== ============================================ =============================================
meta       ``version``                                  VERSION, as decimal digits
sessions   session id, UTF-8                            ``SessionRow``
records    session id, NUL, device and inode as u64     ``Record``
names      session id, NUL, start of the path's SHA-256 ``KnownName``: the file known at a path
events     sequence number as u64                       ``Event``
contents   SHA-256 of the value                         the bytes of a small text file, see ``guard.contents``
========== ============================================ =============================================

Numbers in keys are big-endian, so that keys sort as the numbers do. Values are MessagePack. A store of
another VERSION is put aside: losing it costs a re-read and nothing else.
"""

import hashlib
import struct
from enum import StrEnum

import msgspec

from guardfs.core.model import Author, FileId, Fingerprint, ProcId, SessionId

VERSION = 1
DATABASES = ("meta", "sessions", "records", "names", "events", "contents")


class SessionKind(StrEnum):
    """How a session came to be tracked."""

    RUN = "run"
    TRACK = "track"
    EXE = "exe"
    ALL = "all"


class SessionRow(msgspec.Struct, frozen=True, gc=False):
    """A session as it is remembered; ``root`` and ``boot`` tell whether its tree can still be alive."""

    id: SessionId
    kind: SessionKind
    label: str
    root: ProcId
    boot: str
    cgroup: str | None
    began_ns: int
    ended_ns: int = 0
    read: int = 0
    written: int = 0
    refused: int = 0


class KnownName(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A path relative to the mount, and the file that a session knew there."""

    path: bytes
    file: FileId


class EventKind(StrEnum):
    """What an event tells of."""

    DENIED = "denied"
    OBSERVED = "would-deny"
    CHANGED = "external-change"
    BEGAN = "session-began"
    ENDED = "session-ended"
    EVICTED = "evicted"
    SETTINGS = "settings"


class Event(msgspec.Struct, frozen=True, gc=False):
    """One thing worth telling. Paths are relative to the mount; times in ns since the epoch."""

    seq: int
    time_ns: int
    kind: EventKind
    session: SessionId | None = None
    path: bytes = b""
    reason: str = ""
    operation: str = ""
    pid: int = 0
    program: str = ""
    then: Fingerprint | None = None
    now: Fingerprint | None = None
    author: Author | None = None
    count: int = 1
    detail: str = ""
    settling: bool = False


def session_key(session: SessionId) -> bytes:
    """The key of a session, and the prefix of all that belongs to it."""
    return session.encode()


def record_key(session: SessionId, file: FileId) -> bytes:
    """The key of a record."""
    return session.encode() + b"\0" + struct.pack(">QQ", file.dev, file.ino)


def name_key(session: SessionId, path: bytes) -> bytes:
    """The key of a path that a session knows; hashed, since LMDB's keys end at 511 bytes and paths do not."""
    return session.encode() + b"\0" + hashlib.sha256(path).digest()[:16]


def event_key(seq: int) -> bytes:
    """The key of an event."""
    return struct.pack(">Q", seq)
