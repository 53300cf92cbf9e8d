"""Every form of a run agrees, whatever the model, the features and the options; and what cannot agree is told apart."""

from __future__ import annotations

import sys
import types
from dataclasses import replace
from typing import Any

import msgspec
import pandas as pd
import pytest
import torch
from torch import Tensor, nn

from sfctr.models.registry import BUILT_IN
from sfctr.spec.errors import CapacityError, ConfigError
from sfctr.spec.optim import FTRL, SGD, Adagrad, Adam, AdamW, Schedule
from sfctr.spec.runfile import Model, RunFile
from sfctr.spec.tables import Tiers
from sfctr.store import Store
from sfctr.train.run import open_store
from sfctr.verify import Finding, Makers, reference_optim, verify_run
from sfctr.verify.difference import Difference
from sfctr.verify.reference import train_reference
from sfctr.verify.steps import EachStep
from sfctr.verify.variants import Footprint, loop_variants, plain, tier_variants, with_train
from sfctr.verify.workbench import Workbench

STEPS = 4


def verified(run: RunFile, log: Any, *, quick: bool = True, steps: int = STEPS, **options: Any) -> dict[str, Finding]:
    found = verify_run(run, steps=steps, quick=quick, data=log, **options)
    return {finding.variant: finding for finding in found}


def forms(run: RunFile, *, quick: bool) -> list[str]:
    """Names of what is held against the plain form. How large the caches are changes none of them."""
    variants = (*loop_variants(run), *tier_variants(run, Footprint(num_rows=1, row_bytes=4)))
    return [variant.name for variant in variants if variant.quick or not quick]


def holds(findings: dict[str, Finding]) -> bool:
    assert [str(f.difference) for f in findings.values() if not f.holds] == []
    return True


def with_model(run: RunFile, name: str, **args: Any) -> RunFile:
    return msgspec.structs.replace(run, model=Model(name=name, args=args))


def with_table(run: RunFile, name: str, **changes: Any) -> RunFile:
    tables = (msgspec.structs.replace(t, **changes) if t.name == name else t for t in run.tables)
    return msgspec.structs.replace(run, tables=tuple(tables))


@pytest.mark.parametrize("model", sorted(BUILT_IN))
def test_every_model_agrees_with_plain_torch(run, log, model):
    found = verified(with_model(run, model), log)
    assert holds(found)
    assert list(found) == ["plain, again", *forms(run, quick=True), "plain torch"]
    assert {f.steps for f in found.values()} == {STEPS}
    assert {f.predictions for f in found.values()} == {STEPS * 64}


def test_every_form_agrees(run, log):
    found = verified(run, log, quick=False)
    assert holds(found)
    tried = forms(run, quick=False)
    assert list(found) == ["plain, again", *tried, "plain torch", "plain torch, step by step"]
    assert {"window 1", "2 threads, window 4", "the run as it is", "disk under RAM, LFU, window 4"} <= set(tried)
    assert len({(f.steps, f.predictions, f.rows) for f in found.values()}) == 1


def test_a_run_with_a_preset_agrees_in_every_form(run, log):
    tiers = msgspec.structs.replace(run.tiers, device="64KB")
    preset = msgspec.structs.replace(run, preset="scalefreectr", tiers=tiers)
    assert holds(verified(preset, log))


@pytest.mark.parametrize("options", [{"dtype": "bf16"}, {"capacity": 20}, {"admit_after": 2, "expire_after_steps": 3}])
def test_tables_that_plain_torch_does_not_know_are_held_against_the_runs_forms_alone(run, log, options):
    tables = tuple(
        table if table.dense or table.frozen or table.buckets else msgspec.structs.replace(table, **options)
        for table in run.tables
    )
    found = verified(msgspec.structs.replace(run, tables=tables), log, quick=False)
    assert holds(found) and "plain torch, step by step" not in found
    assert "in bf16, or its keys come and go" in found["plain torch"].result
    assert found["disk under RAM, LRU, window 4"].rows > 0


OPTIONS: dict[str, dict[str, Any]] = {
    "clip and accumulate": {"clip": 0.01, "accumulate": 5},
    "warm-up and cosine": {"schedule": Schedule(warmup_steps=3, decay="cosine")},
    "inverse root": {"schedule": Schedule(warmup_steps=2, decay="inverse_sqrt")},
    "SGD": {"optimizer": SGD(lr=0.1, momentum=0.9, weight_decay=1e-3)},
    "Adagrad": {"optimizer": Adagrad(lr=0.05, initial_accumulator=0.1)},
    "AdamW": {"optimizer": AdamW(lr=0.01)},
    "bf16": {"autocast": "bf16"},
    "denormals": {"flush_denormals": False},
    "another seed": {"seed": -5},
}


@pytest.mark.parametrize("option", OPTIONS)
def test_every_option_of_the_loop_agrees_with_plain_torch(run, log, option):
    assert holds(verified(with_train(run, **OPTIONS[option]), log))


def test_dropout_and_batch_statistics_agree_with_plain_torch(run, log):
    assert holds(verified(with_model(run, "dcnv2", hidden=[16], dropout=0.3, batch_norm=True), log))


def test_several_labels_with_missing_ones_agree_with_plain_torch(run, log):
    schema = msgspec.structs.replace(run.schema, label=("click", "like"))
    assert holds(verified(msgspec.structs.replace(run, schema=schema), log))


def test_pretrained_and_frozen_rows_agree_with_plain_torch(run, log, tmp_path):
    file = tmp_path / "rows.parquet"
    pd.DataFrame({"key": [1, 2, 500], "vector": [[0.5, -1, 2, 0]] * 3}).to_parquet(file)
    for frozen in (False, True):
        found = verified(with_table(run, "words", pretrained=str(file), frozen=frozen), log)
        assert holds(found)


def test_steps_end_where_the_run_ends(run, log):
    assert {f.steps for f in verified(run, log, steps=100).values()} == {14}


def test_the_learning_rates_are_those_of_the_whole_run(run, log):
    # a linear decay to the end of the run: 2 steps of 14 are at nearly the full rate, 2 of 2 are not
    decaying = with_train(run, schedule=Schedule(decay="linear"))
    makers = {
        rate: Makers(reference=mutated(with_train, schedule=rate)) for rate in (Schedule(), decaying.train.schedule)
    }
    assert holds(verified(decaying, log, steps=2))
    assert not verified(decaying, log, steps=2, makers=makers[Schedule()])["plain torch"].holds


def mutated(change: Any, *args: Any, **kwargs: Any) -> Any:
    """The reference, of another run than the one it is asked about."""

    def reference(run: RunFile, *rest: Any, **options: Any) -> Any:
        return train_reference(change(run, *args, **kwargs), *rest, **options)

    return reference


def optimizer_with(run: RunFile, name: str, **changes: Any) -> RunFile:
    (table,) = (t for t in run.tables if t.name == name)
    return with_table(run, name, optimizer=msgspec.structs.replace(table.optimizer, **changes))


MUTATIONS: dict[str, tuple[Any, ...]] = {
    "lr of rows": (optimizer_with, "item", {"lr": 0.02 * (1 + 1e-4)}),
    "eps of Adam": (optimizer_with, "item", {"eps": 1.1e-8}),
    "beta2": (optimizer_with, "words", {"beta2": 0.9990001}),
    "momentum": (optimizer_with, "user", {"momentum": 0.9001}),
    "nesterov": (optimizer_with, "user", {"nesterov": False}),
    "accumulator": (optimizer_with, "hashed", {"initial_accumulator": 0.1001}),
    "weight decay": (optimizer_with, "both", {"weight_decay": 0.011}),
    "decoupled decay": (optimizer_with, "weekday", {"weight_decay": 0.11}),
    "l1 of FTRL": (with_table, "tag", {"linear": FTRL(l1=1.01e-3, l2=0.1)}),
    "l2 of a dense table": (with_table, "hour", {"l2": 0.0501}),
    "buckets": (with_table, "hashed", {"buckets": 12}),
    "seed": (with_train, {"seed": 1}),
    "lr of the dense part": (with_train, {"optimizer": Adam(lr=0.02 * (1 + 1e-4))}),
    "clip": (with_train, {"clip": 0.001}),
    "warm-up": (with_train, {"schedule": Schedule(warmup_steps=2)}),
}


def step_by_step(run: RunFile, log: Any, reference: Any) -> Difference | None:
    with Workbench(run, Makers(reference=reference), data=log) as bench:
        steps = EachStep(bench)
        bench.train(plain(bench.run), STEPS, steps.take)
        return steps.difference


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_reference_with_another_option_disagrees(run, log, mutation):
    change, *args = MUTATIONS[mutation]
    assert step_by_step(run, log, mutated(change, *args[:-1], **args[-1])) is not None


def test_a_reference_whose_bias_correction_is_one_step_late_disagrees(run, log, monkeypatch):
    def late(*args: Any, step: int, **options: Any) -> Any:
        return reference_optim.updated(*args, step=step + 1, **options)

    assert step_by_step(run, log, train_reference) is None
    monkeypatch.setattr("sfctr.verify.reference_tables.updated", late)
    difference = step_by_step(run, log, train_reference)
    assert difference is not None
    assert (difference.step, difference.table, difference.field) == (1, "item", "vector")


def test_steps_that_hold_one_by_one_excuse_their_sum(run, log):
    # as where an activation tips over its kink in one of two runs that differ in their last bits
    def reference(run: RunFile, batches: Any, **options: Any) -> Any:
        outcome = train_reference(run, batches, **options)
        if outcome.steps < STEPS or options["start"] is not None:
            return outcome
        return replace(outcome, logits=(*outcome.logits[:-1], outcome.logits[-1] + 1))

    found = verified(run, log, makers=Makers(reference=reference))
    assert holds(found)
    assert found["plain torch"].result == "apart by rounding alone, see below"
    assert found["plain torch, step by step"].result.startswith("within ")


class Restless(nn.Module):
    """Linear in everything, plus what `noise` gives."""

    noise: Any = staticmethod(lambda: 0.0)

    def __init__(self, inputs: Any) -> None:
        super().__init__()
        self.names = [item.name for item in inputs if item.kind == "pooled"]
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, features: dict[str, Tensor]) -> Tensor:
        return sum(features[name] @ self.weight for name in self.names) + type(self).noise()


@pytest.fixture
def restless(monkeypatch) -> type[Restless]:
    module = types.ModuleType("restless_models")
    module.Restless = type("Restless", (Restless,), {})
    monkeypatch.setitem(sys.modules, "restless_models", module)
    return module.Restless


@pytest.fixture
def ones_own(run, restless) -> RunFile:
    return with_model(run, "restless_models:Restless")


def test_a_model_of_ones_own_agrees(ones_own, log):
    assert holds(verified(ones_own, log))


def test_numbers_from_elsewhere_are_told_from_differences(ones_own, restless, log):
    state = iter(range(10**6))
    restless.noise = staticmethod(lambda: 1e-3 * next(state))
    (finding,) = verified(ones_own, log).values()
    assert (finding.variant, finding.result) == ("plain, again", "not repeatable")
    assert finding.difference is not None and finding.difference.field == "logit"
    assert "does not follow from its inputs and train.seed" in finding.remedy


def test_threads_of_torch_that_change_numbers_are_told_with_the_remedy(ones_own, restless, log):
    state = iter(range(10**6))
    restless.noise = staticmethod(lambda: 1e-3 * next(state) * (torch.get_num_threads() > 1))
    (finding,) = verified(with_train(ones_own, torch_threads=2), log).values()
    assert finding.result == "not repeatable"
    assert "train.torch_threads = 1" in finding.remedy


def test_a_difference_that_does_not_come_again_says_so(ones_own, restless, log):
    calls = iter(range(10**6))
    spoiled = 2 * STEPS + 3  # in the third training alone, which is that of the run as it is
    restless.noise = staticmethod(lambda: 1e-3 * (next(calls) == spoiled))
    difference = verified(ones_own, log)["the run as it is"].difference
    assert difference is not None and difference.step == 4
    assert "it did not come again when these steps were repeated, so it depends on timing" in str(difference)


def test_tiers_are_sized_by_what_the_steps_touch_and_kept_apart(run, log, tmp_path):
    asked: list[Tiers] = []

    def store(run: RunFile) -> Store:
        asked.append(run.tiers)
        return open_store(msgspec.structs.replace(run, tiers=Tiers()))

    run = msgspec.structs.replace(run, tiers=Tiers(disk=str(tmp_path / "mine")))
    found = verified(run, log, quick=False, makers=Makers(store=store, has_tiers=True))
    assert holds(found)
    assert {"disk under RAM, LRU, window 0", "device over RAM, LFU, window 4"} <= set(found)
    (device,), (ram,) = (
        {getattr(t, name) for t in asked if getattr(t, name)} for name in ("device_bytes", "ram_bytes")
    )
    rows = found["plain, again"].rows
    assert 4 * 4 * rows / 4 < device < 16 * 4 * rows / 4  # a quarter of records of 4 to 16 floats
    assert ram == device + 24 * rows
    assert {t.policy for t in asked} == {"lru", "lfu"}
    assert not any(str(t.disk).startswith(str(tmp_path)) for t in asked)
    assert not (tmp_path / "mine").exists()


def test_a_form_that_cannot_run_is_no_agreement(run, log):
    def store(run: RunFile) -> Store:
        if run.tiers.device:
            raise CapacityError("tiers.device is too small")
        return open_store(msgspec.structs.replace(run, tiers=Tiers()))

    found = verified(run, log, makers=Makers(store=store, has_tiers=True))
    odd = [finding for finding in found.values() if not finding.holds]
    assert [finding.result for finding in odd] == ["not run"]
    assert str(odd[0].difference) == "tiers.device is too small"


def test_no_steps_are_refused(run, log):
    with pytest.raises(ConfigError, match="--steps is 0 and must be at least 1"):
        verified(run, log, steps=0)


def test_each_form_is_announced(run, log):
    said: list[str] = []
    found = verified(run, log, begins=said.append)
    assert said == ["plain", *found]
