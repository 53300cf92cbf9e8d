"""Rows that move between RAM and disk are what they would be if they never had: against the twin, and by hand."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy_twin
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfctr import _native

F32 = np.float32
ZERO = dict.fromkeys(_native.hyper_columns(), 0.0)


def make(
    twin: numpy_twin.Group, *, ram: int | None = None, disk: Path | None = None, policy: str = "lru"
) -> _native.RowGroup:
    inits = [_native.TableInit(t.seed, t.null_seed, t.kind, t.a, t.b, t.state0, t.linear_state0) for t in twin.tables]
    return _native.RowGroup(
        twin.dim,
        twin.has_linear,
        twin.vector_rule,
        twin.linear_rule,
        inits,
        None if ram is None else _native.Budget(ram),
        None if disk is None else str(disk),
        policy,
    )


def frame_bytes(group: _native.RowGroup) -> int:
    return 4 * group.record_floats + 16


def ram_for(group: _native.RowGroup, num_keys: int, num_frames: int) -> int:
    """A budget in which so many rows lie in RAM when so many keys are known."""
    return 24 * num_keys + frame_bytes(group) * num_frames


def matrix(hyper: Sequence[dict[str, float]]) -> np.ndarray:
    return np.array([[line[column] for column in _native.hyper_columns()] for line in hyper], dtype=np.float64)


def working_set(num_tables: int, features: Sequence[numpy_twin.Feature]) -> _native.WorkingSet:
    size = len(features[0].offsets) - 1 if features[0].offsets is not None else len(features[0].keys)
    return _native.WorkingSet(
        num_tables,
        size,
        [_native.FeatureKeys(f.table, f.pooling, f.keys, f.offsets, f.nulls, None, 0, 0) for f in features],
    )


def all_rows(group: _native.RowGroup, num_tables: int) -> dict[tuple[int, int], np.ndarray]:
    found = {}
    for table in range(2 * num_tables):
        start: int | None = 0
        while start is not None:
            keys, records, start = group.export_rows(table, start, 5)
            found |= {(table, int(key)): record for key, record in zip(keys, records, strict=True)}
    return found


# ------------------------------------------------------------------------------------------------------ worked by hand


@pytest.mark.parametrize("policy", ["lru", "lfu"])
@pytest.mark.parametrize("ram", [144, 144 + 20, 144 + 40, 144 + 48, 10_000])
@pytest.mark.parametrize("window", [0, 1, 2, 5])
def test_six_rows_that_halve_in_a_cache_of_fewer(tmp_path: Path, policy: str, ram: int, window: int) -> None:
    """dim 1, SGD with rate 1/2, loss half the sum of squares over the ids: a row that a batch holds c times goes from w
    to w - c w / 2; all begin at 1. Every batch re-uses a row that the one before it changed. The index counts for 144
    bytes, a row for 8, and for 20 once rows leave RAM: so there is room for 0, 1, 2 or all rows."""
    twin = numpy_twin.Group(1, "sgd", None, [numpy_twin.Table(seed=1, null_seed=2, kind="uniform", a=1.0, b=1.0)])
    group = make(twin, ram=ram, disk=tmp_path / "rows", policy=policy)
    batches = [[0, 1], [1, 2, 2], [2, 3], [3, 4, 0], [0, 5, 1], [1, 1, 2]]
    expected = [0.125, 0.0, 0.0, 0.25, 0.5, 0.5]  # 1 and 2 are held twice by some batch: 1 - 2 / 2 = 0
    flight: deque[_native.WorkingSet] = deque()
    for keys in [*batches, *[None] * (window + 1)]:
        if keys is not None:
            ws = _native.WorkingSet(1, len(keys), [_native.FeatureKeys(0, "one", np.array(keys, dtype=np.uint64))])
            while not group.plan(ws):
                halve(group, flight.popleft())
            group.fetch(ws)
            flight.append(ws)
        if flight and (keys is None or len(flight) > window):
            halve(group, flight.popleft())
    records = np.zeros((6, 1), dtype=F32)
    assert group.find(0, np.arange(6, dtype=np.uint64), records).all()
    assert records[:, 0].tolist() == expected
    counts = group.counters()
    assert (counts["requested"], counts["unique"]) == (16, 14)
    assert counts["fresh"] + counts["hits"] + counts["fetched"] == counts["unique"]
    assert counts["disk_rows"] >= 4 if ram < 144 + 48 else counts["disk_rows"] == 0


def halve(group: _native.RowGroup, ws: _native.WorkingSet) -> None:
    rows = np.empty(group.forward_floats(ws, ws.num_rows), dtype=F32)
    group.forward(ws, 0, ws.num_rows, rows)
    group.backward(ws, 0, ws.num_rows, [rows], [])
    group.update(ws, 1, 1.0, matrix([ZERO | {"lr": 0.5}]))


def test_rows_that_known_batches_need_are_spared(tmp_path: Path) -> None:
    """Three batches of two rows come round and round, and RAM has room for four: CLOCK alone always sends away what
    comes next. Who knows the next two batches sends the other ones, and half of the rows are there when needed."""
    twin = numpy_twin.Group(16, "sgd", None, [numpy_twin.Table(seed=1, null_seed=2, kind="uniform", a=1.0, b=1.0)])
    fetched = {}
    for ahead in (0, 2):
        group = make(twin, ram=24 * 6 + 80 * 4, disk=tmp_path / str(ahead))
        told = [
            _native.WorkingSet(1, 2, [_native.FeatureKeys(0, "one", np.array([k, k + 1], dtype=np.uint64))])
            for k in (0, 2, 4) * 20
        ]
        for number, ws in enumerate(told):
            known = told[number : number + 1 + ahead] if number == 6 else told[number + ahead : number + 1 + ahead]
            for each in known if ahead and number >= 6 else []:
                group.announce(each)
            group.locate(ws, train=True)
            halve(group, ws)
        fetched[ahead] = group.counters()["fetched"]
        assert {record[0] for record in all_rows(group, 1).values()} == {0.5**20}
    assert fetched[0] > 100 and fetched[2] < 70


# ------------------------------------------------------------------------------------------------------------ property

EXTREME = (0, 1, 2, 3, 5, 8, 2**63 - 1, 2**63, 2**64 - 1, 1234567890123456788, 1234567890123456789)
keys = st.sampled_from(EXTREME) | st.integers(0, 2**64 - 1)


@st.composite
def batches(draw: st.DrawFn) -> list[list[numpy_twin.Feature]]:
    pool = draw(st.lists(keys, min_size=1, max_size=30, unique=True))
    found = []
    for _ in range(draw(st.integers(1, 8))):
        size = draw(st.integers(1, 6))
        features = [one(draw, pool, 0, size), bag(draw, pool, 1, size), bag(draw, pool, 0, size)]
        found.append(features)
    return found


def one(draw: st.DrawFn, pool: list[int], table: int, size: int) -> numpy_twin.Feature:
    ids = np.array(draw(st.lists(st.sampled_from(pool), min_size=size, max_size=size)), dtype=np.uint64)
    nulls = np.array(draw(st.lists(st.booleans(), min_size=size, max_size=size)), dtype=np.uint8)
    return numpy_twin.Feature(table=table, pooling="one", keys=ids, nulls=nulls)


def bag(draw: st.DrawFn, pool: list[int], table: int, size: int) -> numpy_twin.Feature:
    lengths = draw(st.lists(st.integers(0, 3), min_size=size, max_size=size))
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    count = int(offsets[-1])
    ids = np.array(draw(st.lists(st.sampled_from(pool), min_size=count, max_size=count)), dtype=np.uint64)
    return numpy_twin.Feature(table=table, pooling="mean", keys=ids, offsets=offsets)


RULES = [("sgd", None), ("adagrad", "ftrl"), ("rowwise_adagrad", None), ("adam", "sgd"), ("momentum", "adam_row")]


@settings(max_examples=150, deadline=None)
@given(
    stream=batches(),
    rules=st.sampled_from(RULES),
    frames=st.integers(1, 12),
    window=st.integers(0, 4),
    known=st.integers(0, 3),
    policy=st.sampled_from(["lru", "lfu"]),
    fates=st.lists(st.sampled_from(["train", "train", "train", "discard", "half"]), min_size=8, max_size=8),
    has_disk=st.booleans(),
)
def test_rows_and_state_equal_the_twins(
    tmp_path_factory: pytest.TempPathFactory,
    stream: list[list[numpy_twin.Feature]],
    rules: tuple[str, str | None],
    frames: int,
    window: int,
    known: int,
    policy: str,
    fates: list[str],
    has_disk: bool,
) -> None:
    tables = [numpy_twin.Table(seed=3 + t, null_seed=13 + t, b=0.5) for t in range(2)]
    twin = numpy_twin.Group(3, *rules, tables)
    directory = tmp_path_factory.mktemp("rows")
    ram = ram_for(make(twin), 80, frames)
    group = make(twin, ram=ram if has_disk else None, disk=directory if has_disk else None, policy=policy)
    run = Replay(twin, group, fates)
    told = [working_set(2, features) for features in stream]
    for ws in told[:known]:
        group.announce(ws)
    for number, (features, ws) in enumerate(zip(stream, told, strict=True)):
        if number + known < len(told) and known:
            group.announce(told[number + known])
        while not group.plan(ws):
            run.finish_oldest()
        group.fetch(ws)
        run.begin(features, ws)
        while len(run.flight) > window:
            run.finish_oldest()
        run.check_reading(features)
    while run.flight:
        run.finish_oldest()
    run.check_rows()


class Replay:
    """Batches in flight, finished in order on both sides."""

    def __init__(self, twin: numpy_twin.Group, group: _native.RowGroup, fates: list[str]) -> None:
        self.twin, self.group, self.fates = twin, group, iter(fates)
        self.flight: deque[tuple[list[numpy_twin.Feature], _native.WorkingSet]] = deque()
        self.step = 0
        self.random = np.random.default_rng(0)
        self.hyper = [ZERO | {"lr": 0.1, "eps": 1e-8, "beta1": 0.9, "beta2": 0.99, "momentum": 0.9, "beta": 1.0}] * 2

    def begin(self, features: list[numpy_twin.Feature], ws: _native.WorkingSet) -> None:
        self.flight.append((features, ws))

    def finish_oldest(self) -> None:
        features, ws = self.flight.popleft()
        step = self.twin.locate(features, train=True)
        fate = next(self.fates)
        self.check_forward(step, ws)
        if fate == "discard":
            self.group.discard(ws)
            return
        self.step += 1
        size = ws.num_rows
        shape = (size, self.twin.dim)
        grads = [
            None if fate == "half" and f == 0 else self.random.normal(size=shape).astype(F32)
            for f in range(len(features))
        ]
        linear = [None if g is None else g[:, 0].copy() for g in grads] if self.twin.has_linear else []
        self.twin.backward(step, 0, size, grads, linear)
        self.twin.update(step, self.step, 1.0, self.hyper, self.hyper)
        self.group.backward(ws, 0, size, grads, linear)
        self.group.update(ws, self.step, 1.0, matrix(self.hyper), matrix(self.hyper) if linear else None)

    def check_forward(self, step: numpy_twin.Step, ws: _native.WorkingSet) -> None:
        out = np.empty(self.group.forward_floats(ws, ws.num_rows), dtype=F32)
        self.group.forward(ws, 0, ws.num_rows, out)
        vectors, _ = self.twin.forward(step, 0, ws.num_rows)
        np.testing.assert_array_equal(out, np.concatenate([v.ravel() for v in vectors]))

    def check_reading(self, features: list[numpy_twin.Feature]) -> None:
        ws = working_set(2, features)
        self.group.locate(ws, train=False)
        step = self.twin.locate(features, train=False)
        assert self.group.unseen(ws).tolist() == self.twin.unseen(step)
        self.check_forward(step, ws)

    def check_rows(self) -> None:
        rows = all_rows(self.group, 2)
        assert rows.keys() == self.twin.rows.keys()
        for key, record in self.twin.rows.items():
            np.testing.assert_array_equal(rows[key].view(np.uint32), record.view(np.uint32))
        assert sum(self.group.num_rows(table) for table in range(4)) == len(rows)
        for table in range(4):
            mine = [key for t, key in self.twin.rows if t == table]
            back = np.zeros((len(mine), self.twin.record_floats), dtype=F32)
            assert self.group.find(table, np.array(mine, dtype=np.uint64), back).all()


# --------------------------------------------------------------------------------------------------------------- bounds


def test_without_a_disk_a_full_ram_is_named_and_nothing_is_lost() -> None:
    twin = numpy_twin.Group(1, "sgd", None, [numpy_twin.Table(seed=1, null_seed=2, kind="uniform", a=1.0, b=1.0)])
    group = make(twin, ram=5 * (24 + 4 + 4) + 30)  # index, record, and what is kept about a frame that never leaves
    four, six = (
        _native.WorkingSet(1, n, [_native.FeatureKeys(0, "one", np.arange(n, dtype=np.uint64))]) for n in (4, 6)
    )
    group.locate(four, train=True)
    halve(group, four)
    with pytest.raises(_native.RamFull, match=r"need 1?[0-9][0-9] bytes of RAM"):
        group.plan(six)
    group.locate(four, train=True)
    halve(group, four)
    assert group.num_rows(0) == 4
    assert all(record[0] == 0.25 for record in all_rows(group, 1).values())


def test_an_index_that_outgrows_ram_is_named_and_nothing_is_lost(tmp_path: Path) -> None:
    twin = numpy_twin.Group(1, "sgd", None, [numpy_twin.Table(seed=1, null_seed=2, kind="uniform", a=1.0, b=1.0)])
    group = make(twin, ram=24 * 10, disk=tmp_path)
    ten, more = (
        _native.WorkingSet(1, n, [_native.FeatureKeys(0, "one", np.arange(n, dtype=np.uint64))]) for n in (10, 11)
    )
    for _ in range(3):
        group.locate(ten, train=True)
        halve(group, ten)
    with pytest.raises(_native.IndexOutgrown, match="the index alone needs 264 bytes"):
        group.plan(more)
    assert {key: record[0] for key, record in all_rows(group, 1).items()} == {(0, k): 0.125 for k in range(10)}
