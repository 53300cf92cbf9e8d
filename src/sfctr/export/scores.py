"""Scores for others: a Parquet file with a row number and a score for each row, in the order of the data.

row    int64, position of the row in the data, counted from 0 over its files in order
score  float64, the probability; with several labels score_<label> for each
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sfctr.spec.batch import I64


def score_schema(labels: Sequence[str]) -> pa.Schema:
    """Columns of the file for a model of these labels."""
    names = ["score"] if len(labels) == 1 else [f"score_{label}" for label in labels]
    return pa.schema([("row", pa.int64()), *((name, pa.float64()) for name in names)])


def score_table(labels: Sequence[str], rows: I64, scores: npt.NDArray[np.float64]) -> pa.Table:
    """rows [B] and scores [B, K] as a table of that schema."""
    columns = [pa.array(rows), *(pa.array(np.ascontiguousarray(scores[:, k])) for k in range(scores.shape[1]))]
    return pa.Table.from_arrays(columns, schema=score_schema(labels))
