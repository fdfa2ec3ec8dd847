"""Tiers and settings on a real mount, from a file that its owner saves while the mount is in use."""

import pytest

from guardfs.errors import ExitCode
from tests.conftest import MakeMount
from tests.helpers.mounted import Mount, guardfs


def settings_events(mount: Mount) -> list[str]:
    return [event.detail for event in mount.events() if event.kind == "settings"]


@pytest.fixture
def built(mount: Mount) -> Mount:
    """A workspace that its owner has built, with things in it that git ignores."""
    line = (
        "git init -q .; printf 'build/\\n*.o\\n.env\\n*.db\\n' > .gitignore; mkdir -p build sub .git/x node_modules/p"
        "; for name in build/out a.o sub/b.o .env app.db node_modules/p/i .git/x/y; do echo mine > $name; done"
    )
    assert mount.user().run(line).status == 0
    return mount


@pytest.mark.parametrize("path", ["build/out", "a.o", "sub/b.o", "node_modules/p/i", ".git/x/y"])
@pytest.mark.parametrize("line", ["echo x > {}", "rm {} && echo x > {}", "echo x > t; mv t {}", "echo x >> {}"])
def test_what_is_made_again_is_not_judged_unread(built: Mount, path: str, line: str) -> None:
    assert built.agent().run(line.replace("{}", path)).status == 0
    assert built.denials() == []


@pytest.mark.parametrize("path", [".env", "app.db", "f", ".gitignore"])
def test_what_is_protected_is(built: Mount, path: str) -> None:
    agent = built.agent()
    for line in ("echo x > {}", "rm {}", "echo x > t; mv t {}", "echo x >> {}"):
        assert agent.run(line.replace("{}", path)).refused
    assert (built.backing / path).read_text() != "x\n"


def test_what_changed_is_judged_though_ignored(built: Mount) -> None:
    agent, user = built.agent(), built.user()
    agent.run("cat build/out node_modules/p/i")
    user.run("echo more >> build/out; echo more >> node_modules/p/i")
    assert agent.run("echo x > build/out").refused
    assert agent.run("echo x > node_modules/p/i").status == 0


def test_settings_are_taken_up_when_they_are_saved(mount: Mount) -> None:
    agent, user = mount.agent(), mount.user()
    assert agent.run("echo x > f").refused
    user.run('printf \'exempt = [".git/", "f"]\\n\' > .guardfs.toml')
    assert agent.run("echo x > f").status == 0
    user.run('echo mine > f; printf \'exempt = [".git/", "f"]\\nexmept = 1\\n\' > .guardfs.toml')
    assert agent.run("echo y > f").status == 0, "a broken file leaves the old settings in force"
    assert "exempt" in settings_events(mount)[-1]
    user.run("rm .guardfs.toml; echo mine > f")
    assert agent.run("echo z > f").refused
    assert len(settings_events(mount)) == 3


@pytest.mark.parametrize("line", ["echo x > .guardfs.toml", "rm .guardfs.toml", "echo x > t; mv t .guardfs.toml"])
def test_no_session_changes_the_policy(mount: Mount, line: str) -> None:
    mount.user().run("echo 'settle = 0' > .guardfs.toml")
    agent = mount.agent()
    agent.run("cat .guardfs.toml")
    assert agent.run(line).refused
    assert (mount.backing / ".guardfs.toml").read_text() == "settle = 0\n"


def test_observe_refuses_nothing_and_tells(make_mount: MakeMount) -> None:
    mount = make_mount("--profile", "observe")
    assert mount.agent().run("echo x > f; rm f").status == 0
    assert mount.denials() == []
    assert [event.reason for event in mount.events() if event.kind == "would-deny"] == ["unread"]


def test_a_strict_first_read_has_to_settle(make_mount: MakeMount) -> None:
    mount = make_mount("--profile", "strict", "--settle", "3600")
    agent = mount.agent()
    assert agent.run("sed -i s/two/x/ f").refused
    agent.run("cat f")
    mount.turn()
    assert agent.run("sed -i s/two/x/ f").status == 0


def test_an_open_without_a_byte_is_no_read_under_bytes(mount: Mount) -> None:
    mount.user().run("printf '[reads]\\ncredit = \"bytes\"\\n' > .guardfs.toml")
    agent = mount.agent()
    assert agent.run("exec 3<f 3<&-; echo x > f").refused
    assert agent.run("cat f; echo x > f").status == 0


def test_the_default_file_is_valid_and_faults_are_named(mount: Mount) -> None:
    file = mount.base / "settings.toml"
    shown = guardfs("config", "show")
    file.write_text(shown.stdout)
    assert guardfs("config", "check", file).returncode == 0
    file.write_text("max_record = 5\n")
    checked = guardfs("config", "check", file)
    assert (checked.returncode, checked.stderr.count("\n")) == (ExitCode.CONFIG, 1)
    assert "max_records" in checked.stderr
