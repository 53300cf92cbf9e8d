"""Which rows train, which validate and which negatives are kept: the same for every format, order and seed."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from sfctr.data import open_training
from sfctr.spec.errors import ConfigError, DataError
from sfctr.spec.runfile import Data
from sfctr.spec.schema import Categorical, Dense, Schema, TimeColumn

A = Categorical("a")


def rows_of(source) -> set[int]:
    return {row for batch in source for row in batch.rows.tolist()}


def split(options: Data, schema: Schema, **more):
    """Rows of the training part and of the validation part (None: there is none), counts checked."""
    train, valid = open_training(options, schema, batch_size=1000, seed=0, **more)
    with train:
        found = rows_of(train)
        assert train.num_rows == len(found)
        if valid is None:
            return found, None
        with valid:
            held_out = [row for batch in valid for row in batch.rows.tolist()]
            assert held_out == sorted(held_out) and valid.num_rows == len(held_out)
            return found, set(held_out)


def frame(rows=20_000, **columns) -> pa.Table:
    rng = np.random.default_rng(0)
    base = {"a": rng.integers(0, 300, rows), "y": (rng.random(rows) < 0.1).astype(np.int8)}
    return pa.table({**base, **columns})


def schema(**more) -> Schema:
    return Schema(label="y", features=[A], **more)


def test_valid_from_cuts_by_time_strictly(parquet):
    hours = [14102000, 14102823, 14102900, 14102901, 14103000, 14102000]
    path = parquet({"a": list(range(6)), "y": [0, 1] * 3, "hour": hours})
    by_hour = schema(time=TimeColumn("hour", "%y%m%d%H"))
    for bound in ("2014-10-29", "14102900", "2014-10-29T00:00:00Z"):
        assert split(Data(train=(path,), valid_from=bound), by_hour) == ({0, 1, 5}, {2, 3, 4})


def test_a_missing_time_is_refused_where_time_splits(parquet):
    path = parquet({"a": [1, 2], "y": [0, 1], "t": ["2014-10-28", None]})
    with pytest.raises(DataError, match=r"row 2: the time is missing, and data.valid_from splits by it"):
        split(Data(train=(path,), valid_from="2014-10-29"), schema(time="t"))


def test_a_split_by_time_needs_a_time_column_and_a_time(parquet):
    path = parquet({"a": [1], "y": [0], "t": ["2014-10-28"]})
    with pytest.raises(ConfigError, match=r"data.valid_from needs schema.time"):
        split(Data(train=(path,), valid_from="2014-10-29"), schema())
    with pytest.raises(ConfigError, match=r"data.valid_from is 'soon', which is no time"):
        split(Data(train=(path,), valid_from="soon"), schema(time="t"))


def test_a_hash_split_is_the_same_for_every_format_and_seed(parquet, text_file):
    table = frame()
    path = text_file("a,y\n" + "".join(f"{a},{y}\n" for a, y in zip(*table.to_pydict().values(), strict=True)))
    for by in (None, "a"):
        found = []
        for source in (parquet(table.to_pydict()), path):
            found.append(split(Data(train=(source,), valid_fraction=0.2, valid_by=by), schema()))
        texts = table.set_column(0, "a", table["a"].cast(pa.string()))
        found.append(split(Data(valid_fraction=0.2, valid_by=by), schema(), data=texts))
        found.append(split(Data(valid_fraction=0.2, valid_by=by), schema(), data=table.to_pandas()))
        assert all(f == found[0] for f in found)
        train, valid = found[0]
        assert train | valid == set(range(20_000)) and not train & valid
        assert len(valid) / 20_000 == pytest.approx(0.2, abs=0.05)


def test_a_split_by_a_column_keeps_its_values_together():
    table = frame()
    train, valid = split(Data(valid_fraction=0.3, valid_by="a"), schema(), data=table)
    values = table["a"].to_numpy()
    assert not set(values[sorted(train)]) & set(values[sorted(valid)])


def test_separate_validation_files_are_read_under_the_training_schema(text_file, parquet):
    train = text_file("a,y,x\nfirst,0,1\nsecond,1,3\n", "train.csv")
    valid = text_file("a,y,x\n7,0,1\n", "valid.csv")
    features = [A, Dense("x", standardize=True)]
    one, other = open_training(
        Data(train=(train,), valid=(valid,)), Schema(label="y", features=features), batch_size=8, seed=0
    )
    with one, other:
        assert one.schema == other.schema
        assert other.schema["a"].dtype == "string" and other.schema["x"].mean == 2.0
        assert next(other.batches()).dense["x"][0, 0] == -1.0
    with pytest.raises(DataError, match=r"valid.parquet, column 'a': holds int64 values, and strings were needed"):
        list(
            open_training(
                Data(train=(train,), valid=(parquet({"a": [7], "y": [0], "x": [1]}, "valid.parquet"),)),
                Schema(label="y", features=features),
                batch_size=8,
                seed=0,
            )[1]
        )


def test_frames_stand_for_files():
    table = frame(100)
    train, valid = split(Data(), schema(), data=table.slice(0, 60).to_pandas(), valid=table.slice(60))
    assert len(train) == 60 and len(valid) == 40
    assert split(Data(), schema(), data=table) == (set(range(100)), None)
    with pytest.raises(ConfigError, match=r"validation rows are given, and data.valid_from or data.valid_fraction"):
        split(Data(valid_fraction=0.5), schema(), data=table, valid=table)


def test_a_generator_can_be_split():
    rows = frame(1000).to_pylist()
    expected = split(Data(valid_fraction=0.4), schema(), data=rows)
    assert split(Data(valid_fraction=0.4), schema(), data=iter(rows)) == expected


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (Data(valid_from="2030-01-01"), "the validation part has no rows; move data.valid_from, '2030-01-01'"),
        (Data(valid_from="1999-01-01"), "the training part has no rows; move data.valid_from"),
        (Data(valid_fraction=1e-12), "the validation part has no rows; change data.valid_fraction, 1e-12"),
        (Data(valid_fraction=1 - 1e-12), "the training part has no rows; change data.valid_fraction, 0.999"),
    ],
)
def test_a_part_without_rows_is_refused_before_training(options, words):
    table = frame(100, t=["2014-10-28"] * 100)
    with pytest.raises(DataError, match=words):
        split(options, schema(time="t"), data=table)


def test_files_without_rows_are_refused(text_file, parquet):
    empty, full = text_file("a,y\n", "empty.csv"), parquet({"a": [1], "y": [0]})
    with pytest.raises(DataError, match=r"empty.csv: the training part has no rows; name files that have rows"):
        split(Data(train=(empty,)), schema())
    with pytest.raises(DataError, match=r"empty.csv: the validation part has no rows"):
        split(Data(train=(full,), valid=(empty,)), schema())
    nothing = parquet({"a": pa.array([], pa.int64()), "y": pa.array([], pa.int8())}, "nothing.parquet")
    with pytest.raises(DataError, match=r"nothing.parquet: the validation part has no rows"):
        split(Data(train=(full,), valid=(nothing,)), schema())


def test_thinning_keeps_every_positive_and_a_share_of_the_negatives(parquet, text_file):
    table = frame(40_000)
    labels = table["y"].to_numpy()
    options = Data(negatives_keep=0.1, valid_fraction=0.25)
    train, valid = split(options, schema(), data=table)
    whole, same_valid = split(Data(valid_fraction=0.25), schema(), data=table)
    assert valid == same_valid and train < whole
    assert {r for r in whole if labels[r] == 1} == {r for r in train if labels[r] == 1}
    negatives = [sum(labels[r] == 0 for r in part) for part in (train, whole)]
    assert negatives[0] / negatives[1] == pytest.approx(0.1, abs=0.01)
    path = text_file("a,y\n" + "".join(f"{a},{y}\n" for a, y in zip(*table.to_pydict().values(), strict=True)))
    assert split(Data(train=(path,), negatives_keep=0.1, valid_fraction=0.25), schema()) == (train, valid)


def test_only_rows_whose_known_labels_are_all_zero_are_negatives():
    kinds = [(0, 0), (0, None), (None, None), (0.01, 0), (0, 1), (None, 1)]
    rows = [{"a": i, "y": kind[0], "z": kind[1]} for i, kind in enumerate(kinds * 500)]
    both = Schema(label=("y", "z"), features=[A])
    train, _ = split(Data(negatives_keep=0.01), both, data=rows)
    kept = [sum(1 for row in train if row % 6 == kind) for kind in range(6)]
    assert max(kept[:2]) < 30 and kept[2:] == [500] * 4


def test_the_shift_corrects_the_log_odds_of_thinned_rows():
    table = frame(40_000)
    train, valid = open_training(
        Data(negatives_keep=0.1, valid_fraction=0.2), schema(), batch_size=4096, seed=0, data=table
    )
    with train, valid:
        labels = np.concatenate([b.labels[:, 0] for b in train])
        rate = labels.mean()
        logit = math.log(rate / (1 - rate)) + train.log_odds_shift
        assert train.log_odds_shift == math.log(0.1) and valid.log_odds_shift == 0.0
        assert 1 / (1 + math.exp(-logit)) == pytest.approx(table["y"].to_numpy().mean(), rel=0.05)


def test_moments_are_those_of_the_rows_that_train():
    table = pa.table(
        {"a": [1, 2, 3], "y": [0, 1, 1], "x": [1.0, 3.0, 100.0], "t": ["2014-01-01", "2014-01-02", "2014-01-03"]}
    )
    both = Schema(label="y", time="t", features=[A, Dense("x", standardize=True)])
    train, valid = open_training(Data(valid_from="2014-01-03"), both, batch_size=2, seed=0, data=table)
    with train, valid:
        assert (train.schema["x"].mean, train.schema["x"].std) == (2.0, 1.0)
        assert valid.schema == train.schema
        assert next(valid.batches()).dense["x"].tolist() == [[98.0, 0.0]]


def test_a_source_closed_before_the_other_part_leaves_it_readable():
    rows = frame(1000).to_pylist()
    train, valid = open_training(Data(valid_fraction=0.4), schema(), batch_size=64, seed=0, data=iter(rows))
    train.close()
    assert len(rows_of(valid)) == valid.num_rows
    valid.close()


def test_training_follows_the_time_and_shuffles_otherwise():
    table = frame(50_000, t=pd.date_range("2014-01-01", periods=50_000, freq="s"))
    for time, shuffle, ordered in ((None, None, False), ("t", None, True), ("t", True, False), (None, False, True)):
        train, _ = open_training(Data(shuffle=shuffle), schema(time=time), batch_size=500, seed=0, data=table)
        with train:
            assert (next(train.batches()).rows.tolist() == list(range(500))) == ordered
