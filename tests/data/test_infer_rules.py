"""What becomes of a column: one table of columns with the feature each must become, and the words that say why."""

from __future__ import annotations

import datetime
import decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from sfctr.data.column import Column
from sfctr.data.infer_names import name_words, names_id, names_number, names_time
from sfctr.data.infer_rules import Finding, find, find_time
from sfctr.data.infer_times import number_time_format, split_time
from sfctr.data.infer_values import facts_of
from sfctr.data.place import Place
from sfctr.spec.errors import DataError
from sfctr.spec.schema import Bag, Categorical, Dense, Feature, TimePart

RNG = np.random.default_rng(0)
ROWS = 2_000
ZIPF = np.minimum(RNG.zipf(1.3, ROWS), 5_000)
COUNTS = np.floor(RNG.lognormal(2, 1.5, ROWS)).astype(np.int64)
SCATTERED = RNG.permutation(5_000)[ZIPF - 1]


def found(name: str, values: Any, *, csv: bool = False, rows: int | None = ROWS, kind: Any = None) -> Finding:
    if csv:
        values = [None if v is None else str(v) for v in values]
    array = pa.array(values, kind)
    return find(facts_of(name, Column(array, Place("x", column=name), untyped=csv)), rows=rows)


def made(finding: Finding) -> Feature:
    assert not finding.left_out, finding.why
    (feature,) = finding.features
    return feature


def dense(name: str, *, log: bool) -> Dense:
    return Dense(name, transform="log1p" if log else "none", standardize=not log)


@pytest.mark.parametrize("csv", [False, True], ids=["typed", "bare text"])
@pytest.mark.parametrize(
    ("name", "values", "feature", "words"),
    [
        (
            "weekday",
            np.arange(ROWS) % 7,
            Categorical("weekday", dtype="int64"),
            "7 distinct of 2,000 sampled; few whole",
        ),
        ("item", SCATTERED, Categorical("item", dtype="int64"), "whole numbers named like ids -> ids"),
        ("C3", SCATTERED, Categorical("C3", dtype="int64"), "whole numbers named like ids -> ids"),
        ("x", SCATTERED, Categorical("x", dtype="int64"), "whole numbers without the shape of counts -> ids"),
        ("x", ZIPF * 10**9, Categorical("x", dtype="int64"), "whole numbers as large as hashes -> ids"),
        ("x", COUNTS, dense("x", log=True), "the rarer the larger, as counts are, skewed -> number, log1p"),
        ("I4", SCATTERED, dense("I4", log=False), "named like an amount -> number, standardized"),
        ("age", 18 + np.arange(ROWS) % 60, dense("age", log=False), "named like an amount -> number, standardized"),
        (
            "cost",
            np.arange(ROWS) % 2,
            Categorical("cost", dtype="int64"),
            "2 distinct of 2,000 sampled; few whole numbers",
        ),
        ("delta", np.arange(ROWS) % 90 - 40, dense("delta", log=False), "number, standardized"),
        ("x", RNG.normal(size=ROWS).round(6), dense("x", log=False), "numbers with a fraction -> number, standardized"),
        ("x", RNG.lognormal(0, 3, ROWS).round(4), dense("x", log=True), "skewed -> number, log1p"),
    ],
)
def test_numbers_become_ids_or_numbers(name: str, values: Any, feature: Feature, words: str, csv: bool) -> None:
    finding = found(name, values.tolist(), csv=csv)
    assert made(finding) == feature
    assert words in finding.why


def test_large_unsigned_ids_keep_their_type_in_parquet_and_in_text() -> None:
    ids = [2**64 - 1 - int(i) for i in ZIPF]
    assert made(found("x", ids, kind=pa.uint64())) == Categorical("x", dtype="uint64")
    assert made(found("x", ids, csv=True)) == Categorical("x", dtype="uint64")


def test_text_with_leading_zeros_stays_text() -> None:
    zips = [f"{i % 90:05}" for i in range(ROWS)]
    assert made(found("zip", zips, csv=True)) == Categorical("zip", dtype="string", keep_strings=True)


def test_digits_that_a_typed_file_holds_as_text_stay_text() -> None:
    digits = [str(i % 90) for i in range(ROWS)]
    assert made(found("user", digits)) == Categorical("user", dtype="string", keep_strings=True)


def test_texts_are_kept_for_exports_only_where_they_are_few() -> None:
    names = [f"name{i}" for i in ZIPF]
    assert made(found("x", names, rows=ROWS)) == Categorical("x", dtype="string", keep_strings=True)
    assert made(found("x", names, rows=10**9)) == Categorical("x", dtype="string", keep_strings=False)


@pytest.mark.parametrize(
    ("values", "csv"), [([True, False] * 60, False), (["true", "false"] * 60, True), (["True", "False"] * 60, True)]
)
def test_bools_become_ids(values: list[Any], csv: bool) -> None:
    assert made(found("x", values, csv=csv)) == Categorical("x", dtype="bool")


def test_decimals_become_numbers_and_whole_decimals_are_whole_numbers() -> None:
    prices = [decimal.Decimal(int(i) % 500) / 100 for i in SCATTERED]
    assert made(found("fee", prices, kind=pa.decimal128(9, 2))) == dense("fee", log=False)
    whole = [decimal.Decimal(int(i)) for i in SCATTERED]
    assert made(found("item_id", whole, kind=pa.decimal128(18, 0))) == Categorical("item_id", dtype="int64")


@pytest.mark.parametrize(
    ("values", "kind", "feature"),
    [
        ([[1, 2], [3]] * 60, pa.list_(pa.int64()), Bag("x", dtype="int64", pooling="mean")),
        ([[1, 2], []] * 60, pa.list_(pa.uint64()), Bag("x", dtype="uint64", pooling="mean")),
        ([["a"], None] * 60, pa.large_list(pa.string()), Bag("x", dtype="string", keep_strings=True, pooling="mean")),
        (
            [["a"], ["b", "c"]] * 60,
            pa.list_(pa.dictionary(pa.int8(), pa.string())),
            Bag("x", dtype="string", keep_strings=True, pooling="mean"),
        ),
        ([[1.0, 2.5]] * 60, pa.list_(pa.float32(), 2), Dense("x", size=2)),
        ([[1.0, 2.5, 3.0]] * 60, pa.list_(pa.float64()), Dense("x", size=3)),
        ([[1, 2]] * 60, pa.list_(pa.int8(), 2), Bag("x", dtype="int64", pooling="mean")),
    ],
)
def test_lists_become_bags_and_lists_of_numbers_vectors(values: Any, kind: Any, feature: Feature) -> None:
    assert made(found("x", values, kind=kind)) == feature


GENRES = ["Action|Comedy", "Comedy", "Drama|War", "Action|Drama|War", "War", "Comedy|Drama", "Action", "Drama"]
MORE_GENRES = [*GENRES, "Comedy|War", "Action|War", "Action|Comedy|Drama"]


def test_text_with_a_separator_and_few_parts_becomes_a_bag() -> None:
    finding = found("genre", MORE_GENRES * 20)
    assert made(finding) == Bag("genre", dtype="string", keep_strings=True, separator="|", pooling="mean")
    assert "1.8 of 4 ids a text, separated by '|' -> bag" in finding.why


def test_bare_text_of_whole_numbers_becomes_a_bag_of_integers() -> None:
    lists = [" ".join(str(i % 50) for i in range(start, start + 1 + start % 4)) for start in range(200)]
    assert made(found("history", lists, csv=True)) == Bag("history", dtype="int64", separator=" ", pooling="mean")
    assert made(found("history", lists)).dtype == "string"  # type: ignore[union-attr]


def test_ids_with_weights_in_text_become_a_weighted_bag() -> None:
    texts = [f"{i % 9}:0.5 {i % 7}:{i % 3}" for i in range(200)]
    assert made(found("x", texts, csv=True)) == Bag(
        "x", dtype="int64", separator=" ", pooling="mean", weight_separator=":"
    )


def test_texts_of_equally_many_numbers_become_a_vector() -> None:
    texts = [f"{i / 8} {-i} 1.5" for i in range(200)]
    assert made(found("x", texts, csv=True)) == Dense("x", size=3)


@pytest.mark.parametrize(
    "texts",
    [
        ["New York", "Los Angeles", "San Francisco", "El Paso", "Fort Worth", "Las Vegas", "Salt Lake City"] * 30,
        [f"Model {i % 40}" for i in range(200)] + ["Other phone"],
        ["https://a.b/c d", "https://a.b/d c"] * 60,
        ["a,b", "b", "c"] * 60,
    ],
)
def test_names_with_blanks_or_few_texts_stay_one_id(texts: list[str]) -> None:
    assert isinstance(made(found("x", texts)), Categorical)


def test_free_text_whose_words_come_back_becomes_a_bag_of_words() -> None:
    words = ["the", "return", "of", "king", "toy", "story", "man", "night", "day", "star"]
    titles = [" ".join(RNG.choice(words, 3)) for _ in range(300)]
    assert made(found("title", titles)) == Bag(
        "title", dtype="string", keep_strings=True, separator=" ", pooling="mean"
    )


@pytest.mark.parametrize(
    ("name", "values", "csv", "words"),
    [
        ("x", [7] * 200, False, "the same value on each of 200 sampled rows"),
        ("x", ["a"] * 200, True, "the same value on each of 200 sampled rows"),
        ("x", [None] * 200, False, "no value on any of 200 sampled rows"),
        ("x", ["", None] * 100, True, "no value on any of 200 sampled rows"),
        ("x", [float("nan")] * 200, False, "no value on any of 200 sampled rows"),
        ("id", [10**18 + 7919 * i for i in range(200)], True, "another value on each of 200 sampled rows"),
        ("x", [f"{i:x}" for i in range(10**6, 10**6 + 200)], False, "another value on each of 200 sampled rows"),
        ("row_number", list(range(200)), False, "another value on each of 200 sampled rows"),
        ("x", [{"a": 1}] * 200, False, "it holds struct<a: int64>, which no feature reads"),
        ("x", [[1.0], [2.0, 3.0]] * 100, False, "lists of numbers of different lengths, which no feature reads"),
    ],
)
def test_columns_that_teach_nothing_are_left_out_with_the_reason(name: str, values: Any, csv: bool, words: str) -> None:
    finding = found(name, values, csv=csv)
    assert finding.left_out
    assert finding.why == words


def test_few_sampled_rows_say_nothing_about_uniqueness() -> None:
    assert made(found("user", [5, 17, 99])) == Categorical("user", dtype="int64")


def test_a_constant_that_is_sometimes_missing_stays() -> None:
    finding = found("x", ["a", None] * 100)
    assert made(finding) == Categorical("x", dtype="string", keep_strings=True)
    assert finding.why.endswith("; 50.0% missing")


@pytest.mark.parametrize("name", ["a.mask", "a.linear"])
def test_a_reserved_name_is_changed_and_the_column_kept(name: str) -> None:
    feature = made(found(name, ["a", "b"] * 60))
    assert (feature.name, feature.columns) == (f"{name}_", (name,))


@pytest.mark.parametrize(("text", "kind"), [("1.5", Dense), ("7", Categorical)])
def test_known_markers_among_numbers_mean_missing(text: str, kind: type) -> None:
    finding = found("x", [text, "NA", "8", "\\N", text] * 60, csv=True)
    assert isinstance(made(finding), kind)
    assert finding.markers == ("NA", "\\N")
    assert finding.why.endswith("40.0% missing")


@pytest.mark.parametrize("values", [[7.0, None, 8.0] * 60, ["7.0", "NA", "8.0"] * 60])
@pytest.mark.parametrize("csv", [False, True], ids=["typed", "bare text"])
def test_ids_that_were_made_floats_are_left_out_and_amounts_are_not(values: list[Any], csv: bool) -> None:
    if not csv:
        values = [None if v in (None, "NA") else float(v) for v in values]
    finding = found("user_id", values, csv=csv)
    assert finding.left_out
    assert finding.features == (Categorical("user_id", dtype="int64"),)
    assert finding.why == "ids that were made floats; write them as integers to use it"
    assert made(found("price", values, csv=csv)) == dense("price", log=False)


def test_nan_among_whole_numbers_in_text_means_missing() -> None:
    finding = found("user", ["7", "nan", "8"] * 60, csv=True)
    assert made(finding) == Categorical("user", dtype="int64")
    assert finding.markers == ("nan",)


def test_a_marker_among_texts_is_a_value() -> None:
    finding = found("country", ["NA", "DE", "FR"] * 60, csv=True)
    assert finding.markers == ()
    assert "3 distinct" in finding.why


# ---- times --------------------------------------------------------------------------------------------------------


def test_times_become_hour_and_weekday() -> None:
    start = datetime.datetime(2024, 1, 1, 5)
    finding = found("at", [start + datetime.timedelta(hours=i) for i in range(200)])
    assert finding.features == (
        TimePart("at_hour", part="hour", column="at"),
        TimePart("at_weekday", part="weekday", column="at"),
    )
    assert finding.why == "times -> hour and weekday"


def test_iso_text_without_a_type_is_a_time_and_dates_have_no_hour() -> None:
    assert len(found("x", [f"2024-01-{d:02} 10:00:00" for d in range(1, 29)], csv=True).features) == 2
    days = found("x", [f"2024-01-{d:02}" for d in range(1, 29)], csv=True)
    assert days.features == (TimePart("x_weekday", part="weekday", column="x"),)


def test_whole_numbers_are_times_only_if_their_name_says_so() -> None:
    hours = [14102100 + i % 24 for i in range(200)]
    assert found("hour", hours).format == "%y%m%d%H"
    assert found("hour", hours, csv=True).format == "%y%m%d%H"
    assert isinstance(made(found("shop", hours)), Categorical)
    assert found("hour", [i % 24 for i in range(200)]).format is None


@pytest.mark.parametrize(
    ("values", "format"),
    [
        ([14102100, 14103023], "%y%m%d%H"),
        ([20141021, 20151231], "%Y%m%d"),
        ([2014102100, 2014103023], "%Y%m%d%H"),
        ([201410210059], "%Y%m%d%H%M"),
        ([20141021005959], "%Y%m%d%H%M%S"),
        ([141021], "%y%m%d"),
        ([881250949, 893286638], "s"),
        ([1413849600, 1414000000], "s"),
        ([1413849600123], "ms"),
        ([1413849600123456], "us"),
        ([1413849600123456789], "ns"),
        ([20141345, 20151231], None),
        ([0, 36], None),
        ([-5], None),
        ([], None),
    ],
)
def test_the_format_of_whole_numbers_follows_from_their_digits(values: list[int], format: str | None) -> None:
    assert number_time_format(np.array(values, dtype=np.int64)) == format


def test_a_column_named_as_the_time_is_read_as_one_or_refused() -> None:
    def named(values: Any, format: str | None = None, *, csv: bool = False) -> Finding:
        return find_time(facts_of("t", Column(pa.array(values), Place("x", column="t"), untyped=csv)), format)

    assert named([14102100, 14102101]).format == "%y%m%d%H"
    assert named(["14102100", "14102101"], csv=True).format == "%y%m%d%H"
    assert named([30, 31], "s").ns is not None
    with pytest.raises(DataError, match=r"column 't': holds no times of a known format; name its format"):
        named([1, 2])
    with pytest.raises(DataError, match="holds double values, which are no times"):
        named([1.5])


def test_the_split_time_leaves_nearest_to_the_share_after_it() -> None:
    hour = 3600 * 10**9
    assert split_time(np.arange(100, dtype=np.int64) * hour) == "1970-01-04T18:00:00"
    assert split_time(np.repeat(np.array([0, 1, 2]), [50, 30, 20]) * hour) == "1970-01-01T02:00:00"
    assert split_time(np.array([5, 5, 5], dtype=np.int64)) is None
    assert split_time(np.array([0, 1500], dtype=np.int64)) == "1970-01-01T00:00:00.000001500"


# ---- names --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "words"),
    [("userId", ["user", "id"]), ("user_id", ["user", "id"]), ("HTTPCode2", ["http", "code"]), ("7", [])],
)
def test_names_are_read_word_by_word(name: str, words: list[str]) -> None:
    assert name_words(name) == words


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("user_age", "number"),
        ("num_items", "number"),
        ("I13", "number"),
        ("user", "id"),
        ("C26", "id"),
        ("siteCategory", "id"),
        ("x1", ""),
        ("", ""),
    ],
)
def test_names_suggest_amounts_or_ids_or_nothing(name: str, says: str) -> None:
    assert (names_number(name), names_id(name)) == (says == "number", says == "id")


def test_names_suggest_times() -> None:
    assert names_time("created_at") and names_time("timestamp") and not names_time("item")
