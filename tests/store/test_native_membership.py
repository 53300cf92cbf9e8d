"""Who has a row over time: against the twin for any stream, options, window and memory, and by hand."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import members_twin
import numpy as np
import numpy_twin
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from members_twin import Rule
from test_native_tiers import F32, RULES, ZERO, all_rows, batches, matrix, ram_for

from sfctr import _native

SECOND = 10**9


def make(twin: members_twin.Group, *, ram: int | None = None, disk: Path | None = None) -> _native.RowGroup:
    inits = [
        _native.TableInit(
            t.seed, t.null_seed, t.kind, t.a, t.b, t.state0, t.linear_state0, membership=native_rule(members.rule)
        )
        for t, members in zip(twin.tables, twin.members, strict=True)
    ]
    budget = None if ram is None else _native.Budget(ram)
    directory = None if disk is None else str(disk)
    return _native.RowGroup(twin.dim, twin.has_linear, twin.vector_rule, twin.linear_rule, inits, budget, directory)


def native_rule(rule: Rule) -> _native.MembershipRule:
    return _native.MembershipRule(
        rule.capacity, rule.admit_after, rule.expire_after_steps, rule.expire_after_ns, rule.rare, rule.most_waiting
    )


def working_set(twin: members_twin.Group, features: Sequence[numpy_twin.Feature]) -> _native.WorkingSet:
    size = len(features[0].offsets) - 1 if features[0].offsets is not None else len(features[0].keys)
    keys = [_native.FeatureKeys(f.table, f.pooling, f.keys, f.offsets, f.nulls, None, 0, 0) for f in features]
    rare = [t for t, members in enumerate(twin.members) if members.rule.rare]
    return _native.WorkingSet(len(twin.tables), size, keys, rare)


class Replay:
    """Batches in flight, finished in order on both sides."""

    def __init__(self, twin: members_twin.Group, group: _native.RowGroup, fates: Sequence[str]) -> None:
        self.twin, self.group, self.fates = twin, group, iter(fates)
        self.flight: deque[tuple[list[numpy_twin.Feature], int | None, _native.WorkingSet]] = deque()
        self.random = np.random.default_rng(0)
        self.hyper = [ZERO | {"lr": 0.1, "eps": 1e-8, "beta1": 0.9, "beta2": 0.99, "momentum": 0.9, "beta": 1.0}]
        self.hyper *= len(twin.tables)

    def begin(self, features: list[numpy_twin.Feature], time: int | None) -> None:
        ws = working_set(self.twin, features)
        while not self.group.plan(ws):
            self.finish_oldest()
        self.group.fetch(ws)
        self.flight.append((features, time, ws))

    def finish_oldest(self) -> None:
        features, time, ws = self.flight.popleft()
        step, fate = self.twin.locate(features, train=True), next(self.fates)
        self.group.settle(ws, time)
        if "look" in fate:
            self.check_counts()
        self.check_forward(step, ws)
        if "discard" in fate:
            self.group.discard(ws)
        else:
            self.train(step, ws, time, skips_first="half" in fate)
        if "remove" in fate:
            keys = features[-1].keys
            assert self.group.remove_rows(0, keys) == self.twin.withdraw(0, keys.tolist())

    def train(self, step: members_twin.Settled, ws: _native.WorkingSet, time: int | None, *, skips_first: bool) -> None:
        number, size = self.twin.step + 1, ws.num_rows
        grads = [self.random.normal(size=(size, self.twin.dim)).astype(F32) for _ in step.features]
        given = [None if skips_first and f == 0 else g for f, g in enumerate(grads)]
        linear = [None if g is None else g[:, 0].copy() for g in given] if self.twin.has_linear else []
        for begin, end in ((0, size // 2), (size // 2, size)):
            part = [None if g is None else g[begin:end] for g in given]
            linear_part = [None if g is None else g[begin:end] for g in linear]
            self.twin.backward(step, begin, end, part, linear_part)
            self.group.backward(ws, begin, end, part, linear_part)
        assert self.group.grad_norm_squared(ws) == self.twin.grad_norm_squared(step)
        self.twin.update(step, number, 1.0, self.hyper, self.hyper, time)
        self.group.update(ws, number, 1.0, matrix(self.hyper), matrix(self.hyper) if linear else None)

    def check_forward(self, step: members_twin.Settled, ws: _native.WorkingSet) -> None:
        out = np.empty(self.group.forward_floats(ws, ws.num_rows), dtype=F32)
        self.group.forward(ws, 0, ws.num_rows, out)
        vectors, _ = self.twin.forward(step, 0, ws.num_rows)
        np.testing.assert_array_equal(out, np.concatenate([v.ravel() for v in vectors]))
        assert self.group.unseen(ws).tolist() == self.twin.unseen(step)

    def check_reading(self, features: list[numpy_twin.Feature]) -> None:
        ws = working_set(self.twin, features)
        self.group.locate(ws, train=False)
        self.check_forward(self.twin.locate(features, train=False), ws)

    def check_counts(self) -> None:
        for t, members in enumerate(self.twin.members):
            assert self.group.membership(t) == members.counters | {"waiting": len(members.waiting)}
            assert self.group.num_rows(2 * t) == len(members.last)

    def check(self) -> None:
        rows = all_rows(self.group, len(self.twin.tables))
        assert rows.keys() == self.twin.rows.keys()
        for key, record in rows.items():
            np.testing.assert_array_equal(record, self.twin.rows[key])
        for t, members in enumerate(self.twin.members):
            keys = np.array(list(members.last), dtype=np.uint64)
            assert self.group.last_trained(2 * t, keys).tolist() == list(members.last.values())
            keys, counts, last = self.group.waiting(t)
            assert dict(zip(keys.tolist(), zip(counts.tolist(), last.tolist(), strict=True), strict=True)) == (
                members.waiting
            )
            assert keys.tolist() == sorted(members.waiting, key=numpy_twin.mix)
        self.check_counts()


def moved(twin: members_twin.Group, group: _native.RowGroup, to: _native.RowGroup) -> _native.RowGroup:
    """All that a group holds, put into another."""
    to.restore_clock(twin.step, *group.clock())
    for n in range(2 * len(twin.tables)):
        keys, records, _ = group.export_rows(n, 0, 2**20)
        to.import_rows(n, keys, records, group.last_trained(n, keys))
    for t in range(len(twin.tables)):
        to.restore_membership(t, group.membership(t), *group.waiting(t))
    return to


# ------------------------------------------------------------------------------------------------------ worked by hand


def test_of_a_batch_larger_than_the_capacity_the_keys_of_the_largest_hashes_stay() -> None:
    twin = members_twin.Group(1, "sgd", None, [numpy_twin.Table(seed=1, null_seed=2)], [Rule(capacity=3)])
    run = Replay(twin, make(twin), ["train", "train"])
    for keys in ([9], [1, 2, 3, 4, 5]):
        run.begin([numpy_twin.Feature(table=0, pooling="one", keys=np.array(keys, dtype=np.uint64))], None)
        run.finish_oldest()
    stayed = sorted([1, 2, 3, 4, 5], key=numpy_twin.mix)[2:]
    assert sorted(all_rows(run.group, 1)) == [(0, key) for key in sorted(stayed)]


def test_a_batch_is_settled_before_it_is_used_and_after_it_is_fetched() -> None:
    twin = members_twin.Group(1, "sgd", None, [numpy_twin.Table(seed=1, null_seed=2)], [Rule(admit_after=2, rare=True)])
    group, features = make(twin), [numpy_twin.Feature(table=0, pooling="one", keys=np.arange(3, dtype=np.uint64))]
    ws, out = working_set(twin, features), np.empty(3, dtype=F32)
    with pytest.raises(RuntimeError, match="plan and fetch this working set first"):
        group.settle(ws)
    group.locate(ws, train=True)
    with pytest.raises(RuntimeError, match="settle this working set first"):
        group.forward(ws, 0, 3, out)
    group.settle(ws)
    group.settle(ws)
    group.forward(ws, 0, 3, out)
    with pytest.raises(ValueError, match="table 0 has a rare row in the group and not in the working set"):
        group.plan(_native.WorkingSet(1, 0, []))


def test_rows_are_not_removed_under_a_settled_batch() -> None:
    twin = members_twin.Group(1, "sgd", None, [numpy_twin.Table(seed=1, null_seed=2)], [Rule(capacity=9)])
    keys = np.arange(3, dtype=np.uint64)
    run = Replay(twin, make(twin), ["train"])
    run.begin([numpy_twin.Feature(table=0, pooling="one", keys=keys)], None)
    run.finish_oldest()
    ahead = working_set(twin, [numpy_twin.Feature(table=0, pooling="one", keys=keys)])
    run.group.locate(ahead, train=True)
    assert run.group.remove_rows(0, keys[:1]) == 1
    run.group.settle(ahead)
    with pytest.raises(RuntimeError, match="while a batch that may hold them is in flight; end it first"):
        run.group.remove_rows(0, keys)
    out = np.empty(3, dtype=F32)
    run.group.forward(ahead, 0, 3, out)
    assert out[0] == twin.initial(0, 0)[0] != twin.rows[0, 0][0] and out[1] == twin.rows[0, 1][0]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"admit_after": 0}, "admit_after must be 1 to 10"),
        ({"expire_after_steps": 1, "expire_after_ns": 1}, "expire by steps or by event time"),
    ],
)
def test_rules_at_odds_are_refused(options: dict[str, int], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        _native.MembershipRule(**options)


# ------------------------------------------------------------------------------------------------------------ property


@st.composite
def rules(draw: st.DrawFn) -> Rule:
    admit_after = draw(st.sampled_from([1, 1, 2, 3]))
    ages = draw(
        st.sampled_from([{}, {"expire_after_steps": 1}, {"expire_after_steps": 3}, {"expire_after_ns": SECOND}])
    )
    return Rule(
        capacity=draw(st.sampled_from([0, 1, 3, 8])),
        admit_after=admit_after,
        rare=admit_after > 1 and draw(st.booleans()),
        most_waiting=draw(st.sampled_from([2, 5, 65536])),
        **ages,
    )


FATES = ["train", "train", "train", "train look", "half", "half look", "train remove", "discard", "discard look"]


@settings(max_examples=150, deadline=None)
@given(
    stream=batches(),
    rule=rules().filter(lambda rule: rule != replace(Rule(), most_waiting=rule.most_waiting)),
    other=st.just(Rule()) | rules(),
    optimizers=st.sampled_from(RULES),
    frames=st.integers(1, 12) | st.none(),
    window=st.integers(0, 4),
    fates=st.lists(st.sampled_from(FATES), min_size=8, max_size=8),
    times=st.lists(st.integers(-1, 6) | st.none(), min_size=8, max_size=8),
    move_after=st.integers(0, 8),
)
def test_rows_state_ages_counts_and_counters_equal_the_twins(
    tmp_path_factory: pytest.TempPathFactory,
    stream: list[list[numpy_twin.Feature]],
    rule: Rule,
    other: Rule,
    optimizers: tuple[str, str | None],
    frames: int | None,
    window: int,
    fates: list[str],
    times: list[int | None],
    move_after: int,
) -> None:
    tables = [numpy_twin.Table(seed=3 + t, null_seed=13 + t, b=0.5) for t in range(2)]
    twin = members_twin.Group(3, *optimizers, tables, [rule, other])
    ram = None if frames is None else ram_for(make(twin), 100, frames)

    def fresh() -> _native.RowGroup:
        return make(twin, ram=ram, disk=None if ram is None else tmp_path_factory.mktemp("rows"))

    run = Replay(twin, fresh(), fates)
    for number, (features, time) in enumerate(zip(stream, times, strict=False)):
        run.begin(features, None if time is None else time * SECOND // 2)
        while len(run.flight) > window:
            run.finish_oldest()
        run.check_reading(features)
        if number + 1 == move_after:
            while run.flight:
                run.finish_oldest()
            run.group = moved(twin, run.group, fresh())
    while run.flight:
        run.finish_oldest()
    run.check()


def test_many_keys_over_many_shards_and_steps(tmp_path: Path) -> None:
    rule = Rule(capacity=1000, admit_after=2, expire_after_steps=40, rare=True, most_waiting=300)
    twin = members_twin.Group(2, "adagrad", None, [numpy_twin.Table(seed=1, null_seed=2, b=0.5)], [rule])
    group = make(twin, ram=ram_for(make(twin), 2500, 900), disk=tmp_path)
    run = Replay(twin, group, ["train"] * 300)
    random = np.random.default_rng(1)
    for number in range(300):
        drift = number * 8
        keys = (random.zipf(1.3, 60) % 3000 + drift).astype(np.uint64) << np.uint64(32)
        run.begin([numpy_twin.Feature(table=0, pooling="one", keys=keys)], None)
        while len(run.flight) > 3:
            run.finish_oldest()
    while run.flight:
        run.finish_oldest()
    counters = twin.members[0].counters
    assert all(counters[name] > 100 for name in ("admitted", "refused", "expired", "forgotten"))
    run.check()


def bounded_group(ram: int | None = None) -> _native.RowGroup:
    """One table of capacity 1000 and dim 4."""
    init = _native.TableInit(1, 2, "normal", 0.0, 0.1, membership=_native.MembershipRule(capacity=1000))
    return _native.RowGroup(4, False, "sgd", None, [init], None if ram is None else _native.Budget(ram))


def train_keys(group: _native.RowGroup, step: int, keys: list[int], *, missing: bool = False) -> None:
    array = np.array(keys, dtype=np.uint64)
    nulls = np.full(len(keys), missing, dtype=np.uint8)
    ws = _native.WorkingSet(1, len(keys), [_native.FeatureKeys(0, "one", array, nulls=nulls)])
    group.locate(ws, True)
    group.settle(ws)
    group.backward(ws, 0, len(keys), [np.ones(4 * len(keys), dtype=np.float32)], [])
    group.update(ws, step, 1.0, np.zeros((1, len(_native.hyper_columns()))))


def test_the_row_of_missing_values_is_no_key_of_its_table() -> None:
    group = bounded_group()
    group.list_gone(True)
    train_keys(group, 1, [5], missing=True)
    assert group.remove_rows(1, np.zeros(1, dtype=np.uint64)) == 1
    assert group.take_gone() == []
    train_keys(group, 2, [0], missing=True)
    train_keys(group, 3, [7])
    assert [group.num_rows(n) for n in (0, 1)] == [1, 1]


def test_rows_of_an_import_that_fails_half_way_have_their_age_and_are_counted() -> None:
    group, keys = bounded_group(ram=5000), np.arange(150, dtype=np.uint64)
    steps = np.full(keys.size, 7, dtype=np.uint32)
    with pytest.raises(_native.RamFull):
        group.import_rows(0, keys, np.ones((keys.size, 4), dtype=np.float32), steps)
    there = group.num_rows(0)
    assert 0 < there < keys.size
    assert np.bincount(group.last_trained(0, keys)).tolist() == [keys.size - there, 0, 0, 0, 0, 0, 0, there]
    assert group.remove_rows(0, keys) == there
    train_keys(group, 8, [9])
    train_keys(group, 9, [9])
    assert group.num_rows(0) == 1


def test_what_is_restored_stands_in_place_of_what_was() -> None:
    init = _native.TableInit(1, 2, "normal", 0.0, 0.1, membership=_native.MembershipRule(admit_after=3))
    group = _native.RowGroup(4, False, "sgd", None, [init])
    for waiting in ([1, 2, 3], [3, 4], []):
        keys, numbers = np.array(waiting, dtype=np.uint64), np.ones(len(waiting), dtype=np.uint32)
        group.restore_membership(0, {"refused": len(waiting)}, keys, numbers, numbers)
        assert sorted(group.waiting(0)[0].tolist()) == waiting
        assert group.membership(0)["refused"] == group.membership(0)["waiting"] == len(waiting)
