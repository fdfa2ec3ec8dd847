"""The only module that touches the backing tree.

Every call is relative to a descriptor and never follows a symlink in a name; a descriptor opened with O_PATH
is reopened or changed through ``/proc/self/fd``, which leads to that inode and to nothing else. Must not know
sessions, verdicts or FUSE. OSErrors pass through: their errno is the caller's answer.
"""

import ctypes
import fcntl
import hashlib
import os
import resource
from stat import S_IMODE, S_ISGID, S_ISREG, S_ISUID

from guardfs.core.model import FileId, Fingerprint, Stamp

PATH_FLAGS = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_BLOCK = 1 << 20
"""Bytes hashed per read."""
EMPTY_DIGEST = hashlib.sha256().digest()
INLINE_HASH_LIMIT = 256 << 10
"""Bytes up to which hashing takes less time than a trip to a worker thread and back is worth."""

_libc = ctypes.CDLL(None, use_errno=True)
_AT_FDCWD = -100
_UTIME_OMIT = (1 << 30) - 2


class _Timespec(ctypes.Structure):
    _fields_ = (("sec", ctypes.c_long), ("nsec", ctypes.c_long))


def _check(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _link(fd: int) -> str:
    """The magic link to an open descriptor's inode (proc_pid_fd(5))."""
    return f"/proc/self/fd/{fd}"


_devices: dict[int, int] = {}
"""One number object for each device, since every known file has one."""


def file_id(st: os.stat_result) -> FileId:
    """Which inode a stat result is of."""
    return FileId(_devices.setdefault(st.st_dev, st.st_dev), st.st_ino)


def stamp_of(st: os.stat_result) -> Stamp:
    """The part of a stat result that says whether content may have changed."""
    return Stamp(file_id(st), st.st_size, st.st_mtime_ns, st.st_ctime_ns)


def stat(fd: int) -> os.stat_result:
    """The present attributes behind a descriptor."""
    return os.fstat(fd)


def size(fd: int) -> int:
    """The present size in bytes."""
    return os.fstat(fd).st_size


def is_regular(fd: int) -> bool:
    """Whether a descriptor leads to a regular file."""
    return S_ISREG(os.fstat(fd).st_mode)


def links(fd: int) -> int:
    """How many names the inode behind a descriptor has left."""
    return os.fstat(fd).st_nlink


def close(fd: int) -> None:
    """Give a descriptor back."""
    os.close(fd)


def pread(fd: int, length: int, offset: int) -> bytes:
    """Read bytes at an offset."""
    return os.pread(fd, length, offset)


def pwrite(fd: int, data: bytes, offset: int) -> int:
    """Write at an offset; how many bytes were taken."""
    return os.pwrite(fd, data, offset)


def stamp(fd: int) -> Stamp:
    """The present stamp of an open descriptor."""
    return stamp_of(os.fstat(fd))


def descriptor_limit() -> int:
    """How many descriptors this process may have."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def open_root(path: str) -> int:
    """The descriptor that everything else is relative to; open it before anything is mounted."""
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def open_path(dir_fd: int, name: bytes) -> int:
    """Pin what stands at a name, whatever it is, without opening it."""
    return os.open(name, PATH_FLAGS, dir_fd=dir_fd)


def open_below(dir_fd: int, path: bytes) -> int:
    """Pin what stands at a relative path, name by name and through no symlink."""
    fd = os.dup(dir_fd)
    for name in path.split(b"/"):
        try:
            below = open_path(fd, name)
        finally:
            os.close(fd)
        fd = below
    return fd


def lookup(dir_fd: int, name: bytes) -> os.stat_result:
    """What stands at a name; a symlink is itself."""
    return os.stat(name, dir_fd=dir_fd, follow_symlinks=False)


def exists(dir_fd: int, name: bytes) -> bool:
    """Whether anything stands at a name."""
    try:
        lookup(dir_fd, name)
    except FileNotFoundError:
        return False
    return True


def reopen(fd: int, flags: int) -> int:
    """A new open of the inode behind a descriptor, with its own access mode and offset."""
    return os.open(_link(fd), (flags & ~(os.O_NOFOLLOW | os.O_CREAT | os.O_EXCL)) | os.O_CLOEXEC)


def open_file(fd: int, flags: int) -> int:
    """A backing descriptor for a handle, with the opener's access mode.

    O_TRUNC is taken out because a verdict comes first, O_APPEND because the kernel sends absolute offsets,
    O_DIRECT because the buffers of a FUSE request are not aligned.
    """
    return reopen(fd, flags & ~(os.O_TRUNC | os.O_APPEND | os.O_DIRECT))


def open_to_judge(fd: int) -> int:
    """A private descriptor to read the bytes behind another; looking leaves no mark on atime where it can."""
    try:
        return reopen(fd, os.O_RDONLY | os.O_NONBLOCK | os.O_NOATIME)
    except PermissionError:
        # O_NOATIME is for the owner and root only (open(2)); the look itself may still be permitted.
        return reopen(fd, os.O_RDONLY | os.O_NONBLOCK)


def open_to_write(fd: int) -> int:
    """A private descriptor for one act of writing."""
    return reopen(fd, os.O_WRONLY)


def create_file(dir_fd: int, name: bytes, flags: int, mode: int) -> int:
    """Create a file that must not exist. Raises FileExistsError where anything stands at the name."""
    keep = flags & ~(os.O_APPEND | os.O_DIRECT | os.O_TRUNC)
    return os.open(name, keep | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode, dir_fd=dir_fd)


def unlink(dir_fd: int, name: bytes) -> None:
    """Remove a name that is not a directory's."""
    os.unlink(name, dir_fd=dir_fd)


def rmdir(dir_fd: int, name: bytes) -> None:
    """Remove an empty directory."""
    os.rmdir(name, dir_fd=dir_fd)


def mkdir(dir_fd: int, name: bytes, mode: int) -> None:
    """Make a directory."""
    os.mkdir(name, S_IMODE(mode), dir_fd=dir_fd)


def symlink(dir_fd: int, name: bytes, target: bytes) -> None:
    """Make a symlink; the target is anything."""
    os.symlink(target, name, dir_fd=dir_fd)


def mknod(dir_fd: int, name: bytes, mode: int, rdev: int) -> None:
    """Make a special or an empty regular file."""
    os.mknod(name, mode, rdev, dir_fd=dir_fd)


def rename(from_fd: int, name: bytes, to_fd: int, new_name: bytes, flags: int) -> None:
    """renameat2(2); Python's own rename drops the flags."""
    _check(_libc.renameat2(from_fd, name, to_fd, new_name, ctypes.c_uint(flags)))


def link(fd: int, dir_fd: int, name: bytes) -> None:
    """A further name for the inode behind a descriptor."""
    os.link(_link(fd), name, dst_dir_fd=dir_fd, follow_symlinks=True)


def readlink(fd: int) -> bytes:
    """The target of the symlink behind an O_PATH descriptor."""
    return os.readlink(b"", dir_fd=fd)


def chmod(fd: int, mode: int) -> None:
    """Set the permission bits of the inode behind a descriptor; mode without the file type."""
    os.chmod(_link(fd), S_IMODE(mode))


def chown(fd: int, uid: int, gid: int) -> None:
    """Set owner and group; -1 keeps one."""
    os.chown(_link(fd), uid, gid)


def utimens(fd: int, atime_ns: int | None, mtime_ns: int | None) -> None:
    """Set times in ns; None leaves one as it is (UTIME_OMIT, which os.utime cannot say)."""
    times = (_Timespec * 2)(_timespec(atime_ns), _timespec(mtime_ns))
    _check(_libc.utimensat(_AT_FDCWD, os.fsencode(_link(fd)), times, 0))


def _timespec(ns: int | None) -> _Timespec:
    return _Timespec(0, _UTIME_OMIT) if ns is None else _Timespec(*divmod(ns, 1_000_000_000))


def truncate(fd: int, length: int) -> None:
    """Set the size in bytes behind a descriptor; a read-only one counts, as O_RDONLY with O_TRUNC truncates."""
    if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
        os.truncate(_link(fd), length)
    else:
        os.ftruncate(fd, length)


def get_xattr(fd: int, name: bytes) -> bytes:
    """One extended attribute of the inode behind a descriptor."""
    return os.getxattr(_link(fd), name)


def set_xattr(fd: int, name: bytes, value: bytes) -> None:
    """Create or replace one extended attribute."""
    os.setxattr(_link(fd), name, value)


def list_xattrs(fd: int) -> list[bytes]:
    """The names of all extended attributes, as bytes."""
    return [os.fsencode(name) for name in os.listxattr(_link(fd))]


def remove_xattr(fd: int, name: bytes) -> None:
    """Remove one extended attribute."""
    os.removexattr(_link(fd), name)


def open_directory(fd: int) -> int:
    """A descriptor to list a directory by."""
    return reopen(fd, os.O_RDONLY | os.O_DIRECTORY)


def sync(fd: int, data_only: bool) -> None:
    """Make it durable: fsync(2), or fdatasync(2). Blocks: call it in a worker thread."""
    if data_only:
        os.fdatasync(fd)
    else:
        os.fsync(fd)


def statvfs(fd: int) -> os.statvfs_result:
    """The file system that a descriptor lies on."""
    return os.fstatvfs(fd)


def list_names(fd: int) -> list[bytes]:
    """The names in a directory, without ``.`` and ``..``, from its beginning."""
    os.lseek(fd, 0, os.SEEK_SET)
    return [os.fsencode(name) for name in os.listdir(fd)]


def give_to(fd: int, uid: int, gid: int, parent: os.stat_result, mode: int | None) -> None:
    """Make a file just created belong to the caller, as if the caller had made it.

    A set-group-ID directory has given its group already (inode(7)). chown clears set-ID bits, so the mode
    is set again where it had one; a symlink has no mode (None).
    """
    if os.geteuid() != 0:
        return
    group = -1 if parent.st_mode & S_ISGID else gid
    if uid != 0 or (gid != 0 and group != -1):
        os.chown(_link(fd), uid, group)
        if mode is not None and mode & (S_ISUID | S_ISGID):
            chmod(fd, S_IMODE(os.fstat(fd).st_mode) | (mode & (S_ISUID | S_ISGID)))


def digest(fd: int, length: int) -> bytes:
    """SHA-256 of the first ``length`` bytes behind a descriptor that is open for reading."""
    sha = hashlib.sha256()
    offset = 0
    while offset < length:
        block = os.pread(fd, min(_BLOCK, length - offset), offset)
        if not block:
            break
        sha.update(block)
        offset += len(block)
    return sha.digest()


def bytes_of(fd: int, seen: Fingerprint) -> bytes | None:
    """The bytes of a small file whose fingerprint was just taken, if they are still those."""
    data = os.pread(fd, seen.stamp.size, 0)
    return data if hashlib.sha256(data).digest() == seen.digest else None


def fingerprint(fd: int, limit: int) -> Fingerprint:
    """Take the fingerprint of a descriptor open for reading; no digest above ``limit`` bytes.

    The stamp is looked at before and after, and the bytes read again while they move, three times at most;
    then there is no digest, which compares as changed.
    """
    before = stamp(fd)
    if before.size > limit:
        return Fingerprint(before, None)
    for _ in range(3):
        sha = digest(fd, before.size)
        after = stamp(fd)
        if after == before:
            return Fingerprint(before, sha)
        before = after
    return Fingerprint(before, None)
