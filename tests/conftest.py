"""Fixtures of all mounted tests. A mount that cannot be made fails its test."""

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.helpers.mounted import Mount

MakeMount = Callable[..., Mount]

for _number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, signal.SIG_DFL)  # Under nohup or a shell's "&" our children would be deaf too.


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """guardfs's state for one test."""
    path = tmp_path / "state"
    monkeypatch.setenv("GUARDFS_STATE", str(path))
    return path


@pytest.fixture
def make_mount(tmp_path: Path, state: Path) -> Iterator[MakeMount]:
    """Makes mounts and closes them, checks included."""
    made: list[Mount] = []

    def make(*options: str, base: Path | None = None, point: Path | None = None) -> Mount:
        made.append(Mount(base or tmp_path, *options, point=point))
        return made[-1]

    yield make
    for mount in made:
        mount.close()


@pytest.fixture
def mount(make_mount: MakeMount) -> Mount:
    """A mount with the defaults."""
    return make_mount()
