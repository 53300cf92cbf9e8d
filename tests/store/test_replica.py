"""Copies of rows have the bits of the rows, however little RAM they have, and however far ahead they are planned."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sfctr
from sfctr import _native
from sfctr.spec.optim import FTRL, SGD, Adagrad, Adam, Optimizer, RowWiseAdagrad
from sfctr.store import Group, Replica, Store

F32 = np.float32
RULES: dict[str, Optimizer] = {
    "sgd": SGD(lr=0.3),
    "momentum": SGD(lr=0.3, momentum=0.9),
    "adagrad": Adagrad(lr=0.3),
    "rowwise": RowWiseAdagrad(lr=0.3),
    "adam": Adam(lr=0.1),
    "adam_row": Adam(lr=0.1, bias_correction="row"),
    "ftrl": FTRL(lr=0.3, l1=0.01),
}
Source = tuple[np.ndarray, np.ndarray]


def source(tables: list[list[int]]) -> Source:
    """Keys of each table in turn; -1 is its missing value."""
    lists = [part for keys in tables for part in ([k for k in keys if k >= 0], [0] * (-1 in keys))]
    unique = [list(dict.fromkeys(part)) for part in lists]
    begin = np.cumsum([0, *(len(part) for part in unique)])
    return np.array([key for part in unique for key in part], dtype=np.uint64), begin


class Pair:
    """A store that holds rows and a replica that copies them. Batches are begun in order, and finished in order."""

    def __init__(self, store: Store, *, ram: int | None = None, seed: int = 3) -> None:
        self.store, [self.group] = store, store.groups
        self.budget = _native.Budget(2**40 if ram is None else ram)
        self.replica = Replica(self.group.plan, store.seed, self.budget)
        self.flight: deque[tuple[Source, _native.WorkingSet, _native.WorkingSet]] = deque()
        self.random = np.random.default_rng(seed)
        self.asked: list[int] = []
        self.known: set[tuple[int, int]] = set()
        """Keys that were ever copied: the twin of a replica that has room for all."""

    def begin(self, keys: Source) -> None:
        num_tables = len(self.group.plan.tables)
        held, copies = (_native.WorkingSet.of_sources(num_tables, [keys]) for _ in range(2))
        self.store.announce((held,))
        self.replica.announce(copies)
        while not self.store.plan((held,)):
            self.finish()
        self.store.fetch((held,))
        while not self.replica.place(copies):
            self.finish()
        while not self.store.lift((held,)):
            self.finish()
        self.flight.append((keys, held, copies))

    def finish(self, *, commit: bool = True) -> None:
        (keys, begin), held, copies = self.flight.popleft()
        self.store.settle((held,))
        missing = self.replica.missing(copies)
        self.asked.append(missing.size)
        named = [(int(np.searchsorted(begin, u, side="right")) - 1, int(key)) for u, key in enumerate(keys)]
        new = {name for name in named if name not in self.known}
        assert new <= {named[u] for u in missing}
        if self.budget.limit == 2**40:
            assert new == {named[u] for u in missing}
        self.known |= new
        for part in np.array_split(missing, 2):  # as several holders would give them
            self.replica.fill(copies, part, self.group.records(held, part))
        self.check(held, copies)
        if not commit:
            self.store.discard((held,))
            self.replica.discard(copies)
            return
        for ids in np.array_split(self.random.permutation(held.num_unique).astype(np.int32), 2):
            self.group.add_gradients(held, ids, *self.gradients(ids.size))
        self.replica.add_gradients(copies, np.arange(held.num_unique, dtype=np.int32), *self.group.gradients(held))
        self.replica.update(copies, self.store.steps + 1, lr_factor=0.5, scale=0.25)
        self.store.commit((held,), lr_factor=0.5, scale=0.25)

    def gradients(self, n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        linear = self.random.normal(size=n) if self.group.plan.linear_rule else []
        reached = self.random.integers(0, 4, n) & (3 if self.group.plan.linear_rule else 1)
        vectors = self.random.normal(size=(n, self.group.plan.dim))
        return vectors.astype(F32), np.array(linear, F32), reached.astype(np.uint8)

    def check(self, held: _native.WorkingSet, copies: _native.WorkingSet) -> None:
        found = np.full((2, held.num_unique, self.group.wire_words), np.nan, dtype=F32)
        self.group.weights(held, found[0])
        self.replica.weights(copies, found[1])
        assert found[0].tobytes() == found[1].tobytes()

    def end(self) -> None:
        """Every copy that is left is its row, or what that would begin as."""
        while self.flight:
            self.finish()
        self.group._lower()
        for space in range(2 * len(self.group.plan.tables)):
            keys, records, _ = self.replica.native.export_rows(space, 0, 1 << 20)
            rows = np.empty_like(records)
            self.group.native.initial_records(space, keys, rows)
            self.group.native.find(space, keys, rows)
            assert rows.tobytes() == records.tobytes()


def tables(rule: str, dtype: str = "fp32", *, linear: bool = True) -> list[sfctr.Table]:
    options: dict[str, Any] = {"dim": 5, "dtype": dtype, "optimizer": RULES[rule]}
    return [sfctr.Table(name, **options, linear=RULES[rule] if linear else None) for name in ("item", "shop")]


@pytest.mark.parametrize("ram", [None, 4_000, 300])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("rule", RULES)
def test_a_copy_has_the_bits_of_its_row(rule: str, dtype: str, ram: int | None) -> None:
    rng = np.random.default_rng(0)
    with Store(tables(rule, dtype), tiers=sfctr.Tiers(device=2_000)) as store:
        pair = Pair(store, ram=ram)
        for _ in range(25):
            pair.begin(source([(rng.zipf(1.3, 12) % 60 - 1).tolist() for _ in range(2)]))
            if len(pair.flight) > 2:
                pair.finish()
        pair.end()
        assert sum(pair.asked) == len(pair.known) if ram is None else sum(pair.asked) > len(pair.known)
        assert (pair.replica.counters()["evicted"] > 0) == (ram == 4_000)
        assert ram is None or pair.budget.used <= ram
        assert (pair.replica.counters()["scratch"] > 0) == (ram == 300)


@settings(max_examples=60, deadline=None)
@given(
    batches=st.lists(st.lists(st.lists(st.integers(-1, 12), max_size=6), min_size=2, max_size=2), max_size=14),
    window=st.integers(0, 4),
    ram=st.sampled_from([None, 2_000, 600, 100]),
    commits=st.lists(st.booleans(), min_size=14, max_size=14),
    linear=st.booleans(),
)
def test_for_any_batches_window_and_room(
    batches: list[list[list[int]]], window: int, ram: int | None, commits: list[bool], linear: bool
) -> None:
    fates = iter(commits)
    with Store(tables("adagrad", linear=linear)) as store:
        pair = Pair(store, ram=ram)
        for keys in batches:
            pair.begin(source(keys))
            if len(pair.flight) > window:
                pair.finish(commit=next(fates))
        pair.end()


def one(*keys: int) -> Source:
    return source([list(keys)])


def test_a_row_that_the_step_before_brought_is_missing_no_more() -> None:
    """Three batches planned at once, of keys 1 2, 2 3 and 3 4."""
    with Store([sfctr.Table("t", dim=1, optimizer=SGD(lr=1.0))]) as store:
        pair = Pair(store)
        for keys in ((1, 2), (2, 3), (3, 4)):
            pair.begin(one(*keys))
        pair.finish()
        pair.finish(commit=False)  # what it brought is a copy all the same
        pair.finish()
        assert pair.asked == [2, 1, 1]
        assert pair.replica.num_rows == 4
        pair.end()


def test_a_batch_that_asked_for_nothing_leaves_no_copy() -> None:
    with Store([sfctr.Table("t", dim=1, optimizer=SGD(lr=1.0))]) as store:
        pair = Pair(store)
        pair.begin(one(1, 2))
        pair.begin(one(2, 3))
        _, held, copies = pair.flight.popleft()
        store.discard((held,))
        pair.replica.discard(copies)
        pair.finish()
        assert pair.asked == [2]
        assert pair.replica.num_rows == 2
        pair.end()


def test_copies_that_are_not_filled_are_not_used() -> None:
    with Store([sfctr.Table("t", dim=1, optimizer=SGD(lr=1.0))]) as store:
        pair, words = Pair(store), "ask which copies are missing, and fill all of them"
        pair.begin(one(1, 2))
        _, held, copies = pair.flight[0]
        for call in (
            lambda: pair.replica.weights(copies, np.empty((2, 1), F32)),
            lambda: pair.replica.update(copies, 1, lr_factor=1.0, scale=1.0),
            lambda: pair.replica.add_gradients(copies, np.arange(2, dtype=np.int32), *pair.gradients(2)),
            lambda: (
                pair.replica.fill(copies, pair.replica.missing(copies)[:1], np.ones((1, 1), F32))
                or pair.replica.weights(copies, np.empty((2, 1), F32))
            ),
        ):
            with pytest.raises(RuntimeError, match=words):
                call()
        with pytest.raises(ValueError, match="unique key 2 of 2"):
            pair.replica.fill(copies, np.array([2]), np.ones((1, 1), F32))
        with pytest.raises(ValueError, match=r"records must be \[1, 1\]"):
            pair.replica.fill(copies, np.array([1]), np.ones((1, 2), F32))
        with pytest.raises(RuntimeError, match="while batches are in flight"):
            pair.replica.clear()
        with pytest.raises(RuntimeError, match="its own, and no copies"):
            pair.group.native.missing(held)
        store.discard((held,))
        pair.replica.discard(copies)


def test_after_clear_everything_is_asked_for_again() -> None:
    with Store([sfctr.Table("t", dim=1, optimizer=SGD(lr=1.0))]) as store:
        pair = Pair(store)
        pair.begin(one(1, 2))
        pair.finish()
        store.set_vectors("t", np.array([2], np.uint64), np.array([[7.0]], F32))
        pair.replica.clear()
        pair.known.clear()
        assert pair.replica.num_rows == 0
        pair.begin(one(2, 1))
        pair.finish()
        assert pair.asked == [2, 2]
        pair.end()
        assert pair.budget.used == 2 * (24 + 4 + 4)  # a key, a row, and what is kept about its frame


def test_a_frozen_table_is_copied_and_not_trained(tmp_path: Path) -> None:
    table = sfctr.Table("t", dim=1, frozen=True, pretrained="vectors.parquet", optimizer=SGD(lr=1.0))
    with Store([table]) as store:
        store.set_vectors("t", np.array([4], np.uint64), np.ones((1, 1), F32))
        pair = Pair(store)
        for _ in range(2):
            pair.begin(one(4, 5, -1))
            pair.finish()
        assert pair.asked == [3, 0]
        group: Group = pair.group
        copies = _native.WorkingSet.of_sources(1, [one(4, 5)])
        assert pair.replica.place(copies)
        assert pair.replica.missing(copies).size == 0
        everything = np.ones((2, 1), F32), np.empty(0, F32), np.ones(2, np.uint8)
        pair.replica.add_gradients(copies, np.arange(2, dtype=np.int32), *everything)
        pair.replica.update(copies, 3, lr_factor=1.0, scale=1.0)
        assert group.native.num_rows(0) == 1
        keys, records, _ = pair.replica.native.export_rows(0, 0, 9)
        assert dict(zip(keys.tolist(), records[:, 0].tolist(), strict=True)) == {4: 1.0, 5: 0.0}


def test_copies_take_neither_a_disk_nor_membership(tmp_path: Path) -> None:
    plain = _native.TableInit(1, 2, "normal", 0.0, 1.0)
    bounded = _native.TableInit(1, 2, "normal", 0.0, 1.0, membership=_native.MembershipRule(capacity=5))
    for init, disk in ((plain, str(tmp_path)), (bounded, None)):
        with pytest.raises(ValueError, match="copies have neither a disk nor membership"):
            _native.RowGroup(1, False, "sgd", None, [init], disk=disk, forgets=True)
