"""Open flags to meaning; the numbers in the core are the platform's."""

import os

import pytest

from guardfs.core import intent
from guardfs.core.intent import FMODE_EXEC, Intent, OpenIntent, of_open


@pytest.mark.parametrize("name", ["O_ACCMODE", "O_WRONLY", "O_RDWR", "O_CREAT", "O_EXCL", "O_TRUNC", "O_APPEND"])
def test_numbers(name: str) -> None:
    assert getattr(intent, name) == getattr(os, name)


@pytest.mark.parametrize(
    ("flags", "meaning"),
    [
        (os.O_RDONLY, OpenIntent(None, None, True, False, False)),
        (os.O_RDONLY | FMODE_EXEC, OpenIntent(None, None, False, False, False)),
        (os.O_RDONLY | os.O_TRUNC, OpenIntent(Intent.TRUNCATE, None, True, False, True)),
        (os.O_WRONLY, OpenIntent(Intent.WRITE, None, False, False, False)),
        (os.O_WRONLY | os.O_TRUNC, OpenIntent(Intent.TRUNCATE, None, False, False, True)),
        (os.O_WRONLY | os.O_APPEND, OpenIntent(Intent.APPEND, None, False, False, False)),
        (os.O_WRONLY | os.O_APPEND | os.O_TRUNC, OpenIntent(Intent.TRUNCATE, None, False, False, True)),
        (os.O_RDWR, OpenIntent(None, Intent.WRITE, False, True, False)),
        (os.O_RDWR | os.O_APPEND, OpenIntent(None, Intent.APPEND, False, True, False)),
        (os.O_RDWR | os.O_TRUNC, OpenIntent(Intent.TRUNCATE, None, False, True, True)),
    ],
)
def test_meaning(flags: int, meaning: OpenIntent) -> None:
    assert of_open(flags) == meaning
    assert of_open(flags | os.O_CLOEXEC | os.O_NOFOLLOW) == meaning
