"""Which of a session's records are too fresh to count, and by what a write is judged meanwhile.

Seeing takes longer than a tool's own re-read: when a read finds other bytes than before, the older record goes on
counting until the new state was first seen long enough ago. Plain data of the event loop; must not know files.
"""

from collections import OrderedDict

import msgspec

from guardfs.core.model import FileId, Fingerprint, Record

_SIGHTS = 4096
"""States whose first sight is remembered; a forgotten one costs a retry when it comes back."""

State = tuple[FileId, object]


class Unsettled(msgspec.Struct, frozen=True, gc=False):
    """A newer record waits: since when its state is known, in s of a clock that only rises, and what counts meanwhile.

    ``older`` is None where the session knew nothing before.
    """

    since_s: float
    older: Record | None


class Settling:
    """Invariant: what is in ``_waiting`` has a newer record in the session's table."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[FileId, Unsettled] = OrderedDict()
        self._sights: OrderedDict[State, float] = OrderedDict()

    def begin(self, seen: Fingerprint, older: Record | None, now_s: float, settle_s: float) -> None:
        """A state has been read that is other than what ``older`` knew; it counts from its first sight on."""
        file = seen.stamp.file
        since = self._first_sight(seen, now_s)
        self._waiting.pop(file, None)
        self._waiting[file] = Unsettled(since, older)
        while self._waiting:
            first = next(iter(self._waiting))
            if now_s - self._waiting[first].since_s < settle_s:
                break
            del self._waiting[first]

    def note(self, seen: Fingerprint, now_s: float) -> None:
        """A state has been read that needs no settling: its first sight is kept for when it comes back."""
        self._first_sight(seen, now_s)

    def get(self, file: FileId, now_s: float, settle_s: float) -> Unsettled | None:
        """What counts instead of a file's record, while that is too fresh."""
        unsettled = self._waiting.get(file)
        if unsettled is not None and now_s - unsettled.since_s >= settle_s:
            del self._waiting[file]
            return None
        return unsettled

    def carry(self, file: FileId, other: FileId) -> None:
        """The same bytes stand in another file now: they settle as they would have."""
        unsettled = self._waiting.pop(file, None)
        if unsettled is not None:
            self._waiting[other] = unsettled

    def settle(self, file: FileId) -> None:
        """The session has written the bytes itself, or they are no longer known at all."""
        self._waiting.pop(file, None)

    def settle_all(self) -> None:
        """A new turn has begun: whatever was read before it has been seen."""
        self._waiting.clear()

    def _first_sight(self, seen: Fingerprint, now_s: float) -> float:
        state = (seen.stamp.file, seen.digest or seen.stamp)
        since = self._sights.setdefault(state, now_s)
        self._sights.move_to_end(state)
        if len(self._sights) > _SIGHTS:
            self._sights.popitem(last=False)
        return since
