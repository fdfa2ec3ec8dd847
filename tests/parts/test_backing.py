"""The backing tree's calls on a real directory: relative to descriptors, and through no link."""

import fcntl
import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from guardfs import backing

NOREPLACE, EXCHANGE = 1, 2
OTHER = 4001


@pytest.fixture
def root(tmp_path: Path) -> Iterator[int]:
    """A directory to work in; every descriptor that a test takes it gives back."""
    before = len(os.listdir("/proc/self/fd"))
    fd = backing.open_root(str(tmp_path))
    yield fd
    os.close(fd)
    assert len(os.listdir("/proc/self/fd")) == before


class Pinned:
    """An O_PATH descriptor for a test's lines."""

    def __init__(self, root: int, name: bytes) -> None:
        self.fd = backing.open_path(root, name)

    def __enter__(self) -> int:
        return self.fd

    def __exit__(self, *_: object) -> None:
        backing.close(self.fd)


class TestNothingFollowsALink:
    def test_open_path_pins_the_link_itself(self, root: int, tmp_path: Path) -> None:
        (tmp_path / "s").symlink_to("/etc/passwd")
        with Pinned(root, b"s") as fd:
            assert stat.S_ISLNK(backing.stat(fd).st_mode)
            assert backing.readlink(fd) == b"/etc/passwd"

    def test_open_below_refuses_one_on_the_way(self, root: int, tmp_path: Path) -> None:
        (tmp_path / "d").mkdir()
        (tmp_path / "d" / "f").touch()
        (tmp_path / "s").symlink_to("d")
        fd = backing.open_below(root, b"d/f")
        assert backing.file_id(backing.stat(fd)) == backing.file_id((tmp_path / "d" / "f").stat())
        backing.close(fd)
        with pytest.raises(NotADirectoryError):
            backing.open_below(root, b"s/f")

    def test_create_does_not_write_through_one(self, root: int, tmp_path: Path) -> None:
        (tmp_path / "s").symlink_to("elsewhere")
        with pytest.raises(FileExistsError):
            backing.create_file(root, b"s", os.O_WRONLY, 0o644)
        assert not (tmp_path / "elsewhere").exists()

    def test_owner_times_and_attributes_are_the_links(self, root: int, tmp_path: Path) -> None:
        (tmp_path / "f").touch()
        (tmp_path / "s").symlink_to("f")
        before = (tmp_path / "f").stat()
        with Pinned(root, b"s") as fd:
            backing.chown(fd, OTHER, OTHER)
            backing.utimens(fd, 1_000_000_001, 2_000_000_002)
            backing.set_xattr(fd, b"trusted.a", b"1")
            assert backing.list_xattrs(fd) == [b"trusted.a"]
        st = (tmp_path / "s").lstat()
        assert (st.st_uid, st.st_mtime_ns) == (OTHER, 2_000_000_002)
        after = (tmp_path / "f").stat()
        assert (after.st_uid, after.st_mtime_ns, after.st_ctime_ns) == (0, before.st_mtime_ns, before.st_ctime_ns)
        assert os.listxattr(tmp_path / "f") == []

    def test_a_hard_link_to_one_is_another_link(self, root: int, tmp_path: Path) -> None:
        (tmp_path / "s").symlink_to("nowhere")
        with Pinned(root, b"s") as fd:
            backing.link(fd, root, b"t")
        assert (tmp_path / "t").readlink() == Path("nowhere")
        assert (tmp_path / "s").lstat().st_nlink == 2

    def test_lookup_and_exists_see_the_link(self, root: int, tmp_path: Path) -> None:
        (tmp_path / "s").symlink_to("nowhere")
        assert stat.S_ISLNK(backing.lookup(root, b"s").st_mode)
        assert backing.exists(root, b"s")
        assert not backing.exists(root, b"nowhere")


class TestOpening:
    @pytest.mark.parametrize("mode", [os.O_RDONLY, os.O_WRONLY, os.O_RDWR])
    def test_the_openers_access_mode(self, root: int, tmp_path: Path, mode: int) -> None:
        (tmp_path / "f").write_bytes(b"text")
        with Pinned(root, b"f") as pin:
            fd = backing.open_file(pin, mode | os.O_TRUNC | os.O_APPEND | os.O_DIRECT | os.O_NOFOLLOW)
        try:
            assert backing.size(fd) == 4, "truncated before a verdict"
            flags = fcntl.fcntl(fd, fcntl.F_GETFL)
            assert flags & os.O_ACCMODE == mode
            assert not flags & (os.O_APPEND | os.O_DIRECT)
            assert not os.get_inheritable(fd)
        finally:
            backing.close(fd)

    def test_what_was_pinned_is_opened_whatever_stands_at_the_name(self, root: int, tmp_path: Path) -> None:
        (tmp_path / "f").write_bytes(b"first")
        with Pinned(root, b"f") as pin:
            os.unlink(tmp_path / "f")
            (tmp_path / "f").write_bytes(b"second")
            fd = backing.open_to_judge(pin)
            assert backing.pread(fd, 100, 0) == b"first"
            assert backing.links(fd) == 0
            backing.close(fd)

    def test_judging_leaves_atime_alone(self, root: int, tmp_path: Path) -> None:
        (tmp_path / "f").write_bytes(b"text")
        os.utime(tmp_path / "f", ns=(1, 1))
        with Pinned(root, b"f") as pin:
            fd = backing.open_to_judge(pin)
        backing.fingerprint(fd, 100)
        backing.close(fd)
        assert (tmp_path / "f").stat().st_atime_ns == 1

    def test_create_keeps_every_bit_of_the_mode(self, root: int, tmp_path: Path) -> None:
        before = os.umask(0)
        try:
            backing.close(backing.create_file(root, b"f", os.O_WRONLY | os.O_TRUNC, 0o6741))
        finally:
            os.umask(before)
        assert stat.S_IMODE((tmp_path / "f").stat().st_mode) == 0o6741

    def test_a_read_only_file_is_written_by_its_maker(self, root: int) -> None:
        fd = backing.create_file(root, b"f", os.O_WRONLY, 0o444)
        assert backing.pwrite(fd, b"text", 0) == 4
        backing.close(fd)


class TestTruncate:
    @pytest.mark.parametrize("mode", [os.O_RDONLY, os.O_WRONLY, os.O_RDWR])
    def test_through_any_descriptor(self, root: int, tmp_path: Path, mode: int) -> None:
        (tmp_path / "f").write_bytes(b"text")
        with Pinned(root, b"f") as pin:
            fd = backing.open_file(pin, mode)
        os.unlink(tmp_path / "f")
        backing.truncate(fd, 2)
        assert backing.size(fd) == 2
        backing.close(fd)

    def test_errors_keep_their_errno(self, root: int) -> None:
        fd = backing.create_file(root, b"f", os.O_RDWR, 0o644)
        with pytest.raises(OSError, match="Invalid argument"):
            backing.truncate(fd, -1)
        backing.close(fd)


class TestTimes:
    @pytest.mark.parametrize(
        ("atime", "mtime", "expected"),
        [
            (1, 2, (1, 2)),
            (None, 2, (1_000, 2)),
            (1, None, (1, 2_000)),
            (None, None, (1_000, 2_000)),
            (-1, -1_500_000_000, (-1, -1_500_000_000)),
            (
                1_700_000_000_123_456_789,
                4_294_967_297_000_000_001,
                (1_700_000_000_123_456_789, 4_294_967_297_000_000_001),
            ),
        ],
    )
    def test_to_the_nanosecond(
        self, root: int, tmp_path: Path, atime: int | None, mtime: int | None, expected: tuple[int, int]
    ) -> None:
        (tmp_path / "f").touch()
        os.utime(tmp_path / "f", ns=(1_000, 2_000))
        with Pinned(root, b"f") as pin:
            backing.utimens(pin, atime, mtime)
        st = (tmp_path / "f").stat()
        assert (st.st_atime_ns, st.st_mtime_ns) == expected


class TestRename:
    def test_flags_are_honoured(self, root: int, tmp_path: Path) -> None:
        (tmp_path / "a").write_bytes(b"a")
        (tmp_path / "b").write_bytes(b"b")
        with pytest.raises(FileExistsError):
            backing.rename(root, b"a", root, b"b", NOREPLACE)
        backing.rename(root, b"a", root, b"b", EXCHANGE)
        assert (tmp_path / "a").read_bytes() == b"b"
        backing.rename(root, b"a", root, b"b", 0)
        assert (tmp_path / "b").read_bytes() == b"b"
        assert not (tmp_path / "a").exists()

    def test_unknown_ones_are_refused(self, root: int, tmp_path: Path) -> None:
        (tmp_path / "a").touch()
        for flags in (8, NOREPLACE | EXCHANGE):
            with pytest.raises(OSError, match="Invalid argument"):
                backing.rename(root, b"a", root, b"b", flags)

    def test_bytes_that_are_no_text(self, root: int, tmp_path: Path) -> None:
        name = b"\xff\n" * 100
        backing.close(backing.create_file(root, name, os.O_WRONLY, 0o600))
        backing.rename(root, name, root, b"\x80", 0)
        fd = backing.open_root(str(tmp_path))
        assert backing.list_names(fd) == [b"\x80"]
        backing.unlink(root, b"\x80")
        assert backing.list_names(fd) == []
        backing.close(fd)


class TestGiveTo:
    """What root makes for somebody else is as if they had made it."""

    def made(self, root: int, mode: int) -> tuple[int, int, str]:
        before = os.umask(0)
        fd = backing.create_file(root, b"f", os.O_WRONLY, mode)
        os.umask(before)
        backing.give_to(fd, OTHER, OTHER, backing.stat(root), mode)
        st = backing.stat(fd)
        backing.close(fd)
        return st.st_uid, st.st_gid, stat.filemode(st.st_mode)

    def test_owner_and_group(self, root: int) -> None:
        assert self.made(root, 0o640) == (OTHER, OTHER, "-rw-r-----")

    def test_set_id_bits_survive_the_change_of_owner(self, root: int) -> None:
        assert self.made(root, 0o6755) == (OTHER, OTHER, "-rwsr-sr-x")

    def test_a_set_group_id_directory_gives_its_own_group(self, root: int, tmp_path: Path) -> None:
        os.chown(tmp_path, 0, 4100)
        os.chmod(tmp_path, 0o2777)
        assert self.made(root, 0o644) == (OTHER, 4100, "-rw-r--r--")

    def test_a_symlink_has_an_owner_and_no_mode(self, root: int, tmp_path: Path) -> None:
        backing.symlink(root, b"s", b"target")
        with Pinned(root, b"s") as fd:
            backing.give_to(fd, OTHER, OTHER, backing.stat(root), None)
        assert (tmp_path / "s").lstat().st_uid == OTHER

    def test_roots_own_need_nothing(self, root: int) -> None:
        fd = backing.create_file(root, b"f", os.O_WRONLY, 0o644)
        before = backing.stamp(fd)
        backing.give_to(fd, 0, 0, backing.stat(root), 0o644)
        assert backing.stamp(fd) == before
        backing.close(fd)


class TestAttributes:
    def test_of_what_is_pinned(self, root: int, tmp_path: Path) -> None:
        (tmp_path / "f").touch()
        with Pinned(root, b"f") as fd:
            backing.set_xattr(fd, b"user.\xff", b"\0\n")
            assert backing.list_xattrs(fd) == [b"user.\xff"]
            assert backing.get_xattr(fd, b"user.\xff") == b"\0\n"
            backing.remove_xattr(fd, b"user.\xff")
            with pytest.raises(OSError, match="No data available"):
                backing.get_xattr(fd, b"user.\xff")

    def test_mode_without_the_kind(self, root: int, tmp_path: Path) -> None:
        (tmp_path / "f").touch()
        with Pinned(root, b"f") as fd:
            backing.chmod(fd, stat.S_IFREG | 0o7531)
        assert stat.S_IMODE((tmp_path / "f").stat().st_mode) == 0o7531


class TestFingerprint:
    def test_of_the_bytes(self, root: int, tmp_path: Path) -> None:
        data = os.urandom(3 << 20)
        (tmp_path / "f").write_bytes(data)
        with Pinned(root, b"f") as pin:
            fd = backing.open_to_judge(pin)
        seen = backing.fingerprint(fd, 4 << 20)
        assert seen.digest == hashlib.sha256(data).digest()
        assert seen.stamp == backing.stamp_of((tmp_path / "f").stat())
        assert backing.fingerprint(fd, 100).digest is None
        backing.close(fd)

    def test_bytes_that_keep_moving_have_none(self, root: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "f").write_bytes(b"text")
        with Pinned(root, b"f") as pin:
            fd = backing.open_to_judge(pin)
        sizes = iter(range(5, 50))
        digest = backing.digest

        def while_it_grows(fd: int, length: int) -> bytes:
            os.truncate(tmp_path / "f", next(sizes))
            return digest(fd, length)

        monkeypatch.setattr(backing, "digest", while_it_grows)
        assert backing.fingerprint(fd, 100).digest is None
        backing.close(fd)


def test_a_limit_of_descriptors_is_known() -> None:
    assert backing.descriptor_limit() >= 3
