"""The bytes of small text files that sessions have been given, kept so that ``guardfs why`` can show what changed.

Plain data of the event loop, written through to the store. Must not look at files or decide. Used by the judge.
"""

from collections import OrderedDict

from guardfs.state.store import Store

_MOST_BYTES = 64 << 20
_MOST_FILES = 10_000


class Contents:
    """Invariant: ``_sizes`` has what the store keeps or will keep, in bytes by digest, oldest first."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._sizes = OrderedDict(store.content_sizes())
        self._total = sum(self._sizes.values())

    def __len__(self) -> int:
        return len(self._sizes)

    def has(self, digest: bytes) -> bool:
        """Whether bytes of this SHA-256 are kept; they count as the newest from now on."""
        if digest not in self._sizes:
            return False
        self._sizes.move_to_end(digest)
        return True

    def keep(self, digest: bytes, data: bytes) -> None:
        """Keep the bytes of a text file; what holds a NUL is none."""
        if self.has(digest) or b"\0" in data:
            return
        self._sizes[digest] = len(data)
        self._total += len(data)
        self._store.put("contents", digest, data)
        while self._total > _MOST_BYTES or len(self._sizes) > _MOST_FILES:
            oldest, size = self._sizes.popitem(last=False)
            self._total -= size
            self._store.delete("contents", oldest)
