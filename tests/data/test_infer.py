"""`infer_run_file` makes a run file that can be trained unchanged, and says why it says what it says."""

from __future__ import annotations

import datetime
import decimal
import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from sfctr.data import open_training
from sfctr.data.infer import infer_run_file
from sfctr.data.times import time_of
from sfctr.spec.errors import ConfigError, DataError, SchemaError
from sfctr.spec.runfile import RunFile
from sfctr.spec.runfile_text import decode_run_file, render_run_file
from sfctr.spec.schema import Bag, Categorical, Dense, TimeColumn, TimePart

RNG = np.random.default_rng(1)
SAMPLES = Path(__file__).parents[3] / "shared" / "data"


def parquet(folder: Path, columns: dict[str, Any], name: str = "x.parquet", **options: Any) -> str:
    path = folder / name
    pq.write_table(pa.table(columns), path, **options)
    return str(path)


def clicks(rows: int) -> Any:
    return RNG.integers(0, 2, rows).astype(np.int8)


def trained_rows(run: RunFile) -> tuple[list[Any], list[Any]]:
    """The batches of both parts, as the trainer reads them from the written text."""
    run = decode_run_file(render_run_file(run), "run.toml")
    train, valid = open_training(run.data, run.schema, batch_size=run.train.batch_size, seed=0)
    assert valid is not None
    with train, valid:
        return list(train.batches()), list(valid.batches())


def sampled_rows(comments: dict[str, str]) -> int:
    return int(comments[""].split()[2].replace(",", ""))


def everything(rows: int) -> dict[str, Any]:
    start = datetime.datetime(2024, 5, 1)
    ids = RNG.integers(2**63, 2**64, 50, dtype=np.uint64)
    return {
        "clicked": clicks(rows),
        "event_id": pa.array(RNG.integers(0, 2**63, rows, dtype=np.uint64), pa.uint64()),
        "user": pa.array([None if i % 9 == 0 else ids[i % 50] for i in range(rows)], pa.uint64()),
        "country": pa.array([["de", "fr", None, ""][i % 4] for i in range(rows)]),
        "brand": pa.array([f"b{i % 30}" for i in range(rows)]).dictionary_encode(),
        "tags": pa.array([None if i % 5 == 0 else ["x", None, "y"][: i % 4] for i in range(rows)]),
        "seen": pa.array([[i % 7, i % 11] for i in range(rows)], pa.list_(pa.int32())),
        "price": pa.array(
            [None if i % 8 == 0 else decimal.Decimal(i % 500) / 100 for i in range(rows)], pa.decimal128(9, 2)
        ),
        "score": pa.array(RNG.normal(size=rows), mask=RNG.random(rows) < 0.1),
        "vector": pa.array(RNG.normal(size=(rows, 4)).tolist(), pa.list_(pa.float32(), 4)),
        "member": pa.array([bool(i % 3) for i in range(rows)]),
        "at": pa.array([start + datetime.timedelta(minutes=7 * i) for i in range(rows)]),
        "nothing": pa.nulls(rows, pa.string()),
        "version": pa.array([3] * rows),
    }


def test_a_parquet_file_of_every_type_trains_unchanged(tmp_path: Path) -> None:
    path = parquet(tmp_path, everything(2_000))
    run, comments = infer_run_file([path], label="clicked")
    assert run.schema.features == (
        Categorical("user", dtype="uint64"),
        Categorical("country", dtype="string", keep_strings=True),
        Categorical("brand", dtype="string", keep_strings=True),
        Bag("tags", dtype="string", keep_strings=True, pooling="mean"),
        Bag("seen", dtype="int64", pooling="mean"),
        Dense("price", standardize=True),
        Dense("score", standardize=True),
        Dense("vector", size=4),
        Categorical("member", dtype="bool"),
        TimePart("at_hour", part="hour", column="at"),
        TimePart("at_weekday", part="weekday", column="at"),
    )
    assert run.schema.time == "at"
    assert comments["schema.time"] == "the only column of times; it orders the rows"
    assert comments["schema.features.user"].endswith("ids; 11.2% missing")
    assert comments["schema.features"].splitlines()[:2] == [
        "Left out:",
        "  event_id: another value on each of 2,000 sampled rows",
    ]
    train, valid = trained_rows(run)
    assert sum(b.size for b in train) == 1_800
    assert max(b.time.max() for b in train) < min(b.time.min() for b in valid)


def test_a_column_that_was_left_out_can_be_put_back_from_its_comment(tmp_path: Path) -> None:
    run, comments = infer_run_file([parquet(tmp_path, everything(2_000))], label="clicked")
    text = render_run_file(run, comments)
    line = '{kind = "categorical", name = "event_id", dtype = "uint64", keep_strings = false},'
    assert f"#       {line}\n" in text
    names = [
        f.name
        for f in decode_run_file(
            text.replace(f"#       {line}\n", "").replace("features = [", f"features = [\n{line}"), "x"
        ).schema.features
    ]
    assert names[0] == "event_id"


def test_every_comment_is_in_the_text(tmp_path: Path) -> None:
    run, comments = infer_run_file([parquet(tmp_path, everything(2_000))], label="clicked")
    text = render_run_file(run, comments)
    for comment in comments.values():
        for line in comment.splitlines():
            assert f"# {line}" in text


def test_an_avazu_log_is_split_by_hour_as_asked(tmp_path: Path) -> None:
    rows = 3_000
    hours = [f"1410{21 + i * 10 // rows}{i * 240 // rows % 24:02}" for i in range(rows)]
    table = pa.table(
        {
            "id": pa.array([str(10**18 + 7919 * i) for i in range(rows)]),
            "click": clicks(rows),
            "hour": hours,
            "C1": [1005 if i % 10 else 1010 for i in range(rows)],
            "banner_pos": [i % 2 for i in range(rows)],
            "site_id": [f"{i % 70:08x}" for i in range(rows)],
            "device_ip": [f"{i * 7919 % 1000:08x}" for i in range(rows)],
            "C14": [15706 + i % 300 for i in range(rows)],
        }
    )
    pyarrow.csv.write_csv(table, tmp_path / "train.csv")
    run, comments = infer_run_file([str(tmp_path / "train.csv")], label="click", time="hour", valid_from="2014-10-29")
    assert run.schema.time == TimeColumn("hour", "%y%m%d%H")
    assert run.schema["hour_hour"] == TimePart("hour_hour", part="hour", column="hour")
    assert [f.name for f in run.schema.features] == [
        "hour_hour",
        "hour_weekday",
        "C1",
        "banner_pos",
        "site_id",
        "device_ip",
        "C14",
    ]
    assert "id: another value on each" in comments["schema.features"]
    train, valid = trained_rows(run)
    start = time_of("2014-10-29", None, "")
    assert max(b.time.max() for b in train) < start <= min(b.time.min() for b in valid)
    assert sum(b.size for b in train) + sum(b.size for b in valid) == rows


def test_the_validation_part_is_the_last_tenth_in_time_without_being_told(tmp_path: Path) -> None:
    columns = {"y": clicks(1_000), "user": np.arange(1_000) % 40, "ts": 1_400_000_000 + 60 * np.arange(1_000)}
    run, comments = infer_run_file([parquet(tmp_path, columns)], label="y")
    assert run.schema.time == TimeColumn("ts", "s")
    assert run.data.valid_from == "2014-05-14T07:53:20"
    assert comments["data.valid_from"] == "about the last 10% of the rows by ts"
    train, valid = trained_rows(run)
    assert (sum(b.size for b in train), sum(b.size for b in valid)) == (900, 100)


def test_rows_out_of_time_order_are_shuffled_and_that_is_said(tmp_path: Path) -> None:
    columns = {"y": clicks(1_000), "user": np.arange(1_000) % 40, "ts": RNG.permutation(1_000) * 60 + 1_400_000_000}
    run, comments = infer_run_file([parquet(tmp_path, columns)], label="y")
    assert run.data.shuffle is True
    assert comments["data.shuffle"] == "the rows are not in order of ts, so they are shuffled"


def test_without_a_time_a_tenth_of_the_rows_validates_by_hash(tmp_path: Path) -> None:
    columns = {"y": clicks(1_000), "user": np.arange(1_000) % 40}
    run, comments = infer_run_file([parquet(tmp_path, columns)], label="y")
    assert (run.schema.time, run.data.valid_from, run.data.valid_fraction) == (None, None, 0.1)
    assert comments["data.valid_fraction"].startswith("no column orders the rows in time: 10% of the rows validate")


def test_two_columns_of_times_leave_the_order_to_the_user(tmp_path: Path) -> None:
    at = [datetime.datetime(2024, 1, 1) + datetime.timedelta(hours=i) for i in range(300)]
    columns = {"y": clicks(300), "shown": at, "opened": at}
    run, comments = infer_run_file([parquet(tmp_path, columns)], label="y")
    assert run.schema.time is None
    assert comments["schema.time"] == "columns of times: shown, opened; name the one that orders the rows here"
    named, _ = infer_run_file([parquet(tmp_path, columns)], label="y", time="opened")
    assert named.schema.time == "opened"


def test_missing_times_cannot_split_the_rows(tmp_path: Path) -> None:
    at = [None if i % 10 == 0 else datetime.datetime(2024, 1, 1) + datetime.timedelta(hours=i) for i in range(300)]
    run, comments = infer_run_file([parquet(tmp_path, {"y": clicks(300), "at": at})], label="y")
    assert run.data.valid_fraction == 0.1
    assert comments["data.valid_fraction"].startswith("some rows have no time")


def test_the_sample_is_bounded_and_taken_from_all_over_a_file(tmp_path: Path) -> None:
    rows = 20_000
    columns = {"y": clicks(rows), "day": np.repeat(np.arange(20), 1_000), "late": np.arange(rows) >= 19_000}
    for options in ({"row_group_size": 1_000}, {"row_group_size": rows}):
        path = parquet(tmp_path, columns, **options)
        run, comments = infer_run_file([path], label="y", sample_rows=2_000)
        assert " sampled rows of about 20,000 of" in comments[""]
        assert sampled_rows(comments) == pytest.approx(2_000, rel=0.02)
        assert {f.name for f in run.schema.features} == {"day", "late"}


def test_several_files_are_looked_into(tmp_path: Path) -> None:
    for number in range(12):
        columns = {"y": clicks(500), "part": [number] * 500, "user": np.arange(500) % 60}
        parquet(tmp_path, columns, f"{number:02}.parquet")
    run, comments = infer_run_file([str(tmp_path)], label="y")
    assert comments["schema.features.part"].startswith("8 distinct of 4,000 sampled")
    assert comments["train.batch_size"] == "about a fiftieth of 6,000 rows"
    assert run.train.batch_size == 128


def test_the_label_is_described_and_may_be_several_columns(tmp_path: Path) -> None:
    columns = {"a": [0, 1, 1, None] * 50, "b": [0.0] * 200, "user": np.arange(200) % 40}
    run, comments = infer_run_file([parquet(tmp_path, columns)], label=["a", "b"])
    assert run.schema.label == ("a", "b")
    assert comments["schema.label"].splitlines() == [
        "a: 66.67% on average of 150 sampled rows; 25.0% missing",
        "b: 0.00% on average of 200 sampled rows; it is the same everywhere, so AUC is undefined here",
    ]


def test_a_column_that_tells_the_label_is_pointed_out(tmp_path: Path) -> None:
    label = clicks(2_000)
    columns = {"y": label, "outcome": np.where(label == 1, "bought", "left"), "user": np.arange(2_000) % 40}
    _, comments = infer_run_file([parquet(tmp_path, columns)], label="y")
    assert comments["schema.features.outcome"].endswith("is it known before the click?")
    assert "known before" not in comments["schema.features.user"]


@pytest.mark.parametrize(
    ("rows", "epochs", "batch_size", "stop_after"),
    [(500, 20, 64, 2), (60_000, 20, 1024, 2), (600_000, 5, 4096, 2), (5_000_000, 1, 4096, None)],
)
def test_small_data_are_read_more_often_in_smaller_batches(
    rows: int, epochs: int, batch_size: int, stop_after: int | None, tmp_path: Path
) -> None:
    path = parquet(tmp_path, {"y": np.arange(rows) % 2, "user": np.arange(rows) % 41})
    train = infer_run_file([path], label="y", sample_rows=1_000)[0].train
    assert (train.epochs, train.batch_size, train.stop_after) == (epochs, batch_size, stop_after)


def test_a_csv_uses_its_own_markers_of_missing_numbers(tmp_path: Path) -> None:
    lines = ["y,price,country"] + [
        f"{i % 2},{'NA' if i % 4 == 0 else i % 700 + 0.5},{'de' if i % 3 else ''}" for i in range(1_000)
    ]
    (tmp_path / "x.csv").write_text("\n".join(lines))
    run, comments = infer_run_file([str(tmp_path / "x.csv")], label="y")
    assert run.data.null_values == ("NA",)
    assert comments["data.null_values"] == '"NA" among the numbers of price; missing in every column'
    assert run.schema["price"] == Dense("price", standardize=True)
    trained_rows(run)


def test_a_csv_and_its_parquet_twin_have_one_schema(tmp_path: Path) -> None:
    rows = 1_500
    columns = {
        "y": clicks(rows),
        "user_id": RNG.integers(0, 2**40, 60)[RNG.integers(0, 60, rows)],
        "name": [f"n{i % 9}" for i in range(rows)],
        "fee": RNG.normal(size=rows).round(4),
        "at": [datetime.datetime(2024, 1, 1) + datetime.timedelta(minutes=i) for i in range(rows)],
    }
    pyarrow.csv.write_csv(pa.table(columns), tmp_path / "x.csv")
    of_csv, _ = infer_run_file([str(tmp_path / "x.csv")], label="y")
    of_parquet, _ = infer_run_file([parquet(tmp_path, columns)], label="y")
    assert of_csv.schema == of_parquet.schema
    assert of_csv.data.valid_from == of_parquet.data.valid_from
    assert of_csv.train == of_parquet.train


def test_the_criteo_layout_needs_no_header(tmp_path: Path) -> None:
    lines = [
        "\t".join([str(i % 2), *(str(i % (5 + k)) for k in range(13)), *(f"{i % (70 + k):08x}" for k in range(26))])
        for i in range(600)
    ]
    (tmp_path / "day_0").write_text("\n".join(lines) + "\n")
    run, _ = infer_run_file([str(tmp_path / "day_0")], label="label", format="criteo")
    assert [f.name for f in run.schema.features if isinstance(f, Dense)] == [f"I{k}" for k in range(1, 14)]
    assert [f.name for f in run.schema.features if isinstance(f, Categorical)] == [f"C{k}" for k in range(1, 27)]
    trained_rows(run)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        (
            {"label": "yy"},
            DataError,
            r"column 'yy': there is no such column \(did you mean 'y'\?\); give --label one of",
        ),
        (
            {"label": "y", "time": "tim"},
            DataError,
            r"column 'tim': there is no such column; give --time one of the columns",
        ),
        ({"label": "user"}, DataError, r"x.parquet, row 3, column 'user': label 2.* lies outside of \[0, 1\]"),
        ({"label": "name"}, DataError, r"x.parquet, row 1, column 'name': label 'a' is no number"),
        ({"label": "y", "time": "user"}, DataError, "column 'user': holds no times of a known format; name its format"),
        ({"label": "y", "time": "name"}, DataError, "row 1, column 'name': time 'a' does not follow ISO 8601"),
        ({"label": "y", "time": "at", "valid_from": "soon"}, ConfigError, "--valid-from is 'soon', which is no time"),
        ({"label": ["y", "user", "name", "at"]}, DataError, "outside of"),
    ],
)
def test_what_cannot_be_used_is_refused(
    options: dict[str, Any], error: type[Exception], words: str, tmp_path: Path
) -> None:
    at = [datetime.datetime(2024, 1, 1)] * 200
    path = parquet(tmp_path, {"y": [0, 1] * 100, "user": np.arange(200) % 40, "name": ["a", "b"] * 100, "at": at})
    with pytest.raises(error, match=words):
        infer_run_file([path], **options)


def test_a_file_without_features_is_refused_with_the_reasons(tmp_path: Path) -> None:
    with pytest.raises(
        SchemaError,
        match=r"x\.parquet: no column can be a feature: v: the same value on each of 200 sampled rows; give a file",
    ):
        infer_run_file([parquet(tmp_path, {"y": [0, 1] * 100, "v": [1] * 200})], label="y")


def test_columns_without_a_name_are_left_out_as_the_index_that_pandas_writes(tmp_path: Path) -> None:
    lines = [f"{i},{i % 2},{i % 7}," for i in range(200)]
    (tmp_path / "x.csv").write_text("\n".join([",y,user,", *lines]))
    run, comments = infer_run_file([str(tmp_path / "x.csv")], label="y")
    assert [f.name for f in run.schema.features] == ["user"]
    assert comments["schema.features"].splitlines() == [
        "Left out:",
        *["  a column without a name: name it to use it"] * 2,
    ]
    trained_rows(run)


def test_a_file_with_another_separator_is_refused_with_the_option(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("y;user\n" + "0;1\n1;2\n" * 50)
    with pytest.raises(DataError, match=r"column 'y': there is no such column.*name the character .*: --separator"):
        infer_run_file([str(tmp_path / "x.csv")], label="y")


def test_a_file_without_rows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"x.parquet: there are no rows"):
        infer_run_file([parquet(tmp_path, {"y": pa.array([], pa.int8()), "v": pa.array([], pa.int8())})], label="y")


@pytest.mark.parametrize("name", ["criteo_sample_60k/rows.parquet", "frappe_x1/train.parquet"])
def test_real_logs_are_read_as_what_they_are(name: str) -> None:
    path = SAMPLES / name
    if not path.exists():
        pytest.skip(f"{path} is not here")
    run, _ = infer_run_file([str(path)], label="label")
    names = pq.read_schema(path).names[1:]
    kinds = {f.name: type(f) for f in run.schema.features}
    assert kinds == {n: Dense if n.startswith("i") and n[1:].isdecimal() else Categorical for n in names}


def test_a_split_by_time_needs_a_time(tmp_path: Path) -> None:
    path = parquet(tmp_path, {"y": clicks(200), "user": np.arange(200) % 40})
    with pytest.raises(ConfigError, match=r"^--valid-from needs a column of times; name it with --time$"):
        infer_run_file([path], label="y", valid_from="2020-01-01")


def big_csv(folder: Path, rows: int = 60_000, *, quoted: bool = False) -> str:
    note = '"one\ntwo"' if quoted else "one"
    lines = (f"{i % 2},{1_400_000_000 + i},{i // 1000},user{i % 500},{note if i % 2 else 'two'}\n" for i in range(rows))
    path = folder / "big.csv"
    path.write_text("y,ts,day,user,note\n" + "".join(lines))
    return str(path)


def test_a_large_csv_is_looked_into_all_over(tmp_path: Path) -> None:
    run, comments = infer_run_file([big_csv(tmp_path)], label="y", sample_rows=8_000)
    assert sampled_rows(comments) == pytest.approx(8_000, rel=0.02)
    share = time_of(str(run.data.valid_from), None, "") / 10**9 - 1_400_000_000
    assert share == pytest.approx(54_000, rel=0.02)
    assert run.schema["day"] == Categorical("day", dtype="int64")
    sample_days = int(comments["schema.features.day"].split()[0])
    assert sample_days >= 10
    assert run.train.batch_size == 1024


def test_a_csv_with_line_breaks_in_values_is_read_from_its_start(tmp_path: Path) -> None:
    run, comments = infer_run_file([big_csv(tmp_path, quoted=True)], label="y", sample_rows=8_000)
    assert run.data.valid_from is None
    assert comments["data.valid_fraction"].startswith("only the first rows were looked at")
    assert run.schema["note"] == Categorical("note", dtype="string", keep_strings=True)


def test_a_bad_label_deep_in_a_csv_is_named_by_its_place(tmp_path: Path) -> None:
    path = Path(big_csv(tmp_path))
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines[:50_000], *(line.replace("1,", "2,", 1) for line in lines[50_000:])]))
    with pytest.raises(DataError, match=r"big.csv from byte \d+, row \d+, column 'y': label 2.* lies outside"):
        infer_run_file([str(path)], label="y", sample_rows=8_000)


def test_a_compressed_csv_is_read_from_its_start(tmp_path: Path) -> None:
    text = Path(big_csv(tmp_path)).read_bytes()
    (tmp_path / "x.csv.gz").write_bytes(gzip.compress(text))
    run, comments = infer_run_file([str(tmp_path / "x.csv.gz")], label="y", sample_rows=8_000)
    assert " of about" not in comments[""]
    assert (run.train.epochs, run.data.valid_from) == (1, None)
