"""Ours, for bench_end_to_end.py and bench_planning.py: Store, Lookahead, the dense part and ready.step.

Batches are spec Batch over arrays in memory, as a reader leaves them. All rows of all tables are in the store before
the clock starts. Settings: threads of torch and of sfctr's kernels, and the window.

    python end_to_end_ours.py RANK SIZE PORT FOLDER    (jobs on stdin, see end_to_end_parts.Server)
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing
from itertools import count
from pathlib import Path

import numpy as np
from end_to_end_parts import (
    BLOCK,
    DIM,
    EPS,
    LR,
    NUM_IDS,
    NUM_NUMBERS,
    Batches,
    Case,
    DenseStep,
    first_rows,
    serve_contender,
)
from torch import Tensor, cat

import sfctr
from sfctr import _native
from sfctr.spec.batch import Batch, Keys

IDS = [f"C{i + 1}" for i in range(NUM_IDS)]
NUMBERS = [f"I{i + 1}" for i in range(NUM_NUMBERS)]


def make_schema(bag: int) -> sfctr.Schema:
    numbers = [sfctr.Dense(name, indicator=False) for name in NUMBERS]
    ids = [sfctr.Categorical(name) if bag == 1 else sfctr.Bag(name, pooling="sum") for name in IDS]
    return sfctr.Schema(label="label", features=[*numbers, *ids])


def make_store(case: Case) -> sfctr.Store:
    """All tables, each with all of its rows."""
    rule = sfctr.SGD(lr=LR) if case.rule == "sgd" else sfctr.RowWiseAdagrad(lr=LR, eps=EPS)
    store = sfctr.Store([sfctr.Table(name, dim=DIM, optimizer=rule) for name in IDS], seed=0)
    for table, (name, size) in enumerate(zip(IDS, case.sizes, strict=True)):
        group, at = store.group_of(name)
        group.native.reserve(2 * at, size)
        block = first_rows(table)
        for begin in range(0, size, BLOCK):
            keys = np.arange(begin, min(begin + BLOCK, size), dtype=np.uint64)
            store.set_vectors(name, keys, block[: keys.size])
    return store


class Ours:
    def __init__(self, folder: Path, case: Case) -> None:
        self.case, self.schema, self.store = case, make_schema(case.bag), make_store(case)
        self.dense = DenseStep(case)
        rows = Batches(folder, case)
        self.batches = [self._batch(*rows[number]) for number in range(rows.size)]

    def _batch(self, ids: np.ndarray, numbers: Tensor, labels: Tensor) -> Batch:
        size, bag = self.case.batch, self.case.bag
        offsets = None if bag == 1 else np.arange(0, size * bag + 1, bag, dtype=np.int64)
        columns = np.ascontiguousarray(numbers.numpy().T)[:, :, None]
        return Batch(
            size=size,
            dense=dict(zip(NUMBERS, columns, strict=True)),
            keys={name: Keys(keys=own.view(np.uint64), offsets=offsets) for name, own in zip(IDS, ids, strict=True)},
            labels=labels.numpy()[:, None],
            label_mask=np.ones((size, 1), np.bool_),
            rows=np.arange(size),
        )

    def stream(self, first: int) -> Iterator[Batch]:
        return (self.batches[number % len(self.batches)] for number in count(first))

    def steps(self, first: int, setting: dict[str, int]) -> Generator[float, None, None]:
        _native.set_num_threads(setting["kernels"])
        ahead = sfctr.Lookahead(self.stream(first), self.store, schema=self.schema, window=setting["window"])
        with closing(iter(ahead)) as readies:
            for ready in readies:
                yield float(self.train(ready))

    def train(self, ready: sfctr.Ready) -> Tensor:
        """One step; its loss."""
        features = ready.features()
        numbers = cat([features[name] for name in NUMBERS], dim=1)
        loss = self.dense.loss(numbers, [features[name] for name in IDS], ready.labels)
        loss.backward()
        ready.step(self.dense.optimizer)
        return loss.detach()


if __name__ == "__main__":
    serve_contender(Ours)
