"""pyfuse3's handlers without a mount: what each answers, what is recorded, and what is held afterwards."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyfuse3
import pytest
import trio

from guardfs import backing
from guardfs.config import Settings
from guardfs.core.model import How
from guardfs.guard.judge import Judge
from guardfs.procs.census import Caller
from tests.helpers.desk import USER, Room, room


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Room]:
    with room(tmp_path) as made:
        yield made
        assert len(made.desk.locks) == 0
        assert not [line for line in made.log.lines if line[0] == "exception"]


async def open_(here: Room, ctx: Any, flags: int, name: bytes = b"f") -> int:
    return int((await here.ops.open(await here.number(name), flags, ctx)).fh)


async def refused(awaitable: Any, number: int = errno.EIO) -> None:
    with pytest.raises(pyfuse3.FUSEError) as raised:
        await awaitable
    assert raised.value.errno == number


async def close(here: Room, fh: int) -> None:
    await here.ops.flush(fh)
    await here.ops.release(fh)


async def test_reading_makes_a_record_and_writing_refreshes_it(here: Room) -> None:
    ctx = here.agent()
    fh = await open_(here, ctx, os.O_RDONLY)
    assert await here.ops.read(fh, 4, 3) == b"two"
    await close(here, fh)
    (record,) = here.session(ctx).records()
    assert (record.how, record.path) == (How.READ, b"f")
    fh = await open_(here, ctx, os.O_WRONLY | os.O_TRUNC)
    assert await here.ops.write(fh, 0, b"new") == 3
    (record,) = here.session(ctx).records()
    assert record.fingerprint.digest is None
    await close(here, fh)
    (record,) = here.session(ctx).records()
    assert record.fingerprint.digest is not None
    assert here.denials() == []
    assert len(here.desk.handles) == 0


@pytest.mark.parametrize("flags", [os.O_WRONLY, os.O_WRONLY | os.O_APPEND, os.O_RDWR | os.O_TRUNC, os.O_TRUNC])
async def test_a_blind_open_is_refused_and_holds_nothing(here: Room, flags: int) -> None:
    ctx = here.agent()
    before = set(os.listdir("/proc/self/fd"))
    number = await here.number(b"f")
    pinned = set(os.listdir("/proc/self/fd"))
    await refused(here.ops.open(number, flags, ctx))
    assert set(os.listdir("/proc/self/fd")) == pinned
    assert len(pinned - before) == 1
    assert here.denials() == ["unread"]
    assert (here.top / "f").read_bytes() == b"one\ntwo\nthree\n"


async def test_a_read_write_handle_waits_for_its_first_write(here: Room) -> None:
    ctx = here.agent()
    fh = await open_(here, ctx, os.O_RDWR)
    await refused(here.ops.write(fh, 0, b"x"))
    assert await here.ops.read(fh, 0, 100) == b"one\ntwo\nthree\n"
    assert await here.ops.write(fh, 0, b"x") == 1
    await close(here, fh)


async def test_a_users_write_withdraws_a_grant(here: Room) -> None:
    ctx = here.agent()
    await close(here, await open_(here, ctx, os.O_RDONLY))
    mine = await open_(here, ctx, os.O_WRONLY)
    assert await here.ops.write(mine, 0, b"A") == 1
    theirs = await open_(here, USER, os.O_WRONLY)
    assert await here.ops.write(theirs, 0, b"B") == 1
    await refused(here.ops.write(mine, 0, b"C"))
    await close(here, theirs)
    await close(here, mine)
    assert (here.top / "f").read_bytes() == b"Bne\ntwo\nthree\n"
    await refused(here.ops.open(await here.number(b"f"), os.O_WRONLY, ctx))


async def test_a_create_that_finds_a_file_is_an_overwrite(here: Room) -> None:
    ctx = here.agent()
    await refused(here.ops.create(1, b"f", 0o644, os.O_WRONLY | os.O_CREAT, ctx))
    await refused(here.ops.create(1, b"f", 0o644, os.O_WRONLY | os.O_CREAT | os.O_EXCL, ctx), errno.EEXIST)
    assert here.denials() == ["unread"]
    info, attr = await here.ops.create(1, b"f", 0o644, os.O_WRONLY | os.O_CREAT, USER)
    assert attr.st_size == 14
    await close(here, info.fh)


async def test_unlink_and_rename(here: Room) -> None:
    ctx = here.agent()
    (here.top / "n").write_text("n")
    await refused(here.ops.unlink(1, b"f", ctx))
    await refused(here.ops.rename(1, b"n", 1, b"f", 0, ctx))
    await refused(here.ops.rename(1, b"n", 1, b"f", pyfuse3.RENAME_EXCHANGE, ctx))
    await refused(here.ops.rename(1, b"n", 1, b"f", pyfuse3.RENAME_NOREPLACE, ctx), errno.EEXIST)
    assert len(here.denials()) == 3
    await close(here, await open_(here, ctx, os.O_RDONLY))
    await here.ops.rename(1, b"n", 1, b"f", 0, ctx)
    assert (here.top / "f").read_text() == "n"
    await refused(here.ops.unlink(1, b"f", ctx))
    await here.ops.unlink(1, b"f", USER)


async def test_a_refused_look_leaves_atime_alone(here: Room) -> None:
    ctx = here.agent()
    await close(here, await open_(here, ctx, os.O_RDONLY))
    os.utime(here.top / "f", ns=(1, os.stat(here.top / "f").st_mtime_ns))
    (here.top / "f").chmod(0o600)
    (here.top / "g").write_text("")
    os.utime(here.top / "f", ns=(1, 5))
    await refused(here.ops.open(await here.number(b"f"), os.O_WRONLY, ctx))
    assert os.stat(here.top / "f").st_atime_ns == 1


async def test_an_exec_and_an_ignored_reader_make_no_record(here: Room) -> None:
    ctx = here.agent()
    await close(here, await open_(here, ctx, os.O_RDONLY | 0x20))
    caller = here.census.given[ctx.pid]
    here.census.given[ctx.pid] = type(caller)(caller.process, caller.session, (9, 9), "git")
    await close(here, await open_(here, ctx, os.O_RDONLY))
    await close(here, await open_(here, ctx, os.O_RDWR))
    assert here.session(ctx).records() == []


async def test_lookups_and_forgets_balance(here: Room) -> None:
    (here.top / "d").mkdir()
    (here.top / "d" / "e").mkdir()
    (here.top / "d" / "e" / "g").write_text("")
    d = await here.number(b"d")
    e = await here.number(b"e", d)
    g = await here.number(b"g", e)
    assert len(here.inodes) == 4
    await here.ops.forget([(d, 1), (e, 1)])
    assert len(here.inodes) == 4, "a parent stays while a child needs it"
    await here.ops.forget([(g, 1)])
    assert len(here.inodes) == 1


async def test_a_bug_is_eio_and_logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with room(tmp_path) as here:

        def bug(*args: Any) -> None:
            raise KeyError("a bug")

        monkeypatch.setattr(backing, "statvfs", bug)
        await refused(here.ops.statfs(USER))
        (line,) = [fields for event, fields in here.log.lines if event == "exception"]
        assert "KeyError" in line["error"]
        assert "statfs" in line["traceback"]
        await refused(here.ops.read(999, 0, 1))


async def test_a_change_while_a_large_file_is_hashed_is_seen(tmp_path: Path) -> None:
    """The judge awaits its worker thread; a user's write in that stretch must not be lost to the verdict."""
    with room(tmp_path) as here:
        big = here.top / "big"
        big.write_bytes(b"x" * (backing.INLINE_HASH_LIMIT + 1))
        ctx = here.agent()
        await close(here, await open_(here, ctx, os.O_RDONLY, b"big"))
        big.chmod(0o600)  # Only ctime differs: the bytes have to be compared.
        real, paused, go_on = Judge.fingerprint, trio.Event(), trio.Event()

        async def staged(self: Judge, node: Any) -> Any:
            seen = await real(self, node)
            paused.set()
            await go_on.wait()
            return seen

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Judge, "fingerprint", staged)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(refused, here.ops.open(await here.number(b"big"), os.O_WRONLY | os.O_TRUNC, ctx))
                await paused.wait()
                theirs = await open_(here, USER, os.O_WRONLY, b"big")
                await here.ops.write(theirs, 0, b"mine")
                go_on.set()
        await close(here, theirs)
        assert big.read_bytes()[:5] == b"minex"
        assert here.denials() == ["modified"]


async def test_eviction_takes_what_was_read_longest_ago_and_own_files_last(tmp_path: Path) -> None:
    with room(tmp_path, Settings(max_records=3)) as here:
        ctx = here.agent()
        info, _ = await here.ops.create(1, b"own", 0o644, os.O_WRONLY | os.O_CREAT, ctx)
        await close(here, info.fh)
        for name in (b"a", b"b", b"c"):
            (here.top / os.fsdecode(name)).write_text("x")
            await close(here, await open_(here, ctx, os.O_RDONLY, name))
        assert [record.path for record in here.session(ctx).records()] == [b"b", b"c", b"own"]
        await refused(here.ops.unlink(1, b"a", ctx))
        assert [event for event, _ in here.log.lines if event == "evicted"] == ["evicted"]


async def test_an_unlinked_file_can_still_be_used(here: Room) -> None:
    fh = await open_(here, USER, os.O_RDWR)
    number = await here.number(b"f")
    await here.ops.unlink(1, b"f", USER)
    info, attr = await here.ops.create(1, b"f", 0o644, os.O_WRONLY | os.O_CREAT, USER)
    assert attr.st_ino != number
    assert (await here.ops.getattr(number, USER)).st_nlink == 0
    assert await here.ops.write(fh, 0, b"X") == 1
    assert (here.top / "f").read_bytes() == b""
    await close(here, info.fh)
    await close(here, fh)


async def test_unknown_callers_are_said_once_and_untracked(here: Room) -> None:
    here.agent()
    for _ in range(3):
        here.census.given[0] = Caller(None, None)
        await close(here, await open_(here, SimpleNamespace(pid=0, uid=0, gid=0), os.O_WRONLY | os.O_TRUNC))
    assert [event for event, _ in here.log.lines].count("unknown-caller") == 1
