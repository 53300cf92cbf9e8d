"""Every optimizer against torch's own, and against answers worked out by hand."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from sfctr import _native

DIM, ROWS = 5, 12


def hyper(**changed: float) -> np.ndarray:
    line = {"lr": 0.1, "eps": 1e-8, "momentum": 0.9, "beta1": 0.9, "beta2": 0.999, "beta": 1.0} | changed
    return np.array([[line.get(column, 0.0) for column in _native.hyper_columns()]])


class Rows:
    """One table whose rows 0 .. n - 1 begin as given."""

    def __init__(self, rule: str, start: np.ndarray, state0: float = 0.0) -> None:
        self.group = _native.RowGroup(
            start.shape[1], False, rule, None, [_native.TableInit(0, 0, "uniform", 0.0, 0.0, state0)]
        )
        self.keys = np.arange(start.shape[0], dtype=np.uint64)
        records = np.empty((start.shape[0], self.group.record_floats), dtype=np.float32)
        self.group.initial_records(0, self.keys, records)
        records[:, : start.shape[1]] = start
        self.group.import_rows(0, self.keys, records)

    def step(self, number: int, keys: np.ndarray, grads: np.ndarray, numbers: np.ndarray, scale: float = 1.0) -> None:
        ws = _native.WorkingSet(1, keys.size, [_native.FeatureKeys(0, "one", keys.astype(np.uint64))])
        self.group.locate(ws, train=True)
        self.group.backward(ws, 0, keys.size, [grads.astype(np.float32)], [])
        self.group.update(ws, number, scale, numbers)

    def records(self) -> np.ndarray:
        records = np.empty((self.keys.size, self.group.record_floats), dtype=np.float32)
        assert self.group.find(0, self.keys, records).all()
        return records


def against_torch(
    rule: str,
    numbers: np.ndarray,
    make: Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer],
    *,
    state0: float = 0.0,
    sparse: bool = False,
    steps: int = 20,
) -> None:
    """The same gradients for both; sparse ones reach random rows, some of them twice, dense ones every row."""
    random = np.random.default_rng(3)
    start = random.normal(size=(ROWS, DIM)).astype(np.float32)
    rows = Rows(rule, start, state0)
    parameter = torch.nn.Parameter(torch.from_numpy(start.copy()))
    optimizer = make([parameter])
    for number in range(1, steps + 1):
        keys = random.integers(0, ROWS, 8) if sparse else np.arange(ROWS)
        grads = random.normal(size=(keys.size, DIM)).astype(np.float32)
        rows.step(number, keys, grads, numbers)
        if sparse:
            index = torch.from_numpy(keys)[None, :]
            parameter.grad = torch.sparse_coo_tensor(index, torch.from_numpy(grads), (ROWS, DIM), check_invariants=True)
        else:
            parameter.grad = torch.from_numpy(grads)
        with torch.sparse.check_sparse_tensor_invariants():  # torch warns where nobody has chosen
            optimizer.step()
    np.testing.assert_allclose(rows.records()[:, :DIM], parameter.detach().numpy(), rtol=1e-6, atol=1e-6)


def test_sgd_is_torchs() -> None:
    against_torch("sgd", hyper(weight_decay=0.05), lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.05))


@pytest.mark.parametrize("nesterov", [False, True])
def test_momentum_is_torchs(nesterov: bool) -> None:
    numbers = hyper(nesterov=float(nesterov), weight_decay=0.05)
    make = lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=nesterov, weight_decay=0.05)  # noqa: E731
    against_torch("momentum", numbers, make)


def test_adagrad_is_torchs() -> None:
    make = lambda p: torch.optim.Adagrad(p, lr=0.1, eps=1e-10, initial_accumulator_value=0.1, weight_decay=0.05)  # noqa: E731
    against_torch("adagrad", hyper(eps=1e-10, weight_decay=0.05), make, state0=0.1)


def test_adagrad_on_sparse_gradients_is_torchs() -> None:
    make = lambda p: torch.optim.Adagrad(p, lr=0.1, eps=1e-10)  # noqa: E731
    against_torch("adagrad", hyper(eps=1e-10), make, sparse=True)


def test_adam_is_torchs_sparse_adam() -> None:
    against_torch("adam", hyper(eps=1e-3), lambda p: torch.optim.SparseAdam(p, lr=0.1, eps=1e-3), sparse=True, steps=50)


def test_adamw_is_torchs_where_every_row_is_reached() -> None:
    # With eps 0, since the two put it in different places: SparseAdam before the bias correction, AdamW after it.
    numbers = hyper(eps=0.0, weight_decay=0.05, decoupled=1.0)
    against_torch("adam", numbers, lambda p: torch.optim.AdamW(p, lr=0.1, eps=0.0, weight_decay=0.05))


def test_adam_by_row_is_adam_with_each_rows_own_count() -> None:
    random = np.random.default_rng(4)
    start = random.normal(size=(ROWS, DIM)).astype(np.float32)
    rows = Rows("adam_row", start)
    parameters = [torch.nn.Parameter(torch.from_numpy(row.copy())) for row in start]
    optimizers = [torch.optim.Adam([parameter], lr=0.1, eps=0.0) for parameter in parameters]
    for number in range(1, 31):
        keys = random.choice(ROWS, 4, replace=False)
        grads = random.normal(size=(4, DIM)).astype(np.float32)
        rows.step(number, keys, grads, hyper(eps=0.0))
        for key, grad in zip(keys, grads, strict=True):
            parameters[key].grad = torch.from_numpy(grad)
            optimizers[key].step()
    records = rows.records()
    expected = torch.stack(parameters).detach().numpy()
    np.testing.assert_allclose(records[:, :DIM], expected, rtol=1e-6, atol=1e-6)
    counts = [0 if not o.state else int(next(iter(o.state.values()))["step"]) for o in optimizers]
    assert records[:, 3 * DIM].tolist() == counts


def hand(rule: str, w: list[float], grads: list[list[float]], numbers: np.ndarray, state0: float = 0.0) -> list[float]:
    rows = Rows(rule, np.array([w], dtype=np.float32), state0)
    for number, grad in enumerate(grads, 1):
        rows.step(number, np.zeros(1), np.array([grad]), numbers)
    return rows.records()[0].tolist()


def near(values: list[float]) -> object:
    return pytest.approx(values, rel=2e-7)


def test_sgd_by_hand() -> None:
    # w - lr g = 1 - 0.5 * 0.25; then L2: g + wd w = 0.25 + 0.5 * 0.875 = 0.6875, w = 0.875 - 0.5 * 0.6875.
    assert hand("sgd", [1.0], [[0.25]], hyper(lr=0.5)) == [0.875]
    assert hand("sgd", [0.875], [[0.25]], hyper(lr=0.5, weight_decay=0.5)) == [0.53125]


def test_momentum_by_hand() -> None:
    # m: 2, then 0.5 * 2 + 2 = 3; w: 1 - 0.25 * 2 = 0.5, then 0.5 - 0.25 * 3 = -0.25.
    assert hand("momentum", [1.0], [[2.0], [2.0]], hyper(lr=0.25, momentum=0.5)) == [-0.25, 3.0]
    # Nesterov steps along g + 0.5 m: 2 + 1 = 3, then 2 + 1.5 = 3.5: w = 1 - 0.75 - 0.875.
    assert hand("momentum", [1.0], [[2.0], [2.0]], hyper(lr=0.25, momentum=0.5, nesterov=1.0)) == [-0.625, 3.0]


def test_adagrad_by_hand() -> None:
    # s = 7 + 3 * 3 = 16, w = 1 - 0.5 * 3 / (4 + 2); the second column has s = 7 + 9 too, and the other sign.
    numbers = hyper(lr=0.5, eps=2.0)
    assert hand("adagrad", [1.0, 0.0], [[3.0, -3.0]], numbers, state0=7.0) == [0.75, 0.25, 16.0, 16.0]


def test_row_wise_adagrad_by_hand() -> None:
    # mean(g^2) = (36 + 0 + 0 + 0) / 4 = 9, s = 7 + 9 = 16, w = 1 - 0.5 / (4 + 0) * 6 and 2 - 0.
    numbers = hyper(lr=0.5, eps=0.0)
    row = hand("rowwise_adagrad", [1.0, 2.0, 2.0, 2.0], [[6.0, 0.0, 0.0, 0.0]], numbers, state0=7.0)
    assert row == [0.25, 2.0, 2.0, 2.0, 16.0]


def test_adam_by_hand() -> None:
    # beta1 = beta2 = 0.5. m = 0.5 * 2 = 1, v = 0.5 * 4 = 2; step size = lr sqrt(1 - 0.5) / (1 - 0.5) = sqrt(2) lr;
    # w = 1 - sqrt(2) lr * 1 / (sqrt(2) + eps), where eps is added to the root of v as it is, before any correction.
    lr, eps = 0.25, 0.5
    first = 1 - math.sqrt(2) * lr / (math.sqrt(2) + eps)
    numbers = hyper(lr=lr, eps=eps, beta1=0.5, beta2=0.5)
    assert hand("adam", [1.0], [[2.0]], numbers) == near([first, 1.0, 2.0])
    # Then g = 0: m = 0.5, v = 1; step size = lr sqrt(0.75) / 0.75; w moves on although its gradient is 0.
    second = first - lr * math.sqrt(0.75) / 0.75 * 0.5 / (1 + eps)
    assert hand("adam", [1.0], [[2.0], [0.0]], numbers) == near([second, 0.5, 1.0])


def test_adamw_by_hand() -> None:
    # w shrinks by 1 - lr wd = 1 - 0.25 * 0.5 first, and then moves as Adam does; L2 would have entered m and v.
    lr = 0.25
    moved = 1 * 0.875 - math.sqrt(2) * lr / math.sqrt(2)
    numbers = hyper(lr=lr, eps=0.0, beta1=0.5, beta2=0.5, weight_decay=0.5, decoupled=1.0)
    assert hand("adam", [1.0], [[2.0]], numbers) == near([moved, 1.0, 2.0])


def test_adam_by_row_by_hand() -> None:
    # The row's second update comes at the run's step 2 of a row whose first was step 1: as Adam, with the count kept.
    lr, eps = 0.25, 0.5
    first = 1 - math.sqrt(2) * lr / (math.sqrt(2) + eps)
    numbers = hyper(lr=lr, eps=eps, beta1=0.5, beta2=0.5)
    assert hand("adam_row", [1.0], [[2.0]], numbers) == near([first, 1.0, 2.0, 1.0])
    # Reached first at step 100, the row is corrected as at its own first update; "adam" would take lr itself.
    for rule, size in (("adam_row", math.sqrt(2) * lr), ("adam", lr)):
        rows = Rows(rule, np.ones((1, 1), dtype=np.float32))
        rows.step(100, np.zeros(1), np.full((1, 1), 2.0), numbers)
        assert rows.records()[0, 0] == pytest.approx(1 - size / (math.sqrt(2) + eps), rel=2e-7)


def test_ftrl_by_hand() -> None:
    # alpha 0.5, beta 1, l1 0.5, l2 1. n = 9, sigma = (3 - 0) / 0.5 = 6, z = 3 - 6 w with w = 0: z = 3;
    # w = -(3 - 0.5) / ((1 + 3) / 0.5 + 1) = -2.5 / 9.
    numbers = hyper(lr=0.5, beta=1.0, l1=0.5, l2=1.0)
    w1 = -2.5 / 9
    assert hand("ftrl", [0.0], [[3.0]], numbers) == near([w1, 9.0, 3.0])
    # g = 4: n = 25, sigma = (5 - 3) / 0.5 = 4, z = 3 + 4 - 4 w1, w = -(z - 0.5) / ((1 + 5) / 0.5 + 1).
    z = 7 - 4 * w1
    assert hand("ftrl", [0.0], [[3.0], [4.0]], numbers) == near([-(z - 0.5) / 13, 25.0, z])
    # |z| = 0.5 does not exceed l1: the weight is exactly 0, whatever it was.
    assert hand("ftrl", [0.0], [[0.5]], numbers) == [0.0, 0.25, 0.5]


def test_ftrl_forgets_most_of_a_first_value_at_its_first_update() -> None:
    # w = 1, g = 1, alpha 1, beta 1: sigma = 1, z = 1 - 1 * 1 = 0, so w = 0.
    assert hand("ftrl", [1.0], [[1.0]], hyper(lr=1.0)) == [0.0, 1.0, 0.0]


@pytest.mark.parametrize("rule", ["sgd", "momentum", "adagrad", "rowwise_adagrad", "adam", "adam_row", "ftrl"])
def test_a_learning_rate_of_zero_moves_no_weight(rule: str) -> None:
    row = hand(rule, [1.0, -2.0], [[1.0, 0.5]] * 2, hyper(lr=0.0, weight_decay=0.1))
    assert row[:2] == [1.0, -2.0]
    assert np.isfinite(row).all()


def test_the_scale_of_clipping_multiplies_the_merged_gradient() -> None:
    scaled, plain = (Rows("adagrad", np.ones((1, 3), dtype=np.float32)) for _ in range(2))
    grads = np.array([[1.0, 2.0, 4.0], [3.0, 2.0, 0.0]])
    scaled.step(1, np.zeros(2), grads, hyper(), scale=0.25)
    plain.step(1, np.zeros(1), np.array([[1.0, 1.0, 1.0]]), hyper())
    np.testing.assert_array_equal(scaled.records(), plain.records())


def test_weight_decay_touches_reached_rows_only() -> None:
    rows = Rows("sgd", np.ones((3, 2), dtype=np.float32))
    rows.step(1, np.array([1]), np.zeros((1, 2)), hyper(lr=0.5, weight_decay=0.5))
    assert rows.records()[:, 0].tolist() == [1.0, 0.75, 1.0]


def test_a_count_beyond_two_to_the_24_stays_and_does_no_harm() -> None:
    rows = Rows("adam_row", np.ones((1, 1), dtype=np.float32))
    record = rows.records()
    record[0, 3] = 2.0**24
    rows.group.import_rows(0, np.zeros(1, dtype=np.uint64), record)
    rows.step(1, np.zeros(1), np.ones((1, 1)), hyper())
    assert rows.records()[0, 3] == 2.0**24
    assert rows.records()[0, 0] == pytest.approx(1 - 0.1 * 0.1 / math.sqrt(0.001), rel=1e-5)
