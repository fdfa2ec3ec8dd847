"""What is said: one event per verdict that matters, one log line each, repeats counted.

Used by the rest of ``guard``; hands events to the store and lines to the log. Must not decide.
"""

import time
from collections import OrderedDict
from typing import Any, Protocol

import msgspec

from guardfs.core.model import FileId, Fingerprint, Record, SessionId
from guardfs.core.verdict import WORDING, Reason
from guardfs.core.wording import escape, stamp_difference
from guardfs.guard.sessions import Session
from guardfs.procs.census import Caller
from guardfs.state import schema
from guardfs.state.schema import Author, Event, EventKind
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

    def denied(
        self,
        caller: Caller,
        session: Session,
        reason: Reason,
        operation: str,
        path: bytes,
        record: Record | None = None,
        now: Fingerprint | None = None,
    ) -> None:
        """Tell a refusal once, count its repeats, and tell the count at 10, 100, 1000 and so on."""
        session.refused()
        then = record.fingerprint if record is not None else None
        key = (session.id, path, reason, operation, caller.program, then, now.stamp if now else None)
        event = self._recent.get(key)
        if event is not None and time.time_ns() - event.time_ns < _QUIET_NS:
            self._repeat(key, msgspec.structs.replace(event, count=event.count + 1))
            return
        event = self._event(
            EventKind.DENIED,
            session.id,
            path,
            reason=reason.value,
            operation=operation,
            pid=caller.process.pid if caller.process else 0,
            program=caller.program,
            then=then,
            now=now,
            author=self._author(session.id, path, now, then),
        )
        self._recent[key] = event
        while len(self._recent) > _REMEMBERED:
            self._recent.popitem(last=False)
        self._keep(event, urgent=True)
        self._say_denial(event)

    def tell(self, kind: EventKind, session: SessionId, path: bytes = b"", **fields: Any) -> None:
        """Tell anything else that matters."""
        event = self._event(kind, session, path, **fields)
        self._keep(event, urgent=False)
        shown = {"path": escape(path)} if path else {}
        if event.detail:
            shown["detail"] = event.detail
        if event.then and event.now:
            shown["differs"] = stamp_difference(event.then, event.now)
        self._log.info(kind.value, session=session, **shown)

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

    def _event(self, kind: EventKind, session: SessionId, path: bytes, **fields: Any) -> Event:
        self._seq += 1
        return Event(self._seq, time.time_ns(), kind, session, path, **fields)

    def _keep(self, event: Event, *, urgent: bool) -> None:
        key, value = schema.event_key(event.seq), msgspec.msgpack.encode(event)
        if event.seq > EVENT_LIMIT:
            self._store.delete("events", schema.event_key(event.seq - EVENT_LIMIT))
        self._store.put("events", key, value, urgent=urgent)

    def _say_denial(self, event: Event) -> None:
        wording = WORDING[Reason(event.reason)]
        fields: dict[str, Any] = {
            "reason": event.reason,
            "operation": event.operation,
            "path": escape(event.path),
            "session": event.session,
            "pid": event.pid,
            "program": event.program,
            "why": wording.sentence,
        }
        if event.then and event.now:
            fields["differs"] = stamp_difference(event.then, event.now)
        if event.author:
            fields["changed_by"] = f"{event.author.program} (pid {event.author.pid})"
        if event.count > 1:
            fields["repeated"] = event.count
        self._log.info(event.kind.value, **fields, next=wording.advice)
