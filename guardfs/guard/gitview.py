"""What git says of paths, as of now: asked only where it may change a verdict.

Loading what has changed happens in a worker thread, and the answers themselves are quick. Whatever git is unsure of
counts against being ignored or clean. Used by the judge.
"""

from collections.abc import Iterable

import trio

from guardfs import backing
from guardfs.vcs import Vcs, blob_id

_ATTEMPTS = 3
"""How often what keeps changing is read again before it counts as unknown."""


class GitView:
    """Invariant: an answer is given only while everything that it depends on is as it was read."""

    def __init__(self, vcs: Vcs) -> None:
        self._vcs = vcs
        self._loading = trio.Lock()

    async def refresh(self, paths: Iterable[bytes] = ()) -> bool:
        """Read again what has changed; whether the answers for ``paths`` are good now. May wait for a thread."""
        wanted: list[bytes | None] = [*paths] or [None]
        for _ in range(_ATTEMPTS):
            if all(map(self._vcs.is_fresh, wanted)):
                return True
            async with self._loading:
                if not all(map(self._vcs.is_fresh, wanted)):
                    await trio.to_thread.run_sync(self._vcs.load)
        return all(map(self._vcs.is_fresh, wanted))

    def ignores(self, path: bytes) -> bool:
        """Whether git ignores the file at a path; after ``refresh``."""
        return self._vcs.ignored(path, is_directory=False)

    async def is_clean(self, path: bytes, fd: int) -> bool:
        """Whether the bytes behind a descriptor are what the index holds for a path; after ``refresh``.

        ``fd`` may be one that cannot be read from; a file that may not be looked at is not clean.
        """
        blob, objects = self._vcs.index_blob(path), self._vcs.objects_of(path)
        if blob is None or objects is None:
            return False
        try:
            look = backing.open_to_judge(fd)
        except PermissionError:
            return False
        try:
            return await _blob_of(look, len(blob)) == blob and await self._holds(objects, blob)
        except OSError:
            return False  # Unreadable: nobody could say that it is the same.
        finally:
            backing.close(look)

    async def _holds(self, objects: bytes, blob: bytes) -> bool:
        """Whether the repository has the object too: an index may name one that was never stored."""
        return await trio.to_thread.run_sync(self._vcs.has_object, objects, blob)


async def _blob_of(fd: int, digits: int) -> bytes | None:
    size = backing.size(fd)
    if size <= backing.INLINE_HASH_LIMIT:
        return blob_id(fd, size, digits)
    return await trio.to_thread.run_sync(blob_id, fd, size, digits)
