"""What every judged operation shares: who asks, what the target is to them, and the verdict.

``Desk`` carries the parts that the families of operations work with. Used by ``files``, ``names`` and ``notes``.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NoReturn

import trio

from guardfs import backing
from guardfs.config import Settings
from guardfs.core import policy
from guardfs.core.fingerprint import Difference, by_bytes, by_stamp
from guardfs.core.intent import Intent
from guardfs.core.model import FileId, Fingerprint, Record, Stamp
from guardfs.core.policy import Target, Tier
from guardfs.core.tiers import POLICY_FILE, tier_of
from guardfs.core.verdict import Deny, Reason
from guardfs.guard.announcer import Announcer
from guardfs.guard.registry import Registry
from guardfs.guard.sessions import Session, Sessions
from guardfs.handles import Handles
from guardfs.inodes import Inodes, Node
from guardfs.keylock import KeyLock
from guardfs.procs.census import Caller, Census
from guardfs.procs.reading import ExeId

_LOOKS = 3
"""How often a file that moves while it is hashed is looked at before it counts as changed."""
_ONE_NAME = (Intent.DELETE, Intent.REPLACE)
"""What takes one name away: where others are left, the bytes are."""


class Refused(Exception):
    """A verdict of Deny on its way to the caller, as an errno; already announced."""

    def __init__(self, errno: int) -> None:
        super().__init__(errno)
        self.errno = errno


@dataclass(slots=True)
class Desk:
    """What a transaction works with.

    ``drop_pages`` asks for a node's pages to be dropped from the kernel's cache once the request at hand has
    been answered: never from inside a handler for that file.
    """

    settings: Settings
    inodes: Inodes
    handles: Handles[Node]
    census: Census
    sessions: Sessions
    announcer: Announcer
    registry: Registry
    ignored_readers: frozenset[ExeId]
    drop_pages: Callable[[int], None]
    log: Any
    locks: KeyLock[FileId] = field(default_factory=KeyLock)


@dataclass(frozen=True, slots=True)
class Finding:
    """What a look found: the target's state for a session, and what it was judged by."""

    target: Target
    stamp: Stamp
    record: Record | None = None
    seen: Fingerprint | None = None

    @property
    def now(self) -> Fingerprint:
        """The file as it was found, with its digest where that was taken."""
        return self.seen or Fingerprint(self.stamp, None)


class Judge:
    """Looks, decides and refuses."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._unknown_seen = False

    def who(self, tid: int) -> Caller:
        """The caller of a request, while it waits; a tree that a tracked program roots begins its session here."""
        caller = self._desk.census.who(tid)
        for root, session in self._desk.census.take_roots():
            self._desk.registry.begin_exe(root, session)
        if caller.is_unknown:
            self._say_unknown()
        return caller

    def session_of(self, caller: Caller) -> Session | None:
        """The living session of a caller, or None for the untracked."""
        if caller.session is None or caller.session not in self._desk.sessions:
            return None
        return self._desk.sessions.get(caller.session)

    def tier(self, path: bytes) -> Tier:
        """How much of the rule applies at a path."""
        return tier_of(path, self._desk.settings.exempt_names)

    def tier_of(self, node: Node, path: bytes, intent: Intent) -> Tier:
        """How much of the rule applies to a file's bytes: all of it that applies at any name they are reached by."""
        if intent in _ONE_NAME:
            return self.tier(path)
        links = backing.links(self._desk.inodes.descriptor(node))
        if links <= 1:
            return self.tier(path)  # Other names that it was seen at are not its own any more.
        paths = {path, *self._desk.inodes.paths(node)}
        tiers = [self.tier(each) for each in paths]
        if links > len(paths):
            tiers.append(Tier.GUARDED)  # Names that were never seen may be anywhere.
        if self.is_policy(node):
            tiers.append(Tier.POLICY)
        return policy.strictest(tiers)

    def is_policy(self, node: Node) -> bool:
        """Whether a file is guardfs's own policy, whatever name leads to it."""
        try:
            st = backing.lookup(self._desk.inodes.descriptor(self._desk.inodes.root), POLICY_FILE)
        except FileNotFoundError:
            return False  # No policy, so no name of it.
        return backing.file_id(st) == node.file

    async def file_locked(
        self,
        caller: Caller,
        session: Session,
        node: Node,
        intent: Intent,
        operation: str,
        path: bytes | None = None,
    ) -> Finding:
        """Judge an operation on a file that stands in the tree; the caller holds its lock.

        Nothing awaits between the last look and the return, so an act that follows at once hits what was
        judged.

        Raises:
            Refused: the verdict is Deny.
        """
        self._desk.locks.check_held(node.file)
        where = path if path is not None else self._desk.inodes.path(node)
        finding = await self.look(session, node, where)
        tier = self.tier_of(node, where, intent)
        verdict = policy.decide(intent, finding.target, tier, self._desk.settings.rules)
        if isinstance(verdict, Deny):
            self.refuse(caller, session, verdict.reason, operation, where, finding)
        return finding

    def free_name(self, caller: Caller, session: Session, intent: Intent, operation: str, path: bytes) -> None:
        """Judge an operation that makes a name which is free now.

        A name that the session knew and somebody else took away is refused once, and then forgotten.

        Raises:
            Refused: the verdict is Deny.
        """
        target = Target.GONE if session.knows_name(path) else Target.ABSENT
        verdict = policy.decide(intent, target, self.tier(path), self._desk.settings.rules)
        if isinstance(verdict, Deny):
            if verdict.reason is Reason.GONE:
                session.forget(path)
            self.refuse(caller, session, verdict.reason, operation, path)

    def policy_file(self, caller: Caller, session: Session, operation: str, path: bytes) -> None:
        """Judge an operation that is free everywhere but at guardfs's own policy. Raises Refused."""
        if self.tier(path) is Tier.POLICY:
            self.refuse(caller, session, Reason.POLICY, operation, path)

    def refuse(
        self,
        caller: Caller,
        session: Session,
        reason: Reason,
        operation: str,
        path: bytes,
        finding: Finding | None = None,
    ) -> NoReturn:
        """Announce a Deny and raise it."""
        record = finding.record if finding else None
        now = finding.now if finding else None
        self._desk.announcer.denied(caller, session, reason, operation, path, record, now)
        raise Refused(self._desk.settings.errno_number)

    async def look(self, session: Session, node: Node, path: bytes) -> Finding:
        """Compare a file as it is now with what the session knows of it."""
        inodes = self._desk.inodes
        for _ in range(_LOOKS):
            stamp = backing.stamp(inodes.descriptor(node))
            record = session.find(node.file, path)
            if record is None:
                return Finding(Target.UNREAD, stamp)
            difference = by_stamp(record, stamp)
            if difference is not None:
                return Finding(policy.target_of(difference), stamp, record)
            taken = time.time_ns()
            seen = await self.fingerprint(node)
            still = session.find(node.file, path) is record
            if seen.stamp != backing.stamp(inodes.descriptor(node)) or not still:
                continue  # Something came in while the bytes were read: look again.
            difference = by_bytes(record, seen, self._desk.settings.match)
            if difference is Difference.SAME:
                session.put(policy.proved_record(record, seen, taken), inodes.named_path(node))
            return Finding(policy.target_of(difference), seen.stamp, record, seen)
        return Finding(Target.MODIFIED, backing.stamp(inodes.descriptor(node)), session.get(node.file))

    async def fingerprint(self, node: Node) -> Fingerprint:
        """Take a node's fingerprint through a private descriptor; large files in a worker thread.

        A file whose mode keeps even the daemon from reading it has no digest, which compares as changed.
        """
        held = self._desk.inodes.descriptor(node)
        try:
            fd = backing.open_to_judge(held)
        except PermissionError:
            return Fingerprint(backing.stamp(held), None)
        return await self.fingerprint_of(fd, close=True)

    async def fingerprint_of(self, fd: int, *, close: bool = False) -> Fingerprint:
        """Take the fingerprint of a descriptor open for reading."""
        limit = self._desk.settings.hash_limit
        try:
            if backing.size(fd) <= min(limit, backing.INLINE_HASH_LIMIT):
                return backing.fingerprint(fd, limit)
            return await trio.to_thread.run_sync(backing.fingerprint, fd, limit)
        finally:
            if close:
                backing.close(fd)

    def _say_unknown(self) -> None:
        if not self._unknown_seen:
            self._unknown_seen = True
            self._desk.log.info(
                "unknown-caller",
                treated=self._desk.settings.unknown_caller,
                why="a request came from a process that this daemon cannot see (another pid namespace, or the kernel)",
            )
