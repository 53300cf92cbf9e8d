"""Training through torch.compile: for which batches, what stays as it is, and what is refused in which words."""

from __future__ import annotations

import copy
import subprocess
import sys

import msgspec
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sfctr.spec.errors import ConfigError, ModelError
from sfctr.spec.optim import Adam
from sfctr.spec.runfile import Data, Parallel, RunFile, Train
from sfctr.spec.schema import Categorical, Schema
from sfctr.spec.tables import Table
from sfctr.train import compiled, fit
from sfctr.train.assembly import settled
from sfctr.train.compiled import Compiled, full_sizes
from sfctr.train.options import check_run
from sfctr.train.resume import continued

FAST = Adam(lr=0.05)
TABLES = [Table("item", dim=4, optimizer=FAST), Table("tags", dim=4, optimizer=FAST)]
QUICK = {"model": "dlrm", "optimizer": FAST, "quiet": True, "torch_threads": 1, "threads": 1}


class Tower(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 1)

    def forward(self, features: dict[str, Tensor]) -> Tensor:
        return self.layer(torch.cat([features["a"], features["b"]], dim=1)).squeeze(1)


class Printing(Tower):
    def forward(self, features: dict[str, Tensor]) -> Tensor:
        print(features["a"].sum().item())
        return super().forward(features)


class Graphs:
    """A backend that runs the operations as they are, and counts how often something was compiled and called."""

    def __init__(self) -> None:
        self.compiled = self.calls = 0

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[Tensor]):
        self.compiled += 1

        def run(*args):
            self.calls += 1
            return graph.forward(*args)

        return run


def rows(count: int) -> dict[str, Tensor]:
    return {"a": torch.randn(count, 1), "b": torch.randn(count, 2)}


def test_full_batches_go_through_one_graph_and_others_through_the_model():
    module, graphs = Tower(), Graphs()
    call = Compiled(module, frozenset({8}), graphs)
    for count in (8, 8, 5, 3, 8):
        features = rows(count)
        assert torch.equal(call(features, count), module(features))
    assert (graphs.compiled, graphs.calls) == (1, 3)


def test_the_model_itself_stays_as_it_was_and_its_hooks_are_called():
    module, seen = Tower(), []
    module.register_forward_hook(lambda module, given, output: seen.append(output.detach().numpy()))
    before = list(module.state_dict())
    call = Compiled(module, frozenset({8}), Graphs())
    output = call(rows(8), 8)
    assert np.array_equal(seen[0], output.detach().numpy())
    assert "forward" not in vars(module)
    assert list(module.state_dict()) == before == list(copy.deepcopy(module).state_dict())


def test_models_of_one_class_do_not_use_up_each_others_graphs():
    for _ in range(12):  # torch's own limit is 8
        graphs = Graphs()
        Compiled(Tower(), frozenset({8}), graphs)(rows(8), 8)
        assert graphs.calls == 1


@pytest.mark.parametrize(("batch", "parts", "sizes"), [(8, 1, {8}), (8, 2, {4}), (10, 3, {3, 4}), (2, 2, {1})])
def test_sizes_are_those_of_a_full_batchs_parts(batch, parts, sizes):
    assert full_sizes(batch, parts) == sizes


def test_a_model_that_is_no_graph_is_refused_in_a_sentence():
    call = Compiled(Printing(), frozenset({8}), Graphs())
    with pytest.raises(ModelError, match=r"model 'Printing' cannot be compiled \(.*set train.compile = false"):
        call(rows(8), 8)


def test_a_machine_without_a_compiler_is_told_what_to_install():
    said = r"train.compile needs a C\+\+ compiler, and torch finds none; install g\+\+"
    import torch._inductor.config as inductor

    with inductor.patch({"cpp.cxx": ("no-such-compiler",)}), pytest.raises(ConfigError, match=said):
        compiled.require_compiler()


def test_a_run_that_is_not_compiled_does_not_load_the_compiler():
    code = "import sys, sfctr.train.fit; sys.exit('torch._dynamo' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


@pytest.mark.parametrize(
    ("parallel", "other"),
    [(Parallel(dense="fsdp"), 'parallel.dense = "fsdp"'), (Parallel(tensor=2), "parallel.tensor")],
)
def test_a_model_that_is_divided_is_refused(parallel, other):
    schema = Schema(label="y", features=[Categorical("a")])
    run = RunFile(data=Data(), schema=schema, train=Train(compile=True), parallel=parallel)
    with pytest.raises(ConfigError, match=f"compiles a model that is whole in each process, and {other} divides it"):
        check_run(run)


def test_a_run_that_goes_on_is_compiled_as_it_was():
    schema = Schema(label="y", features=[Categorical("a")])
    train = Train(compile=True, torch_threads=1, device="cpu")
    saved = settled(RunFile(data=Data(), schema=schema, train=train))
    asked = msgspec.structs.replace(saved, train=Train(torch_threads=1, device="cpu"))
    with pytest.raises(ConfigError, match=r"train\.compile is false and was true in the run that is to go on"):
        continued(saved, asked)


@pytest.mark.parametrize("accumulate", [1, 3])
def test_a_compiled_run_trains_and_scores_as_one_that_is_not(accumulate, planted, schema, tmp_path, monkeypatch):
    graphs = Graphs()
    monkeypatch.setattr(compiled, "BACKEND", graphs)
    scores = []
    for compile_it in (False, True):
        options = {**QUICK, "batch_size": 64, "accumulate": accumulate, "compile": compile_it}
        with fit(
            planted(300), schema, TABLES, valid=planted(50, seed=2), run_dir=tmp_path / str(compile_it), **options
        ) as run:
            scores.append(run.predict(planted(100, seed=3))["score"].to_pylist())
    assert scores[0] == scores[1]
    sizes = full_sizes(64, accumulate)
    assert (graphs.compiled, graphs.calls) == (len(sizes), 4 * accumulate)  # the fifth batch is short


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_torchs_own_code_is_close_to_the_models_and_has_the_same_bits_again():
    features, found = {name: x.requires_grad_() for name, x in rows(64).items()}, []
    torch.manual_seed(0)
    module = Tower()
    for call in (lambda features, size: module(features), *(Compiled(module, frozenset({64})) for _ in range(2))):
        output = call(features, 64)
        gradients = torch.autograd.grad(output.sigmoid().sum(), [*features.values(), *module.parameters()])
        found.append([output.detach(), *gradients])
    plain, once, again = found
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(plain, once, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(once, again, strict=True))
