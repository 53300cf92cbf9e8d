"""Tables of the reference: every row that the steps will touch, as one plain tensor, looked up by plain indexing.

B rows, N keys, R rows of a table, L max_length, D dim
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import numpy as np
import torch
from torch import Tensor

from sfctr.data.pretrained import read_pretrained
from sfctr.spec.batch import F32, I64, U64, Batch, Keys
from sfctr.spec.runfile import RunFile
from sfctr.spec.schema import Bag, KeyedFeature, key_type_of_table
from sfctr.spec.schema import Sequence as SequenceFeature
from sfctr.spec.tables import Table

from .outcome import Outcome, TableRows, as_array, fields_of, state_name
from .reference_optim import State, initial_state, updated
from .reference_rows import initial_rows, table_keys


def keys_by_table(run: RunFile, batches: Iterable[Batch], start: Outcome | None) -> dict[str, U64]:
    """Table -> every key, sorted, that these batches look up in it or `start` has; of a dense table, all its keys."""
    found: dict[str, U64] = {table.name: np.empty(0, dtype=np.uint64) for table in run.tables}
    for batch in batches:
        for feature in run.schema.keyed:
            found[feature.table_name] = np.union1d(found[feature.table_name], batch.keys[feature.name].keys)
    for table in run.tables:
        if table.dense:
            found[table.name] = np.arange(table.rows_of_dense, dtype=np.uint64)
        else:
            known = found[table.name][:0] if start is None else start.rows[table.name].keys
            found[table.name] = np.union1d(table_keys(table, found[table.name]), known)
    return found


def pretrained_rows(run: RunFile, table: Table) -> tuple[U64, F32]:
    """Keys, sorted, and vectors of the file that the table begins from; none without one."""
    keys, vectors = [np.empty(0, dtype=np.uint64)], [np.empty((0, table.dim), dtype=np.float32)]
    if table.pretrained is not None:
        for block in read_pretrained(table, key_type_of_table(run.schema)[table.name]):
            keys.append(block[0])
            vectors.append(block[1])
    every = np.concatenate(keys)
    order = np.argsort(every)
    return every[order], np.concatenate(vectors)[order]


class Rows:
    """Rows of one table: those of `keys` and, last, that of a missing value.

    vectors [R, D] and linear [R, 1] (None where the table has none) are leaves of autograd, unless frozen. `kept` marks
    rows that the table has: a row comes into being at the first step whose backward reached it. A step's look-ups read
    `_wide`: the weights, in float64 where sums over a bag and over a row's gradients are to be as good as exact.
    """

    def __init__(self, run: RunFile, table: Table, keys: U64, dtype: torch.dtype, device: torch.device) -> None:
        self.table = table
        given, vectors = pretrained_rows(run, table)
        self.keys = np.union1d(keys, given)
        count = self.keys.size + 1
        first = self._first_values(run.train.seed, given, vectors)
        self.vectors = torch.from_numpy(first).to(device, dtype).requires_grad_(not table.frozen)
        self.linear = None if table.linear is None else torch.zeros(count, 1, dtype=dtype, device=device)
        if self.linear is not None:
            self.linear.requires_grad_(not table.frozen)
        self.kept = np.full(count, table.dense)
        self.kept[np.searchsorted(self.keys, given)] = True
        self._optimizers = {"vector": table.optimizer} | ({} if table.linear is None else {"linear": table.linear})
        self._state: dict[str, State] = {
            name: {} if table.dense else initial_state(optimizer, self._weights(name))
            for name, optimizer in self._optimizers.items()
        }
        self._reached: dict[str, Tensor] = {}

    def _first_values(self, seed: int, given: U64, vectors: F32) -> F32:
        with_null = np.append(self.keys, np.uint64(0))
        nulls = np.arange(with_null.size) == self.keys.size
        values = initial_rows(self.table, seed, with_null, nulls)
        if self.table.frozen:
            values[:] = 0
        values[np.searchsorted(self.keys, given)] = vectors
        return values

    def _weights(self, name: str) -> Tensor:
        weights = self.vectors if name == "vector" else self.linear
        assert weights is not None
        return weights

    @property
    def weights(self) -> dict[str, Tensor]:
        """ "vector" and "linear", where the table has them."""
        return {name: self._weights(name) for name in self._optimizers if self._weights(name).shape[1]}

    def look_up(self, keys: Keys, feature: KeyedFeature) -> dict[str, Tensor]:
        """The feature's entries: name -> [B, D] (a sequence: [B, L, D]) and name.linear -> [B, 1]."""
        numbers = np.searchsorted(self.keys, table_keys(self.table, keys.keys)).astype(np.int64)
        if keys.nulls is not None:
            numbers[keys.nulls != 0] = self.keys.size
        index = torch.from_numpy(numbers).to(self.vectors.device)
        entries = {}
        for name, weights in self.weights.items():
            found = self._wide[name].index_select(0, index)
            pooled = pool(found, keys, feature, is_vector=name == "vector").to(weights.dtype)
            if pooled.requires_grad:
                pooled.register_hook(partial(self._mark, name, index))  # type: ignore[no-untyped-call]
            entries[feature.name if name == "vector" else f"{feature.name}.linear"] = pooled
        return entries

    def _mark(self, name: str, index: Tensor, gradient: Tensor) -> None:
        self._reached[name][index] = True

    def begin_step(self, *, exact: bool) -> None:
        """No row is reached, and no gradient known. exact: sums are taken in float64."""
        self._wide = {name: weights.double() if exact else weights for name, weights in self.weights.items()}
        for name, weights in self.weights.items():
            self._reached[name] = torch.zeros(weights.shape[0], dtype=torch.bool, device=weights.device)
            weights.grad = None

    def squared_norm(self) -> float:
        """Of all gradients."""
        gradients = [weights.grad for weights in self.weights.values() if weights.grad is not None]
        return sum(float(gradient.double().square().sum()) for gradient in gradients)

    @torch.no_grad()
    def update(self, *, factor: float, scale: float, step: int) -> None:
        """One step of the rows that backward reached, and of no other."""
        for name, weights in self.weights.items():
            rows = self._reached[name].nonzero().squeeze(1)
            if rows.numel() == 0 or weights.grad is None:
                continue
            optimizer, state = self._optimizers[name], self._state[name]
            old = {part: values[rows] for part, values in state.items()}
            gradient = weights.grad[rows] * scale
            new, after = updated(optimizer, weights[rows], old, gradient, lr=optimizer.lr * factor, step=step)
            weights[rows] = new
            for part, values in after.items():
                state[part][rows] = values
            self.kept[rows.cpu().numpy()] = True

    @torch.no_grad()
    def load(self, rows: TableRows) -> None:
        """Take over rows with their state."""
        places = np.where(rows.nulls, self.keys.size, np.searchsorted(self.keys, rows.keys))
        index = torch.from_numpy(places).to(self.vectors.device)
        for name, weights in self.weights.items():
            weights[index] = torch.from_numpy(rows.fields[name]).to(weights)
            for part, values in self._state[name].items():
                values[index] = torch.from_numpy(rows.fields[state_name(part, name)]).to(values)
        self.kept[places] = True

    def rows(self) -> TableRows:
        """The rows that the table has, as a store would give them."""
        fields = {name: as_array(weights)[self.kept] for name, weights in self.weights.items()}
        for name in self.weights:
            fields |= {state_name(part, name): as_array(v)[self.kept] for part, v in self._state[name].items()}
        nulls = np.arange(self.keys.size + 1) == self.keys.size
        keys = np.append(self.keys, np.uint64(0))
        ordered = {name: fields[name] for name in fields_of(self.table)}
        return TableRows.sorted(keys[self.kept], nulls[self.kept], ordered)


def pool(found: Tensor, keys: Keys, feature: KeyedFeature, *, is_vector: bool) -> Tensor:
    """Rows [N, W] of each key to one a row of the batch [B, W]; of a sequence to [B, L, D], zeros last."""
    if keys.offsets is None:
        return found
    lengths = np.diff(keys.offsets)
    owners = torch.from_numpy(np.repeat(np.arange(lengths.size), lengths)).to(found.device)
    out = found.new_zeros(lengths.size, found.shape[1])
    if isinstance(feature, SequenceFeature) and is_vector:
        places = torch.from_numpy(_places(keys.offsets)).to(found.device)
        flat = found.new_zeros(lengths.size * feature.max_length, found.shape[1])
        spread = flat.index_add(0, owners * feature.max_length + places, found)
        return spread.view(lengths.size, feature.max_length, found.shape[1])
    ones = np.ones(keys.keys.size, dtype=np.float32) if keys.weights is None else keys.weights
    weights = torch.from_numpy(ones).to(found)[:, None]
    pooled = out.index_add(0, owners, found * weights)
    if isinstance(feature, Bag) and feature.pooling == "mean":
        total = found.new_zeros(lengths.size, 1).index_add(0, owners, weights)
        return pooled * torch.where(total == 0, 0.0, 1 / total)
    return pooled


def _places(offsets: I64) -> I64:
    """Place of each key within its own list, int64 [N]."""
    starts: I64 = np.repeat(offsets[:-1], np.diff(offsets))
    return np.arange(int(offsets[-1]), dtype=np.int64) - starts
