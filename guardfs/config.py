"""Settings: defaults, ``.guardfs.toml`` at the workspace's root, then flags; validated once.

Every mistake becomes one line that names the key. Must not know who uses a setting.
"""

import difflib
import errno as errnos
import hashlib
import os
import re
import stat
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import msgspec

from guardfs.core.fingerprint import Match
from guardfs.core.policy import Append, Rules
from guardfs.core.tiers import POLICY_FILE
from guardfs.errors import ExitCode, GuardfsError

_POLICY_FILE_LIMIT = 1 << 20
"""Bytes of ``.guardfs.toml`` that are read: more is no settings file."""


_WORDS = {"array": "a list", "object": "a table", "str": "a string", "int": "a whole number", "bool": "true or false"}


class Errno(StrEnum):
    """What a refusal may fail with: errors that programs report. ENOSYS would stop the kernel asking us at all."""

    EIO = "EIO"
    EACCES = "EACCES"
    EPERM = "EPERM"
    EROFS = "EROFS"
    EBUSY = "EBUSY"


class Reads(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The table ``[reads]``: what counts as having seen a file."""

    ignore: tuple[str, ...] = ("git", "jj", "svn")
    """Programs whose opens are no reads."""


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All settings of a mount; the field names are the keys of ``.guardfs.toml``."""

    match: Match = Match.STRICT
    append: Append = Append.CHECK
    errno: Errno = Errno.EIO
    unknown_caller: Literal["untracked", "tracked"] = "untracked"
    hash_limit: Annotated[int, msgspec.Meta(ge=0)] = 64 << 20
    """Bytes; larger files are known by their stat fields alone."""
    max_records: Annotated[int, msgspec.Meta(ge=1)] = 1_000_000
    """Records per session; the least recently read goes first."""
    exempt: tuple[Annotated[str, msgspec.Meta(pattern="^[^/]+/$")], ...] = (".git/",)
    """Names of directories, at any depth, with a slash at the end."""
    reads: Reads = Reads()

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
        return int(getattr(errnos, self.errno.value))


def load(workspace_fd: int, workspace: str, flags: dict[str, Any]) -> Settings:
    """Read the settings of a workspace and lay the flags that were given over them.

    Raises:
        GuardfsError: the file cannot be read or parsed, or a key or value is wrong.
    """
    file = os.path.join(workspace, os.fsdecode(POLICY_FILE))
    values = _file_values(workspace_fd, file)
    try:
        _refuse_unknown(values, Settings)
        return msgspec.convert(values | flags, Settings)
    except (_UnknownKey, msgspec.ValidationError) as error:
        raise GuardfsError(f"{file}: {_explained(str(error))}", ExitCode.CONFIG) from error


def _file_values(workspace_fd: int, file: str) -> dict[str, Any]:
    try:
        fd = os.open(POLICY_FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=workspace_fd)
        with open(fd, "rb") as opened:
            text = opened.read(_POLICY_FILE_LIMIT) if stat.S_ISREG(os.fstat(fd).st_mode) else None
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise GuardfsError(
            f"{file}: {error.strerror}; make it a readable file or remove it", ExitCode.CONFIG
        ) from error
    if text is None:
        raise GuardfsError(f"{file}: not a regular file; make it one or remove it", ExitCode.CONFIG)
    try:
        return dict(msgspec.toml.decode(text, type=dict[str, Any]))
    except msgspec.DecodeError as error:
        raise GuardfsError(f"{file}: not valid TOML: {error}; correct it or remove it", ExitCode.CONFIG) from error


class _UnknownKey(Exception):
    pass


def _refuse_unknown(values: dict[str, Any], table: type[msgspec.Struct], prefix: str = "") -> None:
    """msgspec would refuse these as well, but knows no nearest key."""
    known = {field.name: field.type for field in msgspec.structs.fields(table)}
    for key, value in values.items():
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean '{prefix}{near[0]}'?" if near else f"known: {', '.join(prefix + k for k in known)}"
            raise _UnknownKey(f"setting '{prefix}{key}' is not known; {hint}")
        kind = known[key]
        if isinstance(value, dict) and isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            _refuse_unknown(value, kind, f"{prefix}{key}.")


def _explained(error: str) -> str:
    """msgspec names the place as ``$.key`` and the types as JSON and Python do; people know settings and TOML."""
    message, at, place = error.partition(" - at `$.")
    if not at:
        return message
    for word, plain in _WORDS.items():
        message = message.replace(f"`{word}`", plain)
    return f"setting '{place.rstrip('`')}': {message[:1].lower()}{message[1:]}{_choice(place.rstrip('`'))}"


def _choice(place: str) -> str:
    """What may be said instead, where that can be listed."""
    kind = next((field.type for field in msgspec.structs.fields(Settings) if field.name == place), None)
    values: tuple[str, ...] = get_args(kind) if get_origin(kind) is Literal else ()
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        values = tuple(kind)
    return f"; one of {', '.join(values)}" if values else ""


def state_root() -> Path:
    """Where guardfs keeps its own state: ``$GUARDFS_STATE``, else below ``$XDG_STATE_HOME``.

    The XDG base directory specification puts the default at ``~/.local/state`` and has relative values
    ignored.
    """
    own = os.environ.get("GUARDFS_STATE")
    if own:
        return Path(os.path.abspath(own))
    xdg = os.environ.get("XDG_STATE_HOME", "")
    return (Path(xdg) if os.path.isabs(xdg) else _home() / ".local" / "state") / "guardfs"


def _home() -> Path:
    try:
        return Path.home()
    except RuntimeError as error:
        raise GuardfsError(
            "this user has no home directory; set GUARDFS_STATE to a directory", ExitCode.CONFIG
        ) from error


def state_dir(workspace: str) -> Path:
    """The state directory of one workspace: readable first, unique by the escaped path."""
    readable = re.sub(r"[^A-Za-z0-9.-]+", "_", workspace).strip("_")[-40:]
    return state_root() / f"{readable}-{hashlib.sha256(os.fsencode(workspace)).hexdigest()[:12]}"
