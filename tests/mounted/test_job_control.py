"""Keys, jobs and signals under ``guardfs run``: every scenario is played without guardfs first, and compared."""

import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from guardfs.procs import mounts, reading
from tests.helpers.mounted import GUARDFS, until
from tests.helpers.terminal import PROMPT, Terminal

PROBE = """
import os, signal, sys
notes = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
signal.signal(signal.SIGINT, signal.SIG_DFL)
awaited = {signal.SIGUSR2}
for word in sys.argv[2:]:
    number = getattr(signal, word.lstrip("-"))
    if word.startswith("-"):
        signal.signal(number, signal.SIG_IGN)
    else:
        awaited.add(number)
signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
os.write(notes, b"%d ready\\n" % os.getpid())
while (number := signal.sigwait(awaited)) != signal.SIGUSR2:
    os.write(notes, signal.Signals(number).name.encode() + b"\\n")
sys.exit(7)
"""


class Desk:
    """A terminal, and a word to put before a command: nothing, or ``guardfs run``."""

    def __init__(self, base: Path, terminal: Terminal, prefix: str) -> None:
        self.base, self.terminal, self.prefix = base, terminal, prefix
        self.workspace = base / "ws"
        self.probes = 0

    def probe(self, *signals: str, end: str = "") -> "Probe":
        """Start the probe, which notes the signals that it is told to and ends with 7 on SIGUSR2."""
        self.probes += 1
        notes = self.base / f"notes-{bool(self.prefix)}-{self.probes}"
        self.terminal.keys(f"{self.prefix}python3 {self.base}/probe.py {notes} {' '.join(signals)} {end}\n")
        return Probe(notes)


class Probe:
    def __init__(self, notes: Path) -> None:
        self._notes = notes
        until(lambda: notes.exists() and "ready\n" in notes.read_text(), "the probe's first note")
        self.pid = int(notes.read_text().split()[0])

    def noted(self) -> list[str]:
        return self._notes.read_text().splitlines()[1:]

    def await_note(self, name: str, times: int = 1) -> None:
        until(lambda: self.noted().count(name) == times, name)

    def stopped(self) -> bool:
        return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"

    def leave(self) -> None:
        os.kill(self.pid, signal.SIGUSR2)


Scenario = Callable[[Desk], object]
Play = Callable[[Scenario], tuple[object, object]]


@pytest.fixture
def play(tmp_path: Path, state: Path) -> Iterator[Play]:
    """Plays a scenario without guardfs and with it; both outcomes."""
    workspace = tmp_path / "ws"
    workspace.mkdir()
    (tmp_path / "probe.py").write_text(PROBE)
    terminals: list[Terminal] = []

    def perform(scenario: Scenario) -> tuple[object, object]:
        outcomes = []
        for prefix in ("", f"{' '.join(GUARDFS)} run {workspace} -- "):
            terminals.append(Terminal(tmp_path))
            outcomes.append(scenario(Desk(tmp_path, terminals[-1], prefix)))
            terminals.pop().close()
        return outcomes[0], outcomes[1]

    yield perform
    for terminal in terminals:
        terminal.close()
    until(lambda: not mounts.is_guarded(str(workspace)), "unmounted")


def job_of(desk: Desk) -> int:
    """What the outer shell takes for the job: COMMAND itself, or the launcher."""
    return int(desk.terminal.run("jobs -p").split()[-1])


def jobs(desk: Desk) -> str:
    """The shell's account of its jobs, without the command line that must differ."""
    return "|".join(re.findall(r"^\[\d+\]\S? +(\S+(?: \([^)]*\))?)", desk.terminal.run("jobs"), re.MULTILINE))


@pytest.mark.parametrize(("key", "status"), [("\x03", 130), ("\x1c", 131)])
def test_a_key_ends_the_command(play: Play, key: str, status: int) -> None:
    def scenario(desk: Desk) -> object:
        desk.probe()
        desk.terminal.keys(key)
        desk.terminal.expect(PROMPT)
        return desk.terminal.status()

    assert play(scenario) == (status, status)


def test_a_key_is_noted_once(play: Play) -> None:
    def scenario(desk: Desk) -> object:
        probe = desk.probe("SIGINT", "SIGQUIT", "SIGWINCH")
        for key, name in (("\x03", "SIGINT"), ("\x1c", "SIGQUIT")):
            desk.terminal.keys(key)
            probe.await_note(name)
        desk.terminal.resize(50)
        probe.await_note("SIGWINCH")
        probe.leave()
        desk.terminal.expect(PROMPT)
        return probe.noted(), desk.terminal.status()

    bare, guarded = play(scenario)
    assert bare == guarded == (["SIGINT", "SIGQUIT", "SIGWINCH"], 7)


def test_a_command_that_ignores_keys(play: Play) -> None:
    def scenario(desk: Desk) -> object:
        probe = desk.probe("-SIGINT", "-SIGTSTP", "SIGQUIT")
        desk.terminal.keys("\x03\x1a\x1c")
        probe.await_note("SIGQUIT")
        stopped = probe.stopped()
        probe.leave()
        desk.terminal.expect(PROMPT)
        return stopped, desk.terminal.status(), jobs(desk)

    assert play(scenario) == ((False, 7, ""), (False, 7, ""))


def test_stop_foreground_stop_background_kill(play: Play) -> None:
    def scenario(desk: Desk) -> object:
        terminal = desk.terminal
        probe = desk.probe("SIGCONT", "SIGTERM", "SIGWINCH")
        story: list[object] = []
        for times, resume in enumerate(("fg", "bg"), start=1):
            terminal.keys("\x1a")
            terminal.expect(PROMPT)
            story += [terminal.status(), jobs(desk), probe.stopped()]
            terminal.keys(f"{resume}\n")
            probe.await_note("SIGCONT", times)
        terminal.expect(PROMPT)
        story.append(jobs(desk))
        terminal.run("kill %1")
        probe.await_note("SIGTERM")
        os.kill(job_of(desk), signal.SIGWINCH)
        probe.await_note("SIGWINCH")
        story.append(probe.noted())
        probe.leave()
        terminal.run("wait %1")
        return [*story, terminal.status(), terminal.run("echo the terminal is still ours")]

    bare, guarded = play(scenario)
    assert bare == guarded
    assert bare[-3] == ["SIGCONT", "SIGCONT", "SIGTERM", "SIGWINCH"]  # type: ignore[index]


@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1", "SIGHUP", "SIGINT", "SIGWINCH", "SIGCONT"])
def test_a_signal_to_the_launcher_is_passed_on_once(play: Play, name: str) -> None:
    def scenario(desk: Desk) -> object:
        probe = desk.probe(name, "SIGQUIT", "SIGWINCH", end="&")
        desk.terminal.expect(PROMPT)
        for number in (getattr(signal, name), signal.SIGQUIT):
            os.kill(job_of(desk), number)
            probe.await_note(number.name)
        probe.leave()
        desk.terminal.run("wait %1")
        return probe.noted(), desk.terminal.status()

    bare, guarded = play(scenario)
    assert bare == guarded == ([name, "SIGQUIT"], 7)


def test_a_command_that_somebody_stops_and_continues(play: Play) -> None:
    """Without the shell's knowledge, as cpulimit does: the launcher must not be left standing."""

    def scenario(desk: Desk) -> object:
        probe = desk.probe("SIGCONT", end="&")
        desk.terminal.expect(PROMPT)
        os.kill(probe.pid, signal.SIGSTOP)
        until(probe.stopped, "stopped")
        os.kill(probe.pid, signal.SIGCONT)
        probe.await_note("SIGCONT")
        probe.leave()
        until(lambda: "Exit 7" in desk.terminal.run("jobs"), "the job's end")
        return probe.noted()

    assert play(scenario) == (["SIGCONT"], ["SIGCONT"])


def test_a_background_job_that_reads_is_stopped(play: Play) -> None:
    def scenario(desk: Desk) -> object:
        terminal = desk.terminal
        terminal.run(f"{desk.prefix}bash -c 'read line; echo got $line' &")
        until(lambda: "Stopped" in terminal.run("jobs"), "stopped")
        story = [jobs(desk)]
        terminal.keys("fg\n")
        terminal.expect("bash -c .*\n")
        terminal.keys("a line\n")
        terminal.expect("got a line\n")
        terminal.expect(PROMPT)
        return [*story, terminal.status(), jobs(desk)]

    bare, guarded = play(scenario)
    assert bare == guarded == ["Stopped", 0, ""]


def test_an_interactive_shell_as_the_command(play: Play) -> None:
    """Its own job control, ``suspend`` and back, a status of its own, and the terminal back in our hands."""

    def scenario(desk: Desk) -> object:
        terminal = desk.terminal
        terminal.keys(f"PS1='inner> ' {desk.prefix}bash --norc --noprofile --noediting -i\n")
        terminal.expect("inner> ")
        terminal.keys("sleep 100\n")
        terminal.expect("sleep 100\n")
        until(lambda: foreground_of(terminal) == "sleep", "sleep in the foreground")
        terminal.keys("\x1a")
        story = [terminal.expect(r"(Stopped) +sleep 100")[1]]
        terminal.expect("inner> ")
        terminal.keys("suspend\n")
        terminal.expect(PROMPT)
        story.append(jobs(desk))
        terminal.keys("fg\n")
        terminal.keys("jobs\n")
        story.append(terminal.expect(r"(Stopped) +sleep 100")[1])
        terminal.keys("fg\n")
        until(lambda: foreground_of(terminal) == "sleep", "sleep in the foreground again")
        terminal.keys("\x03")
        terminal.expect("inner> ")
        terminal.keys("echo inner $?; exit 5\n")
        story.append(terminal.expect(r"inner (\d+)\n")[1])
        terminal.expect(PROMPT)
        return [*story, terminal.status(), terminal.run("echo outer"), foreground_of(terminal)]

    bare, guarded = play(scenario)
    assert bare == guarded == ["Stopped", "Stopped", "Stopped", "130", 5, "outer\n", "bash"]


def foreground_of(terminal: Terminal) -> str:
    """The program of the terminal's foreground group."""
    group = int(Path(f"/proc/{terminal.leader.pid}/stat").read_text().rpartition(")")[2].split()[5])
    return reading.exe_of(group)[1]


def test_a_command_with_a_group_of_its_own_hears_keys(play: Play) -> None:
    """timeout(1) leaves our group; without guardfs it leads the job's group already."""

    def scenario(desk: Desk) -> object:
        terminal = desk.terminal
        terminal.keys(f"{desk.prefix}timeout 100 sleep 100.25\n")
        until(lambda: pids_of("sleep", "100.25"), "sleep")
        terminal.keys("\x03")
        terminal.expect(PROMPT)
        return terminal.status(), pids_of("sleep", "100.25")

    bare, guarded = play(scenario)
    assert bare == guarded
    assert bare[1] == []  # type: ignore[index]


def pids_of(*argv: str) -> list[int]:
    found = []
    cmdline = "".join(f"{word}\x00" for word in argv)
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if (entry / "cmdline").read_text() == cmdline:
                    found.append(int(entry.name))
            except (OSError, UnicodeDecodeError):
                continue
    return found


def test_the_terminal_hangs_up(play: Play) -> None:
    """The kernel tells the session's leader alone (``ssh -t host guardfs run …``), who is COMMAND without guardfs."""

    def scenario(desk: Desk) -> object:
        notes = desk.base / f"hangup-{bool(desk.prefix)}"
        command = f"{desk.prefix}python3 {desk.base}/probe.py {notes} SIGHUP SIGCONT"
        terminal = Terminal(desk.base, command.split())
        probe = Probe(notes)
        terminal.hang_up()
        for name in ("SIGHUP", "SIGCONT"):
            probe.await_note(name)
        probe.leave()
        return terminal.leader.wait(), sorted(probe.noted())

    bare, guarded = play(scenario)
    assert bare == guarded == (7, ["SIGCONT", "SIGHUP"])


def test_ctrl_c_hastens_what_is_left_behind(play: Play) -> None:
    def scenario(desk: Desk) -> object:
        if not desk.prefix:
            return None
        terminal = desk.terminal
        terminal.keys(f"{desk.prefix.replace('run', 'run --wait', 1)}bash -c 'setsid sleep 100.5 & exit 3'\n")
        terminal.expect(r"waiting for what COMMAND left behind, sleep \(pid \d+\); Ctrl-C ends it")
        terminal.keys("\x03")
        terminal.expect("sending SIGTERM")
        terminal.expect(PROMPT)
        return terminal.status(), pids_of("sleep", "100.5")

    assert play(scenario)[1] == (3, [])
