"""When two states of a file are the same.

Equality under a match mode is kept apart from the rule that distrusts fresh timestamps: the first is the
user's choice, the second a property of clocks. Must not know how a fingerprint is taken.
"""

from enum import StrEnum

from guardfs.core.model import Fingerprint, Record, Stamp

TICK_NS = 10_000_000
"""The coarsest clock that stamps ctime, in ns: one jiffy at CONFIG_HZ=100."""


class Match(StrEnum):
    """How much of a fingerprint must be unchanged for a record to be good."""

    STRICT = "strict"
    IDENTITY = "identity"
    CONTENT = "content"


class Difference(StrEnum):
    """What a comparison found; SAME is the good one."""

    SAME = "same"
    TOUCHED = "touched"
    REPLACED = "replaced"
    MODIFIED = "modified"


def is_racy(record: Record) -> bool:
    """Whether the file may have changed within the clock tick in which the record was taken.

    A ctime later than the taking (a clock set back) is racy as well.
    """
    return record.fingerprint.stamp.ctime_ns >= record.taken_ns - TICK_NS


def by_stamp(record: Record, now: Stamp) -> Difference | None:
    """Compare without the bytes; None when only the bytes can tell.

    ctime is the one time that nobody can set, so equal stamps prove sameness, unless the record is racy or
    comes from before a restart. A record without a digest is known by its stamp alone.
    """
    then = record.fingerprint.stamp
    if then.size != now.size:
        return Difference.MODIFIED
    if record.fingerprint.digest is None:
        return Difference.SAME if then == now and record.proved else Difference.MODIFIED
    if then == now and record.proved and not is_racy(record):
        return Difference.SAME
    return None


def by_bytes(record: Record, now: Fingerprint, match: Match) -> Difference:
    """Compare with the bytes, under a match mode.

    No digest now means that they could not be read: the file outgrew the limit, moved all the time, or its mode keeps
    even its owner out. Then equal stamps have to do.
    """
    then = record.fingerprint
    if now.digest is None:
        return Difference.SAME if then.stamp == now.stamp and record.proved else Difference.MODIFIED
    if then.digest != now.digest:
        return Difference.MODIFIED
    if then.stamp.file != now.stamp.file:
        return Difference.SAME if match is Match.CONTENT else Difference.REPLACED
    if then.stamp.mtime_ns != now.stamp.mtime_ns and match is Match.STRICT:
        return Difference.TOUCHED
    return Difference.SAME
