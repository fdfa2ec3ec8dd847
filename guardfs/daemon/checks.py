"""What must be so before anything is mounted; every failure is one line with the way out."""

import errno
import os
import shutil
import stat
from collections.abc import Iterable
from pathlib import Path

from guardfs import config
from guardfs.control.protocol import Plan
from guardfs.errors import ExitCode, GuardfsError
from guardfs.procs import mounts


def plan_for(workspace: str, mountpoint: str | None, *, track_exe: Iterable[str] = (), **options: object) -> Plan:
    """A plan with absolute paths; a mount point of its own is resolved as well. Raises GuardfsError."""
    top = os.path.realpath(workspace)
    point = os.path.realpath(mountpoint) if mountpoint else top
    programs = tuple(map(_program, track_exe))
    return Plan(workspace=top, mountpoint=point, track_exe=programs, **options)  # type: ignore[arg-type]


def _program(name: str) -> str:
    """The file that a name given to ``--track-exe`` means; a script would never be seen running."""
    path = shutil.which(name)
    if path is None:
        raise GuardfsError(f"--track-exe {name}: no such program; check the name or give a path", ExitCode.USAGE)
    with open(path, "rb") as file:
        if file.read(2) == b"#!":
            raise GuardfsError(
                f"--track-exe {name}: a script runs as its interpreter; use 'guardfs run' or 'guardfs track' for it",
                ExitCode.USAGE,
            )
    return os.path.abspath(path)


def clear_dead(plan: Plan) -> None:
    """Take a dead mount out of the way; the directory is bare until it is mounted anew. Raises GuardfsError."""
    for path in dict.fromkeys((plan.workspace, plan.mountpoint)):
        try:
            mounts.clear_dead(path)
        except mounts.UnmountError as error:
            raise GuardfsError(
                f"{path}: a dead mount is in the way and cannot be cleared ({error}); unmount it as its owner",
                ExitCode.BUSY,
            ) from error


def check(plan: Plan) -> None:
    """Refuse what cannot work. A dead mount can: whoever mounts clears it. Raises GuardfsError."""
    _check_fuse()
    for path in dict.fromkeys((plan.workspace, plan.mountpoint)):
        if not mounts.is_guarded(path):
            _check_directory(path)
        elif not mounts.is_dead(path):
            raise GuardfsError(
                f"{path}: already mounted; add a process with 'guardfs track PID', or end it with 'guardfs unmount'",
                ExitCode.BUSY,
            )
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
            ExitCode.NO_PERMISSION if error.errno == errno.EACCES else ExitCode.UNAVAILABLE,
        ) from error


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
    if plan.workspace != plan.mountpoint and _overlap(plan.workspace, plan.mountpoint):
        raise GuardfsError(
            f"{plan.mountpoint}: workspace and mount point must be the same or lie apart; choose another mount point",
            ExitCode.USAGE,
        )


def _overlap(one: str, other: str) -> bool:
    return _lies_in(one, other) or _lies_in(other, one)


def _lies_in(path: str, top: str) -> bool:
    """By identity as well as by name: bind mounts give one directory several names."""
    return any(os.fspath(above) == top or _is_same(above, top) for above in (Path(path), *Path(path).parents))


def _is_same(one: Path, other: str) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:
        return False  # Not there yet, or dead: then the names have decided.


def _check_allow_other(plan: Plan) -> None:
    if not plan.allow_other or os.geteuid() == 0:
        return
    try:
        lines = Path("/etc/fuse.conf").read_text(errors="replace").split("\n")
    except OSError:
        lines = []  # No file permits nothing.
    if "user_allow_other" not in map(str.strip, lines):
        raise GuardfsError(
            "--allow-other needs the line 'user_allow_other' in /etc/fuse.conf; ask the administrator",
            ExitCode.NO_PERMISSION,
        )
