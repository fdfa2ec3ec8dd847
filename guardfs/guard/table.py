"""Many records in little memory: each is kept packed, as the store has it.

Plain data of the event loop; must not decide. Used by ``sessions``.
"""

from collections.abc import Iterator
from itertools import islice

import msgspec

from guardfs.core.model import FileId, Record

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Record).decode


class Table:
    """Records by file, in the order in which they were put: least recently used first.

    A plain dict keeps that order in half the memory of an OrderedDict; but it finds its first entry by walking over
    the places of those that went before, so they had better go many at a time.
    """

    def __init__(self) -> None:
        self._packed: dict[FileId, bytes] = {}

    def __len__(self) -> int:
        return len(self._packed)

    def __iter__(self) -> Iterator[Record]:
        return map(_decode, self._packed.values())

    def get(self, file: FileId) -> Record | None:
        """The record of a file."""
        packed = self._packed.get(file)
        return None if packed is None else _decode(packed)

    def put(self, record: Record) -> bytes:
        """Keep a record where the file's last one was, at the end if it had none; its packed form."""
        packed = self._packed[record.file] = _encode(record)
        return packed

    def pop(self, file: FileId) -> bool:
        """Take a record out; whether there was one."""
        return self._packed.pop(file, None) is not None

    def oldest(self, count: int) -> list[Record]:
        """The least recently used records."""
        return [_decode(packed) for packed in islice(self._packed.values(), count)]
