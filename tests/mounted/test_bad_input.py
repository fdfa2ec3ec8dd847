"""Mistakes: one line that names the thing and the way out, the right exit code, nothing mounted or half-written."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from guardfs.errors import ExitCode
from guardfs.procs import mounts
from tests.helpers.mounted import GUARDFS, Mount, guardfs

NOBODY = 65534


@pytest.fixture
def base(tmp_path: Path, state: Path) -> Iterator[Path]:
    """A directory with a workspace ``ws``; afterwards the tree is as it was, and nothing is mounted in it."""
    (tmp_path / "ws" / "d").mkdir(parents=True)
    (tmp_path / "ws" / "f").write_text("f\n")
    (tmp_path / "point").mkdir()
    yield tmp_path
    assert not [point for point in mounts.guarded() if point.startswith(str(tmp_path))]
    assert sorted(os.listdir(tmp_path / "ws")) in (["d", "f"], [".guardfs.toml", "d", "f"])


def check_refusal(done: "subprocess.CompletedProcess[str]", code: ExitCode, *parts: str) -> None:
    assert done.returncode == code, done
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert done.stderr.startswith("guardfs: ")
    for part in parts:
        assert part in done.stderr


MISTAKES = {
    "a command that there is not": (["mont", "ws"], "'mont'", "guardfs --help"),
    "an option that there is not": (["run", "--grace", "ws"], "--grace", "guardfs run --help"),
    "an option of COMMAND without --": (["run", "ws", "ls", "-l"], "-l", "guardfs run --help"),
    "no workspace": (["run"], "WORKSPACE", "guardfs run --help"),
    "no command": (["run", "ws"], "COMMAND", "guardfs run --help"),
    "no command after --": (["run", "ws", "--"], "COMMAND", "guardfs run --help"),
    "no workspace to mount": (["mount"], "WORKSPACE", "guardfs mount --help"),
    "too much to mount": (["mount", "ws", "point", "more"], "more", "guardfs mount --help"),
    "an option without its value": (["mount", "ws", "--match"], "--match", "guardfs --help"),
    "a bad value": (["mount", "ws", "--match", "exact"], "'exact'", "'strict', 'identity', 'content'"),
    "a bad errno": (["run", "ws", "--errno", "ENOSYS", "--", "true"], "'ENOSYS'", "'EIO', 'EACCES'"),
    "a flag with a value": (["mount", "ws", "--track-all=yes"], "--track-all", "guardfs --help"),
    "no pid": (["track"], "PID", "guardfs track --help"),
    "a pid that is none": (["track", "bash"], "'bash'", "guardfs track --help"),
    "pid 0": (["track", "0"], "'0'", "guardfs track --help"),
    "a program that there is not": (["mount", "ws", "--track-exe", "no-such"], "no-such", "give a path"),
    "a script as a program": (["mount", "ws", "--track-exe", "./script"], "./script", "guardfs track"),
    "the root": (["mount", "/"], "/: ", "choose a directory below it"),
    "a mount point in the workspace": (["mount", "ws", "ws/d"], "/ws/d", "choose another mount point"),
    "a workspace in the mount point": (["mount", "ws/d", "ws"], "/ws", "choose another mount point"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_wrong_command_line(base: Path, mistake: str) -> None:
    args, *parts = MISTAKES[mistake]
    (base / "script").write_text("#!/bin/sh\n")
    (base / "script").chmod(0o755)
    check_refusal(guardfs(*args, cwd=base), ExitCode.USAGE, *parts)
    assert not (base / "state").exists()


WRONG_PLACES = {
    "no such directory": (["no-such"], "/no-such: no such directory"),
    "no such directory, with a newline": (["no\nsuch"], "/no\\nsuch: no such directory"),
    "a file": (["ws/f"], "/ws/f: not a directory"),
    "below a file": (["ws/f/g"], "/ws/f/g: Not a directory"),
    "a name that is too long": (["n" * 300], "File name too long"),
    "no such mount point": (["ws", "no-such"], "/no-such: no such directory"),
    "a file as the mount point": (["ws", "ws/f"], "/ws/f: not a directory"),
}


@pytest.mark.parametrize("command", ["mount", "mount --foreground", "run"])
@pytest.mark.parametrize("place", WRONG_PLACES)
def test_a_wrong_place(base: Path, command: str, place: str) -> None:
    paths, reason = WRONG_PLACES[place]
    if command == "run":
        if len(paths) > 1:
            return
        paths = [*paths, "--", "touch", str(base / "ran")]
    check_refusal(guardfs(*command.split(), *paths, cwd=base), ExitCode.NO_INPUT, reason)
    assert not (base / "state").exists()
    assert not (base / "ran").exists()


@pytest.mark.parametrize("command", ["mount", "run"])
@pytest.mark.parametrize("place", ["on", "inside", "above", "link", "mount point"])
def test_a_workspace_on_the_state(base: Path, command: str, place: str) -> None:
    (base / "link").symlink_to("above")
    own = {"on": "ws", "inside": "", "above": "ws/d/state", "link": "ws/d/state", "mount point": "point/state"}[place]
    args: list[str] = ["ws"]
    if place == "link":
        (base / "link").unlink()
        (base / "link").symlink_to("ws/d")
        own = "link/state"
    if place == "mount point":
        if command == "run":
            return
        args = ["ws", "point"]
    args += ["--", "true"] if command == "run" else []
    done = guardfs(command, *args, cwd=base, env={**os.environ, "GUARDFS_STATE": str(base / own)})
    check_refusal(done, ExitCode.CONFIG, "overlaps guardfs's own state", "set GUARDFS_STATE")
    assert not (base / "ws" / "d" / "state").exists()
    assert os.listdir(base / "point") == []


def test_a_workspace_that_is_the_state_under_another_name(base: Path) -> None:
    """A bind mount gives the directory a second path."""
    subprocess.run(["mount", "--bind", base / "ws", base / "point"], check=True)
    try:
        done = guardfs(
            "mount", "ws", cwd=base, env={**os.environ, "GUARDFS_STATE": str(base / "point" / "d" / "state")}
        )
        check_refusal(done, ExitCode.CONFIG, "overlaps guardfs's own state")
        check_refusal(guardfs("mount", "ws", "point", cwd=base), ExitCode.USAGE, "choose another mount point")
    finally:
        subprocess.run(["umount", base / "point"], check=True)


@pytest.mark.parametrize("command", ["mount", "run"])
def test_a_state_directory_that_is_a_file(base: Path, command: str) -> None:
    (base / "state").write_text("mine\n")
    args = ["--", "true"] if command == "run" else []
    check_refusal(guardfs(command, "ws", *args, cwd=base), ExitCode.CANNOT_CREATE, "/state", "set GUARDFS_STATE")
    assert (base / "state").read_text() == "mine\n"
    check_refusal(guardfs("log", "ws", cwd=base), ExitCode.NO_INPUT, "ws: not in a guarded workspace")


def test_a_state_directory_on_a_read_only_file_system(base: Path) -> None:
    (base / "state").mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "none", base / "state"], check=True)
    try:
        done = guardfs("mount", "ws", cwd=base)
    finally:
        subprocess.run(["umount", base / "state"], check=True)
    check_refusal(done, ExitCode.CANNOT_CREATE, "Read-only file system", "set GUARDFS_STATE")


SETTINGS = {
    "syntax": ("match = = 1\n", "not valid TOML", "line 1"),
    "not text": ("match = '\udcff'\n", "not valid TOML", "remove it"),
    "unknown key": ('mach = "strict"\n', "'mach' is not known", "did you mean 'match'?"),
    "unknown key far from all": ("zzz = 1\n", "'zzz' is not known", "known: profile, match, append"),
    "unknown key in a table": ("[reads]\nignor = []\n", "'reads.ignor' is not known", "did you mean 'reads.ignore'?"),
    "wrong type": ('hash_limit = "64M"\n', "'hash_limit': expected a whole number, got a string", ""),
    "wrong type in a list": ("exempt = [1]\n", "'exempt[0]': expected a string", ""),
    "wrong value": ('match = "exact"\n', "'match'", "'exact'; one of strict, identity, content"),
    "wrong errno": ('errno = "ENOSYS"\n', "'errno'", "one of EIO, EACCES"),
    "out of range": ("max_records = 0\n", "'max_records': expected a whole number >= 1", ""),
    "a table's key outside it": ("ignore = []\n", "'ignore' is not known", "did you mean 'reads.ignore'?"),
    "a pattern that names nothing": ('exempt = ["/"]\n', "'exempt': pattern '/' names nothing", ""),
    "a wrong value in a table": ('[reads]\ncredit = "line"\n', "'reads.credit'", "one of open, bytes"),
    "a negative time": ("settle = -1\n", "'settle': expected a number >= 0", ""),
}


@pytest.mark.parametrize("mistake", SETTINGS)
def test_bad_settings(base: Path, mistake: str) -> None:
    content, *parts = SETTINGS[mistake]
    file = base / "ws" / ".guardfs.toml"
    file.write_bytes(os.fsencode(content))
    check_refusal(guardfs("mount", "ws", cwd=base), ExitCode.CONFIG, f"{file}: ", *parts)


@pytest.mark.parametrize("kind", ["directory", "link", "fifo"])
def test_settings_that_are_no_file(base: Path, kind: str) -> None:
    file = base / "ws" / ".guardfs.toml"
    make = {"directory": os.mkdir, "fifo": os.mkfifo, "link": lambda path: os.symlink("f", path)}
    make[kind](file)
    done = guardfs("run", "ws", "--", "true", cwd=base)
    if kind == "directory":
        file.rmdir()
    check_refusal(done, ExitCode.CONFIG, f"{file}: ", "or remove it")


@pytest.mark.parametrize("command", [["mount", "."], ["run", ".", "--", "true"], ["mount", "--foreground", "."]])
def test_mounted_already(mount: Mount, command: list[str]) -> None:
    check_refusal(
        guardfs(*command, cwd=mount.workspace), ExitCode.BUSY, f"{mount.workspace}: already mounted", "guardfs unmount"
    )
    assert (mount.workspace / "f").read_text() == "one\ntwo\nthree\n"
    assert len(mounts.guarded()) == len(set(mounts.guarded()))


def test_served_already_at_another_place(mount: Mount) -> None:
    """The same directory by a bind mount that was made before: one daemon per workspace, by its lock."""
    point = mount.base / "elsewhere"
    point.mkdir()
    mount.unmount()
    assert guardfs("mount", mount.workspace, point).returncode == 0
    try:
        check_refusal(guardfs("mount", mount.workspace), ExitCode.BUSY, str(mount.workspace), "guardfs unmount")
    finally:
        assert guardfs("unmount", point).returncode == 0


@pytest.mark.parametrize(
    ("command", "parts"),
    [
        (["status", "/no-such"], ("/no-such: not in a guarded workspace",)),
        (["log", "no-such"], ("no-such: not in a guarded workspace", "guardfs mount")),
        (["why", "ws/f"], ("ws/f: not in a guarded workspace",)),
        (["unmount", "ws"], ("ws: not a guardfs mount", "guardfs status")),
        (["unmount", "no\nsuch"], ("no\\nsuch: not a guardfs mount",)),
        (["track", str(os.getpid())], ("no workspace is guarded", "guardfs mount WORKSPACE")),
    ],
)
def test_nothing_is_guarded_there(base: Path, command: list[str], parts: tuple[str, ...]) -> None:
    check_refusal(guardfs(*command, cwd=base), ExitCode.NO_INPUT, *parts)


def test_a_process_that_there_is_not(mount: Mount) -> None:
    with subprocess.Popen(["true"]) as ended:
        pass
    done = guardfs("track", str(ended.pid), mount.point)
    check_refusal(done, ExitCode.NO_INPUT, f"no process {ended.pid}", "name a living one")
    assert not mount.status().sessions


def test_a_workspace_that_is_not_guarded_any_more(mount: Mount) -> None:
    mount.unmount()
    done = guardfs("status", mount.point)
    check_refusal(done, ExitCode.NO_INPUT, f"{mount.point}: not guarded now", f"guardfs mount {mount.point}")


@pytest.fixture
def nobodys() -> Iterator[Path]:
    """A place that every user can reach, with a workspace of root's, and a home of nobody's."""
    with TemporaryDirectory(dir="/tmp", prefix="guardfs-test-") as name:
        base = Path(name)
        base.chmod(0o755)
        for child in ("ws", "home"):
            (base / child).mkdir(mode=0o700)
        os.chown(base / "home", NOBODY, NOBODY)
        yield base
        assert os.listdir(base / "home") == []
        assert not [point for point in mounts.guarded() if point.startswith(name)]


AS_NOBODY = """
import contextlib, os, sys
from guardfs.cli import main

def perform(*args):
    sys.argv[1:] = args
    main()

# Load all that will be needed: the interpreter's own directory may be closed to nobody.
with open(os.devnull, "w") as null, contextlib.redirect_stderr(null), contextlib.redirect_stdout(null):
    for args in ("run", "mount /no-such", "run /no-such true", "unmount /no-such", "log /no-such"):
        with contextlib.suppress(SystemExit):
            perform(*args.split())
os.setgroups([])
os.setgid(uid)
os.setuid(uid)
perform(*command)
"""


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (["mount", "ws"], ExitCode.NO_PERMISSION),
        (["run", "ws", "--", "true"], ExitCode.NO_PERMISSION),
        (["unmount", "ws"], ExitCode.NO_INPUT),
        (["log", "ws"], ExitCode.NO_INPUT),
    ],
)
@pytest.mark.parametrize("home", ["home", "no-home"])
def test_not_permitted(nobodys: Path, command: list[str], code: ExitCode, home: str) -> None:
    """Nobody may not enter the workspace, and /dev/fuse is theirs or not as the machine has it."""
    program = f"uid, command = {NOBODY}, {command}\n{AS_NOBODY}"
    env = {"HOME": str(nobodys / home), "PATH": os.environ["PATH"]}
    done = subprocess.run(
        [sys.executable, "-P", "-c", program], cwd=nobodys, env=env, capture_output=True, text=True, check=False
    )
    check_refusal(done, code)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_mount_is_interrupted(base: Path, number: signal.Signals) -> None:
    """The daemon finds nobody to answer to and takes its mount away."""
    with subprocess.Popen(
        [*GUARDFS, "mount", "ws"], cwd=base, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as starter:
        while not (base / "state").exists():
            assert starter.poll() is None
        starter.send_signal(number)
        starter.wait()
