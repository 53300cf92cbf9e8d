"""The reference's row optimizers against torch's own and against formulas in plain Python, in float64, to 1e-9; and
that 1e-9 is tight enough to see one float32 bit of any hyper-parameter.

Each row is a parameter of its own for torch, without a gradient in the steps that do not reach it: so it is lazy too.
"""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sfctr.spec.optim import FTRL, SGD, Adagrad, Adam, AdamW, Optimizer, RowWiseAdagrad
from sfctr.verify.reference_optim import initial_state, updated

ROWS, DIM, STEPS = 6, 5, 12
EXACT = 1e-9

OPTIONS = [
    SGD(lr=0.5, weight_decay=0.1),
    SGD(lr=0.5, momentum=0.9, weight_decay=0.1),
    SGD(lr=0.5, momentum=0.9, nesterov=True),
    Adagrad(lr=0.5, eps=0.1, initial_accumulator=0.2, weight_decay=0.1),
    RowWiseAdagrad(lr=0.5, eps=0.1, initial_accumulator=0.2, weight_decay=0.1),
    Adam(lr=0.5, eps=0.1, beta1=0.8, beta2=0.95),
    AdamW(lr=0.5, eps=0.1, beta1=0.8, beta2=0.95, weight_decay=0.1, bias_correction="row"),
    FTRL(lr=0.5, beta=0.7, l1=0.1, l2=0.2),
]


def problem() -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
    """First weights [ROWS, DIM], and for each step which rows it reaches and their gradients."""
    draw = np.random.default_rng(5)
    steps = []
    for _ in range(STEPS):
        rows = np.flatnonzero(draw.random(ROWS) < 0.6)
        steps.append((torch.from_numpy(rows), torch.from_numpy(draw.normal(size=(rows.size, DIM)))))
    return torch.from_numpy(draw.normal(size=(ROWS, DIM))), steps


def by_reference(options: Optimizer, *, late: int = 0) -> Tensor:
    """late: steps by which the count of committed steps is off."""
    w, steps = problem()
    state = initial_state(options, w)
    for number, (rows, g) in enumerate(steps, 1 + late):
        old = {part: values[rows] for part, values in state.items()}
        w[rows], new = updated(options, w[rows], old, g, lr=options.lr, step=number)
        for part, values in new.items():
            state[part][rows] = values
    return w


def by_torch(options: Optimizer) -> Tensor:
    """torch's optimizer over one parameter a row."""
    w, steps = problem()
    parameters = [nn.Parameter(row.clone()) for row in w]
    optimizer = torch_optimizer(options, parameters)
    for rows, g in steps:
        optimizer.zero_grad()
        for row, gradient in zip(rows.tolist(), g, strict=True):
            parameters[row].grad = gradient
        optimizer.step()
    return torch.stack([p.detach() for p in parameters])


def torch_optimizer(o: Optimizer, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    match o:
        case SGD():
            return torch.optim.SGD(
                parameters, o.lr, o.momentum, weight_decay=o.weight_decay, nesterov=o.nesterov, foreach=False
            )
        case Adagrad():
            return torch.optim.Adagrad(parameters, o.lr, 0, o.weight_decay, o.initial_accumulator, o.eps, foreach=False)
    raise NotImplementedError(o)


def by_sparse_adam(o: Adam) -> Tensor:
    w, steps = problem()
    table = nn.Embedding(ROWS, DIM, sparse=True, _weight=w)
    optimizer = torch.optim.SparseAdam(table.parameters(), o.lr, (o.beta1, o.beta2), o.eps)
    for rows, g in steps:
        optimizer.zero_grad()
        (table(rows) * g).sum().backward()
        optimizer.step()
    return table.weight.detach()


def by_formula(options: Optimizer) -> Tensor:
    """docs/optimizers.md with the standard library's floats, a row at a time."""
    w, steps = problem()
    weights = w.tolist()
    memory: list[dict[str, list[float]]] = [{} for _ in weights]
    for rows, g in steps:
        for row, gradient in zip(rows.tolist(), g.tolist(), strict=True):
            weights[row] = one_row(options, weights[row], memory[row], gradient)
    return torch.tensor(weights, dtype=torch.float64)


def one_row(o: Optimizer, w: list[float], memory: dict[str, list[float]], g: list[float]) -> list[float]:
    zeros = [0.0] * len(w)
    match o:
        case RowWiseAdagrad():
            g = [gc + o.weight_decay * wc for gc, wc in zip(g, w, strict=True)]
            (s,) = memory.get("s", [o.initial_accumulator])
            s += math.fsum(gc**2 for gc in g) / len(g)
            memory["s"] = [s]
            return [wc - o.lr / (math.sqrt(s) + o.eps) * gc for wc, gc in zip(w, g, strict=True)]
        case AdamW():
            t = memory.get("t", [0.0])[0] + 1
            m = [o.beta1 * mc + (1 - o.beta1) * gc for mc, gc in zip(memory.get("m", zeros), g, strict=True)]
            v = [o.beta2 * vc + (1 - o.beta2) * gc**2 for vc, gc in zip(memory.get("v", zeros), g, strict=True)]
            memory |= {"t": [t], "m": m, "v": v}
            size = o.lr * math.sqrt(1 - o.beta2**t) / (1 - o.beta1**t)
            kept = [wc * (1 - o.lr * o.weight_decay) for wc in w]
            return [wc - size * mc / (math.sqrt(vc) + o.eps) for wc, mc, vc in zip(kept, m, v, strict=True)]
        case FTRL():
            n, z = memory.get("n", zeros), memory.get("z", zeros)
            after = [nc + gc**2 for nc, gc in zip(n, g, strict=True)]
            sigma = [(math.sqrt(a) - math.sqrt(b)) / o.lr for a, b in zip(after, n, strict=True)]
            z = [zc + gc - sc * wc for zc, gc, sc, wc in zip(z, g, sigma, w, strict=True)]
            memory |= {"n": after, "z": z}
            divisors = [(o.beta + math.sqrt(nc)) / o.lr + o.l2 for nc in after]
            return [
                0.0 if abs(zc) <= o.l1 else -(zc - math.copysign(o.l1, zc)) / d
                for zc, d in zip(z, divisors, strict=True)
            ]
    raise NotImplementedError(o)


def expected(options: Optimizer) -> Tensor:
    if isinstance(options, Adam):
        return by_sparse_adam(options)
    return by_torch(options) if isinstance(options, SGD | Adagrad) else by_formula(options)


def apart(one: Tensor, other: Tensor) -> float:
    return float((one - other).abs().max())


@pytest.mark.parametrize("options", OPTIONS, ids=repr)
def test_rows_move_as_torch_or_the_formula_moves_them(options):
    assert apart(by_reference(options), expected(options)) < EXACT


def hyper_parameters(options: Optimizer) -> list[str]:
    values = msgspec.structs.asdict(options)
    return [name for name, value in values.items() if isinstance(value, float) and value]


@pytest.mark.parametrize(
    ("options", "name"),
    [(options, name) for options in OPTIONS for name in hyper_parameters(options)],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_one_float32_bit_of_a_hyper_parameter_is_seen(options, name):
    value = np.float32(getattr(options, name))
    changed = msgspec.structs.replace(options, **{name: float(np.nextafter(value, np.float32(np.inf)))})
    rounded = msgspec.structs.replace(options, **{name: float(value)})
    assert apart(by_reference(rounded), expected(rounded)) < EXACT
    assert apart(by_reference(changed), expected(rounded)) > EXACT


def test_a_bias_correction_that_is_one_step_off_is_seen():
    options = Adam(lr=0.5, eps=0.1, beta1=0.8, beta2=0.95)
    assert apart(by_reference(options, late=1), expected(options)) > EXACT


def test_bias_corrected_by_the_rows_own_steps_differs_from_the_runs():
    by_row = Adam(lr=0.5, eps=0.1, bias_correction="row")
    assert apart(by_reference(by_row), by_reference(msgspec.structs.replace(by_row, bias_correction="global"))) > 0.01


def test_at_rate_zero_ftrl_stays_where_it_is():
    w, steps = problem()
    rows, g = steps[0]
    state = initial_state(FTRL(), w[rows])
    new, after = updated(FTRL(), w[rows], state, g, lr=0.0, step=1)
    assert torch.equal(new, w[rows]) and all(torch.equal(after[part], state[part]) for part in state)
