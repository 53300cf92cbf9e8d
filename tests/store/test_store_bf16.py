"""Tables in bf16 in a store: their group and bytes, training on through save and load, rows given from outside."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

import sfctr
from sfctr.checkpoint import open_model, save_model
from sfctr.export import export_rows
from sfctr.spec.batch import Batch, Keys
from sfctr.spec.runfile import Data, RunFile
from sfctr.store import RowBlock

OPTIMIZERS = [
    sfctr.SGD(lr=0.1, momentum=0.9),
    sfctr.RowWiseAdagrad(lr=0.1),
    sfctr.Adam(lr=0.1),
    sfctr.FTRL(lr=0.1),
]


def tables(optimizer: object, dtype: str = "bf16") -> tuple[sfctr.Table, ...]:
    linear = sfctr.Adagrad(lr=0.1)
    return (
        sfctr.Table("item", dim=5, optimizer=optimizer, linear=linear, dtype=dtype),
        sfctr.Table("word", dim=5, optimizer=optimizer, linear=linear),
    )


SCHEMA = sfctr.Schema(label="y", features=[sfctr.Categorical(name, dtype="int64") for name in ("item", "word")])


def batches(count: int) -> list[Batch]:
    random = np.random.default_rng(0)
    found = []
    for number in range(count):
        keys = random.integers(0, 40, 32).astype(np.uint64)
        nulls = (random.random(32) < 0.1).astype(np.uint8)
        found.append(
            Batch(
                size=32,
                keys={name: Keys(keys=keys, nulls=nulls) for name in ("item", "word")},
                labels=np.zeros((32, 1), np.float32),
                label_mask=np.ones((32, 1), np.bool_),
                rows=np.arange(32) + 32 * number,
            )
        )
    return found


def train(store: sfctr.Store, data: Sequence[Batch]) -> None:
    for ready in sfctr.Lookahead(data, store, schema=SCHEMA):
        sum((value - 0.3).square().sum() for value in ready.features().values()).backward()
        ready.step(None)


def contents(store: sfctr.Store, table: str) -> dict[tuple[int, bool], tuple[bytes, ...]]:
    return {
        (int(b.keys[i]), bool(b.nulls[i])): (b.vectors[i].tobytes(), b.linear[i].tobytes(), b.state[i].tobytes())
        for b in store.rows(table, 7)
        for i in range(b.keys.size)
        if b.linear is not None
    }


def test_tables_of_another_dtype_are_another_group_with_smaller_records() -> None:
    with sfctr.Store(tables(sfctr.SGD(lr=0.1))) as store:
        full, half = store.group_of("word")[0], store.group_of("item")[0]
        assert (full.plan.dtype, half.plan.dtype) == ("fp32", "bf16")
        # Five elements are three words with a half left over, beside a weight and its accumulator.
        assert (full.native.record_floats, half.native.record_floats) == (7, 5)


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: type(o).__name__)
def test_rows_hold_bf16_numbers_close_to_those_of_fp32(optimizer: object) -> None:
    with sfctr.Store(tables(optimizer), seed=3) as store:
        train(store, batches(6))
        item, word = ({k: np.frombuffer(v[0], np.float32) for k, v in contents(store, t).items()} for t in store.tables)
    with sfctr.Store(tables(optimizer, "fp32"), seed=3) as store:
        train(store, batches(6))
        full = {k: np.frombuffer(v[0], np.float32) for k, v in contents(store, "item").items()}
    assert all((vector.view(np.uint32) & 0xFFFF == 0).all() for vector in item.values())
    assert any((vector.view(np.uint32) & 0xFFFF != 0).any() for vector in word.values())
    assert item.keys() == full.keys()
    far = max(abs(item[key] - full[key]).max() for key in item)
    assert 0 < far < 0.05


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: type(o).__name__)
def test_training_goes_on_after_save_and_load_as_if_it_had_not_stopped(tmp_path: Path, optimizer: object) -> None:
    chosen, data, model = tables(optimizer), batches(8), torch.nn.Linear(1, 1)
    run = RunFile(data=Data(train=("x.csv",)), schema=SCHEMA, tables=chosen)
    with sfctr.Store(chosen, seed=3) as whole, sfctr.Store(chosen, seed=3) as first:
        train(whole, data)
        train(first, data[:5])
        save_model(tmp_path / "best", run=run, store=first, model=model, facts={})
        with sfctr.Store(chosen, seed=3) as second:
            open_model(tmp_path / "best").load_rows(second)
            assert contents(second, "item") == contents(first, "item")
            train(second, data[5:])
            for table in ("item", "word"):
                assert contents(second, table) == contents(whole, table)


def test_exported_rows_are_the_numbers_that_are_held(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    with sfctr.Store(tables(sfctr.SGD(lr=0.1))) as store:
        train(store, batches(3))
        item, _ = export_rows(store, SCHEMA, tmp_path)
        held = {
            None if null else key: np.frombuffer(row[0], np.float32)
            for (key, null), row in contents(store, "item").items()
        }
    rows = pq.read_table(item).to_pylist()
    assert {row["key"] for row in rows} == held.keys()
    for row in rows:
        assert row["vector"] == held[row["key"]].tolist()


def test_given_vectors_are_rounded_to_nearest_even() -> None:
    with sfctr.Store(tables(sfctr.SGD(lr=0.1))) as store:
        keys = np.array([4, 9], dtype=np.uint64)
        store.set_vectors("item", keys, np.array([[1.00390625] * 5, [1.01171875] * 5], dtype=np.float32))
        [block] = store.rows("item")
        assert dict(zip(block.keys.tolist(), block.vectors.tolist(), strict=True)) == {4: [1.0] * 5, 9: [1.015625] * 5}
        assert block.linear is not None and block.linear.tolist() == [0.0, 0.0]


@pytest.mark.parametrize(("dim", "linear", "state"), [(6, True, 1), (5, False, 1), (5, True, 2), (5, False, 2)])
def test_rows_of_another_shape_are_refused_though_they_take_as_many_words(dim: int, linear: bool, state: int) -> None:
    block = RowBlock(
        keys=np.zeros(1, np.uint64),
        nulls=np.zeros(1, np.bool_),
        vectors=np.zeros((1, dim), np.float32),
        linear=np.zeros(1, np.float32) if linear else None,
        state=np.zeros((1, state), np.float32),
    )
    with (
        sfctr.Store(tables(sfctr.SGD(lr=0.1))) as store,
        pytest.raises(
            sfctr.SfctrError, match=rf"{dim} \+ {int(linear)} weights and {state} floats of state were given"
        ),
    ):
        store.load_rows("item", block)
