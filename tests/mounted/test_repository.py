"""A day's work in a repository of some thousand files: real programs, no false alarm, no loss."""

import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest

from tests.conftest import MakeMount
from tests.helpers.mounted import Mount

GIT = "git -c user.name=n -c user.email=e@x -c commit.gpgsign=false -c gc.auto=0"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The standard library as a committed repository."""
    top = tmp_path_factory.mktemp("library") / "ws"
    skipped = shutil.ignore_patterns("__pycache__", "site-packages", "*.so", "*.a", "idlelib")
    shutil.copytree(sysconfig.get_path("stdlib"), top, symlinks=True, ignore=skipped)
    (top / "f").write_text("one\ntwo\nthree\n")
    script = f"{GIT} init -q . && {GIT} add -A && {GIT} commit -qm all"
    subprocess.run(["bash", "-c", script], cwd=top, check=True, capture_output=True)
    return top


@pytest.fixture
def mount(make_mount: MakeMount, library: Path, tmp_path: Path) -> Mount:
    subprocess.run(["cp", "-a", library, tmp_path / "ws"], check=True)
    return make_mount()


def test_status_is_clean_after_mounting(mount: Mount) -> None:
    user = mount.user()
    assert user.run("git status --porcelain").out == ""
    assert int(user.run("git ls-files | wc -l").out) > 1500


def test_an_agents_day(mount: Mount) -> None:
    agent, user = mount.agent(), mount.user()
    steps = [
        "git status --porcelain",
        "grep -rl TestCase . | wc -l",
        "cat json/decoder.py > /dev/null && sed -i 's/^import re$/import re  # edited/' json/decoder.py",
        "python3 -c \"import pathlib; p = pathlib.Path('ast.py'); p.write_text(p.read_text() + '# more')\"",
        "mkdir new && cp json/*.py new/ && echo '# header' > new/head.py && rm new/tool.py",
        "sed -i 's/^import re$/import re  # edited/' new/decoder.py",
        f"{GIT} add -A && {GIT} commit -qm 'edit' && git log --oneline | wc -l",
        "python3 -m compileall -q json new",
        "python3 -c \"import sys; sys.path.insert(0, '.'); import json; json.loads('[1]')\"",
        "sqlite3 new/base.db 'create table t(x); insert into t values (1); pragma journal_mode=wal'",
        "sqlite3 new/base.db 'insert into t select * from t; select count(*) from t'",
        "tar cf /dev/null json && tar cf new/json.tar json && mkdir out && tar xf new/json.tar -C out && rm -r out",
        "printf '%s\\n' 1i '# first' . w q | ed -s new/head.py || true",
        "vim -es -c 'normal Gofinal line' -c wq new/head.py < /dev/null || true",
        f"{GIT} init -q sub && cd sub && echo a > a && {GIT} add a && {GIT} commit -qm a && cd ..",
        f"cd sub && echo b >> a && {GIT} commit -qam b && {GIT} rebase -q --root && {GIT} gc -q && cd ..",
    ]
    for step in steps:
        done = agent.run(step)
        assert done.status == 0, (step, done)
    assert mount.denials() == []
    assert user.run(f"{GIT} fsck && git -C sub fsck").status == 0
    assert not list(mount.backing.glob("**/*.lock"))
    assert user.run("tail -1 new/head.py").out == "final line\n"


def test_uncommitted_work_survives_git(mount: Mount) -> None:
    agent, user = mount.agent(), mount.user()
    user.run("echo mine >> json/decoder.py; echo mine >> ast.py; echo new > untracked.py")
    for line in ("git checkout -- .", "git reset --hard -q", "git stash -q", "git clean -fdq", "git restore ."):
        agent.run("git status >/dev/null; git diff >/dev/null; git add -N untracked.py")
        agent.run(line)
        for name in ("json/decoder.py", "ast.py"):
            assert (mount.backing / name).read_text().endswith("mine\n"), line
        assert (mount.backing / "untracked.py").exists(), line
    assert mount.denials()
    assert not (mount.backing / ".git" / "index.lock").exists()


def test_a_user_works_as_on_a_bare_directory(mount: Mount, library: Path, tmp_path: Path) -> None:
    mount.agent()
    user = mount.user()
    bare = tmp_path / "bare"
    subprocess.run(["cp", "-a", library, bare], check=True)
    script = f"""
    {GIT} checkout -q -b other && echo x >> ast.py && {GIT} commit -qam x && {GIT} checkout -q - && {GIT} merge -q other
    echo y >> ast.py; git stash -q; git stash pop -q; git checkout -- .; git status --porcelain
    rm -r json; git status --porcelain | wc -l; {GIT} reset -q --hard; ls | wc -l
    for i in 1 2 3; do echo $i > p$i; done; for i in 1 2 3; do mv p$i dest; done; cat dest
    sed -i s/import/IMPORT/ ast.py; git diff --stat | cat; cp -r json copy; rm -r copy json/tests 2>/dev/null; ls json
    """
    results = [user.run(f"cd {place} && {script}") for place in (mount.point, bare)]
    assert results[0] == results[1]
    assert results[0].status == 0
    assert mount.denials() == []
