"""The commands that change something on a running mount."""

import os
import time
from pathlib import Path

from guardfs.control import client
from guardfs.control.protocol import Running, Stop, Track, Turn
from guardfs.errors import ExitCode, GuardfsError
from guardfs.procs import mounts

_END_S = 30.0
"""Seconds to wait for a daemon to end."""


def track(pid: int, path: str | None, label: str) -> str:
    """Track a process in the mount that ``path`` lies in, else in the only one. Raises GuardfsError."""
    state, note = client.find(path) if path else _only_mount()
    begun = client.ask(state, Track(pid, label or f"pid {pid}")).begun
    assert begun is not None
    return f"process {pid} is tracked as {begun.session} in {note.mountpoint}"


def turn(path: str) -> str:
    """Begin a new turn: asked from inside a session for that one, else for all of the mount. Raises GuardfsError."""
    state, note = client.find(path)
    begun = client.ask(state, Turn()).turned
    return f"a new turn begins for {', '.join(begun) or 'nobody: there is no session'} in {note.mountpoint}"


def _only_mount() -> tuple[Path, Running]:
    living = [(state, note) for state, note in client.known() if client.is_alive(note)]
    here = [entry for entry in living if client.lies_in(os.getcwd(), entry[1])]
    chosen = here or living
    if len(chosen) == 1:
        return chosen[0]
    if not chosen:
        raise GuardfsError("no workspace is guarded; begin with 'guardfs mount WORKSPACE'", ExitCode.NO_INPUT)
    points = ", ".join(note.mountpoint for _, note in chosen)
    raise GuardfsError(f"several workspaces are guarded ({points}); name one: guardfs track PID PATH", ExitCode.USAGE)


def unmount(path: str) -> str:
    """End the mount at or above a path; what is said about it. Raises GuardfsError."""
    point, living = _mount_of(path)
    if living is not None:
        client.ask(living[0], Stop())
        _await_end(living[1])
        return f"{point} is no longer guarded"
    try:
        if mounts.clear_dead(point):
            return f"{point}: dead mount cleared"
        mounts.unmount(point)
    except mounts.UnmountError as error:
        raise GuardfsError(f"{point}: {error}; end what uses it and try again", ExitCode.BUSY) from error
    return f"{point} is no longer guarded"


def _mount_of(path: str) -> tuple[str, tuple[Path, Running] | None]:
    """The mount point that is meant, and its daemon if one of ours lives."""
    try:
        state, note = client.find(path)
    except GuardfsError:
        return _mounted_above(path), None
    if client.is_alive(note):
        return note.mountpoint, (state, note)
    return (note.mountpoint if mounts.is_guarded(note.mountpoint) else _mounted_above(path)), None


def _mounted_above(path: str) -> str:
    wanted = os.path.abspath(path)
    above = [point for point in mounts.guarded() if wanted == point or wanted.startswith(point.rstrip("/") + "/")]
    if not above:
        raise GuardfsError(f"{path}: not a guardfs mount; 'guardfs status' lists them", ExitCode.NO_INPUT)
    return max(above, key=len)


def _await_end(note: Running) -> None:
    deadline = time.monotonic() + _END_S
    while mounts.is_guarded(note.mountpoint) or client.is_alive(note):
        if time.monotonic() > deadline:
            raise GuardfsError(
                f"{note.mountpoint}: still being unmounted after {_END_S:.0f} s; its log says why",
                ExitCode.BUSY,
            )
        time.sleep(0.02)
