"""Git by a session that has read nothing: clean files are git's to change, uncommitted work is nobody's."""

from pathlib import Path

import pytest

from tests.conftest import MakeMount
from tests.helpers.mounted import Mount
from tests.helpers.shell import Shell

GIT = "git -c user.name=n -c user.email=e@x -c commit.gpgsign=false -c gc.auto=0"
BUILD = f"""
(set -e; rm f; git init -q -b main .
for name in a b c d e; do seq 1 20 | sed "s/^/$name /" > $name; done
git add -A; {GIT} commit -qm one; git checkout -q -b other
sed -i '1s/.*/OTHER/' a b d; echo new > onlyother; git add -A; {GIT} commit -qm other
git checkout -q main; sed -i '20s/.*/MAIN/' e; {GIT} commit -qam two
git clone -q . ../up; git -C ../up checkout -q main; sed -i '10s/.*/UP/' ../up/c; {GIT} -C ../up commit -qam up)
"""
ON_CLEAN = [
    "git checkout -q other",
    "git switch -q other",
    f"{GIT} pull -q ../up main",
    f"{GIT} rebase -q other",
    f"{GIT} merge -q other -m merged",
    f"{GIT} cherry-pick other",
    f"{GIT} revert --no-edit HEAD",
    "git worktree add -q ../tree other",
    "git bisect start HEAD HEAD~1 && git bisect reset",
    "git reset -q --hard HEAD~1",
    "git checkout -- . && git clean -fdq && git stash -q",
    "git restore --source=other a b",
    "rm a b && git checkout -- .",
]
ON_WORK = {
    "git checkout -- .": "be",
    "git checkout -q -f": "be",
    "git restore .": "be",
    "git reset -q --hard": "be",
    "git status; git diff; git add -N u; git reset --hard": "beu",
    "git stash": "be",
    "git stash -u": "u",
    "git clean -fd": "u",
    "git checkout -f other": "be",
    f"{GIT} merge other -m merged": "be",
    f"{GIT} rebase --autostash other": "be",
    "git rm -f b": "b",
    "git checkout other -- b": "b",
    "git read-tree --reset -u other": "be",
}


@pytest.fixture
def repository(mount: Mount) -> Mount:
    """Two branches, and a clone beside the workspace with a commit more."""
    assert mount.user().run(BUILD).status == 0
    return mount


def work_of(user: Shell, root: Path) -> dict[str, bytes]:
    """Lines that a person has neither committed nor staged."""
    assert user.run("echo MINE >> b; echo mine > u; sed -i 's/^e 5$/MINE/' e").status == 0
    return {name: (root / name).read_bytes() for name in "beu"}


@pytest.mark.parametrize("line", ON_CLEAN)
def test_clean_files_are_gits_to_change(repository: Mount, line: str) -> None:
    outcome = repository.agent().run(line)
    assert (outcome.status, repository.denials()) == (0, []), outcome.err


@pytest.mark.parametrize("line", ON_WORK)
def test_uncommitted_work_is_kept(repository: Mount, line: str) -> None:
    work = work_of(repository.user(), repository.backing)
    assert repository.agent().run(line).status != 0
    assert {name: (repository.backing / name).read_bytes() for name in work} == work
    denied = {event.path.decode() for event in repository.events() if event.reason}
    assert denied == set(ON_WORK[line])
    assert not list((repository.backing / ".git").glob("*.lock"))
    assert "'git status' shows which" in repository.denials()[-1]


def test_known_work_is_gits_to_take(repository: Mount) -> None:
    work_of(repository.user(), repository.backing)
    agent = repository.agent()
    assert agent.run("cat b e u; git reset -q --hard && git clean -fdq").status == 0
    assert agent.run("git status --porcelain").out == ""


def test_a_branch_that_somebody_else_switched(repository: Mount) -> None:
    agent, user = repository.agent(), repository.user()
    agent.run("cat a b c d e")
    assert user.run("git checkout -q other").status == 0
    assert agent.run("echo x > a").refused
    assert agent.run("git checkout -q main").status == 0


def test_a_freed_name_is_no_free_one(repository: Mount) -> None:
    agent = repository.agent()
    assert agent.run("rm a").status == 0
    for line in ("echo x > a", "echo x > t; mv t a", "echo x > t; ln t a"):
        assert agent.run(line).refused, line
        assert "reason=freed" in repository.denials()[-1]
        assert not (repository.backing / "a").exists()
    assert agent.run("git checkout -- a && cat a && echo x > a").status == 0


def test_the_strict_profile_makes_no_exception(make_mount: MakeMount) -> None:
    mount = make_mount("--profile", "strict")
    assert mount.user().run(BUILD).status == 0
    assert mount.agent().run("rm a").refused
    outcome = mount.agent().run("git checkout -q other")
    assert outcome.err.count("Input/output error") == 4, "which git exits with 0 after"
    assert (mount.backing / "a").read_text().startswith("a 1\n")
    assert "may even exit 0" in mount.denials()[-1]


def test_a_filter_makes_unsure(repository: Mount) -> None:
    repository.user().run("echo '* text=auto eol=crlf' > .gitattributes; git add -A")
    assert repository.agent().run("rm a").refused
