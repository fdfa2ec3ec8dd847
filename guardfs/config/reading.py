"""Settings from ``.guardfs.toml`` at the workspace's root and from flags; validated once.

Every mistake becomes one line that names the key and the way out. Must not know who uses a setting.
"""

import difflib
import os
import stat
from collections.abc import Iterator
from enum import StrEnum
from typing import Any, Literal, get_args, get_origin

import msgspec

from guardfs.config.settings import Settings
from guardfs.core.tiers import POLICY_FILE, fault_of
from guardfs.errors import ExitCode, GuardfsError

_POLICY_FILE_LIMIT = 1 << 20
"""Bytes of ``.guardfs.toml`` that are read: more is no settings file."""
_WORDS = {
    "array": "a list", "object": "a table", "str": "a string", "int": "a whole number", "float": "a number",
    "bool": "true or false",
}  # fmt: skip

Values = dict[str, Any]
Signature = tuple[int, ...]
"""What differs when the settings file may hold other bytes; empty where there is none."""


def load(workspace_fd: int, workspace: str, flags: Values) -> Settings:
    """Read the settings of a workspace and lay the flags that were given over them.

    Raises:
        GuardfsError: the file cannot be read or parsed, or a key or value is wrong.
    """
    file = os.path.join(workspace, os.fsdecode(POLICY_FILE))
    return from_text(_text(workspace_fd, file) or b"", file, flags)


def signature(workspace_fd: int) -> Signature:
    """Tells one state of a workspace's settings file from another by its stat fields; blocks for no disk."""
    try:
        st = os.stat(POLICY_FILE, dir_fd=workspace_fd, follow_symlinks=False)
    except OSError:
        return ()  # Not there, or not to be looked at: reading it says why.
    return (st.st_dev, st.st_ino, st.st_size, st.st_mtime_ns, st.st_ctime_ns)


def from_text(text: bytes, name: str, flags: Values) -> Settings:
    """The settings that a file's text and flags make, flags last; ``name`` is the file's, for people.

    Raises:
        GuardfsError: it is no TOML, or a key or value is wrong.
    """
    try:
        values = dict(msgspec.toml.decode(text, type=Values))
    except msgspec.DecodeError as error:
        raise GuardfsError(f"{name}: not valid TOML: {error}; correct it or remove it", ExitCode.CONFIG) from error
    try:
        _refuse_unknown(values, Settings)
        settings = msgspec.convert(_merged(values, flags), Settings)
        _refuse_bad_patterns(settings)
    except (_Mistake, msgspec.ValidationError) as error:
        raise GuardfsError(f"{name}: {_explained(str(error))}", ExitCode.CONFIG) from error
    return settings


def describe_field(kind: Any) -> tuple[Any, str, dict[str, Any]]:
    """A field's bare type, what it is for, and its bounds, from its annotation."""
    metas = getattr(kind, "__metadata__", ())
    bare = get_args(kind)[0] if metas else kind
    meta = metas[0] if metas else msgspec.Meta()
    bounds = {name: getattr(meta, name) for name in ("ge", "le") if getattr(meta, name) is not None}
    return bare, meta.description or "", bounds


def choices(bare: Any) -> tuple[str, ...]:
    """What may be said for a field, where that can be listed."""
    if get_origin(bare) is Literal:
        return get_args(bare)
    return tuple(bare) if isinstance(bare, type) and issubclass(bare, StrEnum) else ()


def _merged(values: Values, flags: Values) -> Values:
    """Flags win, key by key; a table keeps the keys that no flag names."""
    merged = dict(values)
    for key, value in flags.items():
        old = merged.get(key)
        merged[key] = old | value if isinstance(old, dict) and isinstance(value, dict) else value
    return merged


def _text(workspace_fd: int, file: str) -> bytes | None:
    try:
        fd = os.open(POLICY_FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=workspace_fd)
        with open(fd, "rb") as opened:
            text = opened.read(_POLICY_FILE_LIMIT) if stat.S_ISREG(os.fstat(fd).st_mode) else None
    except FileNotFoundError:
        return None
    except OSError as error:
        raise GuardfsError(
            f"{file}: {error.strerror}; make it a readable file or remove it", ExitCode.CONFIG
        ) from error
    if text is None:
        raise GuardfsError(f"{file}: not a regular file; make it one or remove it", ExitCode.CONFIG)
    return text


class _Mistake(Exception):
    pass


def _refuse_unknown(values: Values, table: type[msgspec.Struct], prefix: str = "") -> None:
    """msgspec would refuse these as well, but knows no nearest key."""
    known = {field.name: describe_field(field.type)[0] for field in msgspec.structs.fields(table)}
    for key, value in values.items():
        if key not in known:
            raise _Mistake(f"setting '{prefix}{key}' is not known; {_hint(key, prefix)}")
        kind = known[key]
        if isinstance(value, dict) and isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            _refuse_unknown(value, kind, f"{prefix}{key}.")


def _hint(key: str, prefix: str) -> str:
    """The nearest key, wherever it stands: a key of a table is easily written outside it."""
    keys = list(all_keys())
    near = difflib.get_close_matches(prefix + key, keys, n=1) or [
        known for known in keys if known.rpartition(".")[2] == key
    ]
    near = near or [known for known in keys if difflib.get_close_matches(key, [known.rpartition(".")[2]], n=1)][:1]
    return f"did you mean '{near[0]}'?" if near else f"known: {', '.join(keys)}"


def all_keys(table: type[msgspec.Struct] = Settings, prefix: str = "") -> Iterator[str]:
    """Every key, those of tables with the table's name before a dot."""
    for field in msgspec.structs.fields(table):
        kind = describe_field(field.type)[0]
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            yield from all_keys(kind, f"{prefix}{field.name}.")
        else:
            yield prefix + field.name


def _refuse_bad_patterns(settings: Settings) -> None:
    for key in ("exempt", "protect"):
        for pattern in getattr(settings, key):
            fault = fault_of(pattern)
            if fault is not None:
                raise _Mistake(f"setting '{key}': pattern {pattern!r} {fault}")


def _explained(error: str) -> str:
    """msgspec names the place as ``$.key`` and the types as JSON and Python do; people know settings and TOML."""
    message, at, place = error.partition(" - at `$.")
    if not at:
        return message
    for word, plain in _WORDS.items():
        message = message.replace(f"`{word}`", plain)
    key = place.rstrip("`")
    return f"setting '{key}': {message[:1].lower()}{message[1:]}{_choice(key)}"


def _choice(place: str) -> str:
    """What may be said instead, where that can be listed."""
    kind: Any = Settings
    for name in place.split("."):
        fields = msgspec.structs.fields(kind) if isinstance(kind, type) and issubclass(kind, msgspec.Struct) else ()
        kind = next((describe_field(field.type)[0] for field in fields if field.name == name), None)
    values = choices(kind)
    return f"; one of {', '.join(values)}" if values else ""
