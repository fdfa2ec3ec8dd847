"""What changed between two states of a text, as people read it; pure. Used by the command line."""

import difflib

_MOST_LINES = 200
"""Lines of a difference that are shown."""


def difference(then: bytes, now: bytes) -> list[str] | None:
    r"""The lines of a unified diff, cut where it gets long; None where one of them is no UTF-8 text.

    Control characters are escaped, so that no file can write to a terminal; a carriage return shows as ``\r``.
    """
    try:
        before, after = _lines(then.decode()), _lines(now.decode())
    except UnicodeDecodeError:
        return None
    found = list(difflib.unified_diff(before, after, "then", "now", lineterm=""))
    left = len(found) - _MOST_LINES
    return [*found[:_MOST_LINES], f"… and {left} lines more"] if left > 0 else found


def _lines(text: str) -> list[str]:
    """Lines at newlines alone, escaped; one that has none at its end is told from one that has."""
    lines = [_escaped(line) for line in text.split("\n")]
    last = lines.pop()
    return [*lines, f"{last}\\ no newline at end"] if last else lines


def _escaped(line: str) -> str:
    return "".join(c if c.isprintable() or c == "\t" else ascii(c)[1:-1] for c in line)
