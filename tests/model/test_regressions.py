"""Steps at which mount and model have parted once, as plain sequences, under each way to match."""

from collections.abc import Iterator

import pytest

from tests.helpers.mounted import Mount
from tests.model.contract import Contract
from tests.model.world import Roads, Step, World

CUT, NEW = "w trunc creat", "w creat excl"

STEPS: dict[str, list[Step]] = {
    "a chmod beside, while the session's own handle is open": [
        ("one", "open", "one-1", "a", "r w creat"),
        ("beside", "chmod", "a", 0o600),
        ("one", "hwrite", "one-1", b"two\n"),
    ],
    "a link through the mount, while the session's own handle is open": [
        ("one", "open", "one-1", "a", CUT),
        ("one", "hwrite", "one-1", b"two\n"),
        ("user", "link", "a", "b"),
        ("one", "hwrite", "one-1", b"four\n"),
    ],
    "an empty file is read through a handle for both": [
        ("user", "write", "a", b"", NEW),
        ("one", "open", "one-1", "a", "r w"),
        ("one", "hread", "one-1"),
        ("one", "hwrite", "one-1", b"x"),
    ],
    "a first read through the handle that made the file": [
        ("one", "open", "one-1", "b", "r w creat"),
        ("user", "write", "b", b"mine", CUT),
        ("one", "hread", "one-1"),
        ("one", "write", "b", b"x", CUT),
    ],
    "a first read through the handle that cut the file": [
        ("user", "write", "b", b"mine", CUT),
        ("one", "read", "b"),
        ("one", "open", "one-1", "b", "r w trunc"),
        ("beside", "write", "b", b"mine", CUT),
        ("one", "hread", "one-1"),
        ("one", "write", "b", b"x", CUT),
    ],
    "a save by way of a backup that is deleted": [
        ("user", "write", "a", b"one\n", NEW),
        ("two", "read", "a"),
        ("user", "rename", "a", "b", ""),
        ("user", "write", "a", b"one\n", NEW),
        ("user", "unlink", "b"),
        ("two", "write", "a", b"two\n", CUT),
    ],
    "a save by way of a backup that is deleted, noticed by reading": [
        ("user", "write", "a", b"one\n", NEW),
        ("two", "read", "a"),
        ("user", "rename", "a", "b", ""),
        ("user", "unlink", "b"),
        ("user", "write", "a", b"other\n", NEW),
        ("two", "read", "a"),
    ],
    "a name that the mount has seen and that was left beside it": [
        ("two", "write", "t", b"b", CUT),
        ("one", "read", "t"),
        ("beside", "rename", "t", "b", ""),
        ("one", "write", "t", b"new", CUT),
        ("one", "write", "t", b"new", CUT),
        ("one", "write", "b", b"new", CUT),
    ],
    "another file's stale name is no record": [
        ("user", "write", "a", b"a", NEW),
        ("one", "write", "t", b"one\n", CUT),
        ("beside", "rename", "t", "b", ""),
        ("two", "chmod", "b", 0o600),
        ("two", "write", "t", b"b", CUT),
        ("two", "rename", "t", "b", ""),
    ],
    "a file that was deleted by way of another name is gone": [
        ("user", "write", "a", b"one\n", NEW),
        ("two", "read", "a"),
        ("user", "rename", "a", "b", ""),
        ("user", "unlink", "b"),
        ("two", "write", "a", b"two\n", NEW),
        ("two", "write", "a", b"two\n", NEW),
    ],
    "a handle whose file was moved beside": [
        ("user", "write", "b", b"b", NEW),
        ("user", "write", "a", b"a", NEW),
        ("one", "open", "one-1", "b", "r w"),
        ("beside", "rename", "a", "b", "exchange"),
        ("one", "hcut", "one-1", 0),
    ],
}


@pytest.fixture(scope="module", params=["strict", "identity", "content"])
def roads(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Roads]:
    base = tmp_path_factory.mktemp("regressions")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GUARDFS_STATE", str(base / "state"))
        mount = Mount(base, "--match", request.param, "--settle", "0")
        roads = Roads(mount, request.param)
        yield roads
        roads.end()
        mount.close()


@pytest.mark.parametrize("name", STEPS)
def test_once_parted(roads: Roads, name: str) -> None:
    world = World(roads)
    try:
        world.run(STEPS[name])
        world.check_nothing_else_was_told()
    finally:
        world.end()


def test_the_model_settles() -> None:
    model = Contract("strict", ["one"], settle=2)
    model.do("user", "write", "a", b"a", NEW)
    model.do("one", "read", "a")
    assert not model.do("one", "write", "a", b"A", CUT).errno, "a first read is settled"
    model.do("user", "write", "a", b"b", CUT)
    model.do("one", "read", "a")
    assert model.do("one", "write", "a", b"c", CUT).told == {("a", "modified")}
    model.now = 1
    model.do("one", "read", "a")
    assert model.do("one", "write", "a", b"c", CUT).errno
    model.now = 2
    assert not model.do("one", "write", "a", b"c", CUT).errno, "the state was first seen two before"
