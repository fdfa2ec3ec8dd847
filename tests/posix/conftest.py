"""One mount and one bare directory for all pairs of a module."""

from collections.abc import Iterator

import pytest

from tests.helpers.mounted import Mount
from tests.helpers.pairs import Places


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Places]:
    base = tmp_path_factory.mktemp("pairs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GUARDFS_STATE", str(base / "state"))
        mount = Mount(base)
    bare = base / "bare"
    bare.mkdir()
    yield Places(mount, bare)
    mount.close()
