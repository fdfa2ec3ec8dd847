"""What is shown of a change, as a table."""

import pytest

from guardfs.core.diffing import difference

HEAD = ["--- then", "+++ now"]


@pytest.mark.parametrize(
    ("then", "now", "lines"),
    [
        (b"a\nb\n", b"a\nc\n", [*HEAD, "@@ -1,2 +1,2 @@", " a", "-b", "+c"]),
        (b"", b"a\n", [*HEAD, "@@ -0,0 +1 @@", "+a"]),
        (b"a\n", b"a", [*HEAD, "@@ -1 +1 @@", "-a", "+a\\ no newline at end"]),
        (b"a\r\n", b"a\n", [*HEAD, "@@ -1 +1 @@", "-a\\r", "+a"]),
        (b"a\n", b"\x1b[2J\n", [*HEAD, "@@ -1 +1 @@", "-a", "+\\x1b[2J"]),
        (b"a\n", "\u00e4\u2028\n".encode(), [*HEAD, "@@ -1 +1 @@", "-a", "+\u00e4\\u2028"]),
        (b"a\n", b"\xff\n", None),
        (b"a\n", b"a\n", []),
    ],
)
def test_difference(then: bytes, now: bytes, lines: list[str] | None) -> None:
    assert difference(then, now) == lines


def test_a_long_one_is_cut() -> None:
    lines = difference(b"", b"x\n" * 1000)
    assert lines is not None
    assert len(lines) == 201
    assert lines[-1] == "\u2026 and 803 lines more"
