"""``guardfs run``: COMMAND gets what it would have had, its caller gets COMMAND's answer, nothing stays behind."""

import hashlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from guardfs.errors import ExitCode
from guardfs.procs import mounts, reading
from tests.helpers.mounted import GUARDFS, guardfs, note_of, until

Done = "subprocess.CompletedProcess[str]"


@pytest.fixture
def workspace(tmp_path: Path, state: Path) -> Iterator[Path]:
    """A directory with a file ``f``; nothing may be mounted on it when the test is over."""
    path = tmp_path / "ws"
    path.mkdir()
    (path / "f").write_text("one\ntwo\n")
    yield path
    assert not [point for point in mounts.guarded() if point.startswith(str(tmp_path))]


def run(workspace: Path | str, *command: str, **kwargs: Any) -> "subprocess.CompletedProcess[str]":
    return guardfs("run", workspace, "--", *command, **kwargs)


def only_state(state: Path) -> Path:
    return next(state.iterdir())


@pytest.mark.parametrize(
    ("script", "status"),
    [("exit 0", 0), ("exit 3", 3), ("exit 255", 255), ("kill -9 $$", 137), ("kill -TERM $$", 143), ("kill -6 $$", 134)],
)
def test_the_status_is_the_commands(workspace: Path, script: str, status: int) -> None:
    done = run(workspace, "bash", "-c", script)
    assert done.returncode == status
    assert len(done.stderr.splitlines()) == 1  # the summary
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("command", "status", "reason"),
    [
        ("no-such-program", 127, "command not found"),
        ("./no-such-script", 127, "command not found"),
        ("", 127, "command not found"),
        ("./f", 126, "Permission denied"),
        ("./d", 126, "Permission denied"),
    ],
)
def test_a_command_that_cannot_be_run(workspace: Path, command: str, status: int, reason: str) -> None:
    (workspace / "d").mkdir()
    done = run(workspace, command)
    assert done.returncode == status
    assert len(done.stderr.splitlines()) == 1
    assert reason in done.stderr
    assert command in done.stderr


@pytest.mark.parametrize("first_line", ["#!/bin/sh\n", ""])
def test_a_command_is_looked_up_from_the_workspace(workspace: Path, first_line: str) -> None:
    script = workspace / "script"
    script.write_text(f'{first_line}echo "$0 $1"; exit 9\n')
    script.chmod(0o755)
    done = run(workspace, "./script", "two words", cwd=workspace.parent)
    assert (done.returncode, done.stdout) == (9, "./script two words\n")


def test_environment_and_directory(workspace: Path, state: Path) -> None:
    done = run(workspace, "bash", "-c", "pwd; echo $PWD; readlink /proc/$$/cwd; env | grep ^GUARDFS | sort; echo $MINE",
               env={**os.environ, "MINE": "kept"})  # fmt: skip
    log = only_state(state) / "log"
    lines = done.stdout.splitlines()
    assert lines[:3] == [str(workspace)] * 3
    session = lines[5].removeprefix("GUARDFS_SESSION=")
    assert lines[3:] == [
        f"GUARDFS_LOG={log}",
        f"GUARDFS_MOUNT={workspace}",
        f"GUARDFS_SESSION={session}",
        f"GUARDFS_STATE={state}",
        "kept",
    ]
    assert f"session={session}" in log.read_text()


def test_streams_are_passed(workspace: Path) -> None:
    done = run(workspace, "bash", "-c", "cat; echo err >&2", input="through stdin\n")
    assert done.stdout == "through stdin\n"
    assert done.stderr.splitlines()[0] == "err"


def test_a_large_pipe(workspace: Path) -> None:
    data = os.urandom(1 << 20) * 24
    done = subprocess.run(
        [*GUARDFS, "run", workspace, "--", "sh", "-c", "tee copy | cat"], input=data, capture_output=True, check=True
    )
    expected = hashlib.sha256(data).digest()
    assert hashlib.sha256(done.stdout).digest() == expected
    assert hashlib.sha256((workspace / "copy").read_bytes()).digest() == expected


def test_descriptors_are_inherited_by_the_command_alone(workspace: Path, state: Path) -> None:
    read, write = os.pipe()
    script = f"echo through >&{write}; ls -l /proc/$(cat {state}/*/daemon.json | tr -dc '0-9,' | cut -d, -f1)/fd"
    done = run(workspace, "bash", "-c", script, pass_fds=[write])
    os.close(write)
    with open(read) as pipe:
        assert pipe.read() == "through\n"
        assert f"pipe:[{os.fstat(read).st_ino}]" not in done.stdout
    assert "/dev/fuse" in done.stdout


def test_signal_mask_and_dispositions_are_the_callers(workspace: Path) -> None:
    def disturb() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    look = ["grep", "-E", "^Sig(Blk|Ign)|^ShdPnd", "/proc/self/status"]
    bare = subprocess.run(look, capture_output=True, text=True, preexec_fn=disturb, check=True)
    assert run(workspace, *look, preexec_fn=disturb).stdout == bare.stdout


def test_a_closed_stderr_does_not_turn_stdout_into_one(workspace: Path) -> None:
    done = run(workspace, "echo", "mine", preexec_fn=lambda: os.close(2))
    assert (done.returncode, done.stdout, done.stderr) == (0, "mine\n", "")


@pytest.mark.parametrize("name", ["with space", "with\nnewline", "ümläut", "tab\tback\\slash", "-dash", b"raw\xff"])
def test_names_of_workspaces(workspace: Path, name: str | bytes) -> None:
    path = os.path.join(os.fsencode(workspace.parent), os.fsencode(name))
    os.mkdir(path)
    for before in (b"", b"x\n"):
        done = subprocess.run(
            [
                *GUARDFS,
                "run",
                path,
                "--",
                "sh",
                "-c",
                'pwd; cat f 2>&-; echo x > f; cat f; printf "%s" "$GUARDFS_MOUNT"',
            ],
            capture_output=True,
            check=False,
        )
        assert done.stdout == path + b"\n" + before + b"x\n" + path, done.stderr
        assert len(done.stderr.splitlines()) == 1
    assert not mounts.is_guarded(os.fsdecode(path))


@pytest.mark.parametrize(
    ("given", "cwd"), [("ws", "."), ("./ws/", "."), ("../ws", "ws"), (".", "ws"), ("link", "."), ("..", "ws/sub")]
)
def test_ways_to_name_the_workspace(workspace: Path, given: str, cwd: str) -> None:
    (workspace / "sub").mkdir()
    (workspace.parent / "link").symlink_to("ws")
    done = run(given, "sh", "-c", "pwd; echo $GUARDFS_MOUNT; echo x > f", cwd=workspace.parent / cwd)
    assert done.stdout.splitlines() == [str(workspace)] * 2
    assert "Input/output error" in done.stderr
    assert (workspace / "f").read_text() == "one\ntwo\n"


def test_the_summary(workspace: Path, state: Path) -> None:
    done = run(
        workspace, "sh", "-c", "cat f; echo x > new; echo x >> new; echo x > f; touch g; cp f copy; : > g; rm ../ws/g"
    )
    log = only_state(state) / "log"
    assert done.stderr.splitlines()[-1] == (f"guardfs: files read: 1, written: 4; operations refused: 0; log: {log}"), (
        done.stderr
    )
    (workspace / "h").write_text("h")
    done = run(workspace, "sh", "-c", "echo x > h; rm h")
    assert f"guardfs: files read: 0, written: 0; operations refused: 2; log: {log}" in done.stderr


def test_a_second_run_is_refused(workspace: Path) -> None:
    again = " ".join([*GUARDFS, "run", str(workspace), "--", "true"])
    done = run(workspace, "sh", "-c", f"{again}; echo $?")
    assert done.stdout == f"{int(ExitCode.BUSY)}\n"
    assert "already mounted" in done.stderr


def test_unmounting_under_a_command_is_refused(workspace: Path, state: Path) -> None:
    fifo = workspace.parent / "fifo"
    os.mkfifo(fifo)
    with subprocess.Popen(
        [*GUARDFS, "run", workspace, "--", "cat", fifo], stderr=subprocess.PIPE, text=True
    ) as launcher:
        with fifo.open("w"):
            note = note_of(only_state(state))
            done = guardfs("unmount", workspace)
            assert done.returncode == ExitCode.BUSY
            assert f"pid {launcher.pid}" in done.stderr
            os.kill(note.process.pid, signal.SIGTERM)
            until(lambda: "not stopping" in Path(note.log).read_text(), "the daemon's refusal")
            assert mounts.is_guarded(str(workspace))
        assert launcher.wait() == 0


def test_an_end_before_the_command_has_begun(workspace: Path) -> None:
    """As soon as the launcher holds signals back; then nothing is left mounted, whenever exactly it came."""
    with subprocess.Popen([*GUARDFS, "run", workspace, "--", "sleep", "100"], stderr=subprocess.PIPE) as launcher:
        until(lambda: _blocks(launcher.pid, signal.SIGTERM), "the launcher's mask")
        launcher.terminate()
        assert launcher.wait() == 128 + signal.SIGTERM


def _blocks(pid: int, number: int) -> bool:
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("SigBlk"))
    return bool(int(line.split()[1], 16) >> number - 1 & 1)


def test_what_is_left_may_finish_by_itself(workspace: Path) -> None:
    """An orphan that has left the session, too: twice forked, its parents gone."""
    fifo = workspace.parent / "fifo"
    os.mkfifo(fifo)
    script = f"(setsid nohup sh -c 'read x < {fifo}; echo late > late' > /dev/null 2>&1 &); exit 4"
    with subprocess.Popen(
        [*GUARDFS, "run", workspace, "--", "sh", "-c", script], stderr=subprocess.PIPE, text=True
    ) as p:
        fifo.write_text("go\n")
        assert p.wait() == 4
        assert p.stderr is not None
        assert "SIGTERM" not in p.stderr.read()
    assert (workspace / "late").read_text() == "late\n"


def test_wait_waits_and_says_for_what(workspace: Path) -> None:
    fifo = workspace.parent / "fifo"
    os.mkfifo(fifo)
    script = f"(setsid nohup sh -c 'read x < {fifo}; echo late > late' > /dev/null 2>&1 &)"
    command = [*GUARDFS, "run", "--wait", str(workspace), "--", "sh", "-c", script]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as launcher, fifo.open("w") as go:
        assert launcher.stderr is not None
        assert launcher.stderr.readline().startswith("guardfs: waiting for what COMMAND left behind, ")
        go.write("go\n")
        go.close()
        assert launcher.wait() == 0
    assert (workspace / "late").read_text() == "late\n"


def test_five_seconds_then_sigterm_then_sigkill(workspace: Path) -> None:
    soft = "exec setsid sleep 100"
    hard = "trap '' TERM; echo ready > ../ready; while :; do sleep 0.2; done"
    script = f'({soft}) & (setsid bash -c "{hard}" &); until test -e ../ready; do :; done; echo $! > ../soft'
    begun = time.monotonic()
    done = run(workspace, "bash", "-c", script)
    took = time.monotonic() - begun
    assert done.returncode == 0
    waiting, term, kill, summary = done.stderr.splitlines()
    soft_pid = (workspace.parent / "soft").read_text().strip()
    assert waiting.startswith("guardfs: waiting up to 4 s for what COMMAND left behind, ")
    assert term.startswith("guardfs: still running after COMMAND: ")
    assert term.endswith("; sending SIGTERM")
    assert f"sleep (pid {soft_pid})" in term
    assert kill.startswith("guardfs: did not end after SIGTERM: bash (pid ")
    assert f"pid {soft_pid}" not in kill
    assert kill.endswith("; sending SIGKILL")
    assert summary.startswith("guardfs: files read: ")
    assert 10 <= took < 13


def test_children_that_were_there_before_are_left_alone(workspace: Path) -> None:
    """A shell that becomes the launcher leaves it its own, here a reader of COMMAND's output."""
    line = " ".join([*GUARDFS, "run", str(workspace), "--", "echo", "through"])
    begun = time.monotonic()
    done = subprocess.run(
        ["bash", "-c", f"exec {line} > >(sleep 0.1; cat)"], capture_output=True, text=True, check=True
    )
    assert done.stdout == "through\n"
    assert len(done.stderr.splitlines()) == 1
    assert time.monotonic() - begun < 4


def test_nothing_of_ours_is_left_running(workspace: Path) -> None:
    before = set(reading.descendants(os.getpid()))
    subprocess.run([*GUARDFS, "run", workspace, "--", "true"], check=True, capture_output=True)
    assert set(reading.descendants(os.getpid())) <= before


@pytest.mark.parametrize("variables", [{"GUARDFS_STATE": "{}/own"}, {"XDG_STATE_HOME": "{}"}, {"HOME": "{}/home"}])
def test_where_the_state_is(workspace: Path, tmp_path: Path, variables: dict[str, str]) -> None:
    base = tmp_path / "place"
    env = {k: v for k, v in os.environ.items() if k not in ("GUARDFS_STATE", "XDG_STATE_HOME")}
    env |= {key: value.format(base) for key, value in variables.items()}
    done = run(workspace, "sh", "-c", "echo $GUARDFS_LOG", env=env)
    place = {"GUARDFS_STATE": "own", "XDG_STATE_HOME": "guardfs", "HOME": "home/.local/state/guardfs"}[
        next(iter(variables))
    ]
    log = Path(done.stdout.strip())
    assert log.parent.parent == base / place
    assert log.parent.stat().st_mode & 0o777 == 0o700
