"""Rows trained on a device are what they are when trained in RAM: bit for bit on a simulated one, nearly on a GPU."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import sfctr
from sfctr.spec.batch import Batch, Keys
from sfctr.spec.errors import CapacityError
from sfctr.telemetry import Recorder

ONES = sfctr.Uniform(1.0, 1.0)
DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")],
    ),
]
on_devices = pytest.mark.parametrize("device", DEVICES)
Rows = dict[tuple[str, int, bool], np.ndarray]


def rows_of(store: sfctr.Store) -> Rows:
    """(table, key, is it a missing value's) -> all numbers of the row"""
    found = {}
    for name in store.tables:
        for block in store.rows(name):
            linear = np.empty((block.keys.size, 0), dtype=np.float32) if block.linear is None else block.linear[:, None]
            whole = np.concatenate([block.vectors, linear, block.state], axis=1)
            for key, null, row in zip(block.keys.tolist(), block.nulls.tolist(), whole, strict=True):
                found[(name, key, null)] = row
    return found


def assert_same(found: Rows, expected: Rows, device: str) -> None:
    assert found.keys() == expected.keys()
    for key, row in expected.items():
        if device == "cpu":
            np.testing.assert_array_equal(found[key].view(np.uint32), row.view(np.uint32), err_msg=str(key))
        else:
            np.testing.assert_allclose(found[key], row, rtol=1e-4, atol=1e-5, err_msg=str(key))


def item_schema() -> sfctr.Schema:
    return sfctr.Schema(label="y", features=[sfctr.Categorical("item")])


def item_batches(one: Callable[..., Keys], batch: Callable[..., Batch], stream: Sequence[Sequence[int]]) -> list[Batch]:
    return [batch({"item": one(keys)}, len(keys)) for keys in stream]


def halve(ready: sfctr.Ready) -> None:
    """With SGD's rate 1/2 a row that the batch holds c times goes from w to w - c w / 2."""
    (0.5 * ready.features()["item"].square().sum()).backward()
    ready.step(None)


def halving_store(device: str = "cpu", *, lines: int | None = None, **tiers: Any) -> sfctr.Store:
    """A row is one number of four bytes."""
    tiers["device"] = None if lines is None else 4 * lines
    table = sfctr.Table("item", dim=1, init=ONES, optimizer=sfctr.SGD(lr=0.5))
    return sfctr.Store([table], tiers=sfctr.Tiers(**tiers), device=device)


def values(store: sfctr.Store) -> dict[int, float]:
    return {key: float(row[0]) for (_, key, _), row in rows_of(store).items()}


# ------------------------------------------------------------------------------------------------------ worked by hand

STREAM = [[0, 1], [1, 2, 2], [2, 3], [3, 4, 0], [0, 5, 1], [1, 1, 2]]
HALVED = {0: 0.125, 1: 0.0, 2: 0.0, 3: 0.25, 4: 0.5, 5: 0.5}


@on_devices
@pytest.mark.parametrize("policy", ["lru", "lfu"])
@pytest.mark.parametrize("window", [0, 1, 2, 5])
@pytest.mark.parametrize("lines", [1, 2, 3, 4, 6, 1000])
def test_six_rows_that_halve_in_fewer_lines(one, batch, device: str, lines: int, window: int, policy: str) -> None:
    with halving_store(device, lines=lines, policy=policy) as store:
        for ready in sfctr.Lookahead(item_batches(one, batch, STREAM), store, schema=item_schema(), window=window):
            halve(ready)
        counts = store.counters()
        assert values(store) == HALVED
        assert counts["device_hits"] + counts["lifted"] + counts["device_scratch"] == counts["unique"] == 14
        assert counts["device_rows"] == min(lines, 6)
        assert (counts["device_scratch"] > 0) == (lines < 3)
        if lines >= 6:  # each row goes up once, at its first use, and none comes down before it is read
            assert (counts["lifted"], counts["lowered"]) == (6, 0)


# ------------------------------------------------------------------------------------------------------------ property

RULES = [
    (sfctr.SGD(lr=0.3), None),
    (sfctr.Adagrad(lr=0.1), sfctr.FTRL(lr=0.1)),
    (sfctr.RowWiseAdagrad(lr=0.1), None),
    (sfctr.Adam(lr=0.1), sfctr.SGD(lr=0.2)),
    (sfctr.SGD(lr=0.1, momentum=0.9), sfctr.Adam(lr=0.1, bias_correction="row")),
]
FEATURES = [
    sfctr.Categorical("item"),
    sfctr.Bag("tags", table="tag", pooling="mean"),
    sfctr.Bag("words", table="item", pooling="sum"),
    sfctr.Sequence("history", table="item", max_length=3),
    sfctr.Categorical("other"),
]
SCHEMA = sfctr.Schema(label="y", features=FEATURES)


def tables_of(rules: tuple[Any, Any]) -> list[sfctr.Table]:
    """Two groups: 'item' and 'tag' are of one kind, 'other' of another."""
    vector, linear = rules
    same = {"dim": 3, "optimizer": vector, "linear": linear}
    return [sfctr.Table("item", **same), sfctr.Table("tag", **same), sfctr.Table("other", dim=2)]


@dataclass(frozen=True)
class Recipe:
    """A batch to be, and what becomes of it: "train", "half" (some features unused), "discard" or "read" before it."""

    batch: Batch
    fate: str
    parts: int


@st.composite
def recipes(draw: st.DrawFn) -> list[Recipe]:
    pool = draw(st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=25, unique=True))
    key = st.sampled_from(pool)
    found = []
    for _ in range(draw(st.integers(1, 7))):
        size = draw(st.integers(1, 5))
        fates = st.sampled_from(["train", "train", "train", "half", "discard", "read"])
        keys = {name: draw(one_key(key, size)) for name in ("item", "other")}
        keys |= {name: draw(lists(key, size)) for name in ("tags", "words", "history")}
        found.append(Recipe(make(keys, size), draw(fates), draw(st.integers(1, 3))))
    return found


def one_key(key: st.SearchStrategy[int], size: int) -> st.SearchStrategy[Keys]:
    cells = st.lists(st.none() | key, min_size=size, max_size=size)
    return cells.map(
        lambda values: Keys(
            keys=np.array([v or 0 for v in values], dtype=np.uint64),
            nulls=np.array([v is None for v in values], dtype=np.uint8),
        )
    )


def lists(key: st.SearchStrategy[int], size: int) -> st.SearchStrategy[Keys]:
    rows = st.lists(st.lists(key, max_size=3), min_size=size, max_size=size)
    return rows.map(
        lambda values: Keys(
            keys=np.array([v for row in values for v in row], dtype=np.uint64),
            offsets=np.cumsum([0, *map(len, values)]).astype(np.int64),
        )
    )


def num_keys(stream: Sequence[Recipe]) -> int:
    """At least as many as the store can come to know."""
    table_of = {feature.name: feature.table_name for feature in FEATURES}
    return len(
        {
            (table_of[name], key)
            for each in stream
            for name, keys in each.batch.keys.items()
            for key in keys.keys.tolist()
        }
        | {(table, None) for table in table_of.values()}
    )


def make(keys: dict[str, Keys], size: int) -> Batch:
    return Batch(
        size=size,
        keys=keys,
        labels=np.zeros((size, 1), dtype=np.float32),
        label_mask=np.ones((size, 1), dtype=np.bool_),
        rows=np.arange(size, dtype=np.int64),
    )


def loss_of(features: dict[str, torch.Tensor], fate: str) -> torch.Tensor:
    """Differs by position, column and feature; reaches all, or with "half" every other, of the features."""
    loss = torch.zeros((), device=features["item"].device)
    for number, (name, values) in enumerate(features.items()):
        if name.endswith(".mask") or (fate == "half" and number % 2):
            continue
        slopes = torch.linspace(-1, 1 + number, values.numel(), device=values.device).reshape(values.shape)
        loss = loss + (slopes * values).sin().sum()
    return loss


def train(store: sfctr.Store, stream: Sequence[Recipe], window: int, clip: float | None) -> Iterator[Any]:
    """Everything that can be seen on the way: features, norms, what evaluation reads."""
    view = sfctr.ReadView(store, SCHEMA)
    fates = iter(stream)
    for ready in sfctr.Lookahead([recipe.batch for recipe in stream], store, schema=SCHEMA, window=window):
        recipe = next(fates)
        if recipe.fate == "read":
            yield {name: values.cpu() for name, values in view.features(recipe.batch).items()}
        for part in ready.micro_batches(recipe.parts):
            features = part.features()
            yield {name: values.detach().cpu() for name, values in features.items()}
            loss_of(features, recipe.fate).backward()
        if recipe.fate == "discard":
            ready.discard()
        else:
            yield ready.step(None, clip=clip)
    yield view.unseen


def assert_seen_alike(found: list[Any], expected: list[Any], device: str) -> None:
    assert len(found) == len(expected)
    for mine, twin in zip(found, expected, strict=True):
        if isinstance(twin, float) or twin is None:
            assert mine == (twin if device == "cpu" or twin is None else pytest.approx(twin, rel=1e-4))
            continue
        assert mine.keys() == twin.keys()
        for name, values in twin.items():
            if not isinstance(values, torch.Tensor):
                assert mine[name] == values
            elif device == "cpu":
                assert torch.equal(mine[name], values), name
            else:
                torch.testing.assert_close(mine[name], values, rtol=1e-4, atol=1e-5)


directories = count()


@on_devices
@settings(max_examples=60, deadline=None)
@given(
    stream=recipes(),
    rules=st.sampled_from(RULES),
    lines=st.integers(1, 40),
    rows_in_ram=st.none() | st.integers(0, 12),
    window=st.integers(0, 4),
    policy=st.sampled_from(["lru", "lfu"]),
    clip=st.sampled_from([None, 0.5]),
)
def test_rows_and_all_that_is_seen_equal_training_in_ram(
    tmp_path_factory: pytest.TempPathFactory,
    device: str,
    stream: list[Recipe],
    rules: tuple[Any, Any],
    lines: int,
    rows_in_ram: int | None,
    window: int,
    policy: str,
    clip: float | None,
) -> None:
    with sfctr.Store(tables_of(rules)) as plain:
        expected = list(train(plain, stream, 0, clip)), rows_of(plain)
    disk = tmp_path_factory.getbasetemp() / f"rows-{next(directories)}"
    ram = None if rows_in_ram is None else 24 * num_keys(stream) + 60 * rows_in_ram + 1
    tiers = sfctr.Tiers(device=48 * lines, ram=ram, disk=str(disk) if ram else False, policy=policy)
    with sfctr.Store(tables_of(rules), tiers=tiers, device=device) as store:
        assert_seen_alike(list(train(store, stream, window, clip)), expected[0], device)
        assert store.counters()["device_batches"] == 0
        assert_same(rows_of(store), expected[1], device)
        assert store.counters()["device_dirty"] == 0


@on_devices
@pytest.mark.parametrize("window", [0, 3])
def test_dense_tables_and_clipping_go_with_rows_on_the_device(one, batch, device: str, window: int) -> None:
    """One norm over both parts, and one scale."""
    features = [sfctr.Categorical("item"), sfctr.Categorical("hour")]
    schema = sfctr.Schema(label="y", features=features)
    tables = [sfctr.Table("item", dim=4), sfctr.Table("hour", dim=4, dense=True, num_rows=24, l2=0.1)]
    random = np.random.default_rng(1)
    batches = [
        batch({"item": one(random.integers(0, 50, 20).tolist()), "hour": one(random.integers(0, 24, 20).tolist())}, 20)
        for _ in range(8)
    ]

    def run(store: sfctr.Store) -> tuple[list[float | None], Rows]:
        optimizer = torch.optim.SGD(store.dense_parameters(), lr=0.1)
        norms = []
        for ready in sfctr.Lookahead(batches, store, schema=schema, window=window):
            found = ready.features()
            (found["item"] * found["hour"] + found["item"].square() + found["hour"]).sum().backward()
            norms.append(ready.step(optimizer, clip=0.01))
        return norms, rows_of(store)

    with (
        sfctr.Store(tables) as plain,
        sfctr.Store(tables, tiers=sfctr.Tiers(device=4 * 12 * 25), device=device) as store,
    ):
        expected, found = run(plain), run(store)
        assert found[0] == (expected[0] if device == "cpu" else pytest.approx(expected[0], rel=1e-4))
        assert_same(found[1], expected[1], device)
        assert store.counters()["device_hits"] > 0


# -------------------------------------------------------------------------------------------------- beside the training


@on_devices
def test_evaluation_between_steps_reads_what_the_last_step_left(one, batch, device: str) -> None:
    keys = batch({"item": one([0, 1, 7])}, 3)
    with halving_store(device, lines=100) as store:
        view, seen = sfctr.ReadView(store, item_schema()), []
        batches = item_batches(one, batch, [[0, 1], [0], [1], [0]])
        for ready in sfctr.Lookahead(batches, store, schema=item_schema(), window=3):
            halve(ready)
            seen.append(view.features(keys)["item"][:, 0].tolist())
        assert seen == [[0.5, 0.5, 0.0], [0.25, 0.5, 0.0], [0.25, 0.25, 0.0], [0.125, 0.25, 0.0]]
        assert store.counters()["lifted"] == 2  # evaluation has neither moved rows up nor taken them away


@on_devices
def test_the_values_are_those_of_the_device_and_not_of_ram(one, batch, device: str) -> None:
    """Whatever RAM holds of rows that are up there is never read."""
    with halving_store(device, lines=100) as store:
        (group,) = store.groups
        for ready in sfctr.Lookahead(item_batches(one, batch, STREAM), store, schema=item_schema()):
            (working_set,) = ready._working_sets
            poison = np.full((working_set.num_unique, 1), np.nan, dtype=np.float32)
            group.native.scatter(working_set, np.arange(working_set.num_unique, dtype=np.uint32), poison)
            halve(ready)
        assert values(store) == HALVED


@on_devices
def test_a_discarded_batch_leaves_no_trace_on_the_device(one, batch, device: str) -> None:
    with halving_store(device, lines=100) as store:
        batches = item_batches(one, batch, [[0, 1], [1, 2], [0, 1]])
        for number, ready in enumerate(sfctr.Lookahead(batches, store, schema=item_schema(), window=2)):
            if number == 1:
                ready.features()["item"].sum().backward()
                ready.discard()
            else:
                halve(ready)
        assert values(store) == {0: 0.25, 1: 0.25}
        assert (store.num_rows("item"), store.counters()["device_rows"]) == (2, 2)


@on_devices
@pytest.mark.parametrize("taken", [1, 2])
def test_a_pass_that_is_broken_off_leaves_nothing_pinned(one, batch, device: str, taken: int) -> None:
    endless = (batch({"item": one([n % 7, n % 5, n % 3])}, 3) for n in count())
    with halving_store(device, lines=5) as store:  # too few lines to fill the window
        iterator = iter(sfctr.Lookahead(endless, store, schema=item_schema(), window=4))
        for _ in range(taken):
            halve(next(iterator))
        open_still = next(iterator)
        del iterator
        gc.collect()
        assert not open_still.is_open
        assert store.counters()["device_batches"] == 0
        assert values(store) == ({0: -0.5} if taken == 1 else {0: -0.5, 1: -0.5})
        store.load_rows("item", next(store.rows("item")))  # which takes every row off the device
        assert store.counters()["device_rows"] == 0


@on_devices
def test_rows_that_are_loaded_take_the_place_of_those_on_the_device(one, batch, device: str) -> None:
    with halving_store(device, lines=100) as store:
        batches = item_batches(one, batch, [[0, 1]])
        for ready in sfctr.Lookahead(batches, store, schema=item_schema()):
            halve(ready)
        store.set_vectors("item", np.array([1], dtype=np.uint64), np.array([[8.0]], dtype=np.float32))
        assert values(store) == {0: 0.5, 1: 8.0}
        for ready in sfctr.Lookahead(batches, store, schema=item_schema()):
            halve(ready)
        assert values(store) == {0: 0.25, 1: 4.0}


@on_devices
def test_rows_that_are_removed_leave_the_device_and_begin_anew(one, batch, device: str) -> None:
    with halving_store(device, lines=100) as store:
        batches = item_batches(one, batch, [[0, 1, 2]])
        for ready in sfctr.Lookahead(batches, store, schema=item_schema()):
            halve(ready)
        assert store.remove("item", np.array([1, 9], dtype=np.uint64)) == 1
        assert values(store) == {0: 0.5, 2: 0.5}
        for ready in sfctr.Lookahead(batches, store, schema=item_schema()):
            halve(ready)
        assert values(store) == {0: 0.25, 1: 0.5, 2: 0.25}


@on_devices
@pytest.mark.parametrize("window", [0, 3])
@pytest.mark.parametrize(
    "options",
    [{"dtype": "bf16"}, {"capacity": 20}, {"admit_after": 2, "unseen": "rare"}, {"dtype": "bf16", "capacity": 20}],
    ids=str,
)
def test_tables_in_bf16_or_with_membership_train_in_ram_beside_the_device(
    one, batch, device: str, options: dict[str, Any], window: int, caplog: pytest.LogCaptureFixture
) -> None:
    schema = sfctr.Schema(label="y", features=[sfctr.Categorical("item"), sfctr.Categorical("other")])
    tables = [sfctr.Table("item", dim=4, **options), sfctr.Table("other", dim=4)]
    random = np.random.default_rng(2)
    batches = [
        batch({name: one(random.integers(0, 40, 15).tolist()) for name in ("item", "other")}, 15) for _ in range(10)
    ]

    def run(store: sfctr.Store) -> tuple[list[float | None], Rows]:
        norms = []
        for ready in sfctr.Lookahead(batches, store, schema=schema, window=window):
            found = ready.features()
            (found["item"] * found["other"] + found["item"].square() + found["other"]).sum().backward()
            norms.append(ready.step(None, clip=0.5))
        return norms, rows_of(store)

    tiers = sfctr.Tiers(device=4 * 12 * 30)  # the device is the other table's alone: thirty of its rows
    with Recorder(), sfctr.Store(tables) as plain, sfctr.Store(tables, tiers=tiers, device=device) as store:
        expected, found = run(plain), run(store)
        assert found[0] == (expected[0] if device == "cpu" else pytest.approx(expected[0], rel=1e-4))
        if device == "cpu" or options.get("dtype") != "bf16":  # a last bit decides how a number is rounded to bf16
            assert_same(found[1], expected[1], device)
        assert [group.num_lines for group in store.groups] == [(0, 0), (30, 30)]
        assert store.groups[0].counters()["lifted"] == 0 < store.groups[1].counters()["device_hits"]
        assert store.num_rows("item") == plain.num_rows("item")
    assert caplog.text.count("rows of table 'item' and its like are trained in RAM") == 1
    assert "rows of table 'other'" not in caplog.text.replace("has room for", "")


@on_devices
def test_a_frozen_table_reads_zero_for_a_key_it_lacks_and_never_moves(one, batch, device: str) -> None:
    frozen = sfctr.Table("item", dim=2, frozen=True, pretrained="given.parquet")
    with sfctr.Store([frozen], tiers=sfctr.Tiers(device=64), device=device) as store:
        store.set_vectors("item", np.array([5], dtype=np.uint64), np.array([[2.0, 3.0]], dtype=np.float32))
        before = rows_of(store)
        for ready in sfctr.Lookahead(item_batches(one, batch, [[5, 6, 7]]), store, schema=item_schema()):
            features = ready.features()["item"]
            assert features.tolist() == [[2.0, 3.0], [0.0, 0.0], [0.0, 0.0]]
            features.sum().backward()
            ready.step(None)
        assert_same(rows_of(store), before, "cpu")


@on_devices
def test_features_without_gradients_are_the_same(one, batch, device: str) -> None:
    with halving_store(device, lines=100) as store:
        for ready in sfctr.Lookahead(item_batches(one, batch, [[3, 4, 3]]), store, schema=item_schema()):
            with torch.no_grad():
                features = ready.features()["item"]
            assert features.tolist() == [[1.0]] * 3 and not features.requires_grad
            assert features.device.type == device
            ready.discard()


# ---------------------------------------------------------------------------------------------------------------- sizes


@on_devices
def test_rows_on_the_device_leave_half_of_ram_to_others(
    one, batch, device: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # 30 keys take 720 bytes of index, a row with what is kept about it 20, and a line 52: there is room for 18 and 9
    tiers = {"lines": 100, "ram": 720 + 18 * 20 + 9 * 52, "disk": str(tmp_path)}
    stream = [[n % 30, (7 * n) % 30, (n * n) % 30] for n in range(60)]
    with Recorder(), halving_store() as plain, halving_store(device, **tiers) as store:
        for each in (plain, store):
            for ready in sfctr.Lookahead(item_batches(one, batch, stream), each, schema=item_schema()):
                halve(ready)
        assert values(store) == values(plain)
        counts = store.counters()
        assert counts["evicted"] > 0 and counts["lifted"] > 0
        assert 0 < counts["device_rows"] <= 9
    assert "tiers.device has room for 100 rows of table 'item'" in caplog.text


@on_devices
def test_a_batch_beyond_the_device_is_trained_beside_it_and_said(
    one, batch, device: str, caplog: pytest.LogCaptureFixture
) -> None:
    with Recorder(), halving_store(device, lines=2) as store:
        batches = item_batches(one, batch, [list(range(50)), [0, 1], list(range(50))])
        for ready in sfctr.Lookahead(batches, store, schema=item_schema()):
            halve(ready)
        assert values(store) == {0: 0.125, 1: 0.125} | dict.fromkeys(range(2, 50), 0.25)
        assert store.counters()["device_scratch"] == 48 + 48
    assert "a batch needs more rows of table 'item'" in caplog.text


def test_more_than_the_device_has_is_a_named_error(one, batch) -> None:
    with (
        halving_store(lines=1 << 48) as store,
        pytest.raises(CapacityError, match=r"tiers\.device asks for 1.* bytes .* lower tiers\.device"),
    ):
        next(iter(sfctr.Lookahead(item_batches(one, batch, [[1]]), store, schema=item_schema())))


@on_devices
def test_closing_the_store_frees_the_device(one, batch, device: str) -> None:
    store = halving_store(device, lines=100)
    for ready in sfctr.Lookahead(item_batches(one, batch, [[1]]), store, schema=item_schema()):
        rows = store.groups[0].on_device(ready._working_sets[0])
        assert rows is not None
        lines = weakref.ref(rows.records)
        del rows
        halve(ready)
    store.close()
    del ready
    gc.collect()
    assert lines() is None
