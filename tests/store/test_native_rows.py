"""Whole steps against the twin, bit for bit: look-up, pooling, merged gradients, norm, update, over several batches."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest

from sfctr import _native

F32 = np.float32
HYPER = {
    "lr": 0.03,
    "eps": 1e-8,
    "weight_decay": 0.0,
    "momentum": 0.9,
    "nesterov": 0.0,
    "beta1": 0.9,
    "beta2": 0.999,
    "decoupled": 0.0,
    "l1": 0.0,
    "l2": 0.0,
    "beta": 1.0,
}
B = 140
NUM_TABLES = 4
FROZEN = 3
ALL_SETTINGS = [(threads, level) for level in _native.simd_levels() for threads in (1, 2, 3)]


def ragged(random: np.random.Generator, mean: float, most: int) -> np.ndarray:
    lengths = np.minimum(random.poisson(mean, B), most)
    lengths[random.random(B) < 0.2] = 0
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def keys(random: np.random.Generator, size: int, high: int) -> np.ndarray:
    """A few hot keys (past one chunk of 64 contributions), a long tail, and the largest key there is."""
    drawn = np.minimum(random.zipf(1.3, size), high).astype(np.uint64)
    drawn[random.random(size) < 0.02] = np.uint64(2**64 - 1)
    return drawn


def batch(twin: ModuleType, seed: int) -> list:
    """Every pooling; table 0 is shared by three features, 1 has buckets, 2 is weighted, 3 is frozen."""
    random = np.random.default_rng(seed)
    nulls = (random.random(B) < 0.3).astype(np.uint8)
    sums, means, weighted, sequence = (ragged(random, 3, 9) for _ in range(4))
    weights = random.normal(size=weighted[-1]).astype(F32)
    weights[weighted[5] : weighted[6]] = 0.0
    return [
        twin.Feature(table=0, pooling="one", keys=keys(random, B, 50), nulls=nulls),
        twin.Feature(table=1, pooling="one", keys=keys(random, B, 10**6), buckets=20),
        twin.Feature(table=0, pooling="mean", keys=keys(random, means[-1], 50), offsets=means),
        twin.Feature(table=2, pooling="sum", keys=keys(random, weighted[-1], 90), offsets=weighted, weights=weights),
        twin.Feature(table=2, pooling="mean", keys=keys(random, weighted[-1], 90), offsets=weighted, weights=weights),
        twin.Feature(table=0, pooling="sequence", keys=keys(random, sequence[-1], 50), offsets=sequence, max_length=9),
        twin.Feature(table=1, pooling="sum", keys=keys(random, sums[-1], 30), offsets=sums, buckets=20),
        twin.Feature(table=FROZEN, pooling="one", keys=keys(random, B, 9), nulls=nulls),
    ]


def native_set(features: list) -> _native.WorkingSet:
    return _native.WorkingSet(
        NUM_TABLES,
        B,
        [
            _native.FeatureKeys(f.table, f.pooling, f.keys, f.offsets, f.nulls, f.weights, f.max_length, f.buckets)
            for f in features
        ],
    )


def tables(twin: ModuleType) -> list:
    return [
        twin.Table(seed=11, null_seed=12, b=0.1, state0=0.1, linear_state0=0.2),
        twin.Table(seed=13, null_seed=14, kind="uniform", a=-0.1, b=0.2),
        twin.Table(seed=2**64 - 1, null_seed=16, state0=0.3),
        twin.Table(seed=17, null_seed=18, frozen=True),
    ]


def matrix(hyper: list[dict[str, float]]) -> np.ndarray:
    assert set(hyper[0]) == set(_native.hyper_columns())
    return np.array([[line[column] for column in _native.hyper_columns()] for line in hyper], dtype=np.float64)


class NativeRun:
    """The same calls as the twin's, in arrays."""

    def __init__(self, group: object, num_features: int) -> None:
        inits = [
            _native.TableInit(t.seed, t.null_seed, t.kind, t.a, t.b, t.state0, t.linear_state0, t.frozen)
            for t in group.tables  # type: ignore[attr-defined]
        ]
        self.dim, self.has_linear = group.dim, group.has_linear  # type: ignore[attr-defined]
        rules = group.vector_rule, group.linear_rule  # type: ignore[attr-defined]
        self.rows = _native.RowGroup(self.dim, self.has_linear, *rules, inits, dtype=group.dtype)  # type: ignore[attr-defined]

    def forward(self, ws: _native.WorkingSet, begin: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        out = np.full(self.rows.forward_floats(ws, end - begin), np.nan, dtype=F32)
        linear = np.full((8 if self.has_linear else 0, end - begin), np.nan, dtype=F32)
        self.rows.forward(ws, begin, end, out, linear)
        return out, linear

    def num_rows(self) -> int:
        return sum(self.rows.num_rows(table) for table in range(2 * NUM_TABLES))

    def all_rows(self) -> dict[tuple[int, int], np.ndarray]:
        found = {}
        for table in range(2 * NUM_TABLES):
            start: int | None = 0
            while start is not None:
                ids, records, start = self.rows.export_rows(table, start, 7)
                found |= {(table, int(key)): record for key, record in zip(ids, records, strict=True)}
        return found


def same_bits(a: np.ndarray, b: np.ndarray) -> None:
    a, b = np.asarray(a, dtype=F32), np.asarray(b, dtype=F32)
    np.testing.assert_array_equal(a.view(np.uint32), b.view(np.uint32))


def gradients(random: np.random.Generator, group: object, features: list, size: int) -> tuple[list, list]:
    """One array a feature, some None; the features that reach vectors and weights differ."""
    dim, has_linear = group.dim, group.has_linear  # type: ignore[attr-defined]
    vectors, linear = [], []
    for f, feature in enumerate(features):
        shape = (size, feature.max_length, dim) if feature.pooling == "sequence" else (size, dim)
        vectors.append(random.normal(size=shape).astype(F32) if dim and f != 6 else None)
        linear.append(random.normal(size=size).astype(F32) if has_linear and f != 1 else None)
    return vectors, linear if has_linear else []


def compare_run(
    twin: ModuleType, dim: int, rule: str, linear_rule: str | None, changed: dict[str, float], dtype: str = "fp32"
) -> None:
    """Three steps, in two micro-batches each, under every setting; the twin is run once."""
    hyper = [HYPER | changed | {"lr": 0.03 + 0.01 * t} for t in range(NUM_TABLES)]
    twins = twin.Group(dim, rule, linear_rule, tables(twin), dtype)
    runs = [NativeRun(twins, 8) for _ in ALL_SETTINGS]
    frozen = np.arange(3, dtype=np.uint64)
    values = np.random.default_rng(9).normal(size=(3, twins.record_floats)).astype(F32)
    for value in values:
        value[:dim] = twins.rounded(value[:dim])
    for run in runs:
        run.rows.import_rows(2 * FROZEN, frozen, np.array([twins.stored(value) for value in values]))
    twins.rows |= {(2 * FROZEN, int(key)): value.copy() for key, value in zip(frozen, values, strict=True)}
    for number in range(1, 4):
        features = batch(twin, number % 2)
        step = twins.locate(features, train=True)
        unseen = twins.unseen(step)
        scale = 1.0 if number == 1 else 0.37
        parts = []
        for begin, end in ((0, 90), (90, B)):
            grads = gradients(np.random.default_rng(100 * number + begin), twins, features, end - begin)
            parts.append((begin, end, twins.forward(step, begin, end), *grads))
            twins.backward(step, begin, end, *grads)
        norm = twins.grad_norm_squared(step)
        added = twins.update(step, number, scale, hyper, hyper)
        for run, (threads, level) in zip(runs, ALL_SETTINGS, strict=True):
            _native.set_num_threads(threads)
            _native.set_simd_level(level)
            ws = native_set(features)
            run.rows.locate(ws, train=True)
            assert run.rows.unseen(ws).tolist() == unseen
            for begin, end, (vectors, linear), grads, linear_grads in parts:
                out, linear_out = run.forward(ws, begin, end)
                same_bits(out, np.concatenate([v.ravel() for v in vectors]))
                if linear_rule:
                    same_bits(linear_out, linear)
                run.rows.backward(ws, begin, end, grads, linear_grads)
            check_gradients(run.rows, ws, step)
            assert run.rows.grad_norm_squared(ws) == norm
            linear_hyper = matrix(hyper) if linear_rule else None
            before = run.num_rows()
            run.rows.update(ws, number, scale, matrix(hyper), linear_hyper)
            assert run.num_rows() - before == added
    for run in runs:
        rows = run.all_rows()
        assert rows.keys() == twins.rows.keys()
        for key, record in twins.rows.items():
            same_bits(rows[key], twins.stored(record))


def check_gradients(rows: _native.RowGroup, ws: _native.WorkingSet, step: object) -> None:
    vectors, linear, reached = rows.gradients(ws)
    for u in range(ws.num_unique):
        assert reached[u] == (u in step.vectors) + 2 * (u in step.linear)  # type: ignore[attr-defined]
    for u, expected in step.vectors.items():  # type: ignore[attr-defined]
        same_bits(vectors[u], expected)
    for u, expected in step.linear.items():  # type: ignore[attr-defined]
        same_bits(linear[u], expected)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize(
    ("rule", "changed"),
    [
        ("sgd", {}),
        ("sgd", {"weight_decay": 0.1}),
        ("momentum", {"weight_decay": 0.1}),
        ("momentum", {"nesterov": 1.0}),
        ("adagrad", {}),
        ("adagrad", {"weight_decay": 0.1}),
        ("rowwise_adagrad", {}),
        ("rowwise_adagrad", {"weight_decay": 0.1}),
        ("adam", {}),
        ("adam", {"weight_decay": 0.1}),
        ("adam", {"weight_decay": 0.1, "decoupled": 1.0}),
        ("adam_row", {}),
        ("adam_row", {"weight_decay": 0.1, "decoupled": 1.0}),
        ("ftrl", {"l1": 0.01, "l2": 0.1}),
    ],
)
def test_every_optimizer_has_the_twins_bits(twin: ModuleType, rule: str, changed: dict[str, float], dtype: str) -> None:
    compare_run(twin, 3, rule, "ftrl" if rule != "ftrl" else "adam", changed, dtype)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize(
    ("dim", "rule"), [(1, "adagrad"), (16, "rowwise_adagrad"), (33, "adam"), (64, "rowwise_adagrad")]
)
def test_every_dim_has_the_twins_bits(twin: ModuleType, dim: int, rule: str, dtype: str) -> None:
    compare_run(twin, dim, rule, None, {"weight_decay": 0.01}, dtype)


@pytest.mark.parametrize("rule", ["sgd", "adam_row", "rowwise_adagrad", "momentum"])
def test_first_order_weights_alone_have_the_twins_bits(twin: ModuleType, rule: str) -> None:
    compare_run(twin, 0, "none", rule, {})


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("dim", [5, 8, 24, 79, 130])
def test_odd_dims_pool_and_merge_alike_on_all_levels(twin: ModuleType, dim: int, dtype: str) -> None:
    compare_run(twin, dim, "rowwise_adagrad", "adagrad", {}, dtype)


@pytest.mark.parametrize("shape", [(6,), (3, 2), (2, 3), (6, 1), (1, 6)])
def test_a_gradient_of_another_shape_is_its_floats_in_order(shape):
    group = _native.RowGroup(2, False, "sgd", None, [_native.TableInit(1, 2, "normal", 0.0, 1.0)])
    keys = np.array([5, 6, 7], np.uint64)
    ws = _native.WorkingSet(1, 3, [_native.FeatureKeys(0, "one", keys)])
    group.locate(ws, True)
    within = np.full(60, 1e9, np.float32)  # what lies around it must not be read
    gradient = within[24:30]
    gradient[:] = np.arange(6)
    group.backward(ws, 0, 3, [gradient.reshape(shape)], [])
    assert group.gradients(ws)[0].tolist() == [[0, 1], [2, 3], [4, 5]]
    group.discard(ws)
