"""The commands. Each turns its arguments into one call and prints the outcome."""

import os
import sys
from collections.abc import Iterable
from typing import Annotated, Any

import typer
from typer import exceptions as typer_errors

from guardfs import __version__
from guardfs.core.fingerprint import Match
from guardfs.core.policy import Append
from guardfs.errors import ExitCode, GuardfsError

app = typer.Typer(
    name="guardfs",
    help="A file system that keeps a coding agent from destroying work it has not seen.",
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

MatchOption = Annotated[
    Match | None,
    typer.Option("--match", help="What must be unchanged for a record to be good.", show_default="strict"),
]
AppendOption = Annotated[
    Append | None,
    typer.Option("--append", help="Whether an append is judged like any write.", show_default="check"),
]
ErrnoOption = Annotated[
    str | None, typer.Option("--errno", metavar="NAME", help="The errno of a refusal.", show_default="EIO")
]
AllowOtherOption = Annotated[bool, typer.Option("--allow-other", help="Let other users in; root's mounts always do.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, one object a line.")]
PathArgument = Annotated[str, typer.Argument(metavar="[PATH]", help="Any path in the workspace or mount.")]


def _flags(**given: Any) -> dict[str, Any]:
    """The settings that flags set; those left out leave ``.guardfs.toml`` its say."""
    return {key: getattr(value, "value", value) for key, value in given.items() if value is not None}


def _version(wanted: bool) -> None:
    if wanted:
        print(f"guardfs {__version__}")
        raise typer.Exit


@app.callback()
def _top(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


@app.command(
    help="Mount over WORKSPACE, run COMMAND there as a tracked session, unmount, exit with its status.",
    options_metavar="[OPTIONS]",
)
def run(
    workspace: Annotated[str, typer.Argument(metavar="WORKSPACE", help="The directory to guard.")],
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND...", help="What to run, and its arguments.")],
    wait: Annotated[bool, typer.Option("--wait", help="Wait for all that COMMAND leaves behind.")] = False,
    label: Annotated[str | None, typer.Option("--label", help="A name for the session.")] = None,
    match: MatchOption = None,
    append: AppendOption = None,
    errno: ErrnoOption = None,
    allow_other: AllowOtherOption = False,
) -> None:
    """``guardfs run``."""
    from guardfs.daemon.checks import check, plan_for
    from guardfs.launcher import run as launch

    flags = _flags(match=match, append=append, errno=errno)
    plan = plan_for(workspace, None, flags=flags, allow_other=allow_other)
    check(plan)
    raise typer.Exit(launch(plan, command, label=label or os.path.basename(command[0]), wait=wait))


@app.command(help="Mount over WORKSPACE, or at MOUNTPOINT; returns when the mount is usable.")
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
    match: MatchOption = None,
    append: AppendOption = None,
    errno: ErrnoOption = None,
) -> None:
    """``guardfs mount``."""
    from guardfs.daemon.checks import check, plan_for

    names = tuple(name for given in track_exe or [] for name in given.split(",") if name)
    plan = plan_for(
        workspace,
        mountpoint,
        flags=_flags(match=match, append=append, errno=errno),
        track_all=track_all,
        track_exe=names,
        allow_other=allow_other,
    )
    check(plan)
    if foreground:
        from guardfs.daemon.service import serve

        serve(plan, lambda begun: _warn(begun.warnings))
        return
    from guardfs.control import client

    daemon, begun = client.start(plan)
    daemon.returncode = 0  # It outlives us on purpose.
    _warn(begun.warnings)
    print(f"{plan.mountpoint} is guarded; log: {plan.state / 'log'}")


@app.command(help="Track a running process, with its living descendants, as a session of its own.")
def track(
    pid: Annotated[int, typer.Argument(metavar="PID", help="The root of the tree, e.g. the agent's shell.", min=1)],
    path: Annotated[str | None, typer.Argument(metavar="[PATH]", help="A path in the mount.")] = None,
    label: Annotated[str, typer.Option("--label", help="A name for the session.")] = "",
) -> None:
    """``guardfs track``."""
    from guardfs.cli.actions import track as act

    print(act(pid, path, label))


@app.command(help="End the mount that PATH lies in; clears a dead one too.")
def unmount(
    path: Annotated[str, typer.Argument(metavar="PATH", help="The workspace or mount point.")],
) -> None:
    """``guardfs unmount``."""
    from guardfs.cli.actions import unmount as act

    print(act(path))


@app.command(help="Show sessions, their counts, and what their records are worth now.")
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


def _warn(warnings: Iterable[str]) -> None:
    for warning in warnings:
        print(f"guardfs: {warning}", file=sys.stderr)


def main() -> None:
    """The installed command: every failure is one line on stderr, with its exit code."""
    code = ExitCode.OK
    try:
        code = app(standalone_mode=False)
    except GuardfsError as error:
        _fail(str(error), error.code)
    except typer_errors.TyperException as error:
        _fail(f"{_one_line(error)}; see 'guardfs --help'", ExitCode.USAGE)
    except (KeyboardInterrupt, typer_errors.Abort):
        sys.exit(ExitCode.SIGNALLED + 2)
    except BrokenPipeError:
        # Whoever read our output has had enough; do not complain again when stdout is closed at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(ExitCode.OK)
    sys.exit(code)


def _fail(message: str, code: int) -> None:
    print(f"guardfs: {message}", file=sys.stderr)
    sys.exit(code)


def _one_line(error: typer_errors.TyperException) -> str:
    text = " ".join(error.format_message().split()).rstrip(".")
    return text[:1].lower() + text[1:]
