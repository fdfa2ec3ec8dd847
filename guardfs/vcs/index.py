"""Git's index, as far as it says which paths are tracked and which blob a clean file has: gitformat-index(5).

dulwich reads it too, but takes the lengths of version 4 for another encoding (wrong from 128 on), cuts names at
4,095 bytes, and stops at the lower-case extensions that change what the entries mean. Pure.
"""

import hashlib
import struct
import sys
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator

_HEADER = struct.Struct(">4sLL")
_EXTENDED = 0x4000
_UNSURE = 0x8000 | 0x3000
"""Assume-unchanged, and the stages of a conflict."""
_UNSURE_EXTENDED = 0x4000 | 0x2000
"""Skip-worktree and intent-to-add."""
_FORMAT, _REGULAR = 0o170000, 0o100000
_VERSIONS = (2, 3, 4)
_COMPRESSED = 4
_NUMBERS = range(sys.maxsize)

SHA1_BYTES, SHA256_BYTES = 20, 32


class BadIndex(Exception):
    """These bytes are no index that can be understood."""


def new_hash(oid_bytes: int) -> "hashlib._Hash":
    """The hash of a repository whose object ids have this many bytes."""
    return hashlib.sha256() if oid_bytes == SHA256_BYTES else hashlib.sha1(usedforsecurity=False)


class Index:
    """Entries in the order of their names; packed, since there can be a million.

    An entry that no clean file can be told by has an object id of zeros.
    """

    def __init__(self, oid_bytes: int) -> None:
        self._names = bytearray()
        self._starts = array("Q", [0])
        self._oids = bytearray()
        self._oid_bytes = oid_bytes
        self._spans: dict[bytes, tuple[int, int]] = {}
        """Where the entries of each directory begin and end, those further down included."""
        self._sparse: set[bytes] = set()
        """Entries that stand for a whole directory."""
        self.shared: bytes | None = None
        """Hex id of the index that this one is a change to: its entries count as well, and nothing is sure."""
        self._base: Index | None = None

    def __len__(self) -> int:
        return len(self._starts) - 1

    def add(self, name: bytes, oid: bytes | None) -> None:
        """Append an entry; without an id, it is one that no clean file can be told by."""
        self._names += name
        self._starts.append(len(self._names))
        self._oids += oid or bytes(self._oid_bytes)
        if name.endswith(b"/"):
            self._sparse.add(name)

    def finish(self, shared: bytes | None) -> None:
        """Make it ready for questions: all entries are there."""
        self.shared = shared
        self._spans = _spans(map(self._name, range(len(self))), len(self))

    def join(self, base: "Index") -> None:
        """Add the entries of the shared index; which of them are replaced or gone is not looked at."""
        self._base = base

    def blob(self, path: bytes) -> bytes | None:
        """Hex object id of the blob of a clean file, relative to the repository; None if there is no telling."""
        at = self._find(path)
        if self.shared is not None or self._name(at) != path:
            return None
        oid = self._oids[at * self._oid_bytes : (at + 1) * self._oid_bytes]
        return oid.hex().encode() if any(oid) else None

    def tracks(self, path: bytes) -> bool:
        """Whether ``path`` is tracked, or a directory that holds something tracked."""
        if self._base is not None and self._base.tracks(path):
            return True
        if path in self._spans or self._name(self._find(path)) == path:
            return True
        return bool(self._sparse) and self._in_sparse_directory(path)

    def _in_sparse_directory(self, path: bytes) -> bool:
        """Whether one entry stands for a whole directory that ``path`` lies in."""
        above = [path[: i + 1] for i, byte in enumerate(path) if byte == ord("/")]
        return any(each in self._sparse for each in above)

    def _find(self, name: bytes) -> int:
        first, end = self._spans.get(name.rpartition(b"/")[0], (0, 0))
        return bisect_left(_NUMBERS, name, first, end, key=self._name)

    def _name(self, at: int) -> bytes:
        """The name of an entry; empty beyond the last."""
        return bytes(self._names[self._starts[at] : self._starts[at + 1]]) if at + 1 < len(self._starts) else b""


def _spans(names: Iterable[bytes], count: int) -> dict[bytes, tuple[int, int]]:
    """Since names are in order, everything below a directory lies together."""
    spans = {}
    inside: list[tuple[bytes, int]] = [(b"", 0)]
    last = b""
    for at, name in enumerate(names):
        directory = name.rpartition(b"/")[0]
        if directory == last:
            continue
        while not name.startswith(inside[-1][0]):
            prefix, first = inside.pop()
            spans[prefix[:-1]] = (first, at)
        slash = name.find(b"/", len(inside[-1][0]))
        while slash >= 0:
            inside.append((name[: slash + 1], at))
            slash = name.find(b"/", slash + 1)
        last = directory
    return spans | {prefix[:-1]: (first, count) for prefix, first in inside}


def parse_index(data: bytes, oid_bytes: int) -> Index:
    """Read an index; no bytes at all are an empty one.

    Raises:
        BadIndex: damaged, or of a kind that is not known.
    """
    if not data:
        return Index(oid_bytes)
    try:
        return _parsed(data, oid_bytes)
    except (struct.error, ValueError, IndexError) as error:
        raise BadIndex(str(error)) from error


def _parsed(data: bytes, oid_bytes: int) -> Index:
    version, count = _opened(data, oid_bytes)
    index, at = Index(oid_bytes), _HEADER.size
    for name, mode, oid, end in _entries(data, version, count, oid_bytes):
        index.add(name, oid if mode & _FORMAT == _REGULAR else None)
        at = end
    index.finish(_shared(data, at, oid_bytes))
    return index


def _opened(data: bytes, oid_bytes: int) -> tuple[int, int]:
    """Version and number of entries, if the checksum is right."""
    magic, version, count = _HEADER.unpack_from(data)
    if magic != b"DIRC" or version not in _VERSIONS:
        raise BadIndex("not an index of a known version")
    digest = new_hash(oid_bytes)
    digest.update(memoryview(data)[:-oid_bytes])
    # Zeros: index.skipHash.
    if data[-oid_bytes:] not in {digest.digest(), bytes(oid_bytes)}:
        raise BadIndex("checksum does not match")
    return version, count


def _entries(data: bytes, version: int, count: int, oid_bytes: int) -> Iterator[tuple[bytes, int, bytes, int]]:
    """Name, mode and object id of each entry, and where it ends; the mode is 0 where the entry is not sure."""
    fixed = struct.Struct(f">24xL12x{oid_bytes}sH")
    at, name = _HEADER.size, b""
    for _ in range(count):
        mode, oid, flags = fixed.unpack_from(data, at)
        start, previous = at + fixed.size, name
        if flags & _EXTENDED:
            unsure = flags & _UNSURE or int.from_bytes(data[start : start + 2]) & _UNSURE_EXTENDED
            start += 2
        else:
            unsure = flags & _UNSURE
        if version == _COMPRESSED:
            cut, start = _offset(data, start)
            end = data.index(0, start)
            if cut > len(previous):
                raise BadIndex("an entry begins with more than the one before it")
            name = previous[: len(previous) - cut] + data[start:end]
            at = end + 1
        else:
            end = data.index(0, start)
            name = data[start:end]
            at += (end - at + 8) & ~7  # Entries are padded with 1 to 8 NULs.
        if name < previous:
            raise BadIndex("entries are not in order")
        yield name, 0 if unsure else mode, oid, at


def _offset(data: bytes, at: int) -> tuple[int, int]:
    """A number in the encoding of pack offsets, and where it ends: decode_varint() in git's varint.c."""
    byte = data[at]
    value = byte & 127
    while byte & 128:
        at += 1
        byte = data[at]
        value = ((value + 1) << 7) | (byte & 127)
    return value, at + 1


def _shared(data: bytes, at: int, oid_bytes: int) -> bytes | None:
    """The id in the extension that makes this half of a split index."""
    shared = None
    end = len(data) - oid_bytes
    while at < end:
        name, size = struct.unpack_from(">4sL", data, at)
        start, at = at + 8, at + 8 + size
        if at > end:
            raise BadIndex("an extension is cut off")
        if name == b"link":
            shared = data[start : start + oid_bytes].hex().encode()
        elif name != b"sdir" and not name[:1].isupper():
            raise BadIndex("an extension that must be understood is not")
    return shared
