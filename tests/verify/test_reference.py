"""The whole reference in float64 against a training loop of torch's own embeddings and optimizers, to 1e-9."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sfctr.data import open_source
from sfctr.models.registry import build_model
from sfctr.spec.batch import Batch
from sfctr.spec.inputs import inputs_of
from sfctr.spec.optim import Adam, Schedule
from sfctr.spec.runfile import Data, Model, RunFile, Train
from sfctr.spec.schema import Bag, Categorical, Schema, Sequence
from sfctr.spec.tables import Table, Uniform
from sfctr.verify.compare import SameBits, first_step_at_odds
from sfctr.verify.outcome import Outcome
from sfctr.verify.reference import FirstBatches, train_reference
from sfctr.verify.reference_dense import schedule_factor
from sfctr.verify.reference_rows import initial_rows

DIM, ITEMS, TAGS, STEPS = 3, 12, 9, 8
WIDE = Uniform(-1.0, 1.0)


class Batches:
    """The same batches in every epoch."""

    def __init__(self, batches: list[Batch]) -> None:
        self._batches = batches
        self.num_rows = sum(batch.size for batch in batches)

    def batches(self, epoch: int = 0) -> Generator[Batch, None, None]:
        yield from self._batches


@pytest.fixture
def source() -> Batches:
    draw = np.random.default_rng(1)
    rows = [
        {
            "click": int(draw.integers(0, 2)),
            "item": int(draw.integers(0, ITEMS)) or None,
            "tags": draw.integers(0, TAGS, draw.integers(0, 4)).tolist(),
            "history": draw.integers(0, ITEMS, draw.integers(0, 5)).tolist(),
        }
        for _ in range(100)
    ]
    schema = Schema(
        label="click",
        features=[
            Categorical("item"),
            Bag("tags", pooling="mean"),
            Sequence("history", table="item", max_length=3, target="item"),
        ],
    )
    with open_source(rows, schema, batch_size=25, shuffle=False) as opened:
        batches = Batches(list(opened))
        batches.schema = opened.schema
        return batches


@pytest.fixture
def run(source) -> RunFile:
    adam = Adam(lr=0.05)
    return RunFile(
        data=Data(),
        schema=source.schema,
        tables=(
            Table("item", dim=DIM, optimizer=adam, init=WIDE),
            Table("tags", dim=DIM, optimizer=adam, init=WIDE),
        ),
        model=Model(name="dcnv2", args={"hidden": [4]}),
        train=Train(epochs=5, batch_size=25, optimizer=adam, device="cpu", schedule=Schedule(warmup_steps=3)),
    )


def with_torch(run: RunFile, source: Batches) -> tuple[list[Tensor], dict[str, Tensor]]:
    """Logits of each step and the rows after the last one; the missing item is the last row of its embedding."""
    tables = {}
    for table, count in zip(run.tables, (ITEMS, TAGS), strict=True):
        keys, nulls = np.arange(count + 1, dtype=np.uint64), np.arange(count + 1) == count
        keys[-1] = 0
        rows = torch.from_numpy(initial_rows(table, run.train.seed, keys, nulls)).double()
        tables[table.name] = nn.Embedding(count + 1, DIM, sparse=True, _weight=rows)
    model = build_model("dcnv2", inputs_of(run.schema, run.tables), 1, run.model.args, seed=run.train.seed).double()
    dense = torch.optim.Adam(model.parameters(), lr=0.05)
    sparse = torch.optim.SparseAdam([t.weight for t in tables.values()], lr=0.05)
    logits = []
    for step, batch in enumerate(FirstBatches(run, source, STEPS)):
        for optimizer in (dense, sparse):
            optimizer.zero_grad()
            optimizer.param_groups[0]["lr"] = 0.05 * min(1.0, (step + 1) / 3)
        scores = model(features_of(batch, tables))
        labels = torch.from_numpy(batch.labels[:, 0]).double()
        nn.functional.binary_cross_entropy_with_logits(scores, labels).backward()
        dense.step()
        sparse.step()
        logits.append(scores.detach())
    return logits, {name: table.weight.detach() for name, table in tables.items()}


def features_of(batch: Batch, tables: dict[str, nn.Embedding]) -> dict[str, Tensor]:
    item = torch.from_numpy(batch.keys["item"].keys.astype(np.int64))
    item[torch.from_numpy(batch.keys["item"].nulls != 0)] = ITEMS
    lists = {name: np.split(batch.keys[name].keys, batch.keys[name].offsets[1:-1]) for name in ("tags", "history")}
    lists = {name: [torch.from_numpy(row.astype(np.int64)) for row in rows] for name, rows in lists.items()}
    zero = torch.zeros(DIM, dtype=torch.float64)
    history = [nn.functional.pad(tables["item"](row), (0, 0, 0, 3 - len(row))) for row in lists["history"]]
    return {
        "item": tables["item"](item),
        "tags": torch.stack([tables["tags"](row).mean(0) if len(row) else zero for row in lists["tags"]]),
        "history": torch.stack(history),
        "history.mask": torch.stack([torch.arange(3) < len(row) for row in lists["history"]]),
    }


def reference(run: RunFile, source: Batches, steps: int, **options: Any) -> Outcome:
    return train_reference(run, FirstBatches(run, source, steps), num_rows=source.num_rows, **options)


def test_it_trains_as_torchs_own_embeddings_and_optimizers_do(run, source):
    outcome = reference(run, source, STEPS, dtype=torch.float64)
    logits, rows = with_torch(run, source)
    assert outcome.steps == STEPS
    for mine, theirs in zip(outcome.logits, logits, strict=True):
        assert np.abs(mine[:, 0] - theirs.numpy()).max() < 1e-9
    for name, table in outcome.rows.items():
        count = rows[name].shape[0] - 1
        places = np.where(table.nulls, count, table.keys.astype(np.int64))
        assert np.abs(table.fields["vector"] - rows[name].numpy()[places]).max() < 1e-9
    assert outcome.rows["item"].nulls.sum() == 1


def test_a_nudge_moves_the_outcome_a_little_and_another_draw_elsewhere(run, source):
    plain, one, other = (reference(run, source, 3, nudge=number).logits[0] for number in (0, 1, 2))
    assert 0 < np.abs(one - plain).max() < 1e-5
    assert not np.array_equal(one, other)


def test_it_leaves_torchs_generator_as_it_was(run, source):
    torch.manual_seed(3)
    before = torch.random.get_rng_state()
    reference(run, source, 2, nudge=1)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_it_goes_on_from_where_it_stopped(run, source):
    first, whole = reference(run, source, 3), reference(run, source, 5)
    rest = train_reference(run, list(FirstBatches(run, source, 5))[3:], num_rows=source.num_rows, start=first)
    assert first_step_at_odds(rest, whole, SameBits()) is None
    assert first_step_at_odds(first, whole, SameBits()) == 3


def test_it_ends_where_the_run_ends(run, source):
    assert reference(run, source, 1000).steps == 20


@pytest.mark.parametrize(
    ("schedule", "step", "length", "factor"),
    [
        (Schedule(), 9, 0, 1.0),
        (Schedule(warmup_steps=4), 0, 0, 0.25),
        (Schedule(warmup_steps=4), 3, 0, 1.0),
        (Schedule(decay="linear", final=0.5), 5, 10, 0.75),
        (Schedule(decay="linear", final=0.5), 50, 10, 0.5),
        (Schedule(warmup_steps=2, decay="cosine"), 7, 10, 0.5),
        (Schedule(warmup_steps=4, decay="inverse_sqrt"), 16, 0, 0.5),
        (Schedule(decay="inverse_sqrt", final=0.3), 10_000, 0, 0.3),
    ],
    ids=str,
)
def test_its_schedule_has_the_factors_worked_out_by_hand(schedule, step, length, factor):
    assert schedule_factor(schedule, step, length) == pytest.approx(factor)
