"""Looking at files without ever entering the daemon's own mount.

Paths here are absolute, as the user spells them; what lies at or below the mountpoint is looked up below a
descriptor of the bare directory instead. Knows nothing of git. Used by the rest of ``vcs``.
"""

import contextlib
import errno
import os
import stat
import time

from guardfs.core.fingerprint import TICK_NS

Signature = tuple[int, ...]

_DIRECTORY_FIELDS = 2

_KIND = 0o170000
"""The bits of a mode that say what a file is: inode(7)."""

_LINKS = 40
"""Symbolic links in one path, as the kernel counts them: path_resolution(7)."""


def signature(found: os.stat_result | None) -> Signature | None:
    """What differs when a name leads to other bytes; of a directory only which one it is. None: nothing there."""
    if found is None:
        return None
    kind = found.st_mode & _KIND
    if kind == stat.S_IFDIR:
        return (found.st_dev, found.st_ino)
    return (found.st_mtime_ns, found.st_size, found.st_ino, found.st_ctime_ns, kind)


def is_settled(found: os.stat_result, now_ns: int) -> bool:
    """Whether a later change must show in the times: none was made in the clock tick that ``now_ns`` is in."""
    return not 0 <= now_ns - max(found.st_mtime_ns, found.st_ctime_ns) <= TICK_NS


class Places:
    """Holds a descriptor of the bare directory until ``close``."""

    def __init__(self, root: str, mountpoint: str) -> None:
        # The slash follows /proc/self/fd/N, which is a link; the dot keeps it where the root is "/".
        self._fd = os.open(os.path.join(root, "."), os.O_PATH | os.O_DIRECTORY)
        self.mountpoint = os.fsencode(os.path.normpath(mountpoint))
        self._below = self.mountpoint.rstrip(b"/") + b"/"

    def close(self) -> None:
        """Give the descriptor back; nothing can be looked up after that."""
        os.close(self._fd)

    def covers(self, path: bytes) -> bool:
        """Whether ``path`` is the mountpoint or lies below it."""
        return path == self.mountpoint or path.startswith(self._below)

    def _bare(self, path: bytes) -> tuple[bytes, int | None]:
        if path.startswith(self._below):
            return path[len(self._below) :] or b".", self._fd
        return (b".", self._fd) if path == self.mountpoint else (path, None)

    def lstat(self, path: bytes) -> os.stat_result | None:
        """Attributes of a path whose parents are no links; None if there is nothing to be had."""
        name, base = self._bare(path)
        try:
            return os.lstat(name, dir_fd=base)
        except (OSError, ValueError):
            return None

    def readlink(self, path: bytes) -> bytes:
        """Target of a link whose parents are no links.

        Raises:
            OSError: it cannot be read.
        """
        name, base = self._bare(path)
        return os.readlink(name, dir_fd=base)

    def names(self, path: bytes) -> list[bytes]:
        """The names in a directory whose path holds no links; none where it cannot be listed."""
        name, base = self._bare(path)
        try:
            fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=base)
        except OSError:
            return []
        try:
            return [os.fsencode(each) for each in os.listdir(fd)]
        finally:
            os.close(fd)

    def read(self, path: bytes, limit: int) -> tuple[bytes, os.stat_result]:
        """Bytes and attributes of a file whose path holds no links; what is no regular file counts as empty.

        Raises:
            OSError: it cannot be read, or has more than ``limit`` bytes (EFBIG).
        """
        name, base = self._bare(path)
        # O_NONBLOCK: a FIFO must not hold us.
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY, dir_fd=base)
        with open(fd, "rb", buffering=0) as file:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode):
                return b"", found
            data = file.read(limit + 1) if found.st_size <= limit else None
            if data is None or len(data) > limit:
                raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
            return data, found


class Watch:
    """Everything that was looked at on the way to some answer, parents before what they hold.

    Invariant: ``is_current`` touches a name only after everything above it proved to be as it was, so that no
    directory that has meanwhile become a link leads it into the mount.
    """

    def __init__(self, places: Places) -> None:
        self.places = places
        self._seen: dict[bytes, Signature | None] = {}
        self._youngest_ns = 0

    def is_current(self) -> bool:
        """Whether all of it is still as it was: stats only."""
        lstat = self.places.lstat
        return all(signature(lstat(path)) == seen for path, seen in self._seen.items())

    def join(self, other: "Watch") -> None:
        """Watch what ``other`` does as well."""
        self._seen |= other._seen
        self._youngest_ns = max(self._youngest_ns, other._youngest_ns)

    def forget(self, path: bytes) -> None:
        """Watch a place no longer."""
        self._seen.pop(path, None)

    def settle(self) -> None:
        """Block until any later change must show in the times: at most one clock tick."""
        wait = self._youngest_ns + TICK_NS - time.time_ns()
        if 0 <= wait <= TICK_NS:
            time.sleep((wait + 1) / 1e9)

    def look(self, path: bytes) -> bytes | None:
        """Follow ``path`` through all links to where it leads; None if there is nothing."""
        here, todo = self._start(path)
        links = 0
        while todo:
            name = todo.pop()
            if name == b"..":
                here = os.path.dirname(here)
                continue
            there = os.path.join(here, name)
            found = None if there == self.places.mountpoint else self._note(there)
            if found is not None and stat.S_ISLNK(found.st_mode):
                links += 1
                target = self._target(there)
                if target is None or links > _LINKS:
                    return None
                here, more = self._start(os.path.join(here, target))
                todo += more
            elif found is None and there != self.places.mountpoint:
                return None
            else:
                here = there
        return here

    def read(self, path: bytes, limit: int) -> bytes | None:
        """Bytes of the file that ``path`` leads to; None if there is none.

        Raises:
            OSError: there is something, and it cannot be read or has more than ``limit`` bytes.
        """
        place = self.look(path)
        if place is None:
            return None
        data, found = self.places.read(place, limit)
        self._remember(place, found)
        return data

    def is_directory(self, path: bytes) -> bool:
        """Whether a place that was looked at is a directory."""
        return path == self.places.mountpoint or len(self._seen.get(path) or ()) == _DIRECTORY_FIELDS

    def seen(self, path: bytes) -> Signature | None:
        """The signature of a place as it was looked at."""
        return self._seen.get(path)

    def _start(self, path: bytes) -> tuple[bytes, list[bytes]]:
        """Where to begin, and the names to follow from there, last first.

        A path into the mountpoint begins there: what its parents are called by now does not matter.
        """
        here = self.places.mountpoint if self.places.covers(path) else b"/"
        names = path[len(here) :].split(b"/")
        return here, [name for name in reversed(names) if name not in {b"", b"."}]

    def _target(self, link: bytes) -> bytes | None:
        with contextlib.suppress(OSError):
            return self.places.readlink(link)
        return None

    def _note(self, path: bytes) -> os.stat_result | None:
        found = self.places.lstat(path)
        self._remember(path, found)
        return found

    def _remember(self, path: bytes, found: os.stat_result | None) -> None:
        self._seen[path] = signature(found)
        if found is not None and not stat.S_ISDIR(found.st_mode):
            self._youngest_ns = max(self._youngest_ns, found.st_mtime_ns, found.st_ctime_ns)
