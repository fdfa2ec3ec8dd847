"""What is shown: rich tables for people at 80 columns, JSON for programs. The fields are in docs/cli.md."""

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from guardfs.control import client
from guardfs.control.protocol import Flush, MountState, SessionState, Status
from guardfs.core.model import Fingerprint
from guardfs.core.verdict import WORDING, Reason
from guardfs.core.wording import escape, stamp_difference, when
from guardfs.errors import ExitCode, GuardfsError
from guardfs.state.schema import Event, EventKind
from guardfs.state.store import read_events

_POLL_S = 0.2
"""Seconds between looks at the store under ``-f``."""
_LAST = 5
"""Refusals that ``why`` explains."""


def status(path: str | None, *, as_json: bool) -> None:
    """Print the state of one mount, or of all that live."""
    states = [state for state, _ in _chosen(path)]
    answers = [client.ask(state, Status(records=as_json)).state for state in states]
    found = [answer for answer in answers if answer is not None]
    if as_json:
        for each in found:
            print(msgspec.json.encode(each).decode())
        return
    console = _console()
    if not found:
        console.print("No workspace is guarded. Begin with: guardfs mount WORKSPACE")
    for each in found:
        _show_mount(console, each)


def _chosen(path: str | None) -> list[tuple[Path, Any]]:
    if path is None:
        return [(state, note) for state, note in client.known() if client.is_alive(note)]
    state, note = client.find(path)
    if not client.is_alive(note):
        raise GuardfsError(f"{path}: not guarded now; begin with 'guardfs mount {path}'", ExitCode.NO_INPUT)
    return [(state, note)]


def _show_mount(console: Console, state: MountState) -> None:
    console.print(Text(state.mountpoint, style="bold"), soft_wrap=True)
    if state.workspace != state.mountpoint:
        console.print(f"  workspace {state.workspace}", soft_wrap=True)
    console.print(f"  daemon {state.pid}, match {state.match}, {state.open_files} open files")
    console.print(f"  log {state.log}", soft_wrap=True)
    if not state.sessions:
        console.print("  no session: nothing is refused")
        return
    table = Table(box=None, padding=(0, 1), show_edge=False)
    for title in ("session", "label", "alive"):
        table.add_column(title, overflow="fold")
    for title in ("read", "written", "refused"):
        table.add_column(title, justify="right")
    table.add_column("records", overflow="fold")
    for session in state.sessions:
        table.add_row(*_session_row(session))
    console.print(table)


def _session_row(session: SessionState) -> tuple[str, ...]:
    records = ", ".join(f"{count} {state}" for state, count in sorted(session.states.items())) or "none"
    counts = (session.alive, session.read, session.written, session.refused)
    return (session.id, session.label, *map(str, counts), records)


def log(path: str, *, as_json: bool, follow: bool) -> None:
    """Print all events of the workspace that a path lies in."""
    state, _ = client.find(path)
    console = _console()
    for event in _events(state, follow=follow):
        if as_json:
            print(msgspec.json.encode(as_dict(event)).decode(), flush=follow)
        else:
            console.print(Text(_line(event)), soft_wrap=True)


def _events(state: Path, *, follow: bool) -> Iterator[Event]:
    seen = 0
    while True:
        _flush(state)
        for event in read_events(state / "store", after=seen):
            seen = max(seen, event.seq)
            yield event
        if not follow:
            return
        sys.stdout.flush()
        time.sleep(_POLL_S)


def _flush(state: Path) -> None:
    try:
        client.ask(state, Flush())
    except GuardfsError:
        pass  # No daemon: the store holds all that was written.


def why(path: str, *, as_json: bool) -> None:
    """Print the last refusals of one path, with what differs and what to do next."""
    state, note = client.find(path)
    wanted = client.below(path, note)
    denials = [e for e in _events(state, follow=False) if e.kind is EventKind.DENIED and e.path == wanted][-_LAST:]
    if as_json:
        for event in denials:
            print(msgspec.json.encode(as_dict(event)).decode())
        return
    console = _console()
    if not denials:
        console.print(Text(f"{escape(wanted)}: nothing has been refused"), soft_wrap=True)
    for event in denials:
        _explain(console, event)


def _explain(console: Console, event: Event) -> None:
    wording = WORDING[Reason(event.reason)]
    who = f"{escape(event.program.encode(errors='surrogateescape'))} (pid {event.pid}) of {event.session}"
    times = f", {event.count} times" if event.count > 1 else ""
    lines = [
        Text(f"{escape(event.path)}: {event.operation} refused{times}: {event.reason}", style="bold"),
        Text(f"  when     {when(event.time_ns)}"),
        Text(f"  who      {who}"),
        Text(f"  why      {wording.sentence}"),
    ]
    if event.then and event.now:
        lines += [Text(f"  differs  {part}") for part in stamp_difference(event.then, event.now).split(", ")]
        lines.append(Text(f"  changed  {_changed_by(event)}"))
    lines.append(Text(f"  next     {wording.advice}"))
    for line in lines:
        console.print(line, soft_wrap=True)


def _changed_by(event: Event) -> str:
    author = event.author
    if author is None:
        return "outside the mount, or before this daemon began"
    return f"by {author.program} (pid {author.pid}, {author.session or 'untracked'}) at {when(author.when_ns)}"


def _line(event: Event) -> str:
    parts = [when(event.time_ns), event.kind.value]
    if event.reason:
        parts.append(event.reason)
    if event.path:
        parts.append(escape(event.path))
    if event.operation:
        who = escape(event.program.encode(errors="surrogateescape"))
        parts.append(f"({event.operation} by {who}, pid {event.pid}, {event.session})")
    else:
        parts.append(f"({event.session})")
    if event.detail:
        parts.append(escape(event.detail.encode(errors="surrogateescape")))
    if event.count > 1:
        parts.append(f"x{event.count}")
    return " ".join(parts)


def as_dict(event: Event) -> dict[str, Any]:
    """An event as ``--json`` prints it: names escaped, digests in hex, fields that say nothing left out."""
    fields: dict[str, Any] = {
        "seq": event.seq,
        "time_ns": event.time_ns,
        "kind": event.kind.value,
        "session": event.session,
        "path": escape(event.path),
        "reason": event.reason,
        "operation": event.operation,
        "pid": event.pid,
        "program": event.program,
        "then": _fingerprint(event.then),
        "now": _fingerprint(event.now),
        "changed_by": msgspec.to_builtins(event.author) if event.author else None,
        "next": WORDING[Reason(event.reason)].advice if event.reason else None,
        "count": event.count,
        "detail": event.detail,
    }
    return {key: value for key, value in fields.items() if value not in (None, "", 0) or key == "session"}


def _fingerprint(seen: Fingerprint | None) -> dict[str, Any] | None:
    if seen is None:
        return None
    stamp = seen.stamp
    return {
        "device": stamp.file.dev,
        "inode": stamp.file.ino,
        "size": stamp.size,
        "mtime_ns": stamp.mtime_ns,
        "ctime_ns": stamp.ctime_ns,
        "sha256": seen.digest.hex() if seen.digest else None,
    }


def _console() -> Console:
    return Console(highlight=False, markup=False, emoji=False)
