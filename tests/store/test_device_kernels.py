"""Rows on a device against the native kernels, bit for bit on the CPU: forward, merged gradients, norm, updates.

One body, `trace`, runs the same steps on both and lists every number that comes out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sfctr import _native
from sfctr.store import device as dev

F32 = np.float32
RULES = ["sgd", "momentum", "adagrad", "rowwise_adagrad", "adam", "adam_row", "ftrl"]
HYPER = {"lr": 0.05, "eps": 1e-8, "momentum": 0.9, "beta1": 0.9, "beta2": 0.999, "beta": 1.0}


@dataclass(frozen=True, kw_only=True)
class Feature:
    table: int
    pooling: str = "one"
    distinct: int = 5
    weighted: bool = False
    mean_length: float = 2.0
    vector_gradient: bool = True
    weight_gradient: bool = True


@dataclass(frozen=True, kw_only=True)
class Case:
    """What the steps are made from. cuts: inner bounds of the micro-batches, as shares of the batch."""

    dim: int = 16
    linear: bool = True
    rule: str = "rowwise_adagrad"
    linear_rule: str = "ftrl"
    features: tuple[Feature, ...] = (Feature(table=0),)
    frozen: tuple[bool, ...] = (False,)
    hyper: tuple[dict[str, float], ...] = (HYPER,)
    num_rows: int = 50
    num_steps: int = 2
    cuts: tuple[float, ...] = ()
    scale: float = 1.0
    size: float = 1.0
    seed: int = 0

    @property
    def hyper_lines(self) -> np.ndarray:
        columns = _native.hyper_columns()
        return np.array([[float(line.get(column, 0.0)) for column in columns] for line in self.hyper])

    def group(self) -> _native.RowGroup:
        inits = [
            _native.TableInit(7 * t + 1, 7 * t + 2, "normal", 0.0, self.size, 0.1 * self.size, 0.2 * self.size, frozen)
            for t, frozen in enumerate(self.frozen)
        ]
        rule = self.rule if self.dim else "none"
        return _native.RowGroup(self.dim, self.linear, rule, self.linear_rule if self.linear else None, inits)


@dataclass
class Batch:
    """A working set and the gradients of its positions."""

    case: Case
    keys: list[dict[str, Any]] = field(default_factory=list)
    grads: list[np.ndarray | None] = field(default_factory=list)
    linear_grads: list[np.ndarray | None] = field(default_factory=list)

    def working_set(self) -> _native.WorkingSet:
        return _native.WorkingSet(
            len(self.case.frozen), self.case.num_rows, [_native.FeatureKeys(**keys) for keys in self.keys]
        )

    def part(self, begin: int, end: int) -> tuple[list[np.ndarray | None], list[np.ndarray | None]]:
        of_range = [[None if g is None else g[begin:end] for g in grads] for grads in (self.grads, self.linear_grads)]
        return of_range[0], of_range[1]


def values(random: np.random.Generator, case: Case, *shape: int) -> np.ndarray:
    """Normal numbers, with zeros of both signs among them."""
    drawn = (random.normal(size=shape) * case.size).astype(F32)
    drawn[random.random(shape) < 0.1] = F32(0.0)
    drawn[random.random(shape) < 0.1] = F32(-0.0)
    return drawn


def make_batch(case: Case, random: np.random.Generator) -> Batch:
    batch, n = Batch(case), case.num_rows
    for feature in case.features:
        lengths = random.poisson(feature.mean_length, n) * (random.random(n) > 0.2)
        one = feature.pooling == "one"
        size = n if one else int(lengths.sum())
        keys: dict[str, Any] = {"table": feature.table, "pooling": feature.pooling}
        keys["keys"] = random.integers(0, feature.distinct, size).astype(np.uint64)
        if one:
            keys["nulls"] = (random.random(n) < 0.2).astype(np.uint8)
        else:
            keys["offsets"] = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        if feature.weighted and feature.pooling in ("sum", "mean"):
            keys["weights"] = random.choice(np.array([-1, -0.5, 0, 0.5, 1, 0.3, 1e-3], dtype=F32), size)
        max_length = int(lengths.max(initial=0)) + 1 if feature.pooling == "sequence" else 0
        keys["max_length"] = max_length
        batch.keys.append(keys)
        shape = (n, max_length, case.dim) if max_length else (n, case.dim)
        has_vector = feature.vector_gradient and case.dim > 0
        batch.grads.append(values(random, case, *shape) if has_vector else None)
        batch.linear_grads.append(values(random, case, n, 1) if feature.weight_gradient and case.linear else None)
    return batch


class NativeRows:
    """Rows in RAM under the native kernels."""

    def __init__(self, case: Case) -> None:
        self.case, self.group = case, case.group()

    def open(self, batch: Batch) -> None:
        self.batch, self.ws = batch, batch.working_set()
        self.group.locate(self.ws, train=True)

    def pool(self, begin: int, end: int) -> list[np.ndarray]:
        n = end - begin
        out = np.full(self.group.forward_floats(self.ws, n), np.nan, dtype=F32)
        linear = np.full((len(self.batch.keys) if self.case.linear else 0, n), np.nan, dtype=F32)
        self.group.forward(self.ws, begin, end, out, linear)
        widths = [max(keys["max_length"], 1) * n * self.case.dim for keys in self.batch.keys]
        return [*np.split(out, np.cumsum(widths)[:-1]), *linear]

    def backward(self, begin: int, end: int) -> None:
        grads, linear_grads = self.batch.part(begin, end)
        flat = [[g if g is None or g.size == 0 else g.reshape(-1) for g in gs] for gs in (grads, linear_grads)]
        self.group.backward(self.ws, begin, end, flat[0], flat[1] if self.case.linear else [])

    def gradients(self) -> list[np.ndarray]:
        vectors, linear, reached = self.group.gradients(self.ws)
        return [reached.astype(F32), vectors[(reached & 1) > 0], linear[(reached[: linear.size] & 2) > 0]]

    def norm(self) -> float:
        return self.group.grad_norm_squared(self.ws)

    def update(self, step: int) -> None:
        lines = self.case.hyper_lines
        self.group.update(self.ws, step, self.case.scale, lines, lines if self.case.linear else None)

    def rows(self) -> dict[tuple[int, int], np.ndarray]:
        found = {}
        for table in range(2 * len(self.case.frozen)):
            keys, records, _ = self.group.export_rows(table, 0, 1 << 20)
            found |= {(table, int(key)): record for key, record in zip(keys, records, strict=True)}
        return found


class DeviceRows:
    """Rows in the lines of a tensor, anywhere among lines that nobody may read; a native group tells first values."""

    NUM_LINES, ZEROS = 20_000, 17

    def __init__(self, case: Case, device: str = "cpu") -> None:
        self.case, self.device, self.source = case, device, case.group()
        cache = torch.full((self.NUM_LINES, self.source.record_floats), torch.nan)
        cache[self.ZEROS] = 0.0
        self.cache = cache.to(device)
        free = np.random.default_rng(1).permutation(self.NUM_LINES).tolist()
        self.free = [line for line in free if line != self.ZEROS]
        self.lines: dict[tuple[int, int], int] = {}
        self.rules = dev.Rules(
            vector=case.rule if case.dim else "none",
            linear=case.linear_rule if case.linear else None,
            layout=self.source.layout(),
        )

    def open(self, batch: Batch) -> None:
        self.batch, self.ws, self.fresh = batch, batch.working_set(), set[tuple[int, int]]()
        begin, keys = self.ws.table_begin(), self.ws.keys()
        tables = np.repeat(np.arange(begin.size - 1), np.diff(begin))
        self.keys = list(zip(tables.tolist(), keys.tolist(), strict=True))
        self.slots = torch.tensor([self._line(*key) for key in self.keys], dtype=torch.int64).to(self.device)
        self.features = [
            dev.FeatureIds(
                table=keys["table"],
                pooling=keys["pooling"],
                ids=self.ws.virtual_ids(f),
                offsets=keys.get("offsets"),
                weights=keys.get("weights"),
                max_length=keys["max_length"],
            )
            for f, keys in enumerate(batch.keys)
        ]
        self.merged = dev.Gradients(self.ws.num_unique, self.case.dim, self.device)

    def _line(self, table: int, key: int) -> int:
        if self.case.frozen[table // 2]:
            return self.ZEROS
        if (table, key) not in self.lines:
            record = np.empty((1, self.source.record_floats), dtype=F32)
            self.source.initial_records(table, np.array([key], dtype=np.uint64), record)
            self.fresh.add((table, key))
            self.lines[table, key] = self.free.pop()
            self.cache[self.lines[table, key]] = torch.from_numpy(record[0]).to(self.device)
        return self.lines[table, key]

    def pool(self, begin: int, end: int) -> list[np.ndarray]:
        plan = dev.on_device(dev.plan_pooling(self.features, begin, end), self.device)
        vectors, weights = dev.pool(self.cache, self.slots, plan, dim=self.case.dim, linear=self.case.linear)
        shapes = [(end - begin, *([f.max_length] if f.max_length else []), self.case.dim) for f in self.features]
        assert [tuple(part.shape) for part in vectors] == shapes
        return [part.cpu().numpy().reshape(-1) for part in (*vectors, *weights)]

    def backward(self, begin: int, end: int) -> None:
        grads, linear_grads = (
            [None if g is None else torch.from_numpy(g).to(self.device) for g in gs]
            for gs in self.batch.part(begin, end)
        )
        dev.add_gradients(
            self.merged,
            grads,
            linear_grads,
            is_frozen=[self.case.frozen[feature.table] for feature in self.features],
            plan_of=lambda part: dev.on_device(dev.plan_merging(self.features, begin, end, part), self.device),
        )

    def gradients(self) -> list[np.ndarray]:
        reached = self.merged.reached
        vectors, linear = self.merged.vectors.cpu().numpy(), self.merged.linear.cpu().numpy()[:, 0]
        return [reached.astype(F32), vectors[(reached & 1) > 0], linear[(reached & 2) > 0]]

    def norm(self) -> float:
        return dev.grad_norm_squared(self.merged)

    def update(self, step: int) -> None:
        dev.update(
            self.cache,
            self.slots,
            self.merged,
            self.rules,
            table_begin=self.ws.table_begin(),
            step=step,
            scale=self.case.scale,
            hyper=self.case.hyper_lines,
            linear_hyper=self.case.hyper_lines if self.case.linear else None,
        )
        reached = {key for key, bits in zip(self.keys, self.merged.reached, strict=True) if bits}
        for key in self.fresh - reached:  # a row begins to exist when a step trains it
            self.free.append(self.lines.pop(key))

    def rows(self) -> dict[tuple[int, int], np.ndarray]:
        cache = self.cache.cpu().numpy().copy()
        return {key: cache[line] for key, line in self.lines.items()}


def trace(rows: NativeRows | DeviceRows, case: Case) -> Iterator[tuple[str, np.ndarray]]:
    """Everything that comes out of the case's steps, named."""
    random = np.random.default_rng(case.seed)
    for step in range(1, case.num_steps + 1):
        rows.open(make_batch(case, random))
        bounds = sorted({0, case.num_rows, *(round(cut * case.num_rows) for cut in case.cuts)})
        for begin, end in pairwise(bounds):
            for f, out in enumerate(rows.pool(begin, end)):
                yield f"step {step}: output {f} of rows {begin} to {end}", out
            rows.backward(begin, end)
        for name, part in zip(("reached", "vector gradients", "weight gradients"), rows.gradients(), strict=True):
            yield f"step {step}: {name}", part
        yield f"step {step}: norm", np.array([rows.norm()])
        rows.update(step)
        found = rows.rows()
        for key in sorted(found):
            yield f"step {step}: row {key}", found[key]


def bits(values: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8)


@contextmanager
def numerics(*, flush: bool) -> Iterator[None]:
    """One torch thread, since others keep a mode for denormals of their own; denormals flushed or not."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.set_flush_denormal(flush)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)
        torch.set_num_threads(threads)


def assert_same_bits(case: Case, *, flush: bool = False) -> list[tuple[str, np.ndarray]]:
    with numerics(flush=flush):
        native, on_device = (list(trace(rows, case)) for rows in (NativeRows(case), DeviceRows(case)))
    assert [name for name, _ in on_device] == [name for name, _ in native]
    for (name, expected), (_, found) in zip(native, on_device, strict=True):
        differ = np.flatnonzero(bits(found) != bits(expected)) if found.shape == expected.shape else [0]
        assert len(differ) == 0, f"{name}: {found} is not {expected}"
    return native


def lines_of_hyper() -> st.SearchStrategy[dict[str, float]]:
    return st.fixed_dictionaries(
        {
            "lr": st.sampled_from([0.05, 0.3, 0.0]),
            "eps": st.sampled_from([1e-8, 0.1]),
            "weight_decay": st.sampled_from([0.0, 0.01]),
            "momentum": st.just(0.9),
            "nesterov": st.booleans(),
            "beta1": st.sampled_from([0.9, 0.0]),
            "beta2": st.sampled_from([0.999, 0.5]),
            "decoupled": st.booleans(),
            "l1": st.sampled_from([0.0, 0.1]),
            "l2": st.sampled_from([0.0, 0.1]),
            "beta": st.just(1.0),
        }
    )


@st.composite
def cases(draw: st.DrawFn) -> Case:
    dim = draw(st.sampled_from([0, 1, 3, 16, 17, 64]))
    num_tables = draw(st.integers(1, 3))
    feature = st.builds(
        Feature,
        table=st.integers(0, num_tables - 1),
        pooling=st.sampled_from(["one", "sum", "mean", "sequence"]),
        distinct=st.sampled_from([1, 4, 300]),
        weighted=st.booleans(),
        mean_length=st.sampled_from([0.0, 1.0, 4.0]),
        vector_gradient=st.sampled_from([True, True, True, False]),
        weight_gradient=st.sampled_from([True, True, True, False]),
    )
    hyper = draw(st.lists(lines_of_hyper(), min_size=1, max_size=2))
    return Case(
        dim=dim,
        linear=dim == 0 or draw(st.booleans()),
        rule=draw(st.sampled_from(RULES)),
        linear_rule=draw(st.sampled_from(RULES)),
        features=tuple(draw(st.lists(feature, min_size=1, max_size=5))),
        frozen=tuple(draw(st.sampled_from([False, False, True])) for _ in range(num_tables)),
        hyper=tuple(draw(st.sampled_from(hyper)) for _ in range(num_tables)),
        num_rows=draw(st.sampled_from([1, 7, 70, 200])),
        num_steps=draw(st.integers(1, 3)),
        cuts=tuple(draw(st.lists(st.sampled_from([0.1, 0.5, 0.9]), max_size=2))),
        scale=draw(st.sampled_from([1.0, 0.37])),
        size=draw(st.sampled_from([1.0, 1e-19, 4e-38])),
        seed=draw(st.integers(0, 2**32)),
    )


@settings(deadline=None, max_examples=150)
@given(case=cases(), flush=st.booleans())
def test_any_steps_have_the_bits_of_the_native_kernels(case: Case, flush: bool) -> None:
    assert_same_bits(case, flush=flush)


def test_sums_that_are_flushed_to_a_zero_keep_its_sign() -> None:
    """The difference of two small numbers may be denormal and negative: flushed, it is -0."""
    features = tuple(Feature(table=0, distinct=300) for _ in range(3))
    case = Case(dim=3, linear_rule="sgd", features=features, num_rows=200, cuts=(0.5,), size=4e-38)
    seen = dict(assert_same_bits(case, flush=True))
    vectors = seen["step 1: vector gradients"]
    assert (np.signbit(vectors) & (vectors == 0)).any()


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(
    "changed", [{}, {"lr": 0.3, "weight_decay": 0.1, "nesterov": 1.0, "decoupled": 1.0, "l1": 0.05}]
)
def test_every_optimizer_keeps_the_bits_over_many_steps(rule: str, changed: dict[str, float]) -> None:
    features = (Feature(table=0, distinct=40), Feature(table=0, pooling="mean", distinct=40, weighted=True))
    case = Case(rule=rule, linear_rule=rule, features=features, hyper=(HYPER | changed,), num_steps=12, scale=0.6)
    seen = assert_same_bits(case)
    assert all(np.isfinite(numbers).all() for _, numbers in seen)


@pytest.mark.parametrize("num_rows", [64, 65, 128, 129, 4500])
@pytest.mark.parametrize("weighted", [False, True])
def test_keys_that_much_of_a_batch_holds_are_summed_in_chunks_alike(num_rows: int, weighted: bool) -> None:
    features = (
        Feature(table=0, distinct=1),
        Feature(table=1, distinct=1, pooling="mean", weighted=weighted),
        Feature(table=0, distinct=2, pooling="sequence"),
    )
    case = Case(dim=3, features=features, frozen=(False, False), hyper=(HYPER, HYPER), num_rows=num_rows, cuts=(0.7,))
    assert_same_bits(case)


def test_thousands_of_keys_have_the_same_norm() -> None:
    features = tuple(Feature(table=t, distinct=10**9) for t in (0, 1))
    case = Case(features=features, frozen=(False, False), hyper=(HYPER, HYPER), num_rows=3000, num_steps=3)
    seen = dict(assert_same_bits(case))
    assert seen["step 1: reached"].size > 4 * 1024


def test_a_frozen_table_reads_as_zeros_where_it_has_no_rows_and_is_never_trained() -> None:
    features = (Feature(table=0), Feature(table=1), Feature(table=1, pooling="sum"))
    case = Case(features=features, frozen=(False, True), hyper=(HYPER, HYPER))
    seen = dict(assert_same_bits(case))
    assert not seen["step 1: output 1 of rows 0 to 50"].any()
    assert set(seen["step 1: reached"].tolist()) == {0.0, 3.0}


def test_tables_with_numbers_of_their_own_are_updated_each_by_its_own() -> None:
    hyper = tuple(HYPER | {"lr": lr, "weight_decay": 0.1 * lr} for lr in (0.1, 0.1, 0.2, 0.1))
    features = tuple(Feature(table=t, distinct=9) for t in (0, 1, 2, 3))
    assert_same_bits(Case(rule="adam", features=features, frozen=(False,) * 4, hyper=hyper))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("rule", RULES)
def test_a_gpu_agrees_but_for_rounding_and_repeats_itself(rule: str) -> None:
    poolings: Sequence[str] = ("one", "sum", "mean", "sequence")
    features = tuple(Feature(table=0, pooling=pooling, distinct=30, weighted=True) for pooling in poolings)
    case = Case(rule=rule, linear_rule=rule, features=features, num_rows=500, num_steps=3, cuts=(0.5,))
    native = list(trace(NativeRows(case), case))
    first, second = (list(trace(DeviceRows(case, "cuda"), case)) for _ in range(2))
    for (name, expected), (_, found), (_, again) in zip(native, first, second, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5, err_msg=name)
        np.testing.assert_array_equal(bits(found), bits(again), err_msg=name)
