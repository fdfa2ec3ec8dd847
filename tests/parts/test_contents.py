"""What is kept of files for ``guardfs why``, against a real store."""

import hashlib
from pathlib import Path

import pytest
import trio

from guardfs.guard import contents
from guardfs.guard.contents import Contents
from guardfs.state.store import open_store, read_content


def sha(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def test_what_is_kept_is_bounded_and_survives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contents, "_MOST_BYTES", 25)
    store = open_store(tmp_path / "store", lambda *_: None)
    kept = Contents(store)
    for data in (b"a" * 10, b"b" * 10, b"\0" * 5):
        kept.keep(sha(data), data)
    assert kept.has(sha(b"a" * 10)), "which makes it the newest"
    kept.keep(sha(b"c" * 10), b"c" * 10)
    trio.run(store.flush)
    store.close()
    found = {data[:1]: read_content(tmp_path / "store", sha(data)) for data in (b"a" * 10, b"b" * 10, b"c" * 10)}
    assert found == {b"a": b"a" * 10, b"b": None, b"c": b"c" * 10}
    assert read_content(tmp_path / "store", sha(b"\0" * 5)) is None
    again = open_store(tmp_path / "store", lambda *_: None)
    assert len(Contents(again)) == 2
    again.close()
    assert read_content(tmp_path / "nothing", sha(b"a")) is None
