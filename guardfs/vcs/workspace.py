"""The questions that guardfs has for git about one workspace: would it ignore this, and is this what it holds?

``load`` blocks and belongs in a worker thread; everything else is quick and belongs to one thread, the event
loop's. Used by ``guard``.
"""

import os
import threading

from guardfs.vcs.directory import Directory
from guardfs.vcs.index import SHA1_BYTES, new_hash
from guardfs.vcs.objects import PackIndexes, has_object
from guardfs.vcs.places import Places, Watch
from guardfs.vcs.repository import Repository, find_top

_ATTEMPTS = 3
_DIRECTORIES = 10_000
"""Directories that are remembered at most; after that they are read anew."""
_REPOSITORIES = 1_000
_CHUNK = 1 << 20


class _State:
    """All that is known at one time. ``load`` makes it; only the event loop adds directories to it."""

    def __init__(self, places: Places, tops: set[bytes], previous: dict[bytes, Repository]) -> None:
        """Blocks. ``tops``: repositories below the workspace that were asked about."""
        self._places = places
        self.wanted: dict[bytes, None] = {}
        self._base = Watch(places)
        top = find_top(self._base)
        found = (Repository(places, each, previous.get(each)) for each in tops | ({top} if top else set()))
        self.repositories = {each.top: each for each in found if each.is_there}
        self._own = self.repositories.get(top) if top else None
        if self._own:
            self._base.join(self._own.watch)
        self._root = self._descend(top or places.mountpoint)
        self._directories = {b"": self._root}

    def settle(self) -> bool:
        """Block until later changes must show, and tell whether there was none."""
        others = [each.watch for each in self.repositories.values() if each is not self._own]
        for watch in (self._base, *others):
            watch.settle()
        return all(watch.is_current() for watch in (self._base, *others))

    def is_current(self, path: bytes | None) -> bool:
        """Whether everything that answers for ``path`` depend on is as it was read; None: for any path."""
        if not self._base.is_current():
            return False
        if path is None:
            directories, repositories = self._all_directories(), set(self.repositories.values())
        else:
            directories = self._lineage(self.enter(path))
            repositories = {each.repository for each in directories if each.repository}
        return all(each.watch.is_current() for each in repositories if each is not self._own) and all(
            each.is_current() for each in directories
        )

    def enter(self, path: bytes) -> Directory:
        """The directory at a path relative to the workspace, read if it was not."""
        known, todo = path, []
        while known not in self._directories:
            todo.append(known)
            known = known.rpartition(b"/")[0]
        here = self._directories[known]
        if len(self._directories) + len(todo) > _DIRECTORIES:
            self._directories = {b"": self._root}
        for each in reversed(todo):
            here = Directory(self._places, os.path.join(self._places.mountpoint, each), here, self._owner)
            self._directories[each] = here
        return here

    def _owner(self, top: bytes) -> Repository | None:
        if top not in self.repositories and len(self.wanted) < _REPOSITORIES:
            self.wanted[top] = None
        return self.repositories.get(top)

    def _descend(self, top: bytes) -> Directory:
        """The workspace itself, below the directories above it whose rules apply."""
        here = Directory(self._places, top, None, self._owner)
        for name in self._places.mountpoint[len(top) :].split(b"/"):
            if name:
                here = Directory(self._places, os.path.join(here.path, name), here, self._owner)
        return here

    def _all_directories(self) -> list[Directory]:
        """Parents first, as they were read."""
        return [*self._lineage(self._root), *list(self._directories.values())[1:]]

    @staticmethod
    def _lineage(directory: Directory) -> list[Directory]:
        lineage = [directory]
        while lineage[-1].parent:
            lineage.append(lineage[-1].parent)
        return lineage[::-1]


class Vcs:
    """Knows nothing before the first ``load``: nothing is ignored, nothing is clean, nothing is fresh.

    Paths are relative to the workspace, without a slash at either end.
    """

    def __init__(self, root: str, mountpoint: str) -> None:
        """``root`` leads to the bare directory; ``mountpoint`` is its real path, and is never touched.

        Raises:
            OSError: ``root`` is no directory that can be opened.
        """
        self._places = Places(root, mountpoint)
        self._loading = threading.Lock()
        self._packs = PackIndexes(self._places)
        self._asking = threading.Lock()
        self._state: _State | None = None

    def close(self) -> None:
        """Give the descriptor of the workspace back; no ``load`` may be running or follow."""
        self._state = None
        self._places.close()

    def load(self) -> None:
        """Read what has changed, or everything the first time. Blocks, for a clock tick at least after a change.

        Whatever is damaged or cannot be read counts against being ignored or clean, and raises nothing.
        """
        with self._loading:
            state = self._read()
            for _ in range(_ATTEMPTS):
                if state.settle():
                    break
                state = self._read()
            self._state = state

    def _read(self) -> _State:
        old = self._state
        if old is None:
            return _State(self._places, set(), {})
        # list() of a dictionary is one step, whatever the event loop adds meanwhile.
        return _State(self._places, {*list(old.wanted), *old.repositories}, old.repositories)

    def is_fresh(self, path: bytes | None = None) -> bool:
        """Whether ``load`` would change no answer for ``path``; without one, for any path asked about so far.

        Stats only, but for directories not asked about before. A path in a repository that begins below the
        workspace is not fresh before that has been loaded.
        """
        return self._state is not None and self._state.is_current(None if path is None else _parent(path))

    def ignored(self, path: bytes, is_directory: bool) -> bool:
        """Whether git ignores a path: no tracked file, nor a directory that holds one, is ever ignored."""
        if self._state is None or not path:
            return False
        directory = self._state.enter(_parent(path))
        index = directory.repository.index if directory.repository else None
        inside = directory.inside + path.rpartition(b"/")[2]
        return index is not None and directory.ignores(inside, is_directory) and not index.tracks(inside)

    def index_blob(self, path: bytes) -> bytes | None:
        """Hex id of the blob that the index has for a file, if a clean file is that blob byte for byte.

        None where there is none, or anything makes that unsure: conflicts, ``add -N``, assume-unchanged,
        skip-worktree, links, filters, line ends, encodings, a split or damaged index.
        """
        if self._state is None or not path:
            return None
        directory = self._state.enter(_parent(path))
        index = directory.repository.index if directory.repository else None
        inside = directory.inside + path.rpartition(b"/")[2]
        blob = index.blob(inside) if index is not None else None
        return blob if blob is not None and directory.is_verbatim(inside) else None

    def objects_of(self, path: bytes) -> bytes | None:
        """The repository's common directory for a path, for ``has_object``; None where there is none."""
        if self._state is None or not path:
            return None
        repository = self._state.enter(_parent(path)).repository
        return repository.common if repository else None

    def has_object(self, common: bytes, oid: bytes) -> bool:
        """Whether the repository at ``common`` has an object, by its hex id. Blocks; from any thread."""
        with self._asking:
            return has_object(self._places, self._packs, common, oid)


def _parent(path: bytes) -> bytes:
    return path.rpartition(b"/")[0]


def blob_id(fd: int, size: int, digits: int = 2 * SHA1_BYTES) -> bytes | None:
    """Hex object id of a file's bytes; None if it has not exactly ``size`` of them. Blocks.

    ``digits`` is the length of the id to compare with, which tells SHA-256 from SHA-1.

    Raises:
        OSError: it cannot be read.
    """
    digest = new_hash(digits // 2)
    digest.update(b"blob %d\0" % size)
    at = 0
    while chunk := os.pread(fd, _CHUNK, at):
        digest.update(chunk)
        at += len(chunk)
        if at > size:
            break
    return digest.hexdigest().encode() if at == size else None
