"""Rows files: the rows of one group that a checkpoint adds to those before it, and the keys it takes away.

docs/format/checkpoint.md says what the bytes mean. Blocks are bounded, so that neither side needs memory for more than
one. The reader trusts nothing: whatever is not as it was written is a CheckpointError with the file and the byte.

  n rows of a block, R floats of a record
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np
import numpy.typing as npt

from sfctr.spec.batch import F32, U64, Bools
from sfctr.spec.errors import CheckpointError
from sfctr.spec.snapshot import U32

from .disk import FileFacts, OutFile
from .layout import RecordLayout

MAGIC = b"SFCTRROW"
VERSION = 1
BLOCK_BYTES = 8 << 20
TOMBSTONES, ROWS, END = 1, 2, 3
HEAD = struct.Struct("<8sIII")  # magic, version, bytes of the text, CRC-32 of all of it but itself
BLOCK = struct.Struct("<IIII")  # kind, space, number of keys, CRC-32 of the twelve bytes before and the payload
COUNTS = struct.Struct("<QQ")  # rows, tombstones
MOST_TEXT = 1 << 24
"""Bytes that the header's text may have: names of tables alone make it long."""


class Header(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whose rows the file holds. since: step of the checkpoint that the changes follow; None: it holds all rows."""

    step: int
    since: int | None
    layout: RecordLayout


@dataclass(frozen=True, kw_only=True, slots=True)
class Rows:
    """Rows of one space (see spec.snapshot): keys [n], last [n] or None, records [n, R]."""

    space: int
    keys: U64
    last: U32 | None
    records: F32

    def only(self, chosen: Bools) -> Rows:
        """Those of which `chosen` [n] is True."""
        last = None if self.last is None else self.last[chosen]
        return Rows(space=self.space, keys=self.keys[chosen], last=last, records=self.records[chosen])


@dataclass(frozen=True, kw_only=True, slots=True)
class Tombstones:
    """Keys [n] of one space that lost their rows, before those of the same file were there."""

    space: int
    keys: U64

    def only(self, chosen: Bools) -> Tombstones:
        """Those of which `chosen` [n] is True."""
        return Tombstones(space=self.space, keys=self.keys[chosen])


Chosen = Callable[[int, U64], Bools]
"""Says of keys [n] of a space which are wanted, bool [n]."""


class RowsWriter:
    """Writes a rows file from front to back into `file`."""

    def __init__(self, file: OutFile, header: Header) -> None:
        self._file, self._layout = file, header.layout
        self._num_rows = self._num_tombstones = 0
        text = msgspec.json.encode(header)
        front = HEAD.pack(MAGIC, VERSION, len(text), 0)[:-4]
        file.write(front + struct.pack("<I", zlib.crc32(text, zlib.crc32(front))) + text)

    def rows(self, rows: Rows) -> None:
        for part in _ranges(rows.keys.size, rows_of_block(self._layout)):
            arrays: list[npt.NDArray[Any]] = [rows.keys[part], rows.records[part]]
            if self._layout.has_last:
                assert rows.last is not None, "the group keeps the last step of its rows"
                arrays.insert(1, rows.last[part])
            self._block(ROWS, rows.space, rows.keys[part].size, arrays)
        self._num_rows += rows.keys.size

    def tombstones(self, space: int, keys: U64) -> None:
        for part in _ranges(keys.size, BLOCK_BYTES // 8):
            self._block(TOMBSTONES, space, keys[part].size, [keys[part]])
        self._num_tombstones += keys.size

    def finish(self) -> FileFacts:
        counts = np.array([self._num_rows, self._num_tombstones], dtype="<u8")
        self._block(END, 0, 0, [counts])
        return self._file.finish()

    def _block(self, kind: int, space: int, count: int, arrays: list[npt.NDArray[Any]]) -> None:
        front = BLOCK.pack(kind, space, count, 0)[:-4]
        crc32 = zlib.crc32(front)
        contiguous = [np.ascontiguousarray(array) for array in arrays]
        for array in contiguous:
            crc32 = zlib.crc32(array.data, crc32)
        self._file.write(front + struct.pack("<I", crc32))
        for array in contiguous:
            self._file.write(array.data)


def rows_of_block(layout: RecordLayout) -> int:
    """Most rows of a block: as many as come to 8 MB, and at least one."""
    return max(1, BLOCK_BYTES // layout.row_bytes)


def _ranges(count: int, size: int) -> Iterator[slice]:
    for begin in range(0, count, size):
        yield slice(begin, begin + size)


class RowsFile:
    """An open rows file. Raises CheckpointError here and in blocks() for anything that is not as it was written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._at = 0
        try:
            self._file: BinaryIO = path.open("rb")
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read ({error.strerror}); the checkpoint is damaged") from None
        try:
            self.header = self._header()
        except BaseException:
            self._file.close()
            raise

    def close(self) -> None:
        self._file.close()

    def blocks(self, chosen: Chosen | None = None) -> Iterator[Rows | Tombstones]:
        """What the file holds, in its order; with `chosen` what it says True of, keys and rows. Its arrays are the
        caller's. Of a block that has nothing chosen only the keys are read: it is not held to its CRC-32."""
        counts = [0, 0]
        while True:
            begin = self._at
            kind, space, count, crc32 = BLOCK.unpack(front := self._read(BLOCK.size))
            left = self._payload_bytes(begin, kind, space, count)
            payload, wanted = bytearray(), None
            if kind != END:
                counts[kind == TOMBSTONES] += count
                if chosen is not None:
                    payload = self._read(8 * count)
                    left -= len(payload)
                    wanted = chosen(space, np.frombuffer(payload, "<u8"))
                    if not wanted.any():
                        self._skip(left)
                        continue
            payload = payload + self._read(left)
            if zlib.crc32(payload, zlib.crc32(front[:-4])) != crc32:
                raise self._damaged(begin, f"a block of {count:,} keys has another CRC-32 than it says")
            if kind == END:
                break
            block = self._parsed(kind, space, count, payload)
            yield block if wanted is None or wanted.all() else block.only(wanted)
        if list(COUNTS.unpack(payload)) != counts:
            raise self._damaged(begin, f"the end tells of other counts than the {counts} rows and keys before it")
        if self._file.read(1):
            raise self._damaged(self._at, "bytes follow the end")

    def _header(self) -> Header:
        magic, version, length, crc32 = HEAD.unpack(front := self._read(HEAD.size))
        if magic != MAGIC:
            raise self._damaged(0, f"{magic!r} was found where a rows file has {MAGIC!r}")
        if version != VERSION:
            raise CheckpointError(
                f"{self.path}: version {version} was found and version {VERSION} is needed; use the release that wrote"
                " it"
            )
        if length > MOST_TEXT or zlib.crc32(text := self._read(length), zlib.crc32(front[:-4])) != crc32:
            raise self._damaged(0, "the header has another CRC-32 than it says")
        try:
            return msgspec.json.decode(text, type=Header)
        except msgspec.DecodeError as error:
            raise self._damaged(HEAD.size, f"the header's text cannot be used: {error}") from None

    def _payload_bytes(self, begin: int, kind: int, space: int, count: int) -> int:
        layout = self.header.layout
        num_bytes = {TOMBSTONES: 8 * count, ROWS: layout.row_bytes * count, END: COUNTS.size}.get(kind)
        most = {TOMBSTONES: BLOCK_BYTES // 8, ROWS: rows_of_block(layout), END: 0}.get(kind, 0)
        if num_bytes is None or count > most or space >= 2 * len(layout.tables):
            raise self._damaged(begin, f"no block is of kind {kind} for space {space} with {count:,} keys")
        return num_bytes

    def _parsed(self, kind: int, space: int, count: int, payload: bytearray) -> Rows | Tombstones:
        keys = np.frombuffer(payload, "<u8", count)
        if kind == TOMBSTONES:
            return Tombstones(space=space, keys=keys)
        layout, at = self.header.layout, 8 * count
        last = np.frombuffer(payload, "<u4", count, at) if layout.has_last else None
        at += 4 * count * layout.has_last
        records = np.frombuffer(payload, "<f4", count * layout.record_floats, at).reshape(count, layout.record_floats)
        return Rows(space=space, keys=keys, last=last, records=records)

    def _read(self, size: int) -> bytearray:
        data = bytearray(size)
        try:
            found = self._file.readinto(data)  # type: ignore[attr-defined]
        except OSError as error:
            raise self._damaged(self._at, f"it cannot be read ({error.strerror})") from None
        if found < size:
            raise self._damaged(self._at + found, f"the file ends where {size - found:,} bytes more are needed")
        self._at += size
        return data

    def _skip(self, size: int) -> None:
        self._file.seek(size, os.SEEK_CUR)
        self._at += size

    def _damaged(self, at: int, what: str) -> CheckpointError:
        return CheckpointError(f"{self.path}, byte {at:,}: {what}; the checkpoint is damaged, use another one")
