"""A saved model comes back bit for bit, and damage is named."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from safetensors import SafetensorError

import sfctr
from sfctr.checkpoint import open_model, save_model
from sfctr.spec.batch import Batch, Keys
from sfctr.spec.errors import CheckpointError
from sfctr.spec.runfile import Data, RunFile

TABLES = (
    sfctr.Table("item", dim=3, linear=sfctr.FTRL(lr=0.1)),
    sfctr.Table("word", dim=2, optimizer=sfctr.SGD(lr=0.1)),
    sfctr.Table("hour", dim=2, dense=True, num_rows=24),
    sfctr.Table("first", dim=0, linear=sfctr.Adagrad(lr=0.1)),
    sfctr.Table("tag", dim=3, dtype="bf16", linear=sfctr.SGD(lr=0.1)),
)
SCHEMA = sfctr.Schema(
    label="y", features=[sfctr.Categorical(t.name, dtype="string" if t.name == "word" else "int64") for t in TABLES]
)
RUN = RunFile(data=Data(train=("x.csv",)), schema=SCHEMA, tables=TABLES)


def trained_store() -> sfctr.Store:
    store = sfctr.Store(TABLES, seed=5)
    keys = np.array([0, 2**64 - 1, 2**63, 7, 7, 0], dtype=np.uint64)
    nulls = np.array([0, 0, 0, 0, 0, 1], dtype=np.uint8)
    hours = np.array([0, 1, 2, 3, 4, 23], dtype=np.uint64)
    batch = Batch(
        size=6,
        keys={t.name: Keys(keys=hours if t.dense else keys, nulls=nulls) for t in TABLES},
        labels=np.zeros((6, 1), np.float32),
        label_mask=np.ones((6, 1), np.bool_),
        rows=np.arange(6),
    )
    for ready in sfctr.Lookahead([batch] * 3, store, schema=SCHEMA):
        sum(value.square().sum() + value.sum() for value in ready.features().values()).backward()
        ready.step(torch.optim.SGD(store.dense_parameters(), lr=0.1))
    return store


def contents(store):
    found = {}
    for name in store.tables:
        for block in store.rows(name):
            for i in range(block.keys.size):
                linear = b"" if block.linear is None else block.linear[i].tobytes()
                found[name, int(block.keys[i]), bool(block.nulls[i])] = (
                    block.vectors[i].tobytes() + linear + block.state[i].tobytes()
                )
    return found


def save(directory, store, model=None, **more):
    save_model(directory, run=RUN, store=store, model=model or torch.nn.Linear(2, 1), facts={"step": 3}, **more)


def test_rows_states_and_the_dense_part_come_back_bit_for_bit(tmp_path):
    model = torch.nn.Linear(2, 1)
    with trained_store() as store, sfctr.Store(TABLES, seed=99) as other:
        save(tmp_path / "best", store, model)
        saved = open_model(tmp_path / "best")
        saved.load_rows(other)
        assert contents(other) == contents(store)
        assert other.steps == 3
    twin = torch.nn.Linear(2, 1)
    saved.load_model(twin)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), twin.parameters(), strict=True))
    assert saved.run == RUN
    assert saved.facts == {"step": 3}


def test_a_second_save_replaces_the_first_and_leaves_nothing_beside(tmp_path):
    with trained_store() as store:
        save(tmp_path / "best", store)
        save(tmp_path / "best", store)
    assert [path.name for path in tmp_path.iterdir()] == ["best"]


def test_the_model_before_is_used_where_a_replacement_was_cut_short(tmp_path):
    with trained_store() as store:
        save(tmp_path / "best", store)
    (tmp_path / "best").rename(tmp_path / "best.old")
    assert open_model(tmp_path / "best").steps == 3


@pytest.mark.parametrize("name", ["rows/000.parquet", "dense.safetensors", "run.toml"])
def test_a_flipped_byte_is_named(tmp_path, name):
    with trained_store() as store:
        save(tmp_path / "best", store)
    path = tmp_path / "best" / name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match=rf"{name} has other bytes .* CRC-32"):
        open_model(tmp_path / "best")


def test_a_missing_file_and_a_missing_model_are_named(tmp_path):
    with trained_store() as store:
        save(tmp_path / "best", store)
    (tmp_path / "best" / "rows" / "000.parquet").unlink()
    with pytest.raises(CheckpointError, match="is missing"):
        open_model(tmp_path / "best")
    with pytest.raises(CheckpointError, match="there is no saved model"):
        open_model(tmp_path / "nowhere")


def test_another_model_is_refused_with_what_differs(tmp_path):
    with trained_store() as store:
        save(tmp_path / "best", store)
    with pytest.raises(CheckpointError, match=r"does not fit Linear: .*size mismatch"):
        open_model(tmp_path / "best").load_model(torch.nn.Linear(3, 1))


def test_rows_of_another_optimizer_are_refused(tmp_path):
    with trained_store() as store:
        save(tmp_path / "best", store)
    changed = (sfctr.Table("item", dim=3, linear=sfctr.SGD()), *TABLES[1:])
    with sfctr.Store(changed) as other, pytest.raises(sfctr.SfctrError, match="optimizer and linear must be"):
        open_model(tmp_path / "best").load_rows(other)


def test_the_text_of_hashed_keys_comes_back(tmp_path):
    with trained_store() as store:
        save(tmp_path / "best", store, strings={"word": {7: "a", 2**64 - 1: "b"}})
    assert open_model(tmp_path / "best").strings() == {"word": {7: "a", 2**64 - 1: "b"}}


def test_tied_weights_are_saved(tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    model[1].weight = model[0].weight
    with trained_store() as store:
        save(tmp_path / "best", store, model)
    open_model(tmp_path / "best").load_model(model)


@pytest.mark.parametrize(
    ("writer", "error"),
    [
        ("_write_rows", OSError(28, "No space left on device")),
        ("save_file", SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")),
    ],
)
def test_a_full_disk_is_a_named_error_and_keeps_the_model_before(tmp_path, monkeypatch, writer, error):
    with trained_store() as store:
        save(tmp_path / "best", store)

        def full(*args: object, **kwargs: object) -> None:
            raise error

        monkeypatch.setattr(f"sfctr.checkpoint.saved_model.{writer}", full)
        with pytest.raises(CheckpointError, match=r"No space left on device.*\); what was saved before is intact"):
            save(tmp_path / "best", store)
    assert open_model(tmp_path / "best").steps == 3
    assert [path.name for path in tmp_path.iterdir()] == ["best"]


def days_of_keys(count, begin=0):
    """Batches of a skewed and drifting stream, a day each."""
    random = np.random.default_rng(7)
    for number in range(count):
        keys = (random.zipf(1.5, 20) % 30 + number // 2).astype(np.uint64)
        if number >= begin:
            yield Batch(
                size=20,
                keys={"item": Keys(keys=keys)},
                labels=np.zeros((20, 1), np.float32),
                label_mask=np.ones((20, 1), np.bool_),
                rows=np.arange(20),
                time=np.full(20, number * 86400 * 10**9),
            )


MEMBERSHIP = (
    sfctr.Table("item", dim=2, capacity=12, admit_after=2, unseen="rare", expire_after="2d"),
    sfctr.Table("item", dim=2, admit_after=3, expire_after_steps=5),
)


@pytest.mark.parametrize("table", MEMBERSHIP)
def test_what_is_kept_of_membership_comes_back_and_training_goes_on_as_if_unbroken(tmp_path, table):
    schema = sfctr.Schema(label="y", features=[sfctr.Categorical("item")], time="at")
    run = RunFile(data=Data(train=("x.csv",)), schema=schema, tables=(table,))

    def train(store, batches):
        for ready in sfctr.Lookahead(batches, store, schema=schema, window=2):
            (ready.features()["item"] ** 2).sum().backward()
            ready.step(None)

    with sfctr.Store([table]) as store, sfctr.Store([table]) as again:
        train(store, days_of_keys(12))
        save_model(tmp_path / "last", run=run, store=store, model=torch.nn.Linear(2, 1), facts={})
        open_model(tmp_path / "last").load_rows(again)
        assert contents(again) == contents(store)
        assert again.membership() == store.membership()
        for each in (store, again):
            train(each, days_of_keys(24, begin=12))
        assert contents(again) == contents(store)
        assert again.membership() == store.membership()
        assert store.membership()["item"]["expired"] > 0


def test_a_model_of_version_1_is_read_and_a_later_one_refused(tmp_path):
    with trained_store() as store, sfctr.Store(TABLES) as other:
        save(tmp_path / "best", store)
        path = tmp_path / "best" / "manifest.json"
        manifest = json.loads(path.read_text())
        del manifest["membership"]
        path.write_text(json.dumps(manifest | {"version": 1}))
        open_model(tmp_path / "best").load_rows(other)
        assert contents(other) == contents(store)
        path.write_text(json.dumps(manifest | {"version": 4}))
    with pytest.raises(CheckpointError, match=r"version 4 was found and 'sfctr.model' version 1 or 2 or 3 is needed"):
        open_model(tmp_path / "best")
