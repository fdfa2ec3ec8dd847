"""Transactions on open files: open, create, read, write, set attributes, flush, release.

Each method takes plain values and returns plain values or a handle; OSErrors and ``Refused`` pass upwards.
"""

import errno
import os
import time
from dataclasses import dataclass

from guardfs import backing
from guardfs.config.settings import Credit
from guardfs.core import policy
from guardfs.core.intent import O_ACCMODE, O_APPEND, O_EXCL, O_RDWR, Intent, OpenIntent, of_open
from guardfs.core.model import How, Stamp
from guardfs.core.policy import Target
from guardfs.core.verdict import Reason
from guardfs.guard.judge import Desk, Finding, Judge
from guardfs.guard.notes import Notes
from guardfs.guard.sessions import Session
from guardfs.handles import Grant, Handle
from guardfs.inodes import Node, stale
from guardfs.procs.census import Caller

_GROWING_S = 1.0
"""Seconds for which a reader goes round the page cache after somebody else's write.

The kernel raises the size that it cuts cached reads at only when the writer runs again, which may be after this
daemon has shown the new bytes to the reader's record.
"""


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

    def __init__(self, desk: Desk, judge: Judge, notes: Notes) -> None:
        self._desk = desk
        self._judge = judge
        self._notes = notes

    async def authorize_open(self, tid: int, node: Node, flags: int) -> Handle[Node]:
        """Open a node as its caller asked, judged first. Raises OSError as open(2), or Refused."""
        if not node.is_regular:
            raise stale()
        caller = self._judge.who(tid)
        session = self._judge.session_of(caller)
        intent = of_open(flags)
        fd = backing.open_file(self._desk.inodes.descriptor(node), flags)
        try:
            handle = Handle(fd, node, caller, Grant.FREE)
            handle.appends = bool(flags & O_APPEND)
            if session is None:
                return self._opened_freely(handle, intent)
            async with self._desk.locks.holding(node.file):
                return await self._open_locked(session, handle, intent)
        except BaseException:
            backing.close(fd)  # No handle was made of it.
            raise

    def _opened_freely(self, handle: Handle[Node], intent: OpenIntent) -> Handle[Node]:
        if intent.truncates:
            backing.truncate(handle.fd, 0)
            handle.node.told_size = 0
            self._notes.freely_written(handle)
        return self._keep(handle)

    async def _open_locked(self, session: Session, handle: Handle[Node], intent: OpenIntent) -> Handle[Node]:
        node = handle.node
        handle.grant = Grant.PENDING if intent.later else Grant.NONE
        counts = self._judge.counts(handle.caller)
        at_first_byte = self._desk.rulebook.settings.reads.credit is Credit.BYTES
        if intent.now is not None:
            finding = await self._judge.file_locked(handle.caller, session, node, intent.now, "open for writing")
            self._give(handle, finding, intent.now, knows=intent.truncates)
        elif intent.reads_now and counts and not at_first_byte:
            await self._notes.read_locked(session, node, handle.fd)
            handle.direct = node.changed_by != session.id and time.monotonic() - node.changed_s < _GROWING_S
        handle.counts_read = counts and (intent.reads_later or (intent.reads_now and at_first_byte))
        if handle.counts_read and backing.size(handle.fd) == 0:
            await self._read_first_locked(session, handle)  # The kernel asks for no byte of an empty file.
        handle.will_write = intent.later or (Intent.APPEND if intent.now is Intent.APPEND else Intent.WRITE)
        if intent.truncates:
            backing.truncate(handle.fd, 0)
            node.told_size = 0
            self._notes.written(session, handle)
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
            await self._judge.free_name(caller, session, Intent.CREATE, "create", path)
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
            handle = Handle(fd, node, caller, Grant.FREE)
            handle.appends = bool(flags & O_APPEND)
            return self._created(session, handle, path, reads=flags & O_ACCMODE == O_RDWR)
        except BaseException:
            backing.close(fd)  # No handle was made of it; the new empty file is what the caller asked for.
            raise

    def _created(self, session: Session | None, handle: Handle[Node], path: bytes, *, reads: bool) -> Handle[Node]:
        handle.node.told_size = 0
        if session is not None:
            handle.grant = Grant.GIVEN
            handle.counts_read = reads
            self._notes.written(session, handle, How.CREATE)
        elif self._desk.sessions:
            self._desk.announcer.changed_by(handle.caller, handle.node.file, path)
        return self._keep(handle)

    async def read(self, handle: Handle[Node], offset: int, size: int) -> bytes:
        """Bytes of an open file; the first read of an O_RDWR handle makes a record.

        Pages that others fetch would keep such a first read from arriving here, so they are dropped again.
        """
        if handle.counts_read:
            session = self._judge.session_of(handle.caller)
            if session is not None:
                async with self._desk.locks.holding(handle.node.file):
                    await self._read_first_locked(session, handle)
        if any(other.counts_read for other in self._desk.handles.on(handle.node)):
            self._desk.drop_pages(handle.node.number)
        return backing.pread(handle.fd, size, offset)

    async def _read_first_locked(self, session: Session, handle: Handle[Node]) -> None:
        handle.counts_read = False
        await self._notes.read_locked(session, handle.node, handle.fd)

    async def write(self, handle: Handle[Node], offset: int, data: bytes) -> int:
        """Write through a handle, judged at the first write and checked at each. Raises OSError or Refused."""
        if handle.grant is Grant.FREE:
            written = self._append_or_write(handle, offset, data)
            self._notes.freely_written(handle)
            return written
        session = self._living_session(handle)
        async with self._desk.locks.holding(handle.node.file):
            intent = handle.will_write
            if handle.grant is Grant.APPEND and offset < backing.size(handle.fd) and not self._is_late(handle, offset):
                intent = Intent.WRITE
            await self._authorize_write_locked(session, handle, intent, "write")
            try:
                return self._append_or_write(handle, offset, data)
            finally:
                # A write that failed half-way (ENOSPC) has changed the file as well, and nobody else has.
                self._notes.written(session, handle)

    def _append_or_write(self, handle: Handle[Node], offset: int, data: bytes) -> int:
        """Write where the kernel says, or at the real end if it appends to an end that has moved on below."""
        node = handle.node
        at = offset
        if self._is_late(handle, offset):
            at = backing.size(handle.fd)
            self._desk.drop_pages(node.number)
        written = backing.pwrite(handle.fd, data, at)
        node.told_size = max(node.told_size, offset + written)
        return written

    def _is_late(self, handle: Handle[Node], offset: int) -> bool:
        """Whether an append goes to an end that others have moved on: the kernel's size is what it was told."""
        return handle.appends and offset == handle.node.told_size < backing.size(handle.fd)

    async def authorize_setattr(self, tid: int, node: Node, changes: Changes, handle: Handle[Node] | None) -> None:
        """Change size, mode, owner or times; only the size is judged. Raises OSError or Refused."""
        caller = self._judge.who(tid)
        if changes.size is not None:
            await self._resize(caller, node, changes.size, handle)
        fd = self._desk.inodes.descriptor(node)
        before = backing.stamp(fd)
        if changes.uid is not None or changes.gid is not None:
            backing.chown(fd, _or_keep(changes.uid), _or_keep(changes.gid))
        if changes.mode is not None:
            backing.chmod(fd, changes.mode)
        if changes.atime_ns is not None or changes.mtime_ns is not None:
            backing.utimens(fd, changes.atime_ns, changes.mtime_ns)
        self._notes.stamp_changed(caller, node, before, times_set=changes.mtime_ns is not None)

    def note_set_ids(self, handle: Handle[Node]) -> None:
        """Take the set-ID bits that a write through a handle costs: a part of that write, so nothing is judged.

        Once is enough, since the next write finds none.
        """
        if not handle.takes:
            return
        fd = self._desk.inodes.descriptor(handle.node)
        before = backing.stamp(fd)
        backing.chmod(fd, backing.stat(fd).st_mode & ~handle.takes)
        handle.takes = 0
        self._notes.stamp_changed(handle.caller, handle.node, before)

    def set_xattr(self, tid: int, node: Node, name: bytes, value: bytes | None) -> None:
        """Set an extended attribute, or remove it for None. Raises OSError as setxattr(2)."""
        caller = self._judge.who(tid)
        fd = self._desk.inodes.descriptor(node)
        before = backing.stamp(fd)
        if value is None:
            backing.remove_xattr(fd, name)
        else:
            backing.set_xattr(fd, name, value)
        self._notes.stamp_changed(caller, node, before)

    async def _resize(self, caller: Caller, node: Node, size: int, handle: Handle[Node] | None) -> None:
        if handle is None:
            await self._truncate_by_name(caller, node, size)
        elif handle.grant is Grant.FREE:
            backing.truncate(handle.fd, size)
            self._notes.freely_written(handle)
        else:
            session = self._living_session(handle)
            async with self._desk.locks.holding(node.file):
                await self._authorize_write_locked(session, handle, Intent.TRUNCATE, "truncate")
                try:
                    backing.truncate(handle.fd, size)
                finally:
                    self._notes.written(session, handle)

    async def _truncate_by_name(self, caller: Caller, node: Node, size: int) -> None:
        """truncate(2): a private descriptor lives for this one act."""
        session = self._judge.session_of(caller)
        fd = backing.open_to_write(self._desk.inodes.descriptor(node))
        try:
            handle = Handle(fd, node, caller, Grant.FREE)
            if session is None:
                backing.truncate(fd, size)
                self._notes.freely_written(handle)
                return
            async with self._desk.locks.holding(node.file):
                finding = await self._judge.file_locked(caller, session, node, Intent.TRUNCATE, "truncate")
                self._give(handle, finding, Intent.TRUNCATE, knows=size == 0)
                backing.truncate(fd, size)
                self._notes.written(session, handle)
                await self._notes.closed_locked(session, handle)
        finally:
            backing.close(fd)

    async def flush(self, handle: Handle[Node]) -> None:
        """One of a handle's descriptors is closed: what was written through it becomes known by its bytes."""
        session = self._judge.session_of(handle.caller)
        if handle.wrote and handle.grant is not Grant.FREE and session is not None:
            async with self._desk.locks.holding(handle.node.file):
                await self._notes.closed_locked(session, handle)

    async def release(self, handle: Handle[Node]) -> None:
        """The last descriptor is closed. Nobody waits for the answer."""
        try:
            await self.flush(handle)
        finally:
            self._desk.handles.remove(handle.id)
            self._desk.inodes.let_go(handle.node, handle.fd)
            backing.close(handle.fd)

    def _living_session(self, handle: Handle[Node]) -> Session:
        """The session that a tracked handle answers to. Raises OSError(EIO) when it has ended: nobody could say."""
        session = self._judge.session_of(handle.caller)
        if session is None:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return session

    async def _authorize_write_locked(
        self, session: Session, handle: Handle[Node], intent: Intent, operation: str
    ) -> None:
        stamp = backing.stamp(handle.fd)
        if backing.links(handle.fd) == 0 or handle.left == stamp:
            return
        if handle.grant in (Grant.UNCHECKED, Grant.APPEND) and session.get(handle.node.file) is not None:
            await self._know_locked(session, handle, intent)
        if handle.grant is Grant.UNCHECKED:
            return
        if handle.grant is Grant.PENDING or (handle.grant is Grant.APPEND and intent is not Intent.APPEND):
            await self._judge_first_write_locked(session, handle, intent, operation)
        elif handle.grant is not Grant.APPEND and handle.left != stamp:
            await self._recheck_locked(session, handle, intent, operation, stamp)

    async def _know_locked(self, session: Session, handle: Handle[Node], intent: Intent) -> None:
        """The session has come to know a file that it may write anyway: its own write must not undo that."""
        finding = await self._judge.look(session, handle.node, self._desk.inodes.path(handle.node))
        if finding.target is Target.KNOWN:
            self._give(handle, finding, intent, knows=False)

    async def _judge_first_write_locked(
        self, session: Session, handle: Handle[Node], intent: Intent, operation: str
    ) -> None:
        try:
            finding = await self._judge.file_locked(handle.caller, session, handle.node, intent, operation)
        except BaseException:
            self._desk.drop_pages(handle.node.number)
            raise
        self._give(handle, finding, intent, knows=False)

    async def _recheck_locked(
        self, session: Session, handle: Handle[Node], intent: Intent, operation: str, stamp: Stamp
    ) -> None:
        """The file is not as this handle left it: go on only if its bytes are."""
        node = handle.node
        path = self._desk.inodes.path(node)
        finding = await self._judge.look(session, node, path)
        if finding.target is Target.KNOWN and _only_ctime_moved(handle.left, stamp):
            self._notes.left(handle, finding.stamp)
        elif await self._judge.excuses(handle.caller, node, intent, finding):
            handle.grant = Grant.APPEND if intent is Intent.APPEND else Grant.UNCHECKED
            handle.left = None
        else:
            self._withdraw(handle)
            reason = policy.refusal(finding.target) or Reason.MODIFIED
            shown = self._judge.shown(node, path, finding)
            self._judge.refuse(handle.caller, session, reason, operation, path, shown)
            handle.grant = Grant.UNCHECKED  # Only observed.

    def _withdraw(self, handle: Handle[Node]) -> None:
        """What a shared mapping stored is in the page cache, and must not be shown to anybody."""
        handle.grant, handle.left = Grant.NONE, None
        self._desk.drop_pages(handle.node.number)

    def _give(self, handle: Handle[Node], finding: Finding, intent: Intent, *, knows: bool) -> None:
        """An allowed write is checked from now on if the session knows the bytes that it leaves standing."""
        if finding.target is Target.KNOWN or knows:
            handle.grant, handle.left = Grant.GIVEN, finding.stamp
        else:
            handle.grant = Grant.APPEND if intent is Intent.APPEND else Grant.UNCHECKED

    def _keep(self, handle: Handle[Node]) -> Handle[Node]:
        self._desk.inodes.hold(handle.node, handle.fd)
        return self._desk.handles.add(handle)


def _or_keep(number: int | None) -> int:
    """chown(2) leaves alone what is given as -1."""
    return -1 if number is None else number


def _only_ctime_moved(left: Stamp | None, now: Stamp) -> bool:
    """Whether a change that stat shows may have left the bytes alone (chmod, link); they are compared then."""
    return left is not None and (left.size, left.mtime_ns) == (now.size, now.mtime_ns)
