"""A small store that is trained by hand, with a model beside it, and followed by deltas."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import torch
from torch import Tensor, nn

import sfctr
from sfctr.export import Deltas, Trained, apply_deltas, export_model
from sfctr.spec.batch import Batch, Keys
from sfctr.spec.runfile import Data, Model, RunFile

Key = int | None


class Sum(nn.Module):
    """The sum of all features, times a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, features: dict[str, Tensor]) -> Tensor:
        return sum((value.sum(1) for value in features.values()), torch.zeros(())) * self.weight + self.calls


class Followed:
    """One feature for each table. texts: by table, of hashed keys."""

    def __init__(
        self,
        directory: Path,
        tables: list[sfctr.Table],
        *,
        dtypes: dict[str, str] | None = None,
        texts: dict[str, dict[int, str]] | None = None,
        tiers: sfctr.Tiers | None = None,
    ) -> None:
        features = [
            sfctr.Categorical(
                table.name, dtype=(dtypes or {}).get(table.name, "int64"), keep_strings=table.name in (texts or {})
            )
            for table in tables
        ]
        self.schema = sfctr.Schema(label="y", features=features)
        self.run = RunFile(data=Data(), schema=self.schema, tables=tuple(tables), model=Model(name="sum"))
        self.store = sfctr.Store(tables, tiers=tiers or sfctr.Tiers(), directory=directory)
        self.model = Sum()
        self.texts = texts or {}
        self.directory = directory / "deltas"
        self.deltas = Deltas(self.directory, self.store)

    def trained(self) -> Trained:
        return Trained(
            run=self.run, store=self.store, model=self.model, labels=["y"], log_odds_shift=0.5, strings=self.texts
        )

    def train(self, **keys: list[Key]) -> None:
        """One step on as many keys of each table; None is a missing value."""
        [size] = {len(some) for some in keys.values()}
        columns = {
            name: Keys(
                keys=np.array([key or 0 for key in some], np.uint64),
                nulls=np.array([key is None for key in some], np.uint8),
            )
            for name, some in keys.items()
        }
        batch = Batch(
            size=size,
            keys=columns,
            labels=np.zeros((size, 1), np.float32),
            label_mask=np.ones((size, 1), np.bool_),
            rows=np.arange(size),
        )
        optimizer = torch.optim.SGD([self.model.weight, *self.store.dense_parameters()], lr=0.25)
        for ready in sfctr.Lookahead([batch], self.store, schema=self.schema):
            self.model(ready.features()).sum().backward()
            ready.step(optimizer)
        with torch.no_grad():
            self.model.calls += 1

    def write(self) -> Path:
        return self.deltas.write(self.trained())

    def numbered(self) -> list[Path]:
        return sorted(path for path in self.directory.iterdir() if path.name != "base")

    def applied(self, out: Path) -> dict[str, bytes]:
        apply_deltas(self.directory / "base", self.numbered(), out)
        return files(out)

    def full(self, out: Path) -> dict[str, bytes]:
        export_model(out, self.trained())
        return files(out)


def files(folder: Path) -> dict[str, bytes]:
    """All but export.json, which tells of the chain."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "export.json"}


def rows(path: Path) -> list[dict[str, object]]:
    return pq.read_table(path).to_pylist()
