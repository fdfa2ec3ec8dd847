"""Corners in which a guard like this goes wrong: names that lead elsewhere, handles that live on, pages that stay."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import MakeMount
from tests.helpers.mounted import Mount, until

EXCHANGE = """
import ctypes, sys
sys.exit(-ctypes.CDLL(None).renameat2(-100, sys.argv[1].encode(), -100, sys.argv[2].encode(), 2))
"""
MAPPED = """
import mmap, os, sys
fd = os.open('f', os.O_RDWR)
m = mmap.mmap(fd, 0)
print(m[:3], flush=True)
sys.stdin.readline()
m[:3] = b'AGT'
try:
    m.flush()
except OSError as error:
    print(error.errno)
"""


def test_a_hard_link_makes_nothing_exempt(mount: Mount) -> None:
    mount.user().run("mkdir .git; echo x = 1 > .guardfs.toml")
    agent = mount.agent()
    assert agent.run("ln f .git/x && echo boo > .git/x").refused
    assert agent.run("echo boo >> .git/x").refused
    assert agent.run("ln .guardfs.toml p").refused
    assert agent.run("rm .git/x").status == 0, "another name of it is left"
    mount.user().run("ln .guardfs.toml p")
    assert agent.run("cat p; echo x > p").refused
    assert (mount.backing / "f").read_text() == "one\ntwo\nthree\n"


def test_an_append_goes_to_the_end_that_others_have_moved(mount: Mount) -> None:
    user = mount.user()
    user.run("exec 3>>f; echo a >&3")
    with (mount.backing / "f").open("a") as file:
        file.write("MINE MINE\n")
    user.run("echo b >&3; echo c >&3")
    assert (mount.backing / "f").read_text() == "one\ntwo\nthree\na\nMINE MINE\nb\nc\n"
    assert user.run("cat f").out == (mount.backing / "f").read_text()


def test_an_append_is_nothing_but_an_append(make_mount: MakeMount) -> None:
    mount = make_mount("--append", "allow")
    agent = mount.agent()
    (mount.base / "a.py").write_text(
        "import fcntl, os, sys\n"
        "fd = os.open('f', os.O_WRONLY | os.O_APPEND)\n"
        "if sys.argv[1] == 'truncate': os.ftruncate(fd, 0)\n"
        "else: fcntl.fcntl(fd, fcntl.F_SETFL, 0); os.pwrite(fd, b'XXX', 0)\n"
    )
    assert agent.run("python3 ../a.py truncate").refused
    assert agent.run("python3 ../a.py overwrite").refused
    assert agent.run("echo four >> f; echo five >> f").status == 0
    assert (mount.backing / "f").read_text() == "one\ntwo\nthree\nfour\nfive\n"


def test_a_number_used_again_is_another_file(mount: Mount) -> None:
    agent, user = mount.agent(), mount.user()
    user.run("echo 1 > x")
    agent.run("cat x")
    user.run("cp x t; mv t x")
    assert agent.run("echo mine > y").status == 0
    user.run("rm x")
    assert agent.run("echo x > x").refused
    assert "reason=gone" in mount.denials()[-1]
    assert agent.run("echo again > y").status == 0
    user.run("rm y; echo other > z")
    assert agent.run("echo z > z").refused
    assert "reason=unread" in mount.denials()[-1]


@pytest.mark.parametrize("match", ["strict", "content"])
def test_the_same_bytes_under_a_used_number(make_mount: MakeMount, match: str) -> None:
    mount = make_mount("--match", match)
    agent, user = mount.agent(), mount.user()
    agent.run("cat f")
    user.run("echo v2 > t; mv t f")
    agent.run("cat f")
    mount.turn()
    user.run("cp f t; mv t f")
    assert agent.run("echo z > f").refused == (match == "strict")


def test_names_that_only_others_used(mount: Mount) -> None:
    agent, user = mount.agent(), mount.user()
    agent.run("cat f; mkdir d; echo 1 > d/a")
    user.run("mv f g; mv g f; mv d d2; mv d2 d")
    assert agent.run("echo x > g && echo y > f").status == 0
    assert agent.run("mkdir d2 && echo x > d2/a && echo y > d/a").status == 0
    user.run("mv f h")
    assert agent.run("echo x > f").refused
    assert agent.run("echo x > h").status == 0, "the record follows the content"


def test_directories_that_change_places(mount: Mount) -> None:
    (mount.base / "x.py").write_text(EXCHANGE)
    agent = mount.agent()
    assert agent.run("mkdir d1 d2; echo 1 > d1/a; echo 2 > d2/b; python3 ../x.py d1 d2").status == 0
    assert agent.run("echo 3 > d2/a && echo 4 > d1/b && echo 5 > d1/a && echo 6 > d2/b").status == 0
    assert agent.run("echo 1 > p; echo 2 > q; python3 ../x.py p q; echo 3 > p; rm q; echo 4 > q").status == 0
    assert mount.denials() == []


def test_a_first_read_counts_though_others_have_fetched_the_pages(mount: Mount) -> None:
    agent, user = mount.agent(), mount.user()
    agent.run("exec 3<>f")
    user.run("cat f; tac f")
    until(lambda: mount.status().open_files, "the handle")
    assert agent.run("cat <&3 >/dev/null; echo four >&3").status == 0


def test_a_refused_store_is_shown_to_nobody(mount: Mount) -> None:
    agent, user = mount.agent(), mount.user()
    (mount.base / "m.py").write_text(MAPPED)
    user.run("exec 5<f; mkfifo ../go")
    agent.run("python3 ../m.py < ../go > ../out & exec 7>../go")
    until(lambda: (mount.base / "out").exists() and (mount.base / "out").read_text(), "the mapping")
    user.run("printf USR | dd of=f conv=notrunc status=none")
    agent.run("echo >&7; wait")
    assert (mount.base / "out").read_text().split()[-1] == "5"
    assert (mount.backing / "f").read_text().startswith("USR")
    until(lambda: user.run("head -c 3 f").out == "USR", "the user's own bytes")


def test_a_stored_page_of_a_known_file_is_a_write(mount: Mount) -> None:
    agent = mount.agent()
    (mount.base / "m.py").write_text(MAPPED)
    assert agent.run("echo | python3 ../m.py").status == 0
    assert (mount.backing / "f").read_text().startswith("AGT")
    assert agent.run("echo x > f").status == 0


def test_a_pending_handle_of_an_unlinked_file_may_write(mount: Mount) -> None:
    agent, user = mount.agent(), mount.user()
    agent.run("exec 3<>f")
    user.run("rm f")
    assert agent.run("echo x >&3").status == 0


@pytest.mark.parametrize("match", ["identity", "content"])
def test_a_touch_between_two_writes_is_forgiven_where_the_match_does(make_mount: MakeMount, match: str) -> None:
    mount = make_mount("--match", match)
    agent, user = mount.agent(), mount.user()
    agent.run("exec 3<>f; cat <&3; echo 4 >&3")
    user.run("touch -d '2001-01-01' f")
    assert agent.run("echo 5 >&3; exec 3>&-; echo 6 >> f").status == 0


def test_two_handles_and_a_chmod_from_below(mount: Mount) -> None:
    agent = mount.agent()
    agent.run("cat f; exec 3>>f 4>>f")
    os.chmod(mount.backing / "f", 0o600)
    assert agent.run("echo C >&3 && echo D >&4").status == 0


def test_made_by_mknod(mount: Mount) -> None:
    agent = mount.agent()
    agent.run("python3 -c \"import os; os.mknod('node')\"; cd /")
    mount.unmount()
    mount.mount()
    assert agent.run(f"cd {mount.point}; echo x > node").status == 0


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A workspace on a file system of one megabyte."""
    (tmp_path / "ws").mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", tmp_path / "ws"], check=True)
    yield tmp_path
    subprocess.run(["umount", tmp_path / "ws"], check=True)


def test_a_full_disk_is_nobodys_change(small: Path, state: Path) -> None:
    mount = Mount(small)
    try:
        agent, user = mount.agent(), mount.user()
        user.run("head -c 700000 /dev/zero > big")
        done = agent.run("exec 3>new; echo hi >&3; head -c 400000 /dev/zero >&3")
        assert "No space left" in done.err
        user.run("rm big")
        assert agent.run("echo more >&3; exec 3>&-; echo new > new").status == 0
        assert mount.denials() == []
    finally:
        mount.close()


def test_an_own_append_leaves_an_own_record_good(make_mount: MakeMount) -> None:
    mount = make_mount("--append", "allow")
    agent = mount.agent()
    assert agent.run("exec 3>>f; cat f; echo x >&3; echo y > f").status == 0


def test_a_fifo_in_place_of_a_known_file(mount: Mount) -> None:
    user = mount.user()
    user.run(": > e")
    agent = mount.agent()
    agent.run("cat e")
    user.run("rm e; mkfifo e")
    (state,) = mount.status().sessions
    assert state.states == {"gone": 1}


def test_a_reader_gets_all_that_its_record_says(mount: Mount) -> None:
    """A user appends while an agent reads and then writes behind what it was given: no byte of the user's is hit."""
    agent, user = mount.agent(), mount.user()
    (mount.base / "race.py").write_text(
        "import os\n"
        "for _ in range(400):\n"
        "    seen = len(open('f', 'rb').read())\n"
        "    try:\n"
        "        fd = os.open('f', os.O_WRONLY)\n"
        "    except OSError: continue\n"
        "    try: os.pwrite(fd, b'.', seen)\n"
        "    except OSError: pass\n"
        "    os.close(fd)\n"
    )
    user.run("(for i in $(seq 400); do echo line$i >> f; done; touch done) & disown")
    assert agent.run("python3 ../race.py").status == 0
    until((mount.backing / "done").exists, "the user's end")
    text = (mount.backing / "f").read_text()
    assert [f"line{i}" for i in range(1, 401) if f"line{i}\n" not in text] == []
