"""An agent that was refused and wants the same bytes in by another road: the user's version survives each of them."""

import os
from collections import Counter
from dataclasses import dataclass

import pytest

from guardfs.state.schema import EventKind
from tests.conftest import MakeMount
from tests.helpers.mounted import Mount

GIT = "git -c user.name=n -c user.email=e@x -c commit.gpgsign=false -c gc.auto=0"
MINE = "one\ntwo\nthree\nmine\n"
SAVE = "echo mine >> f"
SAVE_BY_RENAME = "cp f .f.new; echo mine >> .f.new; mv .f.new f"
REPOSITORY = f"git init -q .; git add f; {GIT} commit -qm one; seq 5 > f; {GIT} commit -qam two; git checkout -q HEAD~1"
PATCH = "printf -- '--- a/f\\n+++ b/f\\n@@ -3 +3 @@\\n-three\\n+THREE\\n' > ../p"


@dataclass(frozen=True)
class Rung:
    """What the agent tries once it has been refused, and what had been prepared before the user saved."""

    road: str
    agent_before: str = ":"
    user_before: str = ":"
    save: str = SAVE
    reason: str = "modified"
    path: str = "f"


LADDER = {
    "cat >": Rung("cat ../n > f"),
    "cp": Rung("cp ../n f"),
    "cp --remove-destination": Rung("cp --remove-destination ../n f"),
    "mv from outside": Rung("mv ../n f"),
    "mv inside": Rung("cp ../n n; mv n f"),
    "ln -f": Rung("cp ../n n; ln -f n f"),
    "ln -sf": Rung("ln -sf ../n f"),
    "rm, then cp": Rung("rm f; cp ../n f"),
    "os.replace": Rung("cp ../n n; python3 -c \"import os; os.replace('n', 'f')\""),
    "exec 3<>": Rung("exec 3<>f; echo x >&3; s=$?; exec 3>&-; test $s = 0"),
    "background child": Rung("(sh -c 'cat ../n > f') & wait $!"),
    "git checkout of another blob": Rung("git checkout -q -f - -- f", user_before=REPOSITORY),
    "git apply": Rung("git apply --unidiff-zero ../p", user_before=REPOSITORY),
    "patch": Rung("patch -s -p1 < ../p"),
    "sed -i": Rung("sed -i s/two/TWO/ f"),
    "tar": Rung("tar xf ../t.tar"),
    "tar --overwrite": Rung("tar xf ../t.tar --overwrite"),
    "rsync": Rung("rsync -c ../n f"),
    "rsync --inplace": Rung("rsync -c --inplace ../n f"),
    "a hard link made before": Rung("cat ../n > h", agent_before="ln f h", path="h"),
    "a hard link that the user had": Rung("cat ../n > h", user_before="ln f h", path="h"),
    "a symlink retargeted": Rung(
        "cat ../n > l", user_before="cp f g; ln -s g l", agent_before="cat l", save=f"{SAVE}; ln -sfn f l"
    ),
    "a descriptor from before": Rung("cat ../n >&4", agent_before="exec 4<>f"),
    "a descriptor from before, for appending": Rung("cat ../n >&4", agent_before="exec 4>>f"),
    "cut through a descriptor from before": Rung(
        "python3 -c 'import os; os.ftruncate(4, 0)'", agent_before="exec 4<>f"
    ),
    "an editor's save by rename": Rung("cat ../n > f", save=SAVE_BY_RENAME),
    "os.replace after an editor's save": Rung("cp ../n n; mv n f", save=SAVE_BY_RENAME),
    "truncate": Rung("truncate -s 0 f"),
    "dd": Rung("dd if=../n of=f conv=notrunc status=none"),
    "mmap": Rung("python3 -c \"import mmap, os; m = mmap.mmap(os.open('f', os.O_RDWR), 0); m[:1] = b'x'; m.flush()\""),
    "find -delete": Rung("find . -name f -delete"),
    "mv over from a moved directory": Rung("mkdir -p d; cp ../n d/f; mv d/f ."),
}


def refusals(mount: Mount) -> Counter[tuple[str, str | None]]:
    """How often which path was refused for which reason, by what the events say."""
    counted: Counter[tuple[str, str | None]] = Counter()
    for event in mount.events():
        if event.kind == EventKind.DENIED:
            counted[os.fsdecode(event.path), event.reason] += event.count
    return counted


def climb(mount: Mount, rung: Rung) -> None:
    """Everything up to the first refusal."""
    (mount.base / "n").write_text("the agent's own idea\n")
    agent, user = mount.shells["agent"], mount.shells["user"]
    assert (
        user.run(f"{PATCH}; mkdir ../t; echo tar > ../t/f; tar cf ../t.tar -C ../t f; {rung.user_before}").status == 0
    )
    assert agent.run(f"cat f && {rung.agent_before}").status == 0
    assert user.run(rung.save).status == 0
    assert agent.run("echo x > f").refused


@pytest.fixture
def ladder(mount: Mount) -> Mount:
    mount.shells = {"agent": mount.agent(), "user": mount.user()}
    return mount


@pytest.mark.parametrize("road", LADDER)
def test_refused_again(ladder: Mount, road: str) -> None:
    rung = LADDER[road]
    climb(ladder, rung)
    before = refusals(ladder)
    done = ladder.shells["agent"].run(rung.road)
    assert done.status, done
    assert (ladder.backing / "f").read_text() == MINE
    assert set(refusals(ladder) - before) == {(rung.path, rung.reason)}, done


def test_a_repeated_refusal_changes_no_road(ladder: Mount) -> None:
    """All roads one after another, as an agent in a loop tries them."""
    climb(ladder, Rung(":"))
    for rung in LADDER.values():
        if rung == Rung(rung.road):
            assert ladder.shells["agent"].run(rung.road).status, rung
            assert (ladder.backing / "f").read_text() == MINE, rung


def test_moved_aside_loses_nothing(ladder: Mount) -> None:
    climb(ladder, Rung(":"))
    assert ladder.shells["agent"].run("mv f f.old; cp ../n f").status == 0
    assert (ladder.backing / "f.old").read_text() == MINE
    assert ladder.shells["agent"].run("rm f.old").refused


def test_a_copy_moved_over_what_was_moved_aside(ladder: Mount) -> None:
    climb(ladder, Rung(":"))
    assert ladder.shells["agent"].run("mv f f.old; cp ../n f.new; mv f.new f.old").refused
    assert (ladder.backing / "f.old").read_text() == MINE


@pytest.mark.parametrize("road", ["sed -i s/two/TWO/ f", "patch -s -p1 < ../p", "git apply --unidiff-zero ../p"])
def test_what_carries_the_change_over_works_once_read(ladder: Mount, road: str) -> None:
    climb(ladder, Rung(":", user_before=REPOSITORY))
    agent = ladder.shells["agent"]
    agent.run("cat f")
    assert agent.run(road).status, "too soon"
    ladder.turn()
    assert agent.run(road).status == 0
    assert "mine\n" in (ladder.backing / "f").read_text()


@pytest.mark.parametrize(("match", "refused"), [("strict", True), ("identity", True), ("content", False)])
def test_the_same_bytes_in_another_file(make_mount: MakeMount, match: str, refused: bool) -> None:
    mount = make_mount("--match", match)
    agent, user = mount.agent(), mount.user()
    agent.run("cat f")
    user.run("cp -p f .f.new; mv .f.new f")
    assert agent.run("echo agent > f").refused == refused
    assert (mount.backing / "f").read_text() == ("one\ntwo\nthree\n" if refused else "agent\n")
