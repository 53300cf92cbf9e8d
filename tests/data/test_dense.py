"""Numbers become float32 by one rule, whatever type or text they come in."""

from __future__ import annotations

import math
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfctr.data import open_source
from sfctr.spec.errors import DataError, SchemaError
from sfctr.spec.schema import Categorical, Dense, Schema

X = Dense("x")
PLAIN = Dense("x", indicator=False)


def f32(*values: float) -> list[float]:
    return np.array(values, np.float32).tolist()


NUMBERS = [
    (pa.array([-7, None, 5], pa.int8()), [-7, 0, 5]),
    (pa.array([2**64 - 1, None], pa.uint64()), [2.0**64, 0]),
    (pa.array([True, None, False]), [1, 0, 0]),
    (pa.array([0.5, None, np.nan], pa.float16()), [0.5, 0, 0]),
    (pa.array([0.1, None, np.nan], pa.float32()), [0.1, 0, 0]),
    (pa.array([0.1, None, np.nan]), [0.1, 0, 0]),
    (pa.array([Decimal("12.34"), None, Decimal("-0.01")]), [12.34, 0, -0.01]),
    (pa.array([Decimal("12345678901234567890.25"), None], pa.decimal128(38, 2)), [12345678901234567890.25, 0]),
    (pa.array([Decimal("1.5"), None], pa.decimal256(50, 10)), [1.5, 0]),
    (pa.array(["1e3", "", None, " -2.5 "]), [1000, 0, 0, -2.5]),
    (pa.array([7, None, 7]).dictionary_encode(), [7, 0, 7]),
    (pa.nulls(2), [0, 0]),
]


@pytest.mark.parametrize(("array", "values"), NUMBERS, ids=[str(a.type) for a, _ in NUMBERS])
def test_numbers_of_every_type_are_read_with_an_indicator_of_what_is_missing(array, values, read):
    found = read(pa.table({"x": array}), X).dense["x"]
    missing = [v is None or v in ("", None) or (isinstance(v, float) and math.isnan(v)) for v in array.to_pylist()]
    assert found.dtype == np.float32
    assert found[:, 0].tolist() == f32(*values)
    assert found[:, 1].tolist() == [float(m) for m in missing]


def test_without_an_indicator_there_is_one_column(read):
    assert read(pa.table({"x": [1.0, None]}), PLAIN).dense["x"].tolist() == [[1.0], [0.0]]


def test_log1p_is_criteos_rule(read):
    found = read(pa.table({"x": [-3, 0, 1, 99, None]}), Dense("x", transform="log1p")).dense["x"]
    assert found[:, 0].tolist() == f32(0, 0, math.log(2), math.log(100), 0)
    assert found[:, 1].tolist() == [0, 0, 0, 0, 1]


def test_steps_come_in_the_order_clip_transform_standardise_and_missing_is_zero_after_them(read):
    feature = Dense("x", clip=(1, 3), transform="log1p", standardize=True, mean=0.5, std=2.0)
    found = read(pa.table({"x": [-9, 2, 9, None]}), feature).dense["x"]
    steps = [(math.log1p(v) - 0.5) / 2 for v in (1, 2, 3)]
    assert found[:, 0].tolist() == f32(*steps, 0)


def test_vectors_of_fixed_size_are_read_from_lists(read):
    fixed = pa.FixedSizeListArray.from_arrays(pa.array([1.0, 2, 3, 4, 5, 6]), 2)
    cases = [
        (pa.array([[1, 2], None, [None, 4]]), [[1, 2, 0], [0, 0, 1], [0, 4, 1]]),
        (pa.array([[1.5, 2], [3, np.nan]], pa.large_list(pa.float32())), [[1.5, 2, 0], [3, 0, 1]]),
        (fixed, [[1, 2, 0], [3, 4, 0], [5, 6, 0]]),
        (fixed.slice(1, 1), [[3, 4, 0]]),
        (pa.array(["1.5 2", None, "3  4"]), [[1.5, 2, 0], [0, 0, 1], [3, 4, 0]]),
    ]
    for array, rows in cases:
        assert read(pa.table({"x": array}), Dense("x", size=2)).dense["x"].tolist() == rows


REFUSED = [
    (pa.array([1.0, np.inf]), X, "row 2, column 'x': inf is not finite"),
    (pa.array([-np.inf, 1.0], pa.float32()), Dense("x", clip=(0, 1)), "row 1, column 'x': -inf is not finite"),
    (pa.array(["1", "abc"]), X, "row 2, column 'x': 'abc' is not a number; .*null_values"),
    (pa.array(["1", "1e999"]), X, "row 2, column 'x': inf is not finite"),
    (pa.array([1, 5e300]), X, "row 2, column 'x': 5e\\+300 does not fit a 32-bit float"),
    (pa.array([1, -2]), Dense("x", transform="log1p", negatives="refuse"), "row 2, column 'x': -2.0 is negative"),
    (
        pa.array([0], pa.timestamp("s")),
        X,
        "column 'x': holds timestamp.* values, and a number was needed; use a TimePart",
    ),
    (pa.array([[1], [1, 2]]), Dense("x", size=2), "row 1, column 'x': holds 1 numbers, and the feature's size is 2"),
    (pa.array([[1, 2], [3, np.inf]]), Dense("x", size=2), "row 2, column 'x': inf is not finite"),
    (pa.array([[1, 2]]), X, "row 1, column 'x': holds 2 numbers, and the feature's size is 1"),
    (pa.array([1]), Dense("x", size=2), "column 'x': holds int64 values, and lists of numbers were needed"),
]


@pytest.mark.parametrize(("array", "feature", "words"), REFUSED, ids=[w for _, _, w in REFUSED])
def test_a_number_that_cannot_be_used_is_refused_with_its_place(array, feature, words, read):
    with pytest.raises(DataError, match=words):
        read(pa.table({"x": array}), feature)


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=20))
def test_a_float32_and_its_shortest_text_are_one_number(values):
    schema = Schema(label="none", features=[Dense("x", transform="log1p", clip=(-1e30, 1e30))])
    floats = np.array(values, np.float32)
    found = []
    for array in (pa.array(floats), pa.array([str(v) for v in floats])):
        with open_source(pa.table({"x": array}), schema, labels="none") as source:
            found.append(next(source.batches()).dense["x"].tobytes())
    assert found[0] == found[1]


def test_a_fixed_value_for_serving_goes_through_the_same_steps(read):
    feature = Dense("x", transform="log1p", serve_as=1.0)
    found = read(pa.table({"b": [1, 2]}), feature, Categorical("b"), serving=True).dense["x"]
    assert found.tolist() == [[*f32(math.log(2)), 0.0]] * 2


def resolved(data, feature, **options):
    with open_source(data, Schema(label="y", features=[feature]), **options) as source:
        return source.schema.features[0]


def test_mean_and_deviation_are_those_of_the_transformed_numbers_that_are_there():
    table = pa.table({"x": [0.0, 1, 2, None, np.nan, 9], "y": [0, 1, 0, 1, 0, 1]})
    found = resolved(table, Dense("x", transform="log1p", standardize=True))
    numbers = np.log1p([0, 1, 2, 9])
    assert found.mean == pytest.approx(numbers.mean(), rel=1e-14)
    assert found.std == pytest.approx(numbers.std(), rel=1e-14)


def test_mean_and_deviation_do_not_depend_on_how_rows_come_in_chunks(parquet, text_file):
    rng = np.random.default_rng(0)
    numbers = np.round(rng.lognormal(0, 3, 50_000), 3)
    columns = {"x": numbers, "y": (rng.random(50_000) < 0.5).astype(np.int8)}
    feature = Dense("x", standardize=True)
    path = text_file("x,y\n" + "".join(f"{a},{b}\n" for a, b in zip(*columns.values(), strict=True)))
    found = [
        resolved(parquet(columns), feature),
        resolved(parquet(columns, "small.parquet", row_group_size=777), feature),
        resolved(path, feature),
        resolved(pd.DataFrame(columns), feature),
    ]
    assert len({(f.mean, f.std) for f in found}) == 1
    assert found[0].mean == pytest.approx(numbers.mean(), rel=1e-12)


def test_a_constant_column_becomes_zero_and_an_empty_one_stays_missing():
    table = pa.table({"x": [5.0, 5.0], "z": pa.nulls(2, pa.float64()), "y": [0, 1]})
    schema = Schema(label="y", features=[Dense("x", standardize=True), Dense("z", standardize=True)])
    with open_source(table, schema) as source:
        assert [(f.mean, f.std) for f in source.schema.features] == [(5.0, 1.0), (0.0, 1.0)]
        batch = next(source.batches())
    assert batch.dense["x"].tolist() == [[0, 0], [0, 0]]
    assert batch.dense["z"].tolist() == [[0, 1], [0, 1]]


def test_scoring_needs_the_mean_of_the_training_run(read):
    with pytest.raises(SchemaError, match="feature 'x' is standardised and its mean and std are not known"):
        read(pa.table({"x": [1.0]}), Dense("x", standardize=True))


def test_what_a_buffer_holds_under_a_null_does_not_matter(read):
    """Arrow leaves the value under a null open; here it is one that would be refused."""
    for values in (np.array([-5.0, np.inf, 2.0]), np.array([-5, -6, 2])):
        validity = pa.py_buffer(bytes([0b100]))
        kind = pa.from_numpy_dtype(values.dtype)
        array = pa.Array.from_buffers(kind, 3, [validity, pa.py_buffer(values.tobytes())])
        found = read(pa.table({"x": array}), Dense("x", transform="log1p", negatives="refuse", clip=(1, 9))).dense["x"]
        assert found[:, 0].tolist() == f32(0, 0, math.log(3))
        assert found[:, 1].tolist() == [1, 1, 0]
