"""One rank of ours for bench_processes.py: trains the steps of a job, and says what they took and what was sent.

Rows are read into memory before a job begins. All jobs of a process share one World, and each has a store, a model and
an exchange of its own. Bytes are those that this rank gave to others, by kind, a step, once the warm steps are over.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import nullcontext
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from processes_model import (
    DIM,
    LR,
    NUM_IDS,
    NUM_NUMBERS,
    STD,
    Clock,
    PlainDLRM,
    dense_optimizer,
    loss_share,
    place,
    serve,
)

import sfctr
from sfctr.data import open_source
from sfctr.parallel.exchange import RowExchange, SharedBatch
from sfctr.parallel.world import World
from sfctr.spec.batch import Batch
from sfctr.spec.runfile import Parallel
from sfctr.train.ranks import Ranks

IDS = [f"C{i}" for i in range(1, NUM_IDS + 1)]
NUMBERS = [f"I{i}" for i in range(1, NUM_NUMBERS + 1)]
OPTIMIZERS = {
    "sgd": sfctr.SGD(lr=LR),
    "adagrad": sfctr.Adagrad(lr=LR),
    "rowwise_adagrad": sfctr.RowWiseAdagrad(lr=LR),
}


def make_schema() -> sfctr.Schema:
    numbers = [sfctr.Dense(name, transform="log1p", indicator=False) for name in NUMBERS]
    return sfctr.Schema(label="label", features=[*numbers, *(sfctr.Categorical(name) for name in IDS)])


def read(folder: Path, size: int, steps: int, lanes: range | None = None) -> tuple[sfctr.Schema, list[Batch]]:
    """A rank's part of the first batches of the rows in `folder`."""
    with open_source(f"{folder}/train", make_schema(), batch_size=size, shuffle=False, lanes=lanes) as source:
        return source.schema, list(islice(source, steps))


class Watched:
    """A RowExchange, and how much the keys of ranks overlap in the batches that it shares.

    Of each batch: uses: unique keys of this rank's rows over all that rank it owns, counted once a rank that has them;
    shared: those of them that several ranks have; distinct: each counted once; misses: rows that a copy lacked.
    """

    def __init__(self, inner: RowExchange) -> None:
        self._inner = inner
        self.counts: list[dict[str, int]] = []
        self.misses: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def share(self, *args: Any) -> SharedBatch | None:
        shared = self._inner.share(*args)
        if shared is not None:
            users = [_users(ws, self._inner.size) for ws in shared.owned]
            self.counts.append(
                {
                    "uses": sum(int(u.sum()) for u in users),
                    "shared": sum(int(u[u > 1].sum()) for u in users),
                    "distinct": sum(u.size for u in users),
                }
            )
        return shared

    def bring_rows(self, shared: SharedBatch, groups: Sequence[Any]) -> None:
        self.misses.append(sum(ids.size for copies in filter(None, shared.copies) for ids in copies.wanted()))
        self._inner.bring_rows(shared, groups)

    def since(self, warm: int) -> dict[str, float]:
        """Means over the batches after the warm ones."""
        found = {name: float(np.mean([c[name] for c in self.counts[warm:]])) for name in ("uses", "shared", "distinct")}
        return found | {"misses": float(np.mean(self.misses[warm:]))}


def _users(ws: Any, size: int) -> np.ndarray:
    """How many ranks have each key that this one owns."""
    users = np.zeros(ws.num_unique, np.int64)
    for rank in range(size):
        users[ws.source_ids(rank)] += 1
    return users


class Trainee:
    """Answers jobs; world: None where there is one process."""

    def __init__(self, world: World | None, folder: Path) -> None:
        self.world, self.folder, self.ranks = world, folder, Ranks.of(world)
        self._read: dict[int, tuple[sfctr.Schema, list[Batch]]] = {}

    def batches(self, job: dict[str, Any]) -> tuple[sfctr.Schema, list[Batch]]:
        size = job["batch"]
        if size not in self._read or len(self._read[size][1]) < job["steps"]:
            self._read = {size: read(self.folder, size, job["steps"], self.ranks.lanes(Parallel()))}
        schema, batches = self._read[size]
        return schema, batches[: job["steps"]]

    def answer(self, job: dict[str, Any]) -> dict[str, Any]:
        schema, batches = self.batches(job)
        options = Parallel(sync=job.get("sync", "owners"), wire=job.get("wire", "fp32"))
        optimizer = OPTIMIZERS[job["rows"]]
        tables = [sfctr.Table(n, dim=DIM, optimizer=optimizer, init=sfctr.Normal(std=STD)) for n in IDS]
        with sfctr.Store(tables, tiers=sfctr.Tiers(ram="8GB", disk=False), copies=True) as store:
            return self.train(job, options, store, schema, batches)

    def train(
        self, job: dict[str, Any], options: Parallel, store: sfctr.Store, schema: sfctr.Schema, batches: list[Batch]
    ) -> dict[str, Any]:
        model = PlainDLRM()
        exchange: Any = self.ranks.exchange(store, options)
        dense = self.ranks.dense(model, store, options)
        watched = Watched(exchange) if exchange is not None and job["window"] == 0 else None
        optimizer, losses = dense_optimizer(model), []
        look = sfctr.Lookahead(batches, store, schema=schema, window=job["window"], exchange=watched or exchange)
        clock = Clock()
        for ready in look:
            with ready:
                with nullcontext() if dense is None else dense.rows(ready):
                    features = ready.features()
                    numbers = torch.cat([features[name] for name in NUMBERS], dim=1)
                    logits = model(numbers, torch.stack([features[name] for name in IDS], dim=1))
                    loss = loss_share(logits, ready.labels, ready.whole_size)
                    loss.backward()
                ready.merge(dense)
                ready.step(optimizer)
            losses.append(float(loss.detach()))
            clock.tick()
            if len(losses) == job["warm"]:
                before, traffic = self.sent(), None if exchange is None else vars(exchange.traffic).copy()
        counted = len(losses) - job["warm"]
        found: dict[str, Any] = {"step_s": clock.step_s(job["warm"]), "loss": losses[-1]}
        found["bytes"] = {kind: (n - before.get(kind, 0)) / counted for kind, n in self.sent().items()}
        if watched is not None and traffic is not None:
            found["traffic"] = {name: (n - traffic[name]) / counted for name, n in vars(exchange.traffic).items()}
            found |= watched.since(job["warm"])
            found["record_bytes"] = sum(4 * group.native.record_floats for group in store.groups)
            found["groups"] = len(store.groups)
        return found

    def sent(self) -> dict[str, int]:
        return {} if self.world is None else {kind: sent for kind, (sent, _) in self.world.bytes.items()}


def main() -> None:
    rank, size, port, folder = place(sys.argv[1:])
    if size == 1:
        serve(Trainee(None, folder).answer)
        return
    with World.join(rank=rank, size=size, address="127.0.0.1", port=port) as world:
        serve(Trainee(world, folder).answer)


if __name__ == "__main__":
    main()
