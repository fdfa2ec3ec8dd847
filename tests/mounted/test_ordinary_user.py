"""guardfs as most people run it: without root, by fusermount3, which the device has to be open to."""

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

import guardfs

NOBODY = 65534
SCRIPT = """
echo x > f; cat f; echo y > f && echo ok; echo z > g; chmod 0200 g; echo zz >> g && echo own
umask 077; touch h; stat -c '%a %u' h; rm f && echo removed
"""


@pytest.fixture
def device() -> Iterator[None]:
    """Root's tests may open the device to everybody for as long as they last."""
    mode = os.stat("/dev/fuse").st_mode
    os.chmod("/dev/fuse", 0o666)
    yield
    os.chmod("/dev/fuse", mode & 0o777)


def python_for_nobody() -> str:
    """An interpreter of our version that everybody may run: ours may lie in a home directory."""
    question = ["-c", f"import sys; sys.exit(sys.version_info[:2] != {sys.version_info[:2]})"]
    for candidate in (sys.executable, "/usr/bin/python3", "/usr/local/bin/python3"):
        try:
            if subprocess.run([candidate, *question], user=NOBODY, group=NOBODY, cwd="/", check=False).returncode == 0:
                return candidate
        except OSError:
            continue
    raise AssertionError("no interpreter of this version may be run by everybody; install python3 outside of homes")


def test_a_session_of_an_ordinary_user(device: None) -> None:
    base = Path(f"/tmp/guardfs-nobody-{os.getpid()}")
    try:
        shutil.copytree(Path(guardfs.__file__).parent, base / "src" / "guardfs")
        shutil.copytree(sysconfig.get_path("purelib"), base / "lib")
        (base / "ws").mkdir()
        (base / "ws" / "f").write_text("one\n")
        for path in (base, base / "ws", base / "ws" / "f"):
            os.chown(path, NOBODY, NOBODY)
        environment = {
            "HOME": str(base),
            "PATH": os.defpath + ":/usr/sbin",
            "PYTHONPATH": f"{base / 'src'}:{base / 'lib'}",
        }
        done = subprocess.run(
            [python_for_nobody(), "-P", "-m", "guardfs", "run", str(base / "ws"), "--", "bash", "-c", SCRIPT],
            user=NOBODY,
            group=NOBODY,
            extra_groups=[],
            env=environment,
            cwd="/",
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout == "one\nok\nown\n600 65534\nremoved\n"
        assert "operations refused: 1" in done.stderr
    finally:
        shutil.rmtree(base)
