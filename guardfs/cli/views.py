"""What is shown: rich tables for people at 80 columns, JSON for programs. The fields are in docs/cli.md."""

import os
import select
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from guardfs.control import client
from guardfs.control.protocol import Flush, MountState, SessionState, Status
from guardfs.core.diffing import difference
from guardfs.core.model import Fingerprint
from guardfs.core.verdict import Reason, wording
from guardfs.core.wording import changed_by, escape, stamp_difference, when
from guardfs.errors import ExitCode, GuardfsError
from guardfs.procs import mounts
from guardfs.state.schema import Event, EventKind
from guardfs.state.store import read_content, read_events

_POLL_S = 0.2
"""Seconds between looks at the store under ``-f``."""
_REFUSALS = (EventKind.DENIED, EventKind.OBSERVED)
_LAST = 5
"""Refusals that ``why`` explains."""


def status(path: str | None, *, as_json: bool) -> None:
    """Print the state of one mount, or of all that live."""
    states = [client.ask(state, Status(records=as_json)).state for state in _chosen(path)]
    found = [state for state in states if state is not None]
    if as_json:
        for each in found:
            print(msgspec.json.encode(each).decode())
        return
    console = _console()
    for each in found:
        _show_mount(console, each)
    dead = [] if path else _dead()
    for point in dead:
        name = escape(os.fsencode(point))
        console.print(Text(f"{name}: dead mount; 'guardfs unmount' clears it, the next mount does too"), soft_wrap=True)
    if not found and not dead:
        console.print("No workspace is guarded. Begin with: guardfs mount WORKSPACE")


def _dead() -> list[str]:
    """Mount points of ours whose daemon is gone."""
    left = [note.mountpoint for _, note in client.known() if not client.is_alive(note)]
    return [point for point in left if mounts.is_guarded(point) and mounts.is_dead(point)]


def _chosen(path: str | None) -> list[Path]:
    if path is None:
        return [state for state, note in client.known() if client.is_alive(note)]
    state, note = client.find(path)
    if not client.is_alive(note):
        raise GuardfsError(f"{path}: not guarded now; begin with 'guardfs mount {path}'", ExitCode.NO_INPUT)
    return [state]


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
        _pause()


def _pause() -> None:
    """Wait a moment, or end as on a write if our reader has gone: poll(2) reports that unasked."""
    reader = select.poll()
    reader.register(sys.stdout.fileno(), 0)
    if reader.poll(_POLL_S * 1000):
        raise BrokenPipeError


def _flush(state: Path) -> None:
    try:
        client.ask(state, Flush())
    except GuardfsError:
        pass  # No daemon: the store holds all that was written.


def why(path: str, *, as_json: bool) -> None:
    """Print the last refusals of one path, with what differs and what to do next."""
    state, note = client.find(path)
    wanted = client.below(path, note)
    denials = [e for e in _events(state, follow=False) if e.kind in _REFUSALS and e.path == wanted][-_LAST:]
    if as_json:
        for event in denials:
            changed = _changed(state, event)
            fields = as_dict(event) | ({"diff": "\n".join(changed)} if changed else {})
            print(msgspec.json.encode(fields).decode())
        return
    console = _console()
    if not denials:
        console.print(Text(f"{escape(wanted)}: nothing has been refused"), soft_wrap=True)
    for event in denials:
        _explain(console, event)
        for line in _changed(state, event):
            console.print(Text(f"    {line}"), soft_wrap=True)


def _changed(state: Path, event: Event) -> list[str]:
    """The unified diff between what a session knew and what stood there, where the bytes of both are still kept."""
    if not (event.then and event.now and event.then.digest and event.now.digest):
        return []
    then, now = (read_content(state / "store", each.digest or b"") for each in (event.then, event.now))
    return difference(then, now) or [] if then is not None and now is not None else []


def _explain(console: Console, event: Event) -> None:
    words = wording(Reason(event.reason), settling=event.settling)
    verb = "refused" if event.kind is EventKind.DENIED else "would be refused"
    times = f", {event.count} times" if event.count > 1 else ""
    title = f"{escape(event.path)}: {event.operation} {verb}{times}: {event.reason}"
    console.print(Text(title, style="bold"), soft_wrap=True)
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column()
    table.add_column(overflow="fold")
    table.add_row("  when", when(event.time_ns))
    table.add_row("  who", f"{event.program} (pid {event.pid}) of {event.session}")
    table.add_row("  why", words.sentence)
    if event.then and event.now:
        for part in stamp_difference(event.then, event.now).split(", "):
            table.add_row("  differs", part)
        table.add_row("  changed", changed_by(event.author))
    if event.detail:
        table.add_row("  note", event.detail)
    table.add_row("  next", words.advice)
    console.print(table)


def _line(event: Event) -> str:
    parts = [when(event.time_ns), event.kind.value]
    if event.reason:
        parts.append(event.reason)
    if event.path:
        parts.append(escape(event.path))
    if event.operation:
        parts.append(f"({event.operation} by {event.program}, pid {event.pid}, {event.session})")
    else:
        parts.append(f"({event.session})")
    if event.detail:
        parts.append(event.detail)
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
        "next": wording(Reason(event.reason), settling=event.settling).advice if event.reason else None,
        "settling": event.settling,
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
