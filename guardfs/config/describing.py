"""The settings file as people write it: the commented default, and what is doubtful in one that is valid."""

import json
import textwrap
from collections.abc import Iterator
from typing import Any

import msgspec

from guardfs.config.reading import choices, describe_field
from guardfs.config.settings import Settings
from guardfs.core.tiers import means_everything

_WIDTH = 100
_HEADER = """\
# .guardfs.toml at the workspace's root: the rules for every tracked session, which no session may change.
# Everything is optional; what stands here is the default. Flags of 'guardfs run' and 'guardfs mount' win over it.
# A change is taken up by a running mount; a broken file is not, and 'guardfs log' says why.
"""


def default_file() -> str:
    """A whole ``.guardfs.toml``: each setting with its default, commented out, and what it is for."""
    return "\n".join([_HEADER, *_table(Settings)])


def doubts(settings: Settings) -> list[str]:
    """What a person may not have meant, one line each; the settings are valid all the same."""
    found = [f"exempt: {pattern!r} leaves nothing guarded" for pattern in settings.exempt if means_everything(pattern)]
    if ".git/" not in settings.exempt:
        found.append("exempt: '.git/' is not in it, so sessions are refused git's own files")
    if settings.settle == 0:
        found.append("settle: with 0 a tool's own re-read just before its write counts as having seen a change")
    return found


def _table(table: type[msgspec.Struct], prefix: str = "") -> Iterator[str]:
    later = []
    for field in msgspec.structs.fields(table):
        kind, text, _ = describe_field(field.type)
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            later.append((field.name, kind))
            continue
        yield from (f"# {line}" for line in textwrap.wrap(_about(text, kind), _WIDTH))
        yield from (f"#{line}" for line in _value(field.name, field.default))
        yield ""
    for name, below in later:
        yield f"#[{prefix}{name}]"
        yield from _table(below, f"{prefix}{name}.")


def _about(text: str, kind: Any) -> str:
    allowed = [f"'{value}'" for value in choices(kind)]
    unsaid = [value for value in allowed if value not in text]
    return f"{text} ({' or '.join(allowed)})" if unsaid and allowed else text


def _value(name: str, default: Any) -> list[str]:
    line = f"{name} = {json.dumps(msgspec.to_builtins(default), ensure_ascii=False)}"  # Which is TOML as well.
    return textwrap.wrap(line, _WIDTH, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)
