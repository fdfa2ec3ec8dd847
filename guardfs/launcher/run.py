"""The course of ``guardfs run`` from the mount to the exit status."""

import contextlib
import math
import os
import select
import signal
import subprocess
from collections.abc import Sequence

from guardfs.control import client
from guardfs.control.protocol import Begin, End, Lead, Plan, SessionBegun, Stop
from guardfs.errors import ExitCode, GuardfsError, say
from guardfs.launcher.tree import CannotRun, DaemonDied, Tree, prepare
from guardfs.procs import mounts, reading
from guardfs.state.schema import SessionRow

GRACE_S = 5.0
"""Seconds that what COMMAND left behind has to end by itself, and again after SIGTERM."""
_QUIET_S = 1.0
"""Seconds of it that pass before anybody is told."""
_UNMOUNT_S = 30.0
"""Seconds until a daemon that does not end after its mount is gone counts as stuck."""


def run(plan: Plan, command: Sequence[str], *, label: str, wait: bool) -> int:
    """Run COMMAND as a tracked tree over a mount of its own; the exit status for ``guardfs``.

    Raises:
        GuardfsError: the mount cannot be made.
    """
    inherited = prepare()
    daemon, begun = client.start(plan)
    for warning in begun.warnings:
        say(warning)
    os.chdir("/")  # Whatever directory we stand in, it must not keep the mount busy.
    with contextlib.closing(Tree(daemon, inherited)) as tree:
        try:
            status, row = _tracked(plan, tree, command, label, wait=wait)
            _unmount(plan, daemon)
        except DaemonDied:
            return _after_death(plan, tree)
    _sum_up(plan, row)
    return status


def _tracked(
    plan: Plan, tree: Tree, command: Sequence[str], label: str, *, wait: bool
) -> tuple[int, SessionRow | None]:
    """COMMAND's status and, if it ran, what its session did. Raises DaemonDied."""
    try:
        session = client.ask(plan.state, Begin(reading.process(os.getpid()), label)).begun
        assert session is not None
        status, ran = _command(plan, tree, session, command)
        _see_off(tree, wait=wait)
        row = client.ask(plan.state, End(session.session)).ended
    except GuardfsError as error:
        say(str(error))
        _stop_tree(tree)
        return error.code, None
    return status, row if ran else None


def _command(plan: Plan, tree: Tree, session: SessionBegun, command: Sequence[str]) -> tuple[int, bool]:
    """COMMAND's status, and whether it ran at all."""
    environment = dict(os.environ) | {
        "GUARDFS_SESSION": session.session,
        "GUARDFS_MOUNT": plan.mountpoint,
        "GUARDFS_LOG": str(plan.state / "log"),
        "PWD": plan.mountpoint,
    }
    early = tree.ended_early()
    if early is not None:
        return early, False
    try:
        pid = tree.start(command, plan.mountpoint, environment, session.cgroup)
    except CannotRun as error:
        say(str(error))
        return error.code, False
    with contextlib.suppress(OSError):  # It has ended already, and says nothing any more.
        client.ask(plan.state, Lead(session.session, reading.process(pid)))
    return tree.wait(), True


def _see_off(tree: Tree, *, wait: bool) -> None:
    """What COMMAND left behind: time to end, then SIGTERM, then SIGKILL."""
    left = tree.wait_for_rest(_QUIET_S)
    if left and not tree.interrupted:
        span = "" if wait else f" up to {GRACE_S - _QUIET_S:.0f} s"
        say(f"waiting{span} for what COMMAND left behind, {_named(left)}; Ctrl-C ends it")
        left = tree.wait_for_rest(math.inf if wait else GRACE_S - _QUIET_S)
    if left:
        say(f"still running after COMMAND: {_named(left)}; sending SIGTERM")
        _stop_tree(tree)


def _stop_tree(tree: Tree) -> None:
    tree.signal_all(signal.SIGTERM)
    tree.signal_all(signal.SIGCONT)
    tree.interrupted = False
    left = tree.wait_for_rest(GRACE_S)
    if left:
        say(f"did not end after SIGTERM: {_named(left)}; sending SIGKILL")
        _kill_tree(tree)


def _kill_tree(tree: Tree) -> None:
    tree.signal_all(signal.SIGKILL)
    while tree.wait_for_rest(_QUIET_S):  # What was forked in between has not had it.
        tree.signal_all(signal.SIGKILL)


def _named(pids: Sequence[int]) -> str:
    return ", ".join(f"{reading.exe_of(pid)[1]} (pid {pid})" for pid in pids)


def _after_death(plan: Plan, tree: Tree) -> int:
    """A dead mount is not open: stop the tree while nothing can be written, and only then clean up."""
    if mounts.is_guarded(plan.mountpoint):
        say("the daemon has died; the mount is dead and nothing gets through; stopping the command's processes")
        _stop_tree(tree)
    else:
        say(f"{plan.mountpoint} has been unmounted by somebody else; killing the command's processes")
        _kill_tree(tree)
    _clear(plan)
    return ExitCode.SOFTWARE


def _clear(plan: Plan) -> None:
    try:
        if mounts.clear_dead(plan.mountpoint):
            say(f"dead mount at {plan.mountpoint} cleared; log: {plan.state / 'log'}")
    except mounts.UnmountError as error:
        say(f"{plan.mountpoint}: the dead mount cannot be cleared ({error}); run 'guardfs unmount'")


def _unmount(plan: Plan, daemon: "subprocess.Popen[bytes]") -> None:
    """Raises DaemonDied where it ends otherwise than by being told to."""
    try:
        client.ask(plan.state, Stop())
    except GuardfsError as error:
        say(str(error))
    if not _ends(daemon):
        say(f"{plan.mountpoint}: not unmounted within {_UNMOUNT_S:.0f} s; run 'guardfs unmount'")
    elif daemon.wait() != 0:
        raise DaemonDied


def _ends(daemon: "subprocess.Popen[bytes]") -> bool:
    """Whether the daemon ends in time; the wait of ``subprocess`` would look too seldom."""
    fd = os.pidfd_open(daemon.pid)
    try:
        ended = select.poll()
        ended.register(fd, select.POLLIN)
        return bool(ended.poll(_UNMOUNT_S * 1000))
    finally:
        os.close(fd)


def _sum_up(plan: Plan, row: SessionRow | None) -> None:
    if row is not None:
        counts = f"files read: {row.read}, written: {row.written}; operations refused: {row.refused}"
        say(f"{counts}; log: {plan.state / 'log'}")
