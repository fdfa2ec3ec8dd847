"""pyfuse3's handlers: unpack, one call, pack. No decision is made here and no backing file touched unasked."""

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pyfuse3
import trio

from guardfs import backing
from guardfs.fuse_ops import packing, set_ids
from guardfs.fuse_ops.boundary import bounded, silent
from guardfs.guard import Guard
from guardfs.guard.names import Owner
from guardfs.handles import Directory, Handle
from guardfs.inodes import Node


def _owner(ctx: pyfuse3.RequestContext) -> Owner:
    return ctx.uid, ctx.gid


class Operations(pyfuse3.Operations):
    """All requests that pyfuse3 passes on, but two.

    access is the kernel's own under default_permissions; poll stays ENOSYS, after which the kernel treats
    files as always ready, which is what regular files are.
    """

    enable_acl = True
    enable_writeback_cache = False
    supports_dot_lookup = False

    def __init__(self, guard: Guard, log: Any) -> None:
        super().__init__()
        self._files = guard.files
        self._names = guard.names
        self._inodes = guard.desk.inodes
        self._handles = guard.desk.handles
        self.log = log

    @bounded
    async def lookup(
        self, parent_inode: pyfuse3.InodeT, name: pyfuse3.FileNameT, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        node, st = self._inodes.find(self._inodes.get(parent_inode), name)
        node.lookups += 1
        return packing.attributes(node, st)

    @silent
    async def forget(self, inode_list: Sequence[tuple[pyfuse3.InodeT, int]]) -> None:
        for number, lookups in inode_list:
            self._inodes.forget(number, lookups)

    @bounded
    async def getattr(self, inode: pyfuse3.InodeT, ctx: pyfuse3.RequestContext) -> pyfuse3.EntryAttributes:
        node = self._inodes.get(inode)
        return packing.attributes(node, self._inodes.stat(node))

    @bounded
    async def setattr(
        self,
        inode: pyfuse3.InodeT,
        attr: pyfuse3.EntryAttributes,
        fields: pyfuse3.SetattrFields,
        fh: pyfuse3.FileHandleT | None,
        ctx: pyfuse3.RequestContext,
    ) -> pyfuse3.EntryAttributes:
        node = self._inodes.get(inode)
        handle = None if fh is None else self._handles.file(fh)
        changes = packing.changes(attr, fields)
        if changes.size is not None:
            changes = set_ids.without_taken(ctx, self._inodes.stat(node), changes)
        await self._files.authorize_setattr(ctx.pid, node, changes, handle)
        return packing.attributes(node, self._inodes.stat(node))

    @bounded
    async def readlink(self, inode: pyfuse3.InodeT, ctx: pyfuse3.RequestContext) -> pyfuse3.FileNameT:
        target = backing.readlink(self._inodes.descriptor(self._inodes.get(inode)))
        return pyfuse3.FileNameT(target)

    @bounded
    async def mknod(
        self,
        parent_inode: pyfuse3.InodeT,
        name: pyfuse3.FileNameT,
        mode: pyfuse3.ModeT,
        rdev: int,
        ctx: pyfuse3.RequestContext,
    ) -> pyfuse3.EntryAttributes:
        parent = self._inodes.get(parent_inode)
        return self._new(await self._names.authorize_mknod(ctx.pid, (parent, name), mode, rdev, _owner(ctx)))

    @bounded
    async def mkdir(
        self,
        parent_inode: pyfuse3.InodeT,
        name: pyfuse3.FileNameT,
        mode: pyfuse3.ModeT,
        ctx: pyfuse3.RequestContext,
    ) -> pyfuse3.EntryAttributes:
        parent = self._inodes.get(parent_inode)
        return self._new(await self._names.authorize_mkdir(ctx.pid, (parent, name), mode, _owner(ctx)))

    @bounded
    async def symlink(
        self,
        parent_inode: pyfuse3.InodeT,
        name: pyfuse3.FileNameT,
        target: pyfuse3.FileNameT,
        ctx: pyfuse3.RequestContext,
    ) -> pyfuse3.EntryAttributes:
        parent = self._inodes.get(parent_inode)
        return self._new(await self._names.authorize_symlink(ctx.pid, (parent, name), target, _owner(ctx)))

    @bounded
    async def link(
        self,
        inode: pyfuse3.InodeT,
        new_parent_inode: pyfuse3.InodeT,
        new_name: pyfuse3.FileNameT,
        ctx: pyfuse3.RequestContext,
    ) -> pyfuse3.EntryAttributes:
        node, parent = self._inodes.get(inode), self._inodes.get(new_parent_inode)
        return self._new(await self._names.authorize_link(ctx.pid, node, (parent, new_name)))

    @bounded
    async def unlink(self, parent_inode: pyfuse3.InodeT, name: pyfuse3.FileNameT, ctx: pyfuse3.RequestContext) -> None:
        await self._names.authorize_unlink(ctx.pid, self._inodes.get(parent_inode), name)

    @bounded
    async def rmdir(self, parent_inode: pyfuse3.InodeT, name: pyfuse3.FileNameT, ctx: pyfuse3.RequestContext) -> None:
        self._names.rmdir(self._inodes.get(parent_inode), name)

    @bounded
    async def rename(
        self,
        parent_inode_old: pyfuse3.InodeT,
        name_old: pyfuse3.FileNameT,
        parent_inode_new: pyfuse3.InodeT,
        name_new: pyfuse3.FileNameT,
        flags: pyfuse3.FlagT,
        ctx: pyfuse3.RequestContext,
    ) -> None:
        old, new = self._inodes.get(parent_inode_old), self._inodes.get(parent_inode_new)
        await self._names.authorize_rename(ctx.pid, (old, name_old), (new, name_new), flags)

    @bounded
    async def open(self, inode: pyfuse3.InodeT, flags: pyfuse3.FlagT, ctx: pyfuse3.RequestContext) -> pyfuse3.FileInfo:
        handle = await self._files.authorize_open(ctx.pid, self._inodes.get(inode), flags)
        async with self._handed_over(handle):
            if flags & (os.O_ACCMODE | os.O_TRUNC):
                handle.takes = set_ids.taken_by_write(ctx, backing.stat(handle.fd))
            if flags & os.O_TRUNC:
                self._files.note_set_ids(handle)
            return _info(handle)

    @bounded
    async def create(
        self,
        parent_inode: pyfuse3.InodeT,
        name: pyfuse3.FileNameT,
        mode: pyfuse3.ModeT,
        flags: pyfuse3.FlagT,
        ctx: pyfuse3.RequestContext,
    ) -> tuple[pyfuse3.FileInfo, pyfuse3.EntryAttributes]:
        parent = self._inodes.get(parent_inode)
        handle = await self._files.authorize_create(ctx.pid, parent, name, flags, mode, _owner(ctx))
        async with self._handed_over(handle):
            return _info(handle), self._new(handle.node)

    @bounded
    async def read(self, fh: pyfuse3.FileHandleT, off: int, size: int) -> bytes:
        return await self._files.read(self._handles.file(fh), off, size)

    @bounded
    async def write(self, fh: pyfuse3.FileHandleT, off: int, buf: bytes) -> int:
        handle = self._handles.file(fh)
        written = await self._files.write(handle, off, buf)
        self._files.note_set_ids(handle)
        return written

    @bounded
    async def flush(self, fh: pyfuse3.FileHandleT) -> None:
        await self._files.flush(self._handles.file(fh))

    @bounded
    async def release(self, fh: pyfuse3.FileHandleT) -> None:
        await self._files.release(self._handles.file(fh))

    @bounded
    async def fsync(self, fh: pyfuse3.FileHandleT, datasync: bool) -> None:
        await trio.to_thread.run_sync(backing.sync, self._handles.file(fh).fd, datasync)

    @bounded
    async def opendir(self, inode: pyfuse3.InodeT, ctx: pyfuse3.RequestContext) -> pyfuse3.FileHandleT:
        node = self._inodes.get(inode)
        fd = backing.open_directory(self._inodes.descriptor(node))
        self._inodes.hold(node, fd)
        return pyfuse3.FileHandleT(self._handles.add_directory(Directory(fd, node)))

    @bounded
    async def readdir(self, fh: pyfuse3.FileHandleT, start_id: int, token: pyfuse3.ReaddirToken) -> None:
        directory = self._handles.directory(fh)
        if start_id == 0:
            directory.names = [b".", b"..", *backing.list_names(directory.fd)]
        for index in range(start_id, len(directory.names)):
            if not self._list(directory, directory.names[index], index + 1, token):
                return

    @bounded
    async def releasedir(self, fh: pyfuse3.FileHandleT) -> None:
        directory = self._handles.remove_directory(fh)
        self._inodes.let_go(directory.node, directory.fd)
        backing.close(directory.fd)

    @bounded
    async def fsyncdir(self, fh: pyfuse3.FileHandleT, datasync: bool) -> None:
        await trio.to_thread.run_sync(backing.sync, self._handles.directory(fh).fd, datasync)

    @bounded
    async def statfs(self, ctx: pyfuse3.RequestContext) -> pyfuse3.StatvfsData:
        return packing.file_system(backing.statvfs(self._inodes.descriptor(self._inodes.root)))

    @bounded
    async def getxattr(self, inode: pyfuse3.InodeT, name: pyfuse3.XAttrNameT, ctx: pyfuse3.RequestContext) -> bytes:
        return backing.get_xattr(self._inodes.descriptor(self._inodes.get(inode)), name)

    @bounded
    async def setxattr(
        self,
        inode: pyfuse3.InodeT,
        name: pyfuse3.XAttrNameT,
        value: bytes,
        ctx: pyfuse3.RequestContext,
    ) -> None:
        node = self._inodes.get(inode)
        self._files.set_xattr(ctx.pid, node, name, value)
        if name == set_ids.ACCESS_LIST:
            changes = set_ids.taken_by_access_list(ctx, self._inodes.stat(node))
            if changes is not None:
                await self._files.authorize_setattr(ctx.pid, node, changes, None)

    @bounded
    async def listxattr(self, inode: pyfuse3.InodeT, ctx: pyfuse3.RequestContext) -> Sequence[pyfuse3.XAttrNameT]:
        names = backing.list_xattrs(self._inodes.descriptor(self._inodes.get(inode)))
        # The kernel hides these from all but the privileged, and our own question was root's (xattr(7)).
        hidden = b"trusted." if ctx.uid else b"\0"
        return [pyfuse3.XAttrNameT(name) for name in names if not name.startswith(hidden)]

    @bounded
    async def removexattr(self, inode: pyfuse3.InodeT, name: pyfuse3.XAttrNameT, ctx: pyfuse3.RequestContext) -> None:
        self._files.set_xattr(ctx.pid, self._inodes.get(inode), name, None)

    @asynccontextmanager
    async def _handed_over(self, handle: Handle[Node]) -> AsyncIterator[None]:
        """The kernel releases only what it was given: after a failure the handle is closed here."""
        try:
            yield
        except BaseException:
            await self._files.release(handle)
            raise

    def _new(self, node: Node) -> pyfuse3.EntryAttributes:
        node.lookups += 1
        return packing.attributes(node, self._inodes.stat(node))

    def _list(self, directory: Directory[Node], name: bytes, next_id: int, token: pyfuse3.ReaddirToken) -> bool:
        """One entry of a listing; False when the reply is full. A name that has gone meanwhile is left out.

        ".." is never looked up by that name: from a directory below the root it leads to the mount itself.
        """
        if name in (b".", b".."):
            place = directory.node if name == b"." else self._inodes.parent(directory.node)
            entry = packing.attributes(place, self._inodes.stat(place))
            return pyfuse3.readdir_reply(token, pyfuse3.FileNameT(name), entry, next_id)
        try:
            st = backing.lookup(directory.fd, name)
        except OSError:
            return True  # Deleted since the listing was taken.
        node = self._inodes.see(directory.node, name, st)
        listed = pyfuse3.readdir_reply(token, pyfuse3.FileNameT(name), packing.attributes(node, st), next_id)
        if listed:
            node.lookups += 1
        else:
            self._inodes.release_if_unused(node)
        return listed


def _info(handle: Handle[Node]) -> pyfuse3.FileInfo:
    """keep_cache stays off: pages of an earlier state must never be served after this open."""
    return pyfuse3.FileInfo(fh=pyfuse3.FileHandleT(handle.id), direct_io=handle.direct, keep_cache=False)
