"""Membership by real processes, without a mount."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from guardfs.core.model import ProcId, SessionId
from guardfs.procs import reading
from guardfs.procs.census import NOBODY, Census
from guardfs.procs.cgroups import Cgroup, cgroup_of
from tests.helpers.mounted import until

S, T = SessionId("s"), SessionId("t")


class Child:
    """A shell that answers with the pids of what it starts."""

    def __init__(self) -> None:
        self._bash = subprocess.Popen(["bash"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    @property
    def pid(self) -> int:
        return self._bash.pid

    def run(self, line: str) -> int:
        assert self._bash.stdin is not None
        assert self._bash.stdout is not None
        self._bash.stdin.write(line + "\n")
        self._bash.stdin.flush()
        return int(self._bash.stdout.readline())

    def close(self) -> None:
        for pid in (*reading.descendants(self.pid), self.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, 9)
        self._bash.communicate()


@pytest.fixture
def child() -> Iterator[Child]:
    made = Child()
    yield made
    made.close()


@pytest.fixture
def census() -> Iterator[Census]:
    made = Census()
    yield made
    made.close()


def test_without_sessions_nobody_is_looked_up(census: Census, child: Child) -> None:
    assert census.who(child.pid) is NOBODY


def test_children_are_members_and_strangers_are_not(census: Census, child: Child) -> None:
    census.begin(S, reading.process(child.pid), anchor=False)
    grandchild = child.run("setsid sleep 100 & echo $!")
    assert census.who(grandchild).session == S
    assert census.who(os.getpid()).session is None
    assert census.who(child.pid).program == "bash"


def test_a_member_stays_one_when_its_parents_are_gone(census: Census, child: Child) -> None:
    census.begin(S, reading.process(child.pid), anchor=False)
    orphan = child.run("sh -c 'sleep 100 >/dev/null & echo $!; read x < /dev/zero' & sleep 0")
    assert census.who(orphan).session == S
    os.kill(reading.parent(orphan), 9)
    until(lambda: reading.parent(orphan) == 1 or reading.parent(orphan) != child.pid, "the orphan's new parent")
    assert census.who(orphan).session == S


def test_an_anchor_is_no_member_itself(census: Census, child: Child) -> None:
    grandchild = child.run("sleep 100 & echo $!")
    census.begin(S, reading.process(child.pid), anchor=True)
    assert census.who(child.pid).session is None
    assert census.who(grandchild).session == S


def test_the_nearest_session_wins(census: Census, child: Child) -> None:
    grandchild = child.run("bash -c 'sleep 100 & wait' & echo $!")
    below = until(lambda: reading.children(grandchild), "the sleeper")[0]
    census.begin(S, reading.process(child.pid), anchor=True)
    census.begin(T, reading.process(grandchild), anchor=False)
    assert census.who(below).session == T


def test_an_outsider_seen_before_is_looked_at_again_when_a_session_begins(census: Census, child: Child) -> None:
    other = Child()
    try:
        census.begin(S, reading.process(child.pid), anchor=False)
        assert census.who(other.pid).session is None
        census.begin(T, reading.process(other.pid), anchor=False)
        assert census.who(other.pid).session == T
    finally:
        other.close()


def test_the_end_of_a_session_frees_its_members(census: Census, child: Child) -> None:
    census.begin(S, reading.process(child.pid), anchor=False)
    assert census.living_members(S) == [reading.process(child.pid)]
    census.end(S)
    assert census.who(child.pid).session is None


def test_a_thread_is_its_process(census: Census) -> None:
    program = (
        "import threading, sys\n"
        "done = threading.Event()\n"
        "thread = threading.Thread(target=done.wait)\n"
        "thread.start(); print(thread.native_id, flush=True)\n"
        "sys.stdin.read(); done.set()\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as python:
        assert python.stdout is not None
        tid = int(python.stdout.readline())
        assert tid != python.pid
        census.begin(S, reading.process(python.pid), anchor=False)
        caller = census.who(tid)
        assert caller.session == S
        assert caller.process == reading.process(python.pid)
        python.communicate(b"")


def test_a_number_with_another_start_is_a_stranger(census: Census, child: Child) -> None:
    now = reading.process(child.pid)
    census.adopt(ProcId(now.pid, now.start - 1), S)
    assert census.who(child.pid).session is None


def test_the_same_tick_does_not_make_a_new_process_a_member(census: Census) -> None:
    """A pidfd tells, where pid and start time are the same."""
    dead = subprocess.Popen(["sleep", "100"])
    proc = reading.process(dead.pid)
    census.begin(S, proc, anchor=False)
    dead.kill()
    dead.wait()
    assert not census._members[proc].alive(proc)
    assert census._living_member(proc) is None


def test_everything(child: Child) -> None:
    census = Census(everything=S)
    assert census.who(child.pid).session == S
    assert census.who(0).session == S
    assert census.who(2**22 - 1).session == S
    assert census.member(child.pid) is None


def test_a_caller_that_proc_does_not_show_is_unknown(census: Census, child: Child) -> None:
    census.begin(S, reading.process(child.pid), anchor=False)
    assert census.who(0).process is None
    assert census.who(2**22 - 1).process is None


def test_a_program_roots_a_session(child: Child, tmp_path: Path) -> None:
    program = tmp_path / "agent"
    program.write_bytes(Path("/bin/sleep").read_bytes())
    program.chmod(0o755)
    census = Census(tracked_exes=reading.find_programs([str(program)]))
    agent = child.run(f"{program} 100 & echo $!")
    until(lambda: reading.exe_of(agent)[1] == "agent", "the exec")
    session = census.who(agent).session
    assert session is not None
    assert census.take_roots() == [(reading.process(agent), session)]
    assert census.take_roots() == []
    assert census.who(child.pid).session is None
    census.close()


def test_an_outsider_is_told_of_and_proved_by_its_environment(child: Child) -> None:
    told: list[ProcId] = []
    census = Census(on_outsider=told.append)
    census.begin(S, reading.process(child.pid), anchor=True)
    with subprocess.Popen(["sleep", "100"], env={**os.environ, "GUARDFS_SESSION": "s"}) as claimed:
        assert census.who(claimed.pid).session is None
        assert told == [reading.process(claimed.pid)]
        until(lambda: reading.environment(claimed.pid).get(b"GUARDFS_SESSION"), "the exec")
        assert census.prove(told[0], [S]) == S
        assert census.prove(told[0], [T]) is None
        claimed.kill()
    census.close()


def test_a_cgroup_holds_what_is_forked_in_it(child: Child) -> None:
    """Needs a writable cgroup v2, or says that there is none."""
    cgroup = Cgroup.make("guardfs-test", os.getpid())
    if cgroup is None:
        assert cgroup_of(os.getpid()) is None or not os.access("/sys/fs/cgroup/unified", os.W_OK)
        return
    census = Census()
    census.begin(S, reading.process(child.pid), anchor=False, cgroup=cgroup)
    orphan = child.run("(setsid sleep 100 >/dev/null & echo $!)")
    census._members.clear()
    census._outsiders.clear()
    until(lambda: reading.parent(orphan) != child.pid, "the orphan's new parent")
    assert census.who(orphan).session == S
    for pid in (orphan, child.pid):
        os.kill(pid, 9)
    until(lambda: not (cgroup.directory / "cgroup.procs").read_text(), "the cgroup's end")
    census.close()
    assert not cgroup.directory.exists()


def test_a_file_is_identified_without_asking_its_file_system() -> None:
    st = os.stat("/proc/self/exe")
    assert reading.identity_unasked(b"/proc/self/exe") == (st.st_dev, st.st_ino)


def test_a_process_lives_while_any_of_its_threads_does() -> None:
    program = (
        "import ctypes, threading, sys\n"
        "def rest():\n"
        "    print('gone', flush=True); sys.stdin.read()\n"
        "threading.Thread(target=rest).start()\n"
        "ctypes.CDLL(None).pthread_exit(None)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as python:
        assert python.stdin is not None
        assert python.stdout is not None
        proc = reading.process(python.pid)
        python.stdout.readline()
        until(
            lambda: Path(f"/proc/{proc.pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z", "its leader's end"
        )
        assert reading.is_alive(proc)
        assert not reading.is_zombie(proc.pid)
        python.kill()
    assert not reading.is_alive(proc)
