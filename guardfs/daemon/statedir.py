"""The state directory of one workspace: made, locked for one daemon, and the store in it opened."""

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from guardfs.control.protocol import Plan
from guardfs.errors import ExitCode, GuardfsError, StoreError
from guardfs.state.store import Store
from guardfs.state.store import open_store as open_at


def state_dir(plan: Plan) -> Path:
    """Make the directory where it is missing. Raises GuardfsError."""
    try:
        plan.state.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise GuardfsError(
            f"{plan.state}: cannot be made ({error.strerror}); set GUARDFS_STATE to a writable directory",
            ExitCode.CANNOT_CREATE,
        ) from error
    return plan.state


@contextmanager
def only_daemon(state: Path, plan: Plan) -> Iterator[None]:
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


def open_store(state: Path, damaged: Callable[[Path, str], None]) -> Store:
    """Open the store; ``damaged`` is told of one that was put aside. Raises GuardfsError."""
    try:
        return open_at(state / "store", damaged)
    except StoreError as error:
        raise GuardfsError(f"{error}; set GUARDFS_STATE to a writable directory", ExitCode.CANNOT_CREATE) from error
