"""Settings: defaults, ``.guardfs.toml`` at the workspace's root, then flags; validated once.

Every mistake becomes one line that names the key. Must not know who uses a setting.
"""

import difflib
import errno as errnos
import hashlib
import os
import re
from pathlib import Path
from typing import Any, Literal

import msgspec

from guardfs.core.fingerprint import Match
from guardfs.core.policy import Append, Rules
from guardfs.core.tiers import POLICY_FILE
from guardfs.errors import ExitCode, GuardfsError

_POLICY_FILE_LIMIT = 1 << 20
"""Bytes of ``.guardfs.toml`` that are read: more is no settings file."""


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All settings of a mount; the field names are the keys of ``.guardfs.toml``."""

    match: Match = Match.STRICT
    append: Append = Append.CHECK
    errno: str = "EIO"
    unknown_caller: Literal["untracked", "tracked"] = "untracked"
    hash_limit: int = 64 << 20
    """Bytes; larger files are known by their stat fields alone."""
    max_records: int = 1_000_000
    """Records per session; the least recently read goes first."""
    exempt: tuple[str, ...] = (".git/",)
    reads_ignore: tuple[str, ...] = msgspec.field(default=("git", "jj", "svn"), name="reads-ignore")
    """Programs whose opens are no reads."""

    @property
    def rules(self) -> Rules:
        """What decisions depend on."""
        return Rules(self.match, self.append)

    @property
    def exempt_names(self) -> tuple[bytes, ...]:
        """Names of exempt directories as the kernel spells them."""
        return tuple(os.fsencode(name.rstrip("/")) for name in self.exempt)

    @property
    def errno_number(self) -> int:
        """The errno of a refusal."""
        return int(getattr(errnos, self.errno))


def load(workspace_fd: int, flags: dict[str, Any]) -> Settings:
    """Read the settings of a workspace and lay the flags that were given over them.

    Raises:
        GuardfsError: the file cannot be read or parsed, or a key or value is wrong.
    """
    return _validated(_file_values(workspace_fd) | flags)


def _file_values(workspace_fd: int) -> dict[str, Any]:
    name = os.fsdecode(POLICY_FILE)
    try:
        fd = os.open(POLICY_FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=workspace_fd)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise GuardfsError(
            f"{name}: {error.strerror}; make it a readable file or remove it", ExitCode.CONFIG
        ) from error
    with open(fd, "rb") as file:
        text = file.read(_POLICY_FILE_LIMIT)
    try:
        return dict(msgspec.toml.decode(text, type=dict[str, Any]))
    except msgspec.DecodeError as error:
        raise GuardfsError(f"{name}: not valid TOML: {error}", ExitCode.CONFIG) from error


def _validated(values: dict[str, Any]) -> Settings:
    known = msgspec.structs.fields(Settings)
    _refuse_unknown(values, [field.encode_name for field in known])
    try:
        settings = msgspec.convert(values, Settings)
    except msgspec.ValidationError as error:
        raise GuardfsError(_explained(str(error)), ExitCode.CONFIG) from error
    if settings.hash_limit < 0 or settings.max_records < 1:
        raise GuardfsError("setting hash_limit must be 0 or more and max_records 1 or more", ExitCode.CONFIG)
    if not isinstance(getattr(errnos, settings.errno, None), int):
        raise GuardfsError(f"setting errno: {settings.errno!r} is no errno name; use EIO or EACCES", ExitCode.CONFIG)
    return settings


def _refuse_unknown(values: dict[str, Any], known: list[str]) -> None:
    for key in values:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
            raise GuardfsError(f"setting {key!r} is not known; {hint}", ExitCode.CONFIG)


def _explained(error: str) -> str:
    """msgspec names the place as ``$.key``; people know it as a setting."""
    message, _, place = error.partition(" - at `$.")
    return f"setting {place.rstrip('`') or '?'}: {message[:1].lower()}{message[1:]}"


def state_root() -> Path:
    """Where guardfs keeps its own state: ``$GUARDFS_STATE``, else below ``$XDG_STATE_HOME``.

    The XDG base directory specification puts the default at ``~/.local/state`` and has relative values
    ignored.
    """
    own = os.environ.get("GUARDFS_STATE")
    if own:
        return Path(os.path.abspath(own))
    xdg = os.environ.get("XDG_STATE_HOME", "")
    base = Path(xdg) if os.path.isabs(xdg) else Path.home() / ".local" / "state"
    return base / "guardfs"


def state_dir(workspace: str) -> Path:
    """The state directory of one workspace: readable first, unique by the escaped path."""
    readable = re.sub(r"[^A-Za-z0-9.-]+", "_", workspace).strip("_")[-40:]
    return state_root() / f"{readable}-{hashlib.sha256(os.fsencode(workspace)).hexdigest()[:12]}"
