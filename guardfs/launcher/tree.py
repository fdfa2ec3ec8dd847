"""The command's process tree: started with the terminal it would have had, told of signals, waited for.

The launcher is a child subreaper, so whatever the command leaves behind stays below it. It waits in
sigwaitinfo(2) with every signal of interest blocked: nothing interrupts anything, and ``si_code`` tells a
signal from the terminal, which the command has had as well, from one sent to the launcher alone.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence

from guardfs.errors import ExitCode
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
_SI_USER = 0
"""Signals that a process sent have a code of 0 or less; the kernel's and the terminal's are above (sigaction(2))."""
_PR_SET_CHILD_SUBREAPER = 36
_FOREVER_S = 3600.0


class DaemonDied(Exception):
    """The mount is dead; the tree must be stopped before anything is cleaned up."""


class CannotRun(Exception):
    """COMMAND cannot be started; the code is the one that shells use."""

    def __init__(self, message: str, code: ExitCode) -> None:
        super().__init__(message)
        self.code = code


class Tree:
    """All processes below this one but the daemon."""

    def __init__(self, daemon: "subprocess.Popen[bytes]") -> None:
        self._daemon = daemon
        self._command: subprocess.Popen[bytes] | None = None
        self._status: int | None = None
        self._terminal = _Terminal()
        self.interrupted = False

    def start(self, command: Sequence[str], directory: str, environment: Mapping[str, str], cgroup: str) -> None:
        """Start COMMAND in a directory, in the launcher's own process group.

        Raises:
            CannotRun: with 126 or 127, as a shell would exit.
        """
        try:
            self._command = subprocess.Popen(
                command,
                cwd=directory,
                env=environment,
                preexec_fn=lambda: _become_command(cgroup),  # noqa: PLW1509 - this process has one thread
                close_fds=False,
            )
        except FileNotFoundError as error:
            raise CannotRun(f"{command[0]}: command not found", ExitCode.NOT_FOUND) from error
        except OSError as error:
            raise CannotRun(f"{command[0]}: cannot be run: {error.strerror}", ExitCode.CANNOT_EXECUTE) from error

    def wait(self) -> int:
        """Wait for COMMAND while passing signals on; its status as a shell gives it. Raises DaemonDied."""
        while self._status is None:
            self._step(_FOREVER_S)
        self._terminal.take_back()
        return self._status

    def wait_for_rest(self, seconds: float | None) -> list[int]:
        """Wait for what is left of the tree, None for as long as it takes; what still runs after that."""
        deadline = time.monotonic() + (seconds if seconds is not None else _FOREVER_S * 24 * 3650)
        while (left := self.living()) and not self.interrupted:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                break
            # A grandchild's end sends no signal to us until it is ours: look again now and then.
            self._step(min(remaining, 0.1))
        self.interrupted = False
        return left

    def signal_all(self, number: signal.Signals) -> None:
        """Send a signal to everything that is left."""
        for pid in self.living():
            with contextlib.suppress(OSError):
                os.kill(pid, number)

    def living(self) -> list[int]:
        """The processes of the tree that still run."""
        self._reap()
        serving = {self._daemon.pid, *reading.descendants(self._daemon.pid)}
        return [pid for pid in reading.descendants(os.getpid()) if pid not in serving and not reading.is_zombie(pid)]

    def _step(self, seconds: float) -> None:
        received = signal.sigtimedwait(_WAITED, seconds)
        if received is not None:
            self._handle(received)
        self._reap()

    def _handle(self, received: signal.struct_siginfo) -> None:
        number = signal.Signals(received.si_signo)
        if number in _ENDING and self._status is not None:
            self.interrupted = True
        sent_to_us = received.si_code <= _SI_USER and received.si_pid != os.getpid()
        if self._command and self._status is None and number in FORWARDED and sent_to_us:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._command.pid, number)

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
                self._command_changed(status)

    def _command_changed(self, status: int) -> None:
        assert self._command is not None
        if os.WIFSTOPPED(status):
            self._stop_with_command()
            return
        code = os.waitstatus_to_exitcode(status)
        self._command.returncode = code
        self._status = code if code >= 0 else ExitCode.SIGNALLED - code

    def _stop_with_command(self) -> None:
        """COMMAND has stopped (Ctrl-Z, ``suspend``): so does the job that the outer shell knows, until ``fg``."""
        assert self._command is not None
        os.kill(os.getpid(), signal.SIGSTOP)
        group = os.getpgid(self._command.pid)
        self._terminal.give_to(group)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGCONT)


class _Terminal:
    """The controlling terminal's foreground group, which a job-controlling COMMAND takes and may not give back."""

    def __init__(self) -> None:
        self._fd: int | None = None
        with contextlib.suppress(OSError):
            self._fd = os.open("/dev/tty", os.O_RDWR | os.O_CLOEXEC)
        self._was_ours = self._foreground() == os.getpgrp()

    def _foreground(self) -> int:
        if self._fd is None:
            return -1
        try:
            return os.tcgetpgrp(self._fd)
        except OSError:
            return -1  # The terminal has hung up.

    def take_back(self) -> None:
        """After COMMAND: the shell that started us must find its job in the foreground."""
        if self._was_ours and self._foreground() != os.getpgrp():
            self._set(os.getpgrp())

    def give_to(self, group: int) -> None:
        """After ``fg``: a COMMAND with a group of its own gets the terminal that its stop gave away."""
        if group != os.getpgrp() and self._foreground() == os.getpgrp():
            self._set(group)

    def _set(self, group: int) -> None:
        if self._fd is not None:
            with contextlib.suppress(OSError):
                os.tcsetpgrp(self._fd, group)


def prepare() -> None:
    """Block what ``Tree`` waits for and become the reaper of all that is started from here on."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _WAITED)
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _become_command(cgroup: str) -> None:
    """Between fork and exec: COMMAND gets the signal mask that it would have had, and its session's cgroup."""
    if cgroup:
        with contextlib.suppress(OSError):
            fd = os.open(cgroup, os.O_WRONLY)
            os.write(fd, b"0")
            os.close(fd)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _WAITED)
