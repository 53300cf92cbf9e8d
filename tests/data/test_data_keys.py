"""Every value has one key whatever the file it sits in, and a value that cannot have one is refused."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import xxhash

from sfctr.data import open_source
from sfctr.spec.batch import KEEP_NULL
from sfctr.spec.errors import DataError, SchemaError
from sfctr.spec.schema import Bag, Bucket, Categorical, Cross, Dense, Schema, Sequence

A = Categorical("a")
M = 2**64


def h(text: str) -> int:
    return xxhash.xxh3_64_intdigest(text.encode())


def dtype_of(data, feature=A) -> str:
    with open_source(data, Schema(label="none", features=[feature]), labels="none") as source:
        return source.schema.features[0].dtype


SIX = [0, 2**63 - 1, 2**63, 2**64 - 1, 1234567890123456789, 1234567890123456788]

TYPED = [
    (pa.array([-1, None, 5], pa.int8()), [M - 1, None, 5], "int64"),
    (pa.array([-300, 300], pa.int16()), [M - 300, 300], "int64"),
    (pa.array([-(2**31), 7], pa.int32()), [M - 2**31, 7], "int64"),
    (pa.array([-(2**63), 2**63 - 1, None]), [2**63, 2**63 - 1, None], "int64"),
    (pa.array([255, None], pa.uint8()), [255, None], "uint64"),
    (pa.array([2**16 - 1], pa.uint16()), [2**16 - 1], "uint64"),
    (pa.array([2**32 - 1], pa.uint32()), [2**32 - 1], "uint64"),
    (pa.array(SIX, pa.uint64()), SIX, "uint64"),
    (pa.array([True, False, None]), [1, 0, None], "bool"),
    (pa.array([Decimal("12"), Decimal("-7"), None], pa.decimal128(20, 0)), [12, M - 7, None], "int64"),
    (pa.array(["a", "", None, "NA", "é"]), [h("a"), None, None, h("NA"), h("é")], "string"),
    (pa.array(["a", None], pa.large_string()), [h("a"), None], "string"),
    (pa.array(["a", None, "b" * 20], pa.string_view()), [h("a"), None, h("b" * 20)], "string"),
    (pa.array([b"a", b""]), [h("a"), None], "string"),
    (pa.array(["a", "b", None, "a", ""]).dictionary_encode(), [h("a"), h("b"), None, h("a"), None], "string"),
    (pa.array([7, None, 7]).dictionary_encode(), [7, None, 7], "int64"),
    (pc.run_end_encode(pa.array([7, 7, None])), [7, 7, None], "int64"),
    (pc.run_end_encode(pa.array(["a", "a"])), [h("a"), h("a")], "string"),
    (pa.nulls(2), [None, None], "string"),
]


@pytest.mark.parametrize(("array", "keys", "dtype"), TYPED, ids=[str(a.type) for a, _, _ in TYPED])
def test_arrow_types_become_keys(array, keys, dtype, read, keys_of):
    table = pa.table({"a": array})
    assert keys_of(read(table, A), "a") == keys
    assert dtype_of(table) == dtype


@pytest.mark.parametrize(("array", "keys", "dtype"), TYPED[:11], ids=[str(a.type) for a, _, _ in TYPED[:11]])
def test_parquet_gives_the_keys_of_the_table_it_was_written_from(array, keys, dtype, read, keys_of, parquet):
    path = parquet({"a": array})
    assert keys_of(read(path, A), "a") == keys
    assert dtype_of(path) == dtype


def test_a_slice_of_an_array_keeps_its_own_values(read, keys_of):
    for array in (pa.array([1, None, 3, 4]), pa.array(["1", None, "3", "4"]), pa.array([True, None, False, True])):
        whole, part = pa.table({"a": array}), pa.table({"a": array.slice(1, 2)})
        assert keys_of(read(part, A), "a") == keys_of(read(whole, A), "a")[1:3]


@pytest.mark.parametrize(
    ("texts", "dtype", "keys"),
    [
        (["1", "-5", ""], "int64", [1, M - 5, None]),
        (["18446744073709551615", "0"], "uint64", [M - 1, 0]),
        (["18446744073709551615", "-1"], "string", [h("18446744073709551615"), h("-1")]),
        (["007", "7"], "string", [h("007"), h("7")]),
        (["+7", "7"], "string", [h("+7"), h("7")]),
        (["1.0", "x"], "string", [h("1.0"), h("x")]),
        (["1", "nan"], "string", [h("1"), h("nan")]),
        (["1e5f", "10"], "string", [h("1e5f"), h("10")]),
        (["100000000000000000000", "2"], "string", [h("100000000000000000000"), h("2")]),
        ([" 1", "2"], "string", [h(" 1"), h("2")]),
        (["true", "false"], "string", [h("true"), h("false")]),
        (["", ""], "string", [None, None]),
        (["NA", "x"], "string", [h("NA"), h("x")]),
    ],
)
def test_csv_texts_decide_their_key_type(texts, dtype, keys, text_file, read, keys_of):
    path = text_file([["a", "b"], *[[text, "x"] for text in texts]])
    assert dtype_of(path) == dtype
    assert keys_of(read(path, A), "a") == keys


def test_declared_bools_are_read_from_text(text_file, read, keys_of):
    path = text_file("a,b\ntrue,\nFalse,\n1,\n,\n")
    assert keys_of(read(path, Categorical("a", dtype="bool")), "a") == [1, 0, 1, None]


def test_integers_have_the_same_keys_in_every_input(parquet, text_file, read, keys_of):
    rows = [{"a": 3}, {"a": None}, {"a": -4}]
    inputs = [
        parquet({"a": pa.array([3, None, -4], pa.int32())}),
        text_file("a,b\n3,\n,\n-4,\n"),
        pd.DataFrame({"a": pd.array([3, None, -4], dtype="Int64")}),
        pd.DataFrame({"a": pd.Series([3, None, -4], dtype=object)}),
        pl.DataFrame({"a": [3, None, -4]}),
        rows,
        iter(rows),
    ]
    for data in inputs:
        assert keys_of(read(data, A), "a") == [3, None, M - 4]


REFUSED = [
    ({"a": pa.array([1.0, 2.0])}, A, "column 'a': holds double values, and floats are no ids; .*Int64"),
    ({"a": pa.array([1.0], pa.float32())}, Categorical("a", dtype="int64"), "floats are no ids"),
    ({"a": pa.array([0], pa.timestamp("s"))}, A, "times are no ids; use a TimePart feature"),
    ({"a": pa.array([0], pa.date32())}, A, "times are no ids"),
    ({"a": pa.array([Decimal("1.5")])}, A, "numbers with decimals are no ids"),
    ({"a": pa.array([[1]])}, A, "one id a row was needed; use a Bag or a Sequence feature"),
    ({"a": pa.array([{"x": 1}])}, A, "holds struct<x: int64> values, which cannot be ids; give each of their fields"),
    ({"a": pa.array([{"x": 1}])}, Bag("a"), "holds struct<x: int64> values, which cannot be ids; give each of their"),
    ({"a": pa.array([[("x", 1)]], pa.map_(pa.string(), pa.int64()))}, Bag("a"), "holds map<.*> values, which cannot"),
    ({"a": pa.array([1, -1])}, Categorical("a", dtype="uint64"), "row 2, column 'a': id -1 is negative, .*uint64"),
    (
        {"a": pa.array([1, 2**63], pa.uint64())},
        Categorical("a", dtype="int64"),
        "row 2, column 'a': id 9223372036854775808 does not fit int64; declare dtype = \"uint64\"",
    ),
    ({"a": pa.array([1])}, Categorical("a", dtype="string"), "holds int64 values, and strings were needed"),
    ({"a": pa.array(["1"])}, Categorical("a", dtype="int64"), "holds strings, and int64 keys were needed"),
    ({"a": pa.array([True])}, Categorical("a", dtype="int64"), "holds bools, and int64 keys were needed"),
    ({"a": pa.array([0, 2])}, Categorical("a", dtype="bool"), "row 2, column 'a': id 2 is no bool"),
    (
        {"a": pa.array([Decimal(10**20)], pa.decimal128(38, 0))},
        A,
        "row 1, column 'a': '100000000000000000000' is no int64 id",
    ),
    ({"a": pa.array([b"ok", b"\xff"])}, A, "row 2, column 'a': .* is not valid UTF-8"),
    ({"a": pa.array([b"ok", b"ok", b"\xff"]).dictionary_encode()}, A, "row 3, column 'a': .* is not valid UTF-8"),
]


@pytest.mark.parametrize(("columns", "feature", "words"), REFUSED, ids=[w[:40] for _, _, w in REFUSED])
def test_what_cannot_be_an_id_is_refused_with_its_place(columns, feature, words, read):
    with pytest.raises(DataError, match=words):
        read(pa.table(columns), feature)


def test_a_text_that_is_no_integer_is_refused_after_the_sample_said_integers(text_file, read):
    path = text_file([["a", "b"], *[[i, "x"] for i in range(20_000)], ["7x", "x"]])
    with pytest.raises(DataError) as error:
        read(path, A)
    assert str(error.value) == (
        f"{path}, row 20001, column 'a': '7x' is no int64 id; declare dtype = \"string\" to hash the values as text"
    )


FLOAT = (
    " is a float, and floats are no ids; write the ids as integers (pandas makes floats of integers with missing"
    " values; astype('Int64') does not), or declare dtype = \"string\" to hash the values as text"
)


@pytest.mark.parametrize("text", ["101.0", "1e5", "-1.5E+3", ".5", "7.", " 1.0", "+1.0"])
def test_a_number_that_is_no_integer_is_refused_where_all_texts_are_numbers(text, text_file, read, keys_of):
    path = text_file([["a", "b"], [7, "x"], [None, "x"], [text, "x"], ["2.5", "x"]])
    with pytest.raises(DataError) as error:
        read(path, A)
    assert str(error.value) == f"{path}, row 3, column 'a': {text!r}{FLOAT}"
    assert keys_of(read(path, Categorical("a", dtype="string")), "a") == [h("7"), None, h(text), h("2.5")]


def test_words_for_a_missing_value_do_not_make_strings_of_floats(text_file, read):
    with pytest.raises(DataError, match=r"row 2, column 'a': '101\.0' is a float"):
        read(text_file("a,b\nNA,\n101.0,\nnan,\n"), A)


@pytest.mark.parametrize(
    ("text", "feature"),
    [
        ("1|2.0", Bag("a", separator="|")),
        ("1:0.5|2.0:1", Bag("a", separator="|", weight_separator=":")),
        ("1|2.0", Sequence("a", separator="|")),
        ("2.0", Bag("a")),
        ("2.0", Cross("ab", of=("a", "b"))),
    ],
)
def test_floats_among_several_ids_a_row_or_in_a_cross_are_refused_too(text, feature, text_file, read):
    path = text_file([["a", "b"], ["", "7"], [text, "7"]])
    with pytest.raises(DataError, match=r"row 2, column 'a': '2\.0' is a float"):
        read(path, feature)
    columns = {"a": ["", text], "b": ["7", "7"]}
    if getattr(feature, "separator", None):
        with pytest.raises(DataError, match=r"Arrow table, row 2, column 'a': '2\.0' is a float"):
            read(pa.table(columns), feature)


def test_a_column_of_floats_is_refused_in_the_same_words_in_parquet_and_in_text(parquet, text_file, read):
    words = "floats are no ids; write the ids as integers (pandas makes floats"
    for path in (parquet({"a": [1.0, 101.0, None]}), text_file("a,b\n1.0,\n101.0,\n,\n")):
        with pytest.raises(DataError) as error:
            read(path, A)
        assert words in str(error.value)


def test_a_float_is_refused_after_the_sample_said_integers(text_file, read):
    path = text_file([["a", "b"], *[[i, "x"] for i in range(20_000)], ["101.0", "x"]])
    with pytest.raises(DataError) as error:
        read(path, A)
    assert str(error.value) == f"{path}, row 20001, column 'a': '101.0'{FLOAT}"


def test_a_float_beside_strings_of_the_same_table_is_refused(text_file, read):
    features = Categorical("a", table="t", dtype="string"), Categorical("b", table="t")
    with pytest.raises(DataError, match=r"row 1, column 'b': '1\.5' is a float"):
        read(text_file("a,b\nx,1.5\n"), *features)


def test_a_unsigned_text_column_refuses_a_negative_id(text_file, read):
    path = text_file("a,b\n1,\n-3,\n")
    with pytest.raises(DataError, match="row 2, column 'a': '-3' is no uint64 id"):
        read(path, Categorical("a", dtype="uint64"))


def test_a_schema_resolved_on_texts_refuses_integers_and_reads_its_own_twin(text_file, parquet, read, keys_of):
    path = text_file("a,b\n007,\n7,\n")
    with open_source(path, Schema(label="none", features=[A]), labels="none") as source:
        resolved = source.schema.features[0]
    assert resolved.dtype == "string"
    with pytest.raises(DataError, match="strings were needed"):
        read(parquet({"a": [7]}), resolved)
    assert keys_of(read(parquet({"a": ["7"]}), resolved), "a") == [h("7")]


def test_pandas_integers_that_became_floats_are_refused_with_the_remedy(read):
    with pytest.raises(DataError, match=r"pandas DataFrame, column 'a': .*astype\('Int64'\)"):
        read(pd.DataFrame({"a": [1, None]}), A)


def test_features_of_one_table_share_a_key_type(read, parquet):
    path = parquet({"a": [1], "b": ["x"]})
    with pytest.raises(SchemaError, match="table 't': feature 'a' has int64 keys and feature 'b' string keys"):
        read(path, Categorical("a", table="t"), Categorical("b", table="t"))


def test_texts_of_one_table_agree_on_a_type(text_file, keys_of, lists_of, read):
    features = Categorical("a", table="t"), Bag("b", table="t", separator="|")
    mixed = read(text_file("a,b\n1,x|1\n"), *features)
    assert (keys_of(mixed, "a"), lists_of(mixed, "b")) == ([h("1")], [[h("x"), h("1")]])
    big = read(text_file("a,b\n1,18446744073709551615\n"), *features)
    assert (keys_of(big, "a"), lists_of(big, "b")) == ([1], [[2**64 - 1]])
    clash = read(text_file("a,b\n-1,18446744073709551615\n"), *features)
    assert keys_of(clash, "a") == [h("-1")]


def test_a_column_of_nulls_takes_the_type_of_its_table(text_file, keys_of, read):
    with open_source(
        text_file("a,b\n,5\n,6\n"),
        Schema(label="none", features=[Categorical("a", table="t"), Categorical("b", table="t")]),
        labels="none",
    ) as source:
        assert [f.dtype for f in source.schema.features] == ["int64", "int64"]


def test_a_declared_type_decides_for_the_texts_beside_it(text_file, read, keys_of):
    path = text_file("a,b\n1,2\n")
    both = read(path, Categorical("a", table="t", dtype="string"), Categorical("b", table="t"))
    assert keys_of(both, "b") == [h("2")]


def test_a_bucket_counts_the_boundaries_at_or_below_the_number(read, keys_of):
    feature = Bucket("b", column="a", boundaries=(0.0, 0.1, 5.0))
    values = pa.array([-1, 0, 0.05, 0.1, 4.9, 5, np.inf, None, np.nan], pa.float32())
    assert keys_of(read(pa.table({"a": values}), feature), "b") == [0, 1, 1, 2, 2, 3, 3, None, None]


def test_a_cross_takes_part_with_missing_values_and_minds_the_order(read, keys_of):
    table = pa.table({"a": [1, 1, None, None], "b": ["x", None, "x", None]})
    batch = read(table, Cross("ab", of=("a", "b")), Cross("ba", of=("b", "a")))
    keys = keys_of(batch, "ab") + keys_of(batch, "ba")
    assert len(set(keys)) == 7 and None not in keys  # both missing: the same in either order
    present = b"\x01" + (1).to_bytes(8, "little") + b"\x01" + h("x").to_bytes(8, "little")
    assert keys[0] == xxhash.xxh3_64_intdigest(present)


def test_a_cross_resolves_the_type_of_each_column(text_file):
    with open_source(
        text_file("a,b\n1,x\n"), Schema(label="none", features=[Cross("ab", of=("a", "b"))]), labels="none"
    ) as source:
        assert source.schema.features[0].dtypes == ("int64", "string")


@pytest.mark.parametrize(
    ("feature", "key"),
    [
        (Categorical("a", dtype="string", serve_as="x"), h("x")),
        (Categorical("a", dtype="int64", serve_as=-1), M - 1),
        (Categorical("a", dtype="uint64", serve_as=M - 1), M - 1),
        (Categorical("a", serve_as=True), 1),
        (Bucket("a", boundaries=(1, 2), serve_as=2.0), 2),
    ],
)
def test_a_value_fixed_for_serving_stands_for_the_column(feature, key, read, keys_of):
    table = pa.table({"b": [1, 2]})
    assert keys_of(read(table, feature, Categorical("b"), serving=True), "a") == [key, key]
    with pytest.raises(DataError, match="column 'a': there is no such column"):
        read(table, feature, Categorical("b"))


def test_a_fixed_value_of_another_type_is_refused(read):
    with pytest.raises(SchemaError, match="serve_as is 'x', and its keys are int64"):
        read(pa.table({"b": [1]}), Categorical("a", dtype="int64", serve_as="x"), serving=True)


def test_kept_columns_agree_between_texts_and_integers(read, text_file):
    keys = [7, 2**64 - 1, int(KEEP_NULL), h("x")]
    texts = ["7", "18446744073709551615", None, "x"]
    assert (
        read(pa.table({"a": texts}), Dense("z", column="z", serve_as=0.0), serving=True, keep=("a",)).keep["a"].tolist()
        == keys
    )
    path = text_file([["a", "b"], *[[t, "-"] for t in texts]])
    assert read(path, Categorical("b"), keep=("a",)).keep["a"].tolist() == keys
    big = pa.table({"a": pa.array([7, 2**64 - 1, None], pa.uint64()), "b": ["-"] * 3})
    assert read(big, Categorical("b"), keep=("a",)).keep["a"].tolist() == keys[:3]


def test_the_strings_behind_keys_are_kept_when_asked_for(parquet, text_file):
    schema = Schema(
        label="none", features=[Categorical("a", keep_strings=True), Bag("b", keep_strings=True, separator="|")]
    )
    for data in (
        text_file([["a", "b"], ["x", "p|q"], [None, None], ["é", "x"]]),
        pa.table({"a": ["x", None, "é"], "b": ["p|q", None, "x"]}),
        parquet({"a": ["x", None, "é"], "b": ["p|q", None, "x"]}),
    ):
        with open_source(data, schema, labels="none") as source:
            list(source)
            assert source.strings("a") == {h("x"): "x", h("é"): "é"}
            assert source.strings("b") == {h(t): t for t in ("p", "q", "x")}
