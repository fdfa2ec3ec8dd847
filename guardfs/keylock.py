"""A lock per key that knows its owner and vanishes when nobody holds or waits for it.

Two requests for one file take turns over the stretches of a transaction that await (hashing a large file).
Used by ``guard``.
"""

from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

import trio

K = TypeVar("K", bound=Hashable)


class _Entry:
    __slots__ = ("lock", "users")

    def __init__(self) -> None:
        self.lock = trio.Lock()
        self.users = 0


class KeyLock(Generic[K]):
    """Invariant: an entry exists exactly while a task holds or awaits its key."""

    def __init__(self) -> None:
        self._entries: dict[K, _Entry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    @asynccontextmanager
    async def holding(self, key: K) -> AsyncIterator[None]:
        """Hold ``key``; without a contender this passes no checkpoint.

        Raises:
            RuntimeError: this task holds the key already.
        """
        entry = self._entries.setdefault(key, _Entry())
        entry.users += 1
        try:
            try:
                entry.lock.acquire_nowait()
            except trio.WouldBlock:
                await entry.lock.acquire()
            try:
                yield
            finally:
                entry.lock.release()
        finally:
            entry.users -= 1
            if not entry.users:
                del self._entries[key]

    def check_held(self, key: K) -> None:
        """Assert, for a function whose name ends in ``_locked``, that this task holds ``key``.

        Raises:
            RuntimeError: it does not.
        """
        entry = self._entries.get(key)
        if entry is None or entry.lock.statistics().owner is not trio.lowlevel.current_task():
            raise RuntimeError(f"lock of {key!r} is not held by this task")
