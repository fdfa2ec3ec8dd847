"""Exceptions by audience, and the exit codes of the command.

A user's mistake carries one line that names the thing, the reason and the way out. Everything else is a bug
and is logged with its frames.
"""

import contextlib
import sys
import traceback
from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of guardfs's own failures; ``guardfs run`` otherwise exits with COMMAND's status."""

    OK = 0
    USAGE = 64
    """A bad option, argument or combination of them."""
    NO_INPUT = 66
    """The workspace or path does not exist, is of the wrong kind, or is not guarded."""
    UNAVAILABLE = 69
    """FUSE cannot be used here."""
    SOFTWARE = 70
    """The daemon died or answered nonsense: a bug, or somebody killed it."""
    CANNOT_CREATE = 73
    """The state directory cannot be made or written."""
    BUSY = 75
    """Already mounted, or still in use."""
    NO_PERMISSION = 77
    """Not permitted to do that."""
    CONFIG = 78
    """A setting is wrong, or state and workspace overlap."""
    CANNOT_EXECUTE = 126
    """COMMAND was found and cannot be executed."""
    NOT_FOUND = 127
    """COMMAND was not found."""
    SIGNALLED = 128
    """Added to the number of the signal that ended COMMAND."""


class GuardfsError(Exception):
    """A failure that a person can act on: the message is the whole line that they are shown."""

    def __init__(self, message: str, code: ExitCode) -> None:
        super().__init__(message)
        self.code = code


class StoreError(Exception):
    """The store cannot be opened, read or written; memory goes on deciding."""


def say(message: str) -> None:
    """One line to the person at the terminal, whatever names are in it; the terminal may be gone."""
    if sys.stderr is None:
        return  # Closed by our caller; print() would take stdout instead, which is COMMAND's.
    line = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in message)
    with contextlib.suppress(OSError):
        sys.stderr.write(f"guardfs: {line}\n")


def where(error: BaseException) -> dict[str, str]:
    """The fields of a log line that tell an exception: what it is, and the frames from outermost to innermost.

    No source file is opened for it: the source may lie on the mount itself.
    """
    frames = [
        f"{frame.f_code.co_filename.rpartition('/')[2]}:{line} {frame.f_code.co_name}"
        for frame, line in traceback.walk_tb(error.__traceback__)
    ]
    return {"error": f"{type(error).__name__}: {error}", "traceback": " > ".join(frames)}
