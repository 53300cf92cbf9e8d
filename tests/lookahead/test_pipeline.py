"""The threads of look-ahead: what they give out, and that they end and leave nothing pinned whatever happens."""

from __future__ import annotations

import gc
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import sfctr
from sfctr.lookahead import pipeline
from sfctr.telemetry import Recorder

pytestmark = pytest.mark.timeout(60)
KEYS = 64


def schema() -> sfctr.Schema:
    return sfctr.Schema(label="y", features=[sfctr.Categorical("item")])


def store_with(tmp_path: Path, *, rows: int | None, policy: str = "lru", keys: int = KEYS) -> sfctr.Store:
    """Rows of one float that begin at 1 and halve at every step; RAM for an index of `keys` and so many rows."""
    table = sfctr.Table("item", dim=1, init=sfctr.Uniform(1.0, 1.0), optimizer=sfctr.SGD(lr=0.5))
    ram = None if rows is None else 24 * keys + 24 * rows
    return sfctr.Store([table], tiers=sfctr.Tiers(ram=ram, policy=policy), directory=tmp_path)  # type: ignore[arg-type]


def stream(batch, one, number: int = 30) -> list[object]:
    """Batches of eight keys; every one shares keys with the ones around it."""
    random = np.random.default_rng(1)
    return [batch({"item": one(random.choice(KEYS, 8, replace=False).tolist())}, 8) for _ in range(number)]


def step(ready) -> None:
    (0.5 * ready.features()["item"].square().sum()).backward()
    ready.step(None)


def expected(batches) -> dict[int, float]:
    rows: dict[int, float] = {}
    for each in batches:
        for key in each.keys["item"].keys.tolist():
            rows[key] = rows.get(key, 1.0) / 2
    return rows


def rows_of(store: sfctr.Store) -> dict[int, float]:
    return {int(k): float(v[0]) for b in store.rows("item") for k, v in zip(b.keys, b.vectors, strict=True)}


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    yield
    gc.collect()
    assert [t.name for t in threading.enumerate() if t.name.startswith("sfctr")] == []


@pytest.mark.parametrize("policy", ["lru", "lfu"])
@pytest.mark.parametrize("window", [0, 1, 3, 40])
@pytest.mark.parametrize("rows", [1, 7, 8, 20, None])
def test_any_window_over_any_ram_gives_the_rows_of_none(tmp_path, batch, one, rows, window, policy) -> None:
    batches = stream(batch, one)
    with store_with(tmp_path, rows=rows, policy=policy) as store:
        for ready in sfctr.Lookahead(batches, store, schema=schema(), window=window):
            step(ready)
        assert rows_of(store) == expected(batches)
        assert store.groups[0].native.num_in_flight == 0
        counts = store.counters()
        assert (counts["requested"], counts["unique"]) == (240, 240)
        if rows is None:
            assert (counts["fetched"], counts["evicted"], counts["scratch"]) == (0, 0, 0)
        else:
            assert counts["evicted"] + counts["scratch"] > 0


def test_a_window_that_does_not_fit_shrinks_and_says_so_once(tmp_path, batch, one, caplog) -> None:
    with store_with(tmp_path, rows=20) as store:
        for ready in sfctr.Lookahead(stream(batch, one), store, schema=schema(), window=10):
            step(ready)
        said = [r.getMessage() for r in caplog.records if "train.window" in r.getMessage()]
        assert len(said) == 1 and "the rows of 11 batches do not fit into tiers.ram" in said[0]
        assert store.counters()["waits"] > 0 and store.counters()["scratch"] == 0


@pytest.mark.parametrize("window", [0, 3])
def test_frames_make_room_for_the_keys_of_a_growing_table(tmp_path, batch, one, window: int, caplog) -> None:
    """Key 0 is in every second batch, so that some batch in flight pins its frame, near the end when frames must go."""
    keys, size, ram = 6000, 20, 24 * 6000 + 24 * 300
    batches = []
    for first in range(0, keys, size):
        has_old = first >= keys // 4 and first % (2 * size) == 0
        fresh = list(range(first, first + size))
        batches.append(batch({"item": one([*fresh, 0] if has_old else fresh)}, size + has_old))
    table = sfctr.Table("item", dim=1, init=sfctr.Uniform(1.0, 1.0), optimizer=sfctr.SGD(lr=0.5))
    with sfctr.Store([table], tiers=sfctr.Tiers(ram=ram), directory=tmp_path) as store:
        most = 0
        for ready in sfctr.Lookahead(batches, store, schema=schema(), window=window):
            step(ready)
            most = max(most, store._budget.used)
        planned = (window + 2) * size
        assert most <= ram + 24 * planned
        assert rows_of(store) == expected(batches)
        assert (store.counters()["shrinks"] > 0) == (window > 0)
    assert not [r for r in caplog.records if "do not fit" in r.getMessage()]


def test_the_buffers_of_the_disk_count_as_ram(tmp_path, batch, one) -> None:
    """They are some 6 MB; rows and keys alone take what the bound leaves once the disk is in use."""
    table, ram = sfctr.Table("item", dim=256, optimizer=sfctr.SGD(lr=0.5)), 64_000_000
    batches = (batch({"item": one(list(range(first, first + 2000)))}, 2000) for first in range(0, 80_000, 2000))
    with sfctr.Store([table], tiers=sfctr.Tiers(ram=ram), directory=tmp_path) as store:
        for ready in sfctr.Lookahead(batches, store, schema=schema()):
            step(ready)
        assert store.counters()["evicted"] > 0
        assert 0.9 * ram < store.memory_bytes() <= ram


def test_a_batch_larger_than_ram_goes_through_the_scratch(tmp_path, batch, one) -> None:
    batches = [batch({"item": one(list(range(KEYS)))}, KEYS), *stream(batch, one)]
    with store_with(tmp_path, rows=3) as store:
        for ready in sfctr.Lookahead(batches, store, schema=schema(), window=2):
            step(ready)
        assert store.counters()["scratch"] > 0
        assert rows_of(store) == expected(batches)


@pytest.mark.parametrize("rows", [9, None])
@pytest.mark.parametrize("window", [0, 1, 8])
def test_an_error_while_reading_comes_after_the_batches_before_it(tmp_path, batch, one, window, rows) -> None:
    batches = stream(batch, one, 5)

    def broken():
        yield from batches
        raise sfctr.DataError("the file ends in the middle of a row")

    with store_with(tmp_path, rows=rows) as store:
        with pytest.raises(sfctr.DataError, match="ends in the middle"):
            for ready in sfctr.Lookahead(broken(), store, schema=schema(), window=window):
                step(ready)
        assert store.steps == 5 and rows_of(store) == expected(batches)
        assert store.groups[0].native.num_in_flight == 0


def test_a_fetching_thread_that_cannot_start_is_an_error_and_no_wait_for_ever(
    tmp_path, batch, one, monkeypatch
) -> None:
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name.endswith("fetcher"):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with store_with(tmp_path, rows=12) as store:
        with pytest.raises(RuntimeError, match="can't start new thread"):
            for ready in sfctr.Lookahead(stream(batch, one), store, schema=schema(), window=4):
                step(ready)
        gc.collect()
        assert store.groups[0].native.num_in_flight == 0


@pytest.mark.parametrize("rows", [9, 30, None])
@pytest.mark.parametrize("window", [1, 8])
def test_an_interrupt_ends_the_threads_and_discards_what_was_ahead(tmp_path, batch, one, window, rows) -> None:
    batches = stream(batch, one)
    with store_with(tmp_path, rows=rows) as store:
        with pytest.raises(KeyboardInterrupt):
            for number, ready in enumerate(sfctr.Lookahead(batches, store, schema=schema(), window=window)):
                if number == 3:
                    raise KeyboardInterrupt
                step(ready)
        gc.collect()
        assert store.groups[0].native.num_in_flight == 0
        assert rows_of(store) == expected(batches[:3])
        for ready in sfctr.Lookahead(batches[3:], store, schema=schema(), window=window):
            step(ready)
        assert rows_of(store) == expected(batches)


@pytest.mark.parametrize("rows", [9, None])
def test_a_ready_that_is_never_finished_holds_no_row_for_good(tmp_path, batch, one, rows) -> None:
    batches = stream(batch, one)
    with store_with(tmp_path, rows=rows) as store:
        steps = iter(sfctr.Lookahead(batches, store, schema=schema(), window=2))
        ready = next(steps)
        ready.features()
        steps.close()
        del steps
        assert not ready.is_open
        with pytest.raises(RuntimeError, match="stepped or discarded already"):
            ready.step(None)
        assert store.groups[0].native.num_in_flight == 0 and rows_of(store) == {}


@pytest.mark.parametrize("rows", [5, 9, None])
@pytest.mark.parametrize("window", [0, 3])
def test_evaluation_in_mid_epoch_reads_what_is_trained_and_moves_nothing(tmp_path, batch, one, window, rows) -> None:
    batches = stream(batch, one)
    everything = batch({"item": one(list(range(KEYS)))}, KEYS)
    with store_with(tmp_path, rows=rows) as store:
        view = sfctr.ReadView(store, schema())
        for number, ready in enumerate(sfctr.Lookahead(batches, store, schema=schema(), window=window)):
            step(ready)
            trained = expected(batches[: number + 1])
            view.reset()
            seen = view.features(everything)["item"][:, 0].tolist()
            assert seen == [trained.get(key, 0.0) for key in range(KEYS)]
            assert view.unseen == {"item": (KEYS - len(trained), KEYS)}
        assert rows_of(store) == expected(batches)


@pytest.mark.parametrize("rows", [5, 9, None])
@pytest.mark.parametrize("window", [0, 3])
def test_a_discarded_step_is_as_if_its_batch_had_not_been(tmp_path, batch, one, window, rows) -> None:
    batches = stream(batch, one)
    with store_with(tmp_path, rows=rows) as store:
        for number, ready in enumerate(sfctr.Lookahead(batches, store, schema=schema(), window=window)):
            if number % 3 == 1:
                with ready:
                    ready.features()["item"].sum().backward()
                continue
            step(ready)
        assert rows_of(store) == expected([b for i, b in enumerate(batches) if i % 3 != 1])


def test_a_disk_that_refuses_comes_out_in_its_place_and_loses_nothing(tmp_path, batch, one) -> None:
    batches = stream(batch, one)
    table = sfctr.Table("item", dim=1, init=sfctr.Uniform(1.0, 1.0), optimizer=sfctr.SGD(lr=0.5))
    tiers = sfctr.Tiers(ram=24 * KEYS + 24 * 20, disk=str(tmp_path))
    with sfctr.Store([table], tiers=tiers) as store:
        [rows] = tmp_path.glob("sfctr-rows-*")
        shutil.rmtree(rows)
        rows.write_text("")  # where a directory was
        done = 0
        with pytest.raises(sfctr.DiskError):
            for ready in sfctr.Lookahead(batches, store, schema=schema(), window=3):
                step(ready)
                done += 1
        assert 0 < done < len(batches) and rows_of(store) == expected(batches[:done])
        assert store.groups[0].native.num_in_flight == 0


class SlowDisk(sfctr.Store):
    """Once rows are on disk a fetch takes until the next batch is planned; the one numbered `fails` then fails."""

    fails = None

    def __init__(self, *args, **options) -> None:
        super().__init__(*args, **options)
        self._changed = threading.Condition()
        self.num_planned = self.num_fetched = self.num_beside = 0

    def plan(self, working_sets, number=0) -> bool:
        planned = super().plan(working_sets, number)
        with self._changed:
            self.num_planned += planned
            self._changed.notify_all()
        return planned

    def fetch(self, working_sets) -> None:
        self.num_fetched += 1
        if self.is_spilling and self.num_fetched < 40:
            with self._changed:
                self.num_beside += self._changed.wait_for(lambda: self.num_planned > self.num_fetched, 0.2)
        if self.num_fetched == self.fails:
            raise sfctr.DiskError("a sector cannot be read")
        super().fetch(working_sets)


def slow_disk(tmp_path: Path) -> SlowDisk:
    table = sfctr.Table("item", dim=1, init=sfctr.Uniform(1.0, 1.0), optimizer=sfctr.SGD(lr=0.5))
    return SlowDisk([table], tiers=sfctr.Tiers(ram=24 * KEYS + 24 * 20), directory=tmp_path)


def test_the_next_batch_is_planned_while_rows_are_read(tmp_path, batch, one) -> None:
    batches = stream(batch, one, 45)
    with slow_disk(tmp_path) as store:
        for ready in sfctr.Lookahead(batches, store, schema=schema(), window=2):
            step(ready)
        assert store.num_beside > 0
        assert rows_of(store) == expected(batches)


def test_a_read_that_fails_comes_after_the_batches_before_it(tmp_path, batch, one) -> None:
    batches = stream(batch, one, 45)
    with slow_disk(tmp_path) as store:
        store.fails = 30
        with pytest.raises(sfctr.DiskError, match="a sector"):
            for ready in sfctr.Lookahead(batches, store, schema=schema(), window=2):
                step(ready)
        assert store.num_beside > 0 and store.steps == 29 and rows_of(store) == expected(batches[:29])
        assert store.groups[0].native.num_in_flight == 0


def hanging(batches, gate: threading.Event, *, after: int):
    for number, each in enumerate(batches):
        if number == after:
            gate.wait()
        yield each


def test_a_reader_that_hangs_is_left_and_touches_nothing_when_it_comes_back(tmp_path, batch, one, caplog, monkeypatch):
    monkeypatch.setattr(pipeline, "CLOSE_TIMEOUT_S", 0.1)
    batches, gate = stream(batch, one), threading.Event()
    with Recorder() as recorder, store_with(tmp_path, rows=20) as store:
        steps = iter(sfctr.Lookahead(hanging(batches, gate, after=3), store, schema=schema(), window=2))
        for _ in range(3):
            step(next(steps))
        [reader] = [t for t in threading.enumerate() if t.name == "sfctr-lookahead-reader"]
        steps.close()
        assert "the reader has not given a batch for 0.1 s since it was asked to end" in caplog.text
        assert rows_of(store) == expected(batches[:3])
        assert store.groups[0].native.num_in_flight == 0
        for ready in sfctr.Lookahead(batches[3:], store, schema=schema(), window=2):
            step(ready)
        unique_s = recorder.seconds()["unique"]
        gate.set()
        reader.join()
        assert recorder.seconds()["unique"] == unique_s
        assert rows_of(store) == expected(batches)
        assert store.groups[0].native.num_in_flight == 0
