"""Scores as a table: the row's number, and a column for each label."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from sfctr.export.scores import score_schema, score_table

ROWS, SCORES = np.arange(3, dtype=np.int64), np.array([[0.25, 1.0], [0.5, 0.0], [0.75, 0.125]])


def test_one_label_has_one_column():
    found = score_table(["click"], ROWS, SCORES[:, :1])
    assert found.schema == score_schema(["click"]) == pa.schema([("row", pa.int64()), ("score", pa.float64())])
    assert found.to_pydict() == {"row": [0, 1, 2], "score": [0.25, 0.5, 0.75]}


def test_several_labels_have_a_column_each():
    found = score_table(["click", "buy"], ROWS, SCORES)
    assert found.column_names == ["row", "score_click", "score_buy"]
    assert found["score_buy"].to_pylist() == [1.0, 0.0, 0.125]
