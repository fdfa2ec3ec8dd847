"""What is said on the control socket and between a daemon and whoever starts it; pure.

One JSON object a line, each way. Requests are a union tagged by ``ask``.
"""

import json
import os
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from guardfs import config
from guardfs.core.model import ProcId, SessionId
from guardfs.errors import ExitCode, GuardfsError
from guardfs.state.schema import SessionRow

LINE_LIMIT = 64 << 20
"""Bytes of one reply: the states of a million records fit."""


Message = TypeVar("Message", bound=msgspec.Struct)


class Plan(msgspec.Struct, frozen=True):
    """All that a daemon has to know to begin. Paths are absolute; flags are settings that were given."""

    workspace: str
    mountpoint: str
    flags: dict[str, Any] = {}
    track_all: bool = False
    track_exe: tuple[str, ...] = ()
    allow_other: bool = False

    @property
    def state(self) -> Path:
        """The state directory of this workspace."""
        return config.state_dir(self.workspace)


class Running(msgspec.Struct, frozen=True):
    """``daemon.json`` in the state directory: who serves a workspace, for the commands that look for it."""

    process: ProcId
    workspace: str
    mountpoint: str
    log: str


class Begun(msgspec.Struct, frozen=True):
    """A daemon's first and only line to whoever started it."""

    error: str = ""
    code: int = 0
    warnings: tuple[str, ...] = ()


class Begin(msgspec.Struct, frozen=True, tag_field="ask", tag="begin"):
    """The launcher asks for a session for all that runs below it."""

    launcher: ProcId
    label: str


class Lead(msgspec.Struct, frozen=True, tag_field="ask", tag="lead"):
    """The launcher names COMMAND: it is the harness, which may say that a new turn begins."""

    session: SessionId
    process: ProcId


class Track(msgspec.Struct, frozen=True, tag_field="ask", tag="track"):
    """A person asks that a running tree be tracked from now on."""

    pid: int
    label: str


class End(msgspec.Struct, frozen=True, tag_field="ask", tag="end"):
    """The launcher's tree is gone."""

    session: SessionId


class Status(msgspec.Struct, frozen=True, tag_field="ask", tag="status"):
    """A person asks how things are; ``records`` asks for each record's state too."""

    records: bool = False


class Flush(msgspec.Struct, frozen=True, tag_field="ask", tag="flush"):
    """Write all events to the store, where the asker reads them."""


class Stop(msgspec.Struct, frozen=True, tag_field="ask", tag="stop"):
    """Unmount and end."""


class Turn(msgspec.Struct, frozen=True, tag_field="ask", tag="turn"):
    """A harness says that a new turn begins: what was read until now has been seen."""


Request = Begin | Lead | Track | End | Status | Flush | Stop | Turn


class SessionBegun(msgspec.Struct, frozen=True):
    """Answers Begin and Track; ``cgroup`` is the file through which a process joins, or empty."""

    session: SessionId
    cgroup: str


class RecordState(msgspec.Struct, frozen=True):
    """One record, and what the file is to its session now. ``path`` is escaped; times in ns."""

    path: str
    state: str
    how: str
    taken_ns: int
    size: int
    sha256: str | None


class SessionState(msgspec.Struct, frozen=True):
    """One session; ``states`` counts its records by state."""

    id: SessionId
    kind: str
    label: str
    root: int
    began_ns: int
    alive: int
    read: int
    written: int
    refused: int
    records: int
    states: dict[str, int]
    each: tuple[RecordState, ...] = ()


class MountState(msgspec.Struct, frozen=True):
    """Answers Status; paths are escaped."""

    workspace: str
    mountpoint: str
    pid: int
    log: str
    match: str
    open_files: int
    nodes: int
    sessions: tuple[SessionState, ...]


class Answer(msgspec.Struct, frozen=True):
    """A reply: one of the parts on success, or a message with an exit code."""

    error: str = ""
    code: int = 0
    begun: SessionBegun | None = None
    ended: SessionRow | None = None
    state: MountState | None = None
    turned: tuple[SessionId, ...] = ()

    def checked(self) -> "Answer":
        """Itself, if it is a success. Raises GuardfsError."""
        if self.error:
            raise GuardfsError(self.error, ExitCode(self.code))
        return self


def pack(message: msgspec.Struct) -> bytes:
    """One line of JSON for a message that holds raw paths: bytes that are no UTF-8 travel as lone surrogates.

    msgspec's own JSON and MessagePack refuse those; the standard library's JSON escapes them.
    """
    return json.dumps(msgspec.to_builtins(message), separators=(",", ":")).encode() + b"\n"


def unpack(line: bytes, kind: type[Message]) -> Message:
    """The message in a line. Raises ValueError."""
    return msgspec.convert(json.loads(line), kind)


def running(state: Path) -> Running | None:
    """Who served a workspace last, by its state directory; None where nobody has or the note is unreadable."""
    try:
        return unpack((state / "daemon.json").read_bytes(), Running)
    except (OSError, ValueError):
        return None  # Never mounted, or the daemon died while it wrote: then the mount table tells.


def write_running(state: Path, note: Running) -> None:
    """Leave the note, whole or not at all."""
    part = state / "daemon.json.new"
    part.write_bytes(pack(note))
    os.replace(part, state / "daemon.json")
