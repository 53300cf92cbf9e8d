"""Pre-trained rows come in by key, and a file that does not fit is refused with its place."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash

import sfctr
from sfctr.data.pretrained import read_pretrained
from sfctr.spec.errors import DataError, SchemaError


def h(text):
    return xxhash.xxh3_64_intdigest(text.encode())


def written(tmp_path, keys, vectors):
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"key": keys, "vector": vectors}), path)
    return sfctr.Table("item", dim=2, pretrained=str(path))


def read(table, dtype="int64"):
    blocks = list(read_pretrained(table, dtype))
    return np.concatenate([k for k, _ in blocks]).tolist(), np.concatenate([v for _, v in blocks]).tolist()


def test_keys_and_vectors_come_in_order(tmp_path):
    table = written(tmp_path, pa.array([7, -1]), pa.array([[1.0, 2.0], [3.0, 4.5]], pa.list_(pa.float64())))
    assert read(table) == ([7, 2**64 - 1], [[1.0, 2.0], [3.0, 4.5]])


def test_lists_of_fixed_size_and_string_keys_are_read(tmp_path):
    vectors = pa.FixedSizeListArray.from_arrays(pa.array([1, 2], pa.float32()), 2)
    keys, found = read(written(tmp_path, pa.array(["a"]), vectors), "string")
    assert keys == [0xE6C632B61E964E1F]  # XXH3-64 of "a"
    assert found == [[1.0, 2.0]]


def test_the_texts_of_string_keys_are_remembered_where_the_table_keeps_them(tmp_path):
    table = written(tmp_path, pa.array(["a"]), pa.array([[1.0, 2.0]]))
    for keep, expected in ((True, {h("a"): "a", h("x"): "x"}), (False, None)):
        schema = sfctr.Schema(label="y", features=[sfctr.Categorical("item", keep_strings=keep)])
        with sfctr.open_source([{"item": "x", "y": 0}], schema) as source:
            remember = source.remember_for("item")
            assert source.remember_for("another table") is None
            list(read_pretrained(table, "string", remember))
            list(source)
            assert (source.strings("item") if keep else remember) == expected


@pytest.mark.parametrize(
    ("keys", "vectors", "words"),
    [
        ([1, None], [[1.0, 2.0]] * 2, r"row 2, column 'key': a pretrained row needs a key"),
        ([1, 2, 1], [[1.0, 2.0]] * 3, r"row 3, column 'key': this key has a pretrained row already"),
        ([1, 2], [[1.0, 2.0], [1.0]], r"row 2, column 'vector': the vector has 1 numbers, and the table's dim is 2"),
        ([1, 2], [None, [1.0, 2.0]], r"row 1, column 'vector': the vector is missing"),
        ([1, 2], [[1.0, 2.0], [1.0, float("nan")]], r"row 2, column 'vector': .* a number that is missing"),
        ([1], ["x"], r"column 'vector': holds .* values, and lists of 2 numbers are needed"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_place(tmp_path, keys, vectors, words):
    with pytest.raises(DataError, match=words):
        read(written(tmp_path, pa.array(keys), pa.array(vectors)))


def test_a_file_without_the_two_columns_is_refused(tmp_path):
    pq.write_table(pa.table({"id": [1]}), tmp_path / "rows.parquet")
    with pytest.raises(SchemaError, match=r"need the columns 'key' and 'vector', and 'key' is not among id"):
        read(sfctr.Table("item", dim=2, pretrained=str(tmp_path / "rows.parquet")))
