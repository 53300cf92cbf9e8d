"""Score files: complete or absent, in blocks, with a column for each label."""

from __future__ import annotations

import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sfctr.export.scores import ScoreWriter, score_table

ROWS, SCORES = np.arange(3, dtype=np.int64), np.array([[0.25, 1.0], [0.5, 0.0], [0.75, 0.125]])


def test_blocks_become_one_file_in_order(tmp_path):
    with ScoreWriter(tmp_path / "new" / "p.parquet", ["click"]) as writer:
        writer.write(score_table(["click"], ROWS, SCORES[:, :1]))
        writer.write(score_table(["click"], ROWS + 3, SCORES[:, 1:]))
    found = pq.read_table(tmp_path / "new" / "p.parquet")
    assert found.schema == pa.schema([("row", pa.int64()), ("score", pa.float64())])
    assert found.to_pydict() == {"row": [0, 1, 2, 3, 4, 5], "score": [0.25, 0.5, 0.75, 1.0, 0.0, 0.125]}


def test_several_labels_have_a_column_each():
    found = score_table(["click", "buy"], ROWS, SCORES)
    assert found.column_names == ["row", "score_click", "score_buy"]
    assert found["score_buy"].to_pylist() == [1.0, 0.0, 0.125]


def test_a_block_that_fails_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "p.parquet"
    path.write_text("old")

    def fail():
        with ScoreWriter(path, ["click"]) as writer:
            writer.write(score_table(["click"], ROWS, SCORES[:, :1]))
            raise KeyError("x")

    with pytest.raises(KeyError):
        fail()
    assert os.listdir(tmp_path) == ["p.parquet"]
    assert path.read_text() == "old"
