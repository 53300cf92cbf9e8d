"""A torch model with its embeddings in a store: the same bits, SparseAdam's weights after steps, words for misuse."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import sfctr
from sfctr.spec.errors import ConfigError, DataError, ModelError


class Model(nn.Module):
    """Items, with bags of tags, and a number."""

    def __init__(self, num_items=50, num_tags=30, **bag):
        super().__init__()
        torch.manual_seed(1)
        self.item = nn.Embedding(num_items, 4, sparse=True)
        self.tags = nn.EmbeddingBag(num_tags, 4, sparse=True, **bag)
        self.out = nn.Linear(8, 1)

    def forward(self, item, tags, offsets=None, weights=None):
        pooled = self.tags(tags, offsets, weights)
        return self.out(torch.cat([self.item(item), pooled], dim=1))[:, 0]


def tables(*names, optimizer=None):
    return [sfctr.Table(name, dim=4, optimizer=optimizer or sfctr.Adam(lr=0.05)) for name in names]


def embedded(model, **store):
    names = [name for name, m in model.named_modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag)]
    return sfctr.embed(model, sfctr.Store(tables(*names), **store))


def batches(count, size=16, seed=0, num_items=50, num_tags=30):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        yield {
            "item": torch.randint(num_items, (size,), generator=generator),
            "tags": torch.randint(num_tags, (size, 3), generator=generator),
            "label": torch.randint(2, (size,), generator=generator).float(),
        }


def loss_of(model, batch):
    return nn.functional.binary_cross_entropy_with_logits(model(batch["item"], batch["tags"]), batch["label"])


def rows_of(store, table, count):
    found = np.zeros((count, 4), np.float32)
    for block in store.rows(table):
        found[block.keys.astype(np.int64)] = block.vectors
    return torch.from_numpy(found)


def ids_of(model):
    return {"item": model.item, "tags": model.tags}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("window", [0, 3])
@pytest.mark.parametrize("ram", [None, 20_000])
def test_training_gives_the_weights_of_sparse_adam(window, ram, tmp_path):
    plain, model = Model(400), Model(400)
    tiers = sfctr.Tiers(disk=str(tmp_path)) if ram is None else sfctr.Tiers(ram=ram, disk=str(tmp_path))
    model = embedded(model, tiers=tiers)
    store = model.item.rows.embedded.store
    sparse = torch.optim.SparseAdam([plain.item.weight, plain.tags.weight], lr=0.05)
    dense = torch.optim.SGD(plain.out.parameters(), lr=0.1)
    for batch in batches(60, num_items=400):
        loss_of(plain, batch).backward()
        for optimizer in (sparse, dense):
            optimizer.step()
            optimizer.zero_grad()
    own = torch.optim.SGD(model.parameters(), lr=0.1)
    for ready in sfctr.Lookahead(batches(60, num_items=400), store, window=window, ids=ids_of(model)):
        loss_of(model, ready.batch).backward()
        ready.step(own)
    assert (ram is not None) == (store.counters()["evicted"] > 0)
    torch.testing.assert_close(rows_of(store, "item", 400), plain.item.weight.detach(), rtol=0, atol=2e-6)
    torch.testing.assert_close(rows_of(store, "tags", 30), plain.tags.weight.detach(), rtol=0, atol=2e-6)
    torch.testing.assert_close(model.out.weight, plain.out.weight, rtol=0, atol=2e-6)
    model.eval()
    every = torch.arange(400)
    assert torch.equal(model.item(every), rows_of(store, "item", 400))
    store.close()


OFFSETS = {
    "two dimensions": (torch.tensor([[1, 2, 2], [0, 5, 1]]), None, False),
    "offsets": (torch.tensor([1, 2, 2, 0, 5]), torch.tensor([0, 0, 3]), False),
    "last offset": (torch.tensor([1, 2, 2, 0, 5]), torch.tensor([0, 4, 5]), True),
    "no ids": (torch.tensor([], dtype=torch.int64), torch.tensor([0, 0]), False),
}


@pytest.mark.parametrize("mode", ["sum", "mean"])
@pytest.mark.parametrize("padding", [None, 2])
@pytest.mark.parametrize("given", OFFSETS.values(), ids=OFFSETS)
def test_outputs_are_the_same_bits_before_and_after_inside_a_step_and_outside(mode, padding, given):
    ids, offsets, last = given
    options = {"mode": mode, "padding_idx": padding, "include_last_offset": last}
    model = Model(num_tags=7, **options)
    before = model.tags(ids, offsets)
    model = embedded(model)
    model.eval()
    with torch.no_grad():
        assert torch.equal(model.tags(ids, offsets), before)
    model.train()
    store = model.tags.rows.embedded.store
    for ready in sfctr.Lookahead([{"tags": ids}], store, ids={"tags": model.tags}):
        assert torch.equal(model.tags(ids, offsets), before)
        ready.discard()


@pytest.mark.parametrize("mode", ["sum", "mean"])
@pytest.mark.parametrize("shape", [(5,), (5, 3), (0,), (2, 1, 2)])
def test_an_embedding_keeps_its_shapes_and_its_padding_gets_no_gradient(mode, shape):
    model = nn.Sequential(nn.Embedding(6, 4, padding_idx=3))
    before = model[0].weight.detach().clone()
    ids = torch.arange(int(np.prod(shape))).reshape(shape) % 6
    with sfctr.Store(tables("0", optimizer=sfctr.SGD(lr=1.0))) as store:
        sfctr.embed(model, store)
        for ready in sfctr.Lookahead([[ids]], store, ids={0: model[0]}):
            out = model(ready.batch[0])
            assert out.shape == (*shape, 4)
            assert torch.equal(out, before[ids])
            out.sum().backward() if ids.numel() else None
            ready.step(None)
        counts = torch.bincount(ids.reshape(-1), minlength=6).float()
        counts[3] = 0
        assert torch.equal(rows_of(store, "0", 6), before - counts[:, None])


def test_weights_of_a_bag_have_gradients_of_their_own():
    plain, model = Model(mode="sum"), embedded(Model(mode="sum"))
    ids, weights = torch.tensor([[1, 2], [2, 9]]), torch.tensor([[0.5, 2.0], [-1.0, 0.25]])
    found = []
    store = model.tags.rows.embedded.store
    for ready in sfctr.Lookahead([ids], store, ids=lambda batch: {model.tags: batch}):
        for each in (plain, model):
            own = weights.clone().requires_grad_()
            each.tags(ids, None, own).square().sum().backward()
            found.append(own.grad)
        ready.discard()
    assert torch.equal(*found)


def test_modules_that_are_shared_are_one_table():
    plain = nn.ModuleDict({"a": nn.Embedding(5, 4), "c": nn.Embedding(5, 4)})
    plain["b"] = plain["a"]
    plain["c"].weight = plain["a"].weight
    model = copy.deepcopy(plain)
    with sfctr.Store(tables("a", optimizer=sfctr.SGD(lr=0.5))) as store:
        sfctr.embed(model, store)
        assert model["a"] is model["b"]
        ids = torch.tensor([1, 1, 4])
        for ready in sfctr.Lookahead([{"x": ids}], store, ids={"x": [model["a"], model["c"]]}):
            sum(model[name](ids).square().sum() for name in "abc").backward()
            ready.step(None)
        sum(plain[name](ids).square().sum() for name in "abc").backward()
        with torch.no_grad():
            plain["a"].weight -= 0.5 * plain["a"].weight.grad
        torch.testing.assert_close(rows_of(store, "a", 5), plain["a"].weight.detach(), rtol=0, atol=1e-6)


@settings(max_examples=30, deadline=None)
@given(ids=st.lists(st.integers(0, 9), max_size=12), parts=st.integers(1, 4), steps=st.integers(1, 3))
def test_any_split_of_a_batch_gives_the_gradients_of_the_whole(ids, parts, steps):
    plain = nn.Embedding(10, 4)
    model = copy.deepcopy(plain)
    wide, given_ids = torch.optim.SGD(plain.parameters(), lr=0.1), torch.tensor(ids, dtype=torch.int64)
    with sfctr.Store(tables("e", optimizer=sfctr.SGD(lr=0.1))) as store:
        model = sfctr.embed(nn.ModuleDict({"e": model}), store)
        for ready in sfctr.Lookahead([{"x": ids}] * steps, store, ids={"x": model["e"]}):
            for part in given_ids.chunk(parts):
                if part.numel():
                    model["e"](part).square().sum().backward()
                    plain(part).square().sum().backward()
            ready.step(None)
            wide.step()
            wide.zero_grad()
        torch.testing.assert_close(rows_of(store, "e", 10), plain.weight.detach(), rtol=0, atol=1e-6)


def test_a_model_without_weights_begins_its_rows_as_the_table_says():
    with torch.device("meta"):
        model = nn.ModuleDict({"e": nn.Embedding(10**12, 4)})
    with sfctr.Store([sfctr.Table("e", dim=4, init=sfctr.Uniform(0.5, 0.5), optimizer=sfctr.SGD(lr=0.5))]) as store:
        sfctr.embed(model, store)
        ids = torch.tensor([7, 10**12 - 1])
        for ready in sfctr.Lookahead([{"x": ids}], store, ids={"x": model["e"]}):
            assert model["e"](ids).tolist() == [[0.5] * 4] * 2
            model["e"](ids).sum().backward()
            ready.step(None)
        assert store.num_rows("e") == 2
        assert model.eval()["e"](torch.tensor([7, 8])).tolist() == [[0.0] * 4] * 2


def test_a_frozen_module_is_read_and_never_trained_and_needs_no_ids():
    model = nn.ModuleDict({"a": nn.Embedding(5, 4), "b": nn.Embedding.from_pretrained(torch.ones(5, 4))})
    with sfctr.Store(tables("a", "b")) as store:
        sfctr.embed(model, store)
        ids = torch.tensor([0, 3])
        for ready in sfctr.Lookahead([{"x": ids}], store, ids={"x": model["a"]}):
            (model["a"](ids) * model["b"](ids)).sum().backward()
            ready.step(None)
        assert torch.equal(rows_of(store, "b", 5), torch.ones(5, 4))


def test_a_copy_of_a_model_reads_the_same_rows_and_embeddings_without_a_table_stay():
    model = nn.ModuleDict({"a": nn.Embedding(5, 4), "position": nn.Embedding(3, 4)})
    with sfctr.Store(tables("a")) as store:
        sfctr.embed(model, store)
        twin = copy.deepcopy(model).eval()
        assert [name for name, _ in model.named_parameters()] == ["position.weight"]
        assert torch.equal(twin["a"](torch.arange(5)), rows_of(store, "a", 5))


def test_evaluation_in_the_middle_of_a_step_changes_nothing():
    model = embedded(Model())
    store = model.item.rows.embedded.store
    before = rows_of(store, "item", 50)
    for ready in sfctr.Lookahead(batches(1), store, ids=ids_of(model)):
        model.eval()
        with torch.no_grad():
            assert torch.equal(model.item(torch.arange(50)), before)
        model.train()
        ready.discard()
    assert torch.equal(rows_of(store, "item", 50), before)
    assert store.steps == 0


def refused(model, *names, message, error, tables=None, **options):
    with (
        sfctr.Store([sfctr.Table(name, **{"dim": 4, **options}) for name in names]) as store,
        pytest.raises(error, match=message),
    ):
        sfctr.embed(model, store, tables)
    assert not any("in store" in repr(module) for module in model.modules())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_norm": 1.0}, "'e' has max_norm=1.0, which changes rows when they are read; drop max_norm"),
        ({"scale_grad_by_freq": True}, "'e' has scale_grad_by_freq"),
        ({"dtype": torch.float64}, r"'e' has torch.float64 weights; rows are float32: call .float\(\) first"),
    ],
)
@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
def test_what_a_store_cannot_do_is_refused_by_name(options, message, kind):
    refused(nn.ModuleDict({"e": kind(5, 4, **options)}), "e", message=message, error=ModelError)


def test_other_modules_and_uses_that_would_be_lost_are_refused():
    class Own(nn.Embedding):
        pass

    refused(nn.ModuleDict({"e": nn.EmbeddingBag(5, 4, mode="max")}), "e", message='mode="max"', error=ModelError)
    refused(nn.ModuleDict({"e": Own(5, 4)}), "e", message="is a Own, whose own forward would be lost", error=ModelError)
    tied = nn.ModuleDict({"e": nn.Embedding(5, 4), "out": nn.Linear(4, 5, bias=False)})
    tied["out"].weight = tied["e"].weight
    refused(tied, "e", message="the weight of 'e' is 'out.weight' too", error=ModelError)


def test_tables_that_do_not_fit_are_refused_with_the_nearest_name():
    model = nn.ModuleDict({"item": nn.Embedding(5, 4), "tags": nn.Embedding(5, 4)})
    refused(model, "items", message=r"table 'items' .* \(did you mean 'item'\?\)", error=ConfigError)
    refused(model, "item", message="'item' has dim 8 and 'item' has 4; write dim=4", error=ConfigError, dim=8)
    refused(model, "item", message="has linear", error=ConfigError, linear=sfctr.SGD())
    refused(model, "x", message="'itm'.*did you mean 'item'", error=ConfigError, tables={"itm": "x"})
    both = {"item": "x", "tags": "x"}
    refused(model, "x", message="'item' and 'tags' have weights of their own", error=ConfigError, tables=both)


def stepping(model, loader, ids, window=0):
    store = model.item.rows.embedded.store
    for ready in sfctr.Lookahead(loader, store, ids=ids, window=window):
        loss_of(model, ready.batch).backward()
        ready.step(None)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("window", [0, 2])
def test_a_bad_column_is_named_with_its_batch(window):
    model = embedded(Model())
    good = next(batches(1))
    for bad, message in [
        ({"item": torch.tensor([1, 50])}, "batch 2: column 'item' has id 50 and 'item' has rows 0 to 49"),
        ({"item": torch.tensor([-1])}, "has id -1"),
        ({"item": torch.tensor([1.0])}, "batch 2: column 'item' has float32 values"),
        ({"tags": good["tags"]}, "batch 2 has no column 'item' among .*'tags'"),
    ]:
        second = {"tags": good["tags"], "label": good["label"], **bad}
        with pytest.raises(DataError, match=message):
            stepping(model, [good, second], ids_of(model), window)


def test_ids_that_were_not_announced_are_refused_with_what_to_add():
    model = embedded(Model())
    with pytest.raises(
        ModelError, match=r"'tags' was asked for id \d+.*add the column.*ids=\{..., COLUMN: model.tags\}"
    ):
        stepping(model, batches(1), {"item": model.item})
    with pytest.raises(IndexError, match="'item' has rows 0 to 49 and was asked for 50"):
        model.item(torch.tensor([50]))


def test_ids_that_were_announced_and_not_read_are_refused_before_anything_moves():
    model = embedded(Model())
    store = model.item.rows.embedded.store
    before = rows_of(store, "item", 50)
    with pytest.raises(ModelError, match="column 'item' announces id 4 for table 'item'"):
        for ready in sfctr.Lookahead([{"item": [3, 4]}], store, ids={"item": model.item}):
            model.item(torch.tensor([3])).sum().backward()
            ready.step(None)
    assert torch.equal(rows_of(store, "item", 50), before)


def test_training_outside_of_a_step_is_refused():
    model = embedded(Model())
    with pytest.raises(ModelError, match="'item' was called in training mode outside of a step"):
        model.item(torch.tensor([1]))


def test_modules_that_are_not_embedded_or_of_another_model_are_refused():
    model, other = embedded(Model()), embedded(Model())
    store = model.item.rows.embedded.store
    for ids, message in [
        (
            {"item": "item"},
            r"ids\['item'\] names 'item' and must name an embedded module, such as model.item_embedding",
        ),
        ({"item": nn.Embedding(2, 2)}, "must name an embedded module"),
        ({"item": model.item, "tags": other.tags}, "of another model or store"),
        ({}, "ids= is empty"),
    ]:
        with pytest.raises(ConfigError, match=message):
            sfctr.Lookahead([], store, ids=ids)
    with pytest.raises(ConfigError, match="give schema= or ids="):
        sfctr.Lookahead([], store, ids=ids_of(model), schema=sfctr.Schema(label="y", features=[sfctr.Dense("x")]))
