"""Whose process it is: threads, children, orphans, other users, programs, numbers used again."""

import os
import shutil
import subprocess

from tests.conftest import MakeMount
from tests.helpers.mounted import Mount, guardfs, until

LATE = "(setsid nohup sh -c 'while [ ! -e go ]; do :; done; echo late > f' >/dev/null 2>&1 &)"


def test_read_in_one_command_and_write_in_the_next(mount: Mount) -> None:
    agent = mount.agent()
    agent.run("setsid cat f")
    assert agent.run("setsid sh -c 'echo x > f'").status == 0


def test_read_in_a_thread_and_write_in_the_main_thread(mount: Mount) -> None:
    agent = mount.agent()
    (mount.base / "threads.py").write_text(
        "import threading\n"
        "reader = threading.Thread(target=lambda: open('f').read())\n"
        "reader.start(); reader.join()\n"
        "open('f', 'w').write('x')\n"
    )
    assert agent.run("python3 ../threads.py").status == 0
    assert (
        agent.run("node -e \"const fs=require('fs'); fs.readFile('f', () => fs.writeFileSync('f', 'y'))\"").status == 0
    )


def test_an_orphan_of_a_tracked_shell_stays_the_sessions(mount: Mount) -> None:
    agent, user = mount.agent(), mount.user()
    assert agent.run(LATE).status == 0
    agent.close()
    user.run("touch go")
    until(mount.denials, "the refusal of the late write")
    assert (mount.backing / "f").read_text() == "one\ntwo\nthree\n"


def test_an_orphan_under_run_stays_the_sessions(mount: Mount, monkeypatch: object) -> None:
    mount.unmount()
    script = f"{LATE}; touch go"
    done = guardfs("run", mount.workspace, "--", "bash", "-c", script)
    assert done.returncode == 0, done.stderr
    assert "operations refused: 1" in done.stderr
    assert (mount.workspace / "f").read_text() == "one\ntwo\nthree\n"


def test_a_clean_environment_and_another_user_change_nothing(mount: Mount) -> None:
    agent = mount.agent()
    os.chmod(mount.backing, 0o777)
    os.chmod(mount.backing / "f", 0o666)
    for parent in (mount.base, *mount.base.parents):
        if parent.owner() == "root" and parent != parent.parent and str(parent).startswith("/tmp/"):
            os.chmod(parent, 0o755)
    assert agent.run("env -i /bin/sh -c 'echo x > f'").refused
    assert agent.run("setpriv --reuid 65534 --regid 65534 --clear-groups sh -c 'echo x >> f; rm f'").refused
    assert mount.status().sessions[0].refused == 3


def test_a_program_is_its_file_and_not_its_name(make_mount: MakeMount) -> None:
    shutil.copy("/bin/bash", "/tmp/guardfs-test-agent")
    try:
        mount = make_mount("--track-exe", "/tmp/guardfs-test-agent")
        user = mount.user()
        assert user.run("(exec -a guardfs-test-agent bash -c 'echo x > f')").status == 0
        assert user.run("/tmp/guardfs-test-agent -c 'echo y > f'").refused
        assert user.run("/tmp/guardfs-test-agent -c 'sh -c \"cat f; echo y > f\"'").status == 0
        assert user.run("/tmp/guardfs-test-agent -c 'echo z > f'").refused, "each tree is a session of its own"
    finally:
        os.unlink("/tmp/guardfs-test-agent")


def test_everything_is_one_session(make_mount: MakeMount) -> None:
    mount = make_mount("--track-all")
    one, other = mount.user(), mount.user()
    assert one.run("echo x > f").refused
    assert other.run("cat f").status == 0
    assert one.run("echo x > f").status == 0


def test_who_was_running_before_is_tracked_with_its_tree(mount: Mount) -> None:
    user = mount.user()
    user.run("sh -c 'while [ ! -e go ]; do :; done; echo late > f; touch done' & disown")
    done = guardfs("track", str(user.pid), mount.point, "--label", "mine")
    assert done.returncode == 0, done.stderr
    mount.user().run("touch go")
    until((mount.backing / "done").exists, "the late write's end")
    assert len(mount.denials()) == 1
    assert mount.status().sessions[0].label == "mine"


def test_a_descriptor_belongs_to_its_opener(mount: Mount) -> None:
    """The user's, inherited by the agent, is the user's; and the other way round."""
    (mount.base / "pass.py").write_text(
        "import array, os, socket, sys\n"
        "s = socket.socket(socket.AF_UNIX)\n"
        "if sys.argv[1] == 'give':\n"
        "    s.bind(sys.argv[2]); s.listen(1); c, _ = s.accept()\n"
        "    fd = os.open('f', os.O_RDWR)\n"
        "    c.sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [fd]))]); c.recv(1)\n"
        "else:\n"
        "    while s.connect_ex(sys.argv[2]): pass\n"
        "    _, data, _, _ = s.recvmsg(1, 64)\n"
        "    os.write(array.array('i', data[0][2])[0], b'X')\n"
    )
    agent, user = mount.agent(), mount.user()
    sock = mount.base / "s1"
    user.run(f"python3 ../pass.py give {sock} & disown")
    assert agent.run(f"python3 ../pass.py take {sock}").status == 0
    assert (mount.backing / "f").read_text() == "Xne\ntwo\nthree\n"
    sock = mount.base / "s2"
    agent.run(f"python3 ../pass.py give {sock} & disown")
    assert user.run(f"python3 ../pass.py take {sock}").refused


def test_a_number_used_again_is_somebody_else(mount: Mount) -> None:
    """In a pid namespace of its own, the daemon sees one tracked pid twice."""
    mount.unmount()
    script = mount.base / "again.sh"
    script.write_text(
        "set -e\n"
        "mount -t proc proc /proc\n"
        f"cd {mount.base}\n"
        "python3 -P -m guardfs mount ws >/dev/null\n"
        "sh -c 'until [ -e go ]; do :; done; cat ws/f >/dev/null' & agent=$!\n"
        "python3 -P -m guardfs track $agent ws >/dev/null\n"
        "touch go; wait $agent\n"
        "echo $((agent - 1)) > /proc/sys/kernel/ns_last_pid\n"
        "sh -c 'echo mine > ws/f; echo $$ $?' > reused\n"
        "echo $agent >> reused\n"
        "python3 -P -m guardfs unmount ws >/dev/null\n"
    )
    done = subprocess.run(
        ["unshare", "--pid", "--fork", "--mount", "bash", str(script)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    reused = (mount.base / "reused").read_text().split()
    assert reused[0] == reused[2], "the number was not used again"
    assert reused[1] == "0"
    assert (mount.workspace / "f").read_text() == "mine\n"
    mount.mount()
