"""The reference: what a run's steps come to in plain torch, with no store, no look-ahead and no kernel of ours.

It reads the same batches and builds the same model, and shares nothing else with what it judges: rows of every key that
the steps touch are one ordinary tensor, looked up by index; initial rows, row optimizers, schedule, clipping, loss and
the draws of a step are written here once more, from docs/ and the papers. A first pass over the batches finds the keys.

  B rows of a batch, K trained labels
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from itertools import islice, pairwise
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from sfctr.models.registry import build_model
from sfctr.spec.batch import Batch, Keys
from sfctr.spec.inputs import inputs_of
from sfctr.spec.runfile import RunFile
from sfctr.spec.schema import Dense
from sfctr.spec.schema import Sequence as SequenceFeature

from .outcome import Floats, Outcome, as_array, dense_values, load_dense
from .reference_dense import cross_entropy, decay_length, dense_optimizer, schedule_factor, seed_draws
from .reference_tables import Rows, keys_by_table


class Batches(Protocol):
    """What the reference asks of a data.Source."""

    num_rows: int | None

    def batches(self, epoch: int = 0) -> Generator[Batch, None, None]: ...


def train_reference(
    run: RunFile,
    batches: Iterable[Batch],
    *,
    num_rows: int | None,
    start: Outcome | None = None,
    nudge: int = 0,
    dtype: torch.dtype = torch.float32,
) -> Outcome:
    """Train a settled run on `batches`, each one step; they are gone through twice.

    num_rows: of an epoch of the run's, where known. start: what the steps before these came to; None: these are the
    first. dtype: of all weights and states.

    nudge: above 0, do it as rounding may: first move every weight by one unit in its last place, up or down by the draw
    of that number; then take sums in `dtype` and not in float64. A weight of 0 has no last place, so in its stead every
    logit is moved too, by a unit of at least that of 1: the least that rounding can do to what 0 is added to.
    """
    model = _Model(run, batches, num_rows, start, dtype)
    if nudge:
        model.nudge(nudge)
    logits = [] if start is None else list(start.logits)
    given: dict[str, Floats] = {}
    batch = None
    with torch.random.fork_rng([model.device] if model.device.type == "cuda" else []):
        for batch in batches:
            step_logits, given = model.step(batch, len(logits))
            logits.append(step_logits)
    assert batch is not None, "a source without rows is refused before anything is trained"
    return Outcome(
        logits=tuple(logits),
        rows={name: rows.rows() for name, rows in model.tables.items()},
        dense=dense_values(model.named, model.optimizer, model.parameters),
        batch=batch,
        inputs=given,
    )


class FirstBatches:
    """The batches of a run's first steps, over as many epochs as that takes and the run has."""

    def __init__(self, run: RunFile, source: Batches, steps: int) -> None:
        self._source, self._epochs = source, run.train.epochs
        self._steps = min(steps, run.train.max_steps or steps)

    def __iter__(self) -> Iterator[Batch]:
        left = self._steps
        for epoch in range(self._epochs):
            with closing(self._source.batches(epoch)) as batches:
                for batch in islice(batches, left):
                    yield batch
                    left -= 1
            if left == 0:
                return


class _Model:
    """Everything that trains, and one step of it."""

    def __init__(
        self,
        run: RunFile,
        batches: Iterable[Batch],
        num_rows: int | None,
        start: Outcome | None,
        dtype: torch.dtype,
    ) -> None:
        self.run, self.dtype, self.device = run, dtype, torch.device(run.train.device)
        self.columns = [run.schema.labels.index(name) for name in run.train.loss_labels or run.schema.labels]
        inputs = inputs_of(run.schema, run.tables)
        built = build_model(run.model.name, inputs, len(self.columns), run.model.args, seed=run.train.seed)
        self.module = built.to(self.device, dtype).train()
        keys = keys_by_table(run, batches, start)
        self.tables = {t.name: Rows(run, t, keys[t.name], dtype, self.device) for t in run.tables}
        self.named = self._named()
        buffers = {id(buffer) for buffer in self.module.buffers()}
        self.parameters = [t for t in self.named.values() if id(t) not in buffers and t.requires_grad]
        self.optimizer = dense_optimizer(run.train.optimizer, self.parameters) if self.parameters else None
        self.decay_length = decay_length(run, num_rows)
        self.draw: torch.Generator | None = None
        if start is not None:
            load_dense(start.dense, self.named, self.optimizer, self.parameters)
            for name, rows in self.tables.items():
                rows.load(start.rows[name])

    def _named(self) -> dict[str, Tensor]:
        """Parameters in the order of the optimizer, then buffers."""
        named: dict[str, Tensor] = {f"model.{name}": p for name, p in self.module.named_parameters()}
        for table in self.tables.values():
            if table.table.dense:
                parts = {"weight" if part == "vector" else part: w for part, w in table.weights.items()}
                named |= {f"table.{table.table.name}.{part}": weights for part, weights in parts.items()}
        return named | {f"model.{name}": buffer for name, buffer in self.module.named_buffers()}

    def nudge(self, number: int) -> None:
        """Move every weight by one unit in its last place, and from now on every logit."""
        self.draw = torch.Generator().manual_seed(number)
        of_rows = (weights for rows in self.tables.values() for weights in rows.weights.values())
        with torch.no_grad():
            for weights in (*self.module.parameters(), *of_rows):
                weights.copy_(nudged_by_one(weights, self.draw))

    def step(self, batch: Batch, number: int) -> tuple[Floats, dict[str, Floats]]:
        """Step `number` (from 0). Gives the logits [B, K] and what the model was given."""
        seed_draws(self.run.train.seed, number, self.device)
        for rows in self.tables.values():
            rows.begin_step(exact=self.draw is None)
        weights = self._row_weights(batch)
        parts = [self._backward(batch, weights, begin, end) for begin, end in self._parts(batch.size)]
        self._apply(number)
        logits, given = zip(*parts, strict=True)
        return np.concatenate(logits), {name: np.concatenate([part[name] for part in given]) for name in given[0]}

    def _backward(self, batch: Batch, weights: Tensor, begin: int, end: int) -> tuple[Floats, dict[str, Floats]]:
        """Gradients of rows [begin, end); their logits, and what the model was given. weights: of all rows [B, K]."""
        features = self.features(_cut(batch, begin, end))
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.run.train.autocast == "bf16"):
            output = self.module(features)
        scores = self._nudged(output.to(self.dtype).reshape(end - begin, len(self.columns)))
        labels = torch.from_numpy(batch.labels[begin:end, self.columns]).to(self.device, self.dtype)
        losses = cross_entropy(scores, labels) * weights[begin:end]
        total = weights.sum(0)
        (losses.sum(0) / torch.where(total > 0, total, 1.0)).sum().backward()  # type: ignore[no-untyped-call]
        return as_array(scores), {name: as_array(tensor) for name, tensor in features.items()}

    def _nudged(self, scores: Tensor) -> Tensor:
        """The logits, or each with one unit in the last place, of itself or of 1, added or taken away."""
        if self.draw is None:
            return scores
        up = torch.rand(scores.shape, generator=self.draw).to(scores.device) < 0.5
        unit = scores.detach().abs().clamp(min=1) * torch.finfo(self.dtype).eps
        return scores + torch.where(up, unit, -unit)

    def _parts(self, size: int) -> Iterator[tuple[int, int]]:
        cuts = [round(i * size / self.run.train.accumulate) for i in range(self.run.train.accumulate + 1)]
        return ((begin, end) for begin, end in pairwise(cuts) if begin < end)

    def _row_weights(self, batch: Batch) -> Tensor:
        known = batch.label_mask[:, self.columns].astype(np.float32)
        weighted = known if batch.weight is None else known * batch.weight[:, None]
        return torch.from_numpy(weighted).to(self.device, self.dtype)

    def features(self, batch: Batch) -> dict[str, Tensor]:
        """Every feature entry, in the schema's order."""
        entries: dict[str, Tensor] = {}
        for feature in self.run.schema.features:
            if isinstance(feature, Dense):
                entries[feature.name] = torch.from_numpy(batch.dense[feature.name]).to(self.device, self.dtype)
                continue
            keys = batch.keys[feature.name]
            entries |= self.tables[feature.table_name].look_up(keys, feature)
            if isinstance(feature, SequenceFeature):
                assert keys.offsets is not None
                places = np.arange(feature.max_length)[None, :]
                mask = torch.from_numpy(places < np.diff(keys.offsets)[:, None]).to(self.device)
                entries[f"{feature.name}.mask"] = mask
        return entries

    def _apply(self, number: int) -> None:
        """L2 of dense tables, clipping over everything, the dense optimizer, then the rows."""
        train = self.run.train
        factor = schedule_factor(train.schedule, number, self.decay_length)
        stored = [rows for rows in self.tables.values() if not rows.table.dense]
        for rows in self.tables.values():
            _add_l2(rows)
        scale = self._clip(stored)
        if self.optimizer is not None:
            for group in self.optimizer.param_groups:
                group["lr"] = train.optimizer.lr * factor
            self.optimizer.step()
            self.optimizer.zero_grad()
        for rows in stored:
            rows.update(factor=factor, scale=scale, step=number + 1)

    def _clip(self, stored: list[Rows]) -> float:
        """The factor on every gradient; those of the dense part are multiplied here."""
        clip = self.run.train.clip
        if clip is None:
            return 1.0
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        squares = sum(float(g.double().square().sum()) for g in gradients)
        norm = math.sqrt(squares + sum(rows.squared_norm() for rows in stored))
        scale = min(1.0, clip / norm) if norm else 1.0
        for gradient in gradients:
            gradient *= scale
        return scale


def _add_l2(rows: Rows) -> None:
    """Gradient of l2 / 2 * sum(w^2) over a whole dense table."""
    for part, l2 in (("vector", rows.table.l2), ("linear", rows.table.linear_l2)):
        if l2 and part in rows.weights:
            weights = rows.weights[part]
            own = l2 * weights.detach()
            weights.grad = own if weights.grad is None else weights.grad + own


def nudged_by_one(values: Tensor, draw: torch.Generator) -> Tensor:
    """Each value's neighbour among floats, above or below as drawn; 0 stays, as its neighbours mean nothing."""
    up = torch.rand(values.shape, generator=draw).to(values.device) < 0.5
    infinity = torch.full_like(values, math.inf)
    return torch.where(values == 0, values, torch.nextafter(values, torch.where(up, infinity, -infinity)))


def _cut(batch: Batch, begin: int, end: int) -> Batch:
    """Rows [begin, end) of what the model and its labels are made of."""
    return Batch(
        size=end - begin,
        dense={name: values[begin:end] for name, values in batch.dense.items()},
        keys={name: _cut_keys(keys, begin, end) for name, keys in batch.keys.items()},
        labels=batch.labels[begin:end],
        label_mask=batch.label_mask[begin:end],
        rows=batch.rows[begin:end],
    )


def _cut_keys(keys: Keys, begin: int, end: int) -> Keys:
    if keys.offsets is None:
        part, offsets = slice(begin, end), None
    else:
        part = slice(int(keys.offsets[begin]), int(keys.offsets[end]))
        offsets = keys.offsets[begin : end + 1] - keys.offsets[begin]
    return Keys(
        keys=keys.keys[part],
        offsets=offsets,
        nulls=None if keys.nulls is None else keys.nulls[part],
        weights=None if keys.weights is None else keys.weights[part],
    )
