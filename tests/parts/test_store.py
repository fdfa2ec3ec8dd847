"""The store on a real LMDB: what is put comes back, batches wait for nobody, damage is put aside."""

import os
import sys
from pathlib import Path

import lmdb
import msgspec
import pytest
import trio

from guardfs.core.model import FileId, Fingerprint, How, ProcId, Record, SessionId, Stamp
from guardfs.errors import StoreError
from guardfs.state import schema
from guardfs.state.schema import Event, EventKind, KnownName, SessionKind, SessionRow
from guardfs.state.store import Store, open_store, read_events

ONE, OTHER = SessionId("run-1"), SessionId("run-10")


def record(ino: int, path: bytes = b"f") -> Record:
    stamp = Stamp(FileId(7, ino), 3, 10, 11)
    return Record(Fingerprint(stamp, b"d" * 32), 12, How.READ, path)


def put_record(store: Store, session: SessionId, each: Record) -> None:
    store.put("records", schema.record_key(session, each.file), msgspec.msgpack.encode(each))


def never(aside: Path, reason: str) -> None:
    raise AssertionError(f"put aside: {aside}: {reason}")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(tmp_path / "store", never)


async def test_what_is_put_comes_back(store: Store, tmp_path: Path) -> None:
    row = SessionRow(ONE, SessionKind.RUN, "label", ProcId(1, 2), "boot", None, 3)
    store.put("sessions", schema.session_key(ONE), msgspec.msgpack.encode(row))
    for ino in (1, 2**63, 2**64 - 1):
        put_record(store, ONE, record(ino))
    put_record(store, OTHER, record(5))
    path = b"\xff\n" + b"long/" * 2000
    store.put("names", schema.name_key(ONE, path), msgspec.msgpack.encode(KnownName(path, FileId(7, 1))))
    await store.flush()
    store.close()
    store = open_store(tmp_path / "store", never)
    assert store.sessions() == [row]
    assert [each.file.ino for each in store.records(ONE)] == [1, 2**63, 2**64 - 1]
    assert [each.file.ino for each in store.records(OTHER)] == [5]
    assert list(store.names(ONE)) == [KnownName(path, FileId(7, 1))]
    store.close()


async def test_forgetting_a_session_leaves_the_others(store: Store) -> None:
    put_record(store, ONE, record(1))
    put_record(store, OTHER, record(2))
    await store.flush()
    put_record(store, ONE, record(3))
    store.forget_session(ONE)
    await store.flush()
    assert list(store.records(ONE)) == []
    assert len(list(store.records(OTHER))) == 1
    store.close()


async def test_the_map_grows(store: Store) -> None:
    for number in range(300):
        store.put("events", schema.event_key(number), os.urandom(1 << 20))
    await store.flush()
    assert store.last_seq() == 299
    store.close()


async def test_the_last_change_of_a_key_wins(store: Store) -> None:
    put_record(store, ONE, record(1, b"a"))
    put_record(store, ONE, record(1, b"b"))
    store.delete("records", schema.record_key(ONE, FileId(7, 2)))
    await store.flush()
    assert [each.path for each in store.records(ONE)] == [b"b"]
    store.close()


async def test_events_are_read_beside_the_writer(store: Store, tmp_path: Path) -> None:
    for seq in (1, 2, 300):
        event = Event(seq, 5, EventKind.DENIED, ONE, b"\xfe", reason="unread")
        store.put("events", schema.event_key(seq), msgspec.msgpack.encode(event), urgent=True)
    assert store.urgent.is_set()
    await store.flush()
    program = (
        "import sys, pathlib\n"
        "from guardfs.state.store import read_events\n"
        "print([event.seq for event in read_events(pathlib.Path(sys.argv[1]), after=int(sys.argv[2]))])\n"
    )
    for after, expected in (("0", "[1, 2, 300]"), ("2", "[300]")):
        command = [sys.executable, "-P", "-c", program, str(tmp_path / "store"), after]
        done = await trio.run_process(command, capture_stdout=True)
        assert done.stdout.decode().strip() == expected
    store.close()


def test_no_store_has_no_events(tmp_path: Path) -> None:
    assert list(read_events(tmp_path / "none")) == []


async def test_a_failed_flush_loses_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    put_record(store, ONE, record(1))
    real = store._write

    def full(batch: dict[tuple[str, bytes], bytes | None]) -> None:
        raise lmdb.DiskError("no space")

    monkeypatch.setattr(store, "_write", full)
    with pytest.raises(StoreError, match="no space"):
        await store.flush()
    put_record(store, ONE, record(2))
    monkeypatch.setattr(store, "_write", real)
    await store.flush()
    assert len(list(store.records(ONE))) == 2
    store.close()


def test_another_version_is_put_aside(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store", never)
    with store._env.begin(write=True) as txn:
        txn.put(b"version", b"999", db=store._databases["meta"])
    store.close()
    told: list[str] = []
    store = open_store(tmp_path / "store", lambda aside, reason: told.append(f"{aside.name} {reason}"))
    assert len(told) == 1
    assert "999" in told[0]
    store.close()


def test_a_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="Not a directory"):
        open_store(tmp_path / "file" / "store", never)
