"""The open-file table: handle to descriptor, grant, and what the file looked like when it was left.

Must not decide anything: ``guard`` reads and sets the fields. All of it belongs to the event loop.
"""

from collections.abc import Hashable
from enum import Enum, auto
from typing import Generic, TypeVar

from guardfs.core.intent import Intent
from guardfs.core.model import HandleId, Stamp
from guardfs.procs.census import Caller

N = TypeVar("N", bound=Hashable)
"""The inode table's node: this table only keeps it."""


class Grant(Enum):
    """What the opener's verdict lets a handle do."""

    FREE = auto()
    """An untracked opener: nothing is asked."""
    PENDING = auto()
    """O_RDWR before its first write: the verdict is still to come."""
    GIVEN = auto()
    """Judged and allowed; each write still checks that the file is as the session left it."""
    UNCHECKED = auto()
    """Allowed at an exempt path without a record: there is nothing to check against."""
    APPEND = auto()
    """Allowed to append to bytes that the session does not know, and to nothing else."""
    NONE = auto()
    """A reader's, or withdrawn: the file changed under the handle."""


class Handle(Generic[N]):
    """One open file.

    ``left`` is the stamp after the session's last look or change through it. ``takes`` are the set-ID bits
    that the opener's first write takes from the file, where the daemon's own write would leave them.
    """

    __slots__ = (
        "appends",
        "caller",
        "counts_read",
        "direct",
        "fd",
        "grant",
        "id",
        "left",
        "node",
        "takes",
        "will_write",
        "wrote",
    )

    def __init__(self, fd: int, node: N, caller: Caller, grant: Grant) -> None:
        self.id = HandleId(0)
        self.fd = fd
        self.node = node
        self.caller = caller
        self.grant = grant
        self.appends = False
        self.direct = False
        self.will_write = Intent.WRITE
        self.counts_read = False
        self.left: Stamp | None = None
        self.wrote = False
        self.takes = 0


class Directory(Generic[N]):
    """One open directory: the names are listed at its beginning and stay, so that ids stay true."""

    __slots__ = ("fd", "names", "node")

    def __init__(self, fd: int, node: N) -> None:
        self.fd = fd
        self.node = node
        self.names: list[bytes] = []


class Handles(Generic[N]):
    """Both tables. A number is never used twice while the mount lives."""

    def __init__(self) -> None:
        self._last = 0
        self._files: dict[int, Handle[N]] = {}
        self._directories: dict[int, Directory[N]] = {}
        self._by_node: dict[N, list[Handle[N]]] = {}

    def __len__(self) -> int:
        return len(self._files) + len(self._directories)

    def add(self, handle: Handle[N]) -> Handle[N]:
        """Number a handle and keep it."""
        self._last += 1
        handle.id = HandleId(self._last)
        self._files[self._last] = handle
        self._by_node.setdefault(handle.node, []).append(handle)
        return handle

    def add_directory(self, directory: Directory[N]) -> HandleId:
        """Number a directory and keep it."""
        self._last += 1
        self._directories[self._last] = directory
        return HandleId(self._last)

    def file(self, number: int) -> Handle[N]:
        """The open file of a number that the kernel was given."""
        return self._files[number]

    def directory(self, number: int) -> Directory[N]:
        """The open directory of a number that the kernel was given."""
        return self._directories[number]

    def on(self, node: N) -> list[Handle[N]]:
        """The open files of a node."""
        return self._by_node.get(node, [])

    def remove(self, number: int) -> Handle[N]:
        """Take a file out of the table; the caller closes its descriptor."""
        handle = self._files.pop(number)
        same = self._by_node[handle.node]
        same.remove(handle)
        if not same:
            del self._by_node[handle.node]
        return handle

    def remove_directory(self, number: int) -> Directory[N]:
        """Take a directory out of the table; the caller closes its descriptor."""
        return self._directories.pop(number)
