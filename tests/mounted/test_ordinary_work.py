"""What an agent does all day is never refused: edits, formatters, builds, tests, commits, branches."""

import os
import shutil

import pytest

from tests.conftest import MakeMount
from tests.helpers.mounted import Mount

CYCLES = 1000 if os.environ.get("GUARDFS_LONG") else 40
GIT = "git -c user.name=n -c user.email=e@x -c commit.gpgsign=false -c gc.auto=0"
PROJECT = f"""
(set -e; rm f; git init -q -b main .; printf '__pycache__/\\n*.pyc\\n' > .gitignore
for name in a b c; do printf 'def {{}}():\\n    return 0\\n' | sed "s/{{}}/$name/" > $name.py; done
printf 'import a, b, c\\nassert a.a() == a.a() and b.b() == b.b() and c.c() == c.c()\\n' > check.py
python3 check.py; git add -A; {GIT} commit -qm one; git branch side)
"""
FORMATTER = """
import os, pathlib
for path in map(pathlib.Path, ("a.py", "b.py", "c.py")):
    text = path.read_text()
    draft = path.with_suffix(".tmp")
    draft.write_text("\\n".join(line.rstrip() for line in text.splitlines()) + "\\n")
    os.replace(draft, path)
"""
CYCLE = f"""
(set -e; cat a.py b.py > /dev/null
sed -i 's/return .*/return %d  /' a.py
printf 'def b():\\n    return %d\\n' > b.py
python3 ../format.py; python3 check.py; git diff --stat
{GIT} commit -qam 'cycle %d'
git checkout -q side; echo 'note %d' >> notes; git add notes; {GIT} commit -qm 'note %d'
{GIT} rebase -q main; git checkout -q main; git merge -q --ff-only side
git checkout -q -b topic; mv c.py c2.py; mv c2.py c.py; git stash -q; git stash pop -q || true
git checkout -q main; git branch -q -D topic)
"""


def test_cycles_of_ordinary_work(mount: Mount) -> None:
    (mount.base / "format.py").write_text(FORMATTER)
    assert mount.user().run(PROJECT).status == 0
    agent = mount.agent()
    for number in range(1, CYCLES + 1):
        done = agent.run(CYCLE.replace("%d", str(number)))
        assert done.status == 0, (number, done, mount.denials())
    assert mount.denials() == []
    assert agent.run("git status --porcelain; git log --oneline | wc -l").out == f"{2 * CYCLES + 1}\n"


TOOLS = {
    "make": (
        r"""
        printf 'out/p: s\n\tmkdir -p out; tr a-z A-Z < $< > $@.tmp; mv $@.tmp $@\n' > Makefile
        echo text > s; echo out/ > .gitignore; make -s
        """,
        "cat s; echo more >> s; make -s; make -s -B; test $(cat out/p | wc -l) = 2",
    ),
    "npm": (
        """
        for each in dep dep2; do mkdir ../$each; (cd ../$each; npm init -y; npm pack); done
        echo node_modules/ > .gitignore; npm init -y; npm install --no-audit --no-fund ../dep/dep-1.0.0.tgz
        """,
        """
        npm install --no-audit --no-fund ../dep2/dep2-1.0.0.tgz; npm ci --no-audit --no-fund; npm uninstall dep
        test -d node_modules/dep2; test ! -d node_modules/dep
        """,
    ),
    "pytest": (
        r"""
        printf 'def test_one():\n    assert True\n' > test_it.py; pytest -q
        printf '__pycache__/\n.pytest_cache/\n' > .gitignore
        """,
        r"cat test_it.py; printf 'def test_two():\n    assert True\n' >> test_it.py; pytest -q; pytest -q --lf",
    ),
    "cargo": (
        "cargo init -q --name p --vcs none; echo target/ > .gitignore; cargo build -q --offline",
        """
        cat src/main.rs; echo '// more' >> src/main.rs
        cargo build -q --offline; cargo clean; cargo build --offline
        """,
    ),
    "compileall": (
        "echo 'x = 1' > m.py; echo __pycache__/ > .gitignore; python3 -m compileall -q .",
        "python3 -m compileall -q -f .; cat m.py; echo 'y = 1' >> m.py; python3 -m compileall -q .",
    ),
    "git": (
        "echo x > g",
        f"cat g f; echo more >> f; git add -A; {GIT} commit -qm two; {GIT} commit --amend -qm three; git gc -q",
    ),
}


@pytest.mark.parametrize("tool", TOOLS)
def test_tools_in_a_workspace_that_the_user_built(make_mount: MakeMount, tool: str) -> None:
    if tool == "cargo" and not shutil.which("cargo"):
        pytest.skip("cargo is no part of what the tests install")
    mount = make_mount()
    build, work = TOOLS[tool]
    user, agent = mount.user(), mount.agent()
    done = user.run(f"(set -e; git init -q .; {build}\n git add -A; {GIT} commit -qm one)")
    assert done.status == 0, done
    done = agent.run(f"(set -e; {work}\n)")
    assert done.status == 0, (done, mount.denials())
    assert mount.denials() == []
    assert agent.run("git fsck --strict && ! find .git -name '*.lock' | grep .").status == 0
