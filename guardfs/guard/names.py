"""Transactions on names: unlink, rename, link, and the ones that make something new.

A name is judged by what stands at it, looked at again under the lock; OSErrors and ``Refused`` pass upwards.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from guardfs import backing
from guardfs.core.intent import Intent
from guardfs.core.model import How
from guardfs.core.policy import written_record
from guardfs.guard.files import FileGuard
from guardfs.guard.judge import Desk, Judge
from guardfs.guard.sessions import Session
from guardfs.inodes import Node, stale
from guardfs.procs.census import Caller

RENAME_NOREPLACE = 1
RENAME_EXCHANGE = 2
"""renameat2(2), linux/fs.h."""
_TRIES = 16
"""How often a name that keeps changing under the lock is looked at before the kernel is sent back."""

Owner = tuple[int, int]


class NameGuard:
    """The family of operations on directories' entries."""

    def __init__(self, desk: Desk, judge: Judge, files: FileGuard) -> None:
        self._desk = desk
        self._judge = judge
        self._files = files

    async def authorize_unlink(self, tid: int, parent: Node, name: bytes) -> None:
        """Remove a name. Raises OSError as unlinkat(2), or Refused."""
        caller = self._judge.who(tid)
        session = self._judge.session_of(caller)
        path = self._desk.inodes.path_at(parent, name)
        async with self._judged_entry(caller, session, parent, name, Intent.DELETE, "delete") as node:
            before = backing.stamp(self._desk.inodes.descriptor(node))
            backing.unlink(self._desk.inodes.descriptor(parent), name)
            self._files.note_stamp(caller, node, before)
            self._note_removed(caller, session, parent, name, node, path)

    def rmdir(self, parent: Node, name: bytes) -> None:
        """Remove an empty directory: there are no bytes to lose."""
        node, _ = self._desk.inodes.find(parent, name)
        backing.rmdir(self._desk.inodes.descriptor(parent), name)
        self._desk.inodes.removed(parent, name, node)

    async def authorize_rename(
        self, tid: int, parent: Node, name: bytes, new_parent: Node, new_name: bytes, flags: int
    ) -> None:
        """Rename, replace or exchange. Raises OSError as renameat2(2), or Refused."""
        caller = self._judge.who(tid)
        session = self._judge.session_of(caller)
        inodes = self._desk.inodes
        old_path, new_path = inodes.path_at(parent, name), inodes.path_at(new_parent, new_name)
        moved, _ = inodes.find(parent, name)
        if session is not None:
            self._judge.policy_file(caller, session, "rename", old_path)
        if flags & RENAME_EXCHANGE:
            await self._exchange(caller, session, (parent, name, old_path), (new_parent, new_name, new_path))
            return
        replaces = not flags & RENAME_NOREPLACE
        async with self._judged_target(
            caller, session, moved, new_parent, new_name, new_path, replaces=replaces
        ) as replaced:
            before = backing.stamp(inodes.descriptor(moved))
            lost = backing.stamp(inodes.descriptor(replaced)) if replaced is not None else None
            backing.rename(inodes.descriptor(parent), name, inodes.descriptor(new_parent), new_name, flags)
            if replaced is moved:
                return
            if replaced is not None and lost is not None:
                self._files.note_stamp(caller, replaced, lost)
                self._note_removed(caller, session, new_parent, new_name, replaced, new_path)
            inodes.moved(moved, parent, name, new_parent, new_name)
            self._files.note_stamp(caller, moved, before)
            self._note_moved(caller, session, moved, old_path, new_path)

    async def _exchange(
        self,
        caller: Caller,
        session: Session | None,
        one: tuple[Node, bytes, bytes],
        other: tuple[Node, bytes, bytes],
    ) -> None:
        """Both names are judged, one inside the other's lock, in the order of their inodes."""
        inodes = self._desk.inodes
        first, second = sorted((one, other), key=lambda side: inodes.find(side[0], side[1])[0].file)
        async with (
            self._judged_entry(caller, session, first[0], first[1], Intent.REPLACE, "exchange") as a,
            self._judged_entry(caller, session, second[0], second[1], Intent.REPLACE, "exchange") as b,
        ):
            if inodes.find(first[0], first[1])[0] is not a:
                raise stale()
            before = backing.stamp(inodes.descriptor(a)), backing.stamp(inodes.descriptor(b))
            backing.rename(
                inodes.descriptor(first[0]),
                first[1],
                inodes.descriptor(second[0]),
                second[1],
                RENAME_EXCHANGE,
            )
            inodes.moved(a, first[0], first[1], second[0], second[1])
            inodes.moved(b, second[0], second[1], first[0], first[1])
            for node, stamp in zip((a, b), before, strict=True):
                self._files.note_stamp(caller, node, stamp)
            self._note_exchanged(session, a, b, first[2], second[2])

    def authorize_link(self, tid: int, node: Node, new_parent: Node, new_name: bytes) -> Node:
        """A further name for a file; the bytes stay. Raises OSError as linkat(2), or Refused."""
        caller = self._judge.who(tid)
        session = self._judge.session_of(caller)
        path = self._desk.inodes.path_at(new_parent, new_name)
        self._authorize_new(caller, session, new_parent, new_name, "link")
        before = backing.stamp(self._desk.inodes.descriptor(node))
        dir_fd = self._desk.inodes.descriptor(new_parent)
        backing.link(self._desk.inodes.descriptor(node), dir_fd, new_name)
        linked = self._desk.inodes.see(new_parent, new_name, backing.lookup(dir_fd, new_name))
        self._files.note_stamp(caller, linked, before)
        if session is not None and session.get(linked.file) is not None:
            session.name(path, linked.file)
        return linked

    def authorize_mknod(self, tid: int, parent: Node, name: bytes, mode: int, rdev: int, owner: Owner) -> Node:
        """A special file, or an empty regular one, which its session knows. Raises OSError or Refused."""
        session, dir_fd = self._making(tid, parent, name, "mknod")
        backing.mknod(dir_fd, name, mode, rdev)
        node = self._made(parent, name, owner, mode)
        if session is not None and node.is_regular:
            stamp = backing.stamp(self._desk.inodes.descriptor(node))
            session.put(written_record(stamp, stamp.ctime_ns, How.CREATE), self._desk.inodes.path(node))
        return node

    def authorize_mkdir(self, tid: int, parent: Node, name: bytes, mode: int, owner: Owner) -> Node:
        """A new directory. Raises OSError as mkdirat(2), or Refused at guardfs's own policy."""
        _, dir_fd = self._making(tid, parent, name, "mkdir")
        backing.mkdir(dir_fd, name, mode)
        return self._made(parent, name, owner, mode)

    def authorize_symlink(self, tid: int, parent: Node, name: bytes, target: bytes, owner: Owner) -> Node:
        """A new symlink. Raises OSError as symlinkat(2), or Refused at guardfs's own policy."""
        _, dir_fd = self._making(tid, parent, name, "symlink")
        backing.symlink(dir_fd, name, target)
        return self._made(parent, name, owner, None)

    def _making(self, tid: int, parent: Node, name: bytes, operation: str) -> tuple[Session | None, int]:
        caller = self._judge.who(tid)
        session = self._judge.session_of(caller)
        self._authorize_new(caller, session, parent, name, operation)
        return session, self._desk.inodes.descriptor(parent)

    def _authorize_new(
        self, caller: Caller, session: Session | None, parent: Node, name: bytes, operation: str
    ) -> None:
        if session is None or self._stands(parent, name):
            return  # The backing directory answers EEXIST: none of these replaces anything.
        path = self._desk.inodes.path_at(parent, name)
        if operation in ("link", "mknod"):
            self._judge.free_name(caller, session, Intent.CREATE, operation, path)
        else:
            self._judge.policy_file(caller, session, operation, path)

    def _made(self, parent: Node, name: bytes, owner: Owner, mode: int | None) -> Node:
        inodes = self._desk.inodes
        dir_fd = inodes.descriptor(parent)
        node, _ = inodes.find(parent, name)
        backing.give_to(inodes.descriptor(node), *owner, backing.stat(dir_fd), mode)
        return node

    def _stands(self, parent: Node, name: bytes) -> bool:
        return backing.exists(self._desk.inodes.descriptor(parent), name)

    @asynccontextmanager
    async def _judged_entry(
        self,
        caller: Caller,
        session: Session | None,
        parent: Node,
        name: bytes,
        intent: Intent,
        operation: str,
    ) -> AsyncIterator[Node]:
        """What stands at a name, judged and locked if it has bytes to lose, and standing there still."""
        inodes = self._desk.inodes
        path = inodes.path_at(parent, name)
        for _ in range(_TRIES):
            node, _ = inodes.find(parent, name)
            if session is None or not node.is_regular:
                if session is not None:
                    self._judge.policy_file(caller, session, operation, path)
                yield node
                return
            async with self._desk.locks.holding(node.file):
                await self._judge.file_locked(caller, session, node, intent, operation, path)
                if inodes.find(parent, name)[0] is node:
                    yield node
                    return
        raise stale()

    @asynccontextmanager
    async def _judged_target(
        self,
        caller: Caller,
        session: Session | None,
        moved: Node,
        parent: Node,
        name: bytes,
        path: bytes,
        *,
        replaces: bool,
    ) -> AsyncIterator[Node | None]:
        """What a rename is about to replace; None for a free name, or where it must not replace anything."""
        inodes = self._desk.inodes
        stands = self._stands(parent, name)
        if not stands or not replaces:
            if session is not None and not stands:
                self._judge.free_name(caller, session, Intent.REPLACE, "rename onto", path)
            yield None
        elif inodes.find(parent, name)[0] is moved:
            yield moved  # Two names of one file: rename(2) does nothing.
        else:
            async with self._judged_entry(caller, session, parent, name, Intent.REPLACE, "rename onto") as node:
                yield node

    def _note_removed(
        self, caller: Caller, session: Session | None, parent: Node, name: bytes, node: Node, path: bytes
    ) -> None:
        inodes = self._desk.inodes
        last = backing.links(inodes.descriptor(node)) == 0
        if session is not None:
            session.unname(path)
            if last:
                session.drop(node.file)
        if self._desk.sessions:
            self._desk.announcer.changed_by(caller, path)
        inodes.removed(parent, name, node)

    def _note_moved(
        self, caller: Caller, session: Session | None, node: Node, old_path: bytes, new_path: bytes
    ) -> None:
        for known in self._desk.sessions:
            own_act = known is session
            known.move(node.file, new_path)
            if own_act:
                known.unname(old_path)
            if not node.is_regular:
                known.move_below(old_path, new_path, own_act=own_act)
        if self._desk.sessions:
            self._desk.announcer.changed_by(caller, old_path, new_path)

    def _note_exchanged(self, session: Session | None, a: Node, b: Node, a_path: bytes, b_path: bytes) -> None:
        if session is None:
            return
        for node, path in ((b, a_path), (a, b_path)):
            session.unname(path)
            session.move(node.file, path)
