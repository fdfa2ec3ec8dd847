"""A real mount for a test, with shells of both kinds, and what must be true of every mount at its end."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from guardfs.control import client
from guardfs.control.protocol import Flush, MountState, Running, Status, Stop, Track, Turn
from guardfs.procs import mounts, reading
from guardfs.state.schema import Event
from guardfs.state.store import read_events
from tests.helpers.shell import DEADLINE_S, Shell

GUARDFS = [sys.executable, "-P", "-m", "guardfs"]
O_PATH = 0o10000000


def guardfs(*args: str | Path, cwd: Path | None = None, **kwargs: Any) -> "subprocess.CompletedProcess[str]":
    """Run the command to its end."""
    return subprocess.run(
        [*GUARDFS, *map(str, args)], cwd=cwd, capture_output=True, text=True, timeout=DEADLINE_S, check=False, **kwargs
    )


def until(true: Callable[[], Any], what: str) -> Any:
    """Wait for something that other processes bring about; fails the test when it does not come."""
    deadline = time.monotonic() + DEADLINE_S
    while not (value := true()):
        assert time.monotonic() < deadline, f"never came: {what}"
        os.sched_yield()
    return value


class Mount:
    """One workspace with a file ``f`` of three lines, mounted over itself unless a mount point is given."""

    def __init__(self, base: Path, *options: str, point: Path | None = None) -> None:
        self.base = base
        self.workspace = base / "ws"
        self.workspace.mkdir(exist_ok=True)
        self.point = point or self.workspace
        self.options = options
        self.expected_warnings: set[str] = set()
        self.shells: dict[str, Shell] = {}
        """Those that a fixture has given names to."""
        self._shells: list[Shell] = []
        self._backing = os.open(self.workspace, os.O_PATH | os.O_DIRECTORY)
        if not (self.workspace / "f").exists():
            (self.workspace / "f").write_text("one\ntwo\nthree\n")
        self.mount()

    @property
    def backing(self) -> Path:
        """The bare directory below the mount: the other road, ``user@`` of the cases."""
        return Path(f"/proc/{os.getpid()}/fd/{self._backing}")

    def mount(self) -> None:
        args = [self.workspace] if self.point == self.workspace else [self.workspace, self.point]
        done = guardfs("mount", *self.options, *args)
        assert done.returncode == 0, done.stderr
        self.state, self.note = client.find(str(self.point))
        self._descriptors = self._open_descriptors()

    def agent(self, label: str = "agent") -> Shell:
        """A tracked shell, standing in the mount."""
        shell = self.user()
        client.ask(self.state, Track(shell.pid, label))
        return shell

    def user(self) -> Shell:
        """An untracked shell, standing in the mount."""
        shell = Shell(self.point, self.base)
        self._shells.append(shell)
        return shell

    def turn(self) -> None:
        """What all sessions have read so far counts from now on, as if time had passed."""
        client.ask(self.state, Turn())

    def status(self) -> MountState:
        state = client.ask(self.state, Status(records=True)).state
        assert state is not None
        return state

    def events(self) -> list[Event]:
        if reading.is_alive(self.note.process):
            client.ask(self.state, Flush())
        return list(read_events(self.state / "store"))

    def log_lines(self) -> list[str]:
        return (self.state / "log").read_text().splitlines()

    def denials(self) -> list[str]:
        return [line for line in self.log_lines() if "event=denied" in line]

    def unmount(self) -> None:
        client.ask(self.state, Stop())
        until(lambda: not mounts.is_guarded(str(self.point)) and not reading.is_alive(self.note.process), "unmounted")

    def unmount_by_command(self) -> None:
        done = guardfs("unmount", self.point)
        assert done.returncode == 0, done.stderr

    def close(self) -> None:
        """End the shells, compare the daemon's descriptors, unmount, read the log."""
        for shell in self._shells:
            shell.close()
        try:
            if reading.is_alive(self.note.process):
                until(lambda: self._open_descriptors() <= self._descriptors, "the daemon's descriptors closed")
                self.unmount()
        finally:
            for _ in range(8):
                if mounts.is_guarded(str(self.point)):
                    mounts.unmount(str(self.point), lazy=True)
            os.close(self._backing)
        loud = [line for line in self.log_lines() if "level=warning" in line or "level=error" in line]
        unexpected = [line for line in loud if not any(word in line for word in self.expected_warnings)]
        assert not unexpected, unexpected

    def _open_descriptors(self) -> int:
        """How many the daemon has, without pins and pidfds, which are bounded and come and go."""
        count = 0
        base = Path(f"/proc/{self.note.process.pid}")
        for entry in (base / "fd").iterdir():
            try:
                target = os.readlink(entry)
                flags = (base / "fdinfo" / entry.name).read_text().split("flags:")[1].split()[0]
            except OSError:
                continue
            if not int(flags, 8) & O_PATH and "pidfd" not in target and not target.startswith("socket:"):
                count += 1
        return count


def note_of(state: Path) -> Running:
    return msgspec.json.decode((state / "daemon.json").read_bytes(), type=Running)
