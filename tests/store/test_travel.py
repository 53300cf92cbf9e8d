"""Rows that travel: a batch that adopts the rows of another working set, and gives its gradients back, is trained as if
nobody had come between; and what several batches give back adds up, by hand."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy_twin
import pytest
import torch
from torch import Tensor

import sfctr
from sfctr import _native
from sfctr.spec.optim import FTRL, SGD, Adagrad, Adam, Optimizer, RowWiseAdagrad
from sfctr.store import ABSENT, FRESH, NUM_SHARDS, REFUSED, ROW, Group, Store

F32 = np.float32
DIM, SIZE = 5, 24
RULES: dict[str, Optimizer] = {
    "sgd": SGD(lr=0.3),
    "momentum": SGD(lr=0.3, momentum=0.9),
    "adagrad": Adagrad(lr=0.3),
    "rowwise": RowWiseAdagrad(lr=0.3),
    "adam": Adam(lr=0.1),
    "adam_row": Adam(lr=0.1, bias_correction="row"),
    "ftrl": FTRL(lr=0.3, l1=0.01),
}
MEMBERSHIP: dict[str, dict[str, Any]] = {
    "admission": {"admit_after": 2},
    "rare": {"admit_after": 3, "unseen": "rare"},
    "capacity": {"capacity": 20},
    "expiry": {"expire_after_steps": 2, "admit_after": 2, "unseen": "rare"},
    "clock": {"expire_after": "3s"},
}


@dataclass(frozen=True)
class Step:
    """A batch of two tables and a frozen one, its event time, and the gradients of all that it looks up."""

    features: list[tuple[int, str, dict[str, Any]]]
    time: int
    seed: int

    def working_set(self, group: Group) -> _native.WorkingSet:
        places = [p for p, table in enumerate(group.plan.tables) if table.unseen == "rare"]
        num_tables = len(group.plan.tables)
        keys = [_native.FeatureKeys(t, pooling, **given) for t, pooling, given in self.features if t < num_tables]
        return _native.WorkingSet(num_tables, SIZE, keys, places)


def steps(count: int) -> Iterator[Step]:
    rng = np.random.default_rng(7)

    def keys(n: int) -> np.ndarray:
        return (rng.zipf(1.3, n) % 60).astype(np.uint64)

    for number in range(count):
        ends = np.concatenate([[0], np.cumsum(rng.integers(0, 4, SIZE))])
        features: list[tuple[int, str, dict[str, Any]]] = [
            (0, "one", {"keys": keys(SIZE), "nulls": (rng.random(SIZE) < 0.2).astype(np.uint8)}),
            (1, "mean", {"keys": keys(ends[-1]), "offsets": ends, "weights": rng.random(ends[-1]).astype(F32)}),
            (0, "sequence", {"keys": keys(ends[-1]), "offsets": ends, "max_length": 3}),
            (1, "one", {"keys": keys(SIZE)}),
            (2, "one", {"keys": keys(SIZE)}),
        ]
        yield Step(features, number * 10**9, number)


class Direct:
    """Trains batches as one process does."""

    def __init__(self, store: Store) -> None:
        self.store, [self.group] = store, store.groups
        self.seen: list[Any] = []

    def begin(self, step: Step) -> tuple[Step, _native.WorkingSet, _native.WorkingSet]:
        own = step.working_set(self.group)
        return step, own, own

    def place(self, held: _native.WorkingSet) -> bool:
        if not self.store.plan((held,)):
            return False
        self.store.fetch((held,))
        return self.store.lift((held,))

    def bring(self, own: _native.WorkingSet, held: _native.WorkingSet) -> None:
        pass

    def send(self, own: _native.WorkingSet, held: _native.WorkingSet) -> None:
        pass

    def finish(self, step: Step, own: _native.WorkingSet, held: _native.WorkingSet) -> None:
        self.store.settle((held,), step.time)
        self.bring(own, held)
        rng, cuts = np.random.default_rng(step.seed), (0, SIZE // 3, SIZE)
        self.seen.append(self.group.native.unseen(own).tolist())
        for begin, end in pairwise(cuts):
            self.look_up(own, begin, end, rng, skips=step.seed % 3 == 0)
        self.seen.append(self.group.grad_norm_squared(own))
        if step.seed % 5 == 4:
            self.store.discard((own,))
            self.store.discard((held,))
            return
        self.send(own, held)
        self.seen.append(self.group.grad_norm_squared(held))
        self.store.commit((held,), scale=0.5)

    def look_up(self, ws: _native.WorkingSet, begin: int, end: int, rng: np.random.Generator, *, skips: bool) -> None:
        vectors, linear = forward(self.group, ws, begin, end)
        self.seen += [part.tobytes() for part in (*vectors, *linear)]
        grads = [rng.normal(size=part.shape).astype(F32) for part in (*vectors, *linear)]
        given = [None if skips and f == 3 else grad for f, grad in enumerate(grads)]
        backward(self.group, ws, begin, end, given[: len(vectors)], given[len(vectors) :])

    def run(self, count: int, window: int) -> list[Any]:
        flight: deque[tuple[Step, _native.WorkingSet, _native.WorkingSet]] = deque()
        for step in steps(count):
            flight.append(self.begin(step))
            while not self.place(flight[-1][-1]):
                self.finish(*flight.popleft())
            if len(flight) > window:
                self.finish(*flight.popleft())
        while flight:
            self.finish(*flight.popleft())
        self.seen += list(rows_of(self.store))
        return self.seen


class Travelling(Direct):
    """The same with the rows held in a working set of one source, which the batch adopts."""

    def begin(self, step: Step) -> tuple[Step, _native.WorkingSet, _native.WorkingSet]:
        own = step.working_set(self.group)
        held = _native.WorkingSet.of_sources(len(self.group.plan.tables), [(own.keys(), own.table_begin())])
        return step, own, held

    def bring(self, own: _native.WorkingSet, held: _native.WorkingSet) -> None:
        ids = held.source_ids(0)
        weights = np.full((ids.size, self.group.wire_words), np.nan, dtype=F32)
        self.group.weights(held, weights, ids)
        self.group.adopt(own, weights, self.group.kinds(held)[ids], train=True)

    def send(self, own: _native.WorkingSet, held: _native.WorkingSet) -> None:
        vectors, linear, reached = self.group.gradients(own)
        self.group.add_gradients(held, held.source_ids(0), vectors, linear, reached)
        self.group.discard(own)


def forward(group: Group, ws: _native.WorkingSet, begin: int, end: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    rows = group.on_device(ws)
    if rows is not None:
        vectors, linear = rows.forward(begin, end)
        return [part.numpy() for part in vectors], [part.numpy() for part in linear]
    size = end - begin
    out = np.empty(group.native.forward_floats(ws, size), dtype=F32)
    weights = np.empty((len(ws.features), size), dtype=F32)
    group.native.forward(ws, begin, end, out, weights)
    widths = [size * max(1, feature.max_length) * DIM for feature in ws.features]
    parts = np.split(out, np.cumsum(widths)[:-1])
    shaped = [p.reshape(size, *((f.max_length,) if f.max_length else ()), DIM) for p, f in zip(parts, ws.features)]  # noqa: B905
    return shaped, [each.reshape(size, 1) for each in weights]


def backward(group: Group, ws: _native.WorkingSet, begin: int, end: int, grads: list, linear: list) -> None:
    def tensors(arrays: list) -> list[Tensor | None]:
        return [None if array is None else torch.from_numpy(array) for array in arrays]

    rows = group.on_device(ws)
    if rows is not None:
        rows.backward(begin, end, tensors(grads), tensors(linear))
        return
    flat = [[None if array is None else array.reshape(-1) for array in arrays] for arrays in (grads, linear)]
    group.native.backward(ws, begin, end, *flat)


def rows_of(store: Store) -> Iterator[Any]:
    for table in store.tables:
        for block in store.rows(table):
            assert block.linear is not None
            yield table, *(part.tobytes() for part in (block.keys, block.vectors, block.linear, block.state))
    [group] = store.groups
    yield from (group.membership(place) for place in group.tables.values())


def tables(rule: str, dtype: str = "fp32", **options: Any) -> list[sfctr.Table]:
    common: dict[str, Any] = {"dim": DIM, "dtype": dtype, "optimizer": RULES[rule], "linear": RULES[rule]}
    plain = [sfctr.Table(name, **common, **options) for name in ("item", "shop")]
    return plain if options else [*plain, sfctr.Table("fixed", **common, frozen=True, pretrained="fixed.parquet")]


def both(make: Any, *, count: int = 12, window: int = 2) -> tuple[list[Any], list[Any]]:
    found = []
    for kind in (Direct, Travelling):
        with make() as store:
            if "fixed" in store.tables:
                known = np.arange(0, 60, 2, dtype=np.uint64)
                store.set_vectors("fixed", known, np.random.default_rng(1).normal(size=(30, DIM)).astype(F32))
            found.append(kind(store).run(count, window))
    return found[0], found[1]


@pytest.mark.parametrize("tier", ["ram", "disk", "device", "small device"])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("rule", RULES)
def test_rows_that_travelled_have_the_bits_of_rows_that_stayed(
    rule: str, dtype: str, tier: str, tmp_path: Path
) -> None:
    tiers = {
        "ram": sfctr.Tiers(),
        "disk": sfctr.Tiers(ram=9_000),
        "device": sfctr.Tiers(device=1 << 20),
        "small device": sfctr.Tiers(device=800),
    }[tier]
    directories = iter([tmp_path / "direct", tmp_path / "travelling"])
    direct, travelling = both(lambda: Store(tables(rule, dtype), tiers=tiers, directory=next(directories)))
    assert direct == travelling


@pytest.mark.parametrize("window", [0, 3])
@pytest.mark.parametrize("tier", ["ram", "disk"])
@pytest.mark.parametrize("options", MEMBERSHIP)
def test_so_have_rows_that_come_and_go(options: str, tier: str, window: int, tmp_path: Path) -> None:
    tiers = sfctr.Tiers() if tier == "ram" else sfctr.Tiers(ram=9_000)
    directories = iter([tmp_path / "direct", tmp_path / "travelling"])
    made = tables("adagrad", **MEMBERSHIP[options])
    direct, travelling = both(lambda: Store(made, tiers=tiers, directory=next(directories)), count=25, window=window)
    assert direct == travelling


# ------------------------------------------------------------------------------------------------------ worked by hand


def keys_of(*keys: int) -> np.ndarray:
    return np.array(keys, dtype=np.uint64)


def one(*keys: int, missing: tuple[int, ...] = ()) -> _native.WorkingSet:
    """A batch of one feature of one table."""
    nulls = np.array([int(i in missing) for i in range(len(keys))], dtype=np.uint8)
    return _native.WorkingSet(1, len(keys), [_native.FeatureKeys(0, "one", keys_of(*keys), nulls=nulls)])


def merged(*batches: _native.WorkingSet) -> _native.WorkingSet:
    return _native.WorkingSet.of_sources(1, [(ws.keys(), ws.table_begin()) for ws in batches])


def held_by(store: Store, *batches: _native.WorkingSet) -> _native.WorkingSet:
    """What the batches ask for, settled and ready to be trained."""
    held = merged(*batches)
    assert store.plan((held,))
    store.fetch((held,))
    assert store.lift((held,))
    store.settle((held,))
    return held


def add(group: Group, held: _native.WorkingSet, source: int, grads: list[float], reached: list[int]) -> None:
    vectors = np.array(grads, dtype=F32)[:, None]
    group.add_gradients(held, held.source_ids(source), vectors, np.empty(0, F32), np.array(reached, np.uint8))


def test_keys_of_sources_are_numbered_by_table_then_source_then_position() -> None:
    first = (keys_of(7, 5, 0, 9), np.array([0, 2, 3, 4, 4]))
    second = (keys_of(5, 6, 9, 8, 1, 0), np.array([0, 2, 2, 4, 6]))
    ws = _native.WorkingSet.of_sources(2, [first, second, first])
    # Table 0: keys 7, 5, 6 and its missing value; table 1: keys 9, 8, its rare row and its missing value.
    assert ws.keys().tolist() == [7, 5, 6, 0, 9, 8, 1, 0]
    assert ws.table_begin().tolist() == [0, 3, 4, 6, 8]
    assert [ws.source_ids(p).tolist() for p in range(3)] == [[0, 1, 3, 4], [1, 2, 4, 5, 6, 7], [0, 1, 3, 4]]
    assert (ws.num_rows, ws.num_unique, len(ws.features)) == (0, 8, 0)
    with pytest.raises(IndexError, match="there is no source 3"):
        ws.source_ids(3)


def test_a_source_whose_tables_do_not_fit_is_refused_by_its_number() -> None:
    good = (keys_of(1), np.array([0, 1, 1]))
    for begin, words in (
        ([0, 1], r"source 1: table_begin has 2 entries and must have 3"),
        ([0, 1, 2], r"source 1: table_begin must run from 0 to 1, the number of keys"),
        ([0, 2, 1], r"source 1: table_begin falls"),
    ):
        with pytest.raises(ValueError, match=words):
            _native.WorkingSet.of_sources(1, [good, (keys_of(1), np.array(begin))])
    with pytest.raises(ValueError, match="needs at least one"):
        _native.WorkingSet.of_sources(1, [])
    with pytest.raises(TypeError, match=r"sources\[0\] must be a tuple of contiguous arrays"):
        _native.WorkingSet.of_sources(1, [(np.array([1.0]), np.array([0, 1, 1]))])  # type: ignore[list-item]


@pytest.mark.parametrize("tiers", [sfctr.Tiers(), sfctr.Tiers(device=1 << 16)])
def test_gradients_of_three_sources_are_one_adagrad_update_by_hand(tiers: sfctr.Tiers) -> None:
    """Rows begin at 1, lr 1, eps 0, accumulator 0: w becomes 1 - g / |g|, and the accumulator g^2, of the sum g."""
    table = sfctr.Table("t", dim=1, init=sfctr.Uniform(1.0, 1.0), optimizer=Adagrad(lr=1.0, eps=0.0))
    with Store([table], tiers=tiers) as store:
        [group] = store.groups
        held = held_by(store, one(4, 5, 6), one(6, 4), one(7, 4, 8))
        assert held.keys().tolist() == [4, 5, 6, 7, 8]
        # The sum of key 4 is ((2^24 + 1) + -2^24): 0 in float32 in this order, 1 in the other.
        add(group, held, 0, [2.0**24, 3.0, 0.5], [1, 1, 1])
        add(group, held, 1, [-2.0, 1.0], [1, 1])
        add(group, held, 2, [np.nan, -(2.0**24), np.nan], [0, 1, 0])  # what is not reached is not read
        assert group.grad_norm_squared(held) == 0.0 + 9.0 + 2.25
        store.commit((held,))
        found = {
            int(k): (v[0], s[0]) for b in store.rows("t") for k, v, s in zip(b.keys, b.vectors, b.state, strict=True)
        }
    assert {k: s for k, (_, s) in found.items()} == {4: 0.0, 5: 9.0, 6: 2.25}  # 7 and 8 have no row
    assert (found[5][0], found[6][0]) == (0.0, 2.0)


@pytest.mark.parametrize("tiers", [sfctr.Tiers(), sfctr.Tiers(device=1 << 16)])
def test_what_comes_first_to_a_key_is_taken_as_it_is(tiers: sfctr.Tiers) -> None:
    with Store([sfctr.Table("t", dim=1, optimizer=SGD(lr=1.0))], tiers=tiers) as store:
        [group] = store.groups
        held = held_by(store, one(4, 5))
        add(group, held, 0, [-0.0, -0.0], [1, 0])
        vectors, _, reached = group.gradients(held)
        assert np.signbit(vectors[0, 0])
        assert reached.tolist() == [1, 0]
        store.discard((held,))
        assert group.gradients(held_by(store, one(4)))[2].tolist() == [0]  # nothing came


@pytest.mark.parametrize("tiers", [sfctr.Tiers(), sfctr.Tiers(device=1 << 16)])
def test_a_frozen_table_takes_no_gradients(tiers: sfctr.Tiers) -> None:
    table = sfctr.Table("t", dim=1, frozen=True, pretrained="vectors.parquet", optimizer=SGD(lr=1.0))
    with Store([table], tiers=tiers) as store:
        [group] = store.groups
        store.set_vectors("t", keys_of(4), np.ones((1, 1), F32))
        held = held_by(store, one(4, 5))
        assert group.kinds(held).tolist() == [ROW, ABSENT]
        add(group, held, 0, [2.0, 2.0], [1, 1])
        assert group.grad_norm_squared(held) == 0
        store.commit((held,))
        assert [b.vectors.tolist() for b in store.rows("t")] == [[[1.0]]]


@pytest.mark.parametrize("tiers", [sfctr.Tiers(), sfctr.Tiers(device=1 << 16)])
def test_records_are_whole_and_as_they_are_now(tiers: sfctr.Tiers) -> None:
    table = sfctr.Table("t", dim=1, init=sfctr.Uniform(1.0, 1.0), optimizer=SGD(lr=1.0, momentum=0.5))
    with Store([table], tiers=tiers) as store:
        [group] = store.groups
        held = held_by(store, one(4, 5))
        add(group, held, 0, [0.25, 0.5], [1, 1])
        store.commit((held,))
        later = held_by(store, one(9, 5, 4))
        assert group.records(later, np.array([2, 0])).tolist() == [[0.75, 0.25], [1.0, 0.0]]  # weight, momentum
        weights = np.empty((3, 1), F32)
        group.weights(later, weights)
        assert weights.tolist() == [[1.0], [0.5], [0.75]]
        group.weights(later, weights, np.array([2, 2, 0], np.int32))
        assert weights.tolist() == [[0.75], [0.75], [1.0]]
        with pytest.raises(ValueError, match="unique key 3 of 3"):
            group.native.weights(later, weights, np.array([0, 1, 3], np.int32))
        assert group.kinds(later).tolist() == [FRESH, ROW, ROW]


def test_a_snapshot_has_the_rows_as_they_were_before_others_trained_them() -> None:
    with Store([sfctr.Table("t", dim=1, init=sfctr.Uniform(1.0, 1.0), optimizer=SGD(lr=1.0))]) as store:
        [group] = store.groups
        for number in range(2):
            held = held_by(store, one(4), one(5 + number))
            add(group, held, 0, [0.5], [1])
            add(group, held, 1, [0.25], [1])
            store.commit((held,))
            if number == 0:
                group.begin_snapshot(True)
        found: dict[int, float] = {}
        while (part := group.take_snapshot(9)) is not None:
            found |= dict(zip(part[1].tolist(), part[3][:, 0].tolist(), strict=True))
        assert found == {4: 0.5, 5: 0.75}


def test_a_refused_key_counts_as_reached_wherever_it_was_reached() -> None:
    """Admitted by the second step that reaches it; two sources of one step are one step."""
    table = sfctr.Table("t", dim=1, init=sfctr.Uniform(1.0, 1.0), optimizer=SGD(lr=1.0), admit_after=2)
    with Store([table]) as store:
        [group] = store.groups
        for step in range(2):
            held = held_by(store, one(4, 5), one(5, 4))
            assert group.kinds(held).tolist() == ([REFUSED, REFUSED], [FRESH, REFUSED])[step]
            weights = np.empty((2, 1), F32)
            group.weights(held, weights)
            assert weights.tolist() == [[float(step)], [0.0]]
            add(group, held, 0, [2.0, 2.0], [1 if step else 4, 0])
            add(group, held, 1, [2.0, 2.0], [0, 1 if step else 4])
            assert group.gradients(held)[2].tolist() == ([4, 0], [1, 0])[step]
            store.commit((held,))
        assert group.membership(0)["refused"] == 1
        assert group.membership(0)["admitted"] == 1


def test_viewing_the_rows_that_others_ask_for_changes_nothing() -> None:
    table = sfctr.Table("t", dim=1, init=sfctr.Uniform(1.0, 1.0), optimizer=SGD(lr=1.0), admit_after=2, unseen="rare")
    with Store([table]) as store:
        [group] = store.groups
        asked = (keys_of(4, 5, 0, 1), np.array([0, 2, 4]))  # of batches that list the missing value and the rare row
        for _ in range(2):
            held = _native.WorkingSet.of_sources(1, [asked])
            assert store.plan((held,))
            store.fetch((held,))
            store.settle((held,))
            refused = group.kinds(held) == REFUSED
            reached = np.where(refused, 4, 1).astype(np.uint8) * np.array([1, 0, 0, 1], np.uint8)
            add(group, held, 0, [2.0, 0.0, 0.0, 0.25], reached.tolist())
            store.commit((held,))
        before = (group.membership(0), group.counters(), list(rows_in(store)))
        held = _native.WorkingSet.of_sources(1, [asked])
        store.view((held,))
        weights = np.empty((4, 1), F32)
        group.weights(held, weights)
        assert group.kinds(held).tolist() == [ROW, ABSENT, ABSENT, ROW]
        assert weights.tolist() == [[-1.0], [0.0], [0.0], [0.5]]
        assert (group.membership(0), group.counters(), list(rows_in(store))) == before
        # Whoever adopts them reads the rare row for keys without one, and counts those as unseen.
        batch = _native.WorkingSet(1, 3, [_native.FeatureKeys(0, "one", keys_of(5, 4, 5))], [0])
        ids = np.array([1, 0, 3])  # of the batch's keys 5 and 4, and of its rare row, in `held`
        group.adopt(batch, weights[ids], group.kinds(held)[ids], train=False)
        out = np.empty(3, F32)
        group.native.forward(batch, 0, 3, out)
        assert out.tolist() == [0.5, -1.0, 0.5]
        assert group.native.unseen(batch).tolist() == [2]


def rows_in(store: Store) -> Iterator[Any]:
    for block in store.rows("t"):
        yield block.keys.tolist(), block.vectors.tolist()


@pytest.mark.parametrize("tiers", [sfctr.Tiers(), sfctr.Tiers(device=1 << 16)])
def test_adopted_rows_are_looked_up_and_refuse_all_that_changes_rows(tiers: sfctr.Tiers) -> None:
    with Store([sfctr.Table("t", dim=1, optimizer=SGD(lr=1.0))], tiers=tiers) as store:
        [group] = store.groups
        held_by(store, one(1))  # so that rows are on the device, where there is one
        batch, elsewhere = one(4, 5, 4), "rows .*are from elsewhere"
        group.adopt(batch, np.array([[1.0], [2.0]], F32), None, train=True)
        rows = group.on_device(batch)
        assert (rows is not None) == store.has_device_tier
        out = np.empty(3, F32)
        group.native.forward(batch, 0, 3, out)
        assert out.tolist() == [1.0, 2.0, 1.0]
        with pytest.raises(RuntimeError, match=elsewhere):
            store.plan((batch,))
        with pytest.raises(RuntimeError, match=elsewhere):
            store.commit((batch,))
        with pytest.raises(RuntimeError, match=elsewhere):
            group.native.add_gradients(
                batch, np.array([0], np.int32), np.ones((1, 1), F32), np.empty(0, F32), np.ones(1, np.uint8)
            )
        assert store.num_rows("t") == 0
        store.discard((batch,))
        assert group.on_device(batch) is None
        with pytest.raises(RuntimeError, match="locate this working set"):
            group.native.forward(batch, 0, 3, out)
        assert store.plan((batch,))  # now it is a batch like any other


def test_what_does_not_fit_is_refused_with_nothing_added() -> None:
    with Store([sfctr.Table("t", dim=1, optimizer=SGD(lr=1.0))]) as store:
        [group] = store.groups
        held, batch = held_by(store, one(4, 5)), one(4, 5)
        give = group.native.add_gradients
        none, both = np.empty(0, F32), np.ones((2, 1), F32)

        def ids(*numbers: int) -> np.ndarray:
            return np.array(numbers, np.int32)

        for args, words in (
            ((ids(0, 2), both, none, np.ones(2, np.uint8)), r"ids\[1\] is 2, which is none of 2 unique keys"),
            ((ids(-1, 0), both, none, np.ones(2, np.uint8)), r"ids\[0\] is -1, which is none of 2 unique keys"),
            ((ids(1, 1), both, none, np.ones(2, np.uint8)), r"ids\[1\] is 1, which is there twice"),
            ((ids(0, 1), both, none, np.full(2, 4, np.uint8)), "unique key 0 was reached as one refused and has a row"),
            ((ids(0), both, none, np.ones(1, np.uint8)), r"vectors has shape \[2, 1\] and must have \[1, 1\]"),
            ((ids(0, 1), both, none, np.ones(1, np.uint8)), "reached has 1 entries and needs 2"),
            ((ids(0, 1), both, np.ones(2, F32), np.ones(2, np.uint8)), "linear has 2 entries and needs 0"),
        ):
            with pytest.raises(ValueError, match=words):
                give(held, *args)
        assert not held.has_gradients
        with pytest.raises(ValueError, match=r"weights has shape \[1, 1\] and must have \[2, 1\]"):
            group.native.adopt(batch, np.ones((1, 1), F32), None, True)
        with pytest.raises(ValueError, match="unique key 1 has kind 2, which no row of this group can have"):
            group.native.adopt(batch, both, np.array([0, 2], np.uint8), True)
        with pytest.raises(ValueError, match="rows are adopted by a batch"):
            group.native.adopt(merged(batch), both, None, True)
        store.view((merged(batch),))
        viewed = merged(batch)
        store.view((viewed,))
        with pytest.raises(RuntimeError, match="located for reading"):
            give(viewed, ids(0), both[:1], none, np.ones(1, np.uint8))


def test_weights_that_were_adopted_are_kept_as_long_as_they_are_read() -> None:
    with Store([sfctr.Table("t", dim=64)]) as store:
        [group] = store.groups
        batch, out = one(*range(1000)), np.empty(64_000, F32)
        group.adopt(batch, np.ones((1000, 64), F32), None, train=True)
        for _ in range(3):
            np.zeros((1000, 64), F32)  # would take the place of an array that is gone
        group.native.forward(batch, 0, 1000, out)
        assert (out == 1).all()


def test_a_shard_is_the_leading_byte_of_the_hash_in_whose_order_rows_are_exported() -> None:
    keys, shards = np.arange(1000, dtype=np.uint64), np.empty(1000, np.uint8)
    _native.shards_of(keys, shards)
    assert (int(shards.min()), int(shards.max()), NUM_SHARDS) == (0, 255, 256)
    assert [int(shards[k]) for k in (0, 1, 2)] == [numpy_twin.mix(k) >> 56 for k in (0, 1, 2)]
    with Store([sfctr.Table("t", dim=1)]) as store:
        store.set_vectors("t", keys, np.zeros((1000, 1), F32))
        exported = np.concatenate([block.keys for block in store.rows("t")])
    found = np.empty(1000, np.uint8)
    _native.shards_of(exported, found)
    assert (np.diff(found.astype(int)) >= 0).all()


@pytest.mark.parametrize(
    ("options", "shares"),
    [
        ({}, 256),
        ({"expire_after_steps": 3}, 256),
        ({"capacity": 127}, 1),
        ({"capacity": 128}, 2),
        ({"capacity": 1000}, 8),
        ({"capacity": 1 << 30}, 256),
        ({"admit_after": 2}, 256),  # 65,536 keys wait at most
        ({"capacity": 1000, "admit_after": 2}, 8),
    ],
)
def test_shares_are_as_many_as_keep_64_keys_each(options: dict[str, Any], shares: int) -> None:
    with Store([sfctr.Table("t", dim=1, **options)]) as store:
        assert store.groups[0].shares(0) == shares
