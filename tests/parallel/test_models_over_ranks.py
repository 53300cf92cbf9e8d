"""Every built-in model, its rows dealt out to ranks, gives the logits and gradients that it gives in one process."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from processes import run_ranks
from torch import Tensor, nn

from sfctr.models.registry import BUILT_IN, build_model
from sfctr.parallel.dense import parallelise
from sfctr.parallel.world import World
from sfctr.spec.inputs import Input
from sfctr.spec.runfile import Parallel

pytestmark = [pytest.mark.processes, pytest.mark.timeout(90)]

B, D, L = 6, 4, 3
INPUTS = (
    Input(name="price", kind="dense", width=2),
    Input(name="item", kind="pooled", dim=D, linear=True, table="item"),
    Input(name="tags", kind="pooled", dim=D, linear=True, table="tag"),
)
HISTORY = Input(name="history", kind="sequence", dim=D, max_length=L, linear=True, target="item", table="item")
PLACES = {"uneven": [[0, 2, 3, 5], [1, 4]], "one has none": [[], list(range(B))]}


def make(name: str) -> tuple[nn.Module, dict[str, Tensor]]:
    inputs = (*INPUTS, HISTORY) if name == "din" else INPUTS
    torch.manual_seed(1)
    model = build_model(name, inputs).double()
    for parameter in model.parameters():  # some begin at zero, and would hide what lies before them
        nn.init.normal_(parameter, std=0.3)
    features: dict[str, Tensor] = {}
    for item in inputs:
        shape = (B, item.width) if item.kind == "dense" else (B, item.dim) if item.kind == "pooled" else (B, L, D)
        features[item.name] = torch.randn(shape, dtype=torch.float64)
        if item.linear:
            features[f"{item.name}.linear"] = torch.randn(B, 1, dtype=torch.float64)
        if item.kind == "sequence":
            features[f"{item.name}.mask"] = torch.arange(L) < torch.tensor([0, 1, 2, 3, 3, 1]).unsqueeze(1)
    return model, features


def learn(model: nn.Module, features: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor | None]]:
    """Logits, and the gradients of features."""
    for value in features.values():
        value.requires_grad_(value.is_floating_point())
    logits = model(features)
    (logits.square().sum() / B).backward()
    return logits.detach(), {name: value.grad for name, value in features.items()}


def over_ranks(world: World, name: str, options: dict, places: list[list[int]]):
    model, features = make(name)
    mine = torch.tensor(places[world.rank], dtype=torch.int64)
    dense = parallelise(model, Parallel(**options), world)
    with dense.rows(B, mine):
        logits, of_features = learn(model, {key: value[mine].detach() for key, value in features.items()})
    dense.reduce(np.zeros(0))
    of_weights = {
        key: None if p.grad is None else dense.whole(key, p.grad).cpu() for key, p in dense.parameters.items()
    }
    return logits, of_features, of_weights


@pytest.mark.parametrize("places", PLACES)
@pytest.mark.parametrize("options", [{}, {"dense": "fsdp"}, {"tensor": 2}], ids=["ddp", "fsdp", "tensor"])
@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_a_model_over_ranks_is_the_model_of_one_process(name, options, places):
    model, features = make(name)
    if "tensor" in options and not has_pair(model):
        pytest.skip("it has no layers to split, or batch norm between them")
    logits, of_features = learn(model, features)
    for mine, (found, found_of_features, of_weights) in zip(
        PLACES[places], run_ranks(2, over_ranks, name, options, PLACES[places]), strict=True
    ):
        close(found, logits[mine])
        for key, gradient in found_of_features.items():
            if mine:
                assert (gradient is None) == (of_features[key] is None), key
            if mine and gradient is not None:
                close(gradient, of_features[key][mine])
        for key, parameter in model.named_parameters():
            expected = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            gradient = of_weights[f"model.{key}"]
            close(torch.zeros_like(parameter) if gradient is None else gradient, expected)


def has_pair(model: nn.Module) -> bool:
    """Whether tensor parallelism takes it: layers in a Sequential, and no batch norm anywhere."""
    kinds = [type(module) for module in model.modules()]
    return kinds.count(nn.Linear) > 1 and not any(isinstance(m, nn.BatchNorm1d) for m in model.modules())


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found.detach(), expected.detach(), rtol=1e-9, atol=1e-11)
