"""The contract as a model: what each session knows of a few files, and what each step must answer.

Written from the tables of docs/semantics.md alone. Who is no session is never judged.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from tests.model.files import JUST_NOW, Failed, Files, Inode, State, fail_if

POLICY = ".guardfs.toml"
CHANGED = ("modified", "touched", "replaced")


@dataclass(frozen=True)
class Record:
    """``older`` is what counts until the settle time has passed since this state was first seen."""

    state: State
    older: "Record | None" = None


@dataclass(eq=False)
class Session:
    """``doubtful`` are the names and files of which the contract does not say whether they are still known."""

    tracked: bool
    records: dict[Inode, Record] = field(default_factory=dict)
    names: dict[str, Inode] = field(default_factory=dict)
    first_seen: dict[tuple[Inode, bytes], int] = field(default_factory=dict)
    doubtful: set[Inode | str] = field(default_factory=set)


@dataclass(eq=False)
class Handle:
    """``left`` is the state that a grant left the file in; None while the first write is still to be judged."""

    who: Session
    path: str
    inode: Inode
    flags: list[str]
    left: State | None = None
    lost: bool = False
    has_read: bool = False


@dataclass(frozen=True)
class Answer:
    """Of ``told``, (path, reason), an event gives one; it ``may`` be silent. Without an error it tells of a change."""

    errno: str = ""
    data: bytes | None = None
    told: frozenset[tuple[str, str]] = frozenset()
    may: bool = False


class Contract(Files):
    def __init__(self, match: str, sessions: Iterable[str], settle: int = 0) -> None:
        super().__init__()
        self.match, self.settle, self.now = match, settle, 0
        self.sessions = {name: Session(tracked=True) for name in sessions}
        self.handles: dict[str, Handle] = {}

    def do(self, actor: str, step: str, *args: str | int | bytes, refused: bool = False) -> Answer:
        """What must come of a step. ``refused`` says what came of it, and decides where the contract is silent."""
        who = self.sessions.setdefault(actor, Session(tracked=False))
        self._noticed, self._refused = Answer(), refused
        perform: Callable[..., bytes | None] = getattr(self, step)
        try:
            data = perform(who, *args)
            return replace(self._noticed, data=data)
        except Failed as failed:
            errno, *told = failed.args
            return Answer(errno, told=frozenset(told))

    # Steps, as the worker names them.

    def read(self, who: Session, path: str) -> bytes:
        self.open(who, "", path, "r")
        return self.handles.pop("").inode.state.data

    def write(self, who: Session, path: str, data: bytes, mode: str) -> None:
        self.open(who, "", path, mode)
        if data:
            self.hwrite(who, "", data)
        del self.handles[""]

    def open(self, who: Session, name: str, path: str, mode: str) -> None:
        flags, inode = mode.split(), self._look(path)
        fail_if("EEXIST", inode and "excl" in flags)
        fail_if("ENOENT", not inode and "creat" not in flags)
        handle = Handle(who, path, inode or Inode(State(b"")), flags)
        waits = inode and "r" in flags and "trunc" not in flags  # For its first read, and its first write.
        if not inode:
            self._judge_free(who, path)
            self.files[path] = handle.inode
        elif "w" not in flags:
            self._saw(who, path)
        elif not waits:
            self._judge(who, path)
            if "trunc" in flags:
                self._change(who, inode, b"")
        if not waits:
            self._remember(who, handle.inode, path)
            handle.left = handle.inode.state
        self.handles[name] = handle

    def hread(self, _: object, name: str) -> bytes:
        handle = self.handles[name]
        if "w" in handle.flags and not handle.has_read and self.files.get(handle.path) is handle.inode:
            self._saw(handle.who, handle.path)
            self._noticed = replace(self._noticed, may=True)  # Opening is what must tell of a change.
        handle.has_read = True
        return handle.inode.state.data

    def hwrite(self, _: object, name: str, data: bytes) -> None:
        old = self.handles[name].inode.state.data
        self._write_by(
            self.handles[name], old + data if "append" in self.handles[name].flags else data + old[len(data) :]
        )

    def hcut(self, _: object, name: str, size: int) -> None:
        self._write_by(self.handles[name], self.handles[name].inode.state.data[:size].ljust(size, b"\0"))

    def close(self, _: object, name: str) -> None:
        del self.handles[name]

    def truncate(self, who: Session, path: str, size: int) -> None:
        self.open(who, "", path, "w")
        self.hcut(who, "", size)
        del self.handles[""]

    def unlink(self, who: Session, path: str) -> None:
        self._need(path)
        self._judge(who, path)
        self._drop(who, self.files.pop(path), path)

    def link(self, who: Session, old: str, new: str) -> None:
        inode = self._need(old)
        fail_if("EEXIST", self._look(new))
        self._judge(who, *{old, new} & {POLICY})
        self._judge_free(who, new)
        self.files[new], inode.was_linked = inode, True
        if inode in who.records:
            who.names[new] = inode

    def rename(self, who: Session, old: str, new: str, flag: str) -> None:
        is_dir = old in self.dirs
        inode = None if is_dir else self._need(old)
        there = new if new in self.dirs else self._look(new)
        fail_if("EEXIST", there and flag == "noreplace")
        fail_if("ENOENT", not there and flag == "exchange")
        if old == new or (inode and there is inode):
            return  # One file under two names, or under one: POSIX does nothing.
        pairs = {old: new, new: old} if flag == "exchange" else {old: new}
        if is_dir:
            fail_if("ENOTEMPTY", flag == "" and self._below(new))
            self.dirs = self.dirs | {new} if flag == "exchange" else self.dirs - {old} | {new}
            paths = {*self.files, *who.names}
            pairs = {path: b + path[len(a) :] for a, b in pairs.items() for path in paths if path.startswith(a + "/")}
            # What others have moved below it: carried along, or not?
            who.doubtful |= {new for old, new in pairs.items() if self.files.get(old) is not who.names.get(old)}
        else:
            self._judge(who, *{old, new} & {POLICY, old if flag == "exchange" else "", new if there else ""})
            if not there:
                self._judge_free(who, new)
        self._move(who, pairs)
        if isinstance(there, Inode) and not flag:
            self._drop(who, there, "")

    def touch(self, who: Session, path: str, mtime: int) -> None:
        self._change(who, self._need(path), self._need(path).state.data, mtime)

    # What a session may do.

    def _judge(self, who: Session, *paths: str) -> None:
        """Files that are there, about to lose bytes."""
        if who.tracked and (told := [(path, why) for path in paths for why in self._whys(who, path)]):
            raise Failed("EIO", *told)

    def _judge_free(self, who: Session, path: str) -> None:
        """A free name, about to be taken. Gone is refused once: the refusal tells."""
        self._judge(who, *{path} & {POLICY})
        if who.tracked and (known := who.names.pop(path, None)):
            who.doubtful.add(known)  # If it lives elsewhere: dropped as gone, or kept, as records follow the content?
            if path not in who.doubtful or self._refused:
                raise Failed("EIO", (path, "gone"))

    def _whys(self, who: Session, path: str) -> tuple[str, ...]:
        """Why a session may not change what is at a path, each reason that may be told; empty where it may."""
        if path == POLICY:
            return ("policy",)
        inode, view = self.files[path], "unread"
        if known := self._known(who, path):
            record = self._settled(who, known)
            view = self._compare(known, record.state, inode, inode.state)
        if not self._is_vague(who, path):
            return (view,) if view else ()
        seen = any(record.state.data == inode.state.data for record in who.records.values())
        may_pass = not view or (self.match == "content" and seen)
        return () if may_pass and not self._refused else ("unread", *CHANGED)

    def _is_vague(self, who: Session, path: str) -> bool:
        """Doubtful, or nothing is known but perhaps by another name: the contract is silent."""
        there = self.files[path]
        unknown = there not in who.records and path not in who.names
        return bool({there, path} & who.doubtful) or (unknown and any(i.was_linked for i in (there, *who.records)))

    def _known(self, who: Session, path: str) -> Inode | None:
        """The file whose record counts at a path: the one that is there, else the one that was known there."""
        there = self.files.get(path)
        return there if there in who.records else who.names.get(path)

    def _settled(self, who: Session, known: Inode) -> Record:
        record = who.records[known]
        while record.older and self.now - who.first_seen[known, record.state.data] < self.settle:
            record = record.older
        return record

    def _compare(self, known: Inode, then: State, there: Inode, now: State) -> str:
        """The table of match modes; empty for good."""
        if then.data != now.data:
            return "modified"
        if known is not there:
            return "" if self.match == "content" else "replaced"
        return "touched" if self.match == "strict" and then.mtime != now.mtime else ""

    # What a session comes to know.

    def _saw(self, who: Session, path: str) -> None:
        """A read that counts renews the record and tells of a change; surely of one that the match does not forgive."""
        inode, older, bad = self.files[path], None, ""
        if known := self._known(who, path):
            record = who.records[known]
            bad = self._compare(known, record.state, inode, inode.state)
            older = self._settled(who, known) if bad == "modified" else record.older
        vague = self._is_vague(who, path)
        if who.tracked and (known or vague):
            self._noticed = Answer(told=frozenset({(path, "")}), may=vague or not bad)
        self._remember(who, inode, path, older)

    def _remember(self, who: Session, inode: Inode, path: str, older: Record | None = None) -> None:
        """A new record; without an older one it is settled, as what a session wrote itself."""
        who.first_seen.setdefault((inode, inode.state.data), self.now)
        who.records[inode] = Record(inode.state, older)
        who.doubtful -= {inode, path}
        if self.files.get(path) is inode:
            who.names[path] = inode

    def _change(self, who: Session, inode: Inode, data: bytes, mtime: int = JUST_NOW) -> None:
        """A new state. A session's own act makes bad neither its good record nor what its handles left."""
        before, inode.state = inode.state, State(data, mtime)
        record = who.records.get(inode)
        if record and not self._compare(inode, record.state, inode, before):
            who.records[inode] = replace(record, state=inode.state)
        for handle in self.handles.values():
            own = handle.who is who and handle.inode is inode
            if own and handle.left and not self._compare(inode, handle.left, inode, before):
                handle.left = inode.state

    def _write_by(self, handle: Handle, data: bytes) -> None:
        who, inode = handle.who, handle.inode
        names = [path for path, there in self.files.items() if there is inode]
        place = handle.path if handle.path in names or not names else names[0]
        if who.tracked and names:  # A handle whose file has been unlinked may write.
            handle.lost |= bool(handle.left and self._compare(inode, handle.left, inode, inode.state))
            if whys := CHANGED if handle.lost else () if handle.left else self._whys(who, place):
                raise Failed("EIO", *((path, why) for path in {*names, handle.path} for why in whys))
        self._change(who, inode, data)
        self._remember(who, inode, place)
        handle.left = inode.state

    # Names.

    def _move(self, who: Session, pairs: Mapping[str, str]) -> None:
        """Old names to new ones, with the records of what is there, and of what is gone from there."""
        known: dict[str, Inode | None] = {}
        for old, new in pairs.items():
            there = self.files.get(old)
            known[new] = who.names.get(old) if there is None else there if there in who.records else None
        self.files |= {new: inode for old, new in pairs.items() if (inode := self.files.pop(old, None))}
        who.names = {path: inode for path, inode in who.names.items() if path not in pairs and path not in known}
        who.names |= {path: inode for path, inode in known.items() if inode}

    def _drop(self, who: Session, inode: Inode, path: str) -> None:
        """A session's own act took a name away, which it knows. Of a file without names, what it knew is in doubt."""
        who.names.pop(path, None)
        if inode not in self.files.values():
            who.doubtful |= {name for name, known in who.names.items() if known is inode}
