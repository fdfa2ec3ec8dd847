"""What guardfs answers, and the one table of why it refuses.

Must not know how a refusal is delivered: a Deny is a value here and an exception only from ``guard`` upwards.
"""

from enum import StrEnum

import msgspec


class Reason(StrEnum):
    """Stable identifiers: scripts and harnesses match on them, so none is ever renamed."""

    UNREAD = "unread"
    MODIFIED = "modified"
    TOUCHED = "touched"
    REPLACED = "replaced"
    GONE = "gone"
    FREED = "freed"
    POLICY = "policy"


class Allow(msgspec.Struct, frozen=True, gc=False):
    """The operation may go on."""


class Deny(msgspec.Struct, frozen=True, gc=False):
    """The operation must not happen, for one reason."""

    reason: Reason


Verdict = Allow | Deny
ALLOW = Allow()


class Wording(msgspec.Struct, frozen=True, gc=False):
    """What a person or an agent is told about a reason: what is so, and what to do next."""

    sentence: str
    advice: str


WORDING: dict[Reason, Wording] = {
    Reason.UNREAD: Wording("this session has never read the file", "read the file, then write again"),
    Reason.MODIFIED: Wording(
        "the bytes have changed since this session last read or wrote the file",
        "read the file again, carry the other change over, then write",
    ),
    Reason.TOUCHED: Wording(
        "somebody has saved the file since this session last saw it (same bytes, new mtime)",
        "read the file again, then write",
    ),
    Reason.REPLACED: Wording(
        "another file with the same bytes stands at this name since this session last saw it",
        "read the file again, then write",
    ),
    Reason.GONE: Wording(
        "somebody else has deleted or moved the file that this session knew at this name",
        "check that it should come back; if so, write again: the next attempt is allowed",
    ),
    Reason.FREED: Wording(
        "this session has deleted the file that stood here without having read it; what it held is still in git",
        "bring it back with 'git checkout -- FILE' (or 'git restore'), read it, then write",
    ),
    Reason.POLICY: Wording(
        "the file is guardfs's own policy, which no session may change",
        "leave it alone and ask the person who owns the workspace",
    ),
}

_SETTLING = {
    Reason.UNREAD: Wording(
        "this session has only just read the file for the first time, an instant before it writes",
        "look at what you have read; then write again, which is allowed in a moment",
    ),
    Reason.MODIFIED: Wording(
        "the bytes have changed, and this session has only just read the new ones, an instant before it writes",
        "look at the change and carry it over; then write again, which is allowed in a moment",
    ),
}

MIXED = (
    "a version-control program goes on with the other files after this one, and may even exit 0: the work tree can be "
    "mixed now, this file as it was and others already changed; 'git status' shows which"
)
"""What a refusal means for the whole command, where git and its like are refused one file of many."""


def wording(reason: Reason, *, settling: bool = False) -> Wording:
    """What is told about a reason; ``settling``: the session has read the present bytes, too short a time ago."""
    return (_SETTLING.get(reason) if settling else None) or WORDING[reason]
