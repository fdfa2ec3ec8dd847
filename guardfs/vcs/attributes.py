"""Attributes that let a checked-out file differ from its blob: gitattributes(5), convert.c.

Errs to one side: what could make a difference is taken to make one. Pure.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache

from guardfs.vcs.globs import Matcher, Pattern, Unmentioned, parse_pattern

Value = bytes | bool | None
"""Set, unset, a word; None where ``!name`` takes back what was said before."""

Attributes = Mapping[bytes, Matcher[Value]]
"""What one file says, by attribute."""

_BLANK = b" \t\r\n"
_BOM = b"\xef\xbb\xbf"
_MACRO = b"[attr]"
_BINARY = b"binary"
_LINE_ENDS = (b"text", b"crlf", b"eol", _BINARY)
_CONVERSIONS = (b"filter", b"ident", b"working-tree-encoding")


class UnsureAttributes(Exception):
    """The file says something about conversions in a way that is not understood here."""


def macros(text: bytes) -> frozenset[bytes]:
    """Names that the file defines by ``[attr]``; what they stand for is not looked at."""
    lines = (line.strip(_BLANK) for line in text.removeprefix(_BOM).split(b"\n"))
    names = (line.removeprefix(_MACRO).split()[:1] for line in lines if line.startswith(_MACRO))
    return frozenset(name[0] for name in names if name)


@lru_cache(maxsize=1024)
def parse_attributes(text: bytes, defined: frozenset[bytes], ignore_case: bool) -> Attributes:
    """The rules of a file, as far as they bear on bytes. ``defined``: macros of the repository.

    Raises:
        UnsureAttributes: a pattern in quotes carries such a rule.
    """
    rules: dict[bytes, list[tuple[Pattern, Value]]] = {}
    for line in text.removeprefix(_BOM).split(b"\n"):
        first, *words = line.strip(_BLANK).split() or [b"#"]
        if first.startswith((b"#", b"!", _MACRO)):
            continue
        said = [(name, value) for name, value in _states(words, defined) if _matters(name, defined)]
        if said and first.startswith(b'"'):
            raise UnsureAttributes
        pattern = parse_pattern(first)
        if pattern is not None and not pattern.directory_only:
            for name, value in said:
                rules.setdefault(name, []).append((pattern, value))
    return {name: Matcher(each, ignore_case) for name, each in rules.items()}


def _matters(name: bytes, defined: frozenset[bytes]) -> bool:
    return name in _LINE_ENDS or name in _CONVERSIONS or name in defined


def _states(words: list[bytes], defined: frozenset[bytes]) -> Iterator[tuple[bytes, Value]]:
    """``binary``, the one macro that git defines itself, is ``-text`` here: diff and merge change no bytes.

    Taking a macro back also takes back what it said earlier. That is left to be noticed: the macro is False then.
    """
    for word in words:
        name, equals, value = word.lstrip(b"-!").partition(b"=")
        if name == _BINARY:
            yield name, word == _BINARY and _BINARY not in defined
            if word == _BINARY:
                yield b"text", False
        elif word.startswith((b"-", b"!")):
            yield word[1:], False if word.startswith(b"-") else None
        else:
            yield name, value if equals else True


class AttributeStack:
    """All files that apply in one directory, the most telling first, each with where its paths begin."""

    def __init__(self, files: Iterable[tuple[Attributes, int]]) -> None:
        self._rules: dict[bytes, list[tuple[Matcher[Value], int]]] = {}
        for attributes, offset in files:
            for name, matcher in attributes.items():
                self._rules.setdefault(name, []).append((matcher, offset))
        self._others = [name for name in self._rules if name not in _LINE_ENDS]

    def is_verbatim(self, path: bytes, plain_line_ends: bool) -> bool:
        """Whether checking out ``path`` (relative to the repository) writes exactly the blob's bytes.

        ``plain_line_ends``: the settings convert nothing where no attribute speaks.
        """
        if not self._rules:
            return plain_line_ends
        if self._value(_BINARY, path) is False:
            return False
        if any(self._value(name, path) not in {None, False} for name in self._others):
            return False
        text = self._value(b"text", path)
        if text is None:
            text = self._value(b"crlf", path)  # What text was called before; it counts where text is silent.
        if text is None:
            return plain_line_ends and self._value(b"eol", path) in {None, False}
        return text is False

    def _value(self, name: bytes, path: bytes) -> Value:
        for matcher, offset in self._rules.get(name, ()):
            value = matcher.last(path[offset:], is_directory=False)
            if not isinstance(value, Unmentioned):
                return value
        return None
