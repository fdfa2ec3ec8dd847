"""One mount from its beginning to its end."""

import fcntl
import logging
import os
import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

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
from guardfs.errors import ExitCode, GuardfsError, StoreError
from guardfs.fuse_ops import Operations
from guardfs.guard import Guard
from guardfs.guard.announcer import Announcer
from guardfs.guard.judge import Desk
from guardfs.guard.registry import EVERYTHING, Registry
from guardfs.guard.sessions import Sessions
from guardfs.handles import Handles
from guardfs.inodes import Inodes
from guardfs.procs import mounts, reading
from guardfs.procs.census import UNKNOWN_SESSION, Census
from guardfs.state.store import Store, open_store

LINGER_S = 5.0
"""Seconds that a mount which was detached while in use goes on serving those who still have files open."""
_FLUSH_S = 0.5
"""Seconds that changes gather before they are written; denials do not wait."""
_REAP_S = 30.0
"""Seconds between two looks for sessions whose processes are all gone."""
_RETRY_S = 5.0
"""Seconds until a store that failed is tried again."""

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
    settings = config.load(root_fd, plan.workspace, plan.flags)
    state = _state_dir(plan)
    stack.enter_context(_only_daemon(state, plan))
    log, file = open_log(state / "log")
    stack.callback(file.close)
    _hear_libraries(log)
    os.chdir("/")
    os.umask(0)
    _raise_descriptor_limit()
    return Daemon(plan, settings, state, root_fd, log, stack)


class Daemon:
    """The parts of one mount, built downwards; nothing in here is wired after it was made."""

    def __init__(
        self, plan: Plan, settings: config.Settings, state: Path, root_fd: int, log: Any, stack: ExitStack
    ) -> None:
        self._plan = plan
        self._state = state
        self._log = log
        self._stopping = trio.Event()
        self._outsiders_in, self._outsiders = trio.open_memory_channel[ProcId](256)
        self._stale_pages_in, self._stale_pages = trio.open_memory_channel[int](1024)
        self._warnings: list[str] = []
        self._tracks_unknown = settings.unknown_caller == "tracked" and not plan.track_all
        self._store = _open_store(state, self._damaged)
        stack.callback(self._store.close)
        self._inodes = Inodes(root_fd)
        stack.callback(self._inodes.close)
        self._census = Census(
            everything=EVERYTHING if plan.track_all else None,
            tracked_exes=reading.find_programs(plan.track_exe),
            track_unknown=self._tracks_unknown,
            on_outsider=self._outsider,
        )
        stack.callback(self._census.close)
        self._sessions = Sessions(settings.match)
        announcer = Announcer(self._store, log)
        self._registry = Registry(settings, self._sessions, self._census, self._store, announcer)
        desk = Desk(
            settings=settings,
            inodes=self._inodes,
            handles=Handles(),
            census=self._census,
            sessions=self._sessions,
            announcer=announcer,
            registry=self._registry,
            ignored_readers=reading.find_programs(settings.reads.ignore),
            drop_pages=self._drop_pages,
            log=log,
        )
        self._guard = Guard(desk)
        self._operations = Operations(self._guard, log)
        self._answers = Answers(plan, state, desk, self._store, self._stopping)

    async def run(self, ready: Ready) -> None:
        """Mount, serve, unmount. Raises GuardfsError where the mount cannot be made."""
        self._registry.revive()
        if self._plan.track_all:
            self._registry.begin_for_all(EVERYTHING, "the whole mount")
        if self._tracks_unknown:
            self._registry.begin_for_all(UNKNOWN_SESSION, "all callers that cannot be seen")
        line = listen(self._state)
        _mount(self._operations, self._plan)
        self._log.info("mounted", mountpoint=self._plan.mountpoint, pid=os.getpid())
        try:
            await self._serve(line, ready)
        finally:
            line.close()
            (self._state / "control.sock").unlink(missing_ok=True)
        pyfuse3.close(unmount=False)
        self._log.info("unmounted", mountpoint=self._plan.mountpoint)

    async def _serve(self, line: Any, ready: Ready) -> None:
        server = Server(self._answers.answer, self._census.member, self._log)
        async with trio.open_nursery() as helpers:
            helpers.start_soon(self._watch_signals)
            helpers.start_soon(server.serve, line)
            helpers.start_soon(self._keep_store)
            helpers.start_soon(self._prove_outsiders)
            helpers.start_soon(self._invalidate)
            helpers.start_soon(self._reap)
            async with trio.open_nursery() as loop:
                loop.start_soon(self._stop_when_told, loop.cancel_scope)
                loop.start_soon(self._serve_kernel, loop.cancel_scope)
                protocol.write_running(self._state, self._note())
                self._tell(ready)
            helpers.cancel_scope.cancel()
        await self._last_flush()

    def _tell(self, ready: Ready) -> None:
        try:
            ready(Begun(warnings=tuple(self._warnings)))
        except BrokenPipeError:
            # Whoever asked for this mount has gone, and nobody else knows of it.
            self._stopping.set()

    async def _serve_kernel(self, scope: trio.CancelScope) -> None:
        await fuse_loop.serve()
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

    async def _keep_store(self) -> None:
        """Write what gathers; a store that fails costs memory of this run and nothing else."""
        while True:
            await self._store.dirty.wait()
            with trio.move_on_after(_FLUSH_S):
                await self._store.urgent.wait()
            try:
                await self._store.flush()
            except StoreError as error:
                self._log.warning("store", reason=str(error), next="free space or rights; records stay in memory")
                await trio.sleep(_RETRY_S)

    async def _last_flush(self) -> None:
        try:
            await self._store.flush()
        except StoreError as error:
            self._log.warning("store", reason=str(error), next="the records of this run are lost: files are read again")

    def _outsider(self, proc: ProcId) -> None:
        try:
            self._outsiders_in.send_nowait(proc)
        except trio.WouldBlock:
            pass  # The third piece of evidence is the weakest: ancestry and cgroup have spoken.

    async def _prove_outsiders(self) -> None:
        """Look at first environments off the request path, where waiting for a page cannot lock us up."""
        async for proc in self._outsiders:
            living = [session.id for session in self._sessions]
            session = await trio.to_thread.run_sync(self._census.prove, proc, living)
            if session is not None and session in self._sessions:
                self._census.adopt(proc, session)

    def _drop_pages(self, number: int) -> None:
        try:
            self._stale_pages_in.send_nowait(number)
        except trio.WouldBlock:
            pass  # A storm of refused stores: each next open drops the pages anyway.

    async def _invalidate(self) -> None:
        """Drop pages from the kernel's cache, in a thread: it waits for requests that this loop answers."""
        async for number in self._stale_pages:
            try:
                await trio.to_thread.run_sync(pyfuse3.invalidate_inode, number)
            except OSError:
                pass  # The kernel has forgotten the inode meanwhile, and its pages with it.

    async def _reap(self) -> None:
        while True:
            await trio.sleep(_REAP_S)
            self._registry.reap()

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


def _mount(operations: Operations, plan: Plan) -> None:
    # FUSE mounts are nosuid and nodev unless told; a bare directory is what its own mount says.
    flags = os.statvfs(plan.workspace).f_flag
    options = {"default_permissions", "fsname=guardfs", "subtype=guardfs"}
    if os.geteuid() == 0:
        options |= {"allow_other"}
        options |= {name for name, bit in (("suid", os.ST_NOSUID), ("dev", os.ST_NODEV)) if not flags & bit}
    elif plan.allow_other:
        options |= {"allow_other"}
    options |= {name for name, bit in (("noexec", os.ST_NOEXEC), ("ro", os.ST_RDONLY)) if flags & bit}
    with _heard() as said:
        try:
            pyfuse3.init(operations, plan.mountpoint, options)
        except RuntimeError as error:
            reason = (said() or str(error)).removeprefix("fusermount3: ")
            code = ExitCode.NO_PERMISSION if "permi" in reason.lower() else ExitCode.UNAVAILABLE
            raise GuardfsError(
                f"{plan.mountpoint}: cannot be mounted: {reason}; see /etc/fuse.conf and the rights on /dev/fuse",
                code,
            ) from error


@contextmanager
def _heard() -> Iterator[Callable[[], str]]:
    """libfuse explains a failure on stderr only: hold it, and give its last line."""
    kept = os.dup(2)
    held = os.memfd_create("stderr")
    os.dup2(held, 2)
    try:
        yield lambda: (os.pread(held, 4096, 0).decode(errors="replace").strip().splitlines() or [""])[-1]
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(held)


def _state_dir(plan: Plan) -> Path:
    try:
        plan.state.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise GuardfsError(
            f"{plan.state}: cannot be made ({error.strerror}); set GUARDFS_STATE to a writable directory",
            ExitCode.CANNOT_CREATE,
        ) from error
    return plan.state


@contextmanager
def _only_daemon(state: Path, plan: Plan) -> Iterator[None]:
    """One daemon per workspace, by a lock that a dead one cannot hold."""
    try:
        fd = os.open(state / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise GuardfsError(
            f"{state}: cannot be written ({error.strerror}); set GUARDFS_STATE to a writable directory",
            ExitCode.CANNOT_CREATE,
        ) from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise GuardfsError(
            f"{plan.workspace}: another guardfs serves it; see 'guardfs status', or end it with 'guardfs unmount'",
            ExitCode.BUSY,
        ) from None
    else:
        yield
    finally:
        os.close(fd)


def _open_store(state: Path, damaged: Callable[[Path, str], None]) -> Store:
    try:
        return open_store(state / "store", damaged)
    except StoreError as error:
        raise GuardfsError(f"{error}; set GUARDFS_STATE to a writable directory", ExitCode.CANNOT_CREATE) from error


def _raise_descriptor_limit() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _hear_libraries(log: IO[str] | Any) -> None:
    root = logging.getLogger()
    root.handlers[:] = [LibraryHandler(log)]
