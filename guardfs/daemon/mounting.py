"""How the mount is made: the options that keep it like the bare directory, and what went wrong in words."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pyfuse3

from guardfs.control.protocol import Plan
from guardfs.errors import ExitCode, GuardfsError
from guardfs.fuse_ops import Operations


def mount(operations: Operations, plan: Plan) -> None:
    """Mount over the plan's mount point; requests wait until the loop takes them. Raises GuardfsError.

    FUSE mounts are nosuid and nodev unless told otherwise; a bare directory is what its own mount says.
    """
    flags = os.statvfs(plan.workspace).f_flag
    options = {"default_permissions", "fsname=guardfs", "subtype=guardfs"}
    if os.geteuid() == 0:
        options |= {"allow_other"}
        options |= {name for name, bit in (("suid", os.ST_NOSUID), ("dev", os.ST_NODEV)) if not flags & bit}
    elif plan.allow_other:
        options |= {"allow_other"}
    options |= {name for name, bit in (("noexec", os.ST_NOEXEC), ("ro", os.ST_RDONLY)) if flags & bit}
    with _heard() as said:
        try:
            pyfuse3.init(operations, plan.mountpoint, options)
        except RuntimeError as error:
            reason = (said() or str(error)).removeprefix("fusermount3: ")
            code = ExitCode.NO_PERMISSION if "permi" in reason.lower() else ExitCode.UNAVAILABLE
            raise GuardfsError(
                f"{plan.mountpoint}: cannot be mounted: {reason}; see /etc/fuse.conf and the rights on /dev/fuse",
                code,
            ) from error


@contextmanager
def _heard() -> Iterator[Callable[[], str]]:
    """libfuse explains a failure on stderr only: hold it, and give its last line."""
    kept = os.dup(2)
    held = os.memfd_create("stderr")
    os.dup2(held, 2)
    try:
        yield lambda: (os.pread(held, 4096, 0).decode(errors="replace").strip().splitlines() or [""])[-1]
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(held)
