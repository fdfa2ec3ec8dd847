"""The decision table of the contract, written out, and how records move on."""

import pytest

from guardfs.core.fingerprint import Match
from guardfs.core.intent import Intent
from guardfs.core.model import FileId, Fingerprint, How, Record, Stamp
from guardfs.core.policy import (
    Append,
    Rules,
    Target,
    Tier,
    carried_record,
    closed_record,
    decide,
    proved_record,
    read_record,
    written_record,
)
from guardfs.core.tiers import tier_of
from guardfs.core.verdict import ALLOW, WORDING, Deny, Reason

CHANGED = {
    Target.UNREAD: Reason.UNREAD,
    Target.TOUCHED: Reason.TOUCHED,
    Target.REPLACED: Reason.REPLACED,
    Target.MODIFIED: Reason.MODIFIED,
    Target.GONE: Reason.GONE,
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


def test_every_reason_has_its_words() -> None:
    assert set(WORDING) == set(Reason)
    assert all(wording.sentence and wording.advice for wording in WORDING.values())


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
    assert tier_of(path, (b".git",)) is tier


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
