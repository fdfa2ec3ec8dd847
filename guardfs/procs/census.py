"""From a request's thread id to a session: who is a member, decided at first sight and remembered.

Must not know files or verdicts. Used by ``guard`` for every judged request and by the control server.
"""

import os
import signal
from collections.abc import Callable, Iterable

import msgspec

from guardfs.core.model import ProcId, SessionId
from guardfs.procs import reading
from guardfs.procs.cgroups import Cgroup, cgroup_of
from guardfs.procs.reading import ExeId

MAX_DEPTH = 256
"""Ancestors looked at before a chain counts as endless."""
_MEMO_LIMIT = 8192
"""Threads and outsiders remembered before the memory of them is begun afresh."""
_PIDFD_LIMIT = 1024
"""Tracked processes that are pinned by a pidfd; further ones are told apart by their start time alone."""


_SWEEP_EVERY = 64
"""Members between two looks for dead ones."""
_NEVER_SEEN: ExeId = (-1, -1)


class Caller(msgspec.Struct, frozen=True, gc=False):
    """Who made a request. ``process`` is None for pid 0 and for what /proc does not show."""

    process: ProcId | None
    session: SessionId | None
    exe: ExeId | None = None
    program: str = "?"

    @property
    def is_unknown(self) -> bool:
        """Whether somebody asked that cannot be told apart from anybody else."""
        return self.process is None and self is not NOBODY


NOBODY = Caller(None, None)
"""Whoever asks while there is no session: nobody is looked up then."""
UNKNOWN_SESSION = SessionId("unknown")
"""The one session of all callers that cannot be told apart, where the setting has them tracked."""


class _Member:
    """A remembered member; the pidfd tells when its number belongs to somebody else."""

    __slots__ = ("pidfd", "session")

    def __init__(self, session: SessionId, pidfd: int | None) -> None:
        self.session = session
        self.pidfd = pidfd

    def alive(self, proc: ProcId) -> bool:
        """Whether this process still has its number."""
        if self.pidfd is None:
            return reading.is_alive(proc)
        try:
            signal.pidfd_send_signal(self.pidfd, 0)
        except ProcessLookupError:
            return False  # Reaped: its number is free.
        except PermissionError:
            return True  # Another uid below the agent: there, and not ours to signal.
        return True

    def close(self) -> None:
        if self.pidfd is not None:
            os.close(self.pidfd)
            self.pidfd = None


class Census:
    """Which process belongs to which session.

    Members are remembered for life. Outsiders are remembered until a session begins or they run another
    program. ``anchors`` are processes whose descendants are members though they are none themselves (the
    launcher). ``on_outsider`` is told of each outsider, for ``prove`` off the request path. All of it
    belongs to the event loop.
    """

    def __init__(
        self,
        *,
        everything: SessionId | None = None,
        tracked_exes: frozenset[ExeId] = frozenset(),
        track_unknown: bool = False,
        on_outsider: Callable[[ProcId], None] = lambda _: None,
    ) -> None:
        self.everything = everything
        self.tracked_exes = tracked_exes
        self._unknown = UNKNOWN_SESSION if track_unknown else None
        self._on_outsider = on_outsider
        self.found_roots: list[tuple[ProcId, SessionId]] = []
        self._members: dict[ProcId, _Member] = {}
        self._anchors: dict[ProcId, SessionId] = {}
        self._cgroups: dict[SessionId, Cgroup] = {}
        self._outsiders: dict[ProcId, ExeId | None] = {}
        self._threads: dict[ProcId, ProcId] = {}
        self._leaving: list[Cgroup] = []

    def who(self, tid: int) -> Caller:
        """Resolve the caller of a request while it waits. Never raises for a process that is gone."""
        if self.everything is None and not self._sessions_possible():
            return NOBODY
        try:
            proc = self._process_of(tid) if tid > 0 else None
        except OSError:
            proc = None  # Hidden from us, or of another pid namespace: the same as pid 0.
        if proc is None:
            return Caller(None, self.everything or self._unknown)
        exe, program = reading.exe_of(proc.pid)
        return Caller(proc, self.everything or self._session_of(proc, exe), exe, program)

    def begin(self, session: SessionId, root: ProcId, *, anchor: bool, cgroup: Cgroup | None = None) -> None:
        """Track a tree: from ``root`` on, or below it where it is an anchor; a cgroup takes all of it in."""
        self._outsiders.clear()
        if cgroup is not None:
            self._cgroups[session] = cgroup
        if anchor:
            self._anchors[root] = session
            return
        self.adopt(root, session)
        for pid in (root.pid, *reading.descendants(root.pid)):
            self._adopt_pid(pid, session, cgroup)
        # What was forked while the list was made is below a member by now.
        for pid in reading.descendants(root.pid):
            self._adopt_pid(pid, session, cgroup)

    def end(self, session: SessionId) -> None:
        """Forget a session and its members."""
        for proc, member in list(self._members.items()):
            if member.session == session:
                member.close()
                del self._members[proc]
        self._anchors = {proc: owner for proc, owner in self._anchors.items() if owner != session}
        cgroup = self._cgroups.pop(session, None)
        if cgroup is not None:
            self._leaving.append(cgroup)
            self._remove_left()

    def adopt(self, proc: ProcId, session: SessionId) -> None:
        """Make one process a member for life."""
        self._outsiders.pop(proc, None)
        if proc not in self._members:
            if len(self._members) % _SWEEP_EVERY == _SWEEP_EVERY - 1:
                self.sweep()  # So that the table stays as large as the tree.
            self._members[proc] = _Member(session, self._pidfd(proc))

    def member(self, pid: int) -> SessionId | None:
        """The session whose tree a process belongs to; where everything is tracked, that is nobody's tree."""
        try:
            return self._session_of(reading.process(pid), reading.exe_of(pid)[0])
        except OSError:
            return None  # It has ended: nobody is left to be answered.

    def session_of(self, proc: ProcId) -> SessionId | None:
        """The session that a process belongs to now."""
        return self.everything or self._session_of(proc, reading.exe_of(proc.pid)[0])

    def living_members(self, session: SessionId) -> list[ProcId]:
        """The members of a session that still run."""
        return [p for p, member in self._members.items() if member.session == session and reading.is_alive(p)]

    def take_roots(self) -> list[tuple[ProcId, SessionId]]:
        """The trees found by their program since the last call; each is a session to begin."""
        if not self.found_roots:
            return []
        taken, self.found_roots = self.found_roots, []
        return taken

    def prove(self, proc: ProcId, sessions: Iterable[SessionId]) -> SessionId | None:
        """The session that an outsider's first environment names. Never inside a handler."""
        named = reading.environment(proc.pid).get(b"GUARDFS_SESSION", b"").decode(errors="replace")
        return next((s for s in sessions if s == named and reading.is_alive(proc)), None)

    def is_populated(self, session: SessionId) -> bool:
        """Whether anything of a session may still run: a member, or something in its cgroup that was never seen."""
        cgroup = self._cgroups.get(session)
        return bool(self.living_members(session)) or (cgroup is not None and cgroup.is_populated())

    def sweep(self) -> None:
        """Let go of all dead members, and of cgroups that were not empty when their sessions ended."""
        self._remove_left()
        for proc in [p for p, member in self._members.items() if not member.alive(p)]:
            self._members.pop(proc).close()

    def close(self) -> None:
        """Give back all descriptors and cgroups."""
        for member in self._members.values():
            member.close()
        self._leaving += self._cgroups.values()
        self._remove_left()
        self._members.clear()

    def _remove_left(self) -> None:
        self._leaving = [cgroup for cgroup in self._leaving if not cgroup.remove()]

    def _sessions_possible(self) -> bool:
        return bool(self._members or self._anchors or self._cgroups or self.tracked_exes or self._unknown)

    def _process_of(self, tid: int) -> ProcId:
        thread = reading.process(tid)
        proc = self._threads.get(thread)
        if proc is None:
            group = reading.thread_group(tid)
            proc = thread if group == tid else reading.process(group)
            if len(self._threads) >= _MEMO_LIMIT:
                self._threads.clear()
            self._threads[thread] = proc
        return proc

    def _session_of(self, proc: ProcId, exe: ExeId | None) -> SessionId | None:
        member = self._living_member(proc)
        if member is not None:
            return member.session
        if self._outsiders.get(proc, _NEVER_SEEN) == exe:
            return None
        session = self._by_ancestry(proc) or self._by_cgroup(proc) or self._by_program(proc)
        if session is not None:
            self.adopt(proc, session)
        elif self._chain_is_whole(proc):
            self._remember_outsider(proc, exe)
        return session

    def _living_member(self, proc: ProcId) -> _Member | None:
        member = self._members.get(proc)
        if member is not None and not member.alive(proc):
            # The number came round again within one clock tick of the old start time.
            member.close()
            del self._members[proc]
            return None
        return member

    def _by_ancestry(self, proc: ProcId) -> SessionId | None:
        for ancestor in self._ancestors(proc):
            member = self._living_member(ancestor)
            if member is not None:
                return member.session
            if ancestor in self._anchors:
                return self._anchors[ancestor]
        return None

    def _chain_is_whole(self, proc: ProcId) -> bool:
        """Whether all ancestors could be seen; one that died while we looked is no proof of anything."""
        chain = [proc, *self._ancestors(proc)]
        try:
            return reading.parent(chain[-1].pid) == 0
        except OSError:
            return False  # Then nothing is remembered, and the next request looks again.

    def _ancestors(self, proc: ProcId) -> Iterable[ProcId]:
        current = proc
        for _ in range(MAX_DEPTH):
            try:
                pid = reading.parent(current.pid)
                if pid == 0:
                    return
                above = reading.process(pid)
            except OSError:
                return  # It died while we looked; its children have been handed on already.
            yield above
            current = above

    def _by_cgroup(self, proc: ProcId) -> SessionId | None:
        if not self._cgroups:
            return None
        path = cgroup_of(proc.pid)
        if path is None:
            return None
        return next((s for s, group in self._cgroups.items() if group.holds(path)), None)

    def _by_program(self, proc: ProcId) -> SessionId | None:
        if not self.tracked_exes:
            return None
        chain = [proc, *self._ancestors(proc)]
        root = next((p for p in reversed(chain) if reading.exe_of(p.pid)[0] in self.tracked_exes), None)
        if root is None:
            return None
        session = SessionId(f"exe-{root.pid}-{root.start}")
        self.adopt(root, session)
        self.found_roots.append((root, session))
        return session

    def _remember_outsider(self, proc: ProcId, exe: ExeId | None) -> None:
        if len(self._outsiders) >= _MEMO_LIMIT:
            self._outsiders.clear()
        self._outsiders[proc] = exe
        self._on_outsider(proc)

    def _adopt_pid(self, pid: int, session: SessionId, cgroup: Cgroup | None) -> None:
        try:
            self.adopt(reading.process(pid), session)
        except OSError:
            return  # It ended meanwhile.
        if cgroup is not None:
            cgroup.add(pid)

    def _pidfd(self, proc: ProcId) -> int | None:
        if len(self._members) >= _PIDFD_LIMIT:
            return None
        try:
            return os.pidfd_open(proc.pid)
        except OSError:
            return None  # Gone, or no descriptor left: the start time still tells.
