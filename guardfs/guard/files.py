"""Transactions on open files: open, create, read, write, set attributes, flush, release.

Each method takes plain values and returns plain values or a handle; OSErrors and ``Refused`` pass upwards.
"""

import time
from dataclasses import dataclass

from guardfs import backing
from guardfs.core import policy
from guardfs.core.fingerprint import by_stamp, is_racy
from guardfs.core.intent import O_EXCL, Intent, OpenIntent, of_open
from guardfs.core.model import Fingerprint, How, Record, Stamp
from guardfs.core.policy import Target, Tier
from guardfs.core.verdict import Reason
from guardfs.guard.judge import Desk, Judge
from guardfs.guard.sessions import Session
from guardfs.handles import Grant, Handle
from guardfs.inodes import Node, stale
from guardfs.procs.census import Caller
from guardfs.state.schema import EventKind


@dataclass(frozen=True, slots=True)
class Changes:
    """What a setattr asks for; None leaves a field as it is. Sizes in bytes, times in ns."""

    size: int | None = None
    mode: int | None = None
    uid: int | None = None
    gid: int | None = None
    atime_ns: int | None = None
    mtime_ns: int | None = None


class FileGuard:
    """The family of operations that have, get or need a descriptor."""

    def __init__(self, desk: Desk, judge: Judge) -> None:
        self._desk = desk
        self._judge = judge

    async def authorize_open(self, tid: int, node: Node, flags: int) -> Handle[Node]:
        """Open a node as its caller asked, judged first. Raises OSError as open(2), or Refused."""
        if not node.is_regular:
            raise stale()
        caller = self._judge.who(tid)
        session = self._judge.session_of(caller)
        intent = of_open(flags)
        fd = backing.open_file(self._desk.inodes.descriptor(node), flags)
        try:
            if session is None:
                return self._opened_freely(caller, node, fd, intent)
            async with self._desk.locks.holding(node.file):
                return await self._open_locked(caller, session, node, fd, intent)
        except BaseException:
            backing.close(fd)  # No handle was made of it.
            raise

    def _opened_freely(self, caller: Caller, node: Node, fd: int, intent: OpenIntent) -> Handle[Node]:
        if intent.truncates:
            backing.truncate(fd, 0)
            self._bytes_changed(caller, node)
        return self._handle(fd, node, caller, Grant.FREE)

    async def _open_locked(
        self, caller: Caller, session: Session, node: Node, fd: int, intent: OpenIntent
    ) -> Handle[Node]:
        handle = Handle(fd, node, caller, Grant.PENDING if intent.later else Grant.NONE)
        counts = caller.exe not in self._desk.ignored_readers
        if intent.now is not None:
            finding = await self._judge.file_locked(caller, session, node, intent.now, "open for writing")
            self._grant(handle, finding.target, finding.stamp, knows=intent.truncates)
        elif intent.reads_now and counts:
            await self._note_read_locked(session, node, fd)
        handle.counts_read = intent.reads_later and counts
        handle.will_write = intent.later or Intent.WRITE
        if intent.truncates:
            backing.truncate(fd, 0)
            self._note_written(session, handle)
        return self._keep(handle)

    async def authorize_create(
        self, tid: int, parent: Node, name: bytes, flags: int, mode: int, owner: tuple[int, int]
    ) -> Handle[Node]:
        """Make a file and open it; one that stands there already is an overwrite and judged as one."""
        caller = self._judge.who(tid)
        session = self._judge.session_of(caller)
        dir_fd = self._desk.inodes.descriptor(parent)
        path = self._desk.inodes.path_at(parent, name)
        if session is not None and not backing.exists(dir_fd, name):
            self._judge.free_name(caller, session, Intent.CREATE, "create", path)
        try:
            fd = backing.create_file(dir_fd, name, flags, mode)
        except FileExistsError:
            if flags & O_EXCL:
                raise
            node, _ = self._desk.inodes.find(parent, name)
            return await self.authorize_open(tid, node, flags)
        try:
            backing.give_to(fd, *owner, backing.stat(dir_fd), mode)
            node = self._desk.inodes.see(parent, name, backing.stat(fd))
            return self._created(caller, session, node, fd)
        except BaseException:
            backing.close(fd)  # No handle was made of it; the new empty file is what the caller asked for.
            raise

    def _created(self, caller: Caller, session: Session | None, node: Node, fd: int) -> Handle[Node]:
        if session is None:
            self._desk.announcer.changed_by(caller, node.file, self._desk.inodes.path(node))
            return self._handle(fd, node, caller, Grant.FREE)
        handle = Handle(fd, node, caller, Grant.GIVEN)
        self._note_written(session, handle, How.CREATE)
        return self._keep(handle)

    async def read(self, handle: Handle[Node], offset: int, size: int) -> bytes:
        """Bytes of an open file; the first read of an O_RDWR handle makes a record."""
        if handle.counts_read:
            session = self._judge.session_of(handle.caller)
            handle.counts_read = False
            if session is not None:
                async with self._desk.locks.holding(handle.node.file):
                    await self._note_read_locked(session, handle.node, handle.fd)
        return backing.pread(handle.fd, size, offset)

    async def write(self, handle: Handle[Node], offset: int, data: bytes) -> int:
        """Write through a handle, judged at the first write and checked at each. Raises OSError or Refused."""
        session = self._judge.session_of(handle.caller)
        if handle.grant is Grant.FREE or session is None:
            written = backing.pwrite(handle.fd, data, offset)
            self._note_free_write(handle)
            return written
        async with self._desk.locks.holding(handle.node.file):
            await self._authorize_write_locked(session, handle, handle.will_write, "write")
            written = backing.pwrite(handle.fd, data, offset)
            self._note_written(session, handle)
            return written

    async def authorize_setattr(self, tid: int, node: Node, changes: Changes, handle: Handle[Node] | None) -> None:
        """Change size, mode, owner or times; only the size is judged. Raises OSError or Refused."""
        caller = self._judge.who(tid)
        if changes.size is not None:
            await self._resize(caller, node, changes.size, handle)
        before = backing.stamp(self._desk.inodes.descriptor(node))
        fd = self._desk.inodes.descriptor(node)
        if changes.uid is not None or changes.gid is not None:
            keep = -1
            backing.chown(
                fd, keep if changes.uid is None else changes.uid, keep if changes.gid is None else changes.gid
            )
        if changes.mode is not None:
            backing.chmod(fd, changes.mode)
        if changes.atime_ns is not None or changes.mtime_ns is not None:
            backing.utimens(fd, changes.atime_ns, changes.mtime_ns)
        self.note_stamp(caller, node, before, times_set=changes.mtime_ns is not None)

    def set_xattr(self, tid: int, node: Node, name: bytes, value: bytes | None) -> None:
        """Set an extended attribute, or remove it for None. Raises OSError as setxattr(2)."""
        caller = self._judge.who(tid)
        fd = self._desk.inodes.descriptor(node)
        before = backing.stamp(fd)
        if value is None:
            backing.remove_xattr(fd, name)
        else:
            backing.set_xattr(fd, name, value)
        self.note_stamp(caller, node, before)

    async def _resize(self, caller: Caller, node: Node, size: int, handle: Handle[Node] | None) -> None:
        if handle is None:
            await self._truncate_by_name(caller, node, size)
            return
        session = self._judge.session_of(handle.caller)
        if handle.grant is Grant.FREE or session is None:
            backing.truncate(handle.fd, size)
            self._note_free_write(handle)
            return
        async with self._desk.locks.holding(node.file):
            await self._authorize_write_locked(session, handle, Intent.TRUNCATE, "truncate")
            backing.truncate(handle.fd, size)
            self._note_written(session, handle)

    async def _truncate_by_name(self, caller: Caller, node: Node, size: int) -> None:
        """truncate(2): a private descriptor lives for this one act."""
        session = self._judge.session_of(caller)
        fd = backing.open_to_write(self._desk.inodes.descriptor(node))
        try:
            if session is None:
                backing.truncate(fd, size)
                self._bytes_changed(caller, node)
                return
            async with self._desk.locks.holding(node.file):
                finding = await self._judge.file_locked(caller, session, node, Intent.TRUNCATE, "truncate")
                handle = Handle(fd, node, caller, Grant.NONE)
                self._grant(handle, finding.target, finding.stamp, knows=size == 0)
                backing.truncate(fd, size)
                self._note_written(session, handle)
                await self._finish_locked(session, handle)
        finally:
            backing.close(fd)

    async def flush(self, handle: Handle[Node]) -> None:
        """One of a handle's descriptors is closed: what was written through it becomes known by its bytes."""
        session = self._judge.session_of(handle.caller)
        if handle.wrote and session is not None:
            async with self._desk.locks.holding(handle.node.file):
                await self._finish_locked(session, handle)

    async def release(self, handle: Handle[Node]) -> None:
        """The last descriptor is closed. Nobody waits for the answer."""
        try:
            await self.flush(handle)
        finally:
            self._desk.handles.remove(handle.id)
            self._desk.inodes.let_go(handle.node, handle.fd)
            backing.close(handle.fd)

    def note_stamp(self, caller: Caller, node: Node, before: Stamp, *, times_set: bool = False) -> None:
        """A change that left the bytes alone has been made: carry what knew the stamp before it."""
        if not self._desk.sessions:
            return
        after = backing.stamp(self._desk.inodes.descriptor(node))
        session = self._judge.session_of(caller)
        by = session.id if session is not None else None
        self._desk.sessions.stamp_changed(before, after, by, times_set=times_set)
        for handle in self._desk.handles.on(node):
            if handle.left == before and (not times_set or handle.caller.session == by):
                handle.left = after

    async def _note_read_locked(self, session: Session, node: Node, fd: int) -> None:
        """Record what the caller is about to be given, and tell if it is not what the session knew."""
        path = self._desk.inodes.path(node)
        record = session.find(node.file, (path,))
        stamp = backing.stamp(fd)
        if record and record.fingerprint.stamp == stamp and record.proved and not is_racy(record):
            session.put(record, self._desk.inodes.named_path(node))
            return
        seen = await self._judge.fingerprint_of(fd)
        if record and _is_external(record, seen):
            self._desk.announcer.tell(EventKind.CHANGED, session.id, path, then=record.fingerprint, now=seen)
        session.put(policy.read_record(seen, time.time_ns()), self._desk.inodes.named_path(node))

    async def _authorize_write_locked(
        self, session: Session, handle: Handle[Node], intent: Intent, operation: str
    ) -> None:
        node = handle.node
        if handle.grant is Grant.PENDING:
            finding = await self._judge.file_locked(handle.caller, session, node, intent, operation)
            self._grant(handle, finding.target, finding.stamp, knows=False)
            return
        stamp = backing.stamp(handle.fd)
        if handle.grant is Grant.UNCHECKED or handle.left == stamp or backing.links(handle.fd) == 0:
            return
        path = self._desk.inodes.path(node)
        finding = await self._judge.look(session, node, path)
        if finding.target is Target.KNOWN and _only_ctime_moved(handle.left, stamp):
            handle.left = finding.stamp
        elif self._judge.tier(path) is Tier.EXEMPT:
            handle.grant, handle.left = Grant.UNCHECKED, None
        else:
            handle.grant, handle.left = Grant.NONE, None
            reason = policy.refusal(finding.target) or Reason.MODIFIED
            self._judge.refuse(handle.caller, session, reason, operation, path, finding)

    def _grant(self, handle: Handle[Node], target: Target, stamp: Stamp, *, knows: bool) -> None:
        """An allowed write is checked from now on if the session knows the bytes it leaves standing."""
        known = target is Target.KNOWN or knows
        handle.grant = Grant.GIVEN if known else Grant.UNCHECKED
        handle.left = stamp if known else None

    def _note_written(self, session: Session, handle: Handle[Node], how: How = How.WRITE) -> None:
        """The session has changed the bytes: it knows them, and its other handles may go on."""
        node, before = handle.node, handle.left
        after = backing.stamp(handle.fd)
        self._bytes_changed(handle.caller, node)
        handle.wrote = True
        if handle.grant is not Grant.GIVEN:
            return
        handle.left = after
        for other in self._desk.handles.on(node):
            if other.caller.session == session.id and other.left == before:
                other.left = after
        earlier = session.get(node.file)
        kept = earlier.how if earlier is not None and earlier.how is How.CREATE else how
        session.put(policy.written_record(after, time.time_ns(), kept), self._desk.inodes.named_path(node))

    async def _finish_locked(self, session: Session, handle: Handle[Node]) -> None:
        """Take the digest of what the session wrote, unless somebody has changed it since."""
        record = session.get(handle.node.file)
        if record is None or record.fingerprint.digest is not None or not record.proved:
            return
        fd = backing.open_to_judge(handle.fd)
        seen = await self._judge.fingerprint_of(fd, close=True)
        current = session.get(handle.node.file)
        if current is record and seen.stamp == record.fingerprint.stamp:
            session.put(policy.closed_record(record, seen, time.time_ns()))

    def _note_free_write(self, handle: Handle[Node]) -> None:
        if not handle.wrote or self._desk.sessions:
            handle.wrote = True
            self._bytes_changed(handle.caller, handle.node)

    def _bytes_changed(self, caller: Caller, node: Node) -> None:
        """Everybody but the writer's session is in doubt from now on, whatever the clock says."""
        if not self._desk.sessions:
            return
        session = self._judge.session_of(caller)
        by = session.id if session is not None else None
        self._desk.announcer.changed_by(caller, node.file)
        self._desk.sessions.bytes_changed(node.file, by)
        for handle in self._desk.handles.on(node):
            if handle.left is not None and handle.caller.session != by:
                handle.left = None

    def _handle(self, fd: int, node: Node, caller: Caller, grant: Grant) -> Handle[Node]:
        return self._keep(Handle(fd, node, caller, grant))

    def _keep(self, handle: Handle[Node]) -> Handle[Node]:
        self._desk.inodes.hold(handle.node, handle.fd)
        return self._desk.handles.add(handle)


def _only_ctime_moved(left: Stamp | None, now: Stamp) -> bool:
    """Whether a change that stat shows may have left the bytes alone (chmod, link); they are compared then."""
    return left is not None and (left.size, left.mtime_ns) == (now.size, now.mtime_ns)


def _is_external(record: Record, seen: Fingerprint) -> bool:
    """Whether a record and what is read now differ in more than ctime."""
    then = record.fingerprint
    if by_stamp(record, seen.stamp) is None and then.digest == seen.digest:
        return then.stamp.mtime_ns != seen.stamp.mtime_ns or then.stamp.file != seen.stamp.file
    return then.stamp != seen.stamp or then.digest not in (None, seen.digest)
