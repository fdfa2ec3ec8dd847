"""How sessions begin, are found alive again after a restart, and end.

Used by the control server for the ones that people ask for and by the judge for the ones that a tracked
program begins.
"""

import secrets
import time
from pathlib import Path

import msgspec

from guardfs.core.model import ProcId, SessionId
from guardfs.guard.announcer import Announcer
from guardfs.guard.sessions import Session, Sessions
from guardfs.procs import reading
from guardfs.procs.census import Census
from guardfs.procs.cgroups import Cgroup
from guardfs.state.schema import EventKind, SessionKind, SessionRow
from guardfs.state.store import Store

EVERYTHING = SessionId("all")
"""The one session of a mount that is tracked as a whole; it is the same after a restart."""


class Registry:
    """Keeps the living sessions, the census and the stored rows in step."""

    def __init__(
        self, max_records: int, sessions: Sessions, census: Census, store: Store, announcer: Announcer
    ) -> None:
        self._max_records = max_records
        self._sessions = sessions
        self._census = census
        self._store = store
        self._announcer = announcer
        self._boot = boot_id()

    def begin(self, kind: SessionKind, root: ProcId, label: str, *, cgroup: bool = True) -> Session:
        """Begin a session for a tree; ``run`` names the launcher, whose descendants are the tree."""
        session = SessionId(f"{kind.value}-{secrets.token_hex(4)}")
        made = Cgroup.make(f"guardfs-{session}", root.pid) if cgroup else None
        self._census.begin(session, root, anchor=kind is SessionKind.RUN, cgroup=made)
        return self._add(session, kind, root, label, made.path if made else None)

    def begin_exe(self, root: ProcId, session: SessionId) -> Session:
        """Begin the session of a tree that the census has found by its program."""
        known = next((row for row in self._store.sessions() if row.id == session), None)
        cgroup = Cgroup.make(f"guardfs-{session}", root.pid)
        self._census.begin(session, root, anchor=False, cgroup=cgroup)
        if known is not None:
            return self._revived(known)
        return self._add(session, SessionKind.EXE, root, reading.exe_of(root.pid)[1], cgroup.path if cgroup else None)

    def begin_for_all(self, session: SessionId, label: str) -> Session:
        """Begin, or take up again, a session that is no tree: the whole mount, or all unknown callers."""
        known = next((row for row in self._store.sessions() if row.id == session), None)
        if known is not None:
            return self._revived(known)
        return self._add(session, SessionKind.ALL, ProcId(0, 0), label, None)

    def revive(self) -> None:
        """Take up the tracked trees that are still alive after a restart, and end the others."""
        for row in self._store.sessions():
            cgroup = Cgroup.existing(row.cgroup) if row.cgroup else None
            if row.kind is SessionKind.ALL:
                continue
            lives = reading.is_alive(row.root) or (cgroup is not None and cgroup.is_populated())
            if row.boot == self._boot and lives:
                self._census.begin(row.id, row.root, anchor=row.kind is SessionKind.RUN, cgroup=cgroup)
                self._revived(row)
                continue
            if cgroup is not None:
                cgroup.remove()
            self._close(row)

    def reap(self) -> None:
        """End the sessions of trees that are gone."""
        self._census.sweep()
        for session in self._sessions:
            row = session.row
            if row.kind is SessionKind.ALL or reading.is_alive(row.root) or self._census.is_populated(row.id):
                continue
            self.end(row.id)

    def limit(self, max_records: int) -> None:
        """Set how many records each session may have from now on."""
        self._max_records = max_records
        for session in self._sessions:
            session.max_records = max_records

    def end(self, session: SessionId) -> SessionRow:
        """End a session: its processes are nobody's from now on. Raises KeyError."""
        row = self._sessions.remove(session).row
        self._census.end(session)
        self._announcer.tell(EventKind.ENDED, session, detail=tally(row))
        return self._close(row)

    def _add(self, session: SessionId, kind: SessionKind, root: ProcId, label: str, cgroup: str | None) -> Session:
        row = SessionRow(session, kind, label, root, self._boot, cgroup, time.time_ns())
        made = Session(row, self._store, self._max_records, self._evicted)
        made.save()
        self._sessions.add(made)
        self._announcer.tell(EventKind.BEGAN, session, detail=f"{label} (pid {root.pid})")
        return made

    def _revived(self, row: SessionRow) -> Session:
        session = Session(row, self._store, self._max_records, self._evicted)
        session.restore()
        self._sessions.add(session)
        self._announcer.tell(EventKind.BEGAN, row.id, detail=f"taken up again with {len(session)} records")
        return session

    def _close(self, row: SessionRow) -> SessionRow:
        """Forget all that was remembered of a session; its events stay."""
        self._store.forget_session(row.id)
        return msgspec.structs.replace(row, ended_ns=time.time_ns())

    def _evicted(self, session: Session) -> None:
        if session.evicted == 1:
            self._announcer.tell(EventKind.EVICTED, session.id, detail=f"max_records = {self._max_records} is reached")


def tally(row: SessionRow) -> str:
    """What a session did, in a few words."""
    return f"{row.read} files read, {row.written} written, {row.refused} refused"


def boot_id() -> str:
    """Names this boot of the machine: a process id with its start time is unique within one (random(4))."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
