"""The scripts that prepare a machine, seen from outside.

Most tests run them on a `Machine`: a folder with a copy of the tree, and a PATH that holds a few real tools
and stand-ins for everything that would install or be installed, so that a first run takes milliseconds.
"""

import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import pytest

ROOT = Path(__file__).parents[2]
REAL_TOOLS = "bash cat chmod cp dirname env flock grep ln mkdir readlink rm tail touch".split()
DEBIAN_PROGRAMS = "fusermount3 gcc pkg-config git make node npm patch rsync bindfs rg sqlite3 getfattr setfacl".split()
NOBODY = 65534

# One program under many names. It notes each call; a file fail-WHAT beside it makes WHAT fail with its text.
STAND_IN = r"""#!/usr/bin/env bash
machine='{machine}'
name=${{0##*/}}
printf '%s\n' "$name ${{*//$'\n'/ }}" >>"$machine/calls"
case "$name $*" in
  'python3 -I -c '*) what=probe ;;
  'python3 -I -m venv '*) what=venv ;;
  'python -I -m pip '*) what=pip ;;
  *) what=$name ;;
esac
if [[ -e $machine/fail-$what ]]; then
  cat "$machine/fail-$what"
  exit 1
fi
case "$name $*" in
  'apt-get '*' install '*)
    ln -sf "$machine/stand-in" "$machine/bin/fusermount3" && touch "$machine/libfuse3"
    ;;
  'pkg-config --exists fuse3') [[ -e $machine/libfuse3 ]] ;;
  'python3 -I -c '*) printf '%s\n' "$machine/bin/python3" ;;
  'python3 -I -m venv '*)
    [[ ! -p $machine/gate ]] || read -r <"$machine/gate"
    mkdir -p "${{*: -1}}/bin" && cp "$machine/stand-in" "${{*: -1}}/bin/python"
    ;;
  'python -I -m pip install '*)
    for tool in guardfs pytest ruff mypy lint-imports; do ln -sf "$machine/stand-in" "${{0%/*}}/$tool"; done
    ;;
  'python -I '*/bench.py*) printf '%s\n' "$*" ;;
  'guardfs show '*) shift && printf '%s\0' "$@" && cat ;;
  'guardfs env') env -0 ;;
  'guardfs pid') printf '%s\n' "$$" ;;
  'guardfs exit '*) exit "$2" ;;
  'guardfs kill '*) kill "-$2" "$$" ;;
  'pytest '*) printf '%s\n' "$*" "long=${{GUARDFS_LONG:-}}" "$PWD" "${{PATH%%:*}}" ;;
esac
"""


class Machine:
    """A machine with everything that Debian provides, and nothing set up yet."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tree = folder / "a tree"
        self.bin = folder / "bin"
        self.calls = folder / "calls"
        self.cache = folder / "cache" / "guardfs"
        shutil.copytree(ROOT / "scripts", self.tree / "scripts")
        shutil.copytree(ROOT / ".ci", self.tree / ".ci")
        shutil.copy(ROOT / "pyproject.toml", self.tree)
        self.stand_in = folder / "stand-in"
        self.stand_in.write_text(STAND_IN.format(machine=folder))
        self.stand_in.chmod(0o755)
        self.bin.mkdir()
        for tool in REAL_TOOLS:
            real = shutil.which(tool)
            assert real
            (self.bin / tool).symlink_to(real)
        for program in ["apt-get", "python3", *DEBIAN_PROGRAMS]:
            (self.bin / program).symlink_to(self.stand_in)
        (folder / "libfuse3").touch()
        self.forget_calls()

    @property
    def env(self) -> dict[str, str]:
        return {"PATH": str(self.bin), "HOME": "/nowhere", "XDG_CACHE_HOME": str(self.folder / "cache")}

    @property
    def venv(self) -> Path:
        (venv,) = self.cache.glob("venv-*")
        return venv

    def forget_calls(self) -> None:
        self.calls.write_text("")
        self.calls.chmod(0o666)  # for nobody, too

    def called(self, beginning: str) -> list[str]:
        return [call for call in self.calls.read_text().splitlines() if call.startswith(beginning)]

    def fail(self, what: str, output: str) -> None:
        (self.folder / f"fail-{what}").write_text(output)

    def repair(self, what: str) -> None:
        (self.folder / f"fail-{what}").unlink()

    def lacks(self, program: str) -> None:
        (self.bin / program).unlink()

    def script(self, name: str) -> str:
        return str(self.tree / "scripts" / name)

    def run(
        self,
        *command: str,
        env: dict[str, str] | None = None,
        cwd: Path | None = None,
        stdin: str = "",
        as_nobody: bool = False,
    ) -> subprocess.CompletedProcess[str]:
        nobody = NOBODY if as_nobody and os.geteuid() == 0 else None
        return subprocess.run(
            [*([] if as_nobody else as_root()), *command],
            env=self.env if env is None else env,
            cwd=cwd or "/",
            input=stdin,
            user=nobody,
            group=nobody,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )

    def guardfs(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.run(self.script("guardfs"), *arguments)


def as_root(*more: str) -> list[str]:
    """The prefix under which a command finds itself root, in new namespaces if more are asked for."""
    options = [*([] if os.geteuid() == 0 else ["--map-root-user"]), *more]
    unshare = shutil.which("unshare")
    assert unshare
    return [unshare, *options] if options else []


@pytest.fixture
def machine() -> Iterator[Machine]:
    # Not tmp_path, whose parents are closed to nobody.
    with tempfile.TemporaryDirectory(prefix="guardfs-machine-") as folder:
        Path(folder).chmod(0o755)
        yield Machine(Path(folder))


@pytest.fixture
def ready(machine: Machine) -> Machine:
    """A machine on which guardfs has run before."""
    assert machine.guardfs("exit", "0").returncode == 0
    machine.forget_calls()
    return machine


# The real thing


def test_overhead_over_the_installed_program_is_below_50_ms() -> None:
    venv = Path(sys.prefix)
    env = os.environ | {"XDG_CACHE_HOME": str(venv.parents[1])}

    def milliseconds(program: Path) -> float:
        start = time.perf_counter()
        done = subprocess.run([program, "--version"], env=env, cwd="/", capture_output=True, text=True, check=False)
        elapsed = time.perf_counter() - start
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        return elapsed * 1000

    script, installed = ROOT / "scripts" / "guardfs", venv / "bin" / "guardfs"
    milliseconds(script)
    # In turns, so that a busy machine slows both alike.
    overheads = [milliseconds(script) - milliseconds(installed) for _ in range(20)]
    assert median(overheads) < 50


# What guardfs is handed


def test_first_run_sets_up_and_the_second_starts_nothing_else(machine: Machine) -> None:
    first = machine.guardfs("show", "x")
    assert (first.returncode, first.stdout) == (0, "x\0")
    assert [line.split(":")[0] for line in first.stderr.splitlines()] == ["guardfs", "guardfs"]
    machine.forget_calls()

    second = machine.guardfs("show", "x")
    assert (second.returncode, second.stdout, second.stderr) == (0, "x\0", "")
    assert machine.calls.read_text() == "guardfs show x\n"


def test_arguments_and_input_arrive_as_they_were(machine: Machine) -> None:
    arguments = ["", "a b", "*", "--", "-x", "line\nbreak", "$HOME"]
    for _ in ("first run", "second run"):
        done = machine.run(machine.script("guardfs"), "show", *arguments, stdin="fed\n")
        assert done.stdout.split("\0") == [*arguments, "fed\n"]


def test_environment_arrives_as_it_was(ready: Machine) -> None:
    names = "tree cache venv stamp text hash i byte extra python packages project log".split()
    env = ready.env | {name: f"my {name}" for name in names} | {"LC_ALL": "C.UTF-8"}
    done = ready.run(ready.script("guardfs"), "env", env=env)
    arrived = dict(line.split("=", 1) for line in done.stdout.split("\0") if line)
    assert {name: arrived.get(name) for name in env} == env
    assert arrived.keys() - env.keys() <= {"PWD", "OLDPWD", "SHLVL", "_"}


def test_process_status_and_signals_are_those_of_guardfs(ready: Machine) -> None:
    with subprocess.Popen([ready.script("guardfs"), "pid"], env=ready.env, stdout=subprocess.PIPE, text=True) as child:
        assert child.communicate(timeout=30)[0] == f"{child.pid}\n"
    assert ready.guardfs("exit", "42").returncode == 42
    assert ready.guardfs("kill", "TERM").returncode == -signal.SIGTERM


def test_works_from_anywhere_and_through_links(ready: Machine) -> None:
    link = ready.folder / "link"
    link.symlink_to(ready.script("guardfs"))
    link_to_link = ready.folder / "bin" / "guarded"
    link_to_link.symlink_to("../link")
    scripts = ready.tree / "scripts"
    for command, cwd in [
        ([str(link)], Path("/")),
        (["guarded"], Path("/")),
        (["./guardfs"], scripts),
        (["bash", "guardfs"], scripts),
        (["scripts/guardfs"], ready.tree),
    ]:
        env = ready.env | {"CDPATH": "/:/usr"}
        done = ready.run("env", *command, "show", "x", env=env, cwd=cwd)
        assert (done.stdout, done.stderr) == ("x\0", ""), (command, done)


def test_without_home_the_cache_lies_in_the_users_own(machine: Machine) -> None:
    machine.fail("venv", "broken\n")
    done = machine.run(machine.script("guardfs"), env={"PATH": str(machine.bin)}, as_nobody=True)
    user = pwd.getpwuid(NOBODY if os.geteuid() == 0 else os.geteuid())
    assert f"{user.pw_dir}/.cache/guardfs" in done.stderr


# When something is missing


def test_without_root_one_line_says_what_to_install_and_nothing_is_installed(machine: Machine) -> None:
    for program in ("fusermount3", "gcc", "pkg-config"):
        machine.lacks(program)
    done = machine.run(machine.script("guardfs"), "--version", as_nobody=True)
    assert (done.returncode, done.stdout) == (69, "")
    assert done.stderr == (
        "guardfs: packages are missing; install them with: sudo apt-get install -y fuse3 gcc pkg-config libfuse3-dev\n"
    )
    assert not machine.called("apt-get")
    assert not machine.cache.exists()


def test_root_installs_exactly_what_is_missing(machine: Machine) -> None:
    machine.lacks("fusermount3")
    (machine.folder / "libfuse3").unlink()
    done = machine.guardfs("exit", "0")
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("guardfs: installing Debian packages: fuse3 libfuse3-dev\n")
    (install,) = [call for call in machine.called("apt-get") if " install " in call]
    assert install.endswith(" --no-install-recommends fuse3 libfuse3-dev")


def test_ready_machine_that_lost_a_program_gets_only_that(ready: Machine) -> None:
    for program in ("fusermount3", "gcc"):
        ready.lacks(program)
    assert ready.guardfs("exit", "0").returncode == 0
    assert [call for call in ready.called("apt-get") if call.endswith(" fuse3")]
    assert not ready.called("python")


def test_where_apt_is_unknown_the_packages_are_named(machine: Machine) -> None:
    for program in ("apt-get", "gcc"):
        machine.lacks(program)
    done = machine.guardfs()
    assert (done.returncode, done.stderr) == (69, "guardfs: missing here, by their Debian names: gcc\n")


def test_python_that_is_too_old_is_said(machine: Machine) -> None:
    machine.fail("probe", "")
    done = machine.guardfs()
    assert done.returncode == 69
    assert done.stderr == "guardfs: Python 3.11 or newer is needed; put one first in PATH\n"


def test_cache_that_cannot_be_written_is_said(machine: Machine) -> None:
    (machine.folder / "cache").touch()
    done = machine.guardfs()
    assert done.returncode == 73
    assert done.stderr == (f"guardfs: cannot write to {machine.cache}; set XDG_CACHE_HOME to a folder of yours\n")


@pytest.mark.parametrize("name", ["guardfs", "check"])
def test_no_fuse_device_is_no_matter_of(name: str, ready: Machine) -> None:
    assert without_fuse(ready, name).returncode == 0


def test_no_fuse_device_stops_the_tests(ready: Machine) -> None:
    done = without_fuse(ready, "test")
    assert done.returncode == 69
    assert "guardfs: there is no /dev/fuse: " in done.stderr.splitlines()[-1]
    assert not ready.called("pytest")


def without_fuse(machine: Machine, name: str) -> subprocess.CompletedProcess[str]:
    """Run a script where a regular file lies over /dev/fuse, for its mount namespace alone."""
    mount = shutil.which("mount")
    hide = f'{mount} --bind /etc/hostname /dev/fuse && exec "$@"'
    return machine.run(*as_root("--mount"), "bash", "-c", hide, "bash", machine.script(name))


# When a step fails, or two come at once


@pytest.mark.parametrize(
    ("program", "step"), [("venv", "making a virtual environment"), ("pip", "installing Python packages")]
)
def test_failed_step_is_explained_and_taken_up_again(machine: Machine, program: str, step: str) -> None:
    machine.fail(program, "Looking\nERROR: No route to host\nnote: a hint\n")
    done = machine.guardfs("show")
    assert (done.returncode, done.stdout) == (71, "")
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"guardfs: failed: {step}")
    assert last.endswith(f": ERROR: No route to host (all of it: {machine.cache}/setup.log)")
    assert "note: a hint" in (machine.cache / "setup.log").read_text()

    machine.repair(program)
    machine.forget_calls()
    assert machine.guardfs("exit", "0").returncode == 0
    assert len(machine.called("python3 -I -m venv")) == 1, "what was half done is begun anew"


def test_failed_apt_is_explained(machine: Machine) -> None:
    machine.lacks("fusermount3")
    machine.fail("apt-get", "Reading package lists...\nE: Unable to locate package fuse3\n")
    done = machine.guardfs()
    assert done.returncode == 71
    assert "fuse3: E: Unable to locate package fuse3 (all of it: " in done.stderr.splitlines()[-1]
    assert not machine.called("python3 -I -m venv")


def test_two_first_runs_share_one_setup(machine: Machine) -> None:
    gate = machine.folder / "gate"
    os.mkfifo(gate)
    command = [*as_root(), machine.script("guardfs"), "show", "x"]

    def start() -> subprocess.Popen[str]:
        return subprocess.Popen(
            command,
            env=machine.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    # The gate opens once the first run is making the venv.
    with start() as first, gate.open("w", buffering=1) as opened, start() as second:
        assert second.stderr
        assert second.stderr.readline() == "guardfs: waiting for another setup to finish\n"
        opened.write("go\n")
        for run in (first, second):
            assert run.communicate(timeout=30)[0] == "x\0"
            assert run.returncode == 0
    assert len(machine.called("python3 -I -m venv")) == 1
    assert len(machine.called("python -I -m pip")) == 1


# When the tree or the machine changes


def test_changed_requirement_is_installed_into_the_venv_there_is(ready: Machine) -> None:
    project = ready.tree / "pyproject.toml"
    project.write_text(project.read_text().replace("[project]", "[project]\n# changed", 1))
    assert ready.guardfs("exit", "0").returncode == 0
    assert not ready.called("python3 -I -m venv")
    assert len(ready.called("python -I -m pip")) == 1


def test_changed_tool_settings_install_nothing(ready: Machine) -> None:
    with (ready.tree / "pyproject.toml").open("a") as project:
        project.write("\n[tool.new]\n")
    assert ready.guardfs("exit", "0").stderr == ""


def test_venv_whose_interpreter_went_away_is_made_anew(ready: Machine) -> None:
    python = ready.venv / "bin" / "python"
    python.unlink()
    python.symlink_to("/nowhere/python3.11")
    assert ready.guardfs("exit", "0").returncode == 0
    assert len(ready.called("python3 -I -m venv")) == 1


def test_moved_tree_gets_a_venv_of_its_own(ready: Machine) -> None:
    ready.tree = ready.tree.rename(ready.folder / "moved")
    assert ready.guardfs("exit", "0").returncode == 0
    assert len(list(ready.cache.glob("venv-*"))) == 2


def test_the_tests_need_more_than_running_does(ready: Machine) -> None:
    assert ready.run(ready.script("test")).returncode == 0
    (install,) = ready.called("python -I -m pip")
    assert install.endswith("/a tree[dev]")
    ready.forget_calls()
    assert ready.guardfs("exit", "0").stderr == "", "and what they got serves for running"


# What the other scripts run


def test_tests_run_in_the_tree_without_the_long_ones(machine: Machine) -> None:
    done = machine.run(machine.script("test"), "-k", "a b", "tests/core")
    assert done.stdout.splitlines() == [
        "-m not long -k a b tests/core",
        "long=",
        str(machine.tree),
        str(machine.venv / "bin"),
    ]


def test_the_benchmark_gets_its_arguments(ready: Machine) -> None:
    done = ready.run(ready.script("bench"), "--rounds", "1")
    assert done.stdout.splitlines()[0] == f"-I {ready.tree}/scripts/lib/bench.py --rounds 1"


def test_long_tests_are_asked_for(ready: Machine) -> None:
    done = ready.run(ready.script("test"), "--long", "-x")
    assert done.stdout.splitlines()[:2] == ["-o faulthandler_timeout=7200 -x", "long=1"]


def test_all_checks_run_even_if_one_fails(ready: Machine) -> None:
    ready.fail("mypy", "no such type\n")
    done = ready.run(ready.script("check"))
    assert done.returncode == 1
    assert done.stdout.endswith("\nfailed:\n  mypy\n")
    assert ready.called("ruff") == ["ruff format --check", "ruff check"]
    assert ready.called("lint-imports") == ["lint-imports --no-logo"]

    ready.repair("mypy")
    assert ready.run(ready.script("check")).returncode == 0


@pytest.mark.parametrize(("failing", "status"), [(None, 0), ("check", 1), ("test", 1)])
def test_ci_runs_both_and_fails_if_either_does(machine: Machine, failing: str | None, status: int) -> None:
    for name in ("check", "test"):
        Path(machine.script(name)).write_text(f"#!/usr/bin/env bash\nexit {int(name == failing)}\n")
    done = machine.run("bash", str(machine.tree / ".ci" / "run"))
    assert done.returncode == status
    expected = ["==== scripts/check", "==== scripts/test"]
    if failing:
        expected.insert(expected.index(f"==== scripts/{failing}") + 1, f"==== scripts/{failing} failed")
    assert done.stdout.splitlines() == expected
