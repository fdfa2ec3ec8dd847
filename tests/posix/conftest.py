"""One mount and one bare directory for all pairs of a module."""

import ctypes
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.mounted import Mount
from tests.helpers.pairs import Places

MNT_DETACH = 2


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Places]:
    base = tmp_path_factory.mktemp("pairs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GUARDFS_STATE", str(base / "state"))
        mount = Mount(base)
    bare = base / "bare"
    bare.mkdir()
    try:
        yield Places(mount, bare)
    finally:
        mount.close()
        # pytest cannot remove a tree that is deeper than its stack.
        subprocess.run(["rm", "-rf", bare, mount.workspace], check=True)


@pytest.fixture
def islands(places: Places) -> Iterator[list[Path]]:
    """Two file systems below the root; new ones number their inodes alike.

    By the system calls, since mount(8) would turn the way past the mount into a way through it.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    made: list[Path] = []
    try:
        for name in ("one", "two"):
            island = places.mount.backing / f"island-{name}"
            island.mkdir()
            assert libc.mount(b"guardfs-test", bytes(island), b"tmpfs", 0, b"size=4m,inode64") == 0
            made.append(island)
        yield made
    finally:
        for island in made:
            libc.umount2(bytes(island), MNT_DETACH)
