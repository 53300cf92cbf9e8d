"""Exported rows carry their keys as the data had them."""

from __future__ import annotations

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

import sfctr
from sfctr.export import export_rows
from sfctr.spec.batch import Batch, Keys
from sfctr.spec.errors import ConfigError

ONES = sfctr.Uniform(1.0, 1.0)
SIX = [0, 2**63 - 1, 2**63, 2**64 - 1, 1234567890123456789, 1234567890123456788]


def store_with(table, keys, dtype="int64", null=False):
    schema = sfctr.Schema(label="y", features=[sfctr.Categorical(table.name, dtype=dtype)])
    store = sfctr.Store([table])
    nulls = np.array([0] * len(keys) + [1] * null, dtype=np.uint8)
    values = np.array([*keys, *[0] * null], dtype=np.uint64)
    size = values.size
    batch = Batch(
        size=size,
        keys={table.name: Keys(keys=values, nulls=nulls)},
        labels=np.zeros((size, 1), np.float32),
        label_mask=np.ones((size, 1), np.bool_),
        rows=np.arange(size),
    )
    for ready in sfctr.Lookahead([batch], store, schema=schema):
        sum(value.sum() for value in ready.features().values()).backward()
        ready.step(torch.optim.SGD(dense, lr=0.5) if (dense := store.dense_parameters()) else None)
    return store, schema


def exported(tmp_path, store, schema, **more):
    [path] = export_rows(store, schema, tmp_path / "out", **more)
    return pq.read_table(path)


@pytest.mark.parametrize(
    ("dtype", "expected"), [("uint64", SIX), ("int64", [k - 2**64 if k >= 2**63 else k for k in SIX])]
)
def test_all_64_bits_of_a_key_come_out_as_the_column_had_them(tmp_path, dtype, expected):
    store, schema = store_with(sfctr.Table("item", dim=1, init=ONES, optimizer=sfctr.SGD(lr=0.5)), SIX, dtype)
    table = exported(tmp_path, store, schema)
    assert sorted(table["key"].to_pylist()) == sorted(expected)
    assert table["vector"].to_pylist() == [[0.5]] * 6


def test_the_row_of_a_missing_value_has_a_null_key(tmp_path):
    table = sfctr.Table("item", dim=1, init=ONES, linear=sfctr.SGD(lr=0.5), optimizer=sfctr.SGD(lr=0.25))
    store, schema = store_with(table, [0, 1], null=True)
    rows = exported(tmp_path, store, schema).to_pylist()
    assert [row["key"] for row in rows] == [0, 1, None]
    assert rows[2] == {"key": None, "vector": [0.75], "linear": -0.5}


def test_strings_come_out_as_text_where_it_was_kept_and_as_hashes_otherwise(tmp_path):
    store, schema = store_with(sfctr.Table("word", dim=1), [17, 2**64 - 2], "string")
    kept = exported(tmp_path, store, schema, strings={"word": {17: "a", 2**64 - 2: "b"}})
    assert sorted(kept["key"].to_pylist()) == ["a", "b"]
    assert sorted(exported(tmp_path, store, schema)["key"].to_pylist()) == [17, 2**64 - 2]


def test_bool_keys_buckets_and_dense_tables(tmp_path):
    store, schema = store_with(sfctr.Table("flag", dim=1), [0, 1], "bool")
    assert exported(tmp_path / "a", store, schema)["key"].to_pylist() == [False, True]
    store, schema = store_with(sfctr.Table("hashed", dim=1, buckets=4), [5, 6, 7, 8, 9, 10, 11, 12])
    assert set(exported(tmp_path / "b", store, schema)["key"].to_pylist()) <= {0, 1, 2, 3}
    store, schema = store_with(sfctr.Table("hour", dim=1, dense=True, num_rows=3, init=ONES), [0, 1])
    rows = exported(tmp_path / "c", store, schema).to_pylist()
    assert rows == [{"key": key, "vector": [0.5 if key in (0, 1) else 1.0]} for key in (0, 1, 2, None)]


def test_a_table_name_that_is_no_file_name_is_quoted(tmp_path):
    store, schema = store_with(sfctr.Table("a/b:c", dim=1), [1])
    assert [p.name for p in export_rows(store, schema, tmp_path)] == ["a%2Fb%3Ac.parquet"]


def test_exporting_onto_a_file_is_refused(tmp_path):
    store, schema = store_with(sfctr.Table("item", dim=1), [1])
    (tmp_path / "out").write_text("")
    with pytest.raises(ConfigError, match="is a file and a directory is needed"):
        export_rows(store, schema, tmp_path / "out")
