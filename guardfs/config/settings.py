"""The settings as frozen data: defaults, bounds, and one line about each. The field names are the keys.

Must not know where a value comes from, or who uses it.
"""

import errno as errnos
from enum import StrEnum
from typing import Annotated, Literal

import msgspec

from guardfs.core.fingerprint import Match
from guardfs.core.policy import Append, Profile, Rules


def about(text: str, at_least: int | None = None, at_most: int | None = None) -> msgspec.Meta:
    """What a setting is for, in one line that ``guardfs config show`` and ``--help`` say, and its bounds."""
    if at_least is None or at_most is None:
        return msgspec.Meta(description=text) if at_least is None else msgspec.Meta(description=text, ge=at_least)
    return msgspec.Meta(description=text, ge=at_least, le=at_most)


class Errno(StrEnum):
    """What a refusal may fail with: errors that programs report. ENOSYS would stop the kernel asking us at all."""

    EIO = "EIO"
    EACCES = "EACCES"
    EPERM = "EPERM"
    EROFS = "EROFS"
    EBUSY = "EBUSY"


class Credit(StrEnum):
    """What makes a record."""

    OPEN = "open"
    BYTES = "bytes"


class Reads(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The table ``[reads]``: what counts as having seen a file."""

    ignore: Annotated[tuple[str, ...], about("programs whose opens are no reads, by name on PATH or by path")] = (
        "git",
        "jj",
        "svn",
    )
    credit: Annotated[
        Credit, about("what makes a record: 'open' for reading, or 'bytes', at least one read through the handle too")
    ] = Credit.OPEN


class VersionControl(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The table ``[vcs]``: who may replace what is clean in git."""

    programs: Annotated[
        tuple[str, ...], about("programs that may replace or re-create files which are clean in git")
    ] = ("git", "jj")


EXEMPT = (
    ".git/", ".hg/", ".svn/", ".jj/", "node_modules/", "__pycache__/", ".venv/", ".tox/", ".nox/", "target/",
    ".cache/", ".mypy_cache/", ".pytest_cache/", ".ruff_cache/", ".gradle/",
)  # fmt: skip
PROTECT = (".env", ".env.*", "*.pem", "*.key", "*.sqlite*", "*.db")


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All settings of a mount."""

    profile: Annotated[
        Profile,
        about(
            "'standard'; 'strict' has no derived tier and no git exception, and makes a first read settle too; "
            "'observe' refuses nothing and tells what it would have refused"
        ),
    ] = Profile.STANDARD
    match: Annotated[
        Match,
        about("what must be unchanged: 'strict' all, 'identity' inode and bytes, 'content' the bytes alone"),
    ] = Match.STRICT
    append: Annotated[Append, about("'check' judges an append like any write, 'allow' lets it pass")] = Append.CHECK
    settle: Annotated[
        float,
        about(
            "seconds until a read of other bytes than before counts for a write; 0 counts it at once",
            at_least=0,
            at_most=3600,
        ),
    ] = 1.0
    errno: Annotated[Errno, about("what a refusal fails with")] = Errno.EIO
    unknown_caller: Annotated[
        Literal["untracked", "tracked"],
        about("who a caller is that the daemon cannot see, as from another pid namespace; takes a new mount"),
    ] = "untracked"
    loop: Annotated[
        Literal["quick", "stock"],
        about("how requests are taken from the kernel; 'stock' is pyfuse3's own way; takes a new mount"),
    ] = "quick"
    hash_limit: Annotated[
        int,
        about("bytes; larger files are known by their stat fields alone, and every difference is a change", at_least=0),
    ] = 64 << 20
    max_records: Annotated[int, about("records per session; the least recently read goes first", at_least=1)] = 200_000
    exempt: Annotated[
        tuple[str, ...],
        about("what nothing is refused in: 'name/' a directory anywhere, '*.ext' a name anywhere, 'a/b' from the top"),
    ] = EXEMPT
    protect: Annotated[
        tuple[str, ...], about("what is guarded although .gitignore names it; patterns as in exempt")
    ] = PROTECT
    reads: Reads = Reads()
    vcs: VersionControl = VersionControl()

    @property
    def rules(self) -> Rules:
        """What decisions depend on."""
        return Rules(self.match, self.append, self.profile)

    @property
    def errno_number(self) -> int:
        """The errno of a refusal."""
        return int(getattr(errnos, self.errno.value))
