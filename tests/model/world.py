"""The same steps on a real mount and on the model, compared after each."""

import base64
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NoReturn

from guardfs.control import client
from guardfs.control.protocol import Flush, Track
from guardfs.state.schema import EventKind
from guardfs.state.store import read_events
from tests.helpers.mounted import Mount
from tests.model.contract import POLICY, Answer, Contract
from tests.model.files import JUST_NOW

SESSIONS = ("one", "two")
USERS = ("user", "beside")
PATHS: dict[str, tuple[int, ...]] = {"rename": (0, 1), "link": (0, 1), "open": (1,)}
"""Which of a step's arguments are paths, where it is not the first alone."""
PATHS |= dict.fromkeys(("hread", "hwrite", "hcut", "close"), ())

Step = tuple[Any, ...]
Told = tuple[str, str, str, str]
"""Session, path, kind and reason of an event."""


class Parted(AssertionError):
    """Mount and model have parted: the steps, as a regression test has them, and at what."""

    def __init__(self, steps: list[Step], what: str) -> None:
        super().__init__("\n".join(["", *(f"    {step!r}," for step in steps), what]))
        self.steps = steps
        self.kind = (steps[-1][1], what.split(maxsplit=1)[0])


class Worker:
    """A long-lived process that does one file operation after another."""

    def __init__(self, cwd: Path) -> None:
        program = Path(__file__).with_name("worker.py")
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=cwd
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def do(self, step: str, *args: str | int | bytes) -> Answer:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        encoded = [{"bytes": base64.b64encode(arg).decode()} if isinstance(arg, bytes) else arg for arg in args]
        self._process.stdin.write(json.dumps([step, *encoded]).encode() + b"\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "the worker has ended"
        answer = json.loads(line)
        return Answer(answer.get("errno", ""), base64.b64decode(answer["data"]) if "data" in answer else None)

    def end(self) -> None:
        assert self._process.stdout is not None
        self._process.communicate()


class Roads:
    """A mount, and the two kinds of user, who outlive a world."""

    def __init__(self, mount: Mount, match: str) -> None:
        self.mount, self.match = mount, match
        self.users = {"user": Worker(mount.point), "beside": Worker(mount.backing)}
        self.worlds = 0
        self.parted: Parted | None = None
        """The first disagreement; hypothesis would hide one that does not come again."""

    def end(self) -> None:
        for worker in self.users.values():
            worker.end()


class World:
    """A fresh directory with fresh sessions. ``self.steps`` is what a regression test needs to say it again."""

    def __init__(self, roads: Roads) -> None:
        roads.worlds += 1
        self._roads, self._mount = roads, roads.mount
        self._top = f"w{roads.worlds}"
        self._below = self._mount.backing / self._top
        self._below.mkdir()
        self._workers = {name: Worker(self._mount.point) for name in SESSIONS}
        self._ids = {name: self._track(name) for name in SESSIONS}
        self._workers |= roads.users
        self._pins: dict[object, tuple[int, int]] = {}
        self._last_event = max((event.seq for event in self._events(0)), default=0)
        self._told: Counter[Told] = Counter()
        self.model = Contract(roads.match, SESSIONS)
        self.steps: list[Step] = []
        self.parted: Parted | None = None

    def run(self, steps: Iterable[Step]) -> None:
        for step in steps:
            self.step(*step)

    def step(self, actor: str, step: str, *args: Any) -> None:
        """One step by somebody. Raises Parted."""
        self.steps.append((actor, step, *args))
        if step in {"hread", "hwrite", "hcut", "close"}:
            self.model.handles[args[0]]  # Raises KeyError where no step has opened it.
        before = self._looks()
        placed = [self._place(arg) if index in PATHS.get(step, (0,)) else arg for index, arg in enumerate(args)]
        happened = self._workers[actor].do(step, *placed)
        expected = self.model.do(actor, step, *args, refused=happened.errno == "EIO")
        asked = happened.errno == "EIO" or expected.told
        told = self._new_events() if asked else Counter()
        differences = [
            *self._different_answers(expected, happened),
            *self._different_events(actor, expected, told),
            *self._different_files(),
        ]
        if happened.errno and before != (after := self._looks()):
            differences.append(f"a failed step changed {set(after.items()) ^ set(before.items())}")
        if differences:
            self._part("\n".join(differences))

    def check_nothing_else_was_told(self) -> None:
        """Steps that were no refusals have said nothing. Raises Parted."""
        if leftover := self._new_events():
            self._part(f"told in excess: {dict(leftover)}")

    def end(self) -> None:
        """Leave nothing that the next world would see."""
        for name in SESSIONS:
            self._workers[name].end()
        for name in self.model.handles:
            self._end_handle(name)
        for fd, _ in self._pins.values():
            os.close(fd)
        (self._mount.backing / POLICY).unlink(missing_ok=True)

    def _part(self, what: str) -> NoReturn:
        self.parted = Parted(self.steps, what)
        self._roads.parted = self._roads.parted or self.parted
        raise self.parted

    def _end_handle(self, name: str) -> None:
        opener = next(step for step in reversed(self.steps) if step[1:3] == ("open", name))[0]
        if opener in USERS:
            self._workers[opener].do("close", name)

    def _track(self, name: str) -> str:
        begun = client.ask(self._mount.state, Track(self._workers[name].pid, name)).begun
        assert begun is not None
        return begun.session

    def _place(self, path: str) -> str:
        return path if path == POLICY else f"{self._top}/{path}"

    def _real(self, path: str) -> Path:
        return self._mount.backing / self._place(path)

    def _looks(self) -> dict[str, tuple[int, ...]]:
        """All that a refusal must leave as it was, directories included."""
        found: dict[str, tuple[int, ...]] = {}
        for path in ("", *self.model.dirs, *self.model.files):
            if not os.path.lexists(self._real(path)):
                continue  # A step that the model knows and the mount refused.
            st = os.lstat(self._real(path))
            found[path] = (st.st_ino, st.st_mode, st.st_nlink, st.st_size, st.st_mtime_ns, st.st_ctime_ns)
        return found

    def _different_answers(self, expected: Answer, happened: Answer) -> Iterator[str]:
        if (happened.errno, happened.data) != (expected.errno, expected.data):
            yield f"expected {expected}, got {happened}"

    def _different_files(self) -> Iterator[str]:
        """Names, bytes, modes, times that are known, and which names are one file."""
        there = {str(p.relative_to(self._below)) for p in self._below.rglob("*")}
        there |= {POLICY} & set(os.listdir(self._mount.backing))
        if there != self.model.dirs | self.model.files.keys():
            yield f"there is {there}, expected {self.model.dirs | self.model.files.keys()}"
            return
        for path, inode in self.model.files.items():
            st = os.lstat(self._real(path))
            if inode not in self._pins:
                # Held, so that no number is used twice.
                self._pins[inode] = os.open(self._real(path), os.O_PATH), st.st_ino
            if inode.state.mtime == JUST_NOW:
                inode.state.mtime = st.st_mtime_ns
            now = (self._pins[inode][1], inode.state.data, inode.mode, inode.state.mtime)
            found = (st.st_ino, self._real(path).read_bytes(), st.st_mode & 0o7777, st.st_mtime_ns)
            if now != found:
                yield f"{path} is {found}, expected {now}"

    def _different_events(self, actor: str, expected: Answer, told: "Counter[Told]") -> Iterator[str]:
        kind = EventKind.DENIED if expected.errno else EventKind.CHANGED
        fitting = {(self._ids.get(actor, ""), self._place(path), kind, why) for path, why in expected.told}
        if (told or not expected.may) and (told.total() != bool(fitting) or not set(told) <= fitting):
            yield f"told {dict(told)}, expected one of {fitting}"

    def _events(self, after: int) -> Any:
        client.ask(self._mount.state, Flush())
        return list(read_events(self._mount.state / "store", after=after))

    def _new_events(self) -> "Counter[Told]":
        """What has been told of these sessions since the last question."""
        now: Counter[Told] = Counter()
        for event in self._events(self._last_event):
            if event.session in self._ids.values() and event.kind in {EventKind.DENIED, EventKind.CHANGED}:
                now[event.session, os.fsdecode(event.path), event.kind, event.reason] += event.count
        new = now - self._told
        self._told = now
        return new


def shortest(roads: Roads, parted: Parted) -> Parted:
    """The same disagreement in as few steps as leaving out single ones can reach."""
    index = 0
    while index < len(parted.steps):
        fewer = parted.steps[:index] + parted.steps[index + 1 :]
        found = _parted(roads, fewer)
        if found and found.kind == parted.kind:
            parted = found
        else:
            index += 1
    return parted


def _parted(roads: Roads, steps: list[Step]) -> Parted | None:
    world = World(roads)
    try:
        world.run(steps)
        world.check_nothing_else_was_told()
    except Parted as parted:
        return parted
    except KeyError:
        return None  # A handle whose opening was left out.
    finally:
        world.end()
    return None
