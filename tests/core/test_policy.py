"""The decision table of the contract, written out, and how records move on."""

import pytest

from guardfs.core.fingerprint import Match
from guardfs.core.intent import Intent
from guardfs.core.model import FileId, Fingerprint, How, Record, Stamp
from guardfs.core.policy import (
    Append,
    Git,
    Profile,
    Rules,
    Target,
    Tier,
    carried_record,
    closed_record,
    decide,
    frees,
    needs_git,
    proved_record,
    read_record,
    written_record,
)
from guardfs.core.tiers import Patterns, tier_of
from guardfs.core.verdict import ALLOW, WORDING, Deny, Reason, wording

CHANGED = {
    Target.UNREAD: Reason.UNREAD,
    Target.TOUCHED: Reason.TOUCHED,
    Target.REPLACED: Reason.REPLACED,
    Target.MODIFIED: Reason.MODIFIED,
    Target.GONE: Reason.GONE,
    Target.FREED: Reason.FREED,
}
WRITING = [intent for intent in Intent if intent is not Intent.READ]
RULES = Rules()


@pytest.mark.parametrize("intent", WRITING)
@pytest.mark.parametrize("target", Target)
def test_guarded(intent: Intent, target: Target) -> None:
    expected = Deny(CHANGED[target]) if target in CHANGED else ALLOW
    assert decide(intent, target, Tier.GUARDED, RULES) == expected


@pytest.mark.parametrize("target", Target)
def test_reading_is_never_refused(target: Target) -> None:
    for tier in Tier:
        assert decide(Intent.READ, target, tier, RULES) == ALLOW


@pytest.mark.parametrize("intent", WRITING)
@pytest.mark.parametrize("target", Target)
def test_exempt_and_policy(intent: Intent, target: Target) -> None:
    assert decide(intent, target, Tier.EXEMPT, RULES) == ALLOW
    assert decide(intent, target, Tier.POLICY, RULES) == Deny(Reason.POLICY)


@pytest.mark.parametrize("target", Target)
def test_append_may_pass(target: Target) -> None:
    rules = Rules(append=Append.ALLOW)
    assert decide(Intent.APPEND, target, Tier.GUARDED, rules) == ALLOW
    assert decide(Intent.WRITE, target, Tier.GUARDED, rules) == decide(Intent.WRITE, target, Tier.GUARDED, RULES)


@pytest.mark.parametrize("intent", WRITING)
@pytest.mark.parametrize("target", Target)
def test_derived(intent: Intent, target: Target) -> None:
    """What git ignores may be made anew; what somebody has changed since it was seen may not."""
    passes = target in {Target.KNOWN, Target.UNREAD, Target.GONE, Target.FREED, Target.ABSENT}
    assert decide(intent, target, Tier.DERIVED, RULES) == (ALLOW if passes else Deny(CHANGED[target]))


CLEAN = {
    # (intent, target, by git): allowed
    (Intent.DELETE, Target.UNREAD, False),
    (Intent.DELETE, Target.UNREAD, True),
    (Intent.REPLACE, Target.UNREAD, True),
    *((intent, target, True) for intent in (Intent.DELETE, Intent.REPLACE) for target in
      (Target.TOUCHED, Target.REPLACED, Target.MODIFIED)),
}  # fmt: skip


@pytest.mark.parametrize("by_vcs", [False, True])
@pytest.mark.parametrize("intent", WRITING)
@pytest.mark.parametrize("target", [Target.UNREAD, Target.TOUCHED, Target.REPLACED, Target.MODIFIED, Target.GONE])
def test_clean_in_git(intent: Intent, target: Target, by_vcs: bool) -> None:
    expected = ALLOW if (intent, target, by_vcs) in CLEAN else Deny(CHANGED[target])
    assert decide(intent, target, Tier.GUARDED, RULES, Git(by_vcs, clean=True)) == expected


@pytest.mark.parametrize("intent", [Intent.CREATE, Intent.REPLACE])
def test_a_freed_name_is_for_version_control(intent: Intent) -> None:
    assert decide(intent, Target.FREED, Tier.GUARDED, RULES, Git(by_vcs=True)) == ALLOW
    assert decide(intent, Target.FREED, Tier.GUARDED, RULES, Git(clean=True)) == Deny(Reason.FREED)


def test_only_the_deletion_of_what_was_not_seen_frees() -> None:
    assert frees(Intent.DELETE, Target.UNREAD, Tier.GUARDED)
    assert not frees(Intent.DELETE, Target.KNOWN, Tier.GUARDED)
    assert not frees(Intent.DELETE, Target.UNREAD, Tier.DERIVED)
    assert not frees(Intent.REPLACE, Target.UNREAD, Tier.GUARDED)


@pytest.mark.parametrize("intent", WRITING)
@pytest.mark.parametrize("target", Target)
@pytest.mark.parametrize("tier", Tier)
def test_git_is_asked_exactly_where_it_may_matter(intent: Intent, target: Target, tier: Tier) -> None:
    answers = [Git(), Git(clean=True), Git(by_vcs=True), Git(by_vcs=True, clean=True)]
    asks = needs_git(intent, target, tier, RULES)
    if not asks:
        for by_vcs in (False, True):
            verdicts = {decide(intent, target, tier, RULES, git) for git in answers if git.by_vcs == by_vcs}
            verdicts |= {decide(intent, target, Tier.DERIVED, RULES)} if tier is Tier.GUARDED and not by_vcs else set()
            assert len(verdicts) == 1
    assert not needs_git(intent, target, tier, Rules(profile=Profile.STRICT))


def test_every_reason_has_its_words() -> None:
    assert set(WORDING) == set(Reason)
    assert all(each.sentence and each.advice for each in WORDING.values())
    assert wording(Reason.UNREAD, settling=True) != wording(Reason.UNREAD)
    assert wording(Reason.MODIFIED, settling=True) != wording(Reason.MODIFIED)
    assert wording(Reason.TOUCHED, settling=True) == WORDING[Reason.TOUCHED]


@pytest.mark.parametrize(
    ("path", "tier"),
    [
        (b"f", Tier.GUARDED),
        (b".git", Tier.GUARDED),
        (b".git/index", Tier.EXEMPT),
        (b"sub/.git/refs/heads/x", Tier.EXEMPT),
        (b"x.git/f", Tier.GUARDED),
        (b"a/.gitignore", Tier.GUARDED),
        (b".guardfs.toml", Tier.POLICY),
        (b"a/.guardfs.toml", Tier.GUARDED),
        (b"\xff/.git/\n", Tier.EXEMPT),
    ],
)
def test_tier(path: bytes, tier: Tier) -> None:
    assert tier_of(path, Patterns([".git/"])) is tier


BEFORE = Stamp(FileId(1, 2), 3, 10, 10)
AFTER = Stamp(FileId(1, 2), 3, 10, 99)
RECORD = Record(Fingerprint(BEFORE, b"a"), 50, How.READ, b"f")


def test_a_record_is_carried_only_from_the_stamp_it_had() -> None:
    assert carried_record(RECORD, BEFORE, AFTER).fingerprint == Fingerprint(AFTER, b"a")
    assert carried_record(RECORD, AFTER, BEFORE) == RECORD


def test_carrying_keeps_the_time_of_taking_so_that_bytes_are_compared_next() -> None:
    assert carried_record(RECORD, BEFORE, AFTER).taken_ns == RECORD.taken_ns


def test_writing_closes_into_knowing() -> None:
    written = written_record(AFTER, 60, How.CREATE)
    assert written.fingerprint.digest is None
    closed = closed_record(written, Fingerprint(AFTER, b"b"), 70)
    assert (closed.fingerprint.digest, closed.taken_ns, closed.how) == (b"b", 70, How.CREATE)


def test_reading_and_proving() -> None:
    assert read_record(Fingerprint(AFTER, b"b"), 60).how is How.READ
    own = Record(Fingerprint(BEFORE, b"b"), 50, How.CREATE)
    assert read_record(Fingerprint(AFTER, b"b"), 60, own).how is How.CREATE
    assert read_record(Fingerprint(AFTER, b"c"), 60, own).how is How.READ
    unproved = Record(Fingerprint(BEFORE, b"a"), 50, How.WRITE, b"f", proved=False)
    assert proved_record(unproved, Fingerprint(AFTER, b"a"), 60).proved


def test_the_default_is_strict() -> None:
    assert (RULES.match, RULES.append) == (Match.STRICT, Append.CHECK)
