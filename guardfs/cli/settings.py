"""``guardfs config``: the settings file shown and checked, without a mount."""

from pathlib import Path

from guardfs.config import Settings, from_text
from guardfs.config.describing import default_file, doubts
from guardfs.errors import ExitCode, GuardfsError


def show() -> str:
    """The commented default file."""
    return default_file().rstrip("\n")


def check(name: str) -> list[str]:
    """What is to be said of a settings file; the first line that it is good. Raises GuardfsError."""
    settings = _read(name)
    return [f"{name}: good", *(f"{name}: {doubt}" for doubt in doubts(settings))]


def _read(name: str) -> Settings:
    path = Path(name)
    try:
        return from_text(path.read_bytes(), name, {})
    except OSError as error:
        raise GuardfsError(f"{name}: {error.strerror}; name a readable settings file", ExitCode.NO_INPUT) from error
