"""A snapshot is the rows as they were when it began, all of them or those that changed, whatever training did since."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

import sfctr
from sfctr import _native
from sfctr.spec.batch import Batch, Keys
from sfctr.store.group import snapshot_bytes

Rows = dict[tuple[int, int], tuple[int, bytes]]
"""Native table and key: the step that trained the row last, and the bits of its record."""

HYPER = np.full((1, len(_native.hyper_columns())), 0.5)


def make(
    *, ram: int | None = None, disk: Path | None = None, expires: int = 0, kept_bytes: int = 1 << 20
) -> _native.RowGroup:
    """One table of dim 4, Adagrad; with `expires` a row lives for so many steps that do not train it."""
    rule = _native.MembershipRule(expire_after_steps=expires) if expires else None
    table = _native.TableInit(1, 2, "uniform", -1.0, 1.0, membership=rule)
    budget = None if ram is None else _native.Budget(ram)
    directory = None if disk is None else str(disk)
    return _native.RowGroup(4, False, "adagrad", None, [table], budget, directory, snapshot_bytes=kept_bytes)


class Trainer:
    """Steps that reach each of their keys once."""

    def __init__(self, group: _native.RowGroup) -> None:
        self.group = group
        self.steps = 0

    def train(self, *keys: int) -> None:
        ids = np.array(keys, dtype=np.uint64)
        ws = _native.WorkingSet(1, ids.size, [_native.FeatureKeys(0, "one", ids)])
        self.group.locate(ws, train=True)
        self.group.settle(ws)
        self.steps += 1
        gradient = np.full(ids.size * 4, self.steps, dtype=np.float32)
        self.group.backward(ws, 0, ids.size, [gradient], [])
        self.group.update(ws, self.steps, 1.0, HYPER)


def exported(group: _native.RowGroup) -> Rows:
    rows: Rows = {}
    for table in (0, 1):
        start: int | None = 0
        while start is not None:
            keys, records, start = group.export_rows(table, start, 100)
            last = group.last_trained(table, keys)
            rows |= rows_of(table, keys, last, records)
    return rows


def rows_of(table: int, keys: np.ndarray, last: np.ndarray, records: np.ndarray) -> Rows:
    steps = last if last.size else np.zeros(keys.size, dtype=np.uint32)
    return {
        (table, int(key)): (int(step), record.tobytes()) for key, step, record in zip(keys, steps, records, strict=True)
    }


def taken(group: _native.RowGroup, count: int = 7) -> Rows:
    rows: Rows = {}
    while (some := group.take_snapshot(count)) is not None:
        assert 0 < some[1].size <= count
        found = rows_of(*some)
        assert not found.keys() & rows.keys()
        rows |= found
    return rows


def keep(group: _native.RowGroup, *, full: bool = False) -> Rows:
    group.begin_snapshot(full)
    rows = taken(group)
    group.end_snapshot(True)
    return rows


@pytest.mark.parametrize("in_ram", [200, 20, 1])
@pytest.mark.parametrize("expires", [0, 1000])
def test_a_full_snapshot_is_what_an_export_gives(tmp_path: Path, in_ram: int, expires: int) -> None:
    group = make(ram=24 * 100 + 52 * in_ram, disk=tmp_path / "rows", expires=expires)
    trainer = Trainer(group)
    for key in range(100):
        trainer.train(key)
    assert group.is_spilling == (in_ram < 100)
    expected = exported(group)
    assert len(expected) == 100
    group.begin_snapshot(True)
    for key in range(0, 100, 3):
        trainer.train(key, 99 - key)
    assert exported(group) != expected
    assert taken(group) == expected


@pytest.mark.parametrize("in_ram", [200, 1])
def test_a_snapshot_of_changes_is_the_rows_trained_since_the_one_before_began(tmp_path: Path, in_ram: int) -> None:
    group = make(ram=24 * 100 + 52 * in_ram, disk=tmp_path / "rows")
    trainer = Trainer(group)
    for key in range(100):
        trainer.train(key)
    group.begin_snapshot(True)
    trainer.train(5)
    assert (0, 5) in taken(group)
    group.end_snapshot(True)
    trainer.train(7, 8)
    expected = {key: row for key, row in exported(group).items() if key[1] in {5, 7, 8}}
    assert keep(group) == expected and len(expected) == 3
    assert keep(group) == {}


def test_rows_are_given_out_in_the_order_of_an_export() -> None:
    group = make()
    Trainer(group).train(*range(500))
    keys, records, _ = group.export_rows(0, 0, 1000)
    group.begin_snapshot(True)
    some = group.take_snapshot(1000)
    assert some is not None and some[0] == 0
    np.testing.assert_array_equal(some[1], keys)
    np.testing.assert_array_equal(some[3], records)
    assert some[2].size == 0  # no membership


def test_rows_that_go_while_they_are_to_be_taken_are_in_the_snapshot_and_told_after_the_next() -> None:
    group = make(expires=3)
    trainer = Trainer(group)
    trainer.train(1, 2, 3)
    expected = exported(group)
    group.begin_snapshot(True)
    assert group.take_tombstones() == []
    group.remove_rows(0, np.array([2], dtype=np.uint64))
    for _ in range(4):
        trainer.train(1)  # 3 expires
    assert taken(group) == expected
    group.end_snapshot(True)
    group.begin_snapshot(False)
    [(table, keys)] = group.take_tombstones()
    assert table == 0 and keys.tolist() == [2, 3]
    assert taken(group) == exported(group) and exported(group).keys() == {(0, 1)}


def test_after_one_that_was_not_kept_the_next_is_full() -> None:
    group = make()
    trainer = Trainer(group)
    trainer.train(1, 2)
    assert group.needs_full
    with pytest.raises(RuntimeError, match="it must be full"):
        group.begin_snapshot(False)
    keep(group, full=True)
    assert not group.needs_full
    trainer.train(2)
    group.begin_snapshot(False)
    with pytest.raises(RuntimeError, match="under way"):
        group.begin_snapshot(True)
    with pytest.raises(RuntimeError, match="take all rows"):
        group.end_snapshot(True)
    group.end_snapshot(False)
    assert group.needs_full
    assert keep(group, full=True) == exported(group)


def test_a_step_waits_until_rows_that_were_kept_are_taken() -> None:
    group = make(kept_bytes=1)
    trainer = Trainer(group)
    trainer.train(1, 2)
    expected = exported(group)
    group.begin_snapshot(True)
    trainer.train(1)
    thread = threading.Thread(target=trainer.train, args=(2,))
    thread.start()
    thread.join(0.05)
    assert thread.is_alive()
    rows = taken(group)
    thread.join(10)
    assert not thread.is_alive() and rows == expected


def test_rows_that_were_loaded_count_as_saved_once_that_is_said() -> None:
    source, target = make(), make()
    Trainer(source).train(1, 2, 3)
    source.begin_snapshot(True)
    while (some := source.take_snapshot(10)) is not None:
        target.import_rows(some[0], some[1], some[3])
    target.mark_saved()
    assert not target.needs_full and keep(target) == {}
    Trainer(target).train(3)
    assert keep(target).keys() == {(0, 3)}


def test_a_store_begins_and_ends_snapshots_of_all_its_groups() -> None:
    tables = [sfctr.Table("item", dim=4), sfctr.Table("shop", dim=8)]
    with sfctr.Store(tables) as store:
        assert store.needs_full
        store.begin_snapshot(True)
        with pytest.raises(RuntimeError, match="under way"):
            store.begin_snapshot(True)
        for group in store.groups:
            assert group.native.take_snapshot(10) is None
        store.end_snapshot(True)
        assert not store.needs_full
        store.groups[1].native.begin_snapshot(False)
        with pytest.raises(RuntimeError, match="under way"):
            store.begin_snapshot(False)  # and the first group's has ended again
        store.groups[1].native.end_snapshot(False)
        assert store.needs_full
        store.mark_saved()
        assert not store.needs_full


def device_batch(keys: list[int]) -> Batch:
    ones = np.ones((len(keys), 1), dtype=np.float32)
    return Batch(
        size=len(keys),
        keys={"item": Keys(keys=np.array(keys, dtype=np.uint64))},
        labels=ones,
        label_mask=ones.astype(np.bool_),
        rows=np.arange(len(keys), dtype=np.int64),
    )


@pytest.mark.parametrize("lines", [1, 3, 100])
def test_rows_on_a_device_are_in_the_snapshot_as_they_are_there(lines: int) -> None:
    schema = sfctr.Schema(label="y", features=[sfctr.Categorical("item")])
    table = sfctr.Table("item", dim=1, init=sfctr.Uniform(1.0, 1.0), optimizer=sfctr.SGD(lr=0.5))
    stream = [device_batch([k % 5, (k + 1) % 5]) for k in range(20)]
    with sfctr.Store([table], tiers=sfctr.Tiers(device=4 * lines)) as store:
        native = store.groups[0].native
        expected: Rows = {}
        for number, ready in enumerate(sfctr.Lookahead(stream, store, schema=schema, window=2)):
            (0.5 * ready.features()["item"].square().sum()).backward()
            ready.step(None)
            if number % 4 == 3:
                if number > 3:
                    store_rows = taken(native)
                    assert store_rows == {key: expected[key] for key in store_rows} and len(store_rows) == 5
                    store.end_snapshot(True)
                store.begin_snapshot(store.needs_full)
                expected = exported(native)
        assert native.counters()["device_rows"] > 0 and native.counters()["lowered"] > 0


def test_rows_kept_beside_have_a_share_of_ram() -> None:
    assert [snapshot_bytes(n) for n in (1, 1 << 30, 1 << 40)] == [1 << 20, 16 << 20, 64 << 20]
