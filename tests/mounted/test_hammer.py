"""Two sessions of several processes on the same files: nobody's version goes without its end having been seen."""

import json
import os
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import MakeMount
from tests.helpers.mounted import Mount
from tests.helpers.shell import Shell

FILES = 20
SESSIONS = {"a": 4, "b": 2}
"""How many processes each has."""
ROUNDS = 3000 if os.environ.get("GUARDFS_LONG") else 250
PROGRAM = Path(__file__).parents[1] / "helpers" / "hammer.py"


@dataclass(frozen=True)
class Act:
    """What a process did to a file: times in ns of the monotonic clock, around the calls."""

    session: str
    kind: str
    file: str
    began: int
    ended: int
    tokens: list[str]


def test_no_version_vanishes_unseen(make_mount: MakeMount) -> None:
    mount = make_mount("--settle", "0", "--match", "strict")
    for number in range(FILES):
        (mount.backing / f"h{number}").write_text("")
    acts = hammer(mount)
    left = {word for path in mount.backing.iterdir() if path.name[0] == "h" for word in path.read_text().split()}
    kinds = Counter(act.kind for act in acts)
    assert set(kinds) == {"saw", "wrote", "cut", "took", "Input/output error"}, kinds
    assert min(kinds.values()) > ROUNDS / 10, kinds
    assert unseen(acts) == []
    assert lost(acts, left) == []


def hammer(mount: Mount) -> list[Act]:
    """Let all processes run at once; what they did."""
    leaders = {session: mount.agent(session) for session in SESSIONS}
    with ThreadPoolExecutor() as pool:
        done = [pool.submit(led, leaders[session], session, mount.base) for session in SESSIONS]
    return [act for each in done for act in each.result()]


def led(leader: Shell, session: str, base: Path) -> list[Act]:
    names = [f"{session}{number}" for number in range(SESSIONS[session])]
    begin = [f"{sys.executable} -I -S {PROGRAM} {name} {FILES} {ROUNDS} > {base}/{name} &" for name in names]
    assert leader.run("\n".join([*begin, "wait"])).err == ""
    return [Act(session=session, **act) for name in names for act in json.loads((base / name).read_text())]


def unseen(acts: list[Act]) -> list[tuple[str, str, str]]:
    """What an exchange took away that its session had neither read nor written before: session, file and token.

    A descriptor that was open at the exchange may write to the file afterwards: that was not there to be seen.
    """
    known = first_known(acts)
    written = {token: act.ended for act in acts if act.kind == "wrote" for token in act.tokens}
    return [
        (act.session, act.file, token)
        for act in acts
        if act.kind == "took"
        for token in act.tokens
        if known.get((act.session, token), act.ended) >= act.ended and written[token] < act.began
    ]


def lost(acts: list[Act], left: set[str]) -> list[Act]:
    """Writes whose bytes are nowhere, though nobody who cut the file afterwards had read them."""
    known = first_known(acts)
    taken = {token for act in acts if act.kind == "took" for token in act.tokens}
    gone = [act for act in acts if act.kind == "wrote" and not {*act.tokens} & (taken | left)]
    cuts = [act for act in acts if act.kind == "cut"]
    return [
        write
        for write in gone
        if not any(
            cut.file == write.file
            and cut.ended > write.began
            and (cut.session == write.session or known.get((cut.session, write.tokens[0]), cut.ended) < cut.ended)
            for cut in cuts
        )
    ]


def first_known(acts: list[Act]) -> dict[tuple[str, str], int]:
    """When each session began the read or write by which it first knew a token."""
    known: dict[tuple[str, str], int] = {}
    for act in sorted(acts, key=lambda act: act.began):
        if act.kind in {"saw", "wrote"}:
            for token in act.tokens:
                known.setdefault((act.session, token), act.began)
    return known
