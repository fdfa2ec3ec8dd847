"""The settings in force, what follows from them, and how a changed ``.guardfs.toml`` is taken up.

Used by every judged request; must not decide. All of it belongs to the event loop, but for ``find``, which blocks.
"""

import time
from collections.abc import Callable

import trio

from guardfs import config
from guardfs.config import Settings
from guardfs.core.tiers import Patterns
from guardfs.errors import GuardfsError
from guardfs.procs import reading
from guardfs.procs.reading import ExeId

_SAVING_NS = 200_000_000
"""How long an empty settings file may be one that somebody is about to write, in ns."""
_AT_MOUNT = ("unknown_caller", "loop")
"""What a running mount cannot change any more."""

Programs = tuple[frozenset[ExeId], frozenset[ExeId]]
"""The files of ``reads.ignore`` and of ``vcs.programs``."""


class Rulebook:
    """Invariant: ``settings`` are whole and valid; a file that is neither leaves them as they were."""

    def __init__(self, workspace_fd: int, workspace: str, flags: config.Values, tell: Callable[[str], None]) -> None:
        """``tell`` is given one line when settings are taken up or cannot be. Raises GuardfsError."""
        self._workspace = (workspace_fd, workspace, flags)
        self._tell = tell
        self._seen = config.signature(workspace_fd)
        self.programs_changed = trio.Event()
        self.programs: Programs = (frozenset(), frozenset())
        self._adopt(config.load(*self._workspace))

    def refresh(self) -> bool:
        """Take up the settings file if it has changed; whether anything did. One stat(2) where nothing has."""
        seen = config.signature(self._workspace[0])
        if seen == self._seen or _is_being_saved(seen):
            return False
        self._seen = seen
        try:
            return self._take_up(config.load(*self._workspace))
        except GuardfsError as error:
            self._tell(f"not taken up, the old settings stay: {error}")
            return False

    def find(self) -> Programs:
        """The files that the program lists mean now. Blocks: call it in a worker thread, or before mounting."""
        settings = self.settings
        return reading.find_programs(settings.reads.ignore), reading.find_programs(settings.vcs.programs)

    def is_ignored_reader(self, exe: ExeId | None) -> bool:
        """Whether opens by this program are no reads."""
        return exe in self.programs[0]

    def is_vcs(self, exe: ExeId | None) -> bool:
        """Whether this is a version-control program."""
        return exe in self.programs[1]

    def _take_up(self, settings: Settings) -> bool:
        old = self.settings
        changed = [key for key in settings.__struct_fields__ if getattr(old, key) != getattr(settings, key)]
        if not changed:
            return False
        self._adopt(settings)
        later = [key for key in changed if key in _AT_MOUNT]
        note = f"; {', '.join(later)} counts from the next mount on" if later else ""
        self._tell(f"taken up: {', '.join(changed)}{note}")
        if {"reads", "vcs"} & set(changed):
            self.programs_changed.set()
        return True

    def _adopt(self, settings: Settings) -> None:
        self.settings = settings
        self.rules = settings.rules
        self.exempt = Patterns(settings.exempt)
        self.protect = Patterns(settings.protect)


def _is_being_saved(seen: config.Signature) -> bool:
    """An editor that saves in place empties the file first: what it means then, nobody has meant."""
    if not seen:
        return False
    _, _, size, mtime_ns, _ = seen
    return size == 0 and 0 <= time.time_ns() - mtime_ns < _SAVING_NS
