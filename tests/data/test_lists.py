"""Bags and sequences: lists, texts with a separator, weights, cuts and shared positions."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
import xxhash

from sfctr.data import open_source
from sfctr.spec.errors import DataError, SchemaError
from sfctr.spec.runfile import Data
from sfctr.spec.schema import Bag, Categorical, Schema, Sequence

B = Bag("b")


def h(text: str) -> int:
    return xxhash.xxh3_64_intdigest(text.encode())


ROWS = [[1, 2, None], [], None, [3]]
KEPT = [[1, 2], [], [], [3]]
LISTS = [
    pa.array(ROWS),
    pa.array(ROWS, pa.large_list(pa.int32())),
    pa.array(ROWS, pa.list_(pa.uint8())),
    pa.array(ROWS, pa.list_view(pa.int64())),
    pa.array([[9], *ROWS, [9]]).slice(1, 4),
]


@pytest.mark.parametrize("array", LISTS, ids=lambda array: str(array.type))
def test_lists_become_bags_without_their_nulls(array, read, lists_of):
    assert lists_of(read(pa.table({"b": array}), B), "b") == KEPT


def test_a_null_list_over_values_in_its_buffer_is_empty(read, lists_of):
    hidden = pa.ListArray.from_arrays(pa.array([0, 2, 3]), pa.array([1, 2, 3]), mask=pa.array([True, False]))
    assert lists_of(read(pa.table({"b": hidden}), B), "b") == [[], [3]]


def test_lists_of_fixed_size_and_of_strings_become_bags(read, lists_of):
    fixed = pa.array([[1, 2], None, [3, None]], pa.list_(pa.int64(), 2))
    assert lists_of(read(pa.table({"b": fixed}), B), "b") == [[1, 2], [], [3]]
    for kind in (
        pa.list_(pa.string()),
        pa.large_list(pa.large_string()),
        pa.list_(pa.dictionary(pa.int8(), pa.string())),
    ):
        texts = pa.array([["x", "", None, "NA"], []], kind)
        assert lists_of(read(pa.table({"b": texts}), B), "b") == [[h("x"), h("NA")], []]


def test_columns_of_single_ids_become_bags_of_one(read, lists_of, text_file):
    assert lists_of(read(pa.table({"b": [7, None]}), B), "b") == [[7], []]
    assert lists_of(read(text_file("b,c\nx|y,\n,\n"), B), "b") == [[h("x|y")], []]


def test_texts_are_split_at_the_separator(read, lists_of, text_file, parquet):
    texts = ["1|2||3|", "", None, "4"]
    feature = Bag("b", separator="|")
    for data in (text_file([["b", "c"], *[[t, "x"] for t in texts]]), parquet({"b": texts})):
        assert lists_of(read(data, feature), "b") == [[1, 2, 3], [], [], [4]]


def test_text_that_looks_like_a_list_is_not_parsed(read, lists_of, text_file):
    path = text_file('b,c\n"[1, 2]",\n')
    assert lists_of(read(path, Bag("b", separator=", ")), "b") == [[h("[1"), h("2]")]]


def test_null_markers_hold_inside_lists_too(read, lists_of, text_file):
    path = text_file("b,c\n1|NULL|2,\nNULL,\n")
    options = Data(null_values=("NULL",))
    assert lists_of(read(path, Bag("b", separator="|"), options=options), "b") == [[1, 2], []]


def test_a_bag_keeps_the_first_ids_and_a_sequence_the_latest(read, lists_of):
    table = pa.table({"b": [[1, 2, 3, 4], [5], [], [6, 7, 8]]})
    found = read(table, Bag("b", max_length=2), Sequence("s", column="b", max_length=2))
    assert lists_of(found, "b") == [[1, 2], [5], [], [6, 7]]
    assert lists_of(found, "s") == [[3, 4], [5], [], [7, 8]]


def test_weights_come_beside_ids_or_inside_their_texts(read, lists_of, text_file):
    beside = Bag("b", weights="w")
    found = read(pa.table({"b": [[1, None, 2], None], "w": [[0.5, 9.0, 2.0], None]}), beside)
    assert (lists_of(found, "b"), lists_of(found, "b", "weights")) == ([[1, 2], []], [[0.5, 2.0], []])
    path = text_file("b,w\n1||2,0.5|9|2\n,\n")
    found = read(path, Bag("b", weights="w", separator="|"))
    assert (lists_of(found, "b"), lists_of(found, "b", "weights")) == ([[1, 2], []], [[0.5, 2.0], []])
    found = read(text_file("b,c\n1:0.5 7:a:2,\n,\n"), Bag("b", separator=" ", weight_separator=":"))
    assert lists_of(found, "b", "weights") == [[0.5, 2.0], []]
    assert lists_of(found, "b") == [[h("1"), h("7:a")], []]


def test_weights_are_cut_with_their_ids(read, lists_of):
    table = pa.table({"b": [[1, 2, 3]], "w": [[1.0, 2.0, 3.0]]})
    found = read(table, Bag("b", weights="w", max_length=2))
    assert (lists_of(found, "b"), lists_of(found, "b", "weights")) == ([[1, 2]], [[1.0, 2.0]])


def test_sequences_that_share_positions_drop_nulls_together(read, lists_of):
    table = pa.table({"s": [[1, None, 3, 4], [5, 6]], "t": [["a", "b", None, "d"], ["e", "f"]]})
    found = read(table, Sequence("t", aligned_with="s"), Sequence("s"))
    assert lists_of(found, "s") == [[1, 4], [5, 6]]
    assert lists_of(found, "t") == [[h("a"), h("d")], [h("e"), h("f")]]


REFUSED = [
    (
        {"b": [[1, 2], [3]], "w": [[1.0, 2.0], []]},
        [Bag("b", weights="w")],
        "row 2, column 'w': has 0 items and 'b' has 1",
    ),
    ({"b": [[1]], "w": [[None]]}, [Bag("b", weights="w")], "row 1, column 'w': a weight is missing"),
    ({"b": [[1], [2]], "w": [[1.0], [np.inf]]}, [Bag("b", weights="w")], "row 2, column 'w': weight inf is not finite"),
    (
        {"b": ["1:2", "3"]},
        [Bag("b", separator=" ", weight_separator=":")],
        "row 2, column 'b': '3' has no weight after ':'; write it as id:weight",
    ),
    (
        {"b": ["1:2", "3:1 3:x"]},
        [Bag("b", separator=" ", weight_separator=":")],
        "row 2, column 'b': 'x' is not a number",
    ),
    ({"b": [[1.5]]}, [B], "column 'b': holds double values, and floats are no ids"),
    ({"b": [[1], [-1]]}, [Bag("b", dtype="uint64")], "row 2, column 'b': id -1 is negative"),
    ({"b": [[1]]}, [Bag("b", separator="|")], "holds list.* values, and texts with the separator '|' were needed"),
    (
        {"s": [[1], [2, 3]], "t": [["a"], ["b"]]},
        [Sequence("s"), Sequence("t", aligned_with="s")],
        "row 2, column 't': has 1 items and 's' has 2",
    ),
    ({"b": ["1|2", "3|x"]}, [Bag("b", separator="|", dtype="int64")], "row 2, column 'b': 'x' is no int64 id"),
]


@pytest.mark.parametrize(("columns", "features", "words"), REFUSED, ids=[w for _, _, w in REFUSED])
def test_lists_that_cannot_be_used_are_refused_with_their_row(columns, features, words, read):
    with pytest.raises(DataError, match=words.replace("|", "\\|")):
        read(pa.table(columns), *features)


def test_a_bad_token_far_into_a_file_is_named_by_its_row(read, text_file):
    path = text_file([["b", "c"], *[["1|2|3", "x"]] * 15_000, ["4|bad", "x"]])
    with pytest.raises(DataError, match="row 15001, column 'b': 'bad' is no int64 id"):
        read(path, Bag("b", separator="|"))


def test_aligned_sequences_of_unlike_lengths_or_in_a_circle_are_refused(read):
    table = pa.table({"s": [[1]], "t": [[1]]})
    with pytest.raises(SchemaError, match="max_length 50 and is aligned with 's', which has 3; give both the same"):
        read(table, Sequence("s", max_length=3), Sequence("t", aligned_with="s"))
    with pytest.raises(SchemaError, match="aligned_with goes round in a circle"):
        read(table, Sequence("s", aligned_with="t"), Sequence("t", aligned_with="s"))


def test_lists_are_cut_into_batches_with_offsets_from_zero(lists_of):

    table = pa.table({"b": [[1], [2, 3], [], [4, 5, 6], [7]], "c": [1] * 5})
    schema = Schema(label="none", features=[B, Categorical("c")])
    with open_source(table, schema, batch_size=2, labels="none") as source:
        batches = list(source)
    assert [lists_of(b, "b") for b in batches] == [[[1], [2, 3]], [[], [4, 5, 6]], [[7]]]
    assert all(b.keys["b"].offsets[0] == 0 and b.keys["b"].offsets[-1] == len(b.keys["b"].keys) for b in batches)
