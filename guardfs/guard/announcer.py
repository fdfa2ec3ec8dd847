"""What is said: one event per verdict that matters, one log line each, repeats counted.

Used by the rest of ``guard``; hands events to the store and lines to the log. Must not decide.
"""

import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from guardfs.core.model import Author, FileId, Fingerprint, Record, SessionId
from guardfs.core.verdict import MIXED, Reason, wording
from guardfs.core.wording import changed_by, escape, stamp_difference
from guardfs.guard.sessions import Session
from guardfs.procs.census import Caller
from guardfs.state import schema
from guardfs.state.schema import Event, EventKind
from guardfs.state.store import EVENT_LIMIT, Store

_REMEMBERED = 4096
"""Denials and authors that are remembered; the oldest go first."""
_QUIET_NS = 60_000_000_000
"""A repeat after this long is told as a new denial."""


class Log(Protocol):
    """The part of structlog's logger that is used."""

    def info(self, event: str, **fields: Any) -> Any:
        """Write one line."""


RepeatKey = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Denial:
    """A refusal to be told, or under ``observed`` what would have been one.

    ``settling``: the present bytes were read too short a time ago. ``mixed``: the program goes on with other files.
    """

    caller: Caller
    session: Session
    reason: Reason
    operation: str
    path: bytes
    record: Record | None = None
    now: Fingerprint | None = None
    settling: bool = False
    mixed: bool = False
    observed: bool = False

    @property
    def then(self) -> Fingerprint | None:
        """What the session knew."""
        return self.record.fingerprint if self.record is not None else None


class Announcer:
    """Invariant: ``_recent`` holds the last event of each kind of denial, with its count so far."""

    def __init__(self, store: Store, log: Log) -> None:
        self._store = store
        self._log = log
        self._seq = store.last_seq()
        self._recent: OrderedDict[RepeatKey, Event] = OrderedDict()
        self._authors: OrderedDict[FileId | bytes, Author] = OrderedDict()

    def changed_by(self, caller: Caller, *targets: FileId | bytes) -> None:
        """Remember who changed a file's bytes, or what stands at a path, last."""
        if caller.process is None:
            return
        author = Author(caller.process.pid, caller.program, caller.session, time.time_ns())
        for target in targets:
            self._authors[target] = author
            self._authors.move_to_end(target)
        while len(self._authors) > _REMEMBERED:
            self._authors.popitem(last=False)

    def denied(self, denial: Denial) -> None:
        """Tell a refusal once, count its repeats, and tell the count at 10, 100, 1000 and so on."""
        denial.session.refused()
        key = _repeat_key(denial)
        event = self._recent.get(key)
        if event is not None and time.time_ns() - event.time_ns < _QUIET_NS:
            self._repeat(key, msgspec.structs.replace(event, count=event.count + 1))
            return
        event = self._denial_event(denial)
        self._recent[key] = event
        while len(self._recent) > _REMEMBERED:
            self._recent.popitem(last=False)
        self._keep(event, urgent=True)
        self._say_denial(event)

    def _denial_event(self, denial: Denial) -> Event:
        caller, session = denial.caller, denial.session.id
        return self._event(
            EventKind.OBSERVED if denial.observed else EventKind.DENIED,
            session,
            denial.path,
            reason=denial.reason.value,
            operation=denial.operation,
            pid=caller.process.pid if caller.process else 0,
            program=caller.program,
            then=denial.then,
            now=denial.now,
            author=self._author(session, denial.path, denial.now, denial.then),
            detail=MIXED if denial.mixed and not denial.observed else "",
            settling=denial.settling,
        )

    def tell(self, kind: EventKind, session: SessionId | None, path: bytes = b"", **fields: Any) -> None:
        """Tell anything else that matters."""
        event = self._event(kind, session, path, **fields)
        self._keep(event, urgent=False)
        shown = {"path": escape(path)} if path else {}
        if event.detail:
            shown["detail"] = event.detail
        if event.then and event.now:
            shown["differs"] = stamp_difference(event.then, event.now)
        if session is not None:
            shown["session"] = session
        self._log.info(kind.value, **shown)

    def tell_settings(self, line: str) -> None:
        """Tell that settings were taken up, or why they were not."""
        self.tell(EventKind.SETTINGS, None, detail=line)

    def _author(
        self, session: SessionId, path: bytes, now: Fingerprint | None, then: Fingerprint | None
    ) -> Author | None:
        if then is None:
            return None  # Nothing was known that somebody could have changed.
        author = (self._authors.get(now.stamp.file) if now else None) or self._authors.get(path)
        return author if author and author.session != session else None

    def _repeat(self, key: RepeatKey, event: Event) -> None:
        self._recent[key] = event
        self._keep(event, urgent=False)
        if event.count == 10 ** (len(str(event.count)) - 1):
            self._say_denial(event)

    def _event(self, kind: EventKind, session: SessionId | None, path: bytes, **fields: Any) -> Event:
        self._seq += 1
        return Event(self._seq, time.time_ns(), kind, session, path, **fields)

    def _keep(self, event: Event, *, urgent: bool) -> None:
        key, value = schema.event_key(event.seq), msgspec.msgpack.encode(event)
        if event.seq > EVENT_LIMIT:
            self._store.delete("events", schema.event_key(event.seq - EVENT_LIMIT))
        self._store.put("events", key, value, urgent=urgent)

    def _say_denial(self, event: Event) -> None:
        words = wording(Reason(event.reason), settling=event.settling)
        fields: dict[str, Any] = {
            "reason": event.reason,
            "operation": event.operation,
            "path": escape(event.path),
            "session": event.session,
            "pid": event.pid,
            "program": event.program,
            "why": words.sentence,
        }
        if event.then and event.now:
            fields["differs"] = stamp_difference(event.then, event.now)
            fields["changed_by"] = changed_by(event.author)
        if event.count > 1:
            fields["repeated"] = event.count
        if event.detail:
            fields["note"] = event.detail
        self._log.info(event.kind.value, **fields, next=words.advice)


def _repeat_key(denial: Denial) -> RepeatKey:
    """What makes two refusals the same to a person."""
    return (
        denial.session.id,
        denial.path,
        denial.reason,
        denial.operation,
        denial.caller.program,
        denial.then,
        denial.now.stamp if denial.now else None,
        denial.settling,
    )
