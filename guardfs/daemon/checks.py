"""What must be so before anything is mounted; every failure is one line with the way out."""

import errno
import os
import stat
from pathlib import Path

from guardfs import config
from guardfs.control.protocol import Plan
from guardfs.errors import ExitCode, GuardfsError
from guardfs.procs import mounts


def plan_for(workspace: str, mountpoint: str | None, **options: object) -> Plan:
    """A plan with absolute paths; a mount point of its own is resolved as well. Raises GuardfsError."""
    top = os.path.realpath(workspace)
    point = os.path.realpath(mountpoint) if mountpoint else top
    return Plan(workspace=top, mountpoint=point, **options)  # type: ignore[arg-type]


def check(plan: Plan) -> None:
    """Refuse what cannot work; a dead mount in the way is cleared. Raises GuardfsError."""
    _check_fuse()
    for path in dict.fromkeys((plan.workspace, plan.mountpoint)):
        _check_not_mounted(path)
        _check_directory(path)
    _check_apart(plan)
    _check_allow_other(plan)


def _check_fuse() -> None:
    try:
        os.close(os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC))
    except FileNotFoundError:
        raise GuardfsError(
            "/dev/fuse is missing; run 'modprobe fuse', or start the container with --device /dev/fuse",
            ExitCode.UNAVAILABLE,
        ) from None
    except OSError as error:
        raise GuardfsError(
            f"/dev/fuse cannot be opened ({error.strerror}); give this user access to it, or the container the device",
            ExitCode.UNAVAILABLE,
        ) from error


def _check_not_mounted(path: str) -> None:
    try:
        mounts.clear_dead(path)
    except mounts.UnmountError as error:
        raise GuardfsError(
            f"{path}: a dead mount is in the way and cannot be cleared ({error}); unmount it as its owner",
            ExitCode.BUSY,
        ) from error
    if mounts.is_guarded(path):
        raise GuardfsError(
            f"{path}: already mounted; add a process with 'guardfs track PID', or end it with 'guardfs unmount'",
            ExitCode.BUSY,
        )


def _check_directory(path: str) -> None:
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        raise GuardfsError(f"{path}: no such directory; make it first or check the path", ExitCode.NO_INPUT) from None
    except OSError as error:
        code = ExitCode.NO_PERMISSION if error.errno == errno.EACCES else ExitCode.NO_INPUT
        raise GuardfsError(f"{path}: {error.strerror}; choose a directory that you can reach", code) from error
    if not stat.S_ISDIR(mode):
        raise GuardfsError(f"{path}: not a directory; name the directory that holds it", ExitCode.NO_INPUT)
    if not os.access(path, os.R_OK | os.X_OK):
        raise GuardfsError(f"{path}: permission denied; choose a directory that you can read", ExitCode.NO_PERMISSION)
    if path == "/":
        raise GuardfsError("/: the root cannot be a workspace; choose a directory below it", ExitCode.USAGE)


def _check_apart(plan: Plan) -> None:
    """Neither may the daemon's own files lie in the mount, nor the mount in its files."""
    state = os.path.realpath(config.state_root())
    for path in (plan.workspace, plan.mountpoint):
        if _overlap(state, path):
            raise GuardfsError(
                f"{path}: overlaps guardfs's own state in {state}; set GUARDFS_STATE to a directory elsewhere",
                ExitCode.CONFIG,
            )
    inside, outside = sorted((plan.workspace, plan.mountpoint), key=len, reverse=True)
    if inside != outside and _overlap(inside, outside):
        raise GuardfsError(
            f"{plan.mountpoint}: workspace and mount point must be the same or lie apart; choose another mount point",
            ExitCode.USAGE,
        )


def _overlap(one: str, other: str) -> bool:
    return Path(one).is_relative_to(other) or Path(other).is_relative_to(one)


def _check_allow_other(plan: Plan) -> None:
    if not plan.allow_other or os.geteuid() == 0:
        return
    try:
        lines = Path("/etc/fuse.conf").read_text(errors="replace").split("\n")
    except OSError:
        lines = []
    if "user_allow_other" not in map(str.strip, lines):
        raise GuardfsError(
            "--allow-other needs the line 'user_allow_other' in /etc/fuse.conf; ask the administrator",
            ExitCode.NO_PERMISSION,
        )
