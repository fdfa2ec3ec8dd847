"""Tells a signal for the whole process group from one for the launcher alone.

siginfo does not say which it was, and the difference matters: a shell's ``kill %1`` and a hangup reach COMMAND
by themselves, ``kill LAUNCHER`` has to be passed on, and COMMAND must get each exactly once.
"""

import contextlib
import os
import signal
import socket

_ANSWER_S = 0.1
"""A witness that somebody has stopped does not answer: then the signal counts as ours alone."""
_ALL = signal.valid_signals()


class Witness:
    """A child in our process group that does nothing but receive what the group is sent.

    The kernel signals a group's youngest member first and holds the list meanwhile, so whatever has reached
    us by way of the group has reached the witness.
    """

    def __init__(self) -> None:
        self._line, other = socket.socketpair()
        self._line.settimeout(_ANSWER_S)
        self._had: set[int] = set()
        self.pid = os.fork()
        if self.pid == 0:
            _testify(other.detach())
        other.close()

    def had(self, number: int) -> bool:
        """Whether the group has been sent this signal since it was last asked for."""
        try:
            self._line.send(b"?")
            self._had |= set(self._line.recv(len(_ALL) + 1))
        except OSError:
            pass  # Stopped or killed.
        had = number in self._had
        self._had.discard(number)
        return had

    def dismiss(self) -> None:
        """Let it go."""
        self._line.close()
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)


def _testify(line: int) -> None:
    """Answer each question with the signals that have come in since; end with the launcher."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _ALL)
    os.chdir("/")
    os.closerange(0, line)
    os.closerange(line + 1, os.sysconf("SC_OPEN_MAX"))
    try:
        while os.read(line, 1):
            os.write(line, bytes([0, *_pending()]))
    finally:
        os._exit(0)


def _pending() -> list[int]:
    taken = []
    while (received := signal.sigtimedwait(_ALL, 0)) is not None:
        taken.append(received.si_signo)
    return taken
