"""A tool reads again an instant before it writes: that must not make a stale edit pass."""

import pytest

from guardfs.control import client
from guardfs.control.protocol import Turn
from tests.conftest import MakeMount
from tests.helpers.mounted import GUARDFS, Mount, guardfs, until

LONG = ("--settle", "3600")
REREAD = "cat f > /dev/null; printf stale > f"


@pytest.fixture
def stale(make_mount: MakeMount) -> Mount:
    """A mount whose session ``agent`` has read f before the user's save; nothing settles by itself."""
    mount = make_mount(*LONG)
    mount.shells = {"agent": mount.agent(), "user": mount.user()}
    mount.shells["agent"].run("cat f")
    mount.shells["user"].run("echo mine >> f")
    return mount


@pytest.mark.parametrize(
    "line",
    [
        REREAD,
        "sed -i s/two/stale/ f",
        "python3 -c \"t = open('f').read(); open('f', 'w').write('stale')\"",
        "python3 -c \"import os; s = open('f').read(); open('t', 'w').write('stale'); os.replace('t', 'f')\"",
        "exec 3<>f; cat <&3 > /dev/null; printf stale >&3; s=$?; exec 3>&-; (exit $s)",
        "cat f > /dev/null; rm f",
        "cat f > /dev/null; cp /etc/hostname n; mv n f",
    ],
)
def test_a_reread_just_before_the_write(stale: Mount, line: str) -> None:
    assert stale.shells["agent"].run(line).refused
    assert (stale.backing / "f").read_text().endswith("mine\n")
    last = stale.denials()[-1]
    assert "reason=modified" in last
    assert "an instant before it writes" in last


def test_the_way_out_of_it(make_mount: MakeMount) -> None:
    mount = make_mount("--settle", "0.3")
    agent, user = mount.agent(), mount.user()
    agent.run("cat f")
    user.run("echo mine >> f")
    agent.run("cat f")
    until(lambda: agent.run("printf new > f").status == 0, "the read counts")
    assert (mount.backing / "f").read_text() == "new"


def test_zero_turns_it_off(make_mount: MakeMount) -> None:
    mount = make_mount("--settle", "0")
    agent, user = mount.agent(), mount.user()
    agent.run("cat f")
    user.run("echo mine >> f")
    assert agent.run(REREAD).status == 0


def test_a_first_read_counts_at_once_but_not_under_strict(make_mount: MakeMount) -> None:
    mount = make_mount(*LONG)
    assert mount.agent().run("sed -i s/two/TWO/ f").status == 0


def test_strict(make_mount: MakeMount) -> None:
    mount = make_mount(*LONG, "--profile", "strict")
    agent = mount.agent()
    assert agent.run("sed -i s/two/TWO/ f").refused
    assert "reason=unread" in mount.denials()[-1]
    assert "for the first time" in mount.denials()[-1]
    mount.turn()
    assert agent.run("sed -i s/two/TWO/ f").status == 0
    assert agent.run("echo own > g; echo more >> g; sed -i s/own/OWN/ g").status == 0


def test_a_touch_and_a_chmod_need_no_settling(make_mount: MakeMount) -> None:
    mount = make_mount(*LONG)
    agent, user = mount.agent(), mount.user()
    agent.run("cat f")
    user.run("chmod 600 f; touch f")
    assert agent.run(REREAD).status == 0


def test_a_new_turn(stale: Mount) -> None:
    agent = stale.shells["agent"]
    agent.run("cat f")
    assert client.ask(stale.state, Turn()).turned == (stale.status().sessions[0].id,)
    assert agent.run("printf new > f").status == 0


def test_who_may_say_that_a_turn_begins(stale: Mount) -> None:
    """The harness and what it starts itself; not a tool's child, nor what has outlived its parent."""
    agent = stale.shells["agent"]
    command = " ".join(GUARDFS) + f" turn {stale.point}"
    agent.run("cat f")
    assert "not permitted" in agent.run(f"bash -c '{command}; true'").err
    assert agent.run("printf new > f").refused
    assert agent.run(command).status == 0
    assert agent.run("printf new > f").status == 0


def test_turn_by_the_user(stale: Mount) -> None:
    done = guardfs("turn", stale.point)
    assert done.returncode == 0
    assert "a new turn begins for track-" in done.stdout


def test_turn_inside_run(make_mount: MakeMount) -> None:
    mount = make_mount(*LONG)
    mount.unmount()
    command = " ".join(GUARDFS)
    script = f"cat f; echo mine >> {mount.backing}/f; cat f; printf x > f; {command} turn . && printf new > f"
    done = guardfs("run", *LONG, mount.workspace, "--", "bash", "-c", script)
    assert done.returncode == 0, done.stderr
    orphan = f"cat f; echo mine >> {mount.backing}/f; cat f; ({command} turn . 2> {mount.base}/said; true) & exec true"
    done = guardfs("run", *LONG, mount.workspace, "--", "bash", "-c", orphan)
    assert done.returncode == 0, done.stderr
    assert "not permitted" in (mount.base / "said").read_text()
    mount.mount()
