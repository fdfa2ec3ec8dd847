"""The same operation on a bare directory and on the mount, in a fresh directory and a child process each."""

import errno
import os
import pickle
import signal
import stat
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ParamSpec

from tests.helpers.mounted import Mount
from tests.helpers.shell import DEADLINE_S

P = ParamSpec("P")

Operation = Callable[[], Any]
OWNER, MATE, STRANGER = 4001, 4002, 4003
"""Three uids with gids of the same numbers; nobody on the machine needs to know them."""
SHARED = 4100
"""A group that children join where a test says so."""
Who = int | tuple[int, ...]
"""A uid, and the groups beside the one of its number."""


class Failed(AssertionError):
    """What a child raised that is no OSError."""


def error_name(error: OSError) -> str:
    assert error.errno is not None
    return errno.errorcode[error.errno]


def tried(function: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> Any:
    """A step's value, or the name of its errno."""
    try:
        return function(*args, **kwargs)
    except OSError as error:
        return error_name(error)


def forked(operation: Operation, prepare: Operation = lambda: None) -> Any:
    """Run an operation in a child and hand over its value, or its errno's name."""
    return Child(operation, prepare).result()


class Child:
    """An operation under way in a process of its own."""

    def __init__(self, operation: Operation, prepare: Operation = lambda: None) -> None:
        self._out, child_out = os.pipe()
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid == 0:
            os._exit(_serve(child_out, operation, prepare))
        os.close(child_out)

    def result(self) -> Any:
        with open(self._out, "rb") as pipe:
            data = pipe.read()
        os.waitpid(self.pid, 0)
        assert data, "the child died"
        kind, value = pickle.loads(data)
        if kind == "failed":
            raise Failed(value)
        return value


def _serve(out: int, operation: Operation, prepare: Operation) -> int:
    signal.alarm(DEADLINE_S)  # What waits for ever fails.
    try:
        prepare()
        answer = ("value", operation())
    except OSError as error:
        answer = ("value", error_name(error))
    except BaseException:  # noqa: BLE001 - it fails in the parent
        answer = ("failed", traceback.format_exc())
    with open(out, "wb") as pipe:
        pickle.dump(answer, pipe)
    return 0


def become(uid: int, groups: Sequence[int]) -> None:
    """Drop root for good."""
    os.setgroups(groups)
    os.setgid(uid)
    os.setuid(uid)


def as_user(who: Who, function: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> Any:
    """A call's value, or its errno's name, under another uid."""
    uid, *groups = (who,) if isinstance(who, int) else who
    return forked(lambda: function(*args, **kwargs), lambda: become(uid, groups))


def write(path: str | bytes, data: bytes = b"one\ntwo\n", mode: int | None = None, owner: int | None = None) -> int:
    """Make a file with content, and with a mode and an owner where they matter."""
    with open(path, "wb") as file:
        file.write(data)
    if owner is not None:
        os.chown(path, owner, owner)
    if mode is not None:
        os.chmod(path, mode)
    return len(data)


def opened(path: str, flags: int, mode: int = 0o777) -> None:
    """Open and close."""
    os.close(os.open(path, flags, mode))


def read(path: str | bytes) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def looks(path: str | bytes | int) -> tuple[str, int, int, int]:
    """Kind and mode, owner and group, links."""
    st = os.stat(path) if isinstance(path, int) else os.lstat(path)
    return stat.filemode(st.st_mode), st.st_uid, st.st_gid, st.st_nlink


class Places:
    """A mount and a bare directory on one file system."""

    def __init__(self, mount: Mount, bare: Path) -> None:
        self.mount = mount
        self.bare = bare
        self._made = 0

    def fresh(self) -> tuple[Path, Path]:
        """A new directory in both."""
        self._made += 1
        both = self.bare / f"d{self._made}", self.mount.point / f"d{self._made}"
        for place in both:
            place.mkdir()
            place.chmod(0o755)
        return both

    def compare(self, operation: Operation) -> Any:
        """Assert the same value or errno in both places; give it."""
        bare, mounted = (_run_in(place, operation) for place in self.fresh())
        assert mounted == bare, "\n".join(differences(bare, mounted))
        return bare

    def on_bare(self, operation: Operation) -> Any:
        """One half of ``compare``."""
        return _run_in(self.fresh()[0], operation)

    def on_mount(self, operation: Operation) -> Any:
        """The other half of ``compare``."""
        return _run_in(self.fresh()[1], operation)


def differences(bare: Any, mounted: Any, at: str = "") -> list[str]:
    """Where two nested values part, one line each."""
    alike = type(bare) is type(mounted) and isinstance(bare, list | tuple) and len(bare) == len(mounted)
    if alike and (not at or any(isinstance(part, list | tuple) for part in bare)):
        pairs = enumerate(zip(bare, mounted, strict=True))
        return [line for index, (a, b) in pairs for line in differences(a, b, f"{at}[{index}]")]
    return [] if bare == mounted else [f"{at}: {bare!r:.300} on the bare directory, {mounted!r:.300} on the mount"]


def _run_in(place: Path, operation: Operation) -> Any:
    def enter() -> None:
        os.umask(0o022)
        os.chdir(place)

    return forked(operation, enter)
