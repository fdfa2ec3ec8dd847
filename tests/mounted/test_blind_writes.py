"""A session's write to a file that it has never read: refused by every road, with nothing changed."""

import os
from pathlib import Path

import pytest

from tests.helpers.mounted import Mount

ROADS = {
    "redirect": "echo x > f",
    "tee": "echo x | tee f >/dev/null; test ${PIPESTATUS[1]} = 0",
    "cp": "cp ../n f",
    "dd": "dd if=../n of=f conv=notrunc status=none",
    "truncate": "truncate -s 0 f",
    "append": "echo x >> f",
    "python open": "python3 -c \"open('f','w')\"",
    "python r+": "python3 -c \"import os; os.write(os.open('f', os.O_RDWR), b'x')\"",
    "python ftruncate": "python3 -c \"import os; os.ftruncate(os.open('f', os.O_RDWR), 0)\"",
    "node": "node -e \"require('fs').writeFileSync('f','x')\"",
    "mv": "cp ../n n; mv n f",
    "mv across": "cp ../n ../n2; mv ../n2 f",
    "os.replace": "cp ../n n; python3 -c \"import os; os.replace('n','f')\"",
    "ln -sf": "ln -sf n f",
    "ln -f": "cp ../n n; ln -f n f",
    "install": "install ../n f",
    "tar": "tar xf ../t.tar",
    "rm": "rm f",
    "rm -f": "rm -f f",
    "exec 3<>": "exec 3<>f; echo x >&3; s=$?; exec 3>&-; test $s = 0",
    "exchange": "cp ../n n; python3 ../exchange.py n f",
}


def same(path: Path) -> tuple[bytes, tuple[int, ...]]:
    st = os.stat(path)
    return path.read_bytes(), (st.st_ino, st.st_mode, st.st_size, st.st_mtime_ns, st.st_ctime_ns, st.st_nlink)


@pytest.mark.parametrize("road", ROADS)
def test_refused_with_nothing_changed(mount: Mount, road: str) -> None:
    (mount.base / "n").write_text("the agent's own idea\n")
    (mount.base / "exchange.py").write_text(
        "import ctypes, os, sys\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        "if libc.renameat2(-100, sys.argv[1].encode(), -100, sys.argv[2].encode(), 2):\n"
        "    raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))\n"
    )
    os.system(f"cd {mount.base} && mkdir t && echo tar > t/f && tar cf t.tar -C t f")
    agent = mount.agent()
    before = same(mount.backing / "f")
    done = agent.run(ROADS[road])
    # tar gets EIO from its unlink and tells of the open that failed before it.
    assert done.refused or (road == "tar" and done.status == 2), done
    assert same(mount.backing / "f") == before
    lines = mount.denials()
    assert len(lines) == 1, lines
    assert "reason=unread" in lines[0]
    assert "path=f" in lines[0]
    assert "read the file, then write again" in lines[0]


@pytest.mark.parametrize("road", ROADS)
def test_a_user_gets_what_a_bare_directory_gives(mount: Mount, road: str) -> None:
    (mount.base / "n").write_text("a user's idea\n")
    (mount.base / "exchange.py").write_text(
        "import ctypes, sys\n"
        "sys.exit(-ctypes.CDLL(None).renameat2(-100, sys.argv[1].encode(), -100, sys.argv[2].encode(), 2))\n"
    )
    os.system(f"cd {mount.base} && mkdir t && echo tar > t/f && tar cf t.tar -C t f && mkdir bare && cp -a ws/f bare/f")
    mount.agent()
    user = mount.user()
    outcomes = []
    for place in (mount.point, mount.base / "bare"):
        done = user.run(f"cd {place} && {ROADS[road]}")
        listing = user.run("cd .; ls; cat f").out
        outcomes.append((done, listing))
    assert outcomes[0] == outcomes[1]
    assert not mount.denials()


def test_a_free_name_is_free(mount: Mount) -> None:
    agent = mount.agent()
    for number, line in enumerate(("echo x > {}", "echo x | tee {}", "cp f {}", "python3 -c \"open('{}','x')\"")):
        assert agent.run(line.format(f"new{number}")).status == 0
    assert not mount.denials()


def test_reading_gives_leave(mount: Mount) -> None:
    agent = mount.agent()
    assert agent.run("echo x > f").refused
    assert agent.run("cat f; echo x > f").status == 0
    assert (mount.backing / "f").read_text() == "x\n"
