"""The command's process tree: started with the terminal it would have had, told of signals, waited for.

The launcher is a child subreaper, so whatever the command leaves behind stays below it. It waits in
sigwaitinfo(2) with every signal of interest blocked: nothing interrupts anything, and nothing is lost between
two looks.
"""

import contextlib
import ctypes
import errno
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from guardfs.errors import ExitCode
from guardfs.launcher.terminal import Terminal
from guardfs.launcher.witness import Witness
from guardfs.procs import reading

FORWARDED = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGTSTP,
    signal.SIGCONT,
    signal.SIGWINCH,
)
_WAITED = {*FORWARDED, signal.SIGCHLD, signal.SIGTTIN, signal.SIGTTOU}
_ENDING = {signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM}
_CANCELLED_BY: dict[signal.Signals, set[signal.Signals]] = {
    signal.SIGCONT: {signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU},
    signal.SIGTSTP: {signal.SIGCONT},
}
"""The kernel drops a pending one of these for a later other (signal(7)): from the witness too."""
_PR_SET_CHILD_SUBREAPER = 36
_FOREVER_S = 3600.0
_LOOK_S = 0.1
"""Seconds between looks at what COMMAND left behind: the end of somebody else's child sends us no signal."""


class DaemonDied(Exception):
    """The mount is dead; the tree must be stopped before anything is cleaned up."""


class CannotRun(Exception):
    """COMMAND cannot be started; the code is the one that shells use."""

    def __init__(self, message: str, code: ExitCode) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class Inherited:
    """What we were started with: the signal mask that COMMAND is to have, and children that are no part of its tree.

    A shell that becomes us by ``exec`` leaves us its own: ``exec guardfs run … > >(tee log)``.
    """

    mask: set[int]
    children: frozenset[int]


class Tree:
    """All processes below this one but the daemon, the witness and what was here before.

    Invariant: ``_status`` is None from the start of COMMAND to its end, and it is reaped nowhere but in ``_reap``.
    """

    def __init__(self, daemon: "subprocess.Popen[bytes]", inherited: Inherited) -> None:
        self._daemon = daemon
        self._inherited = inherited
        self._command: subprocess.Popen[bytes] | None = None
        self._status: int | None = None
        self._terminal = Terminal()
        self._witness = Witness()
        # Whoever started us may have made us deaf to some (nohup, a shell's "&"): COMMAND is deaf to them too.
        self._ending = {number for number in _ENDING if signal.getsignal(number) is not signal.SIG_IGN}
        self.interrupted = False
        """Whether somebody has lost patience since COMMAND ended."""

    def close(self) -> None:
        """Let the witness go."""
        self._witness.dismiss()

    def ended_early(self) -> int | None:
        """The status for a signal that came before there was a COMMAND to have it."""
        came = self._ending & signal.sigpending()
        return ExitCode.SIGNALLED + min(came) if came else None

    def start(self, command: Sequence[str], directory: str, environment: Mapping[str, str], cgroup: str) -> int:
        """Start COMMAND in a directory, in the launcher's own process group; its process id.

        Raises:
            CannotRun: with 126 or 127, as a shell would exit.
        """
        if not command[0]:
            raise CannotRun("'': command not found", ExitCode.NOT_FOUND)  # exec would look at the bare PATH.
        try:
            self._command = self._spawn(command, directory, environment, cgroup)
        except FileNotFoundError as error:
            raise CannotRun(f"{command[0]}: command not found", ExitCode.NOT_FOUND) from error
        except OSError as error:
            raise CannotRun(f"{command[0]}: cannot be run: {error.strerror}", ExitCode.CANNOT_EXECUTE) from error
        return self._command.pid

    def _spawn(
        self, command: Sequence[str], directory: str, environment: Mapping[str, str], cgroup: str
    ) -> "subprocess.Popen[bytes]":
        def become_command() -> None:
            _join(cgroup)
            signal.pthread_sigmask(signal.SIG_SETMASK, self._inherited.mask)

        def spawn(argv: Sequence[str]) -> "subprocess.Popen[bytes]":
            return subprocess.Popen(
                argv,
                cwd=directory,
                env=environment,
                preexec_fn=become_command,  # noqa: PLW1509 - this process has one thread
                close_fds=False,
            )

        try:
            return spawn(command)
        except OSError as error:
            if error.errno != errno.ENOEXEC:
                raise
            # A script without "#!": shells and execvp(3) hand it to sh.
            return spawn(["/bin/sh", *command])

    def wait(self) -> int:
        """Wait for COMMAND while passing signals on; its status as a shell gives it. Raises DaemonDied."""
        while self._status is None:
            self._step(_FOREVER_S)
        return self._status

    def wait_for_rest(self, seconds: float) -> list[int]:
        """Wait for what is left of the tree; what still runs after that, or when a signal has hastened us."""
        self._terminal.take_back(map(_group_of, self.living()))
        deadline = time.monotonic() + seconds
        while (left := self.living()) and not self.interrupted and time.monotonic() < deadline:
            self._step(_LOOK_S)
        return left

    def signal_all(self, number: signal.Signals) -> None:
        """Send a signal to everything that is left."""
        for pid in self.living():
            with contextlib.suppress(OSError):
                os.kill(pid, number)

    def living(self) -> list[int]:
        """The processes of the tree that still run. Raises DaemonDied."""
        self._reap()
        # A process whose parent ends while we walk can be missed once; by the second walk it is our own child.
        return self._walk() or self._walk()

    def _walk(self) -> list[int]:
        apart = {self._witness.pid, self._daemon.pid, *self._inherited.children}
        below = {pid for top in apart for pid in reading.descendants(top)}
        tree = [pid for pid in reading.descendants(os.getpid()) if pid not in apart | below]
        return [pid for pid in tree if not reading.is_zombie(pid)]

    def _step(self, seconds: float) -> None:
        received = signal.sigtimedwait(_WAITED, seconds)
        if received is not None and received.si_signo in FORWARDED:
            self._handle(signal.Signals(received.si_signo))
        self._reap()

    def _handle(self, number: signal.Signals) -> None:
        shared = self._witness.had(number)
        if self._command is None or self._status is not None:
            self.interrupted = self.interrupted or number in self._ending
        else:
            self._pass_on(self._command.pid, number, shared=shared)

    def _pass_on(self, command: int, number: signal.Signals, *, shared: bool) -> None:
        """COMMAND has had what our whole group was sent, unless it has left for a group of its own."""
        group = _group_of(command)
        if _CANCELLED_BY.get(number, set()) & signal.sigpending():
            return  # COMMAND has the later one, which ours would undo.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if not shared:
                os.kill(command, number)
            elif group != os.getpgrp():
                os.killpg(group, number)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self._daemon.pid and not os.WIFSTOPPED(status):
                self._daemon.returncode = os.waitstatus_to_exitcode(status)
                raise DaemonDied
            if self._command and pid == self._command.pid:
                self._command_changed(self._command, status)

    def _command_changed(self, command: "subprocess.Popen[bytes]", status: int) -> None:
        if os.WIFSTOPPED(status):
            self._command_stopped(_group_of(command.pid), signal.Signals(os.WSTOPSIG(status)))
            return
        command.returncode = os.waitstatus_to_exitcode(status)
        ended_by = -command.returncode
        self._status = command.returncode if ended_by <= 0 else ExitCode.SIGNALLED + ended_by

    def _command_stopped(self, group: int, number: signal.Signals) -> None:
        """COMMAND has stopped (Ctrl-Z, ``suspend``): so does the job that the outer shell knows, until ``fg``.

        SIGSTOP comes from no key. Where no shell in front of us could say ``fg``, whoever sent it will continue
        COMMAND alone, and a stopped launcher would never hear of its end.
        """
        ours = os.getpgrp()
        if number is signal.SIGSTOP and self._terminal.foreground() not in (ours, group):
            return
        if signal.SIGCONT not in signal.sigpending():
            _stop(number)
        if group != ours:
            self._terminal.give_to(group)
            if signal.sigtimedwait({signal.SIGCONT}, 0):
                self._witness.had(signal.SIGCONT)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, signal.SIGCONT)


def prepare() -> Inherited:
    """Block what ``Tree`` waits for and become the reaper of all that is started from here on."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _WAITED)
    return Inherited(mask, frozenset(reading.children(os.getpid())))


def _group_of(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return -1


def _stop(number: signal.Signals) -> None:
    """Stop ourselves by the signal that stopped COMMAND, which the shell will name; back after SIGCONT."""
    os.kill(os.getpid(), number if signal.getsignal(number) is signal.SIG_DFL else signal.SIGSTOP)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    signal.pthread_sigmask(signal.SIG_BLOCK, {number})


def _join(cgroup: str) -> None:
    """Between fork and exec: COMMAND enters its session's cgroup, where there is one."""
    if cgroup:
        with contextlib.suppress(OSError):
            fd = os.open(cgroup, os.O_WRONLY)
            os.write(fd, b"0")
            os.close(fd)
