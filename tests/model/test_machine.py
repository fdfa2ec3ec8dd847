"""Random steps of two sessions, a user through the mount and a user beside it, each compared with the model."""

import os
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from tests.conftest import MakeMount
from tests.model.contract import POLICY
from tests.model.world import SESSIONS, USERS, Roads, World, shortest

MATCHES = ("strict", "identity", "content")
EXAMPLES = 14
STEPS = 50
PARTS = 25 if os.environ.get("GUARDFS_LONG") else 1
"""Each with a mount and a seed of its own, so that no test takes minutes."""

FILES = ("a", "b", "d/x", "d/y", "e/x", "t")
sessions = st.sampled_from(SESSIONS)
actors = sessions | st.sampled_from(USERS)
spots = st.integers(0, 99)
"""Which of the names: mostly of those that are there."""
dirs = st.sampled_from(["d", "e"])
contents = st.sampled_from([b"one\n", b"two\n", b"three\n", b""])
ways = st.sampled_from(["w trunc creat", "w", "w append creat", "w creat excl"])
handles = st.sampled_from(["r w", "r", "w", "r w append", "r w trunc", "r w creat", "w append creat"])
sizes = st.sampled_from([0, 2, 4, 9])
times = st.sampled_from([10**18, 10**18 + 1])
flags = st.sampled_from(["", "noreplace", "exchange"])
has_handles = precondition(lambda self: bool(self.world.model.handles))


class Machine(RuleBasedStateMachine):
    roads: Roads

    def __init__(self) -> None:
        super().__init__()
        self.world = World(self.roads)
        self.model = self.world.model
        self.opened = 0

    def place(self, spot: int) -> str:
        there = sorted(self.model.files.keys() - {POLICY})
        return there[spot % len(there)] if there and spot < 85 else FILES[spot % len(FILES)]

    def handle(self, spot: int, needs: str) -> tuple[str, str]:
        """Who opened it, and its name; empty where none fits."""
        fitting = sorted(name for name, handle in self.model.handles.items() if needs in handle.flags)
        name = fitting[spot % len(fitting)] if fitting else ""
        return name.split("-")[0], name

    def is_at_its_name(self, name: str) -> bool:
        """Whether its file has not been moved: the contract is silent on what a read teaches of a name left."""
        handle = self.model.handles[name]
        return self.model.files.get(handle.path) is handle.inode

    @initialize()
    def begin(self) -> None:
        self.world.step("user", "mkdir", "d")
        for path in ("a", "b", "d/x"):
            self.world.step("user", "write", path, path.encode(), "w creat excl")

    @rule(actor=sessions, spot=spots)
    def read(self, actor: str, spot: int) -> None:
        self.world.step(actor, "read", self.place(spot))

    @rule(spot=spots)
    def all_read(self, spot: int) -> None:
        for actor in (*USERS, *SESSIONS):
            self.world.step(actor, "read", self.place(spot))

    @rule(actor=actors, spot=spots, data=contents, way=ways)
    def write(self, actor: str, spot: int, data: bytes, way: str) -> None:
        self.world.step(actor, "write", self.place(spot), data, way)

    @rule(actor=actors, spot=spots)
    def save_unchanged(self, actor: str, spot: int) -> None:
        if inode := self.model.files.get(self.place(spot)):
            self.world.step(actor, "write", self.place(spot), inode.state.data, "w trunc creat")

    @rule(actor=actors, spot=spots, data=contents, same=st.booleans())
    def save_by_rename(self, actor: str, spot: int, data: bytes, same: bool) -> None:
        path = self.place(spot)
        there = self.model.files.get(path)
        if there is not self.model.files.get("t") or not there:
            self.world.step(actor, "write", "t", there.state.data if there and same else data, "w trunc creat")
            self.world.step(actor, "rename", "t", path, "")

    @rule(actor=actors, spot=spots, mode=handles)
    def open(self, actor: str, spot: int, mode: str) -> None:
        self.opened += 1
        self.world.step(actor, "open", f"{actor}-{self.opened}", self.place(spot), mode)

    @has_handles
    @rule(spot=spots, data=contents.filter(bool))
    def handle_write(self, spot: int, data: bytes) -> None:
        actor, name = self.handle(spot, "w")
        if name:
            self.world.step(actor, "hwrite", name, data)

    @has_handles
    @rule(spot=spots)
    def handle_read(self, spot: int) -> None:
        actor, name = self.handle(spot, "r")
        if name and self.is_at_its_name(name):
            self.world.step(actor, "hread", name)

    @has_handles
    @rule(spot=spots, size=sizes)
    def handle_cut(self, spot: int, size: int) -> None:
        actor, name = self.handle(spot, "w")
        if name:
            self.world.step(actor, "hcut", name, size)

    @has_handles
    @rule(spot=spots)
    def close(self, spot: int) -> None:
        actor, name = self.handle(spot, "")
        if name:
            self.world.step(actor, "close", name)

    @rule(actor=actors, spot=spots, size=sizes)
    def truncate(self, actor: str, spot: int, size: int) -> None:
        self.world.step(actor, "truncate", self.place(spot), size)

    @rule(actor=actors, spot=spots)
    def unlink(self, actor: str, spot: int) -> None:
        self.world.step(actor, "unlink", self.place(spot))

    @rule(actor=actors, old=spots, new=spots, flag=flags)
    def rename(self, actor: str, old: int, new: int, flag: str) -> None:
        self.world.step(actor, "rename", self.place(old), self.place(new), flag)

    # The kernel believes for a second that a directory is still where the mount last showed it.
    @rule(actor=sessions | st.just("user"), old=dirs, new=dirs, flag=flags)
    def rename_directory(self, actor: str, old: str, new: str, flag: str) -> None:
        if old in self.model.dirs:
            self.world.step(actor, "rename", old, new, flag)

    @rule(actor=actors, old=spots, new=st.sampled_from(FILES))
    def link(self, actor: str, old: int, new: str) -> None:
        self.world.step(actor, "link", self.place(old), new)

    @rule(actor=actors, spot=spots, mode=st.sampled_from([0o600, 0o644]))
    def chmod(self, actor: str, spot: int, mode: int) -> None:
        self.world.step(actor, "chmod", self.place(spot), mode)

    @rule(actor=actors, spot=spots, mtime=times)
    def touch(self, actor: str, spot: int, mtime: int) -> None:
        self.world.step(actor, "touch", self.place(spot), mtime)

    @rule(actor=sessions | st.just("user"), path=dirs, step=st.sampled_from(["mkdir", "rmdir"]))
    def directory(self, actor: str, path: str, step: str) -> None:
        self.world.step(actor, step, path)

    @rule(actor=actors, spot=spots, step=st.sampled_from(["write", "read", "unlink", "onto", "away", "link", "cut"]))
    def policy(self, actor: str, spot: int, step: str) -> None:
        path = self.place(spot)
        args: dict[str, tuple[Any, ...]] = {
            "read": ("read", POLICY),
            "write": ("write", POLICY, b"# mine\n", "w trunc creat"),
            "unlink": ("unlink", POLICY),
            "onto": ("rename", path, POLICY, ""),
            "away": ("rename", POLICY, path, ""),
            "link": ("link", path, POLICY),
            "cut": ("truncate", POLICY, 0),
        }
        if step not in {"onto", "link", "away"} or actor in SESSIONS:
            self.world.step(actor, *args[step])

    def teardown(self) -> None:
        try:
            if not self.world.parted:
                self.world.check_nothing_else_was_told()
        finally:
            self.world.end()


@pytest.fixture
def roads(make_mount: MakeMount, match: str) -> Iterator[Roads]:
    roads = Roads(make_mount("--match", match, "--settle", "0"), match)
    yield roads
    roads.end()


@pytest.mark.parametrize("match", MATCHES)
@pytest.mark.parametrize("part", range(PARTS))
def test_the_mount_does_what_the_contract_says(roads: Roads, match: str, part: int) -> None:
    machine = type("Machine", (Machine,), {"roads": roads})
    try:
        run_state_machine_as_test(
            seed(len(MATCHES) * part + MATCHES.index(match))(machine),
            settings=settings(
                max_examples=EXAMPLES,
                stateful_step_count=STEPS,
                deadline=None,
                derandomize=True,
                # Shrinking goes by plain steps, which is quicker and gives a test of its own.
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            ),
        )
    finally:
        if roads.parted:
            raise AssertionError(str(shortest(roads, roads.parted))) from None
