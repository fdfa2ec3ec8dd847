"""What each session knows, in memory and written through to the store.

Must not look at files or decide. All of it belongs to the event loop.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator

import msgspec

from guardfs.core import policy
from guardfs.core.model import FileId, How, Record, SessionId, Stamp
from guardfs.state import schema
from guardfs.state.schema import KnownName, SessionRow
from guardfs.state.store import Store


class Session:
    """One session's record table.

    Invariants: ``_read`` and ``_own`` are disjoint and each ordered by last use, oldest first; a path in
    ``_names`` is one at which the session knew a file and from which it has not itself taken it away.
    """

    def __init__(self, row: SessionRow, store: Store, max_records: int, on_evict: Callable[["Session"], None]) -> None:
        self.row = row
        self._store = store
        self._max_records = max_records
        self._on_evict = on_evict
        self._read: OrderedDict[FileId, Record] = OrderedDict()
        self._own: OrderedDict[FileId, Record] = OrderedDict()
        self._names: dict[bytes, FileId] = {}
        self.evicted = 0

    @property
    def id(self) -> SessionId:
        """The session's name."""
        return self.row.id

    def __len__(self) -> int:
        return len(self._read) + len(self._own)

    def records(self) -> list[Record]:
        """All records, least recently used first."""
        return [*self._read.values(), *self._own.values()]

    def get(self, file: FileId) -> Record | None:
        """What the session knows of a file."""
        return self._read.get(file) or self._own.get(file)

    def find(self, file: FileId, paths: Iterable[bytes]) -> Record | None:
        """The record to compare with a file: its own, else that of the file known at one of its paths."""
        record = self.get(file)
        if record is not None:
            return record
        known = (self._names.get(path) for path in paths)
        return next((r for f in known if f is not None and (r := self.get(f)) is not None), None)

    def knows_name(self, path: bytes) -> bool:
        """Whether the session knew a file at this path."""
        return path in self._names

    def put(self, record: Record, path: bytes | None = None) -> None:
        """Remember a record as the most recent one, and the path at which its file was just seen."""
        if path is not None:
            record = msgspec.structs.replace(record, path=path)
            self.name(path, record.file)
        file = record.file
        before = self.get(file)
        self._count(before, record)
        if before != record:
            self._store.put("records", schema.record_key(self.id, file), msgspec.msgpack.encode(record))
        self._read.pop(file, None)
        self._own.pop(file, None)
        table = self._read if record.how is How.READ else self._own
        table[file] = record
        self._evict()

    def drop(self, file: FileId) -> None:
        """Forget a file."""
        if self._read.pop(file, None) or self._own.pop(file, None):
            self._store.delete("records", schema.record_key(self.id, file))

    def name(self, path: bytes, file: FileId) -> None:
        """Remember that this file is known at a path."""
        if self._names.get(path) != file:
            self._names[path] = file
            value = msgspec.msgpack.encode(KnownName(path, file))
            self._store.put("names", schema.name_key(self.id, path), value)

    def move(self, file: FileId, path: bytes) -> None:
        """A file that the session knows stands at another path now."""
        record = self.get(file)
        if record is not None:
            self._replace(msgspec.structs.replace(record, path=path))
            self.name(path, file)

    def unname(self, path: bytes) -> FileId | None:
        """Forget a path, and say which file was known there."""
        file = self._names.pop(path, None)
        if file is not None:
            self._store.delete("names", schema.name_key(self.id, path))
        return file

    def forget(self, path: bytes) -> None:
        """Forget a path and the file that was known there."""
        file = self.unname(path)
        if file is not None:
            self.drop(file)

    def move_below(self, path: bytes, new_path: bytes, *, own_act: bool) -> None:
        """A directory was renamed: what was known below it is known there too; and no longer here, if by itself."""
        prefix = path + b"/"
        for old in [known for known in self._names if known.startswith(prefix)]:
            file = self.unname(old) if own_act else self._names[old]
            if file is not None:
                self.name(new_path + b"/" + old[len(prefix) :], file)

    def carry(self, before: Stamp, after: Stamp) -> None:
        """The file's stamp changed and its bytes did not."""
        record = self.get(before.file)
        if record is not None:
            self._replace(policy.carried_record(record, before, after))

    def distrust(self, file: FileId) -> None:
        """Somebody else has changed the bytes: equal stamps prove nothing any more."""
        record = self.get(file)
        if record is not None and record.proved:
            self._replace(msgspec.structs.replace(record, proved=False))

    def refused(self) -> None:
        """Count a refusal."""
        self.row = msgspec.structs.replace(self.row, refused=self.row.refused + 1)
        self.save()

    def save(self) -> None:
        """Write the session's own row."""
        self._store.put("sessions", schema.session_key(self.id), msgspec.msgpack.encode(self.row))

    def restore(self) -> None:
        """Load what the store remembers; each record has to prove itself by its digest."""
        for record in self._store.records(self.id):
            table = self._read if record.how is How.READ else self._own
            table[record.file] = msgspec.structs.replace(record, proved=False)
        for known in self._store.names(self.id):
            self._names[known.path] = known.file

    def _replace(self, record: Record) -> None:
        table = self._read if record.file in self._read else self._own
        table[record.file] = record
        self._store.put("records", schema.record_key(self.id, record.file), msgspec.msgpack.encode(record))

    def _count(self, before: Record | None, record: Record) -> None:
        row = self.row
        if record.how is How.READ and before is None:
            self.row = msgspec.structs.replace(row, read=row.read + 1)
        elif record.how is not How.READ and (before is None or before.how is How.READ):
            self.row = msgspec.structs.replace(row, written=row.written + 1)

    def _evict(self) -> None:
        while len(self) > self._max_records:
            table = self._read or self._own
            file, record = next(iter(table.items()))
            self.drop(file)
            if self._names.get(record.path) == file:
                self.unname(record.path)
            self.evicted += 1
            self._on_evict(self)


class Sessions:
    """The living sessions."""

    def __init__(self) -> None:
        self._living: dict[SessionId, Session] = {}

    def __iter__(self) -> Iterator[Session]:
        return iter(self._living.values())

    def __len__(self) -> int:
        return len(self._living)

    def __contains__(self, session: SessionId) -> bool:
        return session in self._living

    def get(self, session: SessionId) -> Session:
        """A living session. Raises KeyError."""
        return self._living[session]

    def add(self, session: Session) -> None:
        """A session begins or is found alive again."""
        self._living[session.id] = session

    def remove(self, session: SessionId) -> Session:
        """A session ends. Raises KeyError."""
        return self._living.pop(session)

    def bytes_changed(self, file: FileId, by: SessionId | None) -> None:
        """A file's bytes were changed through the mount: every other session's record is in doubt."""
        for session in self._living.values():
            if session.id != by:
                session.distrust(file)

    def stamp_changed(self, before: Stamp, after: Stamp, by: SessionId | None, *, times_set: bool) -> None:
        """Mode, owner, names or times changed through the mount.

        Setting times is a save in everybody's eyes but the session's own; the rest moves ctime alone.
        """
        for session in self._living.values():
            if session.id == by or not times_set:
                session.carry(before, after)
