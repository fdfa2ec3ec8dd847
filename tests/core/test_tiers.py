"""Patterns of paths."""

import pytest

from guardfs.core.tiers import Patterns, fault_of, means_everything

HELD = [
    (".git/", b".git/x", True),
    (".git/", b"a/.git/b/c", True),
    (".git/", b".git", False),
    (".git/", b"x.git/f", False),
    ("*.log", b"x.log", True),
    ("*.log", b"d/x.log", True),
    ("*.log", b"d/x.log/below", True),
    ("*.log", b"x.logs", False),
    ("/build/", b"build/x", True),
    ("/build/", b"d/build/x", False),
    ("docs/_b*/", b"docs/_build/x", True),
    ("docs/_b*/", b"docs/a/_build/x", False),
    ("a/**/z", b"a/b/c/z", True),
    ("a/*/z", b"a/b/c/z", False),
    (".env.*", b"sub/.env.local", True),
    (".env", b".env", True),
    (".env", b".envrc", False),
    ("[ab].c", b"q/a.c", True),
    ("[!ab].c", b"a.c", False),
    ("a.c", b"abc", False),
    ("m\u00fcll/", "m\u00fcll/x".encode(), True),
    ("\udcff/", b"\xff/\n", True),
]


@pytest.mark.parametrize(("pattern", "path", "held"), HELD)
def test_hold(pattern: str, path: bytes, held: bool) -> None:
    assert Patterns([pattern]).hold(path) is held


def test_no_pattern_holds_nothing() -> None:
    assert not Patterns([]).hold(b"a/b")


@pytest.mark.parametrize("pattern", ["", "/", "//", "!a", "a//b", "../a", "a/./b", "a\0b", "a\nb"])
def test_faults(pattern: str) -> None:
    assert fault_of(pattern)


@pytest.mark.parametrize("pattern", ["a/", "/a", "a/b", "*.x", "**/a", ".env.*", "..a"])
def test_no_faults(pattern: str) -> None:
    assert fault_of(pattern) is None


def test_everything() -> None:
    assert means_everything("*")
    assert means_everything("**/")
    assert not means_everything("*.c")
