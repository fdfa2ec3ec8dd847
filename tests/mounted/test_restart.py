"""What survives: an unmount, a killed daemon, a damaged store."""

import os
import signal
from pathlib import Path

import pytest

from guardfs.procs import reading
from tests.helpers.mounted import Mount, guardfs, until
from tests.helpers.shell import Shell


def step_in(shell: Shell, mount: Mount) -> None:
    """A shell stands on the old mount still: go to the new one."""
    assert shell.run(f"cd / && cd {mount.point}").status == 0


def again(mount: Mount) -> None:
    mount.unmount()
    mount.mount()


def test_an_unchanged_file_is_known_by_its_bytes(mount: Mount) -> None:
    agent = mount.agent()
    agent.run("cat f; cd /")
    again(mount)
    step_in(agent, mount)
    assert agent.run("echo x > f").status == 0


@pytest.mark.parametrize("line", ["echo mine >> f", "cp -p f r; sed s/two/TWO/ f > t; cat t > f; touch -r r f"])
def test_a_file_changed_meanwhile_is_refused(mount: Mount, line: str) -> None:
    agent, user = mount.agent(), mount.user()
    agent.run("cat f; cd /")
    user.run("cd /")
    mount.unmount()
    user.run(f"cd {mount.workspace} && {line}; cd /")
    mount.mount()
    step_in(agent, mount)
    assert agent.run("echo x > f").refused
    assert "reason=modified" in mount.denials()[-1]


def test_a_file_deleted_meanwhile_is_gone(mount: Mount) -> None:
    agent = mount.agent()
    agent.run("cat f; cd /")
    mount.unmount()
    (mount.workspace / "f").unlink()
    mount.mount()
    step_in(agent, mount)
    assert agent.run("echo x > f").refused
    assert agent.run("echo x > f").status == 0


def test_a_session_whose_tree_is_gone_ends(mount: Mount) -> None:
    agent = mount.agent()
    agent.run("cat f; cd /")
    agent.close()
    again(mount)
    assert mount.status().sessions == ()


def test_a_killed_daemon_leaves_a_dead_mount(mount: Mount) -> None:
    agent = mount.agent()
    agent.run("cat f; exec 3<>f")
    until(lambda: mount.status().sessions[0].records, "the record")
    os.kill(mount.note.process.pid, signal.SIGKILL)
    until(lambda: not reading.is_alive(mount.note.process), "the daemon's end")
    for line in ("echo x > f", "echo x >&3", "rm f", "echo x > new"):
        assert agent.run(line).status != 0
    assert sorted(os.listdir(mount.backing)) == ["f"]
    assert (mount.backing / "f").read_text() == "one\ntwo\nthree\n"
    agent.run("exec 3>&-; cd /")
    mount.mount()
    step_in(agent, mount)
    assert agent.run("echo new > new").status == 0
    assert agent.run("cat f; echo x > f").status == 0


def damage(path: Path, how: str) -> None:
    size = path.stat().st_size
    if how == "truncated":
        os.truncate(path, size // 2 + 100)
    elif how == "empty":
        os.truncate(path, 0)
    elif how == "noise":
        path.write_bytes(os.urandom(size))
    else:
        with path.open("r+b") as file:
            file.seek(8192)
            file.write(os.urandom(size - 8192))


@pytest.mark.parametrize("how", ["truncated", "noise", "noise behind the head"])
def test_a_damaged_store_is_put_aside(mount: Mount, how: str) -> None:
    agent = mount.agent()
    agent.run("cat f; for i in $(seq 200); do echo $i > n$i; done; cd /")
    mount.unmount()
    damage(mount.state / "store" / "data.mdb", how)
    mount.expected_warnings.add("store damaged")
    done = guardfs("mount", mount.workspace)
    assert done.returncode == 0, done.stderr
    assert "store was damaged" in done.stderr
    assert [p.name for p in mount.state.iterdir() if p.name.startswith("store.damaged-")]
    mount.unmount_by_command()
    mount.mount()


def test_an_empty_store_file_is_a_new_store(mount: Mount) -> None:
    mount.unmount()
    damage(mount.state / "store" / "data.mdb", "empty")
    mount.mount()


def test_orphans_in_the_cgroup_keep_their_session(mount: Mount) -> None:
    """Without a cgroup nobody can know whose they are, and the session ends with its root."""
    agent = mount.agent()
    loop = f"until [ -e {mount.base}/go ]; do :; done; echo late > {mount.point}/f; touch {mount.base}/done"
    agent.run(f"(cd /; setsid sh -c '{loop}' &)")
    tracked = Path(f"/proc/{agent.pid}/cgroup").read_text().splitlines()[-1]
    agent.close()
    again(mount)
    assert len(mount.status().sessions) == ("guardfs-" in tracked)
    (mount.base / "go").touch()
    until((mount.base / "done").exists, "the late write's end")
    assert len(mount.denials()) == ("guardfs-" in tracked)
