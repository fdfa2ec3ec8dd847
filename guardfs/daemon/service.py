"""One mount from its beginning to its end."""

import logging
import os
import resource
import signal
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyfuse3
import trio

from guardfs import backing, config, fuse_loop
from guardfs.control import protocol
from guardfs.control.protocol import Begun, Plan, Running
from guardfs.control.server import Server, listen
from guardfs.core.model import ProcId
from guardfs.daemon import checks
from guardfs.daemon.answers import Answers
from guardfs.daemon.logfile import LibraryHandler, open_log
from guardfs.daemon.mounting import mount
from guardfs.daemon.statedir import only_daemon, open_store, state_dir
from guardfs.daemon.upkeep import Upkeep
from guardfs.fuse_ops import Operations
from guardfs.guard import Guard
from guardfs.guard.announcer import Announcer
from guardfs.guard.contents import Contents
from guardfs.guard.gitview import GitView
from guardfs.guard.judge import Desk
from guardfs.guard.registry import EVERYTHING, Registry
from guardfs.guard.rulebook import Rulebook
from guardfs.guard.sessions import Sessions
from guardfs.handles import Handles
from guardfs.inodes import Inodes
from guardfs.procs import mounts, reading
from guardfs.procs.census import UNKNOWN_SESSION, Census
from guardfs.vcs import Vcs

LINGER_S = 5.0
"""Seconds that a mount which was detached while in use goes on serving those who still have files open."""

_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

Ready = Callable[[Begun], None]


def serve(plan: Plan, ready: Ready) -> None:
    """Mount and serve until told to stop or unmounted; ``ready`` is called once the mount is usable.

    Raises:
        GuardfsError: it cannot begin; nothing is left mounted.
    """
    # Held back until there is somebody to hear them: an end between mount and loop would leave a dead mount.
    signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    checks.clear_dead(plan)
    checks.check(plan)
    with ExitStack() as stack:
        daemon = _build(plan, stack)
        trio.run(daemon.run, ready)


def _build(plan: Plan, stack: ExitStack) -> "Daemon":
    root_fd = backing.open_root(plan.workspace)
    stack.callback(os.close, root_fd)
    config.load(root_fd, plan.workspace, plan.flags)  # Before anything is made: a mistake leaves no trace.
    state = state_dir(plan)
    stack.enter_context(only_daemon(state, plan))
    log, file = open_log(state / "log")
    stack.callback(file.close)
    _hear_libraries(log)
    os.chdir("/")
    os.umask(0)
    _raise_descriptor_limit()
    return Daemon(plan, state, root_fd, log, stack)


class Daemon:
    """The parts of one mount, built downwards; nothing in here is wired after it was made."""

    def __init__(self, plan: Plan, state: Path, root_fd: int, log: Any, stack: ExitStack) -> None:
        self._plan = plan
        self._state = state
        self._log = log
        self._stopping = trio.Event()
        self._warnings: list[str] = []
        store = open_store(state, self._damaged)
        stack.callback(store.close)
        announcer = Announcer(store, log)
        self._rulebook = Rulebook(root_fd, plan.workspace, plan.flags, announcer.tell_settings)
        self._rulebook.programs = self._rulebook.find()
        settings = self._rulebook.settings
        self._loop = settings.loop
        self._tracks_unknown = settings.unknown_caller == "tracked" and not plan.track_all
        vcs = Vcs(f"/proc/self/fd/{root_fd}", plan.mountpoint)
        stack.callback(vcs.close)
        self._git = GitView(vcs)
        self._upkeep = Upkeep(store, log)
        self._inodes = Inodes(root_fd)
        stack.callback(self._inodes.close)
        self._census = Census(
            everything=EVERYTHING if plan.track_all else None,
            tracked_exes=reading.find_programs(plan.track_exe),
            track_unknown=self._tracks_unknown,
            on_outsider=self._upkeep.outsider,
        )
        stack.callback(self._census.close)
        self._sessions = Sessions()
        self._registry = Registry(settings.max_records, self._sessions, self._census, store, announcer)
        desk = Desk(
            rulebook=self._rulebook,
            git=self._git,
            inodes=self._inodes,
            handles=Handles(),
            census=self._census,
            sessions=self._sessions,
            announcer=announcer,
            contents=Contents(store),
            registry=self._registry,
            drop_pages=self._upkeep.drop_pages,
            log=log,
        )
        self._guard = Guard(desk)
        self._operations = Operations(self._guard, log)
        self._answers = Answers(plan, state, desk, store, self._stopping)

    async def run(self, ready: Ready) -> None:
        """Mount, serve, unmount. Raises GuardfsError where the mount cannot be made."""
        self._registry.revive()
        if self._plan.track_all:
            self._registry.begin_for_all(EVERYTHING, "the whole mount")
        if self._tracks_unknown:
            self._registry.begin_for_all(UNKNOWN_SESSION, "all callers that cannot be seen")
        line = listen(self._state)
        mount(self._operations, self._plan)
        self._log.info("mounted", mountpoint=self._plan.mountpoint, pid=os.getpid())
        try:
            await self._serve(line, ready)
        finally:
            line.close()
            (self._state / "control.sock").unlink(missing_ok=True)
        pyfuse3.close(unmount=False)
        self._log.info("unmounted", mountpoint=self._plan.mountpoint)

    async def _serve(self, line: Any, ready: Ready) -> None:
        server = Server(self._answers.answer, self._log)
        async with trio.open_nursery() as helpers:
            helpers.start_soon(self._watch_signals)
            helpers.start_soon(server.serve, line)
            self._upkeep.start(helpers, self._prove, self._registry.reap, self._guard.desk.inodes.surplus)
            helpers.start_soon(self._upkeep.find_programs, self._rulebook)
            helpers.start_soon(self._git.refresh)
            async with trio.open_nursery() as loop:
                loop.start_soon(self._stop_when_told, loop.cancel_scope)
                loop.start_soon(self._serve_kernel, loop.cancel_scope)
                protocol.write_running(self._state, self._note())
                self._tell(ready)
            helpers.cancel_scope.cancel()
        await self._upkeep.last_flush()

    def _tell(self, ready: Ready) -> None:
        try:
            ready(Begun(warnings=tuple(self._warnings)))
        except BrokenPipeError:
            # Whoever asked for this mount has gone, and nobody else knows of it.
            self._stopping.set()

    async def _serve_kernel(self, scope: trio.CancelScope) -> None:
        if not fuse_loop.can_be_quick():
            self._log.info("stock loop", reason="this pyfuse3 has nothing that the quick loop could stand in for")
        await fuse_loop.serve(self._loop)
        scope.cancel()  # Unmounted, by us or by anybody else.

    async def _stop_when_told(self, scope: trio.CancelScope) -> None:
        """Unmount in a thread: the kernel may still send requests meanwhile, and the loop answers them."""
        await self._stopping.wait()
        point = self._plan.mountpoint
        try:
            await trio.to_thread.run_sync(mounts.unmount, point)
        except mounts.UnmountError as error:
            self._log.info("busy", mountpoint=point, reason=str(error), next="detached; open files are still served")
            await self._detach(point)
            await trio.sleep(LINGER_S)
            self._log.info("gave up waiting", open_files=len(self._guard.desk.handles))
            scope.cancel()

    async def _detach(self, point: str) -> None:
        try:
            await trio.to_thread.run_sync(lambda: mounts.unmount(point, lazy=True))
        except mounts.UnmountError as error:
            self._log.error("cannot unmount", mountpoint=point, reason=str(error))

    async def _watch_signals(self) -> None:
        """Stop when told to; what we were made deaf to (nohup) stays unheard."""
        heard = [number for number in _ENDING if signal.getsignal(number) is not signal.SIG_IGN]
        with trio.open_signal_receiver(*heard) as received:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)
            async for number in received:
                self._stop_by(signal.Signals(number).name)

    def _stop_by(self, name: str) -> None:
        """A signal to everything at once must not take the mount from under a command that is about to end."""
        if self._answers.launcher() is None:
            self._log.info("stopping", signal=name)
            self._stopping.set()
        else:
            self._log.info("not stopping", signal=name, next="the mount of 'guardfs run' ends with its command")

    async def _prove(self, proc: ProcId) -> None:
        """Look at a first environment off the request path, where waiting for a page cannot lock us up."""
        living = [session.id for session in self._sessions]
        session = await trio.to_thread.run_sync(self._census.prove, proc, living)
        if session is not None and session in self._sessions:
            self._census.adopt(proc, session)

    def _note(self) -> Running:
        return Running(
            reading.process(os.getpid()),
            self._plan.workspace,
            self._plan.mountpoint,
            str(self._state / "log"),
        )

    def _damaged(self, aside: Path, reason: str) -> None:
        self._log.warning("store damaged", aside=str(aside), reason=reason, next="begun afresh: files are read again")
        self._warnings.append(f"the store was damaged; it is kept as {aside} and a new one begun")


def _raise_descriptor_limit() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _hear_libraries(log: Any) -> None:
    root = logging.getLogger()
    root.handlers[:] = [LibraryHandler(log)]
