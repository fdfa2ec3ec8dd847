"""Files of ignore patterns: ``.gitignore``, ``info/exclude``, ``core.excludesFile``; gitignore(5).

dulwich's reader differs from git's (a byte order mark, more than one carriage return, an escaped backslash before
a trailing space), so the lines are taken apart here. Pure.
"""

from functools import lru_cache

from guardfs.vcs.globs import Matcher, parse_pattern

_BOM = b"\xef\xbb\xbf"


@lru_cache(maxsize=1024)
def parse_ignores(text: bytes, ignore_case: bool) -> Matcher[bool]:
    """What a file says of paths below its directory: True to ignore, False for a pattern with ``!``."""
    rules = []
    for line in text.removeprefix(_BOM).split(b"\n"):
        # A C string ends at NUL, and a comment is one only in the first column.
        body = _trimmed(line.removesuffix(b"\r").partition(b"\0")[0])
        pattern = None if body.startswith(b"#") else parse_pattern(body.removeprefix(b"!"))
        if pattern is not None:
            rules.append((pattern, not body.startswith(b"!")))
    return Matcher(rules, ignore_case)


def _trimmed(line: bytes) -> bytes:
    """Without trailing spaces, unless the first of them is escaped: trim_trailing_spaces() in git's dir.c."""
    kept = line.rstrip(b" ")
    backslashes = len(kept) - len(kept.rstrip(b"\\"))
    return line[: len(kept) + 1] if backslashes % 2 and kept != line else kept


NOTHING_IGNORED = parse_ignores(b"!*", ignore_case=False)
"""In place of a file that cannot be read: what lies below it is not ignored, whatever is said further up."""
