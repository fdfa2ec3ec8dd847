"""The stand-in for trio that pyfuse3's loop is given: what it waits for, when it gives way, how it ends."""

import os
import types
from collections.abc import Iterator

import pyfuse3
import pytest
import trio
import trio.testing

from guardfs import fuse_loop
from guardfs.fuse_loop import LowLevel, StandIn, Turnstile

Pipe = tuple[int, int]


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


async def test_a_request_that_is_there_is_taken_without_a_turn(pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuse_loop, "_TURN_S", 3600)
    lowlevel = LowLevel()
    os.write(pipe[1], b"x")
    await lowlevel.wait_readable(pipe[0])
    with trio.testing.assert_no_checkpoints():
        for _ in range(100):
            await lowlevel.wait_readable(pipe[0])


async def test_others_get_their_turn_under_load(pipe: Pipe) -> None:
    lowlevel, turns = LowLevel(), 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await trio.lowlevel.checkpoint()

    os.write(pipe[1], b"x")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(other)
        while turns < 3:
            await lowlevel.wait_readable(pipe[0])
        nursery.cancel_scope.cancel()


async def test_a_request_that_comes_late_is_waited_for(pipe: Pipe) -> None:
    lowlevel = LowLevel()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lowlevel.wait_readable, pipe[0])
        await trio.testing.wait_all_tasks_blocked()
        os.write(pipe[1], b"x")


@pytest.mark.parametrize("before", [True, False])
async def test_closing_ends_a_wait(pipe: Pipe, before: bool) -> None:
    lowlevel = LowLevel()
    if before:
        lowlevel.notify_closing(pipe[0])
    with pytest.RaisesGroup(trio.ClosedResourceError):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lowlevel.wait_readable, pipe[0])
            await trio.testing.wait_all_tasks_blocked()
            lowlevel.notify_closing(pipe[0])


async def test_one_worker_at_a_time_and_none_forgotten() -> None:
    turnstile, inside, passed = Turnstile(), 0, 0

    async def worker() -> None:
        nonlocal inside, passed
        for _ in range(20):
            async with turnstile:
                inside += 1
                assert inside == 1
                await trio.lowlevel.checkpoint()
                inside -= 1
            passed += 1

    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(worker)
    assert passed == 100


async def test_a_free_turnstile_costs_no_turn() -> None:
    turnstile = Turnstile()
    with trio.testing.assert_no_checkpoints():
        async with turnstile:
            pass


def test_the_binding_has_what_the_quick_loop_stands_on(monkeypatch: pytest.MonkeyPatch) -> None:
    assert fuse_loop.can_be_quick()
    monkeypatch.setattr(pyfuse3, "trio", types.ModuleType("another"))
    assert not fuse_loop.can_be_quick()
    monkeypatch.delattr(pyfuse3, "trio")
    assert not fuse_loop.can_be_quick()


@pytest.mark.parametrize(
    ("loop", "other", "stands_in"), [("quick", False, True), ("stock", False, False), ("quick", True, False)]
)
async def test_which_loop_serves(
    loop: fuse_loop.Loop, other: bool, stands_in: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[object] = []
    real = types.ModuleType("another") if other else trio
    monkeypatch.setattr(pyfuse3, "trio", real)

    async def main(**_: int) -> None:
        seen.append(pyfuse3.trio)  # type: ignore[attr-defined]

    monkeypatch.setattr(pyfuse3, "main", main)
    await fuse_loop.serve(loop)
    assert isinstance(seen[0], StandIn) == stands_in
    assert pyfuse3.trio is real  # type: ignore[attr-defined]
