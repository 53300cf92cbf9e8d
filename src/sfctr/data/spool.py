"""Blocks of converted rows, in memory up to a bound and in a file beyond it; any run of a block's rows can be had back.

The file is for this process alone: it is unlinked as soon as it is made, so nothing is left of it however the process
ends. A block's arrays lie in it one after the other, raw; where each lies is kept in memory. One thread appends, and
reads when all is there.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from sfctr.spec.batch import I64, Batch
from sfctr.spec.errors import CapacityError
from sfctr.telemetry import notice

from .order import BLOCK
from .records import Layout, Lists, Picks, Records


class SpillFile:
    """Bytes appended to an unlinked file and read back by offset."""

    def __init__(self, directory: str | None) -> None:
        try:
            if directory is not None:
                os.makedirs(directory, exist_ok=True)
            self._file: IO[bytes] = tempfile.TemporaryFile(dir=directory, buffering=0)  # noqa: SIM115  closed by close
        except OSError as error:
            where = directory or tempfile.gettempdir()
            raise CapacityError(
                f"no temporary file can be made in {where}: {error.strerror}; free its disk, or raise data.memory"
            ) from error
        self._size = 0

    def append(self, data: memoryview) -> int:
        """Write `data` at the end; its offset."""
        offset, done = self._size, 0
        try:
            while done < len(data):
                done += os.pwrite(self._file.fileno(), data[done:], offset + done)
        except OSError as error:
            raise CapacityError(
                f"the spool of converted rows could not grow: {error.strerror}; free disk space, or raise data.memory"
            ) from error
        self._size += len(data)
        return offset

    def read(self, offset: int, out: memoryview) -> None:
        """Fill `out` from `offset` on."""
        done = 0
        while done < len(out):
            count = os.preadv(self._file.fileno(), [out[done:]], offset + done)
            assert count > 0, "the spool is shorter than what was written"
            done += count

    def close(self) -> None:
        self._file.close()


@dataclass(frozen=True, slots=True)
class _Stored:
    """An array in the spill file."""

    offset: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _StoredBlock:
    packed: _Stored
    lists: Mapping[str, tuple[_Stored, _Stored, _Stored | None]]


class BlockStore:
    """Blocks of BLOCK rows (the last may be shorter), appended in turn."""

    def __init__(self, memory_bytes: int, spool_dir: str | None) -> None:
        self.num_rows = 0
        self._memory_bytes, self._directory = memory_bytes, spool_dir
        self._held_bytes = 0
        self._layout: Layout | None = None
        self._blocks: list[Records | _StoredBlock] = []
        self._spill: SpillFile | None = None

    def append(self, batch: Batch) -> None:
        assert self.num_rows == len(self._blocks) * BLOCK, "only the last block may be short"
        self._layout = self._layout or Layout(batch)
        self.num_rows += batch.size
        block = self._layout.pack(batch)
        self._held_bytes += block.num_bytes
        if self._spill is None and self._held_bytes > self._memory_bytes:
            self._start_spill()
        self._blocks.append(block if self._spill is None else _store(block, self._spill))

    def _start_spill(self) -> None:
        where = self._directory or tempfile.gettempdir()
        notice(
            f"shuffling needs more than data.memory, {self._memory_bytes:,} bytes:"
            f" converted rows go to a temporary file in {where}"
        )
        self._spill = SpillFile(self._directory)
        for index, block in enumerate(self._blocks):
            assert isinstance(block, Records)
            self._blocks[index] = _store(block, self._spill)

    def pieces(self, positions: I64) -> tuple[Sequence[Records], Picks]:
        """What `gather` needs for the rows at these positions: parts of blocks, and where in them each row is."""
        if not len(positions):
            return no_pieces()
        ordered = np.sort(positions)
        edges = np.flatnonzero(np.diff(ordered // BLOCK, prepend=-1))
        lows, highs = ordered[edges], np.append(ordered[edges[1:] - 1], ordered[-1])
        pieces = [
            self._piece(int(low // BLOCK), int(low % BLOCK), int(high % BLOCK) + 1)
            for low, high in zip(lows, highs, strict=True)
        ]
        which = np.searchsorted(lows, positions, side="right") - 1
        return pieces, (which.astype(np.uint32), (positions - lows[which]).astype(np.uint32))

    def gather(self, pieces: Sequence[Records], picks: Picks) -> Batch:
        assert self._layout is not None
        return self._layout.gather(pieces, picks)

    def _piece(self, block: int, start: int, stop: int) -> Records:
        stored = self._blocks[block]
        if isinstance(stored, Records):
            return stored.cut(start, stop)
        lists = {}
        for name, (offsets, keys, weights) in stored.lists.items():
            bounds = self._read(offsets, start, stop + 1)
            first, last = int(bounds[0]), int(bounds[-1])
            items = (self._read(keys, first, last), None if weights is None else self._read(weights, first, last))
            lists[name] = Lists(bounds - first, *items)
        return Records(self._read(stored.packed, start, stop), lists)

    def _read(self, place: _Stored, start: int, stop: int) -> npt.NDArray[Any]:
        assert self._spill is not None
        out = np.empty((stop - start, *place.shape[1:]), place.dtype)
        row_bytes = place.dtype.itemsize * int(np.prod(place.shape[1:], dtype=np.int64))
        self._spill.read(place.offset + start * row_bytes, _bytes(out))
        return out

    def close(self) -> None:
        self._blocks.clear()
        if self._spill is not None:
            self._spill.close()
            self._spill = None


def no_pieces() -> tuple[Sequence[Records], Picks]:
    """What `pieces` gives for no rows."""
    return [], (np.zeros(0, np.uint32), np.zeros(0, np.uint32))


def _store(block: Records, spill: SpillFile) -> _StoredBlock:
    def stored(array: npt.NDArray[Any]) -> _Stored:
        return _Stored(spill.append(_bytes(array)), array.dtype, array.shape)

    lists = {
        name: (stored(part.offsets), stored(part.keys), None if part.weights is None else stored(part.weights))
        for name, part in block.lists.items()
    }
    return _StoredBlock(stored(block.packed), lists)


def _bytes(array: npt.NDArray[Any]) -> memoryview:
    return array.reshape(-1).view(np.uint8).data
