"""Batches, orders, resuming, twins; and nothing that runs or is open after a source is done."""

from __future__ import annotations

import gc
import os
import signal
import threading

import numpy as np
import pyarrow as pa
import pytest

from sfctr.data import epoch_order, open_source
from sfctr.data import spool as spool_module
from sfctr.data.order import SPAN
from sfctr.spec.errors import CapacityError, ConfigError, DataError
from sfctr.spec.runfile import Data
from sfctr.spec.schema import Bag, Categorical, Dense, Schema, Sequence

SCHEMA = Schema(
    label=("y", "z"),
    weight="w",
    keep=("a",),
    features=[
        Dense("x"),
        Categorical("a"),
        Bag("l", weights="lw", separator="|"),
        Sequence("s", separator="|", max_length=2),
    ],
)


def columns(rows: int) -> dict[str, list]:
    rng = np.random.default_rng(rows)
    lengths = rng.integers(0, 4, rows)
    return {
        "y": [None if r < 0.1 else int(r < 0.3) for r in rng.random(rows)],
        "z": [round(float(r), 2) for r in rng.random(rows)],
        "w": [round(float(r), 3) for r in rng.random(rows)],
        "x": [None if r < 0.1 else round(float(r) * 100, 2) for r in rng.random(rows)],
        "a": [None if i % 17 == 0 else int(i) for i in rng.integers(0, 2**40, rows)],
        "l": ["|".join(str(v) for v in rng.integers(0, 99, n)) for n in lengths],
        "lw": ["|".join(str(round(float(v), 2)) for v in rng.random(n)) for n in lengths],
        "s": ["|".join(f"t{v}" for v in rng.integers(0, 99, n)) for n in lengths],
    }


def bits(batches) -> list:
    """Everything of every batch, comparable."""
    found = []
    for b in batches:
        arrays = [b.labels, b.label_mask, b.weight, b.rows, *b.dense.values(), *b.keep.values()]
        arrays += [a for k in b.keys.values() for a in (k.keys, k.offsets, k.nulls, k.weights)]
        found.append([None if a is None else (a.dtype, a.shape, a.tobytes()) for a in arrays])
    return found


def opened(data, **more):
    return open_source(data, SCHEMA, **{"batch_size": 100, **more})


@pytest.fixture
def twins(parquet, text_file):
    """The same rows as Parquet and as CSV."""

    def write(rows):
        data = columns(rows)
        lines = [list(data), *zip(*data.values(), strict=True)]
        return parquet(data, row_group_size=900), text_file([list(line) for line in lines])

    return write


def test_batches_are_full_but_for_the_last(twins):
    for shuffle in (False, True):
        with opened(twins(1234)[0], shuffle=shuffle) as source:
            assert [b.size for b in source] == [100] * 12 + [34]
            assert source.num_rows == 1234 and source.batch_size == 100


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_csv_and_its_parquet_twin_give_the_same_batches(twins, shuffle):
    first, second = twins(20_000)
    found = []
    for path in (first, second):
        with opened(path, shuffle=shuffle, seed=3) as source:
            found.append(bits(source.batches(1)))
    assert found[0] == found[1]


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_sample_is_the_first_batch_of_the_input_and_changes_nothing(twins, shuffle):
    path = twins(1234)[0]
    with opened(path, shuffle=shuffle) as source, opened(path, shuffle=False) as in_order:
        (first, *_) = bits([source.sample()])
        assert first == bits(in_order.batches())[0]
        sampled = bits(source.batches(1))
    with opened(path, shuffle=shuffle) as source:
        assert sampled == bits(source.batches(1))


def test_shuffled_rows_follow_the_epochs_order(twins):
    path = twins(2000)[0]
    for seed, epoch in ((0, 0), (0, 1), (5, 1)):
        with opened(path, shuffle=True, seed=seed) as source:
            assert (
                np.concatenate([b.rows for b in source.batches(epoch)]).tolist()
                == epoch_order(seed, epoch, 2000).tolist()
            )


@pytest.mark.parametrize("shuffle", [False, True])
def test_shuffled_batches_hold_the_rows_of_the_file_whole(twins, shuffle):
    """Each row carries all of its own columns with it."""
    path = twins(3000)[0]
    with opened(path, shuffle=False, batch_size=1) as source:
        one_by_one = bits(source)
    with opened(path, shuffle=shuffle, batch_size=1) as source:
        batches = list(source)
    assert [one_by_one[int(b.rows[0])] for b in batches] == bits(batches)


@pytest.mark.parametrize("options", [Data(threads=1), Data(threads=3), Data(memory=1), Data(memory="200KB", threads=2)])
def test_neither_threads_nor_memory_change_a_batch(twins, options, tmp_path):
    path = twins(20_000)[1]
    for shuffle in (False, True):
        with opened(path, shuffle=shuffle) as source:
            expected = bits(source.batches(1))
        with opened(path, shuffle=shuffle, options=options, spool_dir=str(tmp_path / "spool")) as source:
            assert bits(source.batches(1)) == expected
            assert bits(source.batches(1)) == expected


@pytest.mark.parametrize("start", [0, 1, 99, 100, 950, 1999, 2000, 5000])
@pytest.mark.parametrize("shuffle", [False, True])
def test_an_epoch_is_resumed_at_any_row(twins, shuffle, start):
    with opened(twins(2000)[0], shuffle=shuffle) as source:
        whole = np.concatenate([b.rows for b in source.batches(4)])
        rest = list(source.batches(4, start_row=start))
        assert [row for b in rest for row in b.rows.tolist()] == whole[start:].tolist()
        assert {b.size for b in rest[:-1]} <= {100}


def test_an_epoch_longer_than_a_span_is_read_and_resumed():
    rows = SPAN + 5000
    table = pa.table({"a": np.arange(rows), "y": np.zeros(rows, np.int8)})
    schema = Schema(label="y", features=[Categorical("a")])
    for options in (Data(), Data(memory=1)):
        with open_source(table, schema, batch_size=10_000, options=options) as source:
            batches = list(source)
            assert [b.size for b in batches] == [10_000] * (rows // 10_000) + [rows % 10_000]
            order = epoch_order(0, 0, rows)
            assert np.array_equal(np.concatenate([b.rows for b in batches]), order)
            assert np.array_equal(np.concatenate([b.keys["a"].keys for b in batches]), order.astype(np.uint64))
            rest = list(source.batches(0, start_row=SPAN - 3))
            assert np.array_equal(np.concatenate([b.rows for b in rest]), order[SPAN - 3 :])


def test_epochs_and_seeds_have_orders_of_their_own(twins):
    path = twins(2000)[0]
    orders = set()
    for seed in (0, 1):
        with opened(path, shuffle=True, seed=seed) as source:
            orders |= {tuple(row for b in source.batches(epoch) for row in b.rows.tolist()) for epoch in (0, 1)}
    assert len(orders) == 4


def test_spooling_is_said_once_and_leaves_nothing_behind(twins, tmp_path, notices, open_handles):
    path, folder = twins(30_000)[0], tmp_path / "spool"
    before = open_handles()
    with opened(path, shuffle=True, options=Data(memory=1000), spool_dir=folder) as source:
        for epoch in range(2):
            list(source.batches(epoch))
        assert open_handles() == before + 1 and list(folder.iterdir()) == []
    assert open_handles() == before
    assert notices() == [
        f"shuffling needs more than data.memory, 1,000 bytes: converted rows go to a temporary file in {folder}"
    ]


def test_a_full_disk_is_said(twins, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(spool_module.os, "pwrite", full)
    with (
        opened(twins(500)[0], shuffle=True, options=Data(memory=1)) as source,
        pytest.raises(
            CapacityError, match=r"could not grow: No space left on device; free disk space, or raise data.memory"
        ),
    ):
        list(source)


def test_rows_out_of_time_order_are_said_once_where_they_begin(text_file, notices, parquet):
    path = text_file("a,y,t\n1,0,2014-01-01\n2,0,2014-01-03\n3,1,2014-01-02\n4,1,\n5,0,2014-01-01\n")
    schema = Schema(label="y", time="t", features=[Categorical("a")])
    for _ in range(2):
        with open_source(path, schema) as source:
            list(source), list(source)
    assert notices() == [
        f"rows are not in order of the time column 't', first at {path}, row 3; they are read in file order"
    ]
    for more in ({"shuffle": True}, {"labels": "none"}):
        with open_source(
            parquet({"a": [1, 2], "y": [0, 0], "t": ["2014-01-02", "2014-01-01"]}), schema, **more
        ) as source:
            list(source)
    assert len(notices()) == 1


def threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("sfctr")]


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("data_threads", [1, 3])
def test_no_thread_or_handle_is_left_however_reading_ends(twins, shuffle, data_threads, open_handles):
    path = twins(20_000)[1]
    list(opened(path))  # what imports and pools open once is open now
    before = open_handles()

    def source():
        return opened(path, shuffle=shuffle, options=Data(threads=data_threads, memory=1), batch_size=10)

    exhausted = source()
    list(exhausted)
    assert threads() == []
    exhausted.close()

    closed = source()
    batches = closed.batches()
    next(batches)
    assert threads() != []
    batches.close()
    assert threads() == []
    closed.close()

    dropped = source()
    for _ in dropped:
        break
    gc.collect()
    assert threads() == []
    dropped.close()

    raising = source()
    with pytest.raises(KeyError):
        for _ in raising:
            raise KeyError
    gc.collect()
    assert threads() == []
    raising.close()
    del exhausted, closed, batches, dropped, raising
    gc.collect()
    assert open_handles() == before


def test_an_error_in_the_reader_reaches_the_consumer_and_ends_the_threads(text_file, open_handles):
    path = text_file([["a", "y"], *[[i, 0] for i in range(50_000)], ["bad", 0]])
    schema = Schema(label="y", features=[Categorical("a")])
    list(opened_first := open_source(text_file("a,y\n1,0\n", "one.csv"), schema))
    opened_first.close()
    before = open_handles()
    for shuffle in (False, True):
        for data_threads in (1, 3):
            with (
                open_source(path, schema, shuffle=shuffle, options=Data(threads=data_threads)) as source,
                pytest.raises(DataError, match="row 50001, column 'a': 'bad' is no int64 id"),
            ):
                list(source)
            assert threads() == []
    gc.collect()
    assert open_handles() == before


def test_an_interrupt_while_rows_are_still_converted_ends_the_thread():
    endless = ({"a": i, "y": 0} for i in range(10**12))

    def interrupt(number, frame):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        with open_source(endless, Schema(label="y", features=[Categorical("a")]), shuffle=True) as source:
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGUSR1)).start()
            with pytest.raises(KeyboardInterrupt):
                next(source.batches())
            gc.collect()
            assert threads() == []
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_closed_source_gives_no_batches(twins):
    source = opened(twins(10)[0])
    source.close()
    source.close()
    with pytest.raises(RuntimeError, match="closed"):
        next(source.batches())


def test_options_that_cannot_be_are_refused(twins):
    path = twins(10)[0]
    with pytest.raises(ConfigError, match="batch_size is 0 and must be at least 1"):
        opened(path, batch_size=0)
    with opened(path) as source, pytest.raises(ConfigError, match="no feature keeps the strings of 'a'"):
        source.strings("a")


def test_closing_a_source_ends_the_iterators_under_way(twins, open_handles):
    path = twins(20_000)[1]
    list(opened(path))
    before = open_handles()
    for shuffle in (False, True):
        with opened(path, shuffle=shuffle, options=Data(memory=1)) as source:
            batches = [source.batches(epoch) for epoch in range(3)]
            for iterator in batches[:2]:
                next(iterator)
            assert threads() != []
        assert threads() == [] and open_handles() == before
        assert [list(iterator) for iterator in batches] == [[], [], []]
