"""The commands. Each turns its arguments into one call and prints the outcome."""

import os
import signal
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import exceptions as typer_errors

from guardfs import __version__
from guardfs.cli.options import takes_settings
from guardfs.core.wording import escape
from guardfs.errors import ExitCode, GuardfsError, say

if TYPE_CHECKING:
    from guardfs.control.protocol import Begun, Plan

app = typer.Typer(
    name="guardfs",
    help="A file system that keeps a coding agent from destroying work it has not seen.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

AllowOtherOption = Annotated[bool, typer.Option("--allow-other", help="Let other users in; root's mounts always do.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, one object a line.")]
PathArgument = Annotated[str, typer.Argument(metavar="[PATH]", help="Any path in the workspace or mount.")]


Flags = dict[str, Any]
"""The settings that were given as options; those left out leave ``.guardfs.toml`` its say."""


def _label(given: str) -> str:
    """A session's name goes into the log and the store, which hold no raw bytes."""
    return escape(os.fsencode(given))


def _pid(given: str) -> int:
    if not given.isdecimal() or int(given) < 1:
        raise typer.BadParameter(f"{given!r} is no process id")
    return int(given)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"guardfs {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _top(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command(
    help="Mount over WORKSPACE, run COMMAND there as a tracked session, unmount, exit with its status.",
    short_help="Mount, run COMMAND as a tracked session, unmount.",
    options_metavar="[OPTIONS]",
)
@takes_settings
def run(
    workspace: Annotated[str, typer.Argument(metavar="WORKSPACE", help="The directory to guard.")],
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND...", help="What to run, and its arguments.")],
    wait: Annotated[bool, typer.Option("--wait", help="Wait for all that COMMAND leaves behind.")] = False,
    label: Annotated[str | None, typer.Option("--label", help="A name for the session.")] = None,
    allow_other: AllowOtherOption = False,
    flags: Flags = {},  # noqa: B006 - never changed
) -> None:
    """``guardfs run``."""
    from guardfs.daemon.checks import check, plan_for
    from guardfs.launcher import run as launch

    plan = plan_for(workspace, None, flags=flags, allow_other=allow_other)
    check(plan)
    raise typer.Exit(launch(plan, command, label=_label(label or os.path.basename(command[0])), wait=wait))


@app.command(
    help="Mount over WORKSPACE, or at MOUNTPOINT; returns when the mount is usable.",
    short_help="Mount and return when the mount is usable.",
)
@takes_settings
def mount(
    workspace: Annotated[str, typer.Argument(metavar="WORKSPACE", help="The directory to guard.")],
    mountpoint: Annotated[
        str | None, typer.Argument(metavar="[MOUNTPOINT]", help="Where to show it instead of over itself.")
    ] = None,
    foreground: Annotated[bool, typer.Option("--foreground", help="Serve until stopped.")] = False,
    track_all: Annotated[bool, typer.Option("--track-all", help="Track every process: one session.")] = False,
    track_exe: Annotated[
        list[str] | None,
        typer.Option("--track-exe", metavar="NAME", help="Track each tree whose root runs this program."),
    ] = None,
    allow_other: AllowOtherOption = False,
    flags: Flags = {},  # noqa: B006 - never changed
) -> None:
    """``guardfs mount``."""
    from guardfs.daemon.checks import check, plan_for

    names = tuple(name for given in track_exe or [] for name in given.split(",") if name)
    plan = plan_for(
        workspace,
        mountpoint,
        flags=flags,
        track_all=track_all,
        track_exe=names,
        allow_other=allow_other,
    )
    check(plan)
    if foreground:
        from guardfs.daemon.service import serve

        serve(plan, lambda begun: _guarded(plan, begun))
        return
    from guardfs.control import client

    daemon, begun = client.start(plan)
    daemon.returncode = 0  # It outlives us on purpose.
    _guarded(plan, begun)


@app.command(
    help="Track a running process, with its living descendants, as a session of its own.",
    short_help="Track a running process and its descendants.",
)
def track(
    pid: Annotated[
        int, typer.Argument(metavar="PID", help="The root of the tree, e.g. the agent's shell.", parser=_pid)
    ],
    path: Annotated[str | None, typer.Argument(metavar="[PATH]", help="A path in the mount.")] = None,
    label: Annotated[str, typer.Option("--label", help="A name for the session.")] = "",
) -> None:
    """``guardfs track``."""
    from guardfs.cli.actions import track as act

    _print(act(pid, path, _label(label)))


@app.command(help="End the mount that PATH lies in; clears a dead one too.")
def unmount(
    path: Annotated[str, typer.Argument(metavar="PATH", help="The workspace or mount point.")],
) -> None:
    """``guardfs unmount``."""
    from guardfs.cli.actions import unmount as act

    _print(act(path))


@app.command(help="Show sessions, their counts, and what records are worth.")
def status(path: PathArgument = "", as_json: JsonOption = False) -> None:
    """``guardfs status``."""
    from guardfs.cli.views import status as view

    view(path or None, as_json=as_json)


@app.command(help="Show what was refused and noticed, oldest first.")
def log(
    path: PathArgument = ".",
    as_json: JsonOption = False,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on as events arrive.")] = False,
) -> None:
    """``guardfs log``."""
    from guardfs.cli.views import log as view

    view(path, as_json=as_json, follow=follow)


@app.command(help="Explain the last refusals of PATH: what differs, and what to do.")
def why(
    path: Annotated[str, typer.Argument(metavar="PATH", help="The file that was refused.")],
    as_json: JsonOption = False,
) -> None:
    """``guardfs why``."""
    from guardfs.cli.views import why as view

    view(path, as_json=as_json)


@app.command(help="Begin a new turn: what was read so far counts at once.")
def turn(path: PathArgument = ".") -> None:
    """``guardfs turn``."""
    from guardfs.cli.actions import turn as act

    _print(act(path))


settings_app = typer.Typer(name="config", help="Show and check settings files.", rich_markup_mode=None)
app.add_typer(settings_app)


@settings_app.command(name="show", help="Print a .guardfs.toml with every setting, commented out, at its default.")
def config_show() -> None:
    """``guardfs config show``."""
    from guardfs.cli.settings import show

    print(show())


@settings_app.command(name="check", help="Say whether FILE is a settings file that a mount would take.")
def config_check(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A .guardfs.toml, or what may become one.")],
) -> None:
    """``guardfs config check``."""
    from guardfs.cli.settings import check

    for line in check(file):
        _print(line)


def _guarded(plan: "Plan", begun: "Begun") -> None:
    for warning in begun.warnings:
        say(warning)
    _print(f"{plan.mountpoint} is guarded; log: {plan.state / 'log'}")


def _print(line: str) -> None:
    """One line, whatever names are in it."""
    print(escape(os.fsencode(line)), flush=True)


def main() -> None:
    """The installed command: every failure is one line on stderr, with its exit code."""
    try:
        code = app(standalone_mode=False)
    except GuardfsError as error:
        code = _failed(str(error), error.code)
    except typer_errors.TyperException as error:
        code = _failed(f"{_one_line(error)}; see '{_command(error)} --help'", ExitCode.USAGE)
    except (KeyboardInterrupt, typer_errors.Abort):
        code = ExitCode.SIGNALLED + signal.SIGINT
    except BrokenPipeError:
        # Whoever read our output has had enough; do not complain again when stdout is closed at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        code = ExitCode.OK
    except OSError as error:
        code = _failed(f"{error.filename or 'system call'}: {error.strerror}", ExitCode.SOFTWARE)
    sys.exit(code)


def _failed(message: str, code: ExitCode) -> ExitCode:
    say(message)
    return code


def _command(error: typer_errors.TyperException) -> str:
    """The command that was meant, as far as it was understood."""
    context = getattr(error, "ctx", None)
    return str(context.command_path) if context else "guardfs"


def _one_line(error: typer_errors.TyperException) -> str:
    text = " ".join(error.format_message().replace("Value error, ", "").split()).rstrip(".")
    return text[:1].lower() + text[1:]
