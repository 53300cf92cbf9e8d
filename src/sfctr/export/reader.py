"""Reads an exported model and scores with it: no trainer, no store, only the files that bundle.py writes.

All rows are held in memory. It is a plain second implementation of what features() gives, in NumPy and torch.

  B rows, N keys, L max_length, D dim, n rows of a table
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import torch.nn.functional as F
from torch import Tensor

from sfctr.data import open_source
from sfctr.data.keys import bucket_numbers
from sfctr.spec.batch import F32, I64, U64, Batch, Bools, Keys
from sfctr.spec.runfile import Data
from sfctr.spec.schema import Bag, KeyedFeature, Schema
from sfctr.spec.schema import Sequence as SequenceFeature
from sfctr.spec.struct_tree import build
from sfctr.spec.tables import Table

from .files import MODEL_FILE, read_facts, rows_file
from .keys import keys_of
from .scores import score_schema, score_table


def load_export(directory: str | Path) -> ExportedModel:
    """The model that `sfctr export` or Run.export wrote. Raises CheckpointError where it is not whole, or damaged."""
    folder = Path(directory)
    return ExportedModel(folder, read_facts(folder))


class ExportedModel:
    """schema: of the data that it scores. labels: names of its scores."""

    def __init__(self, directory: Path, facts: Mapping[str, Any]) -> None:
        self.schema: Schema = build(facts["schema"], Schema, "schema")
        self.labels: tuple[str, ...] = tuple(facts["labels"])
        self._data: Data = build(facts["data"], Data, "data")
        self._shift, self._autocast = float(facts["log_odds_shift"]), facts["autocast"] == "bf16"
        tables = [build(table, Table, "tables") for table in facts["tables"]]
        self._rows = {table.name: _Rows(directory / rows_file(table.name), table) for table in tables}
        self._program = torch.export.load(directory / MODEL_FILE).module()

    def predict(self, data: Any, *, batch_size: int = 4096) -> pa.Table:
        """A probability for every row of `data`, in its order; no label is needed.

        data: paths, a frame, or dicts, as open_source takes them.
        Gives `row` (int64, from 0) and `score` (float64; score_<label> for several labels).
        """
        parts = [score_schema(self.labels).empty_table()]
        with (
            open_source(
                data,
                self.schema,
                batch_size=batch_size,
                options=self._data,
                shuffle=False,
                labels="none",
                serving=True,
            ) as source,
            closing(source.batches()) as batches,
        ):
            for batch in batches:
                scores = torch.sigmoid(self.logits(batch).double() + self._shift).numpy()
                parts.append(score_table(self.labels, batch.rows.astype(np.int64, copy=False), scores))
        return pa.concat_tables(parts)

    @torch.no_grad()
    def logits(self, batch: Batch) -> Tensor:
        """float32 [B, K], without the correction for thinned negatives."""
        features = self.features(batch)
        if batch.size == 1:  # the program takes two rows and more
            features = {name: value.repeat(2, *[1] * (value.dim() - 1)) for name, value in features.items()}
        with torch.autocast("cpu", torch.bfloat16, enabled=self._autocast):
            output = self._program(features)
        found: Tensor = output[: batch.size].reshape(batch.size, -1).float()
        return found

    def features(self, batch: Batch) -> dict[str, Tensor]:
        """What the model is given: name -> tensor, see spec.inputs.Input."""
        found = {}
        for feature in self.schema.features:
            if feature.name in batch.dense:
                found[feature.name] = torch.from_numpy(batch.dense[feature.name])
            else:
                found |= self._keyed(feature, batch.keys[feature.name])  # type: ignore[arg-type]
        return found

    def _keyed(self, feature: KeyedFeature, keys: Keys) -> dict[str, Tensor]:
        rows = self._rows[feature.table_name]
        index = torch.from_numpy(rows.find(keys))
        weights = {feature.name: rows.vectors, f"{feature.name}.linear": rows.linear}
        weights = {name: weight for name, weight in weights.items() if weight.shape[1]}
        if isinstance(feature, SequenceFeature):
            assert keys.offsets is not None
            mask = torch.from_numpy(np.arange(feature.max_length)[None, :] < np.diff(keys.offsets)[:, None])
            found = {f"{feature.name}.mask": mask}
            for name, weight in weights.items():
                padded = torch.zeros(*mask.shape, weight.shape[1])
                padded[mask] = weight[index]
                found[name] = padded.sum(dim=1) if name.endswith(".linear") else padded
            return found
        if keys.offsets is None:
            return {name: F.embedding(index, weight) for name, weight in weights.items()}
        pooling = feature.pooling if isinstance(feature, Bag) else "sum"
        return {name: _pooled(weight, index, keys, pooling) for name, weight in weights.items()}


def _pooled(weight: Tensor, index: Tensor, keys: Keys, pooling: str) -> Tensor:
    """[B, D]: the weighted sum, which "mean" divides by the sum of the weights."""
    assert keys.offsets is not None
    offsets = torch.from_numpy(keys.offsets)
    own = torch.ones(index.shape[0]) if keys.weights is None else torch.from_numpy(keys.weights)
    summed = F.embedding_bag(index, weight, offsets, mode="sum", per_sample_weights=own, include_last_offset=True)
    if pooling == "sum":
        return summed
    owners = torch.repeat_interleave(torch.arange(offsets.shape[0] - 1), offsets.diff())
    total = torch.zeros(offsets.shape[0] - 1, dtype=torch.float64).index_add_(0, owners, own.double())
    return summed * torch.where(total == 0, 0.0, 1.0 / total).float()[:, None]


class _Rows:
    """Rows of a table: vectors [n + 2, D], linear [n + 2, 1 or 0]; row n is of a missing value, n + 1 of other keys."""

    def __init__(self, path: Path, table: Table) -> None:
        self._buckets = table.buckets
        rows = pq.read_table(path)
        nulls = rows["key"].is_null().to_numpy()
        keys = keys_of(rows)
        order = np.argsort(keys[~nulls])
        self._keys: U64 = keys[~nulls][order]
        vectors = _matrix(rows, "vector", table.dim)
        linear = _matrix(rows, "linear", int(table.linear is not None))
        rare = rows["rare"].to_numpy() if "rare" in rows.schema.names else np.zeros(nulls.size, bool)
        self.vectors, self.linear = (_with_others(values, nulls, rare, order) for values in (vectors, linear))

    def find(self, keys: Keys) -> I64:
        """[N]: row of each key."""
        count = self._keys.size
        wanted = keys.keys if self._buckets is None else bucket_numbers(keys.keys, self._buckets)
        at = np.searchsorted(self._keys, wanted)
        is_there = self._keys[np.minimum(at, count - 1)] == wanted if count else np.zeros(wanted.size, bool)
        found = np.where(is_there, at, count + 1)
        return found if keys.nulls is None else np.where(keys.nulls != 0, count, found)


def _matrix(rows: pa.Table, name: str, width: int) -> F32:
    if not width:
        return np.empty((rows.num_rows, 0), np.float32)
    column = rows[name].combine_chunks()
    flat = column.flatten() if pa.types.is_list(column.type) else column
    values: F32 = flat.to_numpy().reshape(-1, width)
    return values


def _with_others(values: F32, nulls: Bools, rare: Bools, order: I64) -> Tensor:
    """Rows in the order of their keys, then those of a missing value and of other keys; zeros where there is none."""
    zeros = np.zeros((1, values.shape[1]), np.float32)
    missing, others = ([*values[marks], *zeros][:1] for marks in (nulls & ~rare, rare))
    return torch.from_numpy(np.concatenate([values[~nulls][order], missing, others]))
