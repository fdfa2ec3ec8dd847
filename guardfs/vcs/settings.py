"""Git's configuration, as far as it bears on what is ignored and what is clean: git-config(1).

dulwich parses it, one section at a time and without includes: it would resolve their paths itself, and walk into
the mount. Used by ``repository``.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO

from dulwich.config import ConfigFile

from guardfs.vcs.globs import matches
from guardfs.vcs.index import SHA1_BYTES, SHA256_BYTES
from guardfs.vcs.places import Watch

SETTINGS_LIMIT = 1 << 20
"""Bytes of a file of settings that are read: more is none."""

RULES_LIMIT = 1 << 16
"""The same of a file of patterns, which can be read on the event loop: a thousand take it 50 ms or so."""

_INCLUDES = 10
"""Files that include each other: MAX_INCLUDE_DEPTH in git's config.c."""

_TRUE = {b"true", b"yes", b"on"}
_FALSE = {b"false", b"no", b"off", b""}
_OID_BYTES = {b"sha1": SHA1_BYTES, b"sha256": SHA256_BYTES}


@dataclass(frozen=True, slots=True)
class GitDir:
    """Where a repository keeps its things; both are free of links."""

    own: bytes
    """HEAD and the index of this work tree."""
    common: bytes
    """What all its work trees share."""

    @property
    def is_linked(self) -> bool:
        """Whether this is one of several work trees, and not the main one."""
        return self.own != self.common


@dataclass(frozen=True, slots=True)
class Settings:
    """What was read, in git's own words where a path is meant."""

    ignore_case: bool
    plain_line_ends: bool
    """Line ends are left alone where no attribute speaks."""
    oid_bytes: int
    is_bare: bool
    work_tree: bytes | None
    excludes_file: bytes
    attributes_file: bytes


def read_settings(watch: Watch, git_dir: GitDir) -> Settings:
    """Read all files that apply, system first, the repository's own last.

    Raises:
        OSError: a file cannot be read.
        ValueError: a file or a value is not understood; git itself would give up.
    """
    values: dict[bytes, bytes] = {}
    for file in [*_files_of_everybody(), os.path.join(git_dir.common, b"config")]:
        values |= _read(watch, file, git_dir)
    if _is_true(values.get(b"extensions.worktreeconfig", b"")):
        values |= _read(watch, os.path.join(git_dir.own, b"config.worktree"), git_dir)
    auto, eol = values.get(b"core.autocrlf", b"").lower(), values.get(b"core.eol", b"native").lower()
    return Settings(
        ignore_case=_is_true(values.get(b"core.ignorecase", b"")),
        plain_line_ends=auto != b"input" and not _is_true(auto) and eol in {b"lf", b"native"},
        oid_bytes=_oid_bytes(values.get(b"extensions.objectformat", b"sha1")),
        is_bare=_is_true(values.get(b"core.bare", b"")),
        work_tree=values.get(b"core.worktree"),
        excludes_file=os.path.expanduser(values.get(b"core.excludesfile", _user_file(b"ignore"))),
        attributes_file=os.path.expanduser(values.get(b"core.attributesfile", _user_file(b"attributes"))),
    )


def system_attributes() -> bytes | None:
    """The attributes file of the whole machine."""
    return None if _is_true(os.environb.get(b"GIT_ATTR_NOSYSTEM", b"")) else b"/etc/gitattributes"


def _files_of_everybody() -> Iterator[bytes]:
    if not _is_true(os.environb.get(b"GIT_CONFIG_NOSYSTEM", b"")):
        yield os.environb.get(b"GIT_CONFIG_SYSTEM", b"/etc/gitconfig")
    if b"GIT_CONFIG_GLOBAL" in os.environb:
        yield os.environb[b"GIT_CONFIG_GLOBAL"]
    else:
        yield _user_file(b"config")
        yield os.path.expanduser(b"~/.gitconfig")


def _user_file(name: bytes) -> bytes:
    home = os.environb.get(b"XDG_CONFIG_HOME") or os.path.expanduser(b"~/.config")
    return os.path.join(home, b"git", name)


def _is_true(value: bytes) -> bool:
    """git_parse_maybe_bool() in git's parse.c, without the units of its numbers."""
    word = value.lower()
    return word in _TRUE or (word not in _FALSE and int(word) != 0)


def _oid_bytes(name: bytes) -> int:
    if name not in _OID_BYTES:
        raise ValueError(f"object format {name!r}")
    return _OID_BYTES[name]


def _read(watch: Watch, file: bytes, git_dir: GitDir, depth: int = 0) -> dict[bytes, bytes]:
    """Values by ``section.name``, the last of each; sections with a name of their own play no part."""
    values: dict[bytes, bytes] = {}
    for section, name, value in _lines(watch.read(file, SETTINGS_LIMIT) or b""):
        if name == b"path" and _includes(watch, section, file, git_dir):
            if depth == _INCLUDES:
                raise ValueError("too many includes")
            place = os.path.join(os.path.dirname(file), os.path.expanduser(value))
            values |= _read(watch, place, git_dir, depth + 1)
        elif len(section) == 1:
            values[section[0] + b"." + name] = value
    return values


def _lines(text: bytes) -> Iterator[tuple[tuple[bytes, ...], bytes, bytes]]:
    """Section, name and value in the order of the file, which dulwich keeps within a section only."""
    part: list[bytes] = []
    for line in [*text.splitlines(keepends=True), b"["]:
        if line.lstrip().startswith(b"["):
            parsed = ConfigFile.from_file(BytesIO(b"".join(part)), expand_includes=False)
            for section in parsed.sections():
                for name, value in parsed.items(section):
                    yield (section[0].lower(), *section[1:]), name.lower(), value
            part = []
        part.append(line)


def _includes(watch: Watch, section: tuple[bytes, ...], file: bytes, git_dir: GitDir) -> bool:
    """Whether a path in this section names a file to include; of the conditions, ``hasconfig`` never holds."""
    if section[0] != b"includeif" or len(section) == 1:
        return section == (b"include",)
    kind, _, glob = section[1].partition(b":")
    if kind in {b"gitdir", b"gitdir/i"}:
        return matches(_full_glob(glob, file), git_dir.own, ignore_case=kind == b"gitdir/i")
    head = watch.read(os.path.join(git_dir.own, b"HEAD"), SETTINGS_LIMIT) or b""
    branch = head.rstrip(b"\n").removeprefix(b"ref: refs/heads/")
    return kind == b"onbranch" and matches(_open_ended(glob), branch, ignore_case=False)


def _full_glob(glob: bytes, file: bytes) -> bytes:
    """prepare_include_condition_pattern() in git's config.c."""
    if glob.startswith(b"./"):
        glob = os.path.dirname(file) + glob[1:]
    glob = os.path.expanduser(glob)
    return _open_ended(glob if glob.startswith(b"/") else b"**/" + glob)


def _open_ended(glob: bytes) -> bytes:
    return glob + b"**" if glob.endswith(b"/") else glob
