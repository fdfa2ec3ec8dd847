"""What each session knows, in memory and written through to the store.

Must not look at files or decide. All of it belongs to the event loop.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

import msgspec

from guardfs.core import policy
from guardfs.core.fingerprint import Match
from guardfs.core.model import FileId, Fingerprint, How, Record, SessionId, Stamp
from guardfs.core.policy import Target
from guardfs.guard.settling import Settling
from guardfs.guard.table import Table
from guardfs.state import schema
from guardfs.state.schema import KnownName, SessionRow
from guardfs.state.store import Store

_NAMES_PER_RECORD = 2
"""Names that a session may know for each record that it may hold."""
_EVICTED_AT_ONCE = 64
"""Evictions, each of about this part of the records, that it takes to evict them all."""


class Session:
    """One session's record table.

    Invariants: ``_read`` and ``_own`` are disjoint and each ordered by last use, oldest first. A path in
    ``_names`` is one at which the session knew a file and from which it has not itself taken it away.
    ``_buried`` holds the records of files that died under such a path, since their inode number may be
    another file's by now. ``_freed`` holds the paths at which the session deleted what it had not seen, until
    it knows a file there.
    """

    def __init__(self, row: SessionRow, store: Store, max_records: int, on_evict: Callable[["Session"], None]) -> None:
        self.row = row
        self._store = store
        self.max_records = max_records
        self._at_once = 1 + max_records // _EVICTED_AT_ONCE
        self._on_evict = on_evict
        self._read, self._own = Table(), Table()
        self._names: dict[bytes, FileId] = {}
        self._buried: dict[bytes, Record] = {}
        self._freed: OrderedDict[bytes, None] = OrderedDict()
        self._settling = Settling()
        self.evicted = 0

    @property
    def id(self) -> SessionId:
        """The session's name."""
        return self.row.id

    def __len__(self) -> int:
        return len(self._read) + len(self._own)

    def records(self) -> list[Record]:
        """All records, of dead files first, then least recently used first."""
        return [*self._buried.values(), *self._read, *self._own]

    def get(self, file: FileId) -> Record | None:
        """What the session knows of a file."""
        return self._read.get(file) or self._own.get(file)

    def find(self, file: FileId, path: bytes) -> Record | None:
        """The record to compare with a file: its own, else that of what was known at its path."""
        return self.get(file) or self.known_at(path)

    def known_at(self, path: bytes) -> Record | None:
        """The record of the file that was known at a path."""
        file = self._names.get(path)
        if file is None:
            return None
        return self._buried.get(path) or self.get(file)

    def judged_by(self, file: FileId, path: bytes, now_s: float, settle_s: float) -> tuple[Record | None, bool]:
        """The record that a write is judged by, and whether that is an older one until the newest has settled."""
        record = self.find(file, path)
        unsettled = self._settling.get(record.file, now_s, settle_s) if record is not None else None
        return (record, False) if unsettled is None else (unsettled.older, True)

    def at_free_name(self, path: bytes) -> Target:
        """What a name is to the session at which nothing stands now."""
        if path in self._freed:
            return Target.FREED
        return Target.GONE if path in self._names else Target.ABSENT

    def free(self, path: bytes) -> None:
        """The session deletes what it has not seen at a path."""
        self._freed[path] = None
        while len(self._freed) > self.max_records:
            self._freed.popitem(last=False)

    def unsettle(
        self, record: Record, seen: Fingerprint, match: Match, now_s: float, settle_s: float, path: bytes
    ) -> None:
        """A read has given ``seen`` to a session that had ``record``: it settles if the bytes are others."""
        if policy.is_other_state(record, seen, match):
            older, _ = self.judged_by(seen.stamp.file, path, now_s, settle_s)
            self._settling.begin(seen, older, now_s, settle_s)
            return
        self._settling.note(seen, now_s)
        if record.file != seen.stamp.file:
            self._settling.carry(record.file, seen.stamp.file)

    def unsettle_first(self, seen: Fingerprint, now_s: float, settle_s: float) -> None:
        """A file was read for the first time, where that has to settle as well."""
        self._settling.begin(seen, None, now_s, settle_s)

    def first_seen(self, seen: Fingerprint, now_s: float) -> None:
        """A file was read for the first time, and counts at once."""
        self._settling.note(seen, now_s)

    def settle(self, file: FileId) -> None:
        """The session has written a file's bytes itself."""
        self._settling.settle(file)

    def begin_turn(self) -> None:
        """All that was read so far has been seen."""
        self._settling.settle_all()

    def put(self, record: Record, path: bytes | None = None) -> None:
        """Remember a record as the most recent one, and the path at which its file was just seen."""
        if path is not None:
            record = msgspec.structs.replace(record, path=path)
            self.name(path, record.file)
        file = record.file
        before = self.get(file)
        self._count(before, record)
        self._read.pop(file)
        self._own.pop(file)
        packed = self._table(record).put(record)
        if before != record:
            self._save_record(file, packed)
        self._evict()

    def update(self, record: Record) -> None:
        """Replace what is known of a file without counting it as used."""
        self._save_record(record.file, self._table(record).put(record))

    def drop(self, file: FileId) -> None:
        """Forget a file."""
        self._settling.settle(file)
        if self._read.pop(file) or self._own.pop(file):
            self._store.delete("records", schema.record_key(self.id, file))

    def bury(self, file: FileId, now_s: float, settle_s: float) -> None:
        """A file has died: what is known of it goes with its name, never with its number's next file."""
        record = self.get(file)
        unsettled = self._settling.get(file, now_s, settle_s)
        self.drop(file)
        if unsettled is not None:
            record = unsettled.older
        if record is None:
            return
        if self._names.get(record.path) == file:
            self._buried[record.path] = record
            return
        for path in [path for path, known in self._names.items() if known == file]:
            self._buried[path] = record  # Others had moved it to where it died.

    def name(self, path: bytes, file: FileId) -> None:
        """Remember that this file is known at a path."""
        self._buried.pop(path, None)
        self._freed.pop(path, None)
        if self._names.get(path) != file:
            self._names[path] = file
            value = msgspec.msgpack.encode(KnownName(path, file))
            self._store.put("names", schema.name_key(self.id, path), value)

    def unname(self, path: bytes) -> FileId | None:
        """Forget a path, and say which file was known there."""
        self._buried.pop(path, None)
        file = self._names.pop(path, None)
        if file is not None:
            self._store.delete("names", schema.name_key(self.id, path))
        return file

    def forget(self, path: bytes) -> None:
        """Forget a path, and the file that was known there unless it is known to stand elsewhere."""
        file = self.unname(path)
        record = self.get(file) if file is not None else None
        if record is not None and record.path == path:
            self.drop(record.file)

    def moved(self, file: FileId, path: bytes, new_path: bytes, *, own_act: bool) -> None:
        """A known file stands at another path now; a name that somebody else took away stays known."""
        record = self.get(file)
        if record is not None:
            self.update(msgspec.structs.replace(record, path=new_path))
        if own_act:
            self.unname(path)
            self._freed.pop(new_path, None)
            if record is not None:
                self.name(new_path, file)

    def moved_below(self, moves: Iterable[tuple[bytes, bytes]], *, own_act: bool) -> None:
        """Directories stand at other paths now, with all that is known below them."""
        found = [
            (old, new_path + old[len(path) :], file)
            for path, new_path in moves
            for old, file in self._names.items()
            if old.startswith(path + b"/")
        ]
        for old, new, file in found:
            record = self.get(file)
            if record is not None and record.path == old:
                self.update(msgspec.structs.replace(record, path=new))
        if own_act:
            for old, _, _ in found:
                self.unname(old)
            for _, new, file in found:
                self.name(new, file)

    def swapped(self, one: tuple[FileId, bytes], other: tuple[FileId, bytes], *, own_act: bool) -> None:
        """Two files, or two directories with all below them, have changed places."""
        (a, a_path), (b, b_path) = one, other
        for path in (a_path, b_path) if own_act else ():
            self.unname(path)
        for file, path in ((a, b_path), (b, a_path)):
            record = self.get(file)
            if record is not None:
                self.update(msgspec.structs.replace(record, path=path))
                if own_act:
                    self.name(path, file)
        self.moved_below([(a_path, b_path), (b_path, a_path)], own_act=own_act)

    def carry(self, before: Stamp, after: Stamp) -> None:
        """The file's stamp changed and its bytes did not."""
        record = self.get(before.file)
        if record is not None:
            self.update(policy.carried_record(record, before, after))

    def distrust(self, file: FileId) -> None:
        """Somebody else has changed the bytes: equal stamps prove nothing any more."""
        record = self.get(file)
        if record is not None and record.proved:
            self.update(msgspec.structs.replace(record, proved=False))

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
            self._table(record).put(msgspec.structs.replace(record, proved=False))
        for known in self._store.names(self.id):
            self._names[known.path] = known.file
        self._evict()

    def _table(self, record: Record) -> Table:
        return self._read if record.how is How.READ else self._own

    def _save_record(self, file: FileId, packed: bytes) -> None:
        self._store.put("records", schema.record_key(self.id, file), packed)

    def _count(self, before: Record | None, record: Record) -> None:
        row = self.row
        if record.how is How.READ and before is None:
            self.row = msgspec.structs.replace(row, read=row.read + 1)
        elif record.how is not How.READ and (before is None or before.how is How.READ):
            self.row = msgspec.structs.replace(row, written=row.written + 1)

    def _evict(self) -> None:
        """The least recently used record goes first, what the session wrote last of all, its name with it."""
        while len(self) > self.max_records:
            for record in (self._read or self._own).oldest(self._at_once):
                self.drop(record.file)
                if self._names.get(record.path) == record.file:
                    self.unname(record.path)
                self.evicted += 1
                self._on_evict(self)
        if len(self._names) > self.max_records * _NAMES_PER_RECORD:
            for path in list(islice(self._names, self._at_once)):
                self.unname(path)


class Sessions:
    """The living sessions."""

    def __init__(self) -> None:
        self._living: dict[SessionId, Session] = {}

    def __iter__(self) -> Iterator[Session]:
        return iter(list(self._living.values()))

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

    def stamp_changed(self, before: Stamp, after: Stamp, forgiven: Callable[[SessionId], bool]) -> None:
        """Mode, owner, names or times changed through the mount; ``forgiven`` by whom that is no change to."""
        for session in self._living.values():
            if forgiven(session.id):
                session.carry(before, after)

    def file_died(self, file: FileId, now_s: float, settle_s: float) -> None:
        """The last name of a file is gone: its number may soon be another file's."""
        for session in self._living.values():
            session.bury(file, now_s, settle_s)
