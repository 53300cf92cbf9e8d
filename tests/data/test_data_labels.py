"""Labels, masks and row weights, and every value that is refused as one."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from sfctr.spec.errors import DataError
from sfctr.spec.schema import Categorical, Dense

A = Categorical("a")


def table(**columns):
    rows = len(next(iter(columns.values())))
    return pa.table({"a": list(range(rows)), **columns})


@pytest.mark.parametrize(
    "array",
    [
        pa.array([0, 1, None], pa.int8()),
        pa.array([0, 1, None], pa.uint64()),
        pa.array([False, True, None]),
        pa.array([0.0, 1.0, None]),
        pa.array([Decimal(0), Decimal(1), None], pa.decimal128(3, 1)),
        pa.array(["0", "1", None]),
        pa.array(["false", "True", ""]),
        pa.array([0, 1, None]).dictionary_encode(),
    ],
    ids=lambda array: str(array.type),
)
def test_labels_of_every_type_are_read_and_null_is_masked(array, read):
    batch = read(table(y=array), A, label="y")
    assert batch.labels.dtype == np.float32 and batch.labels.tolist() == [[0], [1], [0]]
    assert batch.label_mask.tolist() == [[True], [True], [False]]


def test_probabilities_and_several_labels_are_read(read):
    batch = read(table(y=[0.25, 1.0], z=[None, 0]), A, label=("y", "z"))
    assert batch.labels.tolist() == [[0.25, 0], [1, 0]]
    assert batch.label_mask.tolist() == [[True, False], [True, True]]


def test_nan_means_missing_in_pandas_and_nothing_anywhere_else(read):
    frame = pd.DataFrame({"a": [1, 2], "y": [np.nan, 1.0]})
    assert read(frame, A, label="y").label_mask.tolist() == [[False], [True]]
    with pytest.raises(DataError, match="Arrow table, row 1, column 'y': label nan lies outside"):
        read(table(y=[np.nan, 1.0]), A, label="y")


BAD = [
    (pa.array([1, 2]), "row 2, column 'y': label 2.0 lies outside of \\[0, 1\\]"),
    (pa.array([0.5, -0.1]), "row 2, column 'y': label -0.1 lies outside"),
    (pa.array(["1", "yes"]), "row 2, column 'y': label 'yes' is no number; a label is 0, 1, a probability"),
    (pa.array(["true", "yes"]), "row 2, column 'y': label 'yes' is no number"),
    (pa.array(["0", "NaN"]), "row 2, column 'y': label nan lies outside"),
    (pa.array([0, 1], pa.timestamp("s")), "column 'y': holds timestamp"),
    (pa.array([[1], [0]]), "column 'y': holds list"),
]


@pytest.mark.parametrize(("array", "words"), BAD, ids=[w for _, w in BAD])
def test_anything_else_is_refused_as_a_label(array, words, read):
    with pytest.raises(DataError, match=words):
        read(table(y=array), A, label="y")


def test_a_bad_label_in_a_csv_is_named_by_file_and_record(text_file, read):
    path = text_file('a,y\n"x\ny",0\nz,1\nw,yes\n')
    with pytest.raises(DataError) as error:
        read(path, A, label="y")
    assert str(error.value).startswith(f"{path}, row 3, column 'y': label 'yes' is no number; ")


def test_row_weights_are_read(read):
    batch = read(table(y=[0, 1], w=[0, 2.5]), A, label="y", weight="w")
    assert batch.weight.dtype == np.float32 and batch.weight.tolist() == [0, 2.5]
    assert read(table(y=[0, 1]), A, label="y").weight is None


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        ([1.0, -0.5], "row 2, column 'w': weight -0.5 is not a finite number of at least 0"),
        ([1.0, None], "row 2, column 'w': weight is missing"),
        ([np.inf, 1.0], "row 1, column 'w': weight inf is not a finite number"),
    ],
)
def test_other_weights_are_refused(weights, words, read):
    with pytest.raises(DataError, match=words):
        read(table(y=[0, 1], w=weights), A, label="y", weight="w")


def test_without_labels_neither_label_weight_nor_time_need_be_there(read):
    batch = read(pa.table({"a": [1, 2]}), A, Dense("a_number", column="a"), weight="w", time="t", keep=("k",))
    assert batch.labels.shape == batch.label_mask.shape == (2, 0)
    assert batch.weight is None and batch.time is None and batch.keep == {}
    with pytest.raises(DataError, match="column 'y': there is no such column"):
        read(pa.table({"a": [1, 2]}), A, label="y")
