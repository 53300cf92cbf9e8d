"""The dense part over several ranks learns what one process with all rows learns."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from processes import run_ranks
from torch import nn

from sfctr.models.layers import MLP, Dice
from sfctr.parallel.dense import parallelise
from sfctr.parallel.world import World
from sfctr.spec.errors import ConfigError, ModelError
from sfctr.spec.optim import SGD, Adagrad, Adam, AdamW
from sfctr.spec.runfile import Parallel
from sfctr.train.optim import make_dense_optimizer

pytestmark = [pytest.mark.processes, pytest.mark.timeout(60)]

STEPS, ROWS = 4, 6


class Tower(nn.Module):
    """An MLP, a parameter outside of it, one that nothing uses and one that only rows with x[0] > 0 use."""

    def __init__(self, dropout: float = 0.0, batch_norm: bool = False, activation: str = "prelu") -> None:
        super().__init__()
        self.deep = MLP(5, [7, 4], out=1, dropout=dropout, batch_norm=batch_norm, activation=activation)
        self.scale = nn.Parameter(torch.ones(3))
        self.unused = nn.Parameter(torch.ones(3))
        self.seldom = nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        score = self.deep(x * self.scale.sum()).squeeze(1)
        positive = x[:, 0] > 0
        return torch.where(positive, score * self.seldom, score) if positive.any() else score


def tower(**options) -> Tower:
    torch.manual_seed(7)
    return Tower(**options).double()


def batch(step: int, num_rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(num_rows, 5, generator=generator, dtype=torch.float64)
    return x, torch.randn(num_rows, generator=generator, dtype=torch.float64)


def learn(model: nn.Module, optimizer, x, y, whole: int) -> float:
    loss = (model(x) - y).square().sum() / whole
    loss.backward()
    return float(loss.detach())


def one_process(options: dict, optimizer, sizes: list[int]):
    """State, loss of each step and squared norm of the last one's gradients, in plain torch."""
    model = tower(**options)
    steps, losses = make_dense_optimizer(optimizer, model.parameters()), []
    for step, size in enumerate(sizes):
        torch.manual_seed(step)
        losses.append(learn(model, steps, *batch(step, size), size))
        norm = sum(float(p.grad.square().sum()) for p in model.parameters() if p.grad is not None)
        steps.step()
        steps.zero_grad()
    moments = {
        f"model.{name}": steps.state[p].get("exp_avg") for name, p in model.named_parameters() if p in steps.state
    }
    return model.state_dict(), losses, norm, moments


def parts_of(counts: list[int], size: int, rank: int) -> torch.Tensor:
    """Places dealt out in turn to ranks that have room, so that no rank's rows lie together; `size` rows in all."""
    left, dealt = list(counts), [[] for _ in counts]
    for place in range(size):
        rank_now = max(range(len(left)), key=lambda q: (left[q], -q))
        left[rank_now] -= 1
        dealt[rank_now].append(place)
    return torch.tensor(dealt[rank], dtype=torch.int64)


def many(world: World, options: dict, parallel: dict, optimizer, sizes: list[int], counts: list[int]):
    model = tower(**options)
    if world.rank:  # all begin as rank 0
        with torch.no_grad():
            model.scale.zero_()
    dense = parallelise(model, Parallel(**parallel), world)
    steps, losses = make_dense_optimizer(optimizer, dense.parameters.values()), []
    for step, size in enumerate(sizes):
        torch.manual_seed(step)
        places = parts_of(counts, size, world.rank)
        x, y = (values[places] for values in batch(step, size))
        loss = 0.0
        with dense.rows(size, places):
            if len(places) or dense.needs_every_rank:
                loss = learn(model, steps, x, y, size)
        losses.append(float(dense.reduce(np.array([loss]))[:, 0].sum()))
        norm = dense.square_norm()
        steps.step()
        steps.zero_grad()
    moments = {
        name: dense.whole(name, steps.state[p]["exp_avg"])
        for name, p in dense.parameters.items()
        if "exp_avg" in steps.state.get(p, {})
    }
    return dense.state_dict(), losses, norm, moments


def close(found, expected) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


def compare(options: dict, parallel: dict, optimizer, counts: list[int], sizes: list[int]) -> None:
    state, losses, norm, moments = one_process(options, optimizer, sizes)
    results = run_ranks(len(counts), many, options, parallel, optimizer, sizes, counts)
    for found_state, found_losses, found_norm, found_moments in results:
        assert list(found_state) == list(state)
        close(found_state, state)
        close(found_losses, losses)
        close(found_norm, norm)
        for name, moment in found_moments.items():
            if moments.get(name) is not None:
                close(moment, moments[name])


COUNTS = [[6, 0], [3, 3], [5, 1], [2, 0, 4]]
DDP = {"dense": "ddp"}
FSDP = {"dense": "fsdp"}
MIXED = {"dropout": 0.3, "batch_norm": True}


@pytest.mark.parametrize("counts", COUNTS)
def test_whole_weights_on_every_rank_learn_as_in_one_process(counts):
    compare({}, DDP, Adam(lr=0.01), counts, [ROWS] * STEPS)


@pytest.mark.parametrize("counts", COUNTS)
@pytest.mark.parametrize("activation", ["relu", "dice"])
def test_batch_norm_and_dropout_see_the_rows_of_all_ranks(counts, activation):
    compare({**MIXED, "activation": activation}, DDP, Adam(lr=0.01), counts, [ROWS] * STEPS)


def test_a_batch_of_one_row_is_normalised_by_running_statistics():
    compare(MIXED, DDP, SGD(lr=0.01), [6, 0], [ROWS, 1, ROWS])


@pytest.mark.parametrize("counts", COUNTS)
def test_sharded_weights_learn_as_in_one_process(counts):
    compare(MIXED, FSDP, Adam(lr=0.01), counts, [ROWS] * STEPS)


@pytest.mark.parametrize("optimizer", [SGD(lr=0.01, momentum=0.9), Adagrad(lr=0.01), AdamW(lr=0.01, weight_decay=0.1)])
def test_every_optimizer_updates_sharded_weights(optimizer):
    compare({}, FSDP, optimizer, [5, 1], [ROWS] * STEPS)


@pytest.mark.parametrize("counts", [[6, 0], [4, 2], [0, 3, 2, 1]])
def test_split_weights_learn_as_in_one_process(counts):
    compare({"dropout": 0.3}, {"tensor": 2}, Adam(lr=0.01), counts, [ROWS] * STEPS)


def test_weights_split_over_more_ranks_than_they_have_columns_learn_as_in_one_process():
    compare({"activation": "relu"}, {"tensor": 5}, SGD(lr=0.01), [2, 1, 0, 2, 1], [ROWS] * 2)


def gradients(world: World, parallel: dict) -> tuple[dict, dict]:
    """Which parameters have gradients where only rank 1 has a row that uses `seldom`, and the extras."""
    model = tower()
    dense = parallelise(model, Parallel(**parallel), world)
    x = torch.full((2, 5), 1.0 if world.rank == 1 else -1.0, dtype=torch.float64)
    with dense.rows(4, torch.arange(2) + 2 * world.rank):
        learn(model, None, x, torch.ones(2, dtype=torch.float64), 4)
    extras = dense.reduce(np.array([world.rank, 0.5]))
    has = {name.removeprefix("model."): p.grad is not None for name, p in dense.parameters.items()}
    return has, extras.tolist()


def test_a_parameter_has_a_gradient_if_any_rank_has_one_for_it():
    for has, extras in run_ranks(2, gradients, DDP):
        assert has["seldom"] and has["scale"] and not has["unused"]
        assert extras == [[0.0, 0.5], [1.0, 0.5]]


def loaded(world: World, parallel: dict, state: dict) -> bool:
    dense = parallelise(tower(batch_norm=True), Parallel(**parallel), world)
    dense.load_state_dict(state)
    return all(torch.equal(value, state[name]) for name, value in dense.state_dict().items())


@pytest.mark.parametrize(("size", "parallel"), [(2, DDP), (3, FSDP), (2, FSDP)])
def test_whole_tensors_load_into_any_number_of_ranks(size, parallel):
    state = {
        name: torch.randn_like(value.double()).to(value) for name, value in tower(batch_norm=True).state_dict().items()
    }
    assert all(run_ranks(size, loaded, parallel, state))


def refused(world: World, parallel: dict, kind: str) -> str:
    model = MODELS[kind]()
    with pytest.raises((ConfigError, ModelError)) as error:
        parallelise(model, Parallel(**parallel), world)
    return str(error.value)


MODELS = {
    "tower": tower,
    "norm": lambda: tower(batch_norm=True),
    "dice": lambda: nn.Sequential(nn.Linear(2, 4), Dice(4), nn.Linear(4, 1)),
    "one layer": lambda: nn.Sequential(nn.Linear(2, 1)),
    "alpha": lambda: nn.Sequential(nn.Linear(2, 1), nn.AlphaDropout(0.5)),
    "scalar": lambda: Scalar(),
}


class Scalar(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.tensor(0.0))


@pytest.mark.parametrize(
    ("parallel", "kind", "words"),
    [
        ({"tensor": 2, "dense": "fsdp"}, "tower", 'set tensor = 1 or dense = "ddp"'),
        ({"tensor": 3}, "tower", "parallel.tensor is 3 and 2 processes train, which is no multiple of it; start 3"),
        ({"tensor": 2}, "norm", "deep.1, a WideBatchNorm, lies between layers that it would split"),
        ({"tensor": 2}, "dice", "1, a Dice, lies between"),
        ({"tensor": 2}, "one layer", "the model has no two linear layers that follow each other"),
        (DDP, "alpha", "the model has AlphaDropout, whose masks would differ"),
        (FSDP, "scalar", "parameter bias has no dim to be split by"),
    ],
)
def test_what_does_not_go_together_is_refused(parallel, kind, words):
    for message in run_ranks(2, refused, parallel, kind):
        assert words in message


def differs(world: World) -> str:
    with pytest.raises(ModelError) as error:
        parallelise(nn.Linear(2, 3 + world.rank), Parallel(), world)
    return str(error.value)


def test_a_model_that_is_not_the_same_everywhere_is_refused():
    for message in run_ranks(2, differs):
        assert message.startswith(
            "the model is not the same on all ranks: model.weight is float32 of shape [3, 2] on rank 0 and float32 of"
            " shape [4, 2] on rank 1"
        )


def wrong_rows(world: World) -> str:
    model = nn.Sequential(nn.Dropout(0.5))
    dense = parallelise(model, Parallel(), world)
    with dense.rows(4, torch.arange(2)), pytest.raises(ModelError) as error:
        model(torch.ones(3, 2))
    return str(error.value)


def test_dropout_over_something_else_than_rows_is_refused():
    assert "dropout got a tensor of shape (3, 2) where the model has 2 rows" in run_ranks(1, wrong_rows)[0]


def mask(world: World) -> bool:
    """Whether the whole batch on one rank draws the bits of nn.Dropout."""
    model, x = nn.Sequential(nn.Dropout(0.3)), torch.randn(50, 8)
    torch.manual_seed(3)
    expected = model(x)
    dense = parallelise(model, Parallel(), world)
    torch.manual_seed(3)
    with dense.rows(50, torch.arange(50)):
        return torch.equal(model(x), expected)


def test_dropout_of_a_whole_batch_has_the_bits_of_torch():
    assert run_ranks(1, mask) == [True]


def single(world: World, options: dict, parallel: dict, autocast: bool) -> list[torch.Tensor]:
    """The gradients of a model in single precision, its rows dealt out as 4 and 2."""
    model = tower(**options).float()
    dense = parallelise(model, Parallel(**parallel), world)
    places = parts_of([4, 2], ROWS, world.rank)
    x, y = (values.float()[places] for values in batch(0, ROWS))
    with dense.rows(ROWS, places):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            scores = model(x)
        ((scores.float() - y).square().sum() / ROWS).backward()
    dense.reduce(np.zeros(0))
    return [dense.whole(name, p.grad) for name, p in dense.parameters.items() if p.grad is not None]


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize(
    ("options", "parallel"), [({"batch_norm": True}, DDP), ({"batch_norm": True}, FSDP), ({}, {"tensor": 2})]
)
def test_single_precision_and_autocast_give_the_gradients_of_one_process(options, parallel, autocast):
    model = tower(**options).float()
    x, y = (values.float() for values in batch(0, ROWS))
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        scores = model(x)
    ((scores.float() - y).square().sum() / ROWS).backward()
    expected = [p.grad for p in model.parameters() if p.grad is not None]
    loose = 0.1 if autocast else 1e-4
    for found in run_ranks(2, single, options, parallel, autocast):
        torch.testing.assert_close(found, expected, rtol=loose, atol=loose)
