"""Data in memory: frames, tables and iterables, each read like the file it could have been."""

from __future__ import annotations

from collections import UserDict
from datetime import datetime
from decimal import Decimal

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from sfctr.data import open_source
from sfctr.spec.errors import ConfigError, DataError
from sfctr.spec.runfile import Data
from sfctr.spec.schema import Bag, Categorical, Cross, Dense, Schema, Sequence, TimePart

SCHEMA = Schema(
    label="y",
    weight="w",
    time="t",
    keep=("s",),
    features=[
        Dense("x"),
        Dense("v", size=2),
        Categorical("i"),
        Categorical("s"),
        Categorical("u"),
        Bag("l"),
        Sequence("ls"),
        TimePart("h", part="hour", column="t"),
        Cross("c", of=("i", "s")),
    ],
)
ROWS = [
    {"y": 1, "w": 1.0, "t": datetime(2014, 1, 1, 5), "x": 0.5, "v": [1.0, 2.0], "i": -7, "s": "a", "u": 2**64 - 1},
    {"y": None, "w": 2.0, "t": datetime(2014, 1, 1, 6), "x": None, "v": None, "i": None, "s": None, "u": 0},
    {"y": 0, "w": 0.0, "t": datetime(2014, 1, 2, 7), "x": 3.0, "v": [3.0, 4.0], "i": 9, "s": "", "u": None},
]
for row, ids, texts in zip(ROWS, [[1, 2], None, []], [["p"], ["q", None, "r"], None], strict=True):
    row.update(l=ids, ls=texts)

TYPES = pa.schema(
    [
        *[("y", pa.int8()), ("w", pa.float64()), ("t", pa.timestamp("us")), ("x", pa.float64())],
        *[("v", pa.list_(pa.float64())), ("i", pa.int64()), ("s", pa.string()), ("u", pa.uint64())],
        *[("l", pa.list_(pa.int64())), ("ls", pa.list_(pa.string()))],
    ]
)
TABLE = pa.Table.from_pylist(ROWS, TYPES)


def pandas_frame() -> pd.DataFrame:
    frame = pd.DataFrame(ROWS)
    return frame.astype({"i": "Int64", "y": "Int8"}).assign(u=pd.array([2**64 - 1, 0, None], dtype="UInt64"))


def bits(data, **options) -> list:
    """Everything of every batch, comparable."""
    with open_source(data, SCHEMA, batch_size=2, **options) as source:
        found = []
        for b in source:
            arrays = [b.labels, b.label_mask, b.weight, b.rows, b.time, *b.dense.values(), *b.keep.values()]
            arrays += [a for k in b.keys.values() for a in (k.keys, k.offsets, k.nulls, k.weights)]
            found.append([None if a is None else (a.dtype, a.shape, a.tobytes()) for a in arrays])
        return found


INPUTS = {
    "Arrow batch": lambda: TABLE.to_batches()[0],
    "Arrow reader": lambda: TABLE.to_reader(max_chunksize=1),
    "Arrow table in chunks": lambda: pa.concat_tables([TABLE.slice(0, 1), TABLE.slice(1)]),
    "pandas": pandas_frame,
    "pandas on Arrow": lambda: TABLE.to_pandas(types_mapper=pd.ArrowDtype),
    "polars": lambda: pl.DataFrame(ROWS, schema_overrides={"u": pl.UInt64, "y": pl.Int8}),
    "dicts": lambda: ROWS,
    "mappings": lambda: [UserDict(row) for row in ROWS],
    "a tuple of dicts without their nulls": lambda: tuple({k: v for k, v in r.items() if v is not None} for r in ROWS),
    "a generator": lambda: (row for row in ROWS),
}


@pytest.mark.parametrize("make", INPUTS.values(), ids=INPUTS)
def test_every_input_gives_the_batches_of_the_arrow_table(make):
    assert bits(make()) == bits(TABLE)


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("make", INPUTS.values(), ids=INPUTS)
def test_every_input_can_be_read_again(make, shuffle):
    with open_source(make(), SCHEMA, batch_size=2, shuffle=shuffle) as source:
        assert [[b.rows.tolist() for b in source.batches(0)] for _ in range(2)] == [
            [b.rows.tolist() for b in source]
        ] * 2


def test_a_frame_is_not_changed():
    frame = pandas_frame()
    before = frame.copy(deep=True)
    bits(frame)
    pd.testing.assert_frame_equal(frame, before)


def test_pandas_categories_strings_and_column_numbers_are_read(read, keys_of):
    frame = pd.DataFrame(
        {"c": pd.Categorical(["x", None, "x"]), "s": pd.array(["x", None, "y"], dtype="string"), 7: [1, 2, 3]}
    )
    found = read(frame, Categorical("c"), Categorical("s"), Categorical("7"))
    assert keys_of(found, "c") == [keys_of(found, "s")[0], None, keys_of(found, "s")[0]]
    assert keys_of(found, "7") == [1, 2, 3]


def test_an_index_is_no_column(read):
    with pytest.raises(DataError, match="pandas DataFrame, column 'i': there is no such column"):
        read(pd.DataFrame({"a": [1]}, index=pd.Index([5], name="i")), Categorical("i"))


def test_polars_categories_and_arrays_are_read(read, keys_of):
    frame = pl.DataFrame(
        {
            "c": pl.Series(["x", None], dtype=pl.Categorical),
            "e": pl.Series(["x", None], dtype=pl.Enum(["x"])),
            "v": pl.Series([[1.0, 2.0], [3.0, 4.0]], dtype=pl.Array(pl.Float64, 2)),
            "d": [Decimal("1.5"), None],
        }
    )
    found = read(frame, Categorical("c"), Categorical("e"), Dense("v", size=2), Dense("d"))
    assert keys_of(found, "c") == keys_of(found, "e")
    assert found.dense["v"].tolist() == [[1, 2, 0], [3, 4, 0]]
    assert found.dense["d"].tolist() == [[1.5, 0], [0, 1]]


def test_arrays_of_integers_beyond_int64_are_read_from_dicts(read, keys_of, lists_of):
    rows = [{"u": 2**64 - 1, "l": [1, 2**63]}, {"u": 0, "l": np.array([3])}]
    found = read(rows, Categorical("u"), Bag("l"))
    assert keys_of(found, "u") == [2**64 - 1, 0]
    assert lists_of(found, "l") == [[1, 2**63], [3]]


BAD = [
    ([{"a": 1}, {"a": "x"}], "rows, row 2, column 'a': x \\(str\\) does not go with the values before it"),
    ([{"a": True}, {"a": None}, {"a": 5}], "rows, row 3, column 'a': 5 \\(int\\) does not go with"),
    (
        [{"a": -1}, {"a": 2**63}],
        "rows, row 2, column 'a': 9223372036854775808 \\(int\\) does not go with .*int64 nor uint64",
    ),
    ([{"a": 1}, {"a": [1]}], "rows, row 2, column 'a': "),
    ([{"a": 1}, 5], "rows, row 2: is a int, and a dict was needed"),
    (pd.DataFrame({"a": [1, "x"]}, dtype=object), "pandas DataFrame, row 2, column 'a': x \\(str\\) does not go"),
    ([{"b": 1}], "rows, column 'a': there is no such column"),
]


@pytest.mark.parametrize(("data", "words"), BAD, ids=[w for _, w in BAD])
def test_values_that_do_not_go_together_are_refused_with_their_row(data, words, read):
    with pytest.raises(DataError, match=words):
        read(data, Categorical("a"))


def test_a_bad_value_far_into_a_generator_is_named_by_its_row(read):
    rows = ({"a": i if i != 40_000 else "x"} for i in range(50_000))
    with pytest.raises(DataError, match="rows, row 40001, column 'a': x \\(str\\) does not go with"):
        read(rows, Categorical("a"))


def test_what_is_no_data_is_refused(read):
    for data in (5, {"a": [1]}, pl.LazyFrame({"a": [1]}), None):
        with pytest.raises(
            ConfigError, match=f"data is a {type(data).__name__}; give paths, a pandas or polars DataFrame"
        ):
            read(data, Categorical("a"))


def test_a_generator_larger_than_the_bound_is_kept_in_a_file(open_handles):
    before = open_handles()
    rows = ({"a": i, "y": i % 2} for i in range(40_000))
    schema = Schema(label="y", features=[Categorical("a")])
    with open_source(rows, schema, shuffle=False, options=Data(memory="300KB")) as source:
        for _ in range(2):
            found = np.concatenate([b.keys["a"].keys for b in source])
            assert np.array_equal(found, np.arange(40_000, dtype=np.uint64))
        assert open_handles() == before + 1
    assert open_handles() == before


def test_an_iterator_left_half_way_goes_on_where_it_was_when_read_again():
    rows = ({"a": i, "y": 1} for i in range(100_000))
    with open_source(rows, Schema(label="y", features=[Categorical("a")]), shuffle=False) as source:
        first = source.batches()
        next(first)
        first.close()
        assert sum(b.size for b in source) == 100_000
