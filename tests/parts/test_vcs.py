"""What git ignores and what its index holds, compared with git itself.

Each question is asked through a descriptor while a decoy stands at the workspace's own path, as the daemon's mount
does: whatever reads that path gets it wrong.
"""

import contextlib
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from guardfs.vcs import Vcs, blob_id

GIT = ("git", "-c", "protocol.file.allow=always", "-c", "user.name=n", "-c", "user.email=n@example.org")
NAMES = (b"a", b"b", b"ab", b"A", b"a.b", b"a b", b"x\xff", b"[a]", b"!a", b"#a", b"a\\", b"*", b"-", b"a\n", b" ")
DIRECTORIES = (b"", b"a", b"a/b", b"a/b/a", b"b", b"x\xff", b"ab", b"ab/a b", b"a/ab")


def git(where: Path, *arguments: str | bytes, stdin: bytes = b"", codes: tuple[int, ...] = (0,)) -> bytes:
    """What a git command prints, its last line end gone."""
    done = subprocess.run([*GIT, *arguments], cwd=where, input=stdin, capture_output=True, check=False)
    assert done.returncode in codes, done.stderr.decode()
    return done.stdout.removesuffix(b"\n")


def put(where: Path, files: Mapping[str, str | bytes]) -> None:
    """Write files by path."""
    for name, text in files.items():
        path = where / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())


def repository(where: Path, *options: str) -> Path:
    where.mkdir(parents=True)
    git(where, "init", "-q", "-b", "main", *options)
    return where


@contextlib.contextmanager
def asking(workspace: Path) -> Iterator[Vcs]:
    """A loaded Vcs of a workspace that is covered by a decoy."""
    fd = os.open(workspace, os.O_RDONLY | os.O_DIRECTORY)
    try:
        vcs = Vcs(f"/proc/self/fd/{fd}", str(workspace))
        with covered(workspace):
            vcs.load()
            yield vcs
        vcs.close()
    finally:
        os.close(fd)


@contextlib.contextmanager
def covered(workspace: Path) -> Iterator[None]:
    """The workspace lies elsewhere, and at its path stands something that ignores everything and holds nothing."""
    workspace.rename(real(workspace))
    repository(workspace)
    put(workspace, {".gitignore": "*\n", ".gitattributes": "* filter=x\n"})
    try:
        yield
    finally:
        shutil.rmtree(workspace)
        real(workspace).rename(workspace)


def real(workspace: Path) -> Path:
    """Where a workspace lies while it is covered."""
    return workspace.with_name("real")


def answers(vcs: Vcs, workspace: Path, paths: Iterable[bytes]) -> set[bytes]:
    """Which paths are ignored; what is a directory is looked up where the workspace really is."""
    below = os.fsencode(real(workspace))
    return {path for path in paths if vcs.ignored(path, os.path.isdir(os.path.join(below, path)))}


def ignored_by_git(where: Path, paths: Iterable[bytes]) -> set[bytes]:
    said = git(where, "check-ignore", "-z", "--stdin", stdin=b"\0".join(paths) + b"\0", codes=(0, 1))
    return {path for path in said.split(b"\0") if path}


def blobs_of_git(where: Path) -> dict[bytes, bytes]:
    """Blob ids by path, for entries of files at stage 0."""
    lines = [line.split(b"\t", 1) for line in git(where, "ls-files", "-s", "-z").split(b"\0") if line]
    return {name: said.split()[1] for said, name in lines if said.startswith(b"100") and said.endswith(b" 0")}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home without settings, for git and for us."""
    path = tmp_path / "home"
    path.mkdir()
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setenv("HOME", str(path))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    monkeypatch.setenv("GIT_ATTR_NOSYSTEM", "1")
    return path


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A repository that is the workspace."""
    return repository(tmp_path / "in" / "work")


def check_ignores(work: Path, *paths: str, ignored: str) -> None:
    """Ours is git's answer, and both are the expected one. A path that ends in a slash is made a directory."""
    for path in paths:
        place = work / path
        (place if path.endswith("/") else place.parent).mkdir(parents=True, exist_ok=True)
        if not path.endswith("/"):
            place.touch()
    asked, expected = [os.fsencode(path.rstrip("/")) for path in paths], set(os.fsencode(ignored).split())
    assert ignored_by_git(work, asked) == expected
    with asking(work) as vcs:
        assert answers(vcs, work, asked) == expected


# --- what is ignored ---------------------------------------------------------------------------------------------


def test_nested_rules_and_negations(work: Path) -> None:
    put(
        work,
        {".gitignore": "*.log\nbuild/\n/top\n", "sub/.gitignore": "!keep.log\n*.tmp\n", "build/.gitignore": "!*\n"},
    )
    paths = "x.log top sub/top sub/keep.log sub/x.log sub/a.tmp a.tmp build/ build/x build/d/x sub/build".split()
    check_ignores(work, *paths, ignored="x.log top sub/x.log sub/a.tmp build build/x build/d/x")


def test_exclude_file_outweighs_the_users_and_yields_to_directories(work: Path, home: Path) -> None:
    put(home, {".config/git/ignore": "one\ntwo\nthree\n!four\n"})
    put(work, {".git/info/exclude": "!one\ntwo\nfour\n", ".gitignore": "!two\n"})
    check_ignores(work, "one", "two", "three", "four", ignored="three four")


@pytest.mark.parametrize("value", ["~/mine", "{home}/mine", "{work}/mine", "", "{home}/to-work/mine"])
def test_excludes_file_is_found_wherever_it_is(work: Path, home: Path, value: str) -> None:
    for place in (home, work):
        put(place, {"mine": "x\n"})
    (home / "to-work").symlink_to(work)
    put(
        home,
        {".config/git/ignore": "y\n", ".gitconfig": f"[core]\nexcludesFile = {value.format(home=home, work=work)}\n"},
    )
    check_ignores(work, "x", "y", ignored="x" if value else "")


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("[include]\npath = more\n", True),
        ("[core]\nexcludesFile = ~/other\n[include]\npath = more\n", True),
        ("[include]\npath = more\n[core]\nexcludesFile = ~/other\n", False),
        ('[includeIf "gitdir:~/../in/"]\npath = more\n', False),
        ('[includeIf "gitdir:work/"]\npath = more\n', True),
        ('[includeIf "gitdir:**/in/w*/.git"]\npath = more\n', True),
        ('[includeIf "gitdir/i:WORK/"]\npath = ~/more\n', True),
        ('[includeIf "onbranch:ma*"]\npath = more\n', True),
        ('[includeIf "onbranch:other"]\npath = more\n', False),
        ("[include]\npath = absent\n", False),
    ],
)
def test_includes_count_in_their_place(work: Path, home: Path, text: str, holds: bool) -> None:
    put(home, {".gitconfig": text, "more": "[core]\n\texcludesFile = ~/mine\n", "mine": "x\n", "other": "y\n"})
    check_ignores(work, "x", ignored="x" if holds else "")


def test_nothing_is_ignored_where_the_settings_are_broken(work: Path) -> None:
    put(work, {".gitignore": "x\n", "x": "", ".git/config": "[core\n"})
    with asking(work) as vcs:
        assert not vcs.ignored(b"x", is_directory=False)
        assert vcs.is_fresh(b"x")


def test_tracked_files_and_what_holds_them_are_never_ignored(work: Path) -> None:
    put(work, {"dir/deep/tracked": "", "dir/untracked": "", ".gitignore": "dir/\nfile*\n", "file": "", "file2": ""})
    git(work, "add", "-f", "dir/deep/tracked", "file")
    paths = "dir/ dir/deep/ dir/deep/tracked dir/untracked dir/deep/new file file2".split()
    check_ignores(work, *paths, ignored="dir/untracked dir/deep/new file2")


def test_without_a_repository_nothing_is_ignored(tmp_path: Path) -> None:
    put(tmp_path / "in" / "work", {".gitignore": "*\n", "x": ""})
    with asking(tmp_path / "in" / "work") as vcs:
        assert not vcs.ignored(b"x", is_directory=False)
        assert vcs.index_blob(b"x") is None
        assert vcs.is_fresh()


def test_case_is_ignored_where_git_does(work: Path) -> None:
    git(work, "config", "core.ignoreCase", "true")
    put(work, {".gitignore": "*.LOG\nDir/[a-c]x\n"})
    check_ignores(work, "a.log", "A.LOG", "dir/Bx", "dir/dx", ignored="a.log A.LOG dir/Bx")


@pytest.mark.parametrize("rules", [b"caf\xe9\n", b"caf?\n", b"caf[\xe0-\xef]\n", b"\xef\xbb\xbfcaf\xe9\r\n"])
def test_names_are_bytes(work: Path, rules: bytes) -> None:
    put(work, {".gitignore": rules})
    check_ignores(work, os.fsdecode(b"caf\xe9"), "cafe/", ignored=os.fsdecode(b"caf\xe9") + " cafe" * (b"?" in rules))


def test_links_are_no_rules(work: Path) -> None:
    put(work, {"rules": "x\n", "sub/x": ""})
    (work / ".gitignore").symlink_to("rules")
    check_ignores(work, "x", "sub/x", ignored="")


def test_rules_that_cannot_be_read_ignore_nothing(work: Path) -> None:
    put(work, {".gitignore": "x\n", "sub/.gitignore": b"#" * (1 << 16) + b"\n"})
    for path in ("x", "sub/x"):
        put(work, {path: ""})
    with asking(work) as vcs:
        assert answers(vcs, work, [b"x", b"sub/x"]) == {b"x"}


# --- where the repository is -------------------------------------------------------------------------------------


def test_workspace_below_its_repository(tmp_path: Path) -> None:
    top = repository(tmp_path / "in")
    work = top / "sub" / "work"
    put(
        top,
        {".gitignore": "*.o\n/sub/work/here\nhere2/\n", "sub/.gitignore": "work/there\n", "sub/work/a": "a", "x": "x"},
    )
    put(work, {".gitignore": "!keep.o\n", "here2/x": ""})
    git(top, "add", "-A")
    check_ignores(work, "a.o", "keep.o", "here", "there", "d/there", "here2/", ignored="a.o here there here2")
    with asking(work) as vcs:
        assert vcs.index_blob(b"a") == blobs_of_git(top)[b"sub/work/a"]
        assert vcs.index_blob(b"x") is None


def test_workspace_that_its_repository_ignores(tmp_path: Path) -> None:
    top = repository(tmp_path / "in")
    put(top, {".gitignore": "/work/\n", "work/.gitignore": "!*\n", "work/tracked": ""})
    git(top, "add", "-f", "work/tracked")
    check_ignores(top / "work", "x", "d/x", "tracked", ignored="x d/x")


@pytest.mark.parametrize("place", ["in", "in/work"])
def test_what_only_looks_like_a_repository(tmp_path: Path, place: str) -> None:
    """Git climbs past a directory called .git that is none, and gives up at a file that leads nowhere."""
    work = tmp_path / "in" / "work"
    put(repository(tmp_path / "in"), {".gitignore": "x\n", "work/x": ""})
    (work / ".git").mkdir()
    with asking(work) as vcs:
        assert vcs.ignored(b"x", is_directory=False)
    (work / ".git").rmdir()
    put(work, {".git": "gitdir: nowhere\n"})
    with asking(work) as vcs:
        assert not vcs.ignored(b"x", is_directory=False)


@pytest.mark.parametrize("outside", [True, False])
def test_worktree(work: Path, tmp_path: Path, outside: bool) -> None:
    put(work, {"a": "a\n", ".gitignore": "main\n"})
    git(work, "add", "-A")
    git(work, "commit", "-qm", "one")
    put(work, {".git/info/exclude": "shared\n"})
    other = tmp_path / "other" / "work" if outside else work / "trees" / "other"
    git(work, "worktree", "add", "-q", str(other))
    put(other, {"b": "b\n", ".gitignore": "tree\n"})
    git(other, "add", "b")
    names = ["main", "tree", "shared", "b"]
    for name in names[:3]:
        put(other, {name: ""})
    assert ignored_by_git(other, map(str.encode, names)) == {b"tree", b"shared"}
    prefix = b"" if outside else b"trees/other/"
    with asking(other if outside else work) as vcs:
        settle(vcs, prefix + b"b")
        found = {name for name in names if vcs.ignored(prefix + name.encode(), is_directory=False)}
        assert found == {"tree", "shared"}
        assert vcs.index_blob(prefix + b"b") == blob_of(b"b\n")
        assert vcs.index_blob(prefix + b"a") == blob_of(b"a\n")


def settle(vcs: Vcs, path: bytes) -> None:
    """What a caller does before it asks."""
    if not vcs.is_fresh(path):
        vcs.load()
    assert vcs.is_fresh(path)


def blob_of(data: bytes) -> bytes:
    return git(Path("/"), "hash-object", "--stdin", stdin=data)


def test_worktree_of_a_bare_repository(tmp_path: Path) -> None:
    store, work = repository(tmp_path / "store"), tmp_path / "in" / "work"
    put(store, {"a": "a\n", ".gitignore": "x\n"})
    git(store, "add", "-A")
    git(store, "commit", "-qm", "one")
    git(store, "config", "core.bare", "true")
    git(store / ".git", "worktree", "add", "-q", str(work))
    put(work, {"x": ""})
    check_ignores(work, "x", "y", ignored="x")
    with asking(work) as vcs:
        assert vcs.index_blob(b"a") == blob_of(b"a\n")
    put(store, {"x": ""})
    with asking(store) as vcs:
        assert not vcs.ignored(b"x", is_directory=False)


@pytest.mark.parametrize("kind", ["submodule", "clone"])
def test_rules_end_where_another_repository_begins(work: Path, tmp_path: Path, kind: str) -> None:
    source = repository(tmp_path / "source")
    put(source, {"a": "a\n", ".gitignore": "inner\n"})
    git(source, "add", "-A")
    git(source, "commit", "-qm", "one")
    put(work, {".gitignore": "outer\nhidden/\n"})
    command = ["submodule", "add", "-q"] if kind == "submodule" else ["clone", "-q"]
    git(work, *command, str(source), "sub")
    git(work, "clone", "-q", str(source), "hidden/deep")
    for name in ("sub", "hidden/deep"):
        put(work / name, {"inner": "", "outer": "", "d/inner": "", "new": "new\n"})
        git(work / name, "add", "new")
        assert ignored_by_git(work / name, [b"inner", b"outer", b"d/inner", b"a"]) == {b"inner", b"d/inner"}
    with asking(work) as vcs:
        for prefix in (b"sub/", b"hidden/deep/"):
            assert not vcs.is_fresh(prefix + b"a")
            assert not vcs.ignored(prefix + b"inner", is_directory=False), "nothing is known of it yet"
            assert vcs.index_blob(prefix + b"a") is None
            settle(vcs, prefix + b"a")
            asked = [prefix + name for name in (b"inner", b"outer", b"d/inner", b"a", b".git")]
            assert answers(vcs, work, asked) == {prefix + b"inner", prefix + b"d/inner"}
            assert vcs.index_blob(prefix + b"a") == blob_of(b"a\n")
            assert vcs.index_blob(prefix + b"new") == blob_of(b"new\n")
        assert answers(vcs, work, [b"sub", b"hidden", b"hidden/deep", b"hidden/x"]) == {
            b"hidden",
            b"hidden/deep",
            b"hidden/x",
        }
        assert vcs.index_blob(b"sub") is None
        assert not vcs.ignored(b".git/outer", is_directory=False)


def test_submodule_as_the_workspace(tmp_path: Path) -> None:
    source = repository(tmp_path / "source")
    put(source, {"a": "a\n", ".gitignore": "inner\n"})
    git(source, "add", "-A")
    git(source, "commit", "-qm", "one")
    outer = repository(tmp_path / "outer")
    git(outer, "submodule", "add", "-q", str(source), "sub/work")
    put(outer, {".git/modules/sub/work/info/exclude": "excluded\n"})
    check_ignores(outer / "sub" / "work", "inner", "excluded", "x", ignored="inner excluded")
    with asking(outer / "sub" / "work") as vcs:
        assert vcs.index_blob(b"a") == blob_of(b"a\n")


def test_work_tree_elsewhere_is_not_ours(work: Path, tmp_path: Path) -> None:
    put(work, {".gitignore": "x\n", "x": ""})
    git(work, "config", "core.worktree", str(tmp_path))
    with asking(work) as vcs:
        assert not vcs.ignored(b"x", is_directory=False)


def test_a_chain_of_links_is_followed_without_the_mount(work: Path, tmp_path: Path) -> None:
    """The repository of another directory lies inside the workspace, and the pointer goes by links."""
    put(work, {"a": "a\n"})
    git(work, "add", "a")
    (tmp_path / "link").symlink_to(tmp_path / "in")
    store = work / "store"
    (work / ".git").rename(store)
    put(work, {".git": f"gitdir: {tmp_path}/link/../link/work/store\n"})
    assert blobs_of_git(work) == {b"a": blob_of(b"a\n")}
    with asking(work) as vcs:
        assert vcs.index_blob(b"a") == blob_of(b"a\n")


def test_endless_links_are_no_repository(work: Path) -> None:
    put(work, {".gitignore": "x\n"})
    (work / ".git" / "info" / "exclude").unlink()
    (work / ".git" / "info" / "exclude").symlink_to("exclude")
    with asking(work) as vcs:
        assert vcs.ignored(b"x", is_directory=False)


# --- patterns, against git ---------------------------------------------------------------------------------------

FRAGMENTS = (
    *(b"a", b"b", b"A", b"a.b", b"ab", b"x\xff", b"\xff", b" ", b".", b"-", b"#", b"!", b"\\", b"\\ ", b"\\\\", b"\\a"),
    *(
        b"*",
        b"**",
        b"***",
        b"?",
        b"/",
        b"/",
        b"/",
        b"**/",
        b"/**",
        b"/**/",
        b"[",
        b"]",
        b"[a]",
        b"[!a]",
        b"[^b]",
        b"[a-b]",
    ),
    *(
        b"[b-a]",
        b"[]a]",
        b"[[:alpha:]]",
        b"[[:nope:]]",
        b"[a\\]]",
        b"[\\[]",
        b"[/]",
        b"[a/b]",
        b"\r",
        b"\t",
        b"\0",
        b"\n",
    ),
)
FILES = st.lists(st.lists(st.sampled_from(FRAGMENTS), max_size=7).map(b"".join), max_size=6).map(b"\n".join)


def grown(work: Path) -> Path:
    """A repository with every name in every directory."""
    repository(work)
    for directory in DIRECTORIES:
        (work / os.fsdecode(directory)).mkdir(exist_ok=True)
    for directory in DIRECTORIES:
        for name in NAMES:
            place = work / os.fsdecode(directory) / os.fsdecode(name)
            if not place.is_dir():
                place.touch()
    return work


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return grown(tmp_path_factory.mktemp("tree") / "work")


@pytest.fixture(scope="module")
def tracked_tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    work = grown(tmp_path_factory.mktemp("tracked") / "work")
    git(work, "add", "-A")
    return work


def check_rules(tree: Path, *files: bytes) -> None:
    """The files are those of the tree, of two directories in it, and the one that only this clone has."""
    paths = [os.path.join(directory, name) for directory in DIRECTORIES for name in NAMES]
    places = (".gitignore", "a/.gitignore", "a/b/.gitignore", ".git/info/exclude")
    for place, text in zip(places, files, strict=True):
        (tree / place).write_bytes(text)
    fd = os.open(tree, os.O_RDONLY)
    vcs = Vcs(f"/proc/self/fd/{fd}", "/nonexistent/mount")
    vcs.load()
    below = os.fsencode(tree)
    ours = {path for path in paths if vcs.ignored(path, os.path.isdir(os.path.join(below, path)))}
    vcs.close()
    os.close(fd)
    assert ours == ignored_by_git(tree, paths)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(FILES, FILES, FILES, FILES)
@example(b"a**/b\n", b"**a\n", b"!a\n", b"")
@example(b"a/**\n!a/b\n", b"", b"", b"")
@example(b"\\!a\n\\#a\n!\n/\n//\n", b"a\\\n", b"a\\\\\n", b"\\*\n")
@example(b"a\\ \na \\\\ \n\\   \n", b"a\n\\n", b"\xef\xbb\xbfb", b"#a\r\n*\r\n!a\r\r\n")
@example(b"[a\n[!a]b\n[[a]]\n", b"[[:alpha:]]\n", b"[^[:alpha:]]*\n", b"[\\]\n")
@example(b"**/a/b\na/**/b\n/**/ab\n", b"/**\n!/b/\n", b"", b"*/a\n?/b\n")
def test_patterns_mean_what_they_mean_to_git(tree: Path, top: bytes, a: bytes, b: bytes, info: bytes) -> None:
    check_rules(tree, top, a, b, info)


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        (b"*a" * 30 + b"b", b"a" * 255),
        (b"/x/" + b"*a" * 30 + b"b", b"x/" + b"a" * 255),
        (b"**/a/" * 12 + b"b", b"a/" * 300 + b"a"),
        (b"x/**/*a*a*/**/*a*a*/**/b", b"x/" + b"aaaaaaaaaaaaaaaaaaaa/" * 100 + b"a"),
        (b"[a-b]*" * 30 + b"c", b"ab" * 120),
    ],
)
def test_no_pattern_takes_long(work: Path, pattern: bytes, path: bytes) -> None:
    put(work, {".git/info/exclude": pattern + b"\n"})
    with asking(work) as vcs:
        began = time.thread_time()
        assert not vcs.ignored(path, is_directory=False)
        assert time.thread_time() - began < 0.5


# --- what the index holds ----------------------------------------------------------------------------------------


def check_blobs(work: Path, *unsure: str, missing: str = "nothing") -> None:
    """Ours are git's, save for paths whose answer has to be None."""
    expected = blobs_of_git(work)
    names = {*expected, *map(os.fsencode, unsure), missing.encode()}
    with asking(work) as vcs:
        assert {name: vcs.index_blob(name) for name in names} == {
            name: None if os.fsdecode(name) in unsure else expected.get(name) for name in names
        }


@pytest.mark.parametrize("version", ["2", "3", "4"])
@pytest.mark.parametrize("options", [[], ["--object-format=sha256"]])
def test_versions_of_the_index(tmp_path: Path, version: str, options: list[str]) -> None:
    work = repository(tmp_path / "in" / "work", *options)
    long = "/".join(["d" * 200] * 3)
    for name in ("a", "a-b", "a0", f"{long}/x", f"{long}/y", "dir/x", os.fsdecode(b"z\xff"), "zz"):
        put(work, {name: name.encode("utf-8", "surrogateescape")})
    git(work, "add", "-A")
    git(work, "update-index", "--index-version", version)
    if version == "3":
        git(work, "update-index", "--skip-worktree", "zz")
    assert (work / ".git" / "index").read_bytes()[7] == int(version)
    check_blobs(work, *(["zz"] if version == "3" else []))


def test_more_entries_than_one_kind_of_directory(work: Path) -> None:
    """Names that sort around the slash, and one path that is a prefix of another's."""
    names = ["a/b/c/d", "a/b/c.d", "a/b-c", "a/b0", "a-b/c", "a.b", "a0/b", "b/a/x", "b/b/x", "b/c"]
    for name in names:
        put(work, {name: name})
    git(work, "add", "-A")
    check_blobs(work, missing="a/b")
    put(work, {".gitignore": "*\n"})
    git(work, "add", "-f", ".gitignore")
    check_ignores(work, "a/", "a/b/", "a/b/c/", "a-b/", "b/a/", "b/c", "b/d", "b/a/y", ignored="b/d b/a/y")


def test_entries_that_no_clean_file_can_be_told_by(work: Path) -> None:
    put(work, {"plain": "1", "new": "2", "assumed": "3", "skipped": "4", "sub/x": "5"})
    (work / "link").symlink_to("plain")
    git(work, "add", "plain", "assumed", "skipped", "link")
    git(work, "add", "-N", "new")
    git(work, "update-index", "--assume-unchanged", "assumed")
    git(work, "update-index", "--skip-worktree", "skipped")
    git(work, "commit", "-qm", "one")
    git(work, "update-index", "--add", "--cacheinfo", f"160000,{git(work, 'rev-parse', 'HEAD').decode()},sub")
    check_blobs(work, "new", "assumed", "skipped", "link", "sub", "sub/x")


def test_conflict(work: Path) -> None:
    put(work, {"file": "1\n", "other": "1\n"})
    git(work, "add", "-A")
    git(work, "commit", "-qm", "base")
    for branch, text in (("side", "2\n"), ("main", "3\n")):
        git(work, "checkout", "-q", *(["-b"] if branch == "side" else []), branch)
        put(work, {"file": text})
        git(work, "commit", "-qam", branch)
    git(work, "merge", "side", codes=(1,))
    check_blobs(work, "file")
    put(work, {".gitignore": "*\n"})
    check_ignores(work, "file", "x", ignored="x")


def test_split_index_is_unsure_but_tracks(work: Path) -> None:
    put(work, {"old": "1", "changed": "2", ".gitignore": "*\n"})
    git(work, "add", "-f", "old", "changed")
    git(work, "update-index", "--split-index")
    put(work, {"changed": "3", "new": "4"})
    git(work, "add", "-f", "changed", "new")
    check_blobs(work, "old", "changed", "new")
    check_ignores(work, "old", "changed", "new", "x", ignored="x")
    for shared in (work / ".git").glob("sharedindex.*"):
        shared.unlink()
    with asking(work) as vcs:
        assert answers(vcs, work, [b"old", b"x"]) == set()


def test_sparse_index(work: Path) -> None:
    put(work, {"kept/a": "1", "left/deep/b": "2", "top": "3"})
    git(work, "add", "-A")
    git(work, "commit", "-qm", "one")
    git(work, "sparse-checkout", "set", "--cone", "--sparse-index", "kept")
    assert b"sdir" in (work / ".git" / "index").read_bytes()
    expected = {b"kept/a": blob_of(b"1"), b"top": blob_of(b"3"), b"left/deep/b": None, b"left": None}
    put(work, {".git/info/exclude": "*\n"})
    with asking(work) as vcs:
        assert {path: vcs.index_blob(path) for path in expected} == expected
        assert answers(vcs, work, [*expected, b"left/deep", b"x", b"kept/x"]) == {b"x", b"kept/x"}


@pytest.mark.parametrize("key", ["index.skipHash", "core.untrackedCache", "index.threads", "feature.manyFiles"])
def test_settings_that_change_the_index(work: Path, key: str) -> None:
    git(work, "config", key, "true")
    put(work, {"a": "1", "b/c": "2"})
    git(work, "add", "-A")
    git(work, "status")
    check_blobs(work)


def test_damaged_index_holds_nothing_and_ignores_nothing(work: Path) -> None:
    put(work, {"a": "1", "b": "2", ".gitignore": "x\n"})
    git(work, "add", "-A")
    index = work / ".git" / "index"
    whole = index.read_bytes()
    with asking(work) as vcs:
        index = real(work) / ".git" / "index"
        for cut in (0, 1, 4, 12, 40, 100, len(whole) - 21, len(whole) - 1):
            index.write_bytes(whole[:cut])
            vcs.load()
            assert vcs.index_blob(b"a") is None
            assert vcs.ignored(b"x", is_directory=False) == (cut == 0), "an empty index is one"
        for at in range(0, len(whole), 7):
            index.write_bytes(whole[:at] + bytes([whole[at] ^ 0x41]) + whole[at + 1 :])
            vcs.load()
            assert vcs.index_blob(b"a") is None
        index.write_bytes(whole)
        vcs.load()
        assert vcs.index_blob(b"a") == blob_of(b"1")


@pytest.mark.parametrize("seed", range(0, 256, 5))
def test_damage_with_a_checksum_of_zeros_raises_nothing(work: Path, seed: int) -> None:
    """No checksum stands in the way here: the reader itself has to hold."""
    put(work, {"a": "1", "long_enough/b": "2", "long_enough/c": "3"})
    git(work, "add", "-A")
    git(work, "update-index", "--index-version", "4" if seed % 2 else "2")
    index = work / ".git" / "index"
    whole = bytearray(index.read_bytes()[:-20])
    for at in range(8 + seed % 3, len(whole), 11):
        whole[at] ^= seed
        index.write_bytes(bytes(whole) + bytes(20))
    with asking(work) as vcs:
        vcs.index_blob(b"a")
        vcs.ignored(b"x", is_directory=False)


# --- what could make a clean file differ from its blob -----------------------------------------------------------

ATTRIBUTES = [
    ("", True),
    ("*.txt diff=x merge=union linguist-generated export-ignore", True),
    ("*.md text", True),
    ("*.txt text", False),
    ("* text=auto", False),
    ("*.txt eol=lf", False),
    ("*.txt eol=crlf", False),
    ("*.txt crlf", False),
    ("*.txt -crlf", True),
    ("*.txt -text", True),
    ("*.txt binary", True),
    ("* text=auto eol=lf\n*.txt -text", True),
    ("* text\n*.txt !text", True),
    ("*.txt -text\n* text", False),
    ("*.txt binary text", False),
    ("*.txt text binary", True),
    ("* text\n*.txt binary -binary", False),
    ("* text\n*.txt binary\n*.txt !binary", False),
    ("*.txt -binary\n*.txt binary", True),
    ("*.txt filter=", False),
    ("*.txt filter=lfs", False),
    ("*.txt binary filter=lfs", False),
    ("*.txt filter=lfs\n*.txt -filter", True),
    ("*.txt ident", False),
    ("*.txt working-tree-encoding=UTF-16", False),
    ('"f*.txt" text', False),
    ('"f*.txt" diff=x', True),
    ("[attr]mine text\n*.txt mine", False),
    ("[attr]mine text\n*.txt -mine", True),
    ("[attr]mine text\n*.md mine", True),
    ("[attr]binary filter=x\n*.txt binary", False),
    ("!*.txt text", True),
    ("sub/ text", True),
    ("sub/** text", False),
    ("/file.txt text", True),
    ("# *.txt text", True),
    ("\ufeff*.txt text", False),
]


@pytest.mark.parametrize(("text", "sure"), ATTRIBUTES)
@pytest.mark.parametrize("place", [".gitattributes", ".git/info/attributes", "../../home/.config/git/attributes"])
def test_attributes(work: Path, place: str, text: str, sure: bool) -> None:
    put(work, {"sub/file.txt": "1"})
    git(work, "add", "sub")
    put(work, {place: text + "\n"})
    check_blobs(work, *([] if sure else ["sub/file.txt"]))


WORDS = (
    *(
        b"text",
        b"-text",
        b"!text",
        b"text=auto",
        b"eol=lf",
        b"-eol",
        b"eol",
        b"crlf",
        b"-crlf",
        b"binary",
        b"-binary",
        b"!binary",
    ),
    *(
        b"filter=x",
        b"-filter",
        b"filter",
        b"ident",
        b"-ident",
        b"working-tree-encoding=UTF-8",
        b"diff",
        b"mine",
        b"-mine",
    ),
)
CONVERSIONS = (b"filter", b"ident", b"working-tree-encoding")
WITHOUT_BLANKS = [fragment for fragment in FRAGMENTS if not set(fragment) & set(b" \t\r\n\0")]
RULES = st.lists(
    st.tuples(
        st.lists(st.sampled_from(WITHOUT_BLANKS), min_size=1, max_size=5).map(b"".join)
        | st.sampled_from([b"*", b"a", b"[attr]mine", b"*b"]),
        st.lists(st.sampled_from(WORDS), max_size=4).map(b" ".join),
    ).map(b" ".join),
    max_size=5,
).map(b"\n".join)


def is_verbatim(said: dict[bytes, bytes]) -> bool:
    """By what git says of a path's attributes."""
    off = (b"unspecified", b"unset")
    text = said[b"text"] if said[b"text"] != b"unspecified" else said[b"crlf"]
    plain = text == b"unset" or (text == b"unspecified" and said[b"eol"] in off)
    return plain and all(said[name] in off for name in CONVERSIONS)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.tuples(RULES, RULES, RULES, RULES))
@example((b"* text", b"", b"", b"a binary\na -binary"))
def test_attributes_mean_what_they_mean_to_git(tracked_tree: Path, files: tuple[bytes, bytes, bytes, bytes]) -> None:
    """Where git sees a conversion so do we; the other way round too, but for macros, which are not understood."""
    places = (".gitattributes", "a/.gitattributes", "a/b/.gitattributes", ".git/info/attributes")
    for place, text in zip(places, files, strict=True):
        (tracked_tree / place).write_bytes(text)
    paths = blobs_of_git(tracked_tree)
    names = (b"text", b"crlf", b"eol", *CONVERSIONS)
    out = git(tracked_tree, "check-attr", "-z", "--stdin", *names, stdin=b"\0".join(paths) + b"\0").split(b"\0")
    said: dict[bytes, dict[bytes, bytes]] = {path: {} for path in paths}
    for path, name, value in zip(out[::3], out[1::3], out[2::3], strict=False):
        said[path][name] = value
    vcs = Vcs(str(tracked_tree), "/nonexistent/mount")
    vcs.load()
    ours = {path for path in paths if vcs.index_blob(path)}
    vcs.close()
    expected = {path for path in paths if is_verbatim(said[path])}
    has_macros = any(word in b" ".join(files) for word in (b"[attr]", b"-binary", b"!binary"))
    assert ours <= expected if has_macros else ours == expected


def test_attributes_of_directories_outweigh_those_above(work: Path, home: Path) -> None:
    put(home, {".gitconfig": "[core]\nattributesFile = ~/mine\n", "mine": "*.a text\n"})
    put(work, {".gitattributes": "*.b text\n", "sub/.gitattributes": "*.b -text\n*.a -text\n*.c text\n"})
    for name in ("x.a", "x.b", "x.c", "x.d", "sub/x.a", "sub/x.b", "sub/x.c", "sub/y/x.c"):
        put(work, {name: "1"})
    git(work, "add", "-A")
    check_blobs(work, "x.a", "x.b", "sub/x.c", "sub/y/x.c")
    put(work, {".git/info/attributes": "*.c !text\n*.d text\n"})
    check_blobs(work, "x.a", "x.b", "x.d")


def test_attributes_that_are_tracked_but_not_there(work: Path) -> None:
    put(work, {"sub/.gitattributes": "* text\n", "sub/x": "1", "y": "2"})
    git(work, "add", "-A")
    (work / "sub" / ".gitattributes").unlink()
    check_blobs(work, "sub/x", "sub/.gitattributes")


@pytest.mark.parametrize(
    ("key", "value", "sure"),
    [
        *(("core.autocrlf", value, False) for value in ("true", "input", "yes", "1", "TRUE")),
        *(("core.autocrlf", value, True) for value in ("false", "no", "0", "off")),
        *(("core.eol", "crlf", False), ("core.eol", "lf", True), ("core.eol", "native", True)),
    ],
)
@pytest.mark.parametrize("scope", ["--local", "--global"])
def test_settings_of_line_ends(work: Path, key: str, value: str, sure: bool, scope: str) -> None:
    put(work, {"x": "1\n", "data": "2\n", ".git/info/attributes": "data -text\n"})
    git(work, "config", scope, key, value)
    git(work, "add", "x", "data")
    check_blobs(work, *([] if sure else ["x"]))


def test_settings_of_one_worktree(work: Path) -> None:
    put(work, {"x": "1\n"})
    git(work, "add", "x")
    git(work, "config", "extensions.worktreeConfig", "true")
    git(work, "config", "--worktree", "core.autocrlf", "input")
    check_blobs(work, "x")


@pytest.mark.parametrize("options", [[], ["--object-format=sha256"]])
@pytest.mark.parametrize("size", [0, 1, 3 << 20])
def test_blob_id(tmp_path: Path, options: list[str], size: int) -> None:
    work = repository(tmp_path / "in" / "work", *options)
    put(work, {"x": b"\0\xff\r\n"[: size or 4] * (size // 4 or 1) if size else b""})
    size = (work / "x").stat().st_size
    git(work, "add", "x")
    with asking(work) as vcs, (real(work) / "x").open("rb") as file:
        blob = vcs.index_blob(b"x")
        assert blob is not None
        assert blob_id(file.fileno(), size, len(blob)) == blob
        assert blob_id(file.fileno(), size + 1, len(blob)) is None
        assert blob_id(file.fileno(), max(size - 1, 0), len(blob)) != blob or not size


# --- whether it is still so --------------------------------------------------------------------------------------


def stage(work: Path) -> None:
    put(work, {"a": "2"})
    git(work, "add", "a")


CHANGES: list[tuple[Callable[[Path], object], bytes]] = [
    (stage, b"a"),
    (lambda work: put(work, {".gitignore": "y\n"}), b"y"),
    (lambda work: put(work, {"sub/.gitignore": "y\n"}), b"sub/y"),
    (lambda work: (work / "sub" / ".gitignore").unlink(), b"sub/y"),
    (lambda work: put(work, {"sub/.gitattributes": "* text\n"}), b"sub/y"),
    (lambda work: put(work, {"sub/deep/.gitignore": "y\n"}), b"sub/deep/y"),
    (lambda work: put(work, {".git/info/exclude": "y\n"}), b"y"),
    (lambda work: put(work, {".git/info/attributes": "y text\n"}), b"y"),
    (lambda work: put(work.parents[1] / "home", {".gitconfig": "[core]\nautocrlf = true\n"}), b"y"),
    (lambda work: put(work.parents[1] / "home", {".config/git/ignore": "y\n"}), b"y"),
    (lambda work: git(work, "config", "core.ignoreCase", "true"), b"y"),
    (lambda work: git(work, "init", "-q", "sub/deep"), b"sub/deep/y"),
    (lambda work: (work / ".git").rename(work / "gone"), b"y"),
    (lambda work: (work / "sub").rename(work / "bus"), b"sub/y"),
]


@pytest.mark.parametrize(("change", "path"), CHANGES)
@pytest.mark.parametrize("by_path", [True, False])
def test_a_change_is_noticed_and_taken_up(
    work: Path, change: Callable[[Path], object], path: bytes, by_path: bool
) -> None:
    put(work, {"a": "1", "sub/deep/y": "", "sub/.gitignore": "z\n", ".gitignore": "z\n"})
    git(work, "add", "a")
    asked = [b"a", b"y", b"Y", b"sub/y", b"sub/deep/y"]
    with asking(work) as vcs:
        for each in asked:
            vcs.ignored(each, is_directory=False)
        assert vcs.is_fresh(path)
        change(real(work))
        assert not vcs.is_fresh(path if by_path else None)
        vcs.load()
        assert vcs.is_fresh()
        ours = [(vcs.ignored(each, is_directory=False), vcs.index_blob(each)) for each in asked]
    with asking(work) as anew:
        anew.is_fresh(path)
        anew.load()
        assert ours == [(anew.ignored(each, is_directory=False), anew.index_blob(each)) for each in asked]


@pytest.mark.parametrize("step", ["", "sub"])
def test_init_after_the_first_look(tmp_path: Path, step: str) -> None:
    work = tmp_path / "in" / "work"
    put(work, {"sub/.gitignore": "x\n", "sub/x": "", "sub/y": "1"})
    with asking(work) as vcs:
        assert vcs.is_fresh(b"sub/x")
        assert not vcs.ignored(b"sub/x", is_directory=False)
        git(real(work) / step, "init", "-q")
        git(real(work) / "sub", "add", "y")
        assert not vcs.is_fresh(b"sub/x")
        vcs.load()
        settle(vcs, b"sub/x")
        assert vcs.ignored(b"sub/x", is_directory=False)
        assert vcs.index_blob(b"sub/y") == blob_of(b"1")


def test_init_above_the_workspace(tmp_path: Path) -> None:
    work = tmp_path / "in" / "work"
    put(work, {"x": ""})
    with asking(work) as vcs:
        assert vcs.is_fresh()
        git(work.parent, "init", "-q")
        put(work.parent, {".gitignore": "x\n"})
        assert not vcs.is_fresh(b"x")
        vcs.load()
        assert vcs.ignored(b"x", is_directory=False)
        put(work.parent, {".gitignore": "y\n"})
        assert not vcs.is_fresh(b"x")


def test_files_that_come_and_go_make_nothing_stale(work: Path) -> None:
    put(work, {"sub/x": "", ".gitignore": "x\n"})
    with asking(work) as vcs:
        assert vcs.is_fresh(b"sub/x")
        put(real(work), {"sub/y": "", "sub/z": ""})
        (real(work) / "sub" / "x").unlink()
        git(real(work), "commit", "-qm", "one", "--allow-empty")
        put(real(work), {".git/index": b""})
        assert not vcs.is_fresh(b"sub/x")
        vcs.load()
        assert vcs.is_fresh(b"sub/x")
        put(real(work), {"sub/w": ""})
        assert vcs.is_fresh(b"sub/x")
        assert vcs.is_fresh()


def test_a_directory_that_became_a_link_into_the_mount_is_not_followed(work: Path) -> None:
    put(work, {"sub/deep/x": ""})
    with asking(work) as vcs:
        vcs.ignored(b"sub/deep/x", is_directory=False)
        put(work, {"sub/deep/.gitignore": "*\n"})
        (real(work) / "sub").rename(real(work) / "bus")
        (real(work) / "sub").symlink_to(work / "sub")
        assert not vcs.is_fresh(b"sub/deep/x")
        vcs.load()
        assert not vcs.ignored(b"sub/x", is_directory=False)


def test_questions_meanwhile_see_the_old_or_the_new(work: Path) -> None:
    put(work, {"a": "0", "b": "0", ".gitignore": "0\n"})
    git(work, "add", "a", "b")
    states = {(blob_of(b"%d" % i), blob_of(b"%d" % i)) for i in range(20)}
    failures: list[BaseException] = []
    with asking(work) as vcs:

        def change() -> None:
            try:
                for i in range(1, 20):
                    put(real(work), {"a": f"{i}", "b": f"{i}"})
                    git(real(work), "add", "a", "b")
                    vcs.load()
            except BaseException as error:  # noqa: BLE001 - told below
                failures.append(error)

        thread = threading.Thread(target=change)
        thread.start()
        while thread.is_alive():
            # Two questions are two moments; one that is asked again in between tells whether it was one state.
            a, b, again = vcs.index_blob(b"a"), vcs.index_blob(b"b"), vcs.index_blob(b"a")
            assert a != again or (a, b) in states
            assert vcs.ignored(b"0", is_directory=False)
            vcs.is_fresh()
        thread.join()
        assert not failures
        assert vcs.index_blob(b"a") == blob_of(b"19")


def test_before_the_first_load_nothing_is_known(work: Path) -> None:
    put(work, {".gitignore": "x\n", "a": ""})
    git(work, "add", "a")
    vcs = Vcs(str(work), "/nonexistent/mount")
    assert not vcs.is_fresh()
    assert not vcs.ignored(b"x", is_directory=False)
    assert vcs.index_blob(b"a") is None
    vcs.load()
    assert vcs.is_fresh()
    assert vcs.ignored(b"x", is_directory=False)
    assert not vcs.ignored(b"", is_directory=True)
    vcs.close()
    with pytest.raises(FileNotFoundError):
        Vcs(str(work / "absent"), "/nonexistent/mount")


# --- how long it takes -------------------------------------------------------------------------------------------

ENTRIES = 50_000


def least(times: int, action: Callable[[], object]) -> float:
    """Seconds of this thread's processor time, the least of some tries: others use the machine too."""
    spans = []
    for _ in range(times):
        began = time.thread_time()
        action()
        spans.append(time.thread_time() - began)
    return min(spans)


@pytest.mark.parametrize("version", ["2", "4"])
def test_fifty_thousand_entries(work: Path, version: str) -> None:
    blob = git(work, "hash-object", "-w", "--stdin", stdin=b"x").decode()
    paths = [f"package{i % 50}/module{i % 1000}/test/file{i}.py" for i in range(ENTRIES)]
    git(work, "update-index", "--index-info", stdin="".join(f"100644 {blob} 0\t{path}\n" for path in paths).encode())
    git(work, "update-index", "--index-version", version)
    put(work, {".gitignore": "".join(f"*.x{i}\nname{i}/\n/path{i}/sub*\n" for i in range(40))})
    some = [path.encode() for path in paths[::5]]
    for path in paths[:1000]:
        (work / path).parent.mkdir(parents=True)
    fd = os.open(work, os.O_RDONLY)
    taken = least(3, lambda: Vcs(f"/proc/self/fd/{fd}", "/nonexistent/mount").load())
    vcs = Vcs(f"/proc/self/fd/{fd}", "/nonexistent/mount")
    vcs.load()
    per_blob = least(5, lambda: [vcs.index_blob(path) for path in some]) / len(some) * 1e6
    per_rule = least(5, lambda: [vcs.ignored(path, is_directory=False) for path in some]) / len(some) * 1e6
    per_look = least(5, lambda: [vcs.is_fresh(path) for path in some[:1000]]) / 1000 * 1e6
    assert vcs.index_blob(some[-1]) == blob.encode()
    vcs.close()
    os.close(fd)
    assert taken < 2
    assert per_blob < 40
    assert per_rule < 40
    assert per_look < 400
