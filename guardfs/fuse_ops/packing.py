"""Between pyfuse3's structures and plain values."""

import os

import pyfuse3

from guardfs.guard.files import Changes
from guardfs.inodes import Node

DIRECTORY_TIMEOUT_S = 1.0
"""How long the kernel may trust a directory's entry and attributes, in seconds.

Files are looked up each time: others write to the backing directory, and content must never be older than the
attributes that describe it.
"""


def attributes(node: Node, st: os.stat_result) -> pyfuse3.EntryAttributes:
    """A node's attributes for the kernel, under the number that the kernel knows it by; it is told the size here."""
    node.told_size = st.st_size
    entry = pyfuse3.EntryAttributes()
    entry.st_ino = pyfuse3.InodeT(node.number)
    entry.generation = 0
    timeout = DIRECTORY_TIMEOUT_S if node.is_directory else 0.0
    entry.entry_timeout = timeout
    entry.attr_timeout = timeout
    entry.st_mode = pyfuse3.ModeT(st.st_mode)
    entry.st_nlink = st.st_nlink
    entry.st_uid = st.st_uid
    entry.st_gid = st.st_gid
    entry.st_rdev = st.st_rdev
    entry.st_size = st.st_size
    entry.st_blksize = st.st_blksize
    entry.st_blocks = st.st_blocks
    entry.st_atime_ns = st.st_atime_ns
    entry.st_mtime_ns = st.st_mtime_ns
    entry.st_ctime_ns = st.st_ctime_ns
    return entry


def changes(attr: pyfuse3.EntryAttributes, fields: pyfuse3.SetattrFields) -> Changes:
    """What a setattr asks for."""
    return Changes(
        size=attr.st_size if fields.update_size else None,
        mode=attr.st_mode if fields.update_mode else None,
        uid=attr.st_uid if fields.update_uid else None,
        gid=attr.st_gid if fields.update_gid else None,
        atime_ns=attr.st_atime_ns if fields.update_atime else None,
        mtime_ns=attr.st_mtime_ns if fields.update_mtime else None,
    )


def file_system(st: os.statvfs_result) -> pyfuse3.StatvfsData:
    """statvfs(3) of the backing file system."""
    data = pyfuse3.StatvfsData()
    for name in ("bsize", "frsize", "blocks", "bfree", "bavail", "files", "ffree", "favail", "namemax"):
        setattr(data, f"f_{name}", getattr(st, f"f_{name}"))
    return data
