"""What a change takes from a mode on a bare directory, where neither the kernel nor root's own act below takes it here.

The kernel clears set-ID bits before a write through the mount by a setattr of its own. It leaves three cases to
the file system: O_TRUNC, a set-group-ID bit without group execution, and an access control list. The backing
file system spares them, because the daemon is root. Used by ``operations``.
"""

import os
from dataclasses import replace
from stat import S_ISGID, S_ISREG, S_ISUID, S_IXGRP

import pyfuse3

from guardfs.guard.files import Changes

ACCESS_LIST = b"system.posix_acl_access"


def taken_by_write(ctx: pyfuse3.RequestContext, st: os.stat_result) -> int:
    """The bits that other bytes take from a file (setattr_should_drop_suidgid)."""
    if not S_ISREG(st.st_mode) or not st.st_mode & (S_ISUID | S_ISGID) or not _is_limited(ctx):
        return 0
    return S_ISUID | (S_ISGID if st.st_mode & S_IXGRP or not _is_in_group(ctx, st) else 0)


def without_taken(ctx: pyfuse3.RequestContext, st: os.stat_result, changes: Changes) -> Changes:
    """A change of size, and what it takes; the kernel may have put its own part of that into the request."""
    taken = taken_by_write(ctx, st)
    mode = st.st_mode if changes.mode is None else changes.mode
    return replace(changes, mode=mode & ~taken) if taken else changes


def taken_by_access_list(ctx: pyfuse3.RequestContext, st: os.stat_result) -> Changes | None:
    """The change that a new list brings with it (posix_acl_update_mode), if any."""
    if not st.st_mode & S_ISGID or not _is_limited(ctx) or _is_in_group(ctx, st):
        return None
    return Changes(mode=st.st_mode & ~S_ISGID)


def _is_limited(ctx: pyfuse3.RequestContext) -> bool:
    """Whether the caller lacks what the daemon has: root keeps the bits, and a daemon of a user loses them below."""
    return ctx.uid != 0 and os.geteuid() == 0


def _is_in_group(ctx: pyfuse3.RequestContext, st: os.stat_result) -> bool:
    if st.st_gid == ctx.gid:
        return True
    try:
        return st.st_gid in pyfuse3.get_sup_groups(ctx.pid)
    except OSError:
        return False  # The caller is in another pid namespace, or gone.
