"""The guard and pyfuse3's handlers over a real directory and a real store, without a mount.

Callers are given, not resolved: a census that is told who the next request is from.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec

from guardfs import backing
from guardfs.config import Settings
from guardfs.core.model import ProcId
from guardfs.fuse_ops import Operations
from guardfs.guard import Guard
from guardfs.guard.announcer import Announcer
from guardfs.guard.contents import Contents
from guardfs.guard.gitview import GitView
from guardfs.guard.judge import Desk
from guardfs.guard.registry import Registry
from guardfs.guard.rulebook import Rulebook
from guardfs.guard.sessions import Session, Sessions
from guardfs.handles import Handles
from guardfs.inodes import Inodes
from guardfs.procs.census import Caller, Census
from guardfs.state.schema import SessionKind
from guardfs.state.store import open_store
from guardfs.vcs import Vcs

GIT_EXE = (9, 9)
"""The program that stands for git."""
USER = SimpleNamespace(pid=1, uid=0, gid=0, umask=0o022)


class Log:
    """Keeps what is said."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, dict[str, Any]]] = []

    def info(self, event: str, **fields: Any) -> None:
        self.lines.append((event, fields))

    error = warning = info


class GivenCensus(Census):
    """Says that numbers from 1000 on are the agents that ``Room.agent`` made."""

    def __init__(self) -> None:
        super().__init__()
        self.given: dict[int, Caller] = {}

    def who(self, tid: int) -> Caller:
        return self.given.get(tid, Caller(ProcId(tid, 1), None, (0, 0), "editor"))


class Room:
    """All parts of a daemon but the mount."""

    def __init__(self, top: Path, store_dir: Path, settings: Settings) -> None:
        self.top = top
        self.log = Log()
        self.dropped: list[int] = []
        self.store = open_store(store_dir, lambda aside, reason: None)
        self.root_fd = backing.open_root(str(top))
        announcer = Announcer(self.store, self.log)
        self.rulebook = Rulebook(self.root_fd, str(top), msgspec.to_builtins(settings), announcer.tell_settings)
        self.rulebook.programs = (frozenset({GIT_EXE}), frozenset({GIT_EXE}))
        self.vcs = Vcs(str(top), str(top))
        self.inodes = Inodes(self.root_fd)
        self.census = GivenCensus()
        self.sessions = Sessions()
        self.registry = Registry(settings.max_records, self.sessions, self.census, self.store, announcer)
        self.desk = Desk(
            rulebook=self.rulebook,
            git=GitView(self.vcs),
            inodes=self.inodes,
            handles=Handles(),
            census=self.census,
            sessions=self.sessions,
            announcer=announcer,
            contents=Contents(self.store),
            registry=self.registry,
            drop_pages=self.dropped.append,
            log=self.log,
        )
        self.guard = Guard(self.desk)
        self.ops: Any = Operations(self.guard, self.log)

    def agent(self, number: int = 1000) -> Any:
        """The request context of a new session's process."""
        root = ProcId(2**22 - 1, number)
        session = self.registry.begin(SessionKind.RUN, root, "agent", cgroup=False)
        self.census.given[number] = Caller(ProcId(number, 1), session.id, (1, 1), "agent")
        return SimpleNamespace(pid=number, uid=0, gid=0, umask=0o022)

    def session(self, ctx: Any) -> Session:
        session = self.census.given[ctx.pid].session
        assert session is not None
        return self.sessions.get(session)

    async def number(self, name: bytes, parent: int = 1) -> int:
        """Look a name up as the kernel would."""
        return int((await self.ops.lookup(parent, name, USER)).st_ino)

    def denials(self) -> list[str]:
        return [fields["reason"] for event, fields in self.log.lines if event == "denied"]

    def close(self) -> None:
        self.inodes.close()
        self.vcs.close()
        self.store.close()
        backing.close(self.root_fd)


@contextmanager
def room(base: Path, settings: Settings | None = None) -> Iterator[Room]:
    """A room over ``base/ws`` with a file ``f``."""
    top = base / "ws"
    top.mkdir()
    (top / "f").write_bytes(b"one\ntwo\nthree\n")
    made = Room(top, base / "store", settings or Settings())
    yield made
    made.close()
