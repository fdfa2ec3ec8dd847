"""Somebody saves at exactly one point of an agent's edit, at every point there is. Nothing here waits or races."""

from collections.abc import Iterator
from typing import Any

import pytest

from guardfs.control import client
from guardfs.control.protocol import Track
from tests.helpers.mounted import Mount
from tests.model.world import Worker

Step = tuple[Any, ...]

MINE = b"one\ntwo, and mine\nthree\n"
DRAFT = ("write", "t", b"agent\n", "w creat trunc")
EDITS: dict[str, tuple[Step, ...]] = {
    "truncating write": (("write", "f", b"agent\n", "w trunc"),),
    "in place": (
        ("open", "h", "f", "w"),
        ("hwrite", "h", b"first\n"),
        ("hwrite", "h", b"second\n"),
        ("close", "h"),
    ),
    "cut, then written": (("open", "h", "f", "r w"), ("hcut", "h", 0), ("hwrite", "h", b"new\n"), ("close", "h")),
    "appended": (("open", "h", "f", "w append"), ("hwrite", "h", b"more\n"), ("hwrite", "h", b"!\n"), ("close", "h")),
    "temp and rename": (DRAFT, ("rename", "t", "f", "")),
    "temp and exchange": (DRAFT, ("rename", "t", "f", "exchange"), ("unlink", "t")),
    "removed and created": (("unlink", "f"), ("write", "f", b"agent\n", "w creat excl")),
    "removed and linked": (DRAFT, ("unlink", "f"), ("link", "t", "f")),
    "truncate(2)": (("truncate", "f", 0), ("write", "f", b"agent\n", "w")),
}
SAVES: dict[str, tuple[Step, ...]] = {
    "in place": (("write", "f", MINE, "w creat trunc"),),
    "by rename": (("write", "s", MINE, "w creat trunc"), ("rename", "s", "f", "")),
    "with an old time": (("write", "f", MINE, "w creat trunc"), ("touch", "f", 10**18)),
}
POINTS = [(edit, point) for edit, steps in EDITS.items() for point in range(len(steps) + 1)]


@pytest.fixture
def workers(mount: Mount) -> Iterator[dict[str, Worker]]:
    made = {"agent": Worker(mount.point), "user": Worker(mount.point), "beside": Worker(mount.backing)}
    client.ask(mount.state, Track(made["agent"].pid, "agent"))
    yield made
    for worker in made.values():
        worker.end()


def errors(worker: Worker, steps: tuple[Step, ...], place: str = "") -> list[str]:
    """Do steps on the files of a directory; the errors that came."""
    placed = [[f"{place}{arg}" if arg in {"f", "t", "s"} else arg for arg in step] for step in steps]
    return [error for error in (worker.do(*step).errno for step in placed) if error]


@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_that_nobody_disturbs(mount: Mount, workers: dict[str, Worker], edit: str) -> None:
    assert errors(workers["agent"], (("read", "f"), *EDITS[edit])) == []
    assert mount.denials() == []


@pytest.mark.parametrize(("edit", "point"), POINTS)
def test_a_save_at_that_point_survives(mount: Mount, workers: dict[str, Worker], edit: str, point: int) -> None:
    agent, steps, pins = workers["agent"], EDITS[edit], []  # No number of a file is used again meanwhile.
    for name, save in SAVES.items():
        for by in ("user", "beside"):
            place = f"{name} {by}/"
            (mount.backing / place).mkdir()
            (mount.backing / place / "f").write_text("one\ntwo\nthree\n")
            pins.append((mount.backing / place / "f").open())
            assert errors(agent, (("read", "f"), *steps[:point]), place) == []
            assert errors(workers[by], save, place) == []
            errors(agent, steps[point:], place)
            left = {path.name: path.read_bytes() for path in (mount.backing / place).iterdir()}
            assert MINE in left.values(), (place, left)
    for pin in pins:
        pin.close()


def test_a_save_after_a_refusal(mount: Mount, workers: dict[str, Worker]) -> None:
    """The read that a refusal asks for counts for what it has seen, and for no later state."""
    agent, write = workers["agent"], EDITS["truncating write"]
    assert agent.do("read", "f").errno == ""
    for number in range(3):
        mine = MINE * (number + 2)
        assert errors(workers["user"], (("write", "f", mine, "w trunc"),)) == []
        assert errors(agent, write) == ["EIO"]
        assert agent.do("read", "f").data == mine
        assert errors(workers["user"], (("write", "f", MINE, "w trunc"),)) == []
        mount.turn()
        assert errors(agent, write) == ["EIO"], "what counts is what was read before the turn"
        assert (mount.backing / "f").read_bytes() == MINE
