"""The course of ``guardfs run`` from the mount to the exit status."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence

from guardfs.control import client
from guardfs.control.protocol import Begin, End, Plan, SessionBegun, Stop
from guardfs.core.wording import escape
from guardfs.errors import ExitCode, GuardfsError
from guardfs.launcher.tree import CannotRun, DaemonDied, Tree, prepare
from guardfs.procs import mounts, reading
from guardfs.state.schema import SessionRow

GRACE_S = 5.0
"""Seconds that what COMMAND left behind has to end by itself, and again after SIGTERM."""
_UNMOUNT_S = 30.0
"""Seconds until a daemon that does not end after its mount is gone counts as stuck."""


def say(message: str) -> None:
    """One line to the person at the terminal; the terminal may be gone."""
    with contextlib.suppress(OSError):
        print(f"guardfs: {message}", file=sys.stderr, flush=True)


def run(plan: Plan, command: Sequence[str], *, label: str, wait: bool) -> int:
    """Run COMMAND as a tracked tree over a mount of its own; the exit status for ``guardfs``.

    Raises:
        GuardfsError: the mount cannot be made.
    """
    prepare()
    daemon, begun = client.start(plan)
    for warning in begun.warnings:
        say(warning)
    os.chdir("/")  # Whatever directory we stand in, it must not keep the mount busy.
    tree = Tree(daemon)
    try:
        session = _begin(plan, label)
        status = _command(plan, tree, session, command)
        _see_off(tree, wait=wait)
        row = client.ask(plan.state, End(session.session)).ended
    except DaemonDied:
        return _after_death(plan, tree)
    except GuardfsError as error:
        say(str(error))
        _stop_tree(tree)
        _unmount(plan, daemon)
        return error.code
    _unmount(plan, daemon)
    _sum_up(plan, row)
    return status


def _begin(plan: Plan, label: str) -> SessionBegun:
    begun = client.ask(plan.state, Begin(reading.process(os.getpid()), label)).begun
    assert begun is not None
    return begun


def _command(plan: Plan, tree: Tree, session: SessionBegun, command: Sequence[str]) -> int:
    environment = dict(os.environ) | {
        "GUARDFS_SESSION": session.session,
        "GUARDFS_MOUNT": plan.mountpoint,
        "GUARDFS_LOG": str(plan.state / "log"),
        "PWD": plan.mountpoint,
    }
    try:
        tree.start(command, plan.mountpoint, environment, session.cgroup)
    except CannotRun as error:
        say(str(error))
        return error.code
    return tree.wait()


def _see_off(tree: Tree, *, wait: bool) -> None:
    """What COMMAND left behind: time to end, then SIGTERM, then SIGKILL."""
    left = tree.wait_for_rest(None if wait else GRACE_S)
    if left:
        say(f"still running after COMMAND: {_named(left)}; sending SIGTERM")
        _stop_tree(tree)


def _stop_tree(tree: Tree) -> None:
    tree.signal_all(signal.SIGTERM)
    tree.signal_all(signal.SIGCONT)
    left = tree.wait_for_rest(GRACE_S)
    while left:
        say(f"did not end after SIGTERM: {_named(left)}; sending SIGKILL")
        tree.signal_all(signal.SIGKILL)
        left = tree.wait_for_rest(GRACE_S)


def _named(pids: Sequence[int]) -> str:
    return ", ".join(f"{escape(os.fsencode(reading.exe_of(pid)[1]))} (pid {pid})" for pid in pids)


def _after_death(plan: Plan, tree: Tree) -> int:
    """The mount is dead, not open: stop the tree while nothing can be written, and only then clean up."""
    say("the daemon has died; the mount is dead and nothing gets through; stopping the command's processes")
    with contextlib.suppress(DaemonDied):
        _stop_tree(tree)
    try:
        mounts.clear_dead(plan.mountpoint)
        say(f"dead mount at {plan.mountpoint} cleared; the log is {plan.state / 'log'}")
    except mounts.UnmountError as error:
        say(f"{plan.mountpoint}: the dead mount cannot be cleared ({error}); run 'guardfs unmount'")
    return ExitCode.SOFTWARE


def _unmount(plan: Plan, daemon: "subprocess.Popen[bytes]") -> None:
    try:
        client.ask(plan.state, Stop())
        daemon.wait(_UNMOUNT_S)
    except (GuardfsError, subprocess.TimeoutExpired) as error:
        say(f"{plan.mountpoint}: not unmounted cleanly ({error}); run 'guardfs unmount'")


def _sum_up(plan: Plan, row: SessionRow | None) -> None:
    if row is not None:
        counts = f"{row.read} files read, {row.written} written, {row.refused} operations refused"
        say(f"{counts}; log: {plan.state / 'log'}")
