"""The decision: pure tables over plain data, and how a record moves on.

``decide`` is the whole contract of what is refused. Must not look at a file, a clock or a process; ``guard``
brings what it needs.
"""

from collections.abc import Iterable
from enum import StrEnum

import msgspec

from guardfs.core.fingerprint import Difference, Match, by_bytes
from guardfs.core.intent import Intent
from guardfs.core.model import Fingerprint, How, Record, Stamp
from guardfs.core.verdict import ALLOW, Deny, Reason, Verdict


class Target(StrEnum):
    """What the target of an operation is to the session that asks."""

    KNOWN = "known"
    UNREAD = "unread"
    TOUCHED = "touched"
    REPLACED = "replaced"
    MODIFIED = "modified"
    GONE = "gone"
    FREED = "freed"
    ABSENT = "absent"


class Tier(StrEnum):
    """How much of the rule applies at a path, from least to most."""

    EXEMPT = "exempt"
    DERIVED = "derived"
    GUARDED = "guarded"
    POLICY = "policy"


class Append(StrEnum):
    """Whether an append to a file that the session does not know is judged like any write."""

    CHECK = "check"
    ALLOW = "allow"


class Profile(StrEnum):
    """How much of the whole rule is in force."""

    STANDARD = "standard"
    STRICT = "strict"
    OBSERVE = "observe"


class Rules(msgspec.Struct, frozen=True, gc=False):
    """The settings that a decision depends on."""

    match: Match = Match.STRICT
    append: Append = Append.CHECK
    profile: Profile = Profile.STANDARD


class Git(msgspec.Struct, frozen=True, gc=False):
    """What version control has to do with an operation.

    ``by_vcs``: a version-control program asks. ``clean``: the file's bytes are what git's index holds.
    """

    by_vcs: bool = False
    clean: bool = False


NO_GIT = Git()

_FOUND = {
    Difference.SAME: Target.KNOWN,
    Difference.TOUCHED: Target.TOUCHED,
    Difference.REPLACED: Target.REPLACED,
    Difference.MODIFIED: Target.MODIFIED,
}

_REFUSED = {
    Target.UNREAD: Reason.UNREAD,
    Target.TOUCHED: Reason.TOUCHED,
    Target.REPLACED: Reason.REPLACED,
    Target.MODIFIED: Reason.MODIFIED,
    Target.GONE: Reason.GONE,
    Target.FREED: Reason.FREED,
}
_NO_BYTES_OF_OTHERS = (Target.UNREAD, Target.GONE, Target.FREED)
"""What the derived tier lets pass: nobody has made a change that the session thinks it knows."""
_TAKES_AWAY = (Intent.DELETE, Intent.REPLACE)
"""After these git can bring back what the index holds."""


def strictest(tiers: Iterable[Tier]) -> Tier:
    """The tier of bytes that several names lead to."""
    return max(tiers, key=list(Tier).index)


def target_of(difference: Difference | None) -> Target:
    """What a file is to a session: its record's difference from now, or None where there is no record."""
    return Target.UNREAD if difference is None else _FOUND[difference]


def refusal(target: Target) -> Reason | None:
    """Why an operation on such a target is refused where the whole rule applies; None where it is not."""
    return _REFUSED.get(target)


def needs_git(intent: Intent, target: Target, tier: Tier, rules: Rules) -> bool:
    """Whether what git says of a path may change the verdict; nobody asks it otherwise."""
    if tier is not Tier.GUARDED or rules.profile is Profile.STRICT or target not in _REFUSED:
        return False
    return target in _NO_BYTES_OF_OTHERS or intent in _TAKES_AWAY


def decide(intent: Intent, target: Target, tier: Tier, rules: Rules, git: Git = NO_GIT) -> Verdict:
    """The verdict for one operation on one regular file or free name."""
    if intent is Intent.READ or tier is Tier.EXEMPT:
        return ALLOW
    if tier is Tier.POLICY:
        return Deny(Reason.POLICY)
    if intent is Intent.APPEND and rules.append is Append.ALLOW:
        return ALLOW
    reason = refusal(target)
    if reason is None or _is_excused(intent, target, tier, git):
        return ALLOW
    return Deny(reason)


def _is_excused(intent: Intent, target: Target, tier: Tier, git: Git) -> bool:
    """Whether nothing can be lost though the session has not seen it.

    An unread file that is clean in git may be deleted by anybody. A version-control program may also replace it,
    and do both to one that has changed since the session saw it: a branch switched by somebody else, and back.
    """
    if tier is Tier.DERIVED:
        return target in _NO_BYTES_OF_OTHERS
    if target is Target.FREED:
        return git.by_vcs
    if not git.clean or target is Target.GONE:
        return False
    return intent in _TAKES_AWAY if git.by_vcs else intent is Intent.DELETE and target is Target.UNREAD


def frees(intent: Intent, target: Target, tier: Tier) -> bool:
    """Whether an allowed deletion leaves its name *freed*: what stood there is in git, and the session never saw it."""
    return intent is Intent.DELETE and tier is Tier.GUARDED and target is not Target.KNOWN


def read_record(seen: Fingerprint, taken_ns: int, earlier: Record | None = None) -> Record:
    """The record of a session that has just been given these bytes; its own bytes stay its own."""
    own = earlier is not None and earlier.fingerprint.digest == seen.digest
    return Record(seen, taken_ns, earlier.how if earlier is not None and own else How.READ)


def is_other_state(known: Record, seen: Fingerprint, match: Match) -> bool:
    """Whether a read has found other bytes than a record has, so that the new one has to settle."""
    return by_bytes(known, seen, match) is Difference.MODIFIED


def written_record(stamp: Stamp, taken_ns: int, how: How = How.WRITE) -> Record:
    """The record between a session's own write and its close: the stamp is known, the digest not yet."""
    return Record(Fingerprint(stamp, None), taken_ns, how)


def closed_record(record: Record, seen: Fingerprint, taken_ns: int) -> Record:
    """The record of a session whose writes are done; what it wrote, it has seen."""
    return msgspec.structs.replace(record, fingerprint=seen, taken_ns=taken_ns, proved=True)


def proved_record(record: Record, seen: Fingerprint, taken_ns: int) -> Record:
    """A record whose bytes have just been compared and found the same: its stamp is good again."""
    return msgspec.structs.replace(record, fingerprint=seen, taken_ns=taken_ns, proved=True)


def carried_record(record: Record, before: Stamp, after: Stamp) -> Record:
    """The record after a change of names, mode, owner or times by the session itself.

    Only a record that was good by its stamp is carried: another's change in between must stay visible.
    ``taken_ns`` stays, so that the new ctime makes the record racy and the next verdict compares bytes.
    """
    if record.fingerprint.stamp != before:
        return record
    return msgspec.structs.replace(record, fingerprint=Fingerprint(after, record.fingerprint.digest))
