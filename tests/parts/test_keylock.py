"""The lock per key: one at a time, in order, gone when unused, and not to be had twice."""

from collections.abc import Callable

import pytest
import trio
from trio.testing import Sequencer, assert_checkpoints, assert_no_checkpoints, wait_all_tasks_blocked

from guardfs.keylock import KeyLock


async def test_two_holders_of_one_key_never_overlap() -> None:
    lock: KeyLock[str] = KeyLock()
    inside = 0

    async def hold() -> None:
        nonlocal inside
        async with lock.holding("f"):
            inside += 1
            assert inside == 1
            await trio.lowlevel.checkpoint()
            inside -= 1

    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(hold)
    assert len(lock) == 0


async def test_two_keys_do_not_wait_for_each_other() -> None:
    lock: KeyLock[str] = KeyLock()
    order = Sequencer()

    async def hold(key: str, first: int, second: int) -> None:
        async with lock.holding(key):
            async with order(first):
                pass
            async with order(second):
                pass

    async with trio.open_nursery() as nursery:
        nursery.start_soon(hold, "f", 0, 2)
        nursery.start_soon(hold, "g", 1, 3)
    assert len(lock) == 0


async def test_waiters_come_in_turn() -> None:
    lock: KeyLock[int] = KeyLock()
    came: list[int] = []

    async def hold(number: int) -> None:
        async with lock.holding(1):
            came.append(number)

    async with trio.open_nursery() as nursery, lock.holding(1):
        for number in range(5):
            nursery.start_soon(hold, number)
            await wait_all_tasks_blocked()
        assert len(lock) == 1
    assert came == [0, 1, 2, 3, 4]


async def test_without_a_contender_nothing_else_runs() -> None:
    """What is looked at under the lock is still so: a checkpoint would let another request in."""
    lock: KeyLock[str] = KeyLock()
    with assert_no_checkpoints():
        async with lock.holding("f"):
            pass


async def test_with_one_it_waits() -> None:
    lock: KeyLock[str] = KeyLock()

    async def second() -> None:
        with assert_checkpoints():
            async with lock.holding("f"):
                pass

    async with trio.open_nursery() as nursery, lock.holding("f"):
        nursery.start_soon(second)
        await wait_all_tasks_blocked()


async def test_a_task_cannot_have_it_twice() -> None:
    lock: KeyLock[str] = KeyLock()
    async with lock.holding("f"):
        with pytest.raises(RuntimeError):
            async with lock.holding("f"):
                pass
        lock.check_held("f")
    assert len(lock) == 0


@pytest.mark.parametrize("make", [KeyboardInterrupt, ValueError, lambda: OSError(5, "EIO")])
async def test_it_is_given_back_whatever_happens(make: Callable[[], BaseException]) -> None:
    lock: KeyLock[str] = KeyLock()
    error = make()
    with pytest.raises(type(error)):
        async with lock.holding("f"):
            raise error
    assert len(lock) == 0
    async with lock.holding("f"):
        pass


async def test_a_cancelled_waiter_leaves_no_trace() -> None:
    lock: KeyLock[str] = KeyLock()
    async with lock.holding("f"), trio.open_nursery() as nursery:
        scope = trio.CancelScope()

        async def wait() -> None:
            with scope:
                async with lock.holding("f"):
                    raise AssertionError("it was held")

        nursery.start_soon(wait)
        await wait_all_tasks_blocked()
        scope.cancel()
    assert len(lock) == 0


async def test_only_its_holder_passes_the_check() -> None:
    lock: KeyLock[str] = KeyLock()
    with pytest.raises(RuntimeError, match="'f'"):
        lock.check_held("f")
    order = Sequencer()

    async def other() -> None:
        async with order(1):
            with pytest.raises(RuntimeError):
                lock.check_held("f")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(other)
        async with lock.holding("f"):
            async with order(0):
                lock.check_held("f")
            async with order(2):
                pass
    with pytest.raises(RuntimeError):
        lock.check_held("f")
