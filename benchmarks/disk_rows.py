"""The rows that bench_disk.py keeps on disk, and which of them each round wants: the same for all contenders.

A batch is the distinct rows among draws that follow Zipf's law; how often a row is drawn has nothing to do with where
it lies. Rounds go on in one stream of batches, those of training last; those before the first one warm caches.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

ROW_BYTES = 256
CHUNK = 1 << 16

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """rows: 0 .. rows - 1 are on disk. skew: Zipf's exponent, 0 for even draws. draws: a batch.

    batches: a round. history: batches before the first round. training_rounds, training_batches: of the rounds that
    follow those of reading. share: of the rows' bytes, that a cache may hold.
    """

    rows: int
    skew: float
    draws: int
    batches: int
    history: int
    rounds: int
    training_rounds: int
    training_batches: int
    share: float

    @property
    def cache_bytes(self) -> int:
        return int(self.share * self.rows * ROW_BYTES)

    def write(self, folder: Path) -> None:
        (folder / "plan.json").write_text(json.dumps(asdict(self)))
        wanted = list(_stream(self))
        np.save(folder / "ends.npy", np.cumsum([len(rows) for rows in wanted]))
        np.save(folder / "wanted.npy", np.concatenate(wanted))

    @staticmethod
    def read(folder: Path) -> Plan:
        return Plan(**json.loads((folder / "plan.json").read_text()))


class Wanted:
    """The stream of batches, each an array of distinct row numbers."""

    def __init__(self, folder: Path, plan: Plan) -> None:
        self._plan = plan
        self._ends = np.load(folder / "ends.npy")
        self._rows = np.load(folder / "wanted.npy", mmap_mode="r")

    def batch(self, number: int) -> Array:
        begin = self._ends[number - 1] if number else 0
        return np.array(self._rows[begin : self._ends[number]])

    def history(self) -> list[Array]:
        return [self.batch(n) for n in range(self._plan.history)]

    def before(self, number: int, count: int) -> list[Array]:
        """So many batches, the last ones before a round, or fewer."""
        first = self._first(number)
        return [self.batch(n) for n in range(max(0, first - count), first)]

    def round(self, number: int) -> list[Array]:
        first = self._first(number)
        return [self.batch(n) for n in range(first, first + self._plan.batches)]

    def training(self, number: int) -> list[Array]:
        first = self._first(self._plan.rounds) + number * self._plan.training_batches
        return [self.batch(n) for n in range(first, first + self._plan.training_batches)]

    def _first(self, number: int) -> int:
        return self._plan.history + number * self._plan.batches

    def scattered(self, count: int, seed: int) -> Array:
        """So many distinct rows, evenly drawn."""
        return np.random.default_rng(seed).permutation(self._plan.rows)[:count]

    def last_used(self, number: int, rows_a_page: int, num_pages: int) -> Array:
        """A row of each of the pages that were used last before a round: what a cache of so many holds by LRU."""
        seen: dict[int, int] = {}
        for n in range(self._first(number) - 1, -1, -1):
            rows = self.batch(n)
            for page, row in zip((rows // rows_a_page).tolist(), rows.tolist(), strict=True):
                seen.setdefault(page, row)
            if len(seen) >= num_pages:
                break
        return np.array(list(seen.values())[:num_pages], np.int64)


def _stream(plan: Plan) -> Iterator[Array]:
    random = np.random.default_rng(0)
    where = random.permutation(plan.rows)
    shares = np.arange(1, plan.rows + 1, dtype=np.float64) ** -plan.skew
    reach = np.cumsum(shares) / shares.sum()
    for _ in range(plan.history + plan.rounds * plan.batches + plan.training_rounds * plan.training_batches):
        ranks = np.unique(np.minimum(np.searchsorted(reach, random.random(plan.draws)), plan.rows - 1))
        yield random.permutation(where[ranks])


def row_values(rows: Array) -> Array:
    """[n, 256] uint8: the row's number in 8 bytes, then small floats that differ between rows."""
    with np.errstate(over="ignore"):
        mixed = rows.astype(np.uint64)[:, None] * np.uint64(0x9E3779B97F4A7C15)
        mixed = mixed + np.arange(ROW_BYTES // 8, dtype=np.uint64)
    values = mixed & np.uint64(0x3FFFFFFF3FFFFFFF)
    values[:, 0] = rows
    return values.view(np.uint8)


def chunks(plan: Plan) -> Iterator[tuple[int, Array]]:
    """All rows, in order: the number of the first, and values."""
    for first in range(0, plan.rows, CHUNK):
        yield first, row_values(np.arange(first, min(first + CHUNK, plan.rows)))


def io_counts() -> dict[str, int]:
    """Bytes that this process had read from disks and sent to them, its threads included."""
    pairs = (line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    found = {name: int(count) for name, count in pairs}
    return {"read": found["read_bytes"], "written": found["write_bytes"]}
