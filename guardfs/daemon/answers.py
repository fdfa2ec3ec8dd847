"""What the daemon answers on its control socket."""

import os
from collections import Counter
from pathlib import Path

import trio

from guardfs import backing
from guardfs.control.protocol import (
    Answer,
    Begin,
    End,
    Flush,
    Lead,
    MountState,
    Plan,
    RecordState,
    Request,
    SessionBegun,
    SessionState,
    Status,
    Stop,
    Track,
    Turn,
)
from guardfs.core import policy
from guardfs.core.fingerprint import by_bytes, by_stamp
from guardfs.core.model import ProcId, Record, SessionId
from guardfs.core.wording import escape
from guardfs.daemon.permits import Permits
from guardfs.errors import ExitCode, GuardfsError
from guardfs.guard.judge import Desk
from guardfs.guard.sessions import Session
from guardfs.procs import reading
from guardfs.procs.cgroups import procs_file
from guardfs.state.schema import SessionKind
from guardfs.state.store import Store


class Answers:
    """One method per request; GuardfsErrors go back to the asker."""

    def __init__(self, plan: Plan, state: Path, desk: Desk, store: Store, stopping: trio.Event) -> None:
        self._plan = plan
        self._state = state
        self._desk = desk
        self._store = store
        self._stopping = stopping
        self._permits = Permits(desk.census, desk.sessions)

    async def answer(self, request: Request, pid: int) -> Answer:
        """Answer one request of a process. Raises GuardfsError."""
        asker = self._permits.check(request, pid)
        answer = Answer()
        match request:
            case Begin():
                answer = self._begin(SessionKind.RUN, request.launcher, request.label)
            case Lead():
                self._permits.lead(request.session, request.process)
            case Turn():
                answer = self._turn(asker)
            case Track():
                answer = self._track(request)
            case End():
                answer = await self._end(request)
            case Status():
                answer = Answer(state=await self._status(records=request.records))
            case Flush():
                await self._store.flush()
            case Stop():
                self._stop()
        return answer

    def launcher(self) -> ProcId | None:
        """The living ``guardfs run`` whose command this mount is for."""
        roots = [session.row.root for session in self._desk.sessions if session.row.kind is SessionKind.RUN]
        return next(filter(reading.is_alive, roots), None)

    def _turn(self, asker: SessionId | None) -> Answer:
        """For the session that asks; for all where nobody tracked does."""
        turned = [each for each in self._desk.sessions if asker in {None, each.id}]
        for session in turned:
            session.begin_turn()
        return Answer(turned=tuple(session.id for session in turned))

    def _stop(self) -> None:
        launcher = self.launcher()
        if launcher is not None:
            raise GuardfsError(
                f"'guardfs run' (pid {launcher.pid}) unmounts when its command ends; end that first",
                ExitCode.BUSY,
            )
        self._stopping.set()

    def _track(self, request: Track) -> Answer:
        try:
            root = reading.process(request.pid)
        except OSError:
            raise GuardfsError(
                f"no process {request.pid}; name a living one, e.g. the agent's shell", ExitCode.NO_INPUT
            ) from None
        session = self._desk.census.session_of(root)
        if session is not None:
            raise GuardfsError(f"process {request.pid} is tracked already, as {session}", ExitCode.BUSY)
        return self._begin(SessionKind.TRACK, root, request.label)

    def _begin(self, kind: SessionKind, root: ProcId, label: str) -> Answer:
        if self._plan.track_all:
            raise GuardfsError(
                "the whole mount is one session already (--track-all); just start the command in it",
                ExitCode.USAGE,
            )
        session = self._desk.registry.begin(kind, root, label)
        return Answer(begun=SessionBegun(session.id, procs_file(session.row.cgroup)))

    async def _end(self, request: End) -> Answer:
        if request.session not in self._desk.sessions:
            raise GuardfsError(f"no session {request.session}", ExitCode.NO_INPUT)
        return Answer(ended=self._desk.registry.end(request.session))

    async def _status(self, *, records: bool) -> MountState:
        self._desk.registry.reap()
        states = [await self._session_state(session, records=records) for session in self._desk.sessions]
        return MountState(
            workspace=escape(os.fsencode(self._plan.workspace)),
            mountpoint=escape(os.fsencode(self._plan.mountpoint)),
            pid=reading.own_pid(),
            log=escape(os.fsencode(self._state / "log")),
            match=self._desk.rulebook.settings.match.value,
            open_files=len(self._desk.handles),
            nodes=len(self._desk.inodes),
            sessions=tuple(states),
        )

    async def _session_state(self, session: Session, *, records: bool) -> SessionState:
        each = await trio.to_thread.run_sync(self._record_states, session.records())
        row = session.row
        return SessionState(
            id=row.id,
            kind=row.kind.value,
            label=row.label,
            root=row.root.pid,
            began_ns=row.began_ns,
            alive=len(self._desk.census.living_members(row.id)),
            read=row.read,
            written=row.written,
            refused=row.refused,
            records=len(each),
            states=dict(Counter(state.state for state in each)),
            each=tuple(each) if records else (),
        )

    def _record_states(self, records: list[Record]) -> list[RecordState]:
        """In a worker thread: it walks and hashes, and touches nothing that the event loop owns."""
        return [self._record_state(record) for record in records]

    def _record_state(self, record: Record) -> RecordState:
        """What a record's file is to its session at the path where it was last seen."""
        seen = record.fingerprint
        return RecordState(
            path=escape(record.path),
            state=self._state_of(record),
            how=record.how.value,
            taken_ns=record.taken_ns,
            size=seen.stamp.size,
            sha256=seen.digest.hex() if seen.digest else None,
        )

    def _state_of(self, record: Record) -> str:
        try:
            fd = backing.open_below(self._desk.inodes.root.descriptors[0], record.path)
        except OSError:
            return "gone"  # Nothing that can be reached stands there.
        try:
            if not backing.is_regular(fd):
                return "gone"
            difference = by_stamp(record, backing.stamp(fd))
            if difference is None:
                look = backing.open_to_judge(fd)
                try:
                    now = backing.fingerprint(look, self._desk.rulebook.settings.hash_limit)
                finally:
                    backing.close(look)
                difference = by_bytes(record, now, self._desk.rulebook.settings.match)
            return policy.target_of(difference).value
        except OSError:
            return "unreadable"  # Shown as such; a verdict looks for itself.
        finally:
            backing.close(fd)
