"""The commands on a living mount: what people read at 80 columns, and the JSON that programs read."""

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from guardfs import __version__
from guardfs.errors import ExitCode
from guardfs.procs import mounts, reading
from guardfs.state.schema import EventKind
from tests.conftest import MakeMount
from tests.helpers.mounted import GUARDFS, Mount, guardfs
from tests.helpers.shell import Shell

WIDTH = 80


def shown(*args: str | Path) -> str:
    """What a command prints at 80 columns."""
    done = guardfs(*args, env={**os.environ, "COLUMNS": str(WIDTH)})
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def objects(*args: str | Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in shown(*args).splitlines()]


def widest(text: str) -> int:
    return max(map(len, text.splitlines()))


def test_version_and_help() -> None:
    assert guardfs("--version").stdout == f"guardfs {__version__}\n"
    overview = shown()
    assert overview == shown("--help")
    commands = [line.split()[0] for line in overview.partition("Commands:\n")[2].splitlines()]
    assert commands == ["run", "mount", "track", "unmount", "status", "log", "why", "turn", "config"]
    assert "..." not in overview.partition("Commands:\n")[2]
    for command in commands:
        assert widest(shown(command, "--help")) <= WIDTH


def test_a_command_imports_what_it_needs() -> None:
    """Each of these costs tens of milliseconds, and ``run`` starts a process that pays for them anyway."""
    program = "import sys; import guardfs.cli, guardfs.launcher; print(*sys.modules)"
    loaded = subprocess.run(["python3", "-P", "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert not {"trio", "pyfuse3", "lmdb", "structlog", "rich", "ssl", "asyncio"} & set(loaded)


def test_mount_says_where_and_is_usable(make_mount: MakeMount, tmp_path: Path) -> None:
    point = tmp_path / "point"
    point.mkdir()
    mount = make_mount(point=point)
    assert (point / "f").read_text() == "one\ntwo\nthree\n"
    (mount.workspace / "g").write_text("seen at once")
    assert (point / "g").read_text() == "seen at once"
    [state] = objects("status", "--json", point / "f")
    assert (state["workspace"], state["mountpoint"]) == (str(mount.workspace), str(point))


def test_status_of_each_record(mount: Mount) -> None:
    user = mount.user()
    for name in ("known", "modified", "touched", "replaced", "gone", "moved"):
        (mount.point / name).write_text(f"{name}\n")
    agent = mount.agent("an agent")
    agent.run("cat known modified touched replaced gone moved; echo x > own; echo x > f")
    user.run("echo x >> modified; touch touched; cp replaced r; mv r replaced; rm gone; mv moved elsewhere")
    [state] = objects("status", "--json", mount.point)
    [session] = state["sessions"]
    each = {record["path"]: record for record in session["each"]}
    assert {path: record["state"] for path, record in each.items()} == {
        "known": "known",
        "modified": "modified",
        "touched": "touched",
        "replaced": "replaced",
        "gone": "gone",
        "own": "known",
        "moved" if "moved" in each else "elsewhere": "gone" if "moved" in each else "known",
    }
    assert each["own"]["how"] == "create"
    assert each["known"]["how"] == "read"
    assert each["known"]["size"] == len("known\n")
    assert len(each["known"]["sha256"]) == 64
    assert sum(session["states"].values()) == session["records"] == len(each)
    assert (session["label"], session["root"], session["alive"]) == ("an agent", agent.pid, 1)
    assert (session["read"], session["written"], session["refused"]) == (6, 1, 1)


def test_status_is_readable(make_mount: MakeMount) -> None:
    mount = make_mount()
    agent = mount.agent("a label that goes on and on and on, as if nobody had to read it in a narrow window")
    for number in range(12):
        (mount.point / f"{number}").write_text("x\n")
    agent.run("cat [0-9]*; echo x > f")
    mount.user().run("for n in 1 2 3; do echo y >> $n; done; touch 4 5; rm 6")
    text = shown("status", mount.point)
    table = text[text.index("session") :]
    assert widest(table) <= WIDTH
    assert str(mount.point) == text.splitlines()[0]
    assert str(mount.note.process.pid) in text
    assert text == shown("status")
    for part in ("gone", "known", "modified", "touched"):
        assert part in table


def test_status_where_nothing_is_guarded(state: Path, tmp_path: Path) -> None:
    assert shown("status") == "No workspace is guarded. Begin with: guardfs mount WORKSPACE\n"
    assert shown("status", "--json") == ""


def test_log_and_why(mount: Mount) -> None:
    agent, user = mount.agent(), mount.user()
    agent.run("echo x > f")
    agent.run("cat f")
    user.run("echo more >> f")
    assert agent.run("echo x > f").refused
    text = shown("log", mount.point)
    kinds = [line.split()[1] for line in text.splitlines()]
    assert kinds == ["session-began", "denied", "denied"]
    assert [line.split()[2] for line in text.splitlines()[1:]] == ["unread", "modified"]

    events = objects("log", "--json", mount.point)
    assert [event["kind"] for event in events] == kinds
    assert [event["seq"] for event in events] == sorted(event["seq"] for event in events)
    unread, modified = events[1:]
    assert (unread["reason"], unread["path"], unread["operation"], unread["pid"]) == (
        "unread", "f", "open for writing", agent.pid,
    )  # fmt: skip
    assert "then" not in unread
    assert modified["then"]["size"] < modified["now"]["size"]
    assert modified["changed_by"]["pid"] == user.pid
    assert modified["changed_by"]["session"] is None
    assert modified["next"].startswith("read the file again")
    assert modified["session"] == events[0]["session"]

    explained = shown("why", mount.point / "f")
    assert widest(explained) <= WIDTH
    assert f"bash (pid {user.pid}, untracked) at 20" in explained
    assert f"size {modified['then']['size']} -> {modified['now']['size']}" in explained
    assert "  next" in explained
    told = objects("why", "--json", mount.point / "f")
    assert "+" in told[1].pop("diff")
    assert told == [unread, modified]
    assert shown("why", mount.point / "other") == "other: nothing has been refused\n"


def test_why_shows_what_changed(mount: Mount) -> None:
    agent, user = mount.agent(), mount.user()
    agent.run("cat f; echo SECRET=1 > .env; cat .env; printf 'a\\0' > bin")
    user.run("sed -i s/two/mine/ f; echo SECRET=2 > .env; printf 'b\\0' > bin")
    for name in ("f", ".env", "bin"):
        assert agent.run(f"echo x > {name}").refused
    assert "    -two\n    +mine\n" in shown("why", mount.point / "f")
    assert objects("why", "--json", mount.point / "f")[0]["diff"].splitlines()[-3:] == ["-two", "+mine", " three"]
    for name in (".env", "bin"):
        assert "diff" not in objects("why", "--json", mount.point / name)[0]
    agent.run("cat f")
    mount.turn()
    agent.run("echo own > f")
    user.run("echo mine >> f")
    assert agent.run("echo x > f").refused
    assert "    +mine\n" in shown("why", mount.point / "f").split("modified")[-1], "what it wrote is kept too"


def test_why_by_any_spelling(mount: Mount) -> None:
    mount.agent().run("echo x > f")
    (mount.base / "link").symlink_to(mount.point)
    expected = shown("why", mount.point / "f")
    assert shown("why", mount.base / "link" / "f") == expected
    done = guardfs("why", "./f", cwd=mount.point)
    assert done.stdout.startswith("f: open for writing refused: unread")


def test_log_and_why_after_the_end(mount: Mount) -> None:
    agent = mount.agent()
    agent.run("echo x > f")
    agent.close()
    mount.unmount_by_command()
    assert "denied unread f" in shown("log", mount.point)
    assert "read the file, then write again" in shown("why", mount.point / "f")


def test_names_that_are_no_text(mount: Mount) -> None:
    raw = os.fsdecode(os.fsencode(mount.point) + b"/new\nline\xff\\")
    with open(raw, "w") as file:
        file.write("x")
    agent = mount.user()
    shown("track", str(agent.pid), "--label", "label \n\x1b[31m\udcff")
    agent.run("echo x > new*")
    escaped = r"new\nline\xff\\"
    [event] = objects("why", "--json", raw)
    assert event["path"] == escaped
    assert shown("why", raw).startswith(f"{escaped}: open for writing refused")
    assert f"denied unread {escaped} (" in shown("log", mount.point)
    assert "\x1b" not in shown("log", mount.point) + shown("status", mount.point)


def test_log_follows_until_it_is_told_to_stop(mount: Mount) -> None:
    with subprocess.Popen([*GUARDFS, "log", "-f", "--json", mount.point], stdout=subprocess.PIPE, text=True) as log:
        assert log.stdout is not None
        agent = mount.agent()
        assert json.loads(log.stdout.readline())["kind"] == "session-began"
        agent.run("echo x > f")
        assert json.loads(log.stdout.readline())["reason"] == "unread"
        log.send_signal(signal.SIGINT)
        assert log.wait() == 128 + signal.SIGINT
        assert log.stdout.read() == ""


@pytest.mark.parametrize("follow", ["", "-f"])
def test_a_reader_that_has_enough(mount: Mount, follow: str) -> None:
    """``guardfs log -f | head -1`` ends with its reader, without a word and without waiting for another event."""
    agent = mount.agent()
    agent.run("for n in $(seq 300); do echo x > f$n; done; chmod 600 f")
    line = f"{' '.join(GUARDFS)} log {follow} {mount.point} | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=20, check=True)
    first, status = done.stdout.splitlines()
    assert "session-began" in first
    assert (status, done.stderr) == ("0", "")


def test_track_and_unmount(mount: Mount) -> None:
    shell = mount.user()
    assert shell.run("echo mine > mine").status == 0
    said = shown("track", str(shell.pid), "--label", "by hand")
    assert said.startswith(f"process {shell.pid} is tracked as track-")
    assert shell.run("echo x > f").refused
    again = guardfs("track", str(shell.pid))
    assert again.returncode == ExitCode.BUSY
    assert "tracked already" in again.stderr
    shell.close()
    assert shown("unmount", mount.point / "f") == f"{mount.point} is no longer guarded\n"
    assert not reading.is_alive(mount.note.process)
    twice = guardfs("unmount", mount.point)
    assert twice.returncode == ExitCode.NO_INPUT
    assert "not a guardfs mount" in twice.stderr


def test_track_wants_to_know_which_mount(make_mount: MakeMount, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    one, other = make_mount(base=tmp_path / "a"), make_mount(base=tmp_path / "b")
    shell = one.user()
    done = guardfs("track", str(shell.pid), cwd=tmp_path)
    assert done.returncode == ExitCode.USAGE
    assert str(one.point) in done.stderr
    assert str(other.point) in done.stderr
    assert guardfs("track", str(shell.pid), other.point, cwd=tmp_path).returncode == 0
    assert guardfs("track", str(shell.pid), cwd=one.point).returncode == 0
    assert len(one.status().sessions) == len(other.status().sessions) == 1


def test_track_all(make_mount: MakeMount) -> None:
    mount = make_mount("--track-all")
    user = mount.user()
    assert user.run("echo x > f").refused
    assert user.run("cat f; echo x > f").status == 0
    [session] = mount.status().sessions
    assert session.kind == "all"
    done = guardfs("track", str(user.pid), mount.point)
    assert done.returncode != 0
    assert "--track-all" in done.stderr or "tracked already" in done.stderr


def test_track_exe_knows_a_program_by_its_file(make_mount: MakeMount, tmp_path: Path) -> None:
    """A copy of bash under another name is that program, under whatever name it runs; bash itself is not."""
    agent = shutil.copy("/bin/bash", tmp_path / "agent")
    os.link(agent, tmp_path / "alias")
    mount = make_mount("--track-exe", str(agent))
    user = mount.user()
    assert user.run("echo user >> f").status == 0
    for name in ("agent", "alias"):
        done = user.run(f"{tmp_path}/{name} -c 'sh -c \"echo x > f\"; exit $?'")
        assert done.refused, name
    assert user.run(f"(exec -a bash {tmp_path}/agent -c 'echo x > f')").refused
    began = [event.detail.split()[0] for event in mount.events() if event.kind is EventKind.BEGAN]
    assert began == ["agent", "alias", "agent"]
    assert (mount.point / "f").read_text().endswith("three\nuser\n")


def test_track_exe_by_a_relative_name(tmp_path: Path, state: Path) -> None:
    shutil.copy("/bin/bash", tmp_path / "agent")
    workspace = tmp_path / "ws"
    workspace.mkdir()
    (workspace / "f").write_text("f\n")
    assert guardfs("mount", "--track-exe", "./agent", "ws", cwd=tmp_path).returncode == 0
    try:
        done = subprocess.run([tmp_path / "agent", "-c", "echo x > f"], cwd=workspace, capture_output=True, check=False)
        assert b"Input/output error" in done.stderr
    finally:
        assert guardfs("unmount", workspace).returncode == 0


def test_settings_from_the_file_and_from_flags(make_mount: MakeMount, tmp_path: Path) -> None:
    workspace = tmp_path / "ws"
    workspace.mkdir()
    (workspace / ".guardfs.toml").write_text('errno = "EACCES"\nmatch = "content"\nappend = "allow"\n')
    mount = make_mount("--errno", "EROFS", "--append", "check")
    agent = mount.agent()
    assert "Read-only file system" in agent.run("echo x > f").err
    assert "Read-only file system" in agent.run("echo x >> f").err
    assert mount.status().match == "content"


def test_another_users_control_socket_is_closed_to_us(mount: Mount) -> None:
    assert (mount.state / "control.sock").stat().st_mode & 0o777 == 0o600
    assert mount.state.stat().st_mode & 0o777 == 0o700


def test_a_session_cannot_end_its_own_guarding(mount: Mount) -> None:
    agent = mount.agent()
    done = agent.run(f"{' '.join(GUARDFS)} unmount .")
    assert done.status == ExitCode.NO_PERMISSION
    assert "not permitted from inside a tracked session" in done.err
    assert mounts.is_guarded(str(mount.point))
    assert agent.run(f"{' '.join(GUARDFS)} why f").status == 0


def test_a_directory_that_is_gone(mount: Mount, tmp_path: Path) -> None:
    shell = Shell(tmp_path, tmp_path)
    done = shell.run(f"mkdir d; cd d; rmdir ../d; {' '.join(GUARDFS)} log")
    shell.close()
    assert done.status != 0
    assert len(done.err.splitlines()) == 1
