"""What every judged operation shares: who asks, what the target is to them, and the verdict.

``Desk`` carries the parts that the families of operations work with. Used by ``files``, ``names`` and ``notes``.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import trio

from guardfs import backing
from guardfs.core import policy
from guardfs.core.fingerprint import Difference, by_bytes, by_stamp
from guardfs.core.intent import Intent
from guardfs.core.model import FileId, Fingerprint, Record, Stamp
from guardfs.core.policy import NO_GIT, Git, Profile, Target, Tier
from guardfs.core.tiers import POLICY_FILE, tier_of
from guardfs.core.verdict import Deny, Reason
from guardfs.guard.announcer import Announcer, Denial
from guardfs.guard.contents import Contents
from guardfs.guard.gitview import GitView
from guardfs.guard.registry import Registry
from guardfs.guard.rulebook import Rulebook
from guardfs.guard.sessions import Session, Sessions
from guardfs.handles import Handles
from guardfs.inodes import Inodes, Node
from guardfs.keylock import KeyLock
from guardfs.procs.census import Caller, Census

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

    rulebook: Rulebook
    git: GitView
    inodes: Inodes
    handles: Handles[Node]
    census: Census
    sessions: Sessions
    announcer: Announcer
    contents: Contents
    registry: Registry
    drop_pages: Callable[[int], None]
    log: Any
    locks: KeyLock[FileId] = field(default_factory=KeyLock)


@dataclass(frozen=True, slots=True)
class Finding:
    """What a look found: the target's state for a session, and what it was judged by.

    ``settling``: the session has read the present bytes too short a time ago for that to count.
    """

    target: Target
    stamp: Stamp
    record: Record | None = None
    seen: Fingerprint | None = None
    settling: bool = False

    @property
    def now(self) -> Fingerprint:
        """The file as it was found, with its digest where that was taken."""
        return self.seen or Fingerprint(self.stamp, None)


Case = tuple[Tier, Git]
"""How much of the rule applies, and what git has to do with it."""


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
        if caller.session is not None and self._desk.rulebook.refresh():
            self._desk.registry.limit(self._desk.rulebook.settings.max_records)
        return caller

    def session_of(self, caller: Caller) -> Session | None:
        """The living session of a caller, or None for the untracked."""
        if caller.session is None or caller.session not in self._desk.sessions:
            return None
        return self._desk.sessions.get(caller.session)

    def is_vcs(self, caller: Caller) -> bool:
        """Whether a version-control program asks."""
        return self._desk.rulebook.is_vcs(caller.exe)

    def counts(self, caller: Caller) -> bool:
        """Whether an open by this program is a read."""
        return not self._desk.rulebook.is_ignored_reader(caller.exe)

    def tier(self, path: bytes) -> Tier:
        """How much of the rule applies at a path, as far as its name tells."""
        return tier_of(path, self._desk.rulebook.exempt)

    def tier_of(self, node: Node, path: bytes, intent: Intent) -> Tier:
        """How much of the rule applies to a file's bytes: all of it that applies at any name they are reached by."""
        paths = self._names(node, path, intent)
        if paths is None:
            return Tier.POLICY if self.is_policy(node) else Tier.GUARDED
        tiers = [self.tier(each) for each in paths]
        if len(paths) > 1 and self.is_policy(node):
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
        finding, (tier, git) = await self._weigh(caller, session, node, where, intent)
        verdict = policy.decide(intent, finding.target, tier, self._desk.rulebook.rules, git)
        if isinstance(verdict, Deny):
            self.refuse(caller, session, verdict.reason, operation, where, self.shown(node, where, finding))
        elif policy.frees(intent, finding.target, tier):
            session.free(where)
        return finding

    async def excuses(self, caller: Caller, node: Node, intent: Intent, finding: Finding) -> bool:
        """Whether a write may go on through a handle that somebody has overtaken, whatever the session knows now."""
        path = self._desk.inodes.path(node)
        overtaken = Target.MODIFIED if finding.target is Target.KNOWN else finding.target
        tier, git = await self._case(caller, node, path, intent, replace(finding, target=overtaken))
        return not isinstance(policy.decide(intent, overtaken, tier, self._desk.rulebook.rules, git), Deny)

    async def free_name(self, caller: Caller, session: Session, intent: Intent, operation: str, path: bytes) -> None:
        """Judge an operation that makes a name which is free now; it may not be any more afterwards.

        A name that the session knew and somebody else took away is refused once, and then forgotten.

        Raises:
            Refused: the verdict is Deny.
        """
        target = session.at_free_name(path)
        tier = self.tier(path)
        if policy.needs_git(intent, target, tier, self._desk.rulebook.rules) and await self._is_ignored([path]):
            tier = Tier.DERIVED
        verdict = policy.decide(intent, target, tier, self._desk.rulebook.rules, Git(by_vcs=self.is_vcs(caller)))
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
    ) -> None:
        """Announce a Deny and raise it; under ``observe`` it is announced and nothing else."""
        observed = self._desk.rulebook.rules.profile is Profile.OBSERVE
        self._desk.announcer.denied(
            Denial(
                caller,
                session,
                reason,
                operation,
                path,
                record=finding.record if finding else None,
                now=finding.now if finding else None,
                settling=finding is not None and finding.settling,
                mixed=self.is_vcs(caller),
                observed=observed,
            )
        )
        if not observed:
            raise Refused(self._desk.rulebook.settings.errno_number)

    async def look(self, session: Session, node: Node, path: bytes) -> Finding:
        """Compare a file as it is now with what the session knows of it, and has known for long enough."""
        inodes = self._desk.inodes
        for _ in range(_LOOKS):
            stamp = backing.stamp(inodes.descriptor(node))
            record, settling = self.judged_by(session, node, path)
            if record is None:
                return Finding(Target.UNREAD, stamp, settling=settling)
            difference = by_stamp(record, stamp)
            if difference is not None:
                return Finding(policy.target_of(difference), stamp, record, settling=settling)
            taken = time.time_ns()
            seen = await self.fingerprint(node)
            is_same_record = self.judged_by(session, node, path) == (record, settling)
            if seen.stamp != backing.stamp(inodes.descriptor(node)) or not is_same_record:
                continue  # Something came in while the bytes were read: look again.
            difference = by_bytes(record, seen, self._desk.rulebook.rules.match)
            if difference is Difference.SAME and not settling:
                session.put(policy.proved_record(record, seen, taken), inodes.named_path(node))
            return Finding(policy.target_of(difference), seen.stamp, record, seen, settling)
        return Finding(Target.MODIFIED, backing.stamp(inodes.descriptor(node)), session.get(node.file))

    def judged_by(self, session: Session, node: Node, path: bytes) -> tuple[Record | None, bool]:
        """The record that a write is judged by, and whether a newer one has yet to settle."""
        return session.judged_by(node.file, path, trio.current_time(), self._desk.rulebook.settings.settle)

    async def _weigh(
        self, caller: Caller, session: Session, node: Node, path: bytes, intent: Intent
    ) -> tuple[Finding, Case]:
        """Look at a file and ask what applies to it, again where something came in between."""
        for _ in range(_LOOKS):
            finding = await self.look(session, node, path)
            case = await self._case(caller, node, path, intent, finding)
            if backing.stamp(self._desk.inodes.descriptor(node)) == finding.stamp:
                return finding, case
        moving = Finding(Target.MODIFIED, backing.stamp(self._desk.inodes.descriptor(node)), session.get(node.file))
        return moving, (self.tier_of(node, path, intent), NO_GIT)

    async def _case(self, caller: Caller, node: Node, path: bytes, intent: Intent, finding: Finding) -> Case:
        """How much of the rule applies to a file, and what git says of it where that may matter."""
        tier, by_vcs = self.tier_of(node, path, intent), self.is_vcs(caller)
        if not policy.needs_git(intent, finding.target, tier, self._desk.rulebook.rules):
            return tier, Git(by_vcs)
        paths = self._names(node, path, intent)
        if paths is not None and await self._is_ignored(paths):
            return Tier.DERIVED, Git(by_vcs)
        if intent not in _ONE_NAME or not await self._desk.git.refresh([path]):
            return tier, Git(by_vcs)
        return tier, Git(by_vcs, await self._desk.git.is_clean(path, self._desk.inodes.descriptor(node)))

    async def _is_ignored(self, paths: Iterable[bytes]) -> bool:
        """Whether .gitignore names all of these paths, and the settings protect none."""
        if any(map(self._desk.rulebook.protect.hold, paths)) or not await self._desk.git.refresh(paths):
            return False
        return all(map(self._desk.git.ignores, paths))

    def _names(self, node: Node, path: bytes, intent: Intent) -> list[bytes] | None:
        """The names whose bytes an operation concerns; None where some were never seen, and may be anywhere."""
        if intent in _ONE_NAME:
            return [path]
        links = backing.links(self._desk.inodes.descriptor(node))
        if links <= 1:
            return [path]  # Other names that it was seen at are not its own any more.
        paths = list(dict.fromkeys([path, *self._desk.inodes.paths(node)]))
        return paths if links <= len(paths) else None

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
        limit = self._desk.rulebook.settings.hash_limit
        try:
            if backing.size(fd) <= min(limit, backing.INLINE_HASH_LIMIT):
                return backing.fingerprint(fd, limit)
            return await trio.to_thread.run_sync(backing.fingerprint, fd, limit)
        finally:
            if close:
                backing.close(fd)

    def keep_bytes(self, path: bytes, fd: int, seen: Fingerprint) -> None:
        """Keep the bytes of a small file that a session knows now, unless they are nobody's or somebody's secret."""
        if seen.digest is None or seen.stamp.size > backing.INLINE_HASH_LIMIT or self._desk.contents.has(seen.digest):
            return
        if self.tier(path) is Tier.EXEMPT or self._desk.rulebook.protect.hold(path):
            return
        data = backing.bytes_of(fd, seen)
        if data is not None:
            self._desk.contents.keep(seen.digest, data)

    def shown(self, node: Node, path: bytes, finding: Finding) -> Finding:
        """A finding of other bytes with the present ones of a small file in it, and kept for ``guardfs why``."""
        if finding.target is not Target.MODIFIED or finding.stamp.size > backing.INLINE_HASH_LIMIT:
            return finding
        try:
            fd = backing.open_to_judge(self._desk.inodes.descriptor(node))
        except OSError:
            return finding  # It is told without them.
        try:
            seen = finding.seen or backing.fingerprint(fd, backing.INLINE_HASH_LIMIT)
            if seen.stamp != finding.stamp:
                return finding
            self.keep_bytes(path, fd, seen)
            return replace(finding, seen=seen)
        finally:
            backing.close(fd)

    def _say_unknown(self) -> None:
        if not self._unknown_seen:
            self._unknown_seen = True
            self._desk.log.info(
                "unknown-caller",
                treated=self._desk.rulebook.settings.unknown_caller,
                why="a request came from a process that this daemon cannot see (another pid namespace, or the kernel)",
            )
