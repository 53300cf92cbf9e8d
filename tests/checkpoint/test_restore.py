"""What fits a run that has changed is taken over, the rest begins afresh, and nothing of it unasked."""

from __future__ import annotations

import msgspec
import pytest
import small_run
import torch
from small_run import RUN, SmallRun, SnapshotTwin

import sfctr
from sfctr.checkpoint import Checkpointer, compare, open_checkpoint
from sfctr.spec.errors import CheckpointError
from sfctr.spec.runfile import Train

NO_MEMBERSHIP = {"capacity": None, "admit_after": 1, "unseen": "zero", "expire_after": None}
SHAPES = {"model.a": (2, 3), "model.b": (4,), "table.hour.weight": (25, 2)}


def with_table(name, **changed):
    """The run with one table changed."""
    tables = tuple(msgspec.structs.replace(t, **changed) if t.name == name else t for t in RUN.tables)
    return msgspec.structs.replace(RUN, tables=tables)


def without(name):
    features = [f for f in RUN.schema.features if f.name != name]
    return msgspec.structs.replace(
        RUN,
        tables=tuple(t for t in RUN.tables if t.name != name),
        schema=sfctr.Schema(label="y", features=features, time=RUN.schema.time),
    )


def fates(restore):
    return {item.name: item.fate for item in restore.items if item.fate != "restored"}


def test_the_same_run_is_restored_whole():
    restore = compare(RUN, RUN, SHAPES, SHAPES)
    assert fates(restore) == {}
    assert restore.tables == {name: name for name in ("item", "shop", "user", "tag")}
    assert restore.parameters == frozenset(SHAPES) and restore.optimizer
    assert restore.lines() == ["restored: 5 tables, 2 tensors of the model"]


def test_what_leaves_the_records_as_they_are_is_no_difference():
    for changed in ({"capacity": 9}, {"optimizer": sfctr.AdamW(lr=1.0)}, {"init": sfctr.Normal(std=1.0)}):
        assert fates(compare(RUN, with_table("user", **changed), SHAPES, SHAPES)) == {}


@pytest.mark.parametrize(
    ("now", "name", "fate", "why"),
    [
        (with_table("item", dim=4), "tables.item", "fresh", "dim was 3 and is 4"),
        (with_table("item", dtype="bf16"), "tables.item", "adapted", "dtype was fp32 and is bf16"),
        (with_table("item", optimizer=sfctr.SGD()), "tables.item", "adapted", "optimizer was adam and is sgd"),
        (with_table("item", linear=None), "tables.item", "adapted", "linear was ftrl and is none"),
        (with_table("item", buckets=10), "tables.item", "fresh", "buckets was None and is 10"),
        (with_table("item", dense=True, num_rows=50), "tables.item", "fresh", "dense was False and is True"),
        (with_table("hour", num_rows=30), "tables.hour", "fresh", "num_rows was 24 and is 30"),
        (with_table("hour", dense=False, num_rows=None), "tables.hour", "fresh", "dense was True and is False"),
        (with_table("hour", linear=sfctr.FTRL()), "tables.hour", "adapted", "it has now first-order weights"),
        (without("tag"), "tables.tag", "ignored", "the run has no such table"),
    ],
)
def test_a_changed_table_is_refused_unless_it_is_allowed_by_name(now, name, fate, why):
    with pytest.raises(CheckpointError, match=rf"{name} would be {fate} \({why}.*allow by name: {name}"):
        compare(RUN, now, SHAPES, SHAPES)
    with pytest.raises(CheckpointError, match=name):
        compare(RUN, now, SHAPES, SHAPES, allow=("tables.shop", "model.*"))
    restore = compare(RUN, now, SHAPES, SHAPES, allow=(name,))
    assert fates(restore) == {name: fate}
    short = name.removeprefix("tables.")
    assert (restore.tables.get(short) == short) == (fate == "adapted" and short != "hour")
    assert ("table.hour.weight" in restore.parameters) == (short != "hour" or fate == "adapted")
    assert any(line.startswith(f"{fate}: {name} ({why}") for line in restore.lines())


def test_an_added_table_and_keys_of_another_type_begin_afresh():
    assert fates(compare(without("tag"), RUN, SHAPES, SHAPES, allow=("tables.tag",))) == {"tables.tag": "fresh"}
    features = [msgspec.structs.replace(f, dtype="string") if f.name == "shop" else f for f in RUN.schema.features]
    now = msgspec.structs.replace(RUN, schema=msgspec.structs.replace(RUN.schema, features=tuple(features)))
    with pytest.raises(CheckpointError, match=r"tables\.shop would be fresh \(its keys were int64 and are string\)"):
        compare(RUN, now, SHAPES, SHAPES)


def test_tensors_of_the_model_by_name_and_shape():
    now = {"model.a": (2, 4), "model.c": (1,), "table.hour.weight": (25, 2)}
    with pytest.raises(CheckpointError, match=r"model\.a would be fresh \(its shape was \(2, 3\) and is \(2, 4\)\)"):
        compare(RUN, RUN, SHAPES, now)
    restore = compare(RUN, RUN, SHAPES, now, allow=("model.*",))
    assert fates(restore) == {"model.a": "fresh", "model.b": "ignored", "model.c": "fresh"}
    assert restore.parameters == {"table.hour.weight"}


def test_another_dense_optimizer_begins_afresh():
    now = msgspec.structs.replace(RUN, train=Train(optimizer=sfctr.SGD()))
    with pytest.raises(CheckpointError, match=r"train\.optimizer would be fresh \(it was Adam and is SGD\)"):
        compare(RUN, now, SHAPES, SHAPES)
    assert not compare(RUN, now, SHAPES, SHAPES, allow=("train.optimizer",)).optimizer


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A run of eight steps and its checkpoint, of two rows files."""
    run, path = SmallRun(), tmp_path_factory.mktemp("c")
    with Checkpointer(path, SnapshotTwin(run.store)) as checkpointer:
        for step in (6, 8):
            run.train(step)
            checkpointer.save(run.state())
    yield run, open_checkpoint(path / "step-000000000008")
    run.close()


def rows(run, table):
    """Vector, first-order weight and state of each row."""
    found = {}
    for block in run.store.rows(table):
        for i, key in enumerate(block.keys.tolist()):
            linear = None if block.linear is None else float(block.linear[i])
            found[key, bool(block.nulls[i])] = (block.vectors[i].tolist(), linear, block.state[i].tolist())
    return found


def load(checkpoint, now, **options):
    again = SmallRun(run=now)
    fitted = checkpoint.fitted(now, again.model, again.store, **options)
    fitted.load_store(again.store)
    fitted.load_model(again.model)
    fitted.load_optimizer(again.optimizer, again.model, again.store)
    return again


def test_under_another_optimizer_vectors_stay_and_its_state_is_fresh(saved):
    run, checkpoint = saved
    now = with_table("item", optimizer=sfctr.Adagrad(initial_accumulator=0.5))
    again = load(checkpoint, now, allow=("tables.item",))
    before, after = rows(run, "item"), rows(again, "item")
    assert before.keys() == after.keys() and len(before) > 30
    for key, (vector, linear, state) in after.items():
        assert (vector, linear) == before[key][:2]
        assert state == [0.5] * 3 + before[key][2][-2:]
    assert rows(again, "shop") == rows(run, "shop")
    assert rows(again, "user") == rows(run, "user")
    again.train(10)
    again.close()


@pytest.mark.parametrize(
    ("name", "changed", "same"),
    [("item", {"linear": None}, "vector"), ("tag", {"linear": sfctr.FTRL()}, "all"), ("tag", {"dtype": "fp32"}, "all")],
)
def test_parts_under_the_same_rule_stay(saved, name, changed, same):
    run, checkpoint = saved
    again = load(checkpoint, with_table(name, **changed), allow=(f"tables.{name}",))
    before, after = rows(run, name), rows(again, name)
    assert before.keys() == after.keys()
    for key, (vector, linear, state) in after.items():
        assert vector == before[key][0]
        assert linear == (0.0 if changed.get("linear") else None)
        wide = len(before[key][2]) - (2 if same == "vector" else 0)
        assert state[:wide] == before[key][2][:wide]
        assert state[wide:] == [0.0] * (len(state) - wide)
    again.close()


def test_bf16_takes_rounded_vectors(saved):
    run, checkpoint = saved
    again = load(checkpoint, with_table("shop", dtype="bf16"), allow=("tables.shop",))
    before, after = rows(run, "shop"), rows(again, "shop")
    assert before.keys() == after.keys()
    for key, row in after.items():
        assert row[0] == torch.tensor(before[key][0]).bfloat16().tolist()
        assert row[1:] == before[key][1:]
    again.close()


@pytest.mark.parametrize(
    ("name", "changed"), [("user", {"capacity": 9}), ("shop", {"expire_after_steps": 3}), ("user", NO_MEMBERSHIP)]
)
def test_options_of_membership_may_change_and_training_goes_on(saved, name, changed):
    run, checkpoint = saved
    again = load(checkpoint, with_table(name, **changed))
    assert rows(again, name) == rows(run, name)
    again.train(12)
    assert again.store.num_rows("user") <= 9 + 2 or changed.get("capacity") != 9
    again.close()


def test_a_fresh_table_has_no_rows_and_the_others_all_of_theirs(saved):
    run, checkpoint = saved
    again = load(checkpoint, with_table("item", dim=7), allow=("tables.item",))
    assert again.store.num_rows("item") == 0
    assert rows(again, "shop") == rows(run, "shop") and rows(again, "tag") == rows(run, "tag")
    assert again.store.waiting("user").keys.tolist() == run.store.waiting("user").keys.tolist()
    assert again.store.steps == 8
    again.close()


def test_renamed_tables_keep_their_rows(saved):
    run, checkpoint = saved
    new = {"item": "goods", "hour": "clock", "user": "who"}
    tables = tuple(msgspec.structs.replace(t, name=new.get(t.name, t.name)) for t in small_run.TABLES)
    features = [sfctr.Categorical(t.name, dtype="int64") for t in tables]
    now = msgspec.structs.replace(
        RUN, tables=tables, schema=sfctr.Schema(label="y", features=features, time=RUN.schema.time)
    )
    with sfctr.Store(tables) as store:
        restore = checkpoint.fitted(now, run.model, store, renamed=new)
        assert fates(restore.restore) == {}
        restore.load_store(store)
        assert store.num_rows("goods") == run.store.num_rows("item")
        assert store.membership()["who"] == run.store.membership()["user"]
        weight = store.dense_tables["clock"].weight
        assert torch.equal(weight, run.store.dense_parameters()[0])
        optimizer = torch.optim.Adam([*run.model.parameters(), weight], lr=0.01, fused=True)
        restore.load_optimizer(optimizer, run.model, store)
        assert torch.equal(
            optimizer.state[weight]["exp_avg"], run.optimizer.state[run.store.dense_parameters()[0]]["exp_avg"]
        )


def test_a_tensor_of_another_shape_begins_afresh_and_the_optimizer_with_it(saved):
    run, checkpoint = saved
    again = SmallRun()
    again.model[0] = torch.nn.Linear(2, 4, bias=False)
    again.model[3] = torch.nn.Linear(4, 2)
    fresh = again.model[3].weight.clone()
    again.optimizer = torch.optim.Adam([*again.model.parameters(), *again.store.dense_parameters()], fused=True)
    allow = ("model.0.bias", "model.3.*")
    fitted = checkpoint.fitted(RUN, again.model, again.store, allow=allow)
    fitted.load_store(again.store)
    fitted.load_model(again.model)
    fitted.load_optimizer(again.optimizer, again.model, again.store)
    assert torch.equal(again.model[0].weight, run.model[0].weight)
    assert torch.equal(again.model[3].weight, fresh)
    assert not again.optimizer.state[again.model[3].weight]
    assert torch.equal(
        again.optimizer.state[again.model[0].weight]["exp_avg"], run.optimizer.state[run.model[0].weight]["exp_avg"]
    )
    again.close()
