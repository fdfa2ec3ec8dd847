"""The inode table: which backing inode the kernel's numbers mean, and how to reach it.

A node is named by (device, inode), never by a stored path. It is reached through an open handle's descriptor,
a pinned O_PATH descriptor, or a parent and a name whose finding is checked; pins are few and evicted, since a
descriptor per known file is more than a process may have. Plain functions on the event loop, hence atomic; a
descriptor that ``descriptor`` returns is good until the next ``await``: each call pins two nodes at most, and
the pins of one request are the youngest of many. Must not know sessions or verdicts.
"""

import errno
import math
import os
import stat
from collections import OrderedDict
from itertools import islice

from guardfs import backing
from guardfs.core.model import FileId

ROOT = 1
"""FUSE_ROOT_ID (linux/fuse.h)."""
_OWN_NUMBERS = 1 << 62
"""Numbers from here on are ours: for inodes whose own number is taken by another file system's."""
PIN_LIMIT = 512
"""Pinned O_PATH descriptors; many more than one request needs, many fewer than a process may have."""
_FEWEST_PINS = 16
"""What one request needs, and some more, however few descriptors a process may have."""
_GIVEN_LIMIT = 1 << 16
"""Numbers of our own that are remembered after their file was forgotten, so that st_ino stays the same."""

NODE_LIMIT = 1 << 15
"""Nodes that are kept for the kernel's convenience; what more there are it is asked to forget."""

_DEEPEST = 4096
"""Names in a path before it counts as a loop."""


class Node:
    """One inode that the kernel or a handle knows. All fields belong to the event loop.

    ``names`` are the places where it was last seen, newest last. ``lookups`` is the kernel's lookup count.
    ``descriptors`` are those of open handles. ``children`` counts nodes that name this one as a parent.
    ``told_size`` is the size in bytes that the kernel believes in; ``changed_by`` and ``changed_s`` say which session
    (None: nobody's) changed the bytes last through the mount, and when on the monotonic clock.
    """

    __slots__ = (
        "changed_by",
        "changed_s",
        "children",
        "descriptors",
        "file",
        "kind",
        "lookups",
        "names",
        "number",
        "pin",
        "told_size",
        "unlinked",
    )

    def __init__(self, number: int, file: FileId, kind: int) -> None:
        self.number = number
        self.file = file
        self.kind = kind
        self.lookups = 0
        self.children = 0
        self.names: dict[tuple[Node, bytes], None] = {}
        self.descriptors: list[int] = []
        self.pin: int | None = None
        self.unlinked = False
        self.told_size = 0
        self.changed_by: str | None = None
        self.changed_s = -math.inf

    @property
    def is_regular(self) -> bool:
        """Whether it has bytes to lose."""
        return stat.S_ISREG(self.kind)

    @property
    def is_directory(self) -> bool:
        """Whether it holds names."""
        return stat.S_ISDIR(self.kind)


def stale() -> OSError:
    """Sends the kernel back for a fresh lookup: it repeats a path walk once on ESTALE."""
    return OSError(errno.ESTALE, os.strerror(errno.ESTALE))


class Inodes:
    """Invariant: a node is in the table while lookups, handles or children hold it; the root always.

    A node that was found and that nothing holds yet stays while its pin does.
    """

    def __init__(self, root_fd: int, pin_limit: int | None = None) -> None:
        st = os.fstat(root_fd)
        self.root = Node(ROOT, backing.file_id(st), stat.S_IFMT(st.st_mode))
        self.root.descriptors.append(root_fd)
        self._pin_limit = pin_limit or max(_FEWEST_PINS, min(PIN_LIMIT, backing.descriptor_limit() // 4))
        self._by_number: dict[int, Node] = {ROOT: self.root}
        self._by_file: dict[FileId, Node] = {self.root.file: self.root}
        self._pins: OrderedDict[Node, None] = OrderedDict()
        self._last_pins: OrderedDict[Node, None] = OrderedDict()
        self._given: OrderedDict[FileId, int] = OrderedDict()
        self._own_numbers = _OWN_NUMBERS

    def __len__(self) -> int:
        return len(self._by_number)

    def get(self, number: int) -> Node:
        """The node that the kernel means by a number. Raises OSError(ESTALE) for one we never gave."""
        node = self._by_number.get(number)
        if node is None:
            raise stale()
        return node

    def find(self, parent: Node, name: bytes) -> tuple[Node, os.stat_result]:
        """What stands at a name now, pinned; no lookup is counted. Raises OSError as openat(2)."""
        fd = backing.open_path(self.descriptor(parent), name)
        try:
            st = os.fstat(fd)
            node = self.see(parent, name, st)
        except BaseException:
            os.close(fd)  # Nobody else has it yet.
            raise
        if node.pin is None:
            self._pin(node, fd)
        else:
            os.close(fd)
            self._use_pin(node)
        return node, st

    def see(self, parent: Node, name: bytes, st: os.stat_result) -> Node:
        """The node of what was just seen at a name, made where it is new."""
        file, kind = backing.file_id(st), stat.S_IFMT(st.st_mode)
        node = self._by_file.get(file)
        if node is not None and node.kind != kind:
            self._retire(node)  # The inode number has been used again for something else.
            node = None
        if node is None:
            node = Node(self._number_for(file), file, kind)
            self._by_number[node.number] = node
            self._by_file[file] = node
        self._name(node, parent, name)
        return node

    def forget(self, number: int, lookups: int) -> None:
        """The kernel drops lookups (FUSE_FORGET); unknown numbers are ignored, there is no reply."""
        node = self._by_number.get(number)
        if node is not None:
            node.lookups = max(0, node.lookups - lookups)
            self.release_if_unused(node)

    def descriptor(self, node: Node) -> int:
        """A descriptor that pins the node's inode, good until the next ``await``.

        Raises:
            OSError: ESTALE where the node can no longer be found at any name that it had.
        """
        fd = self._at_hand(node)
        if fd is None:
            fd = self._reopened(node)
            self._pin(node, fd)
        return fd

    def stat(self, node: Node) -> os.stat_result:
        """The node's present attributes."""
        return os.fstat(self.descriptor(node))

    def path(self, node: Node) -> bytes:
        """Where a node was last seen, relative to the mount; for people and for tiers."""
        parts: list[bytes] = []
        while node is not self.root:
            if not node.names or len(parts) > _DEEPEST:
                return b"/".join([b"(unlinked)", *reversed(parts)])
            node, name = next(reversed(node.names))
            parts.append(name)
        return b"/".join(reversed(parts))

    def named_path(self, node: Node) -> bytes | None:
        """Its path, or None for a node that has no name left."""
        return self.path(node) if node.names or node is self.root else None

    def paths(self, node: Node) -> list[bytes]:
        """Every path that a node was seen at, newest first."""
        return [self.path_at(parent, name) for parent, name in reversed(node.names)]

    def path_at(self, parent: Node, name: bytes) -> bytes:
        """The path of a name in a directory."""
        above = self.path(parent)
        return above + b"/" + name if above else name

    def parent(self, node: Node) -> Node:
        """The directory that a directory was last seen in; the root is its own."""
        return next(reversed(node.names))[0] if node.names else node

    def removed(self, parent: Node, name: bytes, node: Node) -> None:
        """A name is gone; the last one's node serves only what still holds it, never the number's next file."""
        self._unname(node, parent, name)
        try:
            links = self.stat(node).st_nlink
        except OSError:
            links = 0  # Not to be found any more.
        if links == 0 or node.is_directory:
            self._retire(node)

    def moved(self, node: Node, parent: Node, name: bytes, new_parent: Node, new_name: bytes) -> None:
        """A node stands at another name now."""
        self._name(node, new_parent, new_name)
        if (parent, name) != (new_parent, new_name):
            self._unname(node, parent, name)

    def surplus(self, limit: int = NODE_LIMIT) -> list[tuple[int, bytes]]:
        """Parent's number and name of files that only the kernel's cache holds, where nodes are more than a limit.

        The oldest, each of which counts as the newest then. No directory: the kernel would take it for deleted under
        a process that stands in it.
        """
        found = []
        for number in list(islice(self._by_number, max(0, len(self) - limit))):
            node = self._by_number[number] = self._by_number.pop(number)
            if node.names and not (node.is_directory or node.descriptors):
                parent, name = next(reversed(node.names))
                found.append((parent.number, name))
        return found

    def hold(self, node: Node, fd: int) -> None:
        """An open handle's descriptor keeps the node."""
        node.descriptors.append(fd)

    def let_go(self, node: Node, fd: int) -> None:
        """An open handle is closing its descriptor."""
        node.descriptors.remove(fd)
        self.release_if_unused(node)

    def release_if_unused(self, node: Node) -> None:
        """Drop a node that nothing holds, and with it the parents that only it held."""
        while not (node.lookups or node.descriptors or node.children or node is self.root):
            if self._by_number.get(node.number) is node:
                del self._by_number[node.number]
            if self._by_file.get(node.file) is node:
                del self._by_file[node.file]
            self._unpin(node)
            parents = self._clear_names(node)
            for parent in parents[1:]:
                self.release_if_unused(parent)
            if not parents:
                return
            node = parents[0]

    def close(self) -> None:
        """Give all pins back."""
        for node in [*self._pins, *self._last_pins]:
            self._unpin(node)

    def _number_for(self, file: FileId) -> int:
        """The file's own number where it is free; a number given once is given again, so that st_ino is stable."""
        given = self._given.get(file)
        if given is None and ROOT < file.ino < _OWN_NUMBERS and file.ino not in self._by_number:
            return file.ino
        if given is None or given in self._by_number:
            self._own_numbers += 1
            given = self._own_numbers
        self._given[file] = given
        self._given.move_to_end(file)
        if len(self._given) > _GIVEN_LIMIT:
            self._given.popitem(last=False)
        return given

    def _retire(self, node: Node) -> None:
        """Its (device, inode) may soon mean another file; the node lives on for those who hold it.

        Without names it cannot be found again, least of all as that other file; so its pin is kept apart from
        those that make room for others, for a process that stands in it.
        """
        node.unlinked = True
        if self._by_file.get(node.file) is node:
            del self._by_file[node.file]
        if node in self._pins:
            del self._pins[node]
            self._last_pins[node] = None
            self._evict(self._last_pins)
        for parent in self._clear_names(node):
            self.release_if_unused(parent)
        self.release_if_unused(node)

    def _name(self, node: Node, parent: Node, name: bytes) -> None:
        if node is self.root:
            return
        if node.names.pop((parent, name), self) is self:
            parent.children += 1
        node.names[parent, name] = None
        if node.is_directory:
            for place in list(node.names)[:-1]:
                self._unname(node, *place)

    def _unname(self, node: Node, parent: Node, name: bytes) -> None:
        if node.names.pop((parent, name), self) is not self:
            parent.children -= 1
            self.release_if_unused(parent)

    def _clear_names(self, node: Node) -> list[Node]:
        parents = [parent for parent, _ in node.names]
        node.names.clear()
        for parent in parents:
            parent.children -= 1
        return parents

    def _at_hand(self, node: Node) -> int | None:
        if node.pin is not None:
            self._use_pin(node)
            return node.pin
        return node.descriptors[0] if node.descriptors else None

    def _reopened(self, node: Node) -> int:
        for parent, name in reversed(list(node.names)):
            dir_fd = self._walk(parent)
            fd = None if dir_fd is None else self._open_if_same(node, dir_fd, name)
            if fd is not None:
                return fd
            self._unname(node, parent, name)
        raise stale()

    def _walk(self, node: Node) -> int | None:
        """Reach a directory from the nearest one above it that is at hand, and pin it; None if it has moved.

        A loop, since trees are deeper than Python's stack; and without pins on the way, which would push out
        those that this request still needs.
        """
        way: dict[Node, bytes] = {}
        above = node
        while (fd := self._at_hand(above)) is None:
            if not above.names or above in way:
                return None
            way[above], above = next(iter(above.names))[::-1]
        own = None
        for below, name in reversed(way.items()):
            try:
                found = self._open_if_same(below, fd, name)
            finally:
                if own is not None:
                    os.close(own)
            if found is None:
                return None
            fd = own = found
        if own is not None:
            self._pin(node, own)
        return fd

    def _open_if_same(self, node: Node, dir_fd: int, name: bytes) -> int | None:
        try:
            fd = backing.open_path(dir_fd, name)
        except (FileNotFoundError, NotADirectoryError):
            return None  # It has moved: another name may still lead to it.
        st = os.fstat(fd)
        if backing.file_id(st) == node.file and stat.S_IFMT(st.st_mode) == node.kind:
            return fd
        os.close(fd)
        return None

    def _pin(self, node: Node, fd: int) -> None:
        node.pin = fd
        pins = self._last_pins if node.unlinked else self._pins
        pins[node] = None
        self._evict(pins)

    def _use_pin(self, node: Node) -> None:
        (self._last_pins if node.unlinked else self._pins).move_to_end(node)

    def _evict(self, pins: OrderedDict[Node, None]) -> None:
        while len(pins) > self._pin_limit:
            node = next(iter(pins))
            self._unpin(node)
            self.release_if_unused(node)

    def _unpin(self, node: Node) -> None:
        self._pins.pop(node, None)
        self._last_pins.pop(node, None)
        if node.pin is not None:
            os.close(node.pin)
            node.pin = None
