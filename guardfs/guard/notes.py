"""What follows from an act: how records, grants and memories move on once something has been done.

Must not decide or refuse. Used by ``files`` and ``names`` right after they have acted, without an ``await`` in
between, but for the two methods that take a digest.
"""

import time

import trio

from guardfs import backing
from guardfs.core import policy
from guardfs.core.fingerprint import Match, by_stamp, is_racy
from guardfs.core.model import Fingerprint, How, Record, SessionId, Stamp
from guardfs.core.policy import Profile
from guardfs.guard.judge import Desk, Judge
from guardfs.guard.sessions import Session
from guardfs.handles import Grant, Handle
from guardfs.inodes import Node
from guardfs.procs.census import Caller
from guardfs.state.schema import EventKind


class Notes:
    """Keeps what sessions and handles know in step with what has been done."""

    def __init__(self, desk: Desk, judge: Judge) -> None:
        self._desk = desk
        self._judge = judge

    async def read_locked(self, session: Session, node: Node, fd: int) -> None:
        """Record what a caller is about to be given, and tell if it is not what the session knew."""
        path = self._desk.inodes.path(node)
        record = session.find(node.file, path)
        stamp = backing.stamp(fd)
        if record and record.fingerprint.stamp == stamp and record.proved and not is_racy(record):
            session.put(record, self._desk.inodes.named_path(node))
            return
        taken = time.time_ns()
        seen = await self._judge.fingerprint_of(fd)
        self._judge.keep_bytes(path, fd, seen)
        record = session.find(node.file, path)
        if record and _is_external(record, seen):
            self._desk.announcer.tell(EventKind.CHANGED, session.id, path, then=record.fingerprint, now=seen)
        self._settle(session, record, seen, path)
        session.put(policy.read_record(seen, taken, record), self._desk.inodes.named_path(node))

    def _settle(self, session: Session, record: Record | None, seen: Fingerprint, path: bytes) -> None:
        """Whether what was read counts at once, or has to settle first."""
        settings, now_s = self._desk.rulebook.settings, trio.current_time()
        if record is not None:
            session.unsettle(record, seen, settings.match, now_s, settings.settle, path)
        elif settings.profile is Profile.STRICT:
            session.unsettle_first(seen, now_s, settings.settle)
        else:
            session.first_seen(seen, now_s)

    def written(self, session: Session, handle: Handle[Node], how: How = How.WRITE) -> None:
        """The session has changed the bytes: it knows them, and its other handles may go on."""
        node = handle.node
        after = backing.stamp(handle.fd)
        self.bytes_changed(handle.caller, node)
        handle.wrote = True
        if handle.grant is not Grant.GIVEN:
            return
        self.left(handle, after)
        session.settle(node.file)
        earlier = session.get(node.file)
        kept = earlier.how if earlier is not None and earlier.how is How.CREATE else how
        record = policy.written_record(after, time.time_ns(), kept)
        if after.size == 0:
            record = policy.closed_record(record, Fingerprint(after, backing.EMPTY_DIGEST), time.time_ns())
        session.put(record, self._desk.inodes.named_path(node))

    def left(self, handle: Handle[Node], after: Stamp) -> None:
        """A handle leaves its file in a new state, and so do the session's other handles that knew the old one."""
        before, handle.left = handle.left, after
        if before is None:
            return
        for other in self._desk.handles.on(handle.node):
            if other.caller.session == handle.caller.session and other.left == before:
                other.left = after

    async def closed_locked(self, session: Session, handle: Handle[Node]) -> None:
        """Take the digest of what the session wrote, unless somebody has changed it since."""
        record = session.get(handle.node.file)
        if record is None or record.fingerprint.digest is not None or not record.proved:
            return
        taken = time.time_ns()
        try:
            fd = backing.open_to_judge(handle.fd)
        except PermissionError:
            return  # Its mode keeps even its owner from reading it: its stamp has to do.
        try:
            seen = await self._judge.fingerprint_of(fd)
            if session.get(handle.node.file) == record and seen.stamp == record.fingerprint.stamp:
                session.put(policy.closed_record(record, seen, taken))
                self._judge.keep_bytes(self._desk.inodes.path(handle.node), fd, seen)
        finally:
            backing.close(fd)

    def freely_written(self, handle: Handle[Node]) -> None:
        """An untracked handle has changed the bytes."""
        handle.wrote = True
        self.bytes_changed(handle.caller, handle.node)

    def bytes_changed(self, caller: Caller, node: Node) -> None:
        """Everybody but the writer's session is in doubt from now on, whatever the clock says."""
        if not self._desk.sessions:
            return
        by = self._by(caller)
        node.changed_by, node.changed_s = by, time.monotonic()
        self._desk.announcer.changed_by(caller, node.file)
        self._desk.sessions.bytes_changed(node.file, by)
        for handle in self._desk.handles.on(node):
            if handle.left is not None and handle.caller.session != by:
                handle.left = None

    def stamp_changed(self, caller: Caller, node: Node, before: Stamp, *, times_set: bool = False) -> None:
        """A change that left the bytes alone has been made: carry what knew the stamp before it."""
        if not self._desk.sessions:
            return
        after = backing.stamp(self._desk.inodes.descriptor(node))
        by = self._by(caller)

        def is_forgiven(by_whom: SessionId | None) -> bool:
            """Setting times is a save in everybody else's eyes under a strict match; the rest moves ctime alone."""
            return by_whom == by or not times_set or self._desk.rulebook.rules.match is not Match.STRICT

        self._desk.sessions.stamp_changed(before, after, is_forgiven)
        for handle in self._desk.handles.on(node):
            if handle.left == before and is_forgiven(handle.caller.session):
                handle.left = after

    def removed(self, caller: Caller, session: Session | None, parent: Node, name: bytes, node: Node) -> None:
        """A name has been taken away; the last one's file is dead."""
        inodes = self._desk.inodes
        path = inodes.path_at(parent, name)
        if session is not None:
            session.unname(path)
        if self._desk.sessions:
            self._desk.announcer.changed_by(caller, path)
        if node.is_regular and backing.links(inodes.descriptor(node)) == 0:
            if session is not None:
                session.drop(node.file)
            self._desk.sessions.file_died(node.file, trio.current_time(), self._desk.rulebook.settings.settle)
        inodes.removed(parent, name, node)

    def moved(self, caller: Caller, session: Session | None, node: Node, old_path: bytes, new_path: bytes) -> None:
        """A node has been renamed."""
        for known in self._desk.sessions:
            own_act = known is session
            known.moved(node.file, old_path, new_path, own_act=own_act)
            if node.is_directory:
                known.moved_below([(old_path, new_path)], own_act=own_act)
        if self._desk.sessions:
            self._desk.announcer.changed_by(caller, old_path, new_path)

    def exchanged(
        self, caller: Caller, session: Session | None, one: tuple[Node, bytes], other: tuple[Node, bytes]
    ) -> None:
        """Two nodes have changed places; each is given with the path that it stood at before."""
        (a, a_path), (b, b_path) = one, other
        for known in self._desk.sessions:
            known.swapped((a.file, a_path), (b.file, b_path), own_act=known is session)
        if self._desk.sessions:
            self._desk.announcer.changed_by(caller, a_path, b_path)

    def _by(self, caller: Caller) -> SessionId | None:
        session = self._judge.session_of(caller)
        return session.id if session is not None else None


def _is_external(record: Record, seen: Fingerprint) -> bool:
    """Whether a record and what is read now differ in more than ctime."""
    then = record.fingerprint
    if by_stamp(record, seen.stamp) is None and then.digest == seen.digest:
        return then.stamp.mtime_ns != seen.stamp.mtime_ns or then.stamp.file != seen.stamp.file
    return then.stamp != seen.stamp or then.digest not in (None, seen.digest)
