"""One repository: where it is, and what is read of it before any question is asked.

Used by ``workspace``, in a worker thread; finding out whether a directory begins a repository is quick.
"""

import os

from guardfs.vcs.attributes import Attributes, UnsureAttributes, macros, parse_attributes
from guardfs.vcs.globs import Matcher
from guardfs.vcs.ignore import parse_ignores
from guardfs.vcs.index import BadIndex, Index, parse_index
from guardfs.vcs.places import Places, Signature, Watch
from guardfs.vcs.settings import RULES_LIMIT, SETTINGS_LIMIT, GitDir, Settings, read_settings, system_attributes

_INDEX_LIMIT = 1 << 30
_POINTER = b"gitdir: "


def find_git_dir(watch: Watch, top: bytes) -> GitDir | None:
    """The repository whose work tree begins at ``top``; None if none does. setup.c in git."""
    try:
        own = _followed(watch, top)
        common = _common(watch, own) if own else None
    except OSError:
        return None
    if own is None or common is None:
        return None
    parts = [os.path.join(own, b"HEAD"), os.path.join(common, b"objects"), os.path.join(common, b"refs")]
    if not all(watch.look(part) for part in parts):
        return None
    for part in parts:
        watch.forget(part)  # Of a repository that is whole, they would only say that somebody works in it.
    return GitDir(own, common)


def _followed(watch: Watch, top: bytes) -> bytes | None:
    place = watch.look(os.path.join(top, b".git"))
    if place is None or watch.is_directory(place):
        return place
    text = watch.read(place, SETTINGS_LIMIT) or b""
    return watch.look(os.path.join(top, _pointer(text.removeprefix(_POINTER)))) if text.startswith(_POINTER) else None


def _common(watch: Watch, own: bytes) -> bytes | None:
    text = watch.read(os.path.join(own, b"commondir"), SETTINGS_LIMIT)
    return own if text is None else watch.look(os.path.join(own, _pointer(text)))


def _pointer(text: bytes) -> bytes:
    return text.rstrip(b"\r\n")


def find_top(watch: Watch) -> bytes | None:
    """Top of the work tree that the workspace belongs to: itself or above it, on the same file system."""
    places = watch.places
    top = places.mountpoint
    device = _device(places, top)
    while find_git_dir(watch, top) is None:
        place = watch.look(os.path.join(top, b".git"))
        above = os.path.dirname(top)
        # Git goes on above a directory that is no repository, but not above a file that leads to none.
        if (place and not watch.is_directory(place)) or above == top or _device(places, above) != device:
            return None
        top = above
    return top


def _device(places: Places, path: bytes) -> int | None:
    found = places.lstat(path)
    return found.st_dev if found else None


class Repository:
    """What lies outside of the work tree's own directories; complete once it was made, and never changed.

    ``index`` is None where something could not be read or understood: then nothing is ignored, since it might be
    tracked, and nothing is clean.
    """

    def __init__(self, places: Places, top: bytes, previous: "Repository | None" = None) -> None:
        self.top = top
        self.is_there = False
        self.watch = Watch(places)
        self.index: Index | None = None
        self.index_seen: Signature | None = None
        self.excludes: tuple[Matcher[bool], ...] = ()
        self.first_attributes: tuple[Attributes, ...] = ()
        """Those that outweigh what directories say."""
        self.last_attributes: tuple[Attributes, ...] = ()
        self.macros: frozenset[bytes] = frozenset()
        self.settings: Settings | None = None
        self.common: bytes | None = None
        """Where its objects are."""
        try:
            self._load(previous)
        except (OSError, ValueError, BadIndex, UnsureAttributes):
            self.index = None

    @property
    def ignores_case(self) -> bool:
        """Whether patterns do."""
        return self.settings is not None and self.settings.ignore_case

    def _load(self, previous: "Repository | None") -> None:
        git_dir = find_git_dir(self.watch, self.top)
        self.is_there = git_dir is not None
        if git_dir is None:
            return
        self.common = git_dir.common
        self.settings = read_settings(self.watch, git_dir)
        if self._is_elsewhere(git_dir, self.settings):
            return
        self._load_patterns(git_dir, self.settings)
        self.index = self._read_index(git_dir.own, self.settings.oid_bytes, previous)

    def _is_elsewhere(self, git_dir: GitDir, settings: Settings) -> bool:
        """Whether the settings say that there is no work tree, or that it is not what holds ``.git``."""
        if git_dir.is_linked:
            return False
        if settings.work_tree is None:
            return settings.is_bare
        return self.watch.look(os.path.join(git_dir.own, settings.work_tree)) != self.top

    def _load_patterns(self, git_dir: GitDir, settings: Settings) -> None:
        info = os.path.join(git_dir.common, b"info")
        excludes = [os.path.join(info, b"exclude"), os.path.join(self.top, settings.excludes_file)]
        self.excludes = tuple(parse_ignores(self._text(each), settings.ignore_case) for each in excludes)
        first = self._text(os.path.join(info, b"attributes"))
        last = [self._text(os.path.join(self.top, settings.attributes_file)), self._text(system_attributes())]
        top = self._text(os.path.join(self.top, b".gitattributes"))
        self.macros = frozenset().union(*map(macros, [first, top, *last]))
        self.first_attributes = (parse_attributes(first, self.macros, settings.ignore_case),)
        self.last_attributes = tuple(parse_attributes(each, self.macros, settings.ignore_case) for each in last)

    def _text(self, path: bytes | None) -> bytes:
        return self.watch.read(path, RULES_LIMIT) or b"" if path else b""

    def _read_index(self, own: bytes, oid_bytes: int, previous: "Repository | None") -> Index:
        path = os.path.join(own, b"index")
        place = self.watch.look(path)
        self.index_seen = self.watch.seen(place) if place else None
        if self._may_keep(previous, oid_bytes) and previous and previous.index:
            return previous.index
        index = parse_index(self.watch.read(path, _INDEX_LIMIT) or b"", oid_bytes)
        self.index_seen = self.watch.seen(place) if place else None
        if index.shared is not None and index.shared.strip(b"0"):
            shared = self.watch.read(os.path.join(own, b"sharedindex." + index.shared), _INDEX_LIMIT)
            if shared is None:
                raise BadIndex("the shared index is gone")
            index.join(parse_index(shared, oid_bytes))
        return index

    def _may_keep(self, previous: "Repository | None", oid_bytes: int) -> bool:
        """Whether the index is the one that was read before. A split one is in two files: read again."""
        return (
            previous is not None
            and previous.settings is not None
            and previous.settings.oid_bytes == oid_bytes
            and previous.index is not None
            and previous.index.shared is None
            and self.index_seen is not None
            and previous.index_seen == self.index_seen
        )
