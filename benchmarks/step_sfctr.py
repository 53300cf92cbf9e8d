"""Ours in bench_step.py, through the public API: unique, look-up, pooled forward, merged backward and update."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import step_data as data
import torch
from step_data import B, Case, F
from step_serve import serve

import sfctr
from sfctr import _native
from sfctr.spec.batch import Batch, Keys
from sfctr.telemetry import current, span

RULES = {
    "sgd": sfctr.SGD(lr=data.LR),
    "rowwise_adagrad": sfctr.RowWiseAdagrad(lr=data.LR),
    "adagrad": sfctr.Adagrad(lr=data.LR),
    "adam": sfctr.Adam(lr=data.LR),
}
NAMES = [f"f{f}" for f in range(F)]


class Ours:
    def __init__(self, case: Case) -> None:
        tables = [sfctr.Table(name, dim=case.dim, optimizer=RULES[case.rule]) for name in NAMES]
        kind = sfctr.Categorical if case.bag == 1 else lambda name: sfctr.Bag(name, pooling="sum")
        schema = sfctr.Schema(label="y", features=[kind(name) for name in NAMES])
        self._store = sfctr.Store(tables, tiers=sfctr.Tiers(ram="1TB", disk=False))
        for feature, name in enumerate(NAMES):
            self._store.reserve(name, case.each)
            for first, rows in data.first_rows(case, feature):
                self._store.set_vectors(name, np.arange(first, first + len(rows), dtype=np.uint64), rows)
        self._batches = [_batch(case, ids) for ids in data.ids(case)]
        self._gradients = [torch.from_numpy(rows) for rows in data.gradients(case)]
        self._next = 0
        self._ready = iter(sfctr.Lookahead(self._stream(), self._store, schema=schema, window=0))

    def _stream(self) -> Iterator[Batch]:
        while True:
            yield self._batches[self._next]

    def step(self, batch: int) -> None:
        self._next = batch
        ready = next(self._ready)
        features = list(ready.features().values())
        with span("backward"):
            torch.autograd.backward(features, self._gradients)
        ready.step(None)

    def pooled(self, batch: int) -> np.ndarray:
        self._next = batch
        with next(self._ready) as ready:
            return torch.stack(list(ready.features().values())).detach().numpy()


def _batch(case: Case, ids: list[np.ndarray]) -> Batch:
    offsets = None if case.bag == 1 else data.offsets(case)
    return Batch(
        size=B,
        keys={name: Keys(keys=keys.view(np.uint64), offsets=offsets) for name, keys in zip(NAMES, ids, strict=True)},
        labels=np.zeros((B, 1), np.float32),
        label_mask=np.ones((B, 1), np.bool_),
        rows=np.arange(B),
    )


def use_threads(count: int) -> None:
    _native.set_num_threads(count)
    torch.set_num_threads(count)


if __name__ == "__main__":
    serve(Ours, use_threads, lambda: current().seconds())
