"""Whether a repository has an object: gitrepository-layout(5), gitformat-pack(5).

An index may name a blob that was never stored, or not yet fetched; a file is safe in git only if it was. Blocks, and
belongs in a worker thread. Used by ``workspace``.
"""

import os
import stat
from collections import OrderedDict
from io import BytesIO

from dulwich.object_format import DEFAULT_OBJECT_FORMAT, SHA256
from dulwich.objects import ObjectID
from dulwich.pack import PackIndex, load_pack_index_file

from guardfs.vcs.index import SHA1_BYTES
from guardfs.vcs.places import Places, Signature, Watch, signature

_PACK_INDEX_LIMIT = 256 << 20
_KEPT_BYTES = 64 << 20
"""Bytes of packs' indexes that are kept between questions."""
_ALTERNATES_LIMIT = 1 << 16
_ALTERNATES = 5
"""How deep repositories may borrow from each other, as in git's object-file.c."""


class PackIndexes:
    """The indexes of packs that were read, by path and state; the least recently asked go first.

    They are read and not mapped: one that somebody cuts short would kill this process by SIGBUS.
    """

    def __init__(self, places: Places) -> None:
        self._places = places
        self._kept: OrderedDict[bytes, tuple[Signature | None, PackIndex, int]] = OrderedDict()

    def get(self, path: bytes, digits: int) -> PackIndex:
        """The index at a path. Raises OSError, ValueError or KeyError for one that cannot be read."""
        seen = signature(self._places.lstat(path))
        kept = self._kept.pop(path, None)
        if kept is None or kept[0] != seen:
            text, _ = self._places.read(path, _PACK_INDEX_LIMIT)
            kind = DEFAULT_OBJECT_FORMAT if digits == 2 * SHA1_BYTES else SHA256
            kept = (seen, load_pack_index_file(os.fsdecode(path), BytesIO(text), kind), len(text))
        self._kept[path] = kept
        while sum(size for _, _, size in self._kept.values()) > _KEPT_BYTES and len(self._kept) > 1:
            self._kept.popitem(last=False)
        return kept[1]


def has_object(places: Places, packs: PackIndexes, common: bytes, oid: bytes) -> bool:
    """Whether the repository at ``common`` has an object, its own or borrowed; ``oid`` in hex."""
    return any(_holds(places, packs, each, oid) for each in _stores(places, os.path.join(common, b"objects"), 0))


def _stores(places: Places, objects: bytes, depth: int) -> list[bytes]:
    """An object directory, and those that it borrows from."""
    found = [objects]
    try:
        text = Watch(places).read(os.path.join(objects, b"info", b"alternates"), _ALTERNATES_LIMIT) or b""
    except OSError:
        return found
    for line in text.splitlines():
        place = Watch(places).look(os.path.join(objects, line)) if line and not line.startswith(b"#") else None
        if place is not None and depth < _ALTERNATES:
            found += _stores(places, place, depth + 1)
    return found


def _holds(places: Places, packs: PackIndexes, objects: bytes, oid: bytes) -> bool:
    loose = places.lstat(os.path.join(objects, oid[:2], oid[2:]))
    if loose is not None and stat.S_ISREG(loose.st_mode) and loose.st_size > 0:
        return True
    pack = os.path.join(objects, b"pack")
    indexes = [os.path.join(pack, name) for name in places.names(pack) if name.endswith(b".idx")]
    return any(_is_packed(places, packs, index, oid) for index in indexes)


def _is_packed(places: Places, packs: PackIndexes, index: bytes, oid: bytes) -> bool:
    if places.lstat(index.removesuffix(b".idx") + b".pack") is None:
        return False
    try:
        packs.get(index, len(oid)).object_offset(ObjectID(oid))
    except (KeyError, OSError, ValueError, IndexError):
        return False  # Not in it, or nothing that can be read: another may have it.
    return True
