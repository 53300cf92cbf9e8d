"""Names to modules: built-in, one's own, defaults of tables, and errors by their words."""

from __future__ import annotations

import sys

import pytest
import torch

from sfctr.models.registry import build_model, default_tables
from sfctr.spec.errors import ModelError
from sfctr.spec.inputs import Input
from sfctr.spec.optim import FTRL, Adam
from sfctr.spec.schema import Categorical, Dense, Schema
from sfctr.spec.tables import Table

ITEM = Input(name="item", kind="pooled", dim=4, linear=True, table="items")
USER = Input(name="user", kind="pooled", dim=8, linear=False, table="users")
BARE = Input(name="bare", kind="pooled", dim=0, linear=True, table="bares")
HISTORY = Input(name="history", kind="sequence", dim=4, max_length=3, table="items", target="item")
SCHEMA = Schema(label="y", features=[Dense("price"), Categorical("item", table="items"), Categorical("user")])

OWN = """
import torch
from torch import nn

class Own(nn.Module):
    def __init__(self, inputs, *, scale=1.0):
        super().__init__()
        self.names = [i.name for i in inputs]
        self.scale = nn.Parameter(torch.tensor(float(scale)))

    def forward(self, features):
        return self.scale * sum(features[n].sum(1) for n in self.names)

class Broken(nn.Module):
    def __init__(self, inputs, *, num_labels=1):
        raise ValueError("no luck")
"""


@pytest.fixture
def own_module(tmp_path, monkeypatch):
    (tmp_path / "own_models_of_test.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "own_models_of_test"
    sys.modules.pop("own_models_of_test", None)


def test_the_same_seed_gives_the_same_weights_and_leaves_torchs_generator_alone():
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    first = build_model("dcnv2", [ITEM], seed=1)
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.rand(3)
    again, other = build_model("dcnv2", [ITEM], seed=1), build_model("dcnv2", [ITEM], seed=2)
    pairs = zip(first.state_dict().values(), again.state_dict().values(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    assert not torch.equal(first.out.weight, other.out.weight)


def test_a_dotted_path_builds_ones_own_class_with_its_arguments(own_module):
    model = build_model(f"{own_module}:Own", [ITEM], 1, {"scale": 2})
    assert model({"item": torch.ones(3, 4)}).tolist() == [8.0, 8.0, 8.0]


@pytest.mark.parametrize(
    ("name", "inputs", "labels", "args", "words"),
    [
        ("dcn2", [ITEM], 1, {}, r"there is no model 'dcn2' \(did you mean 'dcnv2'\?\); built in are lr, fm, .*Class\""),
        ("no.such.place:Net", [ITEM], 1, {}, "importing 'no.such.place' failed with ModuleNotFoundError"),
        ("MODULE:Owl", [ITEM], 1, {}, r"has no torch module 'Owl' \(did you mean 'Own'\?\)"),
        ("MODULE:torch", [ITEM], 1, {}, "has no torch module 'torch'"),
        ("MODULE:Broken", [ITEM], 1, {}, "could not be built: ValueError: no luck"),
        ("MODULE:Own", [ITEM], 2, {}, "takes no num_labels, and the schema has 2 labels"),
        ("MODULE:Own", [ITEM], 1, {"scales": 1}, r"no argument 'scales' \(did you mean 'scale'\?\); it takes scale"),
        ("dcnv2", [ITEM], 1, {"hiden": [8]}, r"no argument 'hiden' \(did you mean 'hidden'\?\)"),
        ("lr", [ITEM], 1, {"hidden": [8]}, "model 'lr' has no argument 'hidden'; it takes none"),
        ("dcnv2", [ITEM], 1, {"hidden": 8}, "could not be built: TypeError"),
        ("lr", [USER], 1, {}, "table 'users' of feature 'user' has none; give table 'users' a linear optimizer"),
        ("deepfm", [ITEM, USER], 1, {}, "table 'users' of feature 'user' has none"),
        ("dlrm", [ITEM, USER], 1, {}, "table 'items' has dim 4 but table 'users' dim 8; give both the same dim"),
        ("dcnv2", [BARE], 1, {}, "table 'bares' of feature 'bare' has dim 0; give table 'bares' a dim of at least 1"),
        ("din", [ITEM, USER], 1, {}, "needs a Sequence feature with a target, and there is none among 'item', 'user'"),
        ("fm", [], 1, {}, "got no inputs"),
    ],
)
def test_a_model_that_cannot_be_built_says_why_and_what_to_do(own_module, name, inputs, labels, args, words):
    with pytest.raises(ModelError, match=words):
        build_model(name.replace("MODULE", own_module), inputs, labels, args)


def test_din_refuses_a_target_of_another_length_than_its_sequence():
    item = Input(name="item", kind="pooled", dim=4, table="a")
    history = Input(name="history", kind="sequence", dim=8, max_length=3, target="item", table="b")
    with pytest.raises(ModelError, match=r"'history' \(table 'b', dim 8\) with its target 'item' \(table 'a', dim 4\)"):
        build_model("din", [item, history])


def test_missing_tables_are_added_with_what_the_model_needs():
    given = (Table("items", dim=10, optimizer=Adam(lr=0.5)),)
    assert default_tables("dcnv2", SCHEMA, given) == (*given, Table("user", dim=10))
    assert default_tables("dcnv2", SCHEMA) == (Table("items", dim=16), Table("user", dim=16))
    assert default_tables("fm", SCHEMA) == (Table("items", linear=Adam()), Table("user", linear=Adam()))
    assert default_tables("lr", SCHEMA) == (Table("items", dim=0, linear=Adam()), Table("user", dim=0, linear=Adam()))
    listed = (Table("user", dim=0, linear=FTRL()),)
    assert default_tables("lr", SCHEMA, listed) == (*listed, Table("items", dim=0, linear=Adam()))


def test_a_model_of_ones_own_gets_plain_tables(own_module):
    assert default_tables(f"{own_module}:Own", SCHEMA) == (Table("items"), Table("user"))
    assert default_tables(torch.nn.Linear(1, 1), SCHEMA) == (Table("items"), Table("user"))


@pytest.mark.parametrize(
    ("name", "args", "words"),
    [
        ("dcnv2", {"hidden": [8, 0]}, r"^model 'dcnv2': hidden sizes are \[8, 0\]"),
        ("dcnv2", {"cross_layers": 0}, r"^model 'dcnv2': cross_layers is 0"),
        ("din", {"activation": "swish"}, r"^model 'din': activation is 'swish'"),
    ],
)
def test_an_argument_that_is_wrong_is_refused_under_the_models_name(name, args, words):
    with pytest.raises(ModelError, match=words):
        build_model(name, [ITEM, HISTORY], args=args)
