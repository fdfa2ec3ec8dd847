"""Transactions on names: unlink, rename, link, and the ones that make something new.

A name is judged by what stands at it, looked at again under the lock; OSErrors and ``Refused`` pass upwards.
"""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from guardfs import backing
from guardfs.core.intent import Intent
from guardfs.core.model import Fingerprint, How, Record, Stamp
from guardfs.core.verdict import Reason
from guardfs.guard.judge import Desk, Judge
from guardfs.guard.notes import Notes
from guardfs.guard.sessions import Session
from guardfs.inodes import Node, stale
from guardfs.procs.census import Caller

RENAME_NOREPLACE = 1
RENAME_EXCHANGE = 2
"""renameat2(2), linux/fs.h."""
_TRIES = 16
"""How often a name that keeps changing under the lock is looked at before the kernel is sent back."""

Owner = tuple[int, int]
Entry = tuple[Node, bytes]
"""A directory and a name in it."""


class NameGuard:
    """The family of operations on directories' entries."""

    def __init__(self, desk: Desk, judge: Judge, notes: Notes) -> None:
        self._desk = desk
        self._judge = judge
        self._notes = notes

    async def authorize_unlink(self, tid: int, parent: Node, name: bytes) -> None:
        """Remove a name. Raises OSError as unlinkat(2), or Refused."""
        caller = self._judge.who(tid)
        session = self._judge.session_of(caller)
        async with self._judged_entry(caller, session, (parent, name), Intent.DELETE, "delete") as node:
            before = backing.stamp(self._desk.inodes.descriptor(node))
            backing.unlink(self._desk.inodes.descriptor(parent), name)
            self._notes.stamp_changed(caller, node, before)
            self._notes.removed(caller, session, parent, name, node)

    def rmdir(self, parent: Node, name: bytes) -> None:
        """Remove an empty directory: there are no bytes to lose."""
        node, _ = self._desk.inodes.find(parent, name)
        backing.rmdir(self._desk.inodes.descriptor(parent), name)
        self._desk.inodes.removed(parent, name, node)

    async def authorize_rename(self, tid: int, old: Entry, new: Entry, flags: int) -> None:
        """Rename, replace or exchange. Raises OSError as renameat2(2), or Refused."""
        caller = self._judge.who(tid)
        session = self._judge.session_of(caller)
        if session is not None:
            self._judge.policy_file(caller, session, "rename", self._path(old))
        if flags & RENAME_EXCHANGE:
            await self._exchange(caller, session, old, new)
        else:
            await self._rename(caller, session, old, new, flags)

    async def _rename(self, caller: Caller, session: Session | None, old: Entry, new: Entry, flags: int) -> None:
        moved = self._find(old)
        replaces = not flags & RENAME_NOREPLACE
        async with self._judged_target(caller, session, moved, new, replaces=replaces) as replaced:
            if self._find(old) is not moved:
                raise stale()
            if replaced is moved:
                self._act(old, new, flags)
                return
            old_path, new_path = self._path(old), self._path(new)
            before = backing.stamp(self._desk.inodes.descriptor(moved))
            lost = backing.stamp(self._desk.inodes.descriptor(replaced)) if replaced is not None else None
            self._act(old, new, flags)
            if replaced is not None and lost is not None:
                self._notes.stamp_changed(caller, replaced, lost)
                self._notes.removed(caller, session, *new, replaced)
            self._desk.inodes.moved(moved, *old, *new)
            self._notes.stamp_changed(caller, moved, before)
            self._notes.moved(caller, session, moved, old_path, new_path)

    async def _exchange(self, caller: Caller, session: Session | None, old: Entry, new: Entry) -> None:
        """Both files are locked in the order of their inodes, judged, and found in their places still."""
        a, b = self._find(old), self._find(new)
        a_path, b_path = self._path(old), self._path(new)
        async with AsyncExitStack() as stack:
            for file in sorted({a.file, b.file}):
                await stack.enter_async_context(self._desk.locks.holding(file))
            before = self._stamps(a, b)
            if session is not None:
                for node, path in ((a, a_path), (b, b_path)):
                    await self._judge_place_locked(caller, session, node, path, Intent.REPLACE, "exchange")
            if (self._find(old), self._find(new)) != (a, b) or self._stamps(a, b) != before:
                raise stale()  # Something came in while the other one was judged.
            self._act(old, new, RENAME_EXCHANGE)
            self._desk.inodes.moved(a, *old, *new)
            self._desk.inodes.moved(b, *new, *old)
            for node, stamp in zip((a, b), before, strict=True):
                self._notes.stamp_changed(caller, node, stamp)
            self._notes.exchanged(caller, session, (a, a_path), (b, b_path))

    async def authorize_link(self, tid: int, node: Node, new: Entry) -> Node:
        """A further name for a file; the bytes stay. Raises OSError as linkat(2), or Refused."""
        caller = self._judge.who(tid)
        session = self._judge.session_of(caller)
        path = self._path(new)
        if session is not None and self._judge.is_policy(node):
            self._judge.refuse(caller, session, Reason.POLICY, "link", path)
        await self._authorize_new(caller, session, new, "link")
        inodes = self._desk.inodes
        before = backing.stamp(inodes.descriptor(node))
        dir_fd = inodes.descriptor(new[0])
        backing.link(inodes.descriptor(node), dir_fd, new[1])
        linked = inodes.see(*new, backing.lookup(dir_fd, new[1]))
        self._notes.stamp_changed(caller, linked, before)
        if session is not None and session.get(linked.file) is not None:
            session.name(path, linked.file)
        return linked

    async def authorize_mknod(self, tid: int, new: Entry, mode: int, rdev: int, owner: Owner) -> Node:
        """A special file, or an empty regular one, which its session knows. Raises OSError or Refused."""
        session, dir_fd = await self._making(tid, new, "mknod")
        backing.mknod(dir_fd, new[1], mode, rdev)
        node = self._made(new, owner, mode)
        if session is not None and node.is_regular:
            stamp = backing.stamp(self._desk.inodes.descriptor(node))
            empty = Fingerprint(stamp, backing.EMPTY_DIGEST)
            session.put(Record(empty, stamp.ctime_ns, How.CREATE), self._path(new))
        return node

    async def authorize_mkdir(self, tid: int, new: Entry, mode: int, owner: Owner) -> Node:
        """A new directory. Raises OSError as mkdirat(2), or Refused at guardfs's own policy."""
        _, dir_fd = await self._making(tid, new, "mkdir")
        backing.mkdir(dir_fd, new[1], mode)
        return self._made(new, owner, mode)

    async def authorize_symlink(self, tid: int, new: Entry, target: bytes, owner: Owner) -> Node:
        """A new symlink. Raises OSError as symlinkat(2), or Refused at guardfs's own policy."""
        _, dir_fd = await self._making(tid, new, "symlink")
        backing.symlink(dir_fd, new[1], target)
        return self._made(new, owner, None)

    async def _making(self, tid: int, new: Entry, operation: str) -> tuple[Session | None, int]:
        caller = self._judge.who(tid)
        session = self._judge.session_of(caller)
        await self._authorize_new(caller, session, new, operation)
        return session, self._desk.inodes.descriptor(new[0])

    async def _authorize_new(self, caller: Caller, session: Session | None, new: Entry, operation: str) -> None:
        if session is None or self._stands(new):
            return  # The backing directory answers EEXIST: none of these replaces anything.
        if operation in ("link", "mknod"):
            await self._judge.free_name(caller, session, Intent.CREATE, operation, self._path(new))
        else:
            self._judge.policy_file(caller, session, operation, self._path(new))

    def _made(self, new: Entry, owner: Owner, mode: int | None) -> Node:
        inodes = self._desk.inodes
        node = self._find(new)
        backing.give_to(inodes.descriptor(node), *owner, backing.stat(inodes.descriptor(new[0])), mode)
        return node

    def _act(self, old: Entry, new: Entry, flags: int) -> None:
        inodes = self._desk.inodes
        backing.rename(inodes.descriptor(old[0]), old[1], inodes.descriptor(new[0]), new[1], flags)

    def _find(self, entry: Entry) -> Node:
        return self._desk.inodes.find(*entry)[0]

    def _path(self, entry: Entry) -> bytes:
        return self._desk.inodes.path_at(*entry)

    def _stands(self, entry: Entry) -> bool:
        return backing.exists(self._desk.inodes.descriptor(entry[0]), entry[1])

    def _stamps(self, *nodes: Node) -> tuple[Stamp, ...]:
        return tuple(backing.stamp(self._desk.inodes.descriptor(node)) for node in nodes)

    async def _judge_place_locked(
        self, caller: Caller, session: Session, node: Node, path: bytes, intent: Intent, operation: str
    ) -> None:
        """Judge what stands at a path: only regular files have bytes to lose."""
        if node.is_regular:
            await self._judge.file_locked(caller, session, node, intent, operation, path)
        else:
            self._judge.policy_file(caller, session, operation, path)

    @asynccontextmanager
    async def _judged_entry(
        self, caller: Caller, session: Session | None, entry: Entry, intent: Intent, operation: str
    ) -> AsyncIterator[Node]:
        """What stands at a name, judged and locked if somebody tracked asks, and standing there still."""
        if session is None:
            yield self._find(entry)
            return
        for _ in range(_TRIES):
            node = self._find(entry)
            async with self._desk.locks.holding(node.file):
                await self._judge_place_locked(caller, session, node, self._path(entry), intent, operation)
                if self._find(entry) is node:
                    yield node
                    return
        raise stale()

    @asynccontextmanager
    async def _judged_target(
        self, caller: Caller, session: Session | None, moved: Node, new: Entry, *, replaces: bool
    ) -> AsyncIterator[Node | None]:
        """What a rename is about to replace; None for a free name, or where it must not replace anything."""
        for _ in range(_TRIES):
            stands = self._stands(new)
            if stands and replaces:
                break
            if session is not None and not stands:
                await self._judge.free_name(caller, session, Intent.REPLACE, "rename onto", self._path(new))
            if not replaces or not self._stands(new):
                yield None
                return
        if self._find(new) is moved:
            yield moved  # Two names of one file: rename(2) does nothing.
        else:
            async with self._judged_entry(caller, session, new, Intent.REPLACE, "rename onto") as node:
                yield node
