"""Several ranks as threads, each with a store of its own shards, that train one model by hand; and one rank that trains
the same. The model is linear in its features, with a different number for each row, feature and element.

  B rows, P ranks
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from tests.ranks import Meeting, ThreadPeers, in_ranks

import sfctr
from sfctr.lookahead import Lookahead, ReadView
from sfctr.spec.batch import Batch, Keys
from sfctr.spec.runfile import Parallel
from sfctr.train.ranks import make_exchange


@dataclass
class Trained:
    """losses: of each step. rows: table -> (is_null, key) -> vector, first-order weight and state."""

    losses: list[float]
    rows: dict[str, dict[tuple[bool, int], np.ndarray]]
    viewed: list[np.ndarray]
    exchange: object = None


def part_of(batch: Batch, places: np.ndarray) -> Batch:
    """The rows of a batch at these places."""
    keys = {}
    for name, given in batch.keys.items():
        if given.offsets is None:
            nulls = None if given.nulls is None else np.ascontiguousarray(given.nulls[places])
            keys[name] = Keys(keys=np.ascontiguousarray(given.keys[places]), nulls=nulls)
            continue
        spans = [np.arange(given.offsets[b], given.offsets[b + 1]) for b in places]
        chosen = np.concatenate([np.empty(0, np.int64), *spans]).astype(np.int64)
        offsets = np.cumsum([0, *map(len, spans)]).astype(np.int64)
        weights = None if given.weights is None else np.ascontiguousarray(given.weights[chosen])
        keys[name] = Keys(keys=np.ascontiguousarray(given.keys[chosen]), offsets=offsets, weights=weights)
    return Batch(
        size=len(places),
        keys=keys,
        labels=batch.labels[places],
        label_mask=batch.label_mask[places],
        weight=None if batch.weight is None else batch.weight[places],
        rows=batch.rows[places],
        time=None if batch.time is None else batch.time[places],
        whole=batch.size,
        places=places,
    )


def split(size: int, counts: Sequence[int]) -> list[np.ndarray]:
    """Places of each rank's rows, dealt out in turn as lanes are: counts [P] of every sum(counts) rows."""
    lane = np.arange(size) % sum(counts)
    bounds = np.cumsum([0, *counts])
    return [np.flatnonzero((lane >= begin) & (lane < end)) for begin, end in pairwise(bounds)]


def loss_of(features: dict[str, torch.Tensor], places: np.ndarray, total: int) -> torch.Tensor:
    """A mean over `total` rows, with a different derivative for each row, feature and element."""
    loss = torch.zeros((), dtype=torch.float64)
    row = torch.from_numpy(places.astype(np.float64)) + 1
    for number, (name, values) in enumerate(sorted(features.items())):
        if name.endswith(".mask"):
            continue
        flat = values.double().flatten(1)
        element = torch.arange(1, flat.shape[1] + 1, dtype=torch.float64)
        slope = torch.sin(row[:, None] * 0.37 + element[None, :] * 1.3 + number)
        loss = loss + (slope * flat + 0.5 * flat * flat).sum() / total
    return loss


def rows_of(store: sfctr.Store) -> dict[str, dict[tuple[bool, int], np.ndarray]]:
    found: dict[str, dict[tuple[bool, int], np.ndarray]] = {}
    for name in store.tables:
        own = found.setdefault(name, {})
        for block in store.rows(name):
            linear = np.empty((len(block.keys), 0)) if block.linear is None else block.linear[:, None]
            whole = np.concatenate([block.vectors, linear, block.state], axis=1)
            for key, is_null, row in zip(block.keys.tolist(), block.nulls.tolist(), whole, strict=True):
                assert (is_null, key) not in own
                own[is_null, key] = row
    return found


def train(
    batches: Sequence[Batch],
    schema: sfctr.Schema,
    tables: Sequence[sfctr.Table],
    *,
    size: int = 1,
    counts: Sequence[int] = (),
    options: Parallel = Parallel(),  # noqa: B008  frozen
    tiers: Callable[[int], sfctr.Tiers] = lambda rank: sfctr.Tiers(ram="64MB"),
    window: int = 0,
    views: Sequence[Batch] = (),
    directory: str | None = None,
    loss: Callable[[dict[str, torch.Tensor], Batch], torch.Tensor] | None = None,
) -> Trained:
    """Train all batches on `size` ranks. counts: shares of the rows that each takes. loss: of a rank's part of a batch;
    the sum over ranks is what is trained."""
    places = [split(batch.size, counts or [1] * size) for batch in batches]
    reading = Meeting(size)

    def body(peers: ThreadPeers) -> Trained:
        rank = peers.rank
        own = directory and f"{directory}/{rank}"
        with sfctr.Store(tables, tiers=tiers(rank), seed=3, directory=own, copies=size > 1) as store:
            exchange = None
            if size > 1:
                exchange = make_exchange(store, options, ThreadPeers(reading, rank), peers)
            parts = [
                part_of(batch, places[number][rank]) if size > 1 else batch for number, batch in enumerate(batches)
            ]
            losses = []
            for number, ready in enumerate(Lookahead(parts, store, schema=schema, window=window, exchange=exchange)):
                with ready:
                    where = np.arange(ready.size) if ready.batch.places is None else ready.batch.places
                    features = ready.features()
                    part = (
                        loss_of(features, where, ready.batch.whole_size)
                        if loss is None
                        else loss(features, ready.batch)
                    )
                    if ready.size:
                        part.backward()
                    ready.step(None)
                losses.append(float(part.detach()))
                assert number < len(parts)
            view = ReadView(store, schema, exchange)
            viewed = []
            for batch in views:
                mine = split(batch.size, counts or [1] * size)[rank] if size > 1 else np.arange(batch.size)
                found = view.features(part_of(batch, mine))
                flat = [v.double().flatten(1).numpy() for k, v in sorted(found.items()) if ".mask" not in k]
                viewed.append(np.concatenate([mine[:, None], *flat], axis=1))
            return Trained(losses, rows_of(store), viewed, (view.unseen, exchange))

    of_ranks = in_ranks(size, body)
    rows: dict[str, dict[tuple[bool, int], np.ndarray]] = {}
    for found in of_ranks:
        for table, own in found.rows.items():
            there = rows.setdefault(table, {})
            assert not set(there) & set(own), f"a row of {table} is on two ranks"
            there |= own
    viewed = []
    for number in range(len(views)):
        whole = np.concatenate([found.viewed[number] for found in of_ranks])
        viewed.append(whole[np.argsort(whole[:, 0])])
    losses = np.sum([found.losses for found in of_ranks], axis=0)
    return Trained(list(losses), rows, viewed, [found.exchange for found in of_ranks])


def same_rows(one: Trained, other: Trained, *, atol: float = 0.0) -> None:
    assert one.rows.keys() == other.rows.keys()
    for table, own in one.rows.items():
        assert own.keys() == other.rows[table].keys(), table
        for key, row in own.items():
            np.testing.assert_allclose(other.rows[table][key], row, rtol=0, atol=atol, err_msg=f"{table} {key}")
