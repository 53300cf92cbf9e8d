"""Which line of a device holds which row: planned, given up at any point, and taken back. NumPy arrays stand in for the
device, and one SGD step of rate 1/2 for training there: a row that a batch holds goes from w to w / 2."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sfctr import _native

ZERO = dict.fromkeys(_native.hyper_columns(), 0.0)
HYPER = np.array([[(ZERO | {"lr": 0.5})[column] for column in _native.hyper_columns()]])


def batch(*keys: int, table: int = 0) -> _native.WorkingSet:
    return _native.WorkingSet(1, len(keys), [_native.FeatureKeys(table, "one", np.array(keys, dtype=np.uint64))])


class Device:
    """Lines in an array; a record is one number that begins at 1."""

    def __init__(
        self, num_lines: int, *, ram: int | None = None, disk: Path | None = None, frozen: bool = False
    ) -> None:
        self.budget = _native.Budget(2**64 - 1 if ram is None else ram)
        init = _native.TableInit(1, 2, "uniform", 1.0, 1.0, frozen=frozen)
        self.group = _native.RowGroup(1, False, "sgd", None, [init], self.budget, None if disk is None else str(disk))
        self.group.keep_lines(num_lines)
        self.lines = np.full((num_lines, 1), np.nan, dtype=np.float32)

    def fetch(self, ws: _native.WorkingSet) -> _native.WorkingSet:
        assert self.group.plan(ws)
        self.group.fetch(ws)
        return ws

    def lower(self, lines: np.ndarray) -> None:
        self.group.lower(lines, self.lines[lines])
        self.lines[lines] = np.nan

    def leave(self, ws: _native.WorkingSet) -> None:
        self.lower(self.group.line_moves(ws)[0])
        self.group.lines_lowered(ws)

    def enter(self, ws: _native.WorkingSet) -> None:
        _, rising, _ = self.group.line_moves(ws)
        records = np.empty((rising.size, 1), dtype=np.float32)
        self.group.gather(ws, rising, records)
        self.lines[self.group.lines(ws)[rising]] = records
        self.group.lines_ready(ws)

    def lift(self, ws: _native.WorkingSet) -> bool:
        if not self.group.plan_lines(ws):
            return False
        self.leave(ws)
        self.enter(ws)
        return True

    def halve(self, ws: _native.WorkingSet) -> None:
        lines = self.group.lines(ws)
        at_hand = lines < self.lines.shape[0]
        self.lines[lines[at_hand]] *= np.float32(0.5)
        spilled = self.group.line_moves(ws)[2]
        records = np.empty((spilled.size, 1), dtype=np.float32)
        self.group.gather(ws, spilled, records)
        self.group.scatter(ws, spilled, records * np.float32(0.5))
        self.group.end_step(ws, 1, np.ones(ws.num_unique, dtype=np.uint8))

    def step(self, *keys: int) -> None:
        ws = self.fetch(batch(*keys))
        assert self.lift(ws)
        self.halve(ws)

    def counts(self, *names: str) -> tuple[int, ...]:
        found = self.group.counters()
        return tuple(found[name] for name in names)

    def rows(self) -> dict[int, float]:
        dirty = self.group.dirty_lines()
        self.group.lower(dirty, self.lines[dirty])
        keys, records, _ = self.group.export_rows(0, 0, 1 << 20)
        return dict(zip(keys.tolist(), records[:, 0].tolist(), strict=True))


def test_what_leaves_is_lowered_and_what_comes_is_lifted() -> None:
    device = Device(2)
    device.step(0, 1)
    ws = device.fetch(batch(2))
    assert device.group.plan_lines(ws)
    leaving, rising, spilled = device.group.line_moves(ws)
    assert (leaving.size, rising.tolist(), spilled.tolist()) == (1, [0], [])
    assert device.group.lines(ws).tolist() == leaving.tolist()
    device.leave(ws)
    device.enter(ws)
    device.halve(ws)
    assert device.rows() == {0: 0.5, 1: 0.5, 2: 0.5}
    assert device.counts("device_hits", "lifted", "device_rows", "device_dirty") == (0, 3, 2, 0)


def test_a_row_that_was_only_read_leaves_without_a_copy() -> None:
    device = Device(1)
    device.step(0)
    device.rows()  # lowers it: the line is clean, and stays
    ws = device.fetch(batch(1))
    assert device.group.plan_lines(ws)
    assert device.group.line_moves(ws)[0].size == 0
    device.group.discard(ws)
    assert device.rows() == {0: 0.5}


def test_a_row_whose_next_use_is_known_is_spared() -> None:
    device = Device(2)
    device.step(0)
    device.step(1)
    coming = [batch(2), batch(0), batch(1)]
    for ws in coming:
        device.group.announce(ws)
    for ws, hits in zip(coming, (0, 1, 1), strict=True):
        device.fetch(ws)
        assert device.lift(ws)
        device.halve(ws)
        assert device.counts("device_hits") == (hits,)  # 1, used last but wanted last, made room
    assert device.rows() == {0: 0.25, 1: 0.25, 2: 0.5}


def test_lines_of_batches_in_flight_are_waited_for() -> None:
    device = Device(2)
    first, second = device.fetch(batch(0, 1)), device.fetch(batch(1, 2))
    assert device.lift(first)
    assert not device.lift(second)
    device.halve(first)
    assert device.lift(second)
    device.halve(second)
    assert device.rows() == {0: 0.5, 1: 0.25, 2: 0.5}
    assert device.counts("device_waits", "device_batches") == (1, 0)


def test_a_batch_without_a_line_for_every_key_is_ready_alone() -> None:
    device = Device(2)
    large, small = device.fetch(batch(0, 1, 2)), device.fetch(batch(0))
    assert device.lift(large)
    assert device.group.line_moves(large)[2].tolist() == [2]
    assert not device.lift(small)
    device.halve(large)
    assert device.lift(small)
    device.halve(small)
    assert device.rows() == {0: 0.25, 1: 0.5, 2: 0.5}


@pytest.mark.parametrize("point", ["planned", "lowered", "ready"])
@pytest.mark.parametrize("num_lines", [1, 2, 3])
def test_a_batch_given_up_at_any_point_loses_nothing(num_lines: int, point: str) -> None:
    device = Device(num_lines)
    device.step(0)
    device.step(0, 1)
    before = device.counts("device_batches")
    ws = device.fetch(batch(2, 3))
    assert device.group.plan_lines(ws)
    if point != "planned":
        device.leave(ws)
    if point == "ready":
        device.enter(ws)
    device.group.discard(ws)
    assert device.counts("device_batches") == before == (0,)
    assert device.rows() == {0: 0.25, 1: 0.5}
    assert device.group.num_rows(0) == 2
    device.step(0, 1)
    device.step(2)
    assert device.rows() == {0: 0.125, 1: 0.25, 2: 0.5}
    device.group.drop_lines()
    assert device.counts("device_rows") == (0,)


def test_a_row_that_no_step_reached_leaves_the_device_with_its_last_batch() -> None:
    device = Device(4)
    first, second = device.fetch(batch(0, 1)), device.fetch(batch(1))
    assert device.lift(first) and device.lift(second)
    device.group.discard(first)
    assert device.counts("device_rows") == (1,)  # 1 is still in use
    device.group.end_step(second, 1, np.zeros(1, dtype=np.uint8))
    assert device.counts("device_rows") == (0,)
    assert device.group.num_rows(0) == 0


def test_ram_takes_its_frames_back_as_keys_come(tmp_path: Path) -> None:
    """A frame whose row is on the device cannot leave RAM; the row comes down when RAM must shrink."""
    device = Device(1000, ram=24 * 200 + 44 * 40, disk=tmp_path / "rows")
    for key in range(200):
        device.step(key, max(0, key - 3))
        rows, bound = device.counts("device_rows")[0], device.group.lines_bound()
        assert key < 70 or rows <= bound + 2
    for key in range(200):
        device.step(key)
    assert device.budget.used <= device.budget.limit + 52  # a line's; a frame goes for it at the next plan
    assert 0 < device.counts("device_rows")[0] <= device.group.lines_bound() < 40
    found = device.rows()
    assert all(found[key] == (0.25 if key > 196 else 0.125) for key in range(1, 200))
    assert found[0] == 1 / 2**5  # four times in the first steps, for keys 0 to 3


def test_what_would_lose_a_row_is_refused() -> None:
    device = Device(2)
    ws = device.fetch(batch(0, 1))
    reached = np.ones(2, dtype=np.uint8)
    with pytest.raises(RuntimeError, match="not ready on the device"):
        device.group.end_step(ws, 1, reached)
    with pytest.raises(RuntimeError, match="plan the lines"):
        device.group.lines_lowered(ws)
    assert device.group.plan_lines(ws)
    with pytest.raises(RuntimeError, match="lines_lowered"):
        device.group.lines_ready(ws)
    device.leave(ws)
    device.enter(ws)
    with pytest.raises(RuntimeError, match="ready on the device already"):
        device.group.plan_lines(ws)
    with pytest.raises(RuntimeError, match="trained on a device"):
        device.group.update(ws, 1, 1.0, HYPER)
    with pytest.raises(ValueError, match="reached has 1 keys and needs 2"):
        device.group.end_step(ws, 1, reached[:1])
    device.halve(ws)
    record = np.zeros((1, 1), dtype=np.float32)
    with pytest.raises(RuntimeError, match="drop the lines first"):
        device.group.import_rows(0, np.array([0], dtype=np.uint64), record)
    with pytest.raises(RuntimeError, match="dirty"):
        device.group.drop_lines()
    with pytest.raises(RuntimeError, match="once"):
        device.group.keep_lines(2)
    third = device.fetch(batch(2))
    assert device.group.plan_lines(third)
    with pytest.raises(RuntimeError, match="lower every line"):
        device.group.lines_lowered(third)
    with pytest.raises(ValueError, match="holds no row"):
        device.group.lower(np.array([2], dtype=np.uint32), record)
    with pytest.raises(ValueError, match="unique key 1 of 1"):
        device.group.gather(third, np.array([1], dtype=np.uint32), record)
    device.group.discard(third)
    assert device.rows() == {0: 0.5, 1: 0.5}


def test_a_key_that_a_frozen_table_lacks_has_no_line_and_takes_no_record() -> None:
    device = Device(2, frozen=True)
    ws = device.fetch(batch(7))
    assert device.lift(ws)
    assert device.group.lines(ws).tolist() == [2]  # one past the last
    with pytest.raises(ValueError, match="absent"):
        device.group.scatter(ws, np.array([0], dtype=np.uint32), np.ones((1, 1), dtype=np.float32))
    device.group.end_step(ws, 1, np.zeros(1, dtype=np.uint8))
    assert device.rows() == {}


def test_a_group_without_lines_says_so() -> None:
    group = _native.RowGroup(1, False, "sgd", None, [_native.TableInit(1, 2, "uniform", 1.0, 1.0)])
    ws = batch(0)
    group.locate(ws, train=True)
    with pytest.raises(RuntimeError, match="keeps no lines"):
        group.plan_lines(ws)


@pytest.mark.parametrize(("dtype", "capacity", "words"), [("bf16", 0, "rows in bf16"), ("fp32", 5, "may be removed")])
def test_lines_are_refused_where_there_is_no_kernel_for_a_device(dtype: str, capacity: int, words: str) -> None:
    rule = _native.MembershipRule(capacity=capacity) if capacity else None
    init = _native.TableInit(1, 2, "uniform", 1.0, 1.0, membership=rule)
    group = _native.RowGroup(1, False, "sgd", None, [init], dtype=dtype)
    with pytest.raises(RuntimeError, match=words):
        group.keep_lines(1)


def test_rows_are_not_removed_from_under_their_lines() -> None:
    device = Device(2)
    device.step(0, 1)
    with pytest.raises(RuntimeError, match="drop the lines first"):
        device.group.remove_rows(0, np.array([0], dtype=np.uint64))
    assert device.rows() == {0: 0.5, 1: 0.5}
    device.group.drop_lines()
    assert device.group.remove_rows(0, np.array([0], dtype=np.uint64)) == 1
    assert device.rows() == {1: 0.5}
