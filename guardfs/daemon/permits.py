"""Who may ask for what on the control socket: anybody untracked for everything, a tracked process for little.

Used by ``answers``.
"""

from guardfs.control.protocol import Flush, Request, Status, Turn
from guardfs.core.model import ProcId, SessionId
from guardfs.errors import ExitCode, GuardfsError
from guardfs.guard.sessions import Sessions
from guardfs.procs import reading
from guardfs.procs.census import Census
from guardfs.state.schema import SessionKind


class Permits:
    """Knows the harness of each session: its root, or the COMMAND that a launcher has named."""

    def __init__(self, census: Census, sessions: Sessions) -> None:
        self._census = census
        self._sessions = sessions
        self._led: dict[SessionId, ProcId] = {}

    def lead(self, session: SessionId, process: ProcId) -> None:
        """A launcher names the process that its session began with."""
        self._led = {known: led for known, led in self._led.items() if known in self._sessions}
        self._led[session] = process

    def check(self, request: Request, pid: int) -> SessionId | None:
        """The session of a process that may ask for this, None for an untracked one. Raises GuardfsError."""
        session = self._census.member(pid)
        if session is None or isinstance(request, Status | Flush):
            return session
        if isinstance(request, Turn) and self._speaks_for(session, pid):
            return session
        raise GuardfsError(
            "not permitted from inside a tracked session; ask the person who owns the workspace",
            ExitCode.NO_PERMISSION,
        )

    def _speaks_for(self, session: SessionId, pid: int) -> bool:
        """Whether a process is the session's harness or a command that it started itself, and not a tool's child."""
        harness = self._harness(session)
        try:
            return harness is not None and harness.pid in {pid, reading.parent(pid)} and reading.is_alive(harness)
        except OSError:
            return False  # It has ended: nobody is left to be answered.

    def _harness(self, session: SessionId) -> ProcId | None:
        if session not in self._sessions:
            return None
        row = self._sessions.get(session).row
        return self._led.get(session) if row.kind is SessionKind.RUN else row.root
