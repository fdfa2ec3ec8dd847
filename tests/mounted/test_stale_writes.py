"""A session's write to a file that has changed since it saw it, and what does not count as a change."""

import os
from collections.abc import Callable

import pytest

from tests.conftest import MakeMount
from tests.helpers.mounted import Mount

MIDDLE = "two"


def last_reason(mount: Mount) -> str:
    return mount.denials()[-1].split("reason=")[1].split()[0]


def test_a_users_line_survives(mount: Mount) -> None:
    agent, user = mount.agent(), mount.user()
    agent.run("cat f")
    user.run("echo mine >> f")
    assert agent.run("printf x > f").refused
    assert (mount.backing / "f").read_text() == "one\ntwo\nthree\nmine\n"
    assert last_reason(mount) == "modified"
    agent.run("cat f")
    mount.turn()
    assert agent.run("printf x > f").status == 0
    assert (mount.backing / "f").read_text() == "x"


def test_a_change_from_below_is_seen(mount: Mount) -> None:
    agent = mount.agent()
    agent.run("cat f")
    with (mount.backing / "f").open("a") as file:
        file.write("mine\n")
    assert agent.run("printf x > f").refused
    assert last_reason(mount) == "modified"
    assert "mine" in agent.run("cat f").out


OTHERS: dict[str, tuple[str, str, dict[str, bool]]] = {
    "touch": ("touch f", "touched", {"strict": True, "identity": False, "content": False}),
    "save by rename": ("cp f t; mv t f", "replaced", {"strict": True, "identity": True, "content": False}),
    "forged mtime": (
        "cp -p f ref; sed s/two/TWO/ f > t; cat t > f; touch -r ref f",
        "modified",
        {"strict": True, "identity": True, "content": True},
    ),
    "chmod": ("chmod 600 f", "", {"strict": False, "identity": False, "content": False}),
    "link": ("ln f g", "", {"strict": False, "identity": False, "content": False}),
}


@pytest.mark.parametrize("match", ["strict", "identity", "content"])
@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("below", [False, True])
def test_match_modes(make_mount: MakeMount, other: str, match: str, below: bool) -> None:
    line, reason, refused = OTHERS[other]
    mount = make_mount("--match", match)
    agent, user = mount.agent(), mount.user()
    agent.run("cat f")
    done = user.run(f"cd {mount.backing} && {line}" if below else line)
    assert done.status == 0, done
    before = (mount.backing / "f").read_bytes()
    assert agent.run("printf x > f").refused == refused[match]
    if refused[match]:
        assert (mount.backing / "f").read_bytes() == before
        assert last_reason(mount) == reason
    else:
        assert not mount.denials()


def test_deleted_by_the_user_is_refused_once(mount: Mount) -> None:
    agent, user = mount.agent(), mount.user()
    agent.run("cat f")
    user.run("rm f")
    assert agent.run("echo x > f").refused
    assert not (mount.backing / "f").exists()
    assert last_reason(mount) == "gone"
    assert agent.run("echo x > f").status == 0
    assert agent.run("echo y >> f; cat f > f2; mv f2 f").status == 0


def test_deleted_with_its_directory(mount: Mount) -> None:
    agent, user = mount.agent(), mount.user()
    agent.run("mkdir d; echo x > d/f; mkdir d/e; echo x > d/e/f")
    user.run("rm -r d")
    assert agent.run("mkdir d && echo y > d/f").refused
    assert agent.run("echo y > d/f").status == 0


def test_the_record_travels_with_the_content(mount: Mount) -> None:
    user = mount.user()
    user.run("for i in 1 2 3; do echo plan $i > p$i; done")
    agent = mount.agent()
    assert agent.run("mv p1 dest").status == 0
    assert agent.run("mv p2 dest").refused
    assert agent.run("mv p3 dest").refused
    assert [(mount.backing / name).read_text() for name in ("dest", "p2", "p3")] == ["plan 1\n", "plan 2\n", "plan 3\n"]
    assert agent.run("cat p2; mv p2 q; echo x > q").status == 0


def test_two_sessions(mount: Mount) -> None:
    one, other = mount.agent("one"), mount.agent("other")
    one.run("cat f")
    other.run("cat f")
    assert one.run("echo one >> f").status == 0
    for line in ("echo other >> f", "echo other > t; mv t f", "rm f"):
        assert other.run(line).refused, line
    assert "changed_by=" in mount.denials()[-1]
    other.run("cat f")
    mount.turn()
    assert other.run("echo other >> f").status == 0
    assert (mount.backing / "f").read_text().endswith("one\nother\n")


def test_a_descriptor_opened_before_the_users_save(mount: Mount) -> None:
    agent, user = mount.agent(), mount.user()
    agent.run("exec 3<>f; cat <&3")
    user.run("sed -i s/two/mine/ f")
    user.run("echo more >> f")
    agent.run("cat f")
    mount.turn()
    assert agent.run("echo agent > f").status == 0
    assert agent.run("exec 4<>f; cat <&4 >/dev/null").status == 0
    user.run("echo mine > f")
    assert agent.run("echo agent >&4").refused
    assert (mount.backing / "f").read_text() == "mine\n"


def test_somebody_else_writes_between_two_writes(mount: Mount) -> None:
    agent, user = mount.agent(), mount.user()
    assert agent.run("cat f; exec 5>>f; echo a >&5").status == 0
    user.run("echo mine >> f")
    assert agent.run("echo b >&5").refused
    agent.run("cat f")
    mount.turn()
    assert agent.run("echo b >&5").refused, "the grant of that handle is gone"
    assert agent.run("echo b >> f").status == 0
    assert (mount.backing / "f").read_text().endswith("a\nmine\nb\n")


def test_an_unlinked_file_may_be_written(mount: Mount) -> None:
    agent, user = mount.agent(), mount.user()
    agent.run("cat f; exec 5>>f")
    user.run("rm f")
    assert agent.run("echo x >&5").status == 0


Change = Callable[[Mount], object]


@pytest.mark.parametrize(
    "line",
    [
        "cat f",
        "sed -n 1p f",
        "awk 1 f",
        "head -1 f",
        "grep two f",
        "python3 -c \"open('f').read()\"",
        "python3 -c \"import mmap; f = open('f'); mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)[:3]\"",
        "node -e \"require('fs').readFileSync('f')\"",
        "node -e \"require('fs').readFile('f', () => {})\"",
        "python3 -c \"import threading as t; x = t.Thread(target=lambda: open('f').read()); x.start(); x.join()\"",
        "cp f ../away",
        "less f",
        "(cat f)",
        "setsid cat f",
        "while read -r l; do :; done < f",
        "exec 3<>f; cat <&3; exec 3>&-",
    ],
)
def test_what_counts_as_reading(mount: Mount, line: str) -> None:
    agent = mount.agent()
    assert agent.run(line).status == 0
    assert agent.run("echo x > f").status == 0


def test_running_is_not_reading(mount: Mount) -> None:
    user = mount.user()
    user.run("cp /bin/true prog; chmod 755 prog")
    agent = mount.agent()
    assert agent.run("./prog").status == 0
    assert agent.run("cp ../state/lock prog || echo x > prog").refused


def test_opening_both_ways_is_not_reading(mount: Mount) -> None:
    agent = mount.agent()
    assert agent.run("exec 3<>f; exec 3>&-; echo x > f").refused


def test_gits_own_reading_does_not_count(mount: Mount) -> None:
    user = mount.user()
    user.run("git init -q .; git config user.email u@x; git config user.name u; git add f; git commit -qm f")
    user.run("echo mine >> f")
    agent = mount.agent()
    assert agent.run("git status; git diff").status == 0
    assert agent.run("echo x > f").refused
    assert agent.run("git checkout -- .").status != 0
    assert "mine" in (mount.backing / "f").read_text()
    assert not (mount.backing / ".git" / "index.lock").exists()


def test_own_changes_never_count_against_a_session(mount: Mount) -> None:
    agent = mount.agent()
    script = """
    for i in $(seq 200); do
        echo $i > new && echo more >> new && python3 -c '' < new && cp new tmp && mv tmp new &&
        sh -c 'echo sub >> new' && chmod $((600 + i % 2 * 44)) new && mv new other && ln -f other new &&
        rm other && touch new && truncate -s 3 new || exit 9
    done"""
    assert agent.run(f"( {script} )").status == 0, mount.denials()
    assert not mount.denials()


def test_a_file_kept_open_is_written_many_times(mount: Mount) -> None:
    agent = mount.agent()
    script = """
import os, threading
with open('kept', 'w') as kept:
    for i in range(500):
        kept.write(f'{i}\\n'); kept.flush()
        os.chmod('kept', 0o600 + i % 2 * 0o44)
def work(n):
    for i in range(50):
        with open(f'w{n}', 'a') as f: f.write('x')
threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
[t.start() for t in threads]; [t.join() for t in threads]
"""
    (mount.base / "kept.py").write_text(script)
    done = agent.run("python3 ../kept.py")
    assert done.status == 0, done
    assert not mount.denials()


def test_reading_by_others_and_atime_do_not_matter(mount: Mount) -> None:
    agent, user = mount.agent(), mount.user()
    agent.run("cat f")
    user.run("cat f; touch -a -d '2020-01-01' f; tac f")
    other = mount.agent("other")
    other.run("cat f")
    assert agent.run("echo x > f").status == 0


def test_bytes_are_compared_not_text(mount: Mount) -> None:
    user = mount.user()
    user.run(r"printf '\xef\xbb\xbfone\r\ntwo\r\n' > f")
    agent = mount.agent()
    assert agent.run("cat f > /dev/null; cp f ../c; cat ../c > f").status == 0
    user.run(r"sed -i 's/\r$//' f")
    assert agent.run("cat ../c > f").refused


def test_through_links(mount: Mount) -> None:
    user = mount.user()
    user.run("ln -s f soft; ln f hard")
    agent = mount.agent()
    assert agent.run("cat soft; echo x > f").status == 0
    user.run("echo mine >> hard")
    assert agent.run("echo x > soft").refused
    assert agent.run("echo new > n; mv n soft").status == 0
    assert "mine" in (mount.backing / "f").read_text()
    assert not os.path.islink(mount.backing / "soft")


def test_across_a_directory_rename(mount: Mount) -> None:
    user = mount.user()
    user.run("mkdir d; echo one > d/f; echo two > d/g")
    agent = mount.agent()
    agent.run("cat d/f")
    assert agent.run("mv d e; echo x > e/f").status == 0
    user.run("mv e h; echo mine >> h/f")
    assert agent.run("echo x > h/f").refused
    assert agent.run("echo x > h/g").refused


def test_renaming_away_loses_nothing(mount: Mount) -> None:
    agent = mount.agent()
    assert agent.run("echo x > n; mv f f.old; cp n f").status == 0
    assert (mount.backing / "f.old").read_text() == "one\ntwo\nthree\n"


def test_append_may_be_allowed(make_mount: MakeMount) -> None:
    mount = make_mount("--append", "allow")
    agent = mount.agent()
    assert agent.run("echo x >> f").status == 0
    assert agent.run("echo x > f").refused
    assert (mount.backing / "f").read_text() == "one\ntwo\nthree\nx\n"


def test_a_repeated_denial_is_counted(mount: Mount) -> None:
    agent = mount.agent()
    assert agent.run("for i in $(seq 300); do echo x > f && exit 9; done; true").status == 0
    assert len(mount.denials()) <= 5
    assert mount.status().sessions[0].refused == 300
    assert max(event.count for event in mount.events()) == 300


def test_an_external_change_is_told(mount: Mount) -> None:
    agent, user = mount.agent(), mount.user()
    agent.run("cat f")
    user.run("echo mine >> f")
    agent.run("cat f; cat f")
    told = [line for line in mount.log_lines() if "event=external-change" in line]
    assert len(told) == 1
    assert "path=f" in told[0]


def test_policy_is_untouchable(make_mount: MakeMount, tmp_path: object) -> None:
    mount = make_mount()
    user = mount.user()
    user.run("echo 'match = \"strict\"' > .guardfs.toml")
    agent = mount.agent()
    lines = ("echo x > .guardfs.toml", "rm .guardfs.toml", "mv .guardfs.toml g", "echo n > n; mv n .guardfs.toml")
    for line in lines:
        assert agent.run(f"cat .guardfs.toml; {line}").refused, line
        assert last_reason(mount) == "policy"
    user.run("rm .guardfs.toml")
    for line in ("echo x > .guardfs.toml", "ln -s f .guardfs.toml", "mkdir .guardfs.toml", "ln f .guardfs.toml"):
        assert agent.run(line).refused, line
    assert not (mount.backing / ".guardfs.toml").exists()


@pytest.mark.parametrize("name", [b"\xff\xfe\x80", b"new\nline", b"tab\tquote\"'", b"a" * 255, b" ", b"back\\slash"])
def test_odd_names_go_through_everything(mount: Mount, name: bytes) -> None:
    path = os.fsencode(mount.backing) + b"/" + name
    with open(path, "wb") as file:
        file.write(b"mine\n")
    agent = mount.agent()
    (mount.base / "odd.py").write_text(f"import sys; open({name!r}, 'wb').write(b'x')")
    assert agent.run("python3 ../odd.py").refused
    (mount.base / "read.py").write_text(f"open({name!r}, 'rb').read()")
    assert agent.run("python3 ../read.py; python3 ../odd.py").status == 0
    assert len(mount.denials()) == 1
    assert mount.events()[-1].path == name
