"""The settings as options of ``run`` and ``mount``, made from the settings themselves so that none is left out."""

import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import msgspec
import typer

from guardfs.config.reading import describe_field
from guardfs.config.settings import Settings

Command = Callable[..., None]
_TUPLE_NOTE = " Repeat it, or give '' for none; in place of the default ones."


def takes_settings(command: Command) -> Command:
    """Give a command one option for each setting; it gets those that were used as the dictionary ``flags``."""
    options = dict(_options())

    @functools.wraps(command)
    def with_settings(**given: Any) -> None:
        flags: dict[str, Any] = {}
        for name, key in options.items():
            value = given.pop(name)
            if value is not None:
                _put(flags, key, getattr(value, "value", value))
        command(**given, flags=flags)

    own = inspect.signature(command).parameters.values()
    parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own if p.name != "flags"]
    parameters += [_parameter(name, key) for name, key in options.items()]
    with_settings.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    with_settings.__annotations__ = {p.name: p.annotation for p in parameters}
    return with_settings


Key = tuple[str, ...]


def _options(table: type[msgspec.Struct] = Settings, prefix: Key = ()) -> Iterator[tuple[str, Key]]:
    """The name of each option as an argument, and where its setting stands."""
    for field in msgspec.structs.fields(table):
        kind, _, _ = describe_field(field.type)
        key = (*prefix, field.name)
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            yield from _options(kind, key)
        else:
            yield "_".join(key), key


def _parameter(name: str, key: Key) -> inspect.Parameter:
    kind, text, bounds = _described(key)
    text = f"{text[:1].upper()}{text[1:]}."
    default = _default(key)
    flag = f"--{name.replace('_', '-')}"
    if isinstance(default, tuple):
        option = typer.Option(flag, help=text + _TUPLE_NOTE, show_default=False)
        return _keyword(name, Annotated[list[str] | None, option])
    shown = str(getattr(default, "value", default))
    option = typer.Option(flag, help=text, show_default=shown, min=bounds.get("ge"), max=bounds.get("le"))
    return _keyword(name, Annotated[kind | None, option])


def _keyword(name: str, annotation: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _described(key: Key) -> tuple[Any, str, dict[str, Any]]:
    table: Any = Settings
    found: tuple[Any, str, dict[str, Any]] = (table, "", {})
    for name in key:
        field = next(each for each in msgspec.structs.fields(table) if each.name == name)
        found = describe_field(field.type)
        table = found[0]
    return found


def _default(key: Key) -> Any:
    return functools.reduce(getattr, key, Settings())


def _put(flags: dict[str, Any], key: Key, value: Any) -> None:
    *tables, name = key
    for table in tables:
        flags = flags.setdefault(table, {})
    flags[name] = [each for each in value if each] if isinstance(value, list) else value
