"""The controlling terminal's foreground group, which a job-controlling COMMAND takes and may not give back."""

import contextlib
import os
from collections.abc import Iterable


class Terminal:
    """Must be used with SIGTTOU blocked: tcsetpgrp(3) from the background is an offence otherwise."""

    def __init__(self) -> None:
        self._fd: int | None = None
        with contextlib.suppress(OSError):
            self._fd = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)

    def foreground(self) -> int:
        """The group in the foreground, -1 without a terminal or after it has hung up."""
        if self._fd is not None:
            with contextlib.suppress(OSError):
                return os.tcgetpgrp(self._fd)
        return -1

    def take_back(self, remains: Iterable[int]) -> None:
        """After COMMAND: what it left in the foreground makes room for us, so that Ctrl-C reaches us.

        A foreground group with anybody else in it is the shell that has put us into the background.
        """
        group = self.foreground()
        if group > 0 and (_is_empty(group) or group in set(remains)):
            self._set(os.getpgrp())

    def give_to(self, group: int) -> None:
        """After ``fg``: a COMMAND with a group of its own gets the terminal that its stop gave away."""
        if self.foreground() == os.getpgrp():
            self._set(group)

    def _set(self, group: int) -> None:
        assert self._fd is not None
        with contextlib.suppress(OSError):
            os.tcsetpgrp(self._fd, group)


def _is_empty(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False
