"""The inode table on a real directory: numbers, counts, pins that are too few, and names that lie."""

import errno
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from guardfs import backing
from guardfs.core.model import FileId
from guardfs.inodes import ROOT, Inodes, Node

STALE = os.strerror(errno.ESTALE)
FEW = 8
"""Pins in most of these tests: more than one request needs, and soon too few."""


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture
def root(tmp_path: Path) -> Iterator[int]:
    fd = backing.open_root(str(tmp_path))
    yield fd
    os.close(fd)


@pytest.fixture
def table(root: int) -> Iterator[Inodes]:
    """A table that has to give all of its descriptors back."""
    before = open_descriptors()
    inodes = Inodes(root, FEW)
    yield inodes
    inodes.close()
    assert open_descriptors() == before


def lookup(table: Inodes, parent: Node, name: bytes) -> Node:
    """What the kernel's LOOKUP does."""
    node, _ = table.find(parent, name)
    node.lookups += 1
    return node


def walk(table: Inodes, path: bytes) -> Node:
    node = table.root
    for name in path.split(b"/"):
        node = lookup(table, node, name)
    return node


def crowd_out(table: Inodes, tmp_path: Path) -> None:
    """Evict every pin that may be evicted; the files stand before, or one would get a freed inode's number."""
    for number in range(FEW + 1):
        (tmp_path / f"crowd{number}").touch()
    for number in range(FEW + 1):
        table.find(table.root, b"crowd%d" % number)


def content(table: Inodes, node: Node) -> bytes:
    fd = backing.open_file(table.descriptor(node), os.O_RDONLY)
    try:
        return backing.pread(fd, 100, 0)
    finally:
        backing.close(fd)


class TestNumbers:
    def test_the_files_own_where_it_is_free(self, table: Inodes, tmp_path: Path) -> None:
        (tmp_path / "f").touch()
        assert lookup(table, table.root, b"f").number == (tmp_path / "f").stat().st_ino
        assert table.root.number == ROOT

    def test_one_node_for_every_name_of_a_file(self, table: Inodes, tmp_path: Path) -> None:
        (tmp_path / "f").touch()
        (tmp_path / "g").hardlink_to(tmp_path / "f")
        assert lookup(table, table.root, b"f") is lookup(table, table.root, b"g")

    def test_ours_where_another_device_has_it(self, table: Inodes, tmp_path: Path) -> None:
        (tmp_path / "f").touch()
        node = lookup(table, table.root, b"f")
        st = os.stat(tmp_path / "f")
        elsewhere = os.stat_result((st.st_mode, st.st_ino, st.st_dev + 1, *st[3:]))
        other = table.see(table.root, b"g", elsewhere)
        assert other is not node
        assert other.number != node.number
        assert table.get(other.number) is other

    def test_a_number_of_ours_comes_back_after_a_forget(self, table: Inodes, tmp_path: Path) -> None:
        """st_ino must not change because the kernel dropped a name from its cache."""
        (tmp_path / "f").touch()
        node = lookup(table, table.root, b"f")
        st = os.stat(tmp_path / "f")
        elsewhere = os.stat_result((st.st_mode, st.st_ino, st.st_dev + 1, *st[3:]))
        other = table.see(table.root, b"g", elsewhere)
        number = other.number
        table.release_if_unused(other)
        table.forget(node.number, 1)
        assert table.see(table.root, b"g", elsewhere).number == number
        assert lookup(table, table.root, b"f").number == node.number

    def test_unknown_ones_are_stale(self, table: Inodes) -> None:
        with pytest.raises(OSError, match=STALE):
            table.get(4711)


class TestCounts:
    def test_a_node_goes_with_its_last_lookup(self, table: Inodes, tmp_path: Path) -> None:
        (tmp_path / "f").touch()
        node = lookup(table, table.root, b"f")
        lookup(table, table.root, b"f")
        table.forget(node.number, 1)
        assert table.get(node.number) is node
        table.forget(node.number, 1)
        assert len(table) == 1
        table.forget(node.number, 1)  # There is no reply that could complain.
        table.forget(ROOT, 5)
        assert table.get(ROOT) is table.root

    def test_a_handle_holds_it(self, table: Inodes, tmp_path: Path) -> None:
        (tmp_path / "f").write_bytes(b"text")
        node = lookup(table, table.root, b"f")
        fd = backing.open_file(table.descriptor(node), os.O_RDONLY)
        table.hold(node, fd)
        table.forget(node.number, 1)
        os.unlink(tmp_path / "f")
        assert table.get(node.number) is node
        assert table.stat(node).st_size == 4
        table.let_go(node, fd)
        backing.close(fd)
        assert len(table) == 1

    def test_children_hold_their_parents(self, table: Inodes, tmp_path: Path) -> None:
        (tmp_path / "a" / "b").mkdir(parents=True)
        (tmp_path / "a" / "b" / "f").write_bytes(b"text")
        leaf = walk(table, b"a/b/f")
        for node in (table.parent(table.parent(leaf)), table.parent(leaf)):
            table.forget(node.number, 1)
        crowd_out(table, tmp_path)
        assert table.path(leaf) == b"a/b/f"
        assert content(table, leaf) == b"text"
        table.forget(leaf.number, 1)
        crowd_out(table, tmp_path)
        assert len(table) <= 1 + FEW

    def test_two_names_in_one_directory_are_two_children(self, table: Inodes, tmp_path: Path) -> None:
        (tmp_path / "d").mkdir()
        (tmp_path / "d" / "f").touch()
        (tmp_path / "d" / "g").hardlink_to(tmp_path / "d" / "f")
        directory = lookup(table, table.root, b"d")
        node = lookup(table, directory, b"f")
        lookup(table, directory, b"g")
        assert directory.children == 2
        table.forget(directory.number, 1)
        table.forget(node.number, 2)
        assert directory.children == 0
        assert table.root.children == 0
        assert len(table) == 1

    def test_what_was_found_and_not_kept_goes_with_its_pin(self, table: Inodes, tmp_path: Path) -> None:
        for number in range(20 * FEW):
            (tmp_path / f"f{number}").touch()
            table.find(table.root, b"f%d" % number)
        assert len(table) <= 1 + FEW

    def test_a_released_node_takes_nothing_from_its_successor(self, table: Inodes, tmp_path: Path) -> None:
        (tmp_path / "f").touch()
        old = lookup(table, table.root, b"f")
        table.forget(old.number, 1)
        new = lookup(table, table.root, b"f")
        assert new is not old
        assert new.number == old.number
        table.release_if_unused(old)
        assert table.get(new.number) is new


class TestPins:
    def test_they_are_few(self, table: Inodes, tmp_path: Path) -> None:
        before = open_descriptors()
        for number in range(100):
            (tmp_path / f"d{number}").mkdir()
            (tmp_path / f"d{number}" / "f").write_bytes(b"%d" % number)
        leaves = [walk(table, b"d%d/f" % number) for number in range(100)]
        assert open_descriptors() <= before + FEW
        for number, leaf in enumerate(leaves):
            assert content(table, leaf) == b"%d" % number
        assert open_descriptors() <= before + FEW

    def test_the_youngest_stay_good_together(self, table: Inodes, tmp_path: Path) -> None:
        """A rename needs both directories, deep as they may lie, and both files at once."""
        for side in ("one", "two"):
            deepest = tmp_path.joinpath(side, *["d"] * 40)
            deepest.mkdir(parents=True)
            (deepest / "f").write_bytes(side.encode())
        nodes = {side: walk(table, side + b"/d" * 40 + b"/f") for side in (b"one", b"two")}
        crowd_out(table, tmp_path)
        wanted = [table.parent(nodes[b"one"]), nodes[b"one"], table.parent(nodes[b"two"]), nodes[b"two"]]
        fds = [table.descriptor(node) for node in wanted]
        assert [backing.file_id(os.fstat(fd)) for fd in fds] == [node.file for node in wanted]

    def test_a_tree_deeper_than_the_stack(self, table: Inodes, tmp_path: Path) -> None:
        levels = 1500
        here = os.dup(table.descriptor(table.root))
        node = table.root
        for _ in range(levels):
            os.mkdir("d", dir_fd=here)
            below = os.open("d", os.O_RDONLY, dir_fd=here)
            os.close(here)
            here = below
            node = lookup(table, node, b"d")
        expected = os.fstat(here).st_ino
        os.close(here)
        try:
            crowd_out(table, tmp_path)
            assert table.stat(node).st_ino == expected
            parent = table.parent(node)
            table.forget(node.number, 1)
            os.stat("d", dir_fd=table.descriptor(parent))
        finally:
            remove_deep(tmp_path / "d")

    def test_the_limit_follows_the_process(self, root: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setattr(backing, "descriptor_limit", lambda: 80)
        table = Inodes(root)
        before = open_descriptors()
        for number in range(60):
            (tmp_path / f"f{number}").touch()
            lookup(table, table.root, b"f%d" % number)
        assert open_descriptors() == before + 20
        table.close()

    def test_what_has_no_name_left_keeps_its_pin(self, table: Inodes, tmp_path: Path) -> None:
        """A process may stand in it, and nothing else leads there."""
        (tmp_path / "d").mkdir()
        node = lookup(table, table.root, b"d")
        os.rmdir(tmp_path / "d")
        table.removed(table.root, b"d", node)
        for _ in range(3):
            crowd_out(table, tmp_path)
        assert table.stat(node).st_nlink == 0
        table.forget(node.number, 1)
        with pytest.raises(OSError, match=STALE):
            table.get(node.number)

    def test_those_are_bounded_too(self, table: Inodes, tmp_path: Path) -> None:
        before = open_descriptors()
        for number in range(5 * FEW):
            (tmp_path / "f").touch()
            node = lookup(table, table.root, b"f")
            os.unlink(tmp_path / "f")
            table.removed(table.root, b"f", node)
            assert node.lookups == 1, number
        assert open_descriptors() <= before + 2 * FEW


class TestNamesThatLie:
    def test_a_file_moved_below_is_found_by_another_name(self, table: Inodes, tmp_path: Path) -> None:
        (tmp_path / "f").write_bytes(b"text")
        (tmp_path / "g").hardlink_to(tmp_path / "f")
        node = lookup(table, table.root, b"f")
        lookup(table, table.root, b"g")
        os.unlink(tmp_path / "g")
        (tmp_path / "g").write_bytes(b"another file")
        crowd_out(table, tmp_path)
        assert content(table, node) == b"text"
        assert table.paths(node) == [b"f"]

    def test_another_file_at_the_name_is_not_taken_for_it(self, table: Inodes, tmp_path: Path) -> None:
        (tmp_path / "f").write_bytes(b"text")
        node = lookup(table, table.root, b"f")
        (tmp_path / "g").write_bytes(b"other")
        os.rename(tmp_path / "g", tmp_path / "f")
        assert content(table, node) == b"text"
        crowd_out(table, tmp_path)
        with pytest.raises(OSError, match=STALE):
            table.descriptor(node)
        assert content(table, lookup(table, table.root, b"f")) == b"other"

    def test_directories_moved_into_each_other_below(self, table: Inodes, tmp_path: Path) -> None:
        """Each was last seen inside the other: a circle that must not be walked for ever."""
        (tmp_path / "a" / "b").mkdir(parents=True)
        b = walk(table, b"a/b")
        a = table.parent(b)
        os.rename(tmp_path / "a" / "b", tmp_path / "b")
        os.rename(tmp_path / "a", tmp_path / "b" / "a")
        table.see(b, b"a", os.stat(tmp_path / "b" / "a"))
        for _ in range(2):
            crowd_out(table, tmp_path)
        for node in (a, b):
            with pytest.raises(OSError, match=STALE):
                table.descriptor(node)
        assert lookup(table, table.root, b"b") is b
        assert lookup(table, b, b"a") is a
        assert table.path(a) == b"b/a"

    def test_an_inode_number_used_again_for_another_kind(self, table: Inodes, tmp_path: Path) -> None:
        (tmp_path / "f").touch()
        node = lookup(table, table.root, b"f")
        st = os.stat(tmp_path / "f")
        (tmp_path / "d").mkdir()
        as_directory = os.stat_result((os.stat(tmp_path / "d").st_mode, *st[1:]))
        again = table.see(table.root, b"d", as_directory)
        assert again is not node
        assert again.number != node.number
        assert table.get(node.number) is node

    def test_a_dead_file_is_never_its_numbers_next_one(self, table: Inodes, tmp_path: Path) -> None:
        """A name from before is no way to it: the same (device, inode) can stand there again."""
        (tmp_path / "a").write_bytes(b"dead")
        (tmp_path / "b").hardlink_to(tmp_path / "a")
        node = lookup(table, table.root, b"a")
        lookup(table, table.root, b"b")
        os.unlink(tmp_path / "a")
        os.unlink(tmp_path / "b")
        table.removed(table.root, b"b", node)
        assert node.unlinked
        assert not node.names
        successor = table.see(
            table.root, b"a", os.stat_result((node.kind | 0o644, node.file.ino, node.file.dev, *[0] * 7))
        )
        assert successor is not node
        assert successor.number != node.number

    def test_a_name_that_is_a_file_now_is_no_way_down(self, table: Inodes, tmp_path: Path) -> None:
        (tmp_path / "d").mkdir()
        (tmp_path / "d" / "f").touch()
        leaf = walk(table, b"d/f")
        shutil.rmtree(tmp_path / "d")
        (tmp_path / "d").touch()
        crowd_out(table, tmp_path)
        with pytest.raises(OSError, match=STALE):
            table.descriptor(leaf)


class TestPaths:
    @pytest.mark.parametrize("to", [b"z", b"d/z"])
    def test_they_follow_a_move(self, table: Inodes, tmp_path: Path, to: bytes) -> None:
        (tmp_path / "a").mkdir()
        (tmp_path / "d").mkdir()
        (tmp_path / "a" / "f").touch()
        leaf = walk(table, b"a/f")
        new_parent = lookup(table, table.root, b"d") if b"/" in to else table.root
        os.rename(tmp_path / "a", tmp_path / os.fsdecode(to))
        table.moved(table.parent(leaf), table.root, b"a", new_parent, to.split(b"/")[-1])
        assert table.path(leaf) == to + b"/f"
        crowd_out(table, tmp_path)
        assert table.stat(leaf).st_size == 0

    def test_a_move_to_the_same_name_keeps_it(self, table: Inodes, tmp_path: Path) -> None:
        (tmp_path / "f").touch()
        node = lookup(table, table.root, b"f")
        table.moved(node, table.root, b"f", table.root, b"f")
        assert table.path(node) == b"f"

    def test_of_what_has_none(self, table: Inodes, tmp_path: Path) -> None:
        (tmp_path / "f").touch()
        node = lookup(table, table.root, b"f")
        os.unlink(tmp_path / "f")
        table.removed(table.root, b"f", node)
        assert table.path(node) == b"(unlinked)"
        assert table.named_path(node) is None
        assert table.path(table.root) == b""

    def test_the_root_is_its_own_parent(self, table: Inodes) -> None:
        assert table.parent(table.root) is table.root


def test_random_lives_leave_nothing_behind(table: Inodes, tmp_path: Path, fixed_random: Callable[[int], int]) -> None:
    """Lookups, forgets, moves and removals in any order: counts stay right, and all goes in the end."""
    for number in range(6):
        (tmp_path / f"d{number}").mkdir()
    known: list[Node] = []
    for step in range(3000):
        directory = b"d%d" % fixed_random(6)
        parent = lookup(table, table.root, directory)
        known.append(parent)
        name = b"f%d" % fixed_random(5)
        path = tmp_path / os.fsdecode(directory) / os.fsdecode(name)
        act = fixed_random(5)
        if act == 0:
            path.touch()
        elif path.exists() and act == 1:
            node, _ = table.find(parent, name)
            os.unlink(path)
            table.removed(parent, name, node)
        elif path.exists() and act == 2:
            node, _ = table.find(parent, name)
            new = b"moved%d" % step
            os.rename(path, path.with_name(os.fsdecode(new)))
            table.moved(node, parent, name, parent, new)
        elif path.exists():
            known.append(lookup(table, parent, name))
        while len(known) > 30:
            node = known.pop(fixed_random(len(known)))
            table.forget(node.number, 1)
    for node in known:
        table.forget(node.number, 1)
    for _ in range(2):
        crowd_out(table, tmp_path)
    assert len(table) <= 1 + FEW + 1
    table.close()


@pytest.fixture
def fixed_random() -> Callable[[int], int]:
    """The same numbers in each run (a linear congruence), so that a failure comes again."""
    state = 12345

    def below(limit: int) -> int:
        nonlocal state
        state = (state * 1103515245 + 12345) % (1 << 31)
        return (state >> 8) % limit

    return below


def test_file_ids_are_of_device_and_inode(tmp_path: Path) -> None:
    st = tmp_path.stat()
    assert backing.file_id(st) == FileId(st.st_dev, st.st_ino)


def remove_deep(path: Path) -> None:
    """A tree that shutil's recursion cannot remove."""
    subprocess.run(["rm", "-rf", path], check=True)


def test_what_is_more_than_the_limit_is_named_once_oldest_first(tmp_path: Path) -> None:
    for name in "abcd":
        (tmp_path / name).write_text(name)
    (tmp_path / "d2").mkdir()
    inodes = Inodes(os.open(tmp_path, os.O_PATH))
    found: dict[bytes, Node] = {}
    for each in (b"d2", b"a", b"b", b"c", b"d"):
        found[each], _ = inodes.find(inodes.root, each)
        found[each].lookups = 1
    assert inodes.surplus(6) == []
    inodes.hold(found[b"b"], os.open(tmp_path / "b", os.O_RDONLY))
    assert inodes.surplus(2) == [(ROOT, b"a")], "root, directory, a and the open b come first"
    assert inodes.surplus(4) == [(ROOT, b"c"), (ROOT, b"d")]
    for node in found.values():
        inodes.forget(node.number, 1)
    os.close(found[b"b"].descriptors[0])
    inodes.let_go(found[b"b"], found[b"b"].descriptors[0])
    inodes.close()
