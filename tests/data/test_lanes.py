"""The parts of batches that ranks read by lanes, put together, are the batches of one process; and who reads what."""

from __future__ import annotations

import os
from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfctr.data import lanes_of, open_source, open_training
from sfctr.data import order as order_module
from sfctr.data import source as source_module
from sfctr.data import spool as spool_module
from sfctr.data.frames import ArrowScan
from sfctr.data.order import lane_bounds
from sfctr.data.rows import cut, joined
from sfctr.data.survey import counted
from sfctr.spec.batch import Batch, Keys
from sfctr.spec.errors import DataError
from sfctr.spec.runfile import Data
from sfctr.spec.schema import (
    Bag,
    Bucket,
    Categorical,
    Cross,
    Dense,
    Schema,
    Sequence,
    TimeColumn,
    TimePart,
)

SCHEMA = Schema(
    label=("y", "z"),
    weight="w",
    keep=("id",),
    time=TimeColumn("t", format="s"),
    features=[
        Dense("x", standardize=True),
        Categorical("id", dtype="int64"),
        Bucket("level", column="x", boundaries=(10.0, 50.0)),
        Cross("pair", of=("id", "hour_id"), dtypes=("int64", "int64")),
        TimePart("hour", column="t", part="hour"),
        Bag("tags", dtype="int64"),
        Bag("rated", dtype="int64", weights="stars"),
        Sequence("past", dtype="int64", max_length=2),
    ],
)
SHARES = ((16,), (4, 12), (16, 0), (0, 16), (5, 6, 5), (1, 2, 3, 10))


def table(rows: int) -> pa.Table:
    return pa.table(
        {
            "y": pa.array([None if i % 11 == 0 else i % 5 // 4 for i in range(rows)], pa.int8()),
            "z": pa.array([i % 3 // 2 for i in range(rows)], pa.int8()),
            "w": pa.array([1.0 + i % 4 for i in range(rows)]),
            "t": pa.array(list(range(rows)), pa.int64()),
            "x": pa.array([None if i % 13 == 0 else float(i % 97) for i in range(rows)]),
            "id": pa.array([None if i % 17 == 0 else i * 2654435761 for i in range(rows)], pa.int64()),
            "hour_id": pa.array([i % 7 for i in range(rows)], pa.int64()),
            "tags": pa.array([list(range(i % 4)) for i in range(rows)], pa.list_(pa.int64())),
            "rated": pa.array([list(range(i % 3)) for i in range(rows)], pa.list_(pa.int64())),
            "stars": pa.array([[0.5] * (i % 3) for i in range(rows)], pa.list_(pa.float64())),
            "past": pa.array([list(range(i % 5)) for i in range(rows)], pa.list_(pa.int64())),
        }
    )


def arrays(batch: Batch) -> list:
    found = [batch.labels, batch.label_mask, batch.weight, batch.rows, batch.time]
    found += [*batch.dense.values(), *batch.keep.values()]
    return found + [a for k in batch.keys.values() for a in (k.keys, k.offsets, k.weights, k.nulls)]


def bits(batch: Batch) -> list:
    return [None if a is None else (a.dtype, a.shape, a.tobytes()) for a in arrays(batch)]


def kinds(batch: Batch) -> list:
    """dtype and shape beyond rows; nulls of a one-key feature come and go with its values."""
    found = [batch.labels, batch.label_mask, batch.weight, batch.rows, batch.time]
    found += [*batch.dense.values(), *batch.keep.values()]
    found += [a for k in batch.keys.values() for a in (k.keys, k.offsets, k.weights)]
    return [None if a is None else (a.dtype, a.shape[1:]) for a in found]


def together(parts: list[Batch]) -> Batch:
    """The batch whose parts the ranks have: their rows, one after the other, by places."""
    assert len({part.whole for part in parts}) == 1
    places = np.concatenate([part.places for part in parts])
    assert np.array_equal(np.sort(places), np.arange(parts[0].whole))
    bare = [cut(with_no_whole(part), at, at + 1) for part in parts for at in range(part.size)]
    return joined([bare[at] for at in np.argsort(places)])


def with_no_whole(part: Batch) -> Batch:
    return Batch(**{**{name: getattr(part, name) for name in Batch.__slots__}, "whole": None, "places": None})


@pytest.fixture
def small_blocks(monkeypatch):
    for module in (order_module, source_module, spool_module):
        monkeypatch.setattr(module, "BLOCK", 8)
        if hasattr(module, "SPAN"):
            monkeypatch.setattr(module, "SPAN", 8 * 16)


def in_parts(make, shares, epoch=0, start_row=0) -> list[list[Batch]]:
    """The batches of every rank, one opened after the other."""
    found = []
    for rank in range(len(shares)):
        with make(lanes_of(rank, len(shares), shares)) as source:
            found.append(list(source.batches(epoch, start_row=start_row)))
    return found


@pytest.mark.parametrize("shares", SHARES)
@pytest.mark.parametrize("shuffle", [False, True])
def test_the_parts_of_all_ranks_are_the_batch_of_one_process(small_blocks, shuffle, shares):
    rows = table(333)

    def make(lanes):
        return open_source(rows, SCHEMA, batch_size=40, shuffle=shuffle, seed=3, lanes=lanes, options=Data(threads=2))

    with make(None) as source:
        whole = list(source.batches(1, start_row=80))
    assert whole[0].whole is None and whole[0].places is None
    parts = in_parts(make, shares, 1, 80)
    assert [bits(together(list(of_batch))) for of_batch in zip(*parts, strict=True)] == [bits(b) for b in whole]
    for of_rank, share in zip(parts, shares, strict=True):
        for part in of_rank:
            assert kinds(part) == kinds(whole[0]) and (np.diff(part.places) > 0).all()
            assert abs(part.size - part.whole * share / 16) < 16


RULES = {
    "thinned": {"negatives_keep": 0.3},
    "hashed": {"valid_fraction": 0.2},
    "hashed by column": {"valid_fraction": 0.2, "valid_by": "hour_id"},
    "by time": {"valid_from": "250"},
}


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("rule", RULES)
def test_rows_that_a_rule_leaves_out_change_no_part(small_blocks, rule, shuffle, threads):
    options = Data(shuffle=shuffle, threads=threads, **RULES[rule])

    def make(lanes):
        train, held_out = open_training(options, SCHEMA, batch_size=32, seed=1, data=table(400), lanes=lanes)
        if held_out is not None:
            held_out.close()
        return train

    with make(None) as source:
        whole, num_rows = list(source.batches(2, start_row=32)), source.num_rows
    parts = in_parts(make, (4, 12), 2, 32)
    assert [bits(together(list(of_batch))) for of_batch in zip(*parts, strict=True)] == [bits(b) for b in whole]
    assert sum(part.whole for part in parts[0]) == num_rows - 32


@pytest.mark.parametrize("kind", ["csv", "generator", "dicts", "pandas", "csvs"])
@pytest.mark.parametrize("shuffle", [False, True])
def test_parts_of_inputs_that_nothing_counts_beforehand_fit_each_other(small_blocks, text_file, kind, shuffle):
    lines = [{"id": i * 37, "x": i % 5, "y": i % 2} for i in range(200)]
    schema = Schema(label="y", features=[Categorical("id"), Dense("x", standardize=True)])

    def csv(some, name):
        return str(text_file([["id", "x", "y"], *(list(line.values()) for line in some)], name))

    make_data = {
        "csv": lambda: csv(lines, "a.csv"),
        "csvs": lambda: [csv(lines[:50], "a.csv"), csv(lines[50:], "b.csv")],
        "generator": lambda: iter(lines),
        "dicts": lambda: (dict(line) for line in lines),
        "pandas": lambda: pa.Table.from_pylist(lines).to_pandas(),
    }[kind]

    def make(lanes):
        return open_source(make_data(), schema, batch_size=30, shuffle=shuffle, lanes=lanes)

    with make(None) as source:
        whole = [bits(batch) for batch in source.batches(1)]
    parts = in_parts(make, (5, 6, 5), 1)
    assert [bits(together(list(of_batch))) for of_batch in zip(*parts, strict=True)] == whole


def test_the_empty_batch_is_like_any_other_of_its_source():
    with open_source(table(50), SCHEMA, batch_size=50, shuffle=False) as source:
        batch = next(source.batches())
        empty = source._converter.empty()
        assert empty.size == 0 and kinds(empty) == kinds(batch) and bits(cut(batch, 0, 0)) == bits(empty)
    scoring = Schema(label="none", features=[Categorical("id", dtype="int64")], keep=("gone",))
    with open_source(table(50), scoring, labels="none") as source:
        assert kinds(source._converter.empty()) == kinds(next(source.batches()))


def test_a_rank_without_lanes_reads_nothing_of_a_shuffled_file(small_blocks, parquet, monkeypatch):
    path = parquet(table(100))
    read = recorded_groups(monkeypatch)
    with open_source(path, SCHEMA_OF_IDS, batch_size=30, shuffle=True, lanes=range(0)) as source:
        assert [(batch.size, batch.whole) for batch in source] == [(0, 30), (0, 30), (0, 30), (0, 10)]
    assert read == []


SCHEMA_OF_IDS = Schema(label="z", features=[Categorical("id", dtype="int64")])


def recorded_groups(monkeypatch) -> list[int]:
    """The row groups that are read from now on, in turn."""
    read: list[int] = []
    iter_batches = pq.ParquetFile.iter_batches

    def recording(self, size, *, row_groups, **more):
        read.extend(row_groups)
        return iter_batches(self, size, row_groups=row_groups, **more)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", recording)
    return read


def test_ranks_read_no_row_group_twice_where_lanes_end_with_them(parquet, monkeypatch):
    paths = [parquet(table(800), f"{name}.parquet", row_group_size=100) for name in ("a", "b")]  # 16 groups: one a lane
    for shares in ((4, 12), (5, 6, 5), (16, 0)):
        counts = Counter()
        for rank, share in enumerate(shares):
            read = recorded_groups(monkeypatch)
            with open_source(
                paths, SCHEMA_OF_IDS, batch_size=64, shuffle=True, lanes=lanes_of(rank, len(shares), shares)
            ) as source:
                rows = sum(batch.size for epoch in range(2) for batch in source.batches(epoch))
            assert len(read) == share and rows == 2 * 100 * share
            counts.update(read)
            monkeypatch.undo()
        assert counts == dict.fromkeys(range(8), 2)


def test_a_rank_reads_the_row_groups_that_its_lanes_touch_and_no_others(parquet, monkeypatch):
    path = parquet(table(1000), row_group_size=90)
    read = recorded_groups(monkeypatch)
    with open_source(path, SCHEMA_OF_IDS, batch_size=64, shuffle=True, lanes=range(5, 7)) as source:
        list(source)
    first, stop = lane_bounds(1000)[[5, 7]]
    assert read == [group for group in range(12) if group * 90 < stop and (group + 1) * 90 > first]


def test_streaming_goes_on_without_reading_the_row_groups_before(parquet, monkeypatch):
    path = parquet(table(1000), row_group_size=100)
    read = recorded_groups(monkeypatch)
    with open_source(path, SCHEMA_OF_IDS, batch_size=50, shuffle=False) as source:
        assert next(source.batches(start_row=750)).rows.tolist() == list(range(750, 800))
    assert read == [7, 8, 9]


def test_a_shuffled_rank_converts_rows_of_its_lanes_alone(small_blocks, text_file, monkeypatch):
    rows = [[i, i % 2] for i in range(160)]
    path = text_file([["id", "y"], *rows])
    schema = Schema(label="y", features=[Categorical("id", dtype="string", keep_strings=True)])
    for shuffle, expected in ((True, range(40, 60)), (False, [i for i in range(160) if i % 16 in (4, 5)])):
        with open_source(path, schema, batch_size=30, shuffle=shuffle, lanes=range(4, 6)) as source:
            list(source)
            assert sorted(source.strings("id").values(), key=int) == [str(i) for i in expected]


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_bad_value_is_refused_by_the_rank_that_has_its_row(text_file, shuffle):
    path = text_file([["id", "x", "y"], *[[i, "oops" if i == 70 else i, i % 2] for i in range(160)]])
    schema = Schema(label="y", features=[Categorical("id"), Dense("x")])
    refused = []
    for rank in range(4):
        with open_source(path, schema, shuffle=shuffle, lanes=lanes_of(rank, 4)) as source:
            try:
                list(source)
            except DataError as error:
                refused.append((rank, str(error)))
    ((rank, words),) = refused
    assert rank == (1 if shuffle else 70 % 16 // 4)
    assert "rows.csv, row 71, column 'x'" in words and "'oops'" in words


def test_an_input_that_gives_fewer_rows_than_were_counted_is_refused(text_file):
    schema = Schema(label="y", features=[Categorical("id")])
    path = text_file([["id", "y"], *[[i, i % 2] for i in range(160)]])
    with open_source(path, schema, shuffle=True, lanes=range(8, 16)) as source:
        text_file([["id", "y"], *[[i, i % 2] for i in range(100)]])
        with pytest.raises(DataError, match=r"rows.csv: it gave 100 rows, and more of them when it was opened"):
            list(source)


@pytest.mark.parametrize("rule", [{}, {"negatives_keep": 0.5}])
def test_a_rank_opens_no_file_beyond_its_rows(text_file, rule):
    paths = [text_file([["id", "y"], *[[i, i % 2] for i in range(100)]], name) for name in ("a.csv", "b.csv")]
    schema = Schema(label="y", features=[Categorical("id", dtype="int64")])
    options = Data(train=tuple(paths), shuffle=True, **rule)
    source, _ = open_training(options, schema, batch_size=50, seed=0, lanes=range(4))
    with source:
        os.unlink(paths[1])
        assert 0 < sum(batch.size for batch in source) <= 52


def test_a_scan_of_a_frame_gives_the_rows_that_are_needed_alone():
    for within, expected in (((3, 7), [3, 4, 5, 6]), ((8, 99), [8, 9]), ((12, 20), []), ((5, 5), [])):
        chunks = list(ArrowScan(pa.table({"a": range(10)})).chunks(["a"], within=within))
        assert [row for chunk in chunks for row in range(chunk.position, chunk.position + chunk.size)] == expected
        assert [value for chunk in chunks for value in chunk.arrays["a"].to_pylist()] == expected


def test_rows_that_are_counted_already_are_not_read_to_be_counted():
    scan = ArrowScan(pa.table({"a": range(10)}))
    scan.chunks = None
    assert counted(scan, 1) == 10


def test_a_file_without_any_weighted_id_takes_no_weights_from_the_next(parquet):
    paths = [
        parquet({"bag": pa.nulls(3), "y": [0, 1, 1]}, "a.parquet"),
        parquet({"bag": ["7:0.5", "8:2"], "y": [0, 1]}, "b.parquet"),
    ]
    schema = Schema(label="y", features=[Bag("bag", dtype="int64", separator="|", weight_separator=":")])
    with open_source(paths, schema, shuffle=False) as source:
        (batch,) = source
        assert batch.keys["bag"].keys.tolist() == [7, 8] and batch.keys["bag"].weights.tolist() == [0.5, 2.0]


def test_to_go_on_behind_the_last_row_leaves_the_number_of_rows_known(parquet):
    with open_source(parquet(table(100)), SCHEMA_OF_IDS, shuffle=False) as source:
        assert list(source.batches(start_row=100)) == [] and source.num_rows == 100


def test_a_rank_sees_that_times_go_back_in_rows_of_others(notices):
    rows = pa.table({"id": range(32), "z": [0, 1] * 16, "t": [0, 5, 3, *range(6, 35)]})
    schema = Schema(label="z", time=TimeColumn("t", format="s"), features=[Categorical("id", dtype="int64")])
    with open_source(rows, schema, lanes=range(10, 12)) as source:
        list(source)
    assert ["not in order of the time column 't', first at Arrow table, row 3" in words for words in notices()] == [
        True
    ]


def test_a_cut_of_a_part_counts_rows_of_the_whole():
    keys = {"id": Keys(keys=np.array([10, 13, 14], np.uint64))}
    part = Batch(
        size=3,
        keys=keys,
        labels=np.zeros((3, 0), np.float32),
        label_mask=np.zeros((3, 0), np.bool_),
        rows=np.array([10, 13, 14]),
        whole=6,
        places=np.array([0, 3, 4]),
    )
    middle = cut(part, 1, 4)
    assert middle.size == 1 and middle.whole == 3 and middle.places.tolist() == [2] and middle.rows.tolist() == [13]
    again = joined([cut(part, 0, 1), middle, cut(part, 4, 6)])
    assert again.whole == 6 and again.places.tolist() == [0, 3, 4] and again.keys["id"].keys.tolist() == [10, 13, 14]


@settings(max_examples=40)
@given(
    num_rows=st.integers(1, 300),
    batch_size=st.integers(1, 70),
    cuts=st.lists(st.integers(0, 16), max_size=4),
    seed=st.integers(-3, 3),
    epoch=st.integers(0, 3),
    start=st.integers(0, 310),
    shuffle=st.booleans(),
)
def test_every_row_comes_once_an_epoch_for_any_number_of_ranks(num_rows, batch_size, cuts, seed, epoch, start, shuffle):
    shares = tuple(np.diff([0, *sorted(cuts), 16]).tolist())
    rows = pa.table({"id": np.arange(num_rows), "y": np.zeros(num_rows, np.int8)})
    schema = Schema(label="y", features=[Categorical("id", dtype="int64")])
    with pytest.MonkeyPatch.context() as patch:
        for module in (order_module, source_module, spool_module):
            patch.setattr(module, "BLOCK", 4)
        for module in (order_module, source_module):
            patch.setattr(module, "SPAN", 4 * 16)

        def make(lanes):
            return open_source(rows, schema, batch_size=batch_size, seed=seed, shuffle=shuffle, lanes=lanes)

        with make(None) as source:
            whole = np.concatenate([np.zeros(0, np.int64), *(b.rows for b in source.batches(epoch))])[start:]
        parts = in_parts(make, shares, epoch, start)
    ours = [
        np.concatenate([b.rows for b in of_batch])[np.argsort(np.concatenate([b.places for b in of_batch]))]
        for of_batch in zip(*parts, strict=True)
    ]
    assert np.concatenate([np.zeros(0, np.int64), *ours]).tolist() == whole.tolist()
    assert [len(found) for found in ours] == [
        len(whole[at : at + batch_size]) for at in range(0, len(whole), batch_size)
    ]
    for of_rank, share in zip(parts, shares, strict=True):
        assert share or not any(b.size for b in of_rank)
        assert all(np.array_equal(b.keys["id"].keys, b.rows.astype(np.uint64)) for b in of_rank)
