"""Which read counts when, with a clock of the test's own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from guardfs.core.fingerprint import Match
from guardfs.core.model import FileId, Fingerprint, How, ProcId, Record, SessionId, Stamp
from guardfs.guard.sessions import Session
from guardfs.guard.settling import Settling
from guardfs.state.schema import SessionKind, SessionRow
from guardfs.state.store import open_store

FILE, OTHER = FileId(1, 2), FileId(1, 3)
SETTLE = 1.0


def state(data: bytes, file: FileId = FILE, time: int = 10) -> Fingerprint:
    return Fingerprint(Stamp(file, len(data), time, time), data)


def record(data: bytes, file: FileId = FILE, how: How = How.READ) -> Record:
    return Record(state(data, file), 10**12, how, b"f")


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    store = open_store(tmp_path / "store", lambda aside, reason: None)
    row = SessionRow(SessionId("s"), SessionKind.RUN, "s", ProcId(1, 1), "", None, 0)
    made = Session(row, store, 100, lambda _: None)
    made.put(record(b"a"), b"f")
    yield made
    store.close()


def read(session: Session, data: bytes, now_s: float, file: FileId = FILE, match: Match = Match.STRICT) -> None:
    known = session.find(file, b"f")
    assert known is not None
    session.unsettle(known, state(data, file), match, now_s, SETTLE, b"f")
    session.put(record(data, file), b"f")


def judged(session: Session, now_s: float, file: FileId = FILE) -> tuple[bytes | None, bool]:
    found, settling = session.judged_by(file, b"f", now_s, SETTLE)
    return found.fingerprint.digest if found else None, settling


def test_other_bytes_settle(session: Session) -> None:
    read(session, b"b", now_s=5)
    assert judged(session, 5) == (b"a", True)
    assert judged(session, 5.9) == (b"a", True)
    assert judged(session, 6) == (b"b", False)


def test_reading_the_same_state_again_starts_nothing_again(session: Session) -> None:
    read(session, b"b", now_s=5)
    read(session, b"b", now_s=5.9)
    assert judged(session, 6) == (b"b", False)


def test_a_state_that_comes_back_has_been_seen(session: Session) -> None:
    read(session, b"b", now_s=5)
    read(session, b"c", now_s=5.5)
    read(session, b"b", now_s=6.2)
    assert judged(session, 6.2) == (b"b", False)


def test_what_counts_is_the_last_that_settled(session: Session) -> None:
    read(session, b"b", now_s=5)
    read(session, b"c", now_s=5.5)
    assert judged(session, 5.9) == (b"a", True)
    read(session, b"d", now_s=9)
    assert judged(session, 9) == (b"c", True)


def test_no_settling_where_the_time_is_zero(session: Session) -> None:
    known = session.find(FILE, b"f")
    assert known is not None
    session.unsettle(known, state(b"b"), Match.STRICT, 5, 0, b"f")
    session.put(record(b"b"), b"f")
    assert session.judged_by(FILE, b"f", 5, 0)[1] is False


def test_the_same_bytes_in_another_file_settle_as_they_would_have(session: Session) -> None:
    read(session, b"b", now_s=5)
    read(session, b"b", now_s=5.5, file=OTHER)
    assert judged(session, 5.9, OTHER) == (b"a", True)
    assert judged(session, 6, OTHER) == (b"b", False)


def test_a_touch_needs_no_settling(session: Session) -> None:
    known = session.find(FILE, b"f")
    assert known is not None
    session.unsettle(known, state(b"a", time=99), Match.STRICT, 5, SETTLE, b"f")
    assert judged(session, 5)[1] is False


def test_a_new_turn_settles_all(session: Session) -> None:
    read(session, b"b", now_s=5)
    session.begin_turn()
    assert judged(session, 5) == (b"b", False)


def test_an_own_write_is_known_at_once(session: Session) -> None:
    read(session, b"b", now_s=5)
    session.settle(FILE)
    session.put(record(b"c", how=How.WRITE))
    assert judged(session, 5) == (b"c", False)


def test_of_a_dead_file_the_settled_record_is_kept(session: Session) -> None:
    read(session, b"b", now_s=5)
    session.bury(FILE, 5.5, SETTLE)
    assert judged(session, 5.5) == (b"a", False)


def test_a_first_read_that_has_to_settle(session: Session) -> None:
    session.unsettle_first(state(b"x", OTHER), 5, SETTLE)
    session.put(record(b"x", OTHER), b"g")
    assert session.judged_by(OTHER, b"g", 5.5, SETTLE) == (None, True)
    found, settling = session.judged_by(OTHER, b"g", 6, SETTLE)
    assert (found is not None, settling) == (True, False)


def test_what_waits_is_bounded_by_time() -> None:
    settling = Settling()
    for number in range(5000):
        settling.begin(state(b"x", FileId(1, number)), None, number / 1000, SETTLE)
    assert len(settling._waiting) <= 1001
    assert len(settling._sights) <= 4096
