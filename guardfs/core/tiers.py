"""Which part of the rule applies at a path, as far as its name decides. Paths are relative to the mount, as bytes.

A pattern is what .gitignore would take, without ``!``: ``name/`` a directory of that name anywhere, ``*.ext`` a name
anywhere, and one with a slash elsewhere a path from the workspace's top. ``*`` and ``?`` stop at a slash, ``**`` does
not. Must not know git: what it ignores is asked elsewhere.
"""

import re
from collections.abc import Iterable

from guardfs.core.policy import Tier

POLICY_FILE = b".guardfs.toml"
"""At the workspace's root: what a session may do, so no session may change it."""

_WILD = re.compile(r"\*\*|\*|\?|\[!?\]?[^\]/]*\]")
_EVERYTHING = {"*", "**", "*/", "**/", "/*", "/**"}


class Patterns:
    """Some patterns, ready to be asked. Plain names of directories, which are most, cost a look into a set each."""

    def __init__(self, patterns: Iterable[str]) -> None:
        plain: list[str] = []
        others: list[str] = []
        for pattern in patterns:
            body = pattern.removesuffix("/")
            is_plain = body != pattern and "/" not in body and not _WILD.search(body)
            (plain if is_plain else others).append(pattern)
        self._directories = frozenset(_encoded(pattern.removesuffix("/")) for pattern in plain)
        expressions = b"|".join(map(_expression, others))
        self._others = re.compile(expressions, re.DOTALL) if others else None

    def hold(self, path: bytes) -> bool:
        """Whether a path is meant by one of them, or lies in a directory that is."""
        if self._directories and not self._directories.isdisjoint(path.split(b"/")[:-1]):
            return True
        return self._others is not None and self._others.fullmatch(path) is not None


def tier_of(path: bytes, exempt: Patterns) -> Tier:
    """The tier of a path; GUARDED may turn out to be DERIVED where git ignores the path."""
    if path == POLICY_FILE:
        return Tier.POLICY
    return Tier.EXEMPT if exempt.hold(path) else Tier.GUARDED


def fault_of(pattern: str) -> str | None:
    """What is wrong with a pattern, in words that follow its name; None for a good one."""
    names = pattern.strip("/").split("/")
    if not pattern.strip("/"):
        return "names nothing; give a name, or a path from the workspace's top"
    if "\0" in pattern or "\n" in pattern:
        return "holds a character that no pattern can; leave it out"
    if pattern.startswith("!"):
        return "cannot be taken back with '!'; name what is meant instead"
    if any(name in {"", ".", ".."} for name in names):
        return "has an empty name, '.' or '..' in it; write the path from the workspace's top"
    return None


def means_everything(pattern: str) -> bool:
    """Whether a pattern leaves nothing out."""
    return pattern in _EVERYTHING


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _expression(pattern: str) -> bytes:
    """The regular expression of one pattern, for a whole path."""
    body = pattern.strip("/")
    is_path = "/" in pattern.removesuffix("/")
    below = b"/.*" if pattern.endswith("/") else b"(?:/.*)?"
    return (b"" if is_path else b"(?:.*/)?") + _glob(body) + below


def _glob(text: str) -> bytes:
    parts, at = [], 0
    for found in _WILD.finditer(text):
        parts += [re.escape(_encoded(text[at : found.start()])), _wild(found.group())]
        at = found.end()
    return b"".join([*parts, re.escape(_encoded(text[at:]))])


def _wild(token: str) -> bytes:
    if token.startswith("["):
        negated = token.startswith("[!")
        inside = token[2 if negated else 1 : -1].replace("\\", "\\\\").replace("^", "\\^").replace("[", "\\[")
        return b"[" + (b"^/" if negated else b"") + _encoded(inside.replace("]", "\\]")) + b"]"
    return {"**": b".*", "*": b"[^/]*", "?": b"[^/]"}[token]
