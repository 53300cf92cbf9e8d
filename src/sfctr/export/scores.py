"""Scores for others: a Parquet file with a row number and a score for each row, in the order of the data.

  row    int64, position of the row in the data, counted from 0 over its files in order
  score  float64, the probability; with several labels score_<label> for each

The file is complete or absent: it is written beside its name and renamed at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from sfctr.spec.batch import I64
from sfctr.spec.errors import CapacityError


def score_schema(labels: Sequence[str]) -> pa.Schema:
    names = ["score"] if len(labels) == 1 else [f"score_{label}" for label in labels]
    return pa.schema([("row", pa.int64()), *((name, pa.float64()) for name in names)])


def score_table(labels: Sequence[str], rows: I64, scores: npt.NDArray[np.float64]) -> pa.Table:
    """rows [B] and scores [B, K] as columns."""
    columns = [pa.array(rows), *(pa.array(np.ascontiguousarray(scores[:, k])) for k in range(scores.shape[1]))]
    return pa.Table.from_arrays(columns, schema=score_schema(labels))


class ScoreWriter:
    """Writes tables of `score_table` to `path`. Hold it by `with`; where the block fails nothing stays."""

    def __init__(self, path: Path, labels: Sequence[str]) -> None:
        self._path, self._part = path, path.with_name(path.name + ".part")
        path.parent.mkdir(parents=True, exist_ok=True)
        self._writer = pq.ParquetWriter(self._part, score_schema(labels))

    def write(self, table: pa.Table) -> None:
        """Raises CapacityError where the disk is full."""
        try:
            self._writer.write_table(table)
        except OSError as error:
            raise CapacityError(
                f"{self._path}: the scores could not be written ({error.strerror or error}); free space there"
            ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            self._writer.close()
            if kind is None:
                self._part.rename(self._path)
        finally:
            self._part.unlink(missing_ok=True)
