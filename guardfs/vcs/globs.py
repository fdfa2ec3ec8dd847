"""Git's patterns as regular expressions: many of them are asked at once, and no pattern can make a match slow.

The grammar is wildmatch.c with the shortcuts of dir.c around it, since those can be seen from outside. dulwich
translates patterns as well, but one at a time, with quantifiers that a hostile file can make backtrack for
minutes, and without the shortcuts; its bracket expressions are right and are used. Pure.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from dulwich.wildmatch import MalformedPattern, translate_bracket_expression

T = TypeVar("T")

_SPECIAL = re.compile(rb"[*?\[\\]")
_ANY: Final = b"[^/]*"
_DIRECTORIES: Final = b"(?:[^/]*/)*?"


class Unmentioned:
    """No pattern matches."""


UNMENTIONED: Final = Unmentioned()


@dataclass(frozen=True, slots=True)
class Pattern:
    """One pattern, as parse_path_pattern() in git's dir.c takes it apart."""

    regex: bytes
    directory_only: bool
    by_name: bool
    """It has no slash, and is compared with the last name of a path alone."""


def parse_pattern(text: bytes) -> Pattern | None:
    """Take a pattern apart, its ``!`` already gone; None for one that can match nothing."""
    directory_only = text.endswith(b"/")
    body = text[:-1] if directory_only else text
    by_name = b"/" not in body
    body = body.removeprefix(b"/")
    if not body:
        return None
    try:
        return Pattern(_expression(body) if by_name else _by_path(body), directory_only, by_name)
    except MalformedPattern:
        return None


def matches(glob: bytes, text: bytes, ignore_case: bool) -> bool:
    """Whether a bare glob, slashes and all, fits the whole text."""
    try:
        return re.fullmatch(_expression(glob), text, _flags(ignore_case)) is not None
    except MalformedPattern:
        return False


def _flags(ignore_case: bool) -> re.RegexFlag:
    return re.DOTALL | (re.IGNORECASE if ignore_case else re.NOFLAG)


def _by_path(body: bytes) -> bytes:
    """What precedes the first special character is compared by itself: ``a**/b`` thus begins with ``**/``."""
    special = _SPECIAL.search(body)
    cut = special.start() if special else len(body)
    return re.escape(body[:cut]) + _expression(body[cut:])


def _expression(glob: bytes) -> bytes:
    """The regular expression of a glob.

    Between two ``**/`` the first run of directories that fits is as good as any later one, and likewise the
    first place between two ``*``: atomic groups say so, and keep the time linear.

    Raises:
        MalformedPattern: it can match nothing.
    """
    spans: list[list[bytes]] = [[]]
    for token in _tokens(glob):
        if token == _DIRECTORIES:
            spans.append([])
        else:
            spans[-1].append(token)
    first, *others = (_span(tokens) for tokens in spans)
    if not others:
        return first
    atomic = [b"(?>" + _DIRECTORIES + span + b")" for span in others[:-1]]
    return first + b"".join(atomic) + _DIRECTORIES + others[-1]


def _span(tokens: list[bytes]) -> bytes:
    chunks: list[bytes] = [b""]
    for token in tokens:
        if token == _ANY:
            chunks.append(b"")
        else:
            chunks[-1] += token
    first, *others = chunks
    if not others:
        return first
    return first + b"".join(b"(?>[^/]*?" + chunk + b")" for chunk in others[:-1]) + _ANY + others[-1]


def _tokens(glob: bytes) -> Iterable[bytes]:
    at = 0
    while at < len(glob):
        here = glob[at : at + 1]
        if here == b"*":
            stars = len(glob) - at - len(glob[at:].lstrip(b"*"))
            token, at = _star(glob, at, at + stars)
        elif here == b"?":
            token, at = b"[^/]", at + 1
        elif here == b"[":
            at, token = translate_bracket_expression(glob, at + 1)
        elif here == b"\\":
            if at + 1 == len(glob):
                raise MalformedPattern(glob)
            token, at = re.escape(glob[at + 1 : at + 2]), at + 2
        else:
            token, at = re.escape(here), at + 1
        yield token


def _star(glob: bytes, start: int, end: int) -> tuple[bytes, int]:
    """What a row of stars means, and where the pattern goes on."""
    alone = glob[start - 1 : start] in {b"", b"/"} and (end == len(glob) or glob.startswith((b"/", b"\\/"), end))
    if end - start == 1 or not alone:
        return _ANY, end
    if glob[end : end + 1] == b"/":
        return _DIRECTORIES, end + 1
    return b".*", end


class Matcher(Generic[T]):
    """The patterns of one file with what each says; the last one that matches counts."""

    def __init__(self, rules: Iterable[tuple[Pattern, T]], ignore_case: bool = False) -> None:
        ranked = list(enumerate(rules))[::-1]
        self._names = _Alternatives([(i, p, value) for i, (p, value) in ranked if p.by_name], ignore_case)
        self._paths = _Alternatives([(i, p, value) for i, (p, value) in ranked if not p.by_name], ignore_case)

    def last(self, path: bytes, is_directory: bool) -> T | Unmentioned:
        """What is said of a path, relative to the file's directory and without a slash at its end."""
        by_name = self._names.find(path[path.rfind(b"/") + 1 :], is_directory)
        by_path = self._paths.find(path, is_directory)
        if by_name is None:
            return UNMENTIONED if by_path is None else by_path[1]
        return by_name[1] if by_path is None or by_name[0] > by_path[0] else by_path[1]


class _Alternatives(Generic[T]):
    """One expression for all: of its branches the first that matches counts, so the last pattern comes first.

    A directory is asked for with a slash before its path, which no path begins with by itself.
    """

    def __init__(self, rules: list[tuple[int, Pattern, T]], ignore_case: bool) -> None:
        branches = (b"(" + (b"/" if rule.directory_only else b"/?+") + rule.regex + b")" for _, rule, _ in rules)
        self._match = re.compile(b"|".join(branches), _flags(ignore_case)).fullmatch if rules else None
        self._said = [(rank, value) for rank, _, value in rules]

    def find(self, path: bytes, is_directory: bool) -> tuple[int, T] | None:
        if self._match is None:
            return None
        found = self._match(b"/" + path if is_directory else path)
        return self._said[found.lastindex - 1] if found and found.lastindex else None
