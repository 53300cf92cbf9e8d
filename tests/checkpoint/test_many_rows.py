"""Rows are loaded in the order of their hashes, and the time that takes grows with their number alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from small_run import SnapshotTwin

import sfctr
from sfctr.checkpoint import Checkpointer, TrainingState, open_checkpoint, open_model, save_model
from sfctr.spec.runfile import Data, RunFile

TABLE = sfctr.Table("item", dim=1, optimizer=sfctr.SGD())
RUN = RunFile(
    data=Data(train=("x.csv",)),
    schema=sfctr.Schema(label="y", features=[sfctr.Categorical("item", dtype="int64")]),
    tables=(TABLE,),
)
NUM_ROWS = 300_000


@pytest.fixture
def store():
    with sfctr.Store([TABLE]) as store:
        store.set_vectors("item", np.arange(NUM_ROWS, dtype=np.uint64), np.ones((NUM_ROWS, 1), np.float32))
        yield store


@pytest.mark.timeout(40)  # an index that grows with such rows takes minutes
def test_a_checkpoint_of_many_rows(tmp_path, store):
    model = torch.nn.Linear(1, 1)
    with Checkpointer(tmp_path / "c", SnapshotTwin(store)) as checkpointer:
        checkpointer.save(TrainingState(run=RUN, store=store, model=model))
    with sfctr.Store([TABLE]) as again:
        open_checkpoint(tmp_path / "c" / f"step-{0:012}").load_store(again)
        assert again.num_rows("item") == NUM_ROWS


@pytest.mark.timeout(40)
def test_a_saved_model_of_many_rows(tmp_path, store):
    save_model(tmp_path / "last", run=RUN, store=store, model=torch.nn.Linear(1, 1), facts={})
    with sfctr.Store([TABLE]) as again:
        open_model(tmp_path / "last").load_rows(again)
        assert again.num_rows("item") == NUM_ROWS
