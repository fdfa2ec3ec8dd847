"""Names on one line, and differences in words."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guardfs.core.model import FileId, Fingerprint, Stamp
from guardfs.core.wording import escape, stamp_difference, when


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        (b"plain.py", "plain.py"),
        (b"with space", "with space"),
        (b"new\nline", "new\\nline"),
        (b"bell\x07", "bell\\x07"),
        (b"\xff\xfe", "\\xff\\xfe"),
        (b"back\\slash", "back\\\\slash"),
        ("ä".encode(), "ä"),
        (b"\x1b[31m", "\\x1b[31m"),
        ("\x85".encode(), "\\xc2\\x85"),
    ],
)
def test_escape(name: bytes, shown: str) -> None:
    assert escape(name) == shown


@given(st.binary())
def test_escape_is_one_printable_line(name: bytes) -> None:
    assert escape(name).isprintable()


@given(st.binary(max_size=4), st.binary(max_size=4))
def test_escape_is_unambiguous(one: bytes, other: bytes) -> None:
    assert (escape(one) == escape(other)) == (one == other)


def test_when() -> None:
    assert when(0) == "1970-01-01T00:00:00.000000Z"


def test_difference() -> None:
    then = Fingerprint(Stamp(FileId(1, 2), 3, 0, 0), b"\x01" * 32)
    now = Fingerprint(Stamp(FileId(1, 9), 4, 1_000_000_000, 5), b"\x02" * 32)
    shown = stamp_difference(then, now)
    for part in ("size 3 -> 4", "mtime 1970-01-01T00:00:00", "inode 2 -> 9", "sha256 0101"):
        assert part in shown
    assert "ctime" in stamp_difference(then, Fingerprint(Stamp(FileId(1, 2), 3, 0, 5), b"\x01" * 32))
