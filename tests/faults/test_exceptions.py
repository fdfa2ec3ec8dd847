"""A bug in a handler: that call gets EIO, the frames are logged, the mount lives."""

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from guardfs.control import client
from guardfs.control.protocol import Plan, Stop
from guardfs.daemon.checks import plan_for
from guardfs.procs import mounts

FAULTY = """
import sys
import guardfs.backing as backing
from guardfs.daemon.__main__ import main
def fail(*args, **kwargs):
    raise {error}
backing.{function} = fail
main()
"""


@contextmanager
def faulty(workspace: Path, function: str, error: str) -> Iterator[Plan]:
    """A mount whose daemon fails in one function of ``backing``."""
    plan = plan_for(str(workspace), None)
    program = FAULTY.format(function=function, error=error)
    with subprocess.Popen(
        [sys.executable, "-P", "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd="/"
    ) as daemon:
        assert daemon.stdin is not None
        assert daemon.stdout is not None
        daemon.stdin.write(msgspec.json.encode(plan))
        daemon.stdin.close()
        assert b'"error":""' in daemon.stdout.readline()
        try:
            yield plan
        finally:
            client.ask(plan.state, Stop())
            daemon.wait(20)
            assert not mounts.is_guarded(plan.mountpoint)


@pytest.mark.parametrize(
    ("function", "operation"),
    [
        ("readlink", lambda top: os.readlink(top / "l")),
        ("open_file", lambda top: (top / "f").read_text()),
        ("unlink", lambda top: (top / "f").unlink()),
        ("rename", lambda top: (top / "f").rename(top / "g")),
        ("list_names", os.listdir),
        ("pread", lambda top: (top / "f").read_text()),
        ("mkdir", lambda top: (top / "d").mkdir()),
        ("statvfs", os.statvfs),
    ],
)
@pytest.mark.parametrize("error", ["KeyError('a bug')", "AssertionError", "RecursionError", "OSError('no errno')"])
def test_a_bug_is_eio_and_the_mount_lives(tmp_path: Path, state: Path, function: str, operation, error: str) -> None:  # type: ignore[no-untyped-def]
    workspace = tmp_path / "ws"
    workspace.mkdir()
    (workspace / "f").write_text("f")
    (workspace / "l").symlink_to("f")
    with faulty(workspace, function, error) as plan:
        with pytest.raises(OSError, match="Input/output error"):
            operation(workspace)
        assert (workspace / "f").stat().st_size == 1
        log = (plan.state / "log").read_text()
        if "no errno" not in error:
            line = next(line for line in log.splitlines() if "event=exception" in line)
            assert "traceback=" in line
            assert error.partition("(")[0] in line


def test_an_errno_of_the_backing_directory_is_passed_on(tmp_path: Path, state: Path) -> None:
    workspace = tmp_path / "ws"
    workspace.mkdir()
    (workspace / "f").write_text("f")
    for name in ("ENOSPC", "EDQUOT", "EACCES", "EROFS", "EIO"):
        error = f"OSError(__import__('errno').{name}, 'forced')"
        with faulty(workspace, "pwrite", error), pytest.raises(OSError, match=os.strerror(getattr(errno, name))):
            (workspace / "f").write_text("x")
