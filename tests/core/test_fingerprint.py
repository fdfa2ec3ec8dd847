"""The comparison table, row by row, and the rule for racy timestamps."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from guardfs.core.fingerprint import TICK_NS, Difference, Match, by_bytes, by_stamp, is_racy
from guardfs.core.model import FileId, Fingerprint, How, Record, Stamp

FILE, OTHER = FileId(1, 10), FileId(1, 11)
OLD, NEW = 1_000_000_000, 5_000_000_000
TAKEN = OLD + 10 * TICK_NS
SAME, TOUCHED, REPLACED, MODIFIED = Difference
THEN = Stamp(FILE, 3, OLD, OLD)


def record(digest: bytes | None = b"a", *, taken: int = TAKEN, proved: bool = True) -> Record:
    return Record(Fingerprint(THEN, digest), taken, How.READ, b"f", proved)


ROWS = {
    "nothing": (THEN, b"a", (SAME, SAME, SAME)),
    "ctime only, same bytes": (Stamp(FILE, 3, OLD, NEW), b"a", (SAME, SAME, SAME)),
    "ctime only, other bytes": (Stamp(FILE, 3, OLD, NEW), b"b", (MODIFIED, MODIFIED, MODIFIED)),
    "touched": (Stamp(FILE, 3, NEW, NEW), b"a", (TOUCHED, SAME, SAME)),
    "mtime, other bytes": (Stamp(FILE, 3, NEW, NEW), b"b", (MODIFIED, MODIFIED, MODIFIED)),
    "replaced, same bytes": (Stamp(OTHER, 3, NEW, NEW), b"a", (REPLACED, REPLACED, SAME)),
    "replaced, mtime kept": (Stamp(OTHER, 3, OLD, NEW), b"a", (REPLACED, REPLACED, SAME)),
    "replaced, other bytes": (Stamp(OTHER, 3, NEW, NEW), b"b", (MODIFIED, MODIFIED, MODIFIED)),
    "grown beyond the limit": (Stamp(FILE, 3, NEW, NEW), None, (MODIFIED, MODIFIED, MODIFIED)),
}


@pytest.mark.parametrize("match", Match)
@pytest.mark.parametrize("row", ROWS)
def test_row(row: str, match: Match) -> None:
    stamp, digest, outcomes = ROWS[row]
    expected = outcomes[list(Match).index(match)]
    assert by_bytes(record(), Fingerprint(stamp, digest), match) is expected
    # What the stamps decide alone must not contradict what the bytes say.
    assert by_stamp(record(), stamp) in (None, expected)


def test_bytes_that_cannot_be_read_are_known_by_an_equal_stamp() -> None:
    assert by_bytes(record(taken=OLD), Fingerprint(THEN, None), Match.STRICT) is SAME
    assert by_bytes(record(proved=False), Fingerprint(THEN, None), Match.CONTENT) is MODIFIED


def test_size_decides_without_the_bytes() -> None:
    assert by_stamp(record(), Stamp(FILE, 4, OLD, OLD)) is MODIFIED


def test_equal_stamps_decide_unless_racy_or_unproved() -> None:
    assert by_stamp(record(), THEN) is SAME
    assert by_stamp(record(taken=OLD + TICK_NS), THEN) is None
    assert by_stamp(record(proved=False), THEN) is None


@pytest.mark.parametrize("other", [Stamp(FILE, 3, OLD, NEW), Stamp(FILE, 3, NEW, NEW), Stamp(OTHER, 3, OLD, OLD)])
def test_without_a_digest_every_difference_means_changed(other: Stamp) -> None:
    assert by_stamp(record(None), THEN) is SAME
    assert by_stamp(record(None), other) is MODIFIED
    assert by_stamp(record(None, proved=False), THEN) is MODIFIED


@given(ctime=st.integers(0, 2**62), taken=st.integers(0, 2**62))
def test_racy_means_that_the_tick_had_not_passed(ctime: int, taken: int) -> None:
    stamp = msgspec.structs.replace(THEN, ctime_ns=ctime)
    racy = is_racy(Record(Fingerprint(stamp, b"a"), taken, How.READ, b"f"))
    assert racy == (taken - ctime <= TICK_NS)
