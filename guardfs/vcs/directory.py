"""One directory of a workspace as git's rules see it: what they say below it, and whether that is still so.

Read when a question first needs it, and never changed after that. Used by ``workspace``.
"""

import os
import stat
import time
from collections.abc import Callable

from guardfs.vcs.attributes import Attributes, AttributeStack, UnsureAttributes, parse_attributes
from guardfs.vcs.globs import Matcher, Unmentioned
from guardfs.vcs.ignore import NOTHING_IGNORED, parse_ignores
from guardfs.vcs.places import Places, Signature, Watch, is_settled, signature
from guardfs.vcs.repository import Repository, find_git_dir
from guardfs.vcs.settings import RULES_LIMIT

_GIT, _IGNORE, _ATTRIBUTES = b".git", b".gitignore", b".gitattributes"

_Listing = tuple[int, int, int, int]


class Directory:
    """``parent`` is None at the top of what is looked at."""

    def __init__(
        self, places: Places, path: bytes, parent: "Directory | None", owner: Callable[[bytes], Repository | None]
    ) -> None:
        """``owner`` tells the repository that begins at a path, or None while it is not loaded."""
        self.path = path
        self.parent = parent
        self._places = places
        self._files: dict[bytes, Signature | None] = {}
        self._racy: dict[bytes, bytes] = {}
        """Rules that were written in the clock tick that they were read in: their bytes are compared as well."""
        self._listing, self._listing_is_settled = self._list()
        self._git: Watch | None = None
        self._ignores: tuple[tuple[Matcher[bool], int], ...] = ()
        self._attributes: tuple[tuple[Attributes, int], ...] = ()
        self._is_unsure = False
        self.is_pending = False
        """It begins a repository that is not loaded: nothing is known below it."""
        self._enter(owner)
        self._read_ignores()
        self._read_attributes()

    def is_current(self) -> bool:
        """Whether all that was read here is as it was: one stat, and one for each file of rules.

        It reads nothing, save for rules that were written an instant before they were first read.

        The others of the three names are looked at only when the directory itself has changed.
        """
        if self.is_pending:
            return False
        listing, is_settled_now = self._list()
        if (listing or ())[:2] != (self._listing or ())[:2]:
            return False  # Before any name in it is touched: it may be a link by now.
        is_same = listing == self._listing and self._listing_is_settled
        for name, seen in self._files.items():
            if (seen is not None or not is_same) and signature(self._places.lstat(self._below(name))) != seen:
                return False
        self._listing, self._listing_is_settled = listing, is_settled_now
        return all(map(self._reads_the_same, list(self._racy))) and (self._git is None or self._git.is_current())

    def ignores(self, path: bytes, is_directory: bool) -> bool:
        """Whether rules ignore a path of this directory, relative to the repository; the index is not asked."""
        if self.is_excluded:
            return True
        for matcher, offset in self._ignores:
            verdict = matcher.last(path[offset:], is_directory)
            if not isinstance(verdict, Unmentioned):
                return verdict
        return False

    def is_verbatim(self, path: bytes) -> bool:
        """Whether checking out a path of this directory, relative to the repository, writes the blob's bytes."""
        settings = self.repository.settings if self.repository else None
        return settings is not None and not self._is_unsure and self._stack.is_verbatim(path, settings.plain_line_ends)

    def _below(self, name: bytes) -> bytes:
        return os.path.join(self.path, name)

    def _list(self) -> tuple[_Listing | None, bool]:
        """Which directory this is and when its entries last changed; and whether a later change must show."""
        found = self._places.lstat(self.path)
        if found is None or not stat.S_ISDIR(found.st_mode):
            return None, True
        return (found.st_dev, found.st_ino, found.st_mtime_ns, found.st_ctime_ns), is_settled(found, time.time_ns())

    def _enter(self, owner: Callable[[bytes], Repository | None]) -> None:
        """Whose directory this is, and what it is called there."""
        self.begins = self._begins_repository()
        name = os.path.basename(self.path)
        if self.begins:
            self.repository, self.inside = owner(self.path), b""
            self.is_pending = self.repository is None
            self._git = None  # It watches itself.
        elif self.parent is None or name == _GIT:
            self.repository, self.inside = None, b""
        else:
            self.repository, self.inside = self.parent.repository, self.parent.inside + name + b"/"
        self._inherits = self.parent if self.parent and not self.begins else None
        self.is_excluded = self._inherits is not None and self._inherits.ignores(self.inside[:-1], is_directory=True)

    def _begins_repository(self) -> bool:
        self._files[_GIT] = signature(self._places.lstat(self._below(_GIT))) if self._listing else None
        if self._files[_GIT] is None:
            return False
        self._git = Watch(self._places)
        return find_git_dir(self._git, self.path) is not None

    def _read_ignores(self) -> None:
        if self._inherits:
            self._ignores = self._inherits._ignores
        elif self.repository:
            self._ignores = tuple((each, 0) for each in self.repository.excludes)
        try:
            text = self._rules(_IGNORE)
            own = parse_ignores(text, self._ignores_case()) if text else None
        except OSError:
            own = NOTHING_IGNORED
        if own:
            self._ignores = ((own, len(self.inside)), *self._ignores)

    def _read_attributes(self) -> None:
        above = self._inherits
        if above:
            self._is_unsure, self._attributes = above._is_unsure, above._attributes
        own: Attributes = {}
        try:
            text = self._rules(_ATTRIBUTES)
            if text and self.repository:
                own = parse_attributes(text, self.repository.macros, self._ignores_case())
        except (OSError, UnsureAttributes):
            self._is_unsure = True
        # Git falls back on the tracked file where there is none.
        index = self.repository.index if self.repository else None
        if index and self._files[_ATTRIBUTES] is None and index.tracks(self.inside + _ATTRIBUTES):
            self._is_unsure = True
        if own:
            self._attributes = ((own, len(self.inside)), *self._attributes)
        self._stack: AttributeStack = above._stack if above and not own else self._stacked()

    def _stacked(self) -> AttributeStack:
        if self.repository is None:
            return AttributeStack(())
        first = [(each, 0) for each in self.repository.first_attributes]
        return AttributeStack([*first, *self._attributes, *((each, 0) for each in self.repository.last_attributes)])

    def _ignores_case(self) -> bool:
        return self.repository is not None and self.repository.ignores_case

    def _rules(self, name: bytes) -> bytes | None:
        """What a file of rules holds; git follows no links here. Needs the place of the directory to be known.

        Raises:
            OSError: it is there and cannot be read.
        """
        found = self._places.lstat(self._below(name)) if self._listing else None
        self._files[name] = signature(found)
        if found is None or not stat.S_ISREG(found.st_mode):
            return None
        now_ns = time.time_ns()
        text, found = self._places.read(self._below(name), RULES_LIMIT)
        self._files[name] = signature(found)
        if is_settled(found, now_ns):
            self._racy.pop(name, None)
        else:
            self._racy[name] = text
        return text

    def _reads_the_same(self, name: bytes) -> bool:
        """Read rules again that cannot be told by their times; once their tick is over this is for the last time."""
        before = self._racy[name]
        try:
            return self._rules(name) == before
        except OSError:
            return False
