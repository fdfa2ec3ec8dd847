"""The asking side of the control socket: finding the daemon of a path, starting one, and one question each.

Plain blocking calls, for the launcher and the command line.
"""

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

import msgspec

from guardfs import config
from guardfs.control import protocol
from guardfs.control.protocol import Answer, Begun, Plan, Request, Running, pack, unpack
from guardfs.errors import ExitCode, GuardfsError
from guardfs.procs import reading

_ANSWER_S = 60.0
"""Seconds to wait for an answer: a status hashes files."""


def find(path: str) -> tuple[Path, Running]:
    """The state directory and note of the mount that a path lies in, living or dead.

    Raises:
        GuardfsError: no mount of this user holds the path.
    """
    wanted = os.path.abspath(path)
    spellings = (wanted, os.path.realpath(wanted))
    found = [(state, note) for state, note in known() if any(lies_in(spelling, note) for spelling in spellings)]
    if not found:
        raise GuardfsError(f"{path}: not in a guarded workspace; see 'guardfs mount --help'", ExitCode.NO_INPUT)
    # A note outlives its daemon: what is mounted now is meant before what once was, and the innermost of those.
    return max(found, key=lambda entry: (is_alive(entry[1]), max(map(len, _tops(spellings, entry[1])))))


def known() -> list[tuple[Path, Running]]:
    """All mounts that have left a note in this user's state."""
    try:
        states = sorted(config.state_root().iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    notes = [(state, protocol.running(state)) for state in states]
    return [(state, note) for state, note in notes if note is not None]


def is_alive(note: Running) -> bool:
    """Whether the daemon that left a note still runs."""
    return reading.is_alive(note.process)


def lies_in(path: str, note: Running) -> bool:
    """Whether an absolute path lies in a mount or in the workspace under it."""
    return bool(_tops([path], note))


def _tops(paths: Iterable[str], note: Running) -> list[str]:
    """Which of a mount's two directories hold one of these paths."""
    return [top for top in (note.mountpoint, note.workspace) if any(_within(path, top) for path in paths)]


def below(path: str, note: Running) -> bytes:
    """A path relative to the mount that it lies in, as events spell it: its last name is not followed."""
    wanted = os.path.abspath(path)
    resolved = os.path.join(os.path.realpath(os.path.dirname(wanted)), os.path.basename(wanted))
    for candidate in (wanted, resolved):
        for top in (note.mountpoint, note.workspace):
            if _within(candidate, top):
                return os.fsencode(os.path.relpath(candidate, top))
    return os.fsencode(path)


def _within(path: str, top: str) -> bool:
    return path == top or path.startswith(top.rstrip("/") + "/")


def ask(state: Path, request: Request) -> Answer:
    """Put one question to the daemon of a state directory.

    Raises:
        GuardfsError: it does not answer, or answers with a failure.
    """
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line, _short_path(state) as directory:
            line.settimeout(_ANSWER_S)
            line.connect(f"{directory}/control.sock")
            line.sendall(msgspec.json.encode(request) + b"\n")
            with line.makefile("rb") as replies:
                reply = replies.readline()
    except OSError as error:
        raise GuardfsError(
            f"the daemon does not answer ({error.strerror or error}); 'guardfs unmount' clears what it left",
            ExitCode.SOFTWARE,
        ) from error
    if not reply:
        raise GuardfsError("the daemon hung up without an answer; its log says why", ExitCode.SOFTWARE)
    return msgspec.json.decode(reply, type=Answer).checked()


@contextlib.contextmanager
def _short_path(directory: Path) -> Iterator[str]:
    """A path to a directory that fits into a socket address (108 bytes, unix(7)), however long its own is."""
    fd = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{fd}"
    finally:
        os.close(fd)


def start(plan: Plan) -> tuple["subprocess.Popen[bytes]", Begun]:
    """Start a daemon in a session of its own and wait until its mount is usable.

    If we are ended meanwhile, the daemon finds nobody to answer to, and takes its mount away again.

    Raises:
        GuardfsError: it could not begin; it has said why.
    """
    # -P: the directory of "-m" must not be searched for modules, since it may be the workspace.
    daemon = subprocess.Popen(
        [sys.executable, "-P", "-m", "guardfs.daemon"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd="/",
        start_new_session=True,
    )
    assert daemon.stdin is not None
    assert daemon.stdout is not None
    assert daemon.stderr is not None
    with daemon.stdout as answers, daemon.stderr as complaints:
        _order(daemon.stdin, plan)
        line = answers.readline()
        if not line:
            daemon.wait()
            last = complaints.read().decode(errors="replace").strip().splitlines()[-1:] or ["no reason given"]
            raise GuardfsError(f"the daemon could not start: {last[0]}", ExitCode.SOFTWARE)
    begun = unpack(line, Begun)
    if begun.error:
        daemon.wait()
        raise GuardfsError(begun.error, ExitCode(begun.code))
    return daemon, begun


def _order(orders: IO[bytes], plan: Plan) -> None:
    try:
        with orders:
            orders.write(pack(plan))
    except BrokenPipeError:
        pass  # It has ended already, and has said why.
