"""Area under the ROC curve, for all rows or by group: exact, weighted, with ties, in bounded memory.

Rows are kept as (group, score, positive weight, negative weight). Whenever they outgrow the bound, those in hand are
sorted, equal scores of a group are made one, and what remains too large goes to a temporary file as a sorted run. At
the end the runs are merged block by block, so that memory stays near the bound whatever the number of rows.

The area is the weighted share of pairs of a positive and a negative row that the scores put in order, ties counting
half (Hanley and McNeil 1982). States of parts of the data merge into the state of the whole.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO

import numpy as np
import numpy.typing as npt
import torch

from sfctr.spec.errors import CapacityError
from sfctr.spec.peers import Bytes, Peers

from .merging import to_first
from .state import State

F64 = npt.NDArray[np.float64]
U64 = npt.NDArray[np.uint64]
Rows = npt.NDArray[np.void]

ROW = np.dtype([("group", "<u8"), ("score", "<f8"), ("positive", "<f8"), ("negative", "<f8")])
MEMORY = 32 << 20
_SMALLEST_BLOCK = 1024
_PIECE_ROWS = 1 << 18  # that go from rank to rank at once: 8 MiB


@dataclass(frozen=True, slots=True)
class Areas:
    """One entry a group: its positive and negative weight, and the weight of its pairs that are in order."""

    group: U64
    positive: F64
    negative: F64
    area: F64

    @property
    def weight(self) -> F64:
        return self.positive + self.negative

    @property
    def auc(self) -> F64:
        """NaN for a group of one class."""
        pairs = self.positive * self.negative
        auc: F64 = np.divide(self.area, pairs, out=np.full(len(pairs), np.nan), where=pairs > 0)
        return auc


class ScoreRuns:
    """Scores of rows, by group, in the order of (group, score) when asked for. Hold it by `with`: it may own a file.

    memory: bytes of rows held before they are sorted, and spilled to a file in `directory` (the system's if None).
    """

    def __init__(self, *, memory: int = MEMORY, directory: str | None = None) -> None:
        self._memory, self._directory = memory, directory
        self._pending: list[Rows] = []
        self._pending_bytes = 0
        self._file: IO[bytes] | None = None
        self._runs: list[tuple[int, int]] = []
        """(first byte, rows) of each sorted run in the file."""

    def __enter__(self) -> ScoreRuns:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    @property
    def spilled_runs(self) -> int:
        return len(self._runs)

    def add(self, scores: F64, labels: F64, weights: F64 | None = None, groups: U64 | None = None) -> None:
        """Add rows with labels 0 or 1; rows without weight leave no trace."""
        rows = np.zeros(len(scores), ROW)
        rows["score"] = scores
        rows["positive"] = labels if weights is None else labels * weights
        rows["negative"] = 1 - labels if weights is None else (1 - labels) * weights
        if groups is not None:
            rows["group"] = groups
        self._append(rows if weights is None else rows[weights > 0])

    def merge(self, other: ScoreRuns) -> None:
        """Take in all rows of `other`, which stays as it is."""
        for rows in other._pending:
            self._append(rows)
        for first, count in other._runs:
            for block in other._read(first, count, self._rows_of(other._memory)):
                self._append(block)

    def move_to_first(self, peers: Peers) -> None:
        """Give all rows to those of the first rank, which takes in the others' in the order of ranks."""
        to_first(peers, self._pieces(), lambda piece: self._append(piece.view(ROW)))
        if peers.rank:
            self.close()
            self._file, self._runs = None, []
            self._pending, self._pending_bytes = [], 0

    def _pieces(self) -> Iterator[Bytes]:
        for rows in self._pending:
            for start in range(0, len(rows), _PIECE_ROWS):
                yield rows[start : start + _PIECE_ROWS].view(np.uint8)
        for first, count in self._runs:
            for block in self._read(first, count, _PIECE_ROWS):
                yield block.view(np.uint8)

    def state(self) -> State:
        """All rows, as they are divided between memory and file: sums of weights depend on that in their last bit."""
        pending = np.concatenate([np.zeros(0, ROW), *self._pending])
        spilled = (block for first, count in self._runs for block in self._read(first, count, count))
        runs = np.concatenate([np.zeros(0, ROW), *spilled])
        return State(
            {"runs": [count for _, count in self._runs]},
            {name: torch.from_numpy(rows.view(np.uint8)) for name, rows in (("pending", pending), ("spilled", runs))},
        )

    def restore(self, state: State) -> None:
        """Of a ScoreRuns without rows."""
        pending, spilled = (state.tensors[name].numpy().view(ROW) for name in ("pending", "spilled"))
        first = 0
        for count in state.plain["runs"]:
            self._spill(spilled[first : first + count])
            first += count
        self._pending, self._pending_bytes = [pending] if len(pending) else [], pending.nbytes

    def areas(self) -> Iterator[Areas]:
        """The areas of all groups, in rising order of group."""
        held: Areas | None = None
        for block in self._sorted_blocks():
            found = _areas_of_block(block)
            if held is not None and held.group[0] == found.group[0]:
                _continue_group(held, found)
            elif held is not None:
                yield held
            held = Areas(found.group[-1:], found.positive[-1:], found.negative[-1:], found.area[-1:])
            if len(found.group) > 1:
                yield Areas(found.group[:-1], found.positive[:-1], found.negative[:-1], found.area[:-1])
        if held is not None:
            yield held

    def _append(self, rows: Rows) -> None:
        if len(rows) == 0:
            return
        self._pending.append(rows)
        self._pending_bytes += rows.nbytes
        if self._pending_bytes > self._memory:
            self._settle()

    def _settle(self) -> None:
        """Sort what is pending; keep it where equal scores made it small, else spill it."""
        rows = _collapse(np.concatenate(self._pending))
        if rows.nbytes <= self._memory // 2:
            self._pending, self._pending_bytes = [rows], rows.nbytes
            return
        self._pending, self._pending_bytes = [], 0
        self._spill(rows)

    def _spill(self, rows: Rows) -> None:
        """Append a sorted run to the file."""
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(dir=self._directory, buffering=0)  # noqa: SIM115  closed by close()
            first = self._file.seek(0, 2)
            view = rows.view(np.uint8).data
            while len(view):
                view = view[self._file.write(view) :]
        except OSError as error:
            where = self._directory or tempfile.gettempdir()
            raise CapacityError(
                f"scores of an evaluation outgrew {self._memory} bytes of memory and could not be written to {where}:"
                f" {error.strerror}; free space there"
            ) from error
        self._runs.append((first, len(rows)))

    def _rows_of(self, memory: int) -> int:
        return max(_SMALLEST_BLOCK, memory // ROW.itemsize)

    def _read(self, first: int, count: int, block: int) -> Iterator[Rows]:
        assert self._file is not None
        for start in range(0, count, block):
            size = min(block, count - start) * ROW.itemsize
            self._file.seek(first + start * ROW.itemsize)
            data = bytearray(size)
            filled = 0
            while filled < size:
                filled += self._file.readinto(memoryview(data)[filled:])  # type: ignore[attr-defined]
            yield np.frombuffer(data, ROW)

    def _sorted_blocks(self) -> Iterator[Rows]:
        """All rows in order of (group, score), no pair twice, in blocks of bounded size."""
        last = _collapse(np.concatenate(self._pending)) if self._pending else np.zeros(0, ROW)
        block = self._rows_of(self._memory // (len(self._runs) + 1))
        sources = [self._read(first, count, block) for first, count in self._runs]
        sources.append(last[start : start + block] for start in range(0, len(last), block))
        return _merge(sources)


def _collapse(rows: Rows) -> Rows:
    """Rows in order of (group, score), with the weights of equal pairs added up."""
    rows = rows[np.lexsort((rows["score"], rows["group"]))]
    group, score = rows["group"], rows["score"]
    new = np.ones(len(rows), bool)
    new[1:] = (group[1:] != group[:-1]) | (score[1:] != score[:-1])
    if new.all():
        return rows
    starts = np.flatnonzero(new)
    merged = rows[starts]
    merged["positive"] = np.add.reduceat(rows["positive"], starts)
    merged["negative"] = np.add.reduceat(rows["negative"], starts)
    return merged


def _merge(sources: list[Iterator[Rows]]) -> Iterator[Rows]:
    """Merge sorted runs. What is at or below the least of the blocks' last rows can meet no smaller row any more."""
    heads = [(source, block) for source in sources if (block := next(source, None)) is not None]
    while heads:
        limit = min((int(block["group"][-1]), float(block["score"][-1])) for _, block in heads)
        ready, rest = [], []
        for source, block in heads:
            cut = _position_after(block, *limit)
            ready.append(block[:cut])
            remaining = block[cut:] if cut < len(block) else next(source, None)
            if remaining is not None:
                rest.append((source, remaining))
        heads = rest
        yield _collapse(np.concatenate(ready))


def _position_after(block: Rows, group: int, score: float) -> int:
    """How many rows of the sorted `block` are at or below (group, score)."""
    key = np.uint64(group)
    low = int(np.searchsorted(block["group"], key, "left"))
    high = int(np.searchsorted(block["group"], key, "right"))
    return low + int(np.searchsorted(block["score"][low:high], score, "right"))


def _areas_of_block(block: Rows) -> Areas:
    group, positive, negative = block["group"], block["positive"], block["negative"]
    starts = np.flatnonzero(np.concatenate([[True], group[1:] != group[:-1]]))
    sizes = np.diff(np.append(starts, len(block)))
    before = np.concatenate([[0.0], np.cumsum(negative)[:-1]])
    before -= np.repeat(before[starts], sizes)
    return Areas(
        group=group[starts],
        positive=np.add.reduceat(positive, starts),
        negative=np.add.reduceat(negative, starts),
        area=np.add.reduceat(positive * (before + negative / 2), starts),
    )


def _continue_group(held: Areas, found: Areas) -> None:
    """The first group of `found` began in an earlier block, whose part is `held`: all of it was scored lower."""
    found.area[0] += held.area[0] + found.positive[0] * held.negative[0]
    found.positive[0] += held.positive[0]
    found.negative[0] += held.negative[0]
