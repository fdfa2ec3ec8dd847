"""Git's index, as far as it says which paths are tracked and which blob a clean file has: gitformat-index(5).

dulwich reads it too, but takes the lengths of version 4 for another encoding (wrong from 128 on), cuts names at
4,095 bytes, and stops at the lower-case extensions that change what the entries mean. Pure but for nothing.
"""

import hashlib
import struct
from array import array
from bisect import bisect_left

_ASSUME_UNCHANGED = 0x8000
_EXTENDED = 0x4000
_STAGE = 0x3000
_SKIP_WORKTREE_OR_INTENT = 0x6000
_REGULAR = 0o100000
_DIRECTORY = 0o040000
_FORMAT = 0o170000
_VERSIONS = (2, 3, 4)
_COMPRESSED = 4

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
        self._oid_bytes = oid_bytes
        self._nothing = bytes(oid_bytes)
        self._names = bytearray()
        self._starts = array("Q", [0])
        self._oids = bytearray()
        self._is_sparse = False
        self.shared: str | None = None
        """Hex id of the index that this one is a change to: its entries count as well, and nothing is sure."""
        self._base: Index | None = None

    def join(self, base: "Index") -> None:
        """Add the entries of the shared index; which of them are replaced or gone is not looked at."""
        self._base = base

    def blob(self, path: bytes) -> bytes | None:
        """Hex object id of the blob of a clean file, relative to the repository; None if there is no telling."""
        if self.shared is not None:
            return None
        at = self._find(path)
        if self._name(at) != path:
            return None
        oid = bytes(self._oids[at * self._oid_bytes : (at + 1) * self._oid_bytes])
        return None if oid == self._nothing else oid.hex().encode()

    def tracks(self, path: bytes) -> bool:
        """Whether ``path`` is tracked, or a directory that holds something tracked."""
        if self._base is not None and self._base.tracks(path):
            return True
        if self._name(self._find(path)) == path or self._name(self._find(path + b"/")).startswith(path + b"/"):
            return True
        return self._is_sparse and self._in_sparse_directory(path)

    def _in_sparse_directory(self, path: bytes) -> bool:
        """Whether one entry stands for a whole directory that ``path`` lies in."""
        above = [path[: i + 1] for i, byte in enumerate(path) if byte == ord("/")]
        return any(self._name(self._find(each)) == each for each in above)

    def _find(self, name: bytes) -> int:
        return bisect_left(range(len(self._starts) - 1), name, key=self._name)

    def _name(self, at: int) -> bytes:
        """The name of an entry; empty beyond the last."""
        return bytes(self._names[self._starts[at] : self._starts[at + 1]]) if at + 1 < len(self._starts) else b""

    def add(self, name: bytes, mode: int, oid: bytes, is_sure: bool) -> None:
        """Append the next entry."""
        self._names += name
        self._starts.append(len(self._names))
        self._oids += oid if is_sure else self._nothing
        self._is_sparse = self._is_sparse or mode == _DIRECTORY


def parse_index(data: bytes, oid_bytes: int) -> Index:
    """Read an index; no bytes at all are an empty one.

    Raises:
        BadIndex: damaged, or of a kind that is not known.
    """
    index = Index(oid_bytes)
    if data:
        try:
            version, count, body = _opened(data, oid_bytes)
            _read_extensions(body, _read_entries(body, version, count, index), index)
        except (struct.error, ValueError, IndexError) as error:
            raise BadIndex(str(error)) from error
    return index


def _opened(data: bytes, oid_bytes: int) -> tuple[int, int, bytes]:
    """Version, number of entries, and all bytes but the checksum at the end."""
    magic, version, count = struct.unpack_from(">4sLL", data)
    body, checksum = data[:-oid_bytes], data[-oid_bytes:]
    if magic != b"DIRC" or version not in _VERSIONS:
        raise BadIndex("not an index of a known version")
    digest = new_hash(oid_bytes)
    digest.update(body)
    # Zeros: index.skipHash.
    if checksum not in {digest.digest(), bytes(oid_bytes)}:
        raise BadIndex("checksum does not match")
    return version, count, body


def _read_entries(data: bytes, version: int, count: int, index: Index) -> int:
    """Where the entries end."""
    fixed = struct.Struct(f">24xL12x{len(index._nothing)}sH")
    at, name = struct.calcsize(">4sLL"), b""
    for _ in range(count):
        mode, oid, flags = fixed.unpack_from(data, at)
        start, extended = at + fixed.size, 0
        if flags & _EXTENDED:
            extended = int.from_bytes(data[start : start + 2])
            start += 2
        previous = name
        if version == _COMPRESSED:
            cut, start = _offset(data, start)
            end = data.index(0, start)
            name = previous[: len(previous) - cut] + data[start:end]
            at = end + 1
        else:
            end = data.index(0, start)
            name = data[start:end]
            at += (end - at + 8) & ~7
        if name < previous:
            raise BadIndex("entries are not in order")
        is_sure = mode & _FORMAT == _REGULAR and not (
            flags & (_ASSUME_UNCHANGED | _STAGE) or extended & _SKIP_WORKTREE_OR_INTENT
        )
        index.add(name, mode, oid, is_sure)
    return at


def _offset(data: bytes, at: int) -> tuple[int, int]:
    """A number in the encoding of pack offsets, and where it ends: decode_varint() in git's varint.c."""
    byte = data[at]
    value = byte & 127
    while byte & 128:
        at += 1
        byte = data[at]
        value = ((value + 1) << 7) | (byte & 127)
    return value, at + 1


def _read_extensions(data: bytes, at: int, index: Index) -> None:
    while at < len(data):
        name, size = struct.unpack_from(">4sL", data, at)
        start, at = at + 8, at + 8 + size
        if at > len(data):
            raise BadIndex("an extension is cut off")
        if name == b"link":
            index.shared = data[start : start + len(index._nothing)].hex()
        elif name != b"sdir" and not name[:1].isupper():
            raise BadIndex("an extension that must be understood is not")
