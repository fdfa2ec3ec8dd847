"""At every await of the guard another request comes in: a look and its act are never parted.

One request is driven step by step. Each time one of its awaits is over, the other request is begun and goes as far
as it can before the first may go on; in the next round that happens one await later. What the agent's request finds
at the moment of its act is then looked at in the file itself.
"""

import os
import types
from collections.abc import Awaitable, Callable, Generator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyfuse3
import pytest
import trio
import trio.testing

from guardfs import backing
from guardfs.backing import INLINE_HASH_LIMIT
from guardfs.config import Settings
from guardfs.core.fingerprint import Match
from tests.helpers.desk import USER, Room, room

OLD = b"one\ntwo\nthree\n"
ACTS = ("pwrite", "truncate", "unlink", "rename", "open_file")
"""The functions of ``backing`` that can take a file's bytes away."""
AGENT = "agent's request"

Request = Callable[[], Awaitable[Any]]


class Scene:
    """A file that an agent has read, with descriptors of both sides open, and drafts to be moved over it."""

    def __init__(self, here: Room, filling: int) -> None:
        self.here, self.ops, self.agent = here, here.ops, here.agent()
        self.path = Path(f"/proc/self/fd/{here.root_fd}/f")
        self.old = OLD + b"." * filling
        self.found: list[bytes] = []
        """What the agent's request was about to take away, each time that it changed something."""

    async def prepare(self) -> None:
        self.path.write_bytes(self.old)
        for draft, data in (("mine", b"mine\n"), ("draft", b"draft\n")):
            self.path.with_name(draft).write_bytes(data)
        self.number = await self.here.number(b"f")
        for name in (b"mine", b"draft"):
            await self.here.number(name)
        for name in (b"f", b"draft"):
            fh = (await self.ops.open(await self.here.number(name), os.O_RDONLY, self.agent)).fh
            await self.ops.read(fh, 0, 1)
            await self.shut(fh)
        self.held = {
            who: (await self.ops.open(self.number, os.O_RDWR, ctx)).fh
            for who, ctx in (("agent", self.agent), ("user", USER))
        }
        os.utime(self.path, ns=(0, 0))  # So that only its bytes can say that it is the same: they have to be hashed.

    async def shut(self, fh: int) -> None:
        await self.ops.flush(fh)
        await self.ops.release(fh)

    async def opened(self, ctx: Any, data: bytes) -> None:
        info = await self.ops.open(self.number, os.O_WRONLY | os.O_TRUNC, ctx)
        await self.ops.write(info.fh, 0, data)
        await self.shut(info.fh)

    async def created(self, ctx: Any) -> None:
        info, _ = await self.ops.create(1, b"f", 0o644, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, ctx)
        await self.shut(info.fh)

    async def cut(self, ctx: Any, fh: int | None) -> None:
        entry = await self.ops.getattr(self.number, ctx)
        entry.st_size = 1
        await self.ops.setattr(self.number, entry, CUT, fh, ctx)

    def look(self, act: str, fd: int) -> None:
        """Keep what the file has that a descriptor or the name stands for."""
        if trio.lowlevel.current_task().name == AGENT:
            path = self.path if act in {"unlink", "rename"} else Path(f"/proc/self/fd/{fd}")
            self.found.append(path.read_bytes() if path.exists() else b"")


_UPDATES = [name for name in dir(pyfuse3.SetattrFields) if name.startswith("update_")]
CUT = SimpleNamespace(**{name: name == "update_size" for name in _UPDATES})

AGENT_REQUESTS: dict[str, Callable[[Scene], Awaitable[Any]]] = {
    "open with O_TRUNC": lambda s: s.opened(s.agent, b"agent\n"),
    "create that finds it": lambda s: s.created(s.agent),
    "write": lambda s: s.ops.write(s.held["agent"], 0, b"agent\n"),
    "ftruncate": lambda s: s.cut(s.agent, s.held["agent"]),
    "truncate": lambda s: s.cut(s.agent, None),
    "unlink": lambda s: s.ops.unlink(1, b"f", s.agent),
    "rename over it": lambda s: s.ops.rename(1, b"draft", 1, b"f", 0, s.agent),
    "exchange": lambda s: s.ops.rename(1, b"draft", 1, b"f", pyfuse3.RENAME_EXCHANGE, s.agent),
}
USER_REQUESTS: dict[str, Callable[[Scene], Awaitable[Any]]] = {
    "open with O_TRUNC": lambda s: s.opened(USER, b"mine\n"),
    "write": lambda s: s.ops.write(s.held["user"], 0, b"mine\n"),
    "truncate": lambda s: s.cut(USER, None),
    "rename over it": lambda s: s.ops.rename(1, b"mine", 1, b"f", 0, USER),
    "exchange": lambda s: s.ops.rename(1, b"mine", 1, b"f", pyfuse3.RENAME_EXCHANGE, USER),
    "unlink": lambda s: s.ops.unlink(1, b"f", USER),
}


@types.coroutine
def driven(request: Request, meanwhile: Request, after: int) -> Generator[Any, Any, int]:
    """Do a request, and something else as soon as its await of that number is over; how many awaits it had."""
    steps, count = request().__await__(), 0
    try:
        trap = next(steps)
        while True:
            answer = yield trap
            count += 1
            if count == after:
                yield from meanwhile().__await__()
            trap = steps.send(answer)
    except (StopIteration, pyfuse3.FUSEError):
        return count


async def answered(request: Request) -> None:
    try:
        await request()
    except pyfuse3.FUSEError:
        pass  # A refusal, or what a file system says of a name that is gone.


async def together(first: tuple[str, Request], second: tuple[str, Request], after: int) -> int:
    """Two requests, the second begun at that await of the first; how many awaits the first had."""
    count = 0

    async def the_first() -> None:
        nonlocal count
        count = await driven(first[1], meanwhile, after)

    async def meanwhile() -> None:
        nursery.start_soon(answered, second[1], name=second[0])
        await trio.testing.wait_all_tasks_blocked()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(the_first, name=first[0])
    if count < after:
        await answered(second[1])
    return count


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> list[Scene]:
    """The scene whose file is looked at whenever something may take bytes away."""
    scenes: list[Scene] = []
    for name in ACTS:
        act = getattr(backing, name)

        def looked(*args: Any, act: Any = act) -> Any:
            if scenes and (act.__name__ != "open_file" or args[1] & os.O_TRUNC):
                scenes[-1].look(act.__name__, args[0])
            return act(*args)

        monkeypatch.setattr(backing, name, looked)
    return scenes


@pytest.mark.parametrize("filling", [0, INLINE_HASH_LIMIT], ids=["small", "hashed in a thread"])
@pytest.mark.parametrize("user", USER_REQUESTS)
@pytest.mark.parametrize("agent", AGENT_REQUESTS)
async def test_no_request_comes_between(
    tmp_path: Path, watched: list[Scene], agent: str, user: str, filling: int
) -> None:
    settings = Settings(match=Match.CONTENT)
    for users_first in (False, True):
        after, awaits = 0, 1
        while after <= awaits:
            base = tmp_path / f"{users_first}{after}"
            base.mkdir()
            with room(base, settings) as here:
                scene = Scene(here, filling)
                await scene.prepare()
                watched.append(scene)
                pair = [
                    (AGENT, partial(AGENT_REQUESTS[agent], scene)),
                    ("user's request", partial(USER_REQUESTS[user], scene)),
                ]
                first, second = reversed(pair) if users_first else pair
                awaits = await together(first, second, after)
                watched.clear()
                assert all(data in {scene.old, b"", b"agent\n"} for data in scene.found), (after, scene.found)
                for fh in scene.held.values():
                    await scene.shut(fh)
            after += 1
        assert users_first or not filling or after > 1, "there was no await"
