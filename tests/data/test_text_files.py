"""CSV and TSV in every dirty form, and rows counted as records."""

from __future__ import annotations

import csv
import gzip
import io
import random

import pytest
import xxhash

from sfctr.data import open_source
from sfctr.data import text as text_module
from sfctr.data.text import CRITEO_COLUMNS
from sfctr.spec.errors import DataError
from sfctr.spec.runfile import Data
from sfctr.spec.schema import Categorical, Dense, Schema

STRINGS = [Categorical(name, dtype="string", keep_strings=True) for name in "abc"]


def strings(path, columns="ab", **options) -> list[list[str | None]]:
    """The texts of a file, a list for each column, read back through their keys."""
    features = [f for f in STRINGS if f.name in columns]
    out: list[list[str | None]] = [[] for _ in features]
    with open_source(path, Schema(label="no", features=features), labels="none", options=Data(**options)) as source:
        for batch in source:
            for column, feature in zip(out, features, strict=True):
                found, texts = batch.keys[feature.name], source.strings(feature.name)
                nulls = [0] * batch.size if found.nulls is None else found.nulls.tolist()
                column += [None if n else texts[k] for k, n in zip(found.keys.tolist(), nulls, strict=True)]
    return out


@pytest.mark.parametrize(
    ("content", "a", "b"),
    [
        ("a,b\n1,2\n3,4\n", ["1", "3"], ["2", "4"]),
        ("a,b\r\n1,2\r\n3,4\r\n", ["1", "3"], ["2", "4"]),
        ("\ufeffa,b\n1,2\n", ["1"], ["2"]),
        ("a,b\n1,2", ["1"], ["2"]),
        ('a,b\n"1","2"\n', ["1"], ["2"]),
        ('a,b\n"x, ""y""",2\n', ['x, "y"'], ["2"]),
        ('a,b\n"line\nbreak","crlf\r\nbreak"\n', ["line\nbreak"], ["crlf\r\nbreak"]),
        ('a,b\n,""\n', [None], [None]),
        ("a,b\n\n1,2\n\n\n3,4\n\n", ["1", "3"], ["2", "4"]),
        ("\n\na,b\n1,2\n", ["1"], ["2"]),
        ("b,c,a\n2,9,1\n", ["1"], ["2"]),
        (",a,b\n0,1,2\n", ["1"], ["2"]),
        ("a,b\nNA, x \n", ["NA"], [" x "]),
        ("a,b\n\t1,\\N\n", ["\t1"], ["\\N"]),
        ("a,b\né,日本\n", ["é"], ["日本"]),
        ("a,b\n", [], []),
        ("a,b", [], []),
    ],
)
def test_csv_forms_are_read_as_what_they_mean(content, a, b, text_file):
    assert strings(text_file(content)) == [a, b]


def test_quotes_inside_of_plain_values_are_values(text_file):
    assert strings(text_file('a,b\n5" pipe,6"\nx,y"')) == [['5" pipe', "x"], ['6"', 'y"']]


def test_a_quote_that_is_never_closed_is_found_in_any_block_and_column_of_interest(text_file, monkeypatch):
    lines = [f"{i},{i}" for i in range(60)]
    lines[40] = '40,"40'
    for block in (64, 100, 1 << 20):
        monkeypatch.setattr(text_module, "_BLOCK_BYTES", block)
        for columns in "a", "b":
            with pytest.raises(DataError, match="row 41: a quote is opened in the last column and never closed"):
                strings(text_file("\n".join(["a,b", *lines])), columns)
    with pytest.raises(DataError, match="row 2: a quote is opened"):
        strings(text_file('a\n1\n"2\n3\n'), "a")


def test_a_file_of_one_column_keeps_its_blank_lines_as_missing_values(text_file):
    for end in ("2", "2\n", "2\r\n"):
        assert strings(text_file(f"a\n1\n\n{end}"), "a") == [["1", None, "2"]]
    assert strings(text_file("a\n1\n\n"), "a") == [["1", None]]


def test_null_markers_are_missing_values(text_file):
    assert strings(text_file("a,b\nNA,\\N\nNAN,0\n"), null_values=("NA", "\\N")) == [[None, "NAN"], [None, "0"]]


def test_tsv_and_other_separators_are_read(text_file):
    assert strings(text_file("a\tb\n1,5\t2\n", "rows.tsv")) == [["1,5"], ["2"]]
    assert strings(text_file("a;b\n1,5;2\n"), separator=";") == [["1,5"], ["2"]]
    assert strings(text_file("a|b\n1|2\n", "rows.dat"), format="csv", separator="|") == [["1"], ["2"]]


def test_gzip_is_read_in_one_or_several_members(text_file):
    one = gzip.compress(b"a,b\n1,2\n")
    assert strings(text_file(one, "rows.csv.gz")) == [["1"], ["2"]]
    assert strings(text_file(one + gzip.compress(b"3,4\n"), "two.csv.gz")) == [["1", "3"], ["2", "4"]]
    assert strings(text_file(gzip.compress(b"a\tb\n1\t2\n"), "rows.tsv.gz")) == [["1"], ["2"]]


def test_the_criteo_layout_is_read_by_name(text_file, read, keys_of):
    rows = [["1", *[str(i) for i in range(13)], *["68fd1e64"] * 26], ["0", *[""] * 13, *['"q'] * 26]]
    content = "".join("\t".join(row) + "\n" for row in rows)
    features = [Dense("I2"), Categorical("C26")]
    for data in (text_file(content, "day_0"), text_file(gzip.compress(content.encode()), "day_0.gz")):
        found = read(data, *features, label="label", options=Data(format="criteo"))
        assert found.labels.tolist() == [[1], [0]]
        assert found.dense["I2"].tolist() == [[1, 0], [0, 1]]
        assert keys_of(found, "C26") == [xxhash.xxh3_64_intdigest(t) for t in (b"68fd1e64", b'"q')]
    assert len(CRITEO_COLUMNS) == 40


def reference(rows, line_end) -> bytes:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator=line_end, quoting=csv.QUOTE_ALL)
    writer.writerows([["a", "b", "c"], *rows])
    return out.getvalue().encode()


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_quoted_line_breaks_survive_any_cut_of_the_file_into_blocks(line_end, text_file, monkeypatch):
    pieces = ["x", '"', "\n", ",", "\r\n", "zz", "\r"]
    for seed in range(20):
        rng = random.Random(seed)
        texts = [["".join(rng.choices(pieces, k=rng.randrange(12))) or "-" for _ in range(3)] for _ in range(40)]
        content = reference(texts, line_end)
        for block in (64, 65, 100, 101, 1000):
            monkeypatch.setattr(text_module, "_BLOCK_BYTES", block)
            assert strings(text_file(content), "abc") == [list(column) for column in zip(*texts, strict=True)]


def test_a_row_longer_than_a_block_is_read_in_larger_blocks(text_file, monkeypatch):
    monkeypatch.setattr(text_module, "_BLOCK_BYTES", 64)
    texts = [["x" * size, "y"] for size in (3, 10, 300, 2, 5000, 1)] * 3
    assert strings(text_file([["a", "b"], *texts])) == [list(column) for column in zip(*texts, strict=True)]
    monkeypatch.setattr(text_module, "_LARGEST_BLOCK_BYTES", 2048)
    with pytest.raises(DataError, match=r"rows.csv, row .*: a value or a row is longer than .*look for a quote"):
        strings(text_file([["a", "b"], *texts]))


BAD = [
    (b"", "the file is empty; a header line was needed"),
    (b"\n \n", "the file is empty"),
    (b"a,b\n1,2\n3\n", "row 2: the row has 1 values and the file 2 columns; quote values that hold the separator"),
    (b'a,b\n"1\n1",2\n\n3,4,5\n', "row 2: the row has 3 values and the file 2 columns"),
    (b'a,b\n1,2\n"3,4\n5,6\n', "row 2: the row has 1 values and the file 2 columns"),
    (b'a,b\n1,2\n3,"4\n5,6\n', "row 2: a quote is opened in the last column and never closed; close it"),
    (b'a,b\n1,2\n3,"4""', "row 2: a quote is opened in the last column and never closed"),
    (b'a,b\n"', "row 1: the row has 1 values and the file 2 columns"),
    (b"a,b,a\n1,2,3\n", "column 'a': two columns have this name"),
    (b"a,b\n1,\xff\n", "row 1, column 'b': .* is not valid UTF-8; write the file in UTF-8"),
    (b"a\xff,b\n1,2\n", "the header is not valid UTF-8"),
    ("a,b\n1,2\n".encode("utf-16"), "the header is not valid UTF-8|there is no such column"),
]


@pytest.mark.parametrize(("content", "words"), BAD, ids=[str(c) for c, _ in BAD])
def test_a_broken_csv_is_refused_with_its_place(content, words, text_file):
    path = text_file(content)
    with pytest.raises(DataError, match=words) as error:
        strings(path)
    assert str(error.value).startswith(path)


def test_a_truncated_or_damaged_gzip_is_refused(text_file):
    whole = gzip.compress("".join(f"{i},{i * i}\n" for i in range(50_000)).encode())
    whole = gzip.compress(b"a,b\n") + whole
    for name, content in {
        "cut": whole[:-10],
        "half": whole[: len(whole) // 2],
        "checksum": whole[:-6] + bytes([whole[-6] ^ 255]) + whole[-5:],
        "no gzip": b"a,b\n1,2\n",
    }.items():
        path = text_file(content, f"{name}.csv.gz")
        with pytest.raises(DataError, match=r"the file cannot be read to its end: .*truncated"):
            strings(path)


def test_a_ragged_row_of_the_criteo_layout_is_named(text_file):
    path = text_file("0\t1\n", "day_0")
    with pytest.raises(DataError, match="row 1: the row has 2 values and the file 40 columns"):
        list(open_source(path, Schema(label="label", features=[Dense("I1")]), options=Data(format="criteo")))


def test_files_may_order_their_columns_as_they_like(text_file, tmp_path):
    text_file("a,b\n1,2\n", "1.csv")
    text_file("b,c,a\n4,0,3\n", "2.csv")
    text_file("a,b\n", "3.csv")
    assert strings(str(tmp_path)) == [["1", "3"], ["2", "4"]]
    text_file("a,c\n5,6\n", "4.csv")
    with pytest.raises(DataError, match=r"4.csv, column 'b': there is no such column"):
        strings(str(tmp_path))
