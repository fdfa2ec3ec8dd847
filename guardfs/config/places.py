"""Where guardfs keeps its own state."""

import hashlib
import os
import re
from pathlib import Path

from guardfs.errors import ExitCode, GuardfsError


def state_root() -> Path:
    """Where guardfs keeps its own state: ``$GUARDFS_STATE``, else below ``$XDG_STATE_HOME``.

    The XDG base directory specification puts the default at ``~/.local/state`` and has relative values
    ignored.
    """
    own = os.environ.get("GUARDFS_STATE")
    if own:
        return Path(os.path.abspath(own))
    xdg = os.environ.get("XDG_STATE_HOME", "")
    return (Path(xdg) if os.path.isabs(xdg) else _home() / ".local" / "state") / "guardfs"


def _home() -> Path:
    try:
        return Path.home()
    except RuntimeError as error:
        raise GuardfsError(
            "this user has no home directory; set GUARDFS_STATE to a directory", ExitCode.CONFIG
        ) from error


def state_dir(workspace: str) -> Path:
    """The state directory of one workspace: readable first, unique by the escaped path."""
    readable = re.sub(r"[^A-Za-z0-9.-]+", "_", workspace).strip("_")[-40:]
    return state_root() / f"{readable}-{hashlib.sha256(os.fsencode(workspace)).hexdigest()[:12]}"
