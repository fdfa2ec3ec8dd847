"""The only module that imports lmdb: memory decides, this remembers.

Changes gather in a dictionary on the event loop (``put``, ``delete``: plain functions) and ``flush`` writes
them in one transaction in a worker thread, so no request waits for a disk. The lock of ``_pending`` is the
event loop itself: only ``flush`` awaits, after it has taken the dictionary away.
"""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import lmdb
import lmdb.verify
import msgspec
import trio

from guardfs.core.model import Record, SessionId
from guardfs.errors import StoreError
from guardfs.state import residency, schema
from guardfs.state.schema import Event, KnownName, SessionRow

_FIRST_MAP_BYTES = 64 << 20
"""Address space to begin with; doubled when full. The file on disk is as large as its content."""
_MANY = 100
"""Changes in one transaction that touch so much of the map that its pages are given back."""
EVENT_LIMIT = 50_000
"""Events that are kept: the oldest go first."""

T = TypeVar("T")
Key = tuple[str, bytes]


class Store:
    """An open store.

    ``_pending`` holds what is not written yet, None standing for a deletion, and ``_writing`` what is being written.
    """

    def __init__(self, directory: Path, env: lmdb.Environment) -> None:
        self._env = env
        self.directory = directory
        self._databases = {name: env.open_db(name.encode()) for name in schema.DATABASES}
        self._pending: dict[Key, bytes | None] = {}
        self._writing: dict[Key, bytes | None] = {}
        self._flushing = trio.Lock()
        self.dirty = trio.Event()
        self.urgent = trio.Event()

    def put(self, database: str, key: bytes, value: bytes, *, urgent: bool = False) -> None:
        """Remember a value at the next flush; ``urgent`` asks for that at once."""
        self._change(database, key, value)
        if urgent:
            self.urgent.set()

    def delete(self, database: str, key: bytes) -> None:
        """Forget a value at the next flush."""
        self._change(database, key, None)

    def _change(self, database: str, key: bytes, value: bytes | None) -> None:
        self._pending[database, key] = value
        self.dirty.set()

    async def flush(self) -> None:
        """Write what has gathered. Raises StoreError, with the changes kept, where that fails."""
        async with self._flushing:
            batch, self._pending = self._pending, {}
            self._writing = batch
            self.dirty, self.urgent = trio.Event(), trio.Event()
            try:
                await trio.to_thread.run_sync(self._write, batch)
            except (lmdb.Error, OSError) as error:
                self._pending = batch | self._pending
                raise StoreError(f"{self.directory}: {error}") from error
            finally:
                self._writing = {}

    def _write(self, batch: dict[Key, bytes | None]) -> None:
        while True:
            try:
                with self._env.begin(write=True) as txn:
                    for (database, key), value in batch.items():
                        if value is None:
                            txn.delete(key, db=self._databases[database])
                        else:
                            txn.put(key, value, db=self._databases[database])
                if len(batch) > _MANY:
                    residency.give_back(self.directory / "data.mdb")
                return
            except lmdb.MapFullError:
                self._env.set_mapsize(self._env.info()["map_size"] * 2)

    def sessions(self) -> list[SessionRow]:
        """All sessions that are remembered."""
        return [msgspec.msgpack.decode(value, type=SessionRow) for _, value in self._all("sessions")]

    def records(self, session: SessionId) -> Iterator[Record]:
        """The records of a session."""
        for _, value in self._all("records", schema.session_key(session) + b"\0"):
            yield msgspec.msgpack.decode(value, type=Record)

    def names(self, session: SessionId) -> Iterator[KnownName]:
        """The paths that a session knows, and the files that it knew there."""
        for _, value in self._all("names", schema.session_key(session) + b"\0"):
            yield msgspec.msgpack.decode(value, type=KnownName)

    def events(self) -> Iterator[Event]:
        """All events, oldest first."""
        for _, value in self._all("events"):
            yield msgspec.msgpack.decode(value, type=Event)

    def content_sizes(self) -> list[tuple[bytes, int]]:
        """The digests of the bytes that are kept, and how many bytes each has."""
        return [(digest, len(data)) for digest, data in self._all("contents")]

    def last_seq(self) -> int:
        """The sequence number of the newest event, 0 where there is none."""
        with self._env.begin() as txn, txn.cursor(db=self._databases["events"]) as cursor:
            return int.from_bytes(cursor.key(), "big") if cursor.last() else 0

    def forget_session(self, session: SessionId) -> None:
        """Delete a session, its records and its names at the next flush."""
        self.delete("sessions", schema.session_key(session))
        for database in ("records", "names"):
            for key, _ in self._all(database, schema.session_key(session) + b"\0"):
                self.delete(database, key)
            for name, key in [*self._pending, *self._writing]:
                if name == database and key.startswith(schema.session_key(session) + b"\0"):
                    self.delete(database, key)

    def _all(self, database: str, prefix: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        with self._env.begin() as txn, txn.cursor(db=self._databases[database]) as cursor:
            if not cursor.set_range(prefix):
                return
            for key, value in cursor:
                if not key.startswith(prefix):
                    return
                yield key, value

    def close(self) -> None:
        """Give the descriptors back; what is pending is lost, so flush first."""
        self._env.close()


def open_store(directory: Path, on_damage: Callable[[Path, str], None]) -> Store:
    """Open or begin a store; a damaged one is put aside under another name and ``on_damage`` told.

    The file is verified before LMDB maps it: a truncated map kills a process by SIGBUS.

    Raises:
        StoreError: the directory cannot be made or written.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        damage = _damage(directory)
        if damage is None:
            return _opened(directory)
    except (lmdb.Error, lmdb.verify.VerifyError, msgspec.DecodeError) as error:
        damage = str(error)
    except OSError as error:
        raise StoreError(f"{directory}: {error.strerror or error}") from error
    aside = _put_aside(directory)
    on_damage(aside, damage)
    directory.mkdir(mode=0o700)
    return _opened(directory)


def read_events(directory: Path, *, after: int = 0) -> Iterator[Event]:
    """The events of a store that another process may have open, oldest first."""
    if not (directory / "data.mdb").exists():
        return
    env = lmdb.open(str(directory), readonly=True, max_dbs=len(schema.DATABASES))
    try:
        events = env.open_db(b"events", create=False)
        with env.begin() as txn, txn.cursor(db=events) as cursor:
            if cursor.set_range(schema.event_key(after + 1)):
                for _, value in cursor:
                    yield msgspec.msgpack.decode(value, type=Event)
    except lmdb.NotFoundError:
        return  # Begun and never written.
    finally:
        env.close()


def read_content(directory: Path, digest: bytes) -> bytes | None:
    """The kept bytes of this SHA-256 in a store that another process may have open; None where there are none."""
    if not (directory / "data.mdb").exists():
        return None
    env = lmdb.open(str(directory), readonly=True, max_dbs=len(schema.DATABASES))
    try:
        contents = env.open_db(b"contents", create=False)
        with env.begin() as txn:
            found: bytes | None = txn.get(digest, db=contents)
            return found
    except lmdb.NotFoundError:
        return None  # Begun by an earlier guardfs, or never written.
    finally:
        env.close()


def _damage(directory: Path) -> str | None:
    data = directory / "data.mdb"
    if _size(data) == 0:
        return None
    findings = lmdb.verify.verify(str(data))  # type: ignore[no-untyped-call]
    return "; ".join(findings[:3]) if findings else None


def _opened(directory: Path) -> Store:
    env = lmdb.open(
        str(directory),
        map_size=max(_FIRST_MAP_BYTES, _size(directory / "data.mdb") * 2),
        max_dbs=len(schema.DATABASES),
        mode=0o600,
    )
    store = Store(directory, env)
    try:
        _check_version(env, store)
        _prune_events(env, store)
        for _ in store.sessions():
            pass
    except Exception:
        env.close()
        raise
    return store


def _check_version(env: lmdb.Environment, store: Store) -> None:
    meta = store._databases["meta"]
    expected = str(schema.VERSION).encode()
    with env.begin(write=True) as txn:
        found = txn.get(b"version", db=meta)
        if found is None:
            txn.put(b"version", expected, db=meta)
        elif found != expected:
            raise lmdb.VersionMismatchError(f"store version {found!r}, this program writes {expected!r}")


def _prune_events(env: lmdb.Environment, store: Store) -> None:
    events = store._databases["events"]
    with env.begin(write=True) as txn, txn.cursor(db=events) as cursor:
        for _ in range(max(0, txn.stat(events)["entries"] - EVENT_LIMIT)):
            cursor.first()
            cursor.delete()


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _put_aside(directory: Path) -> Path:
    aside = directory.with_name(f"{directory.name}.damaged-{time.strftime('%Y%m%dT%H%M%S')}-{os.getpid()}")
    directory.rename(aside)
    return aside
