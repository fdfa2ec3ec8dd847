"""The daemon dies or is told to end: the mount is dead and never open, and cleared by whoever comes next."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from guardfs.control import client
from guardfs.control.protocol import pack
from guardfs.daemon.checks import plan_for
from guardfs.errors import ExitCode
from guardfs.procs import mounts, reading
from guardfs.state.schema import EventKind
from guardfs.state.store import read_events
from tests.conftest import MakeMount
from tests.helpers.mounted import GUARDFS, guardfs, until

WRITER = """
import os, signal, sys
notes, path, deaf = sys.argv[1:]
if deaf == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
note = open(notes, "w", buffering=1)
print(os.getpid(), file=note)
while True:
    try:
        with open(path, "a") as file:
            file.write("line\\n")
        print("written", file=note)
    except OSError as error:
        print("refused", error.errno, file=note)
"""


@pytest.fixture
def workspace(tmp_path: Path, state: Path) -> Iterator[Path]:
    path = tmp_path / "ws"
    path.mkdir()
    (path / "f").write_text("one\n")
    (tmp_path / "writer.py").write_text(WRITER)
    yield path
    left = mounts.is_guarded(str(path))
    while mounts.is_guarded(str(path)):
        mounts.unmount(str(path), lazy=True)
    assert not left


def daemon_of(path: Path) -> int:
    return client.find(str(path))[1].process.pid


def gone(pid: int) -> bool:
    return reading.is_zombie(pid)


class Writing:
    """``guardfs run`` over a command that appends to a file of its own, by its absolute path, as fast as it can."""

    def __init__(self, workspace: Path, deaf: str) -> None:
        self._backing = os.open(workspace, os.O_PATH)
        self._notes = workspace.parent / "notes"
        words = (sys.executable, workspace.parent / "writer.py", self._notes, workspace / "own", deaf)
        self.launcher = subprocess.Popen(
            [*GUARDFS, "run", str(workspace), "--", *map(str, words)], stderr=subprocess.PIPE, text=True
        )
        until(lambda: self._notes.exists() and "written" in self._notes.read_text(), "the first write")
        self.pid = int(self._notes.read_text().split()[0])
        self.state = client.find(str(workspace))[0]

    def refusals(self) -> int:
        return self._notes.read_text().count("refused")

    def bare(self) -> bytes:
        return Path(f"/proc/self/fd/{self._backing}/own").read_bytes()

    def end(self) -> tuple[int, list[str]]:
        """The launcher's status, and what it has said."""
        _, said = self.launcher.communicate()
        os.close(self._backing)
        return self.launcher.returncode, said.splitlines()


def test_no_write_gets_through_when_the_daemon_of_a_run_is_killed(workspace: Path) -> None:
    writing = Writing(workspace, "deaf")
    os.kill(daemon_of(workspace), signal.SIGKILL)
    until(lambda: writing.refusals() > 100, "refusals")
    bare = writing.bare()
    until(lambda: gone(writing.pid), "the writer's end")
    assert writing.refusals() > 200
    assert writing.bare() == bare == b"line\n" * (len(bare) // 5)
    status, said = writing.end()
    assert status == ExitCode.SOFTWARE
    assert said[0].startswith("guardfs: the daemon has died; the mount is dead and nothing gets through")
    assert said[1].startswith("guardfs: did not end after SIGTERM: ")
    assert f"(pid {writing.pid}); sending SIGKILL" in said[1]
    assert said[2:] == [f"guardfs: dead mount at {workspace} cleared; log: {writing.state / 'log'}"]
    assert not mounts.is_guarded(str(workspace))
    assert (workspace / "own").read_bytes() == bare


def test_after_a_killed_run_everything_works_again(workspace: Path) -> None:
    begun = time.monotonic()
    writing = Writing(workspace, "hears")
    os.kill(daemon_of(workspace), signal.SIGKILL)
    status, said = writing.end()
    assert status == ExitCode.SOFTWARE
    assert len(said) == 2
    assert gone(writing.pid)
    assert time.monotonic() - begun < 5
    before = list(read_events(writing.state / "store"))
    done = guardfs("run", workspace, "--", "sh", "-c", "echo x > f; cat f")
    assert "Input/output error" in done.stderr
    assert done.stdout == "one\n"
    assert guardfs("mount", workspace).returncode == 0
    assert guardfs("unmount", workspace).returncode == 0
    events = list(read_events(writing.state / "store"))
    assert events[: len(before)] == before
    assert EventKind.DENIED in {event.kind for event in events[len(before) :]}
    assert "store damaged" not in (writing.state / "log").read_text()


NEXT: dict[str, Callable[[Path], None]] = {
    "mount": lambda path: _succeed("mount", path),
    "run": lambda path: _succeed("run", path, "--", "cat", "f"),
    "unmount": lambda path: _succeed("unmount", path),
}


def _succeed(*args: str | Path) -> None:
    done = guardfs(*args)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", NEXT)
def test_a_dead_mount_is_cleared_by_the_next(workspace: Path, command: str) -> None:
    _succeed("mount", workspace)
    pid = daemon_of(workspace)
    os.kill(pid, signal.SIGKILL)
    until(lambda: mounts.is_dead(str(workspace)), "the mount is dead")
    assert "dead mount" in guardfs("status").stdout
    with pytest.raises(OSError, match="not connected"):
        (workspace / "f").write_text("through")
    NEXT[command](workspace)
    assert mounts.is_guarded(str(workspace)) is (command == "mount")
    assert (workspace / "f").read_text() == "one\n"
    if command == "mount":
        _succeed("unmount", workspace)


def test_a_dead_mount_elsewhere_is_cleared(workspace: Path) -> None:
    point = workspace.parent / "point"
    point.mkdir()
    _succeed("mount", workspace, point)
    os.kill(daemon_of(point), signal.SIGKILL)
    until(lambda: mounts.is_dead(str(point)), "the mount is dead")
    _succeed("mount", workspace, point)
    assert (point / "f").read_text() == "one\n"
    _succeed("unmount", point / "f")
    assert os.listdir(point) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_a_mount_in_the_foreground(workspace: Path, number: signal.Signals) -> None:
    with subprocess.Popen(
        [*GUARDFS, "mount", "--foreground", workspace], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as daemon:
        assert daemon.stdout is not None
        assert daemon.stdout.readline().startswith(f"{workspace} is guarded; log: ")
        assert (workspace / "f").read_text() == "one\n"
        daemon.send_signal(number)
        assert daemon.wait() == 0
        assert daemon.stderr is not None
        assert daemon.stderr.read() == ""
    assert not mounts.is_guarded(str(workspace))


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT])
def test_a_mount_that_was_made_deaf_stays(workspace: Path, number: signal.Signals) -> None:
    """nohup, and a shell's ``&`` without job control."""
    with subprocess.Popen(
        [*GUARDFS, "mount", "--foreground", workspace],
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(number, signal.SIG_IGN),  # noqa: PLW1509 - the child only sets its signals
    ) as daemon:
        assert daemon.stdout is not None
        daemon.stdout.readline()
        daemon.send_signal(number)
        assert (workspace / "f").read_text() == "one\n"
        daemon.terminate()
        assert daemon.wait() == 0


@pytest.mark.parametrize("how", ["signal", "unmount"])
def test_an_end_while_in_use_is_bounded(make_mount: MakeMount, how: str) -> None:
    """A shell stands in the mount: it is detached at once, served a little longer, and then the daemon ends."""
    mount = make_mount()
    shell = mount.user()
    pid = mount.note.process.pid
    begun = time.monotonic()
    if how == "signal":
        os.kill(pid, signal.SIGTERM)
        until(lambda: not mounts.is_guarded(str(mount.point)), "detached")
        assert shell.run("cat f").out == "one\ntwo\nthree\n"
        until(lambda: gone(pid), "the daemon's end")
    else:
        done = guardfs("unmount", mount.point)
        assert (done.returncode, done.stdout) == (0, f"{mount.point} is no longer guarded\n")
        assert gone(pid)
    assert time.monotonic() - begun < 10
    assert (mount.point / "f").read_text() == "one\ntwo\nthree\n"
    assert "not connected" in shell.run("cat f").err


def test_a_mount_that_nobody_waits_for_is_taken_away(workspace: Path) -> None:
    """Whoever asked for it was killed before it was told: there would be nobody to end it."""
    read, write = os.pipe()
    daemon = subprocess.Popen(
        [sys.executable, "-P", "-m", "guardfs.daemon"], stdin=subprocess.PIPE, stdout=write, stderr=subprocess.PIPE
    )
    os.close(read)
    os.close(write)
    _, said = daemon.communicate(pack(plan_for(str(workspace), None)))
    assert (daemon.returncode, said) == (0, b"")
    assert not mounts.is_guarded(str(workspace))


def test_a_run_whose_mount_is_taken_away_kills_its_command(workspace: Path) -> None:
    writing = Writing(workspace, "deaf")
    mounts.unmount(str(workspace), lazy=True)
    os.kill(daemon_of(workspace), signal.SIGKILL)
    status, said = writing.end()
    assert status == ExitCode.SOFTWARE
    assert said == [
        f"guardfs: {workspace} has been unmounted by somebody else; killing the command's processes",
    ]
    assert gone(writing.pid)
