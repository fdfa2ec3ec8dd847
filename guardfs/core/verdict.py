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
    Reason.POLICY: Wording(
        "the file is guardfs's own policy, which no session may change",
        "leave it alone and ask the person who owns the workspace",
    ),
}
