"""Options by keyword and what they must agree on, by the words of the errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from sfctr.spec.errors import ConfigError
from sfctr.spec.optim import FTRL, SGD, Plateau
from sfctr.spec.runfile import Data, RunFile, Train
from sfctr.spec.schema import Categorical, Schema
from sfctr.train.options import check_run, check_validation, options_from_keywords, paths_of

SCHEMA = Schema(label=("click", "buy"), features=[Categorical("item")], keep=("user", "device"))


def run_of(**train) -> RunFile:
    return RunFile(data=Data(), schema=SCHEMA, train=Train(**train))


def test_keywords_reach_the_part_they_belong_to_and_threads_both():
    options = {"epochs": 2, "valid_fraction": 0.1, "threads": 3, "optimizer": SGD(lr=0.5), "slices": ["device"]}
    data, train = options_from_keywords({**options, "max_steps": None}, ["a.parquet"], [])
    assert data == Data(train=("a.parquet",), valid_fraction=0.1, threads=3)
    assert train == Train(epochs=2, threads=3, optimizer=SGD(lr=0.5), slices=("device",))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"epoch": 2}, r"fit has no option 'epoch' \(did you mean 'epochs'\?\)$"),
        ({"train": "x"}, "fit has no option 'train'; options are valid_from, valid_fraction, "),
        ({"epochs": "2"}, 'train.epochs is "2" and must be a whole number'),
        ({"epochs": 0}, "train.epochs is 0 and must be at least 1"),
        ({"optimizer": FTRL()}, 'train.optimizer.kind is "ftrl" and must be "sgd", "adagrad", "adam" or "adamw"'),
        ({"watch": "acu"}, r'train.watch is "acu" and must be .* \(did you mean \'auc\'\?\)'),
        ({"valid_fraction": 1.5}, "valid_fraction is 1.5 and must be > 0 and < 1"),
        ({"clip": 0}, "train.clip is 0.* and must be above 0"),
    ],
)
def test_a_wrong_keyword_or_value_is_refused(options, words):
    with pytest.raises(ConfigError, match=words):
        options_from_keywords(options, [], [])


def test_paths_are_told_from_what_is_in_memory():
    assert paths_of("a*.csv") == ("a*.csv",)
    assert paths_of(Path("x") / "y") == ("x/y",)
    assert paths_of(["a", Path("b")]) == ("a", "b")
    assert paths_of([{"item": 1}]) == ()
    assert paths_of(None) == ()


@pytest.mark.parametrize(
    ("train", "words"),
    [
        ({"loss_labels": ("clik",)}, r"loss_labels names 'clik', which is no label .* \(did you mean 'click'\?\)"),
        ({"group_by": "usr"}, r"group_by names column 'usr', .* \(did you mean 'user'\?\); add 'usr' to schema.keep"),
        ({"slices": ("device", "os")}, "train.slices names column 'os', which schema.keep does not list; add 'os'"),
        ({"watch": "gauc"}, 'train.watch is "gauc", which needs train.group_by'),
    ],
)
def test_a_label_or_column_that_the_schema_lacks_is_refused(train, words):
    with pytest.raises(ConfigError, match=words):
        check_run(run_of(**train))


def test_what_the_schema_has_passes():
    check_run(run_of(loss_labels=("buy",), group_by="user", slices=("device",), watch="gauc"))


@pytest.mark.parametrize("option", [{"stop_after": 2}, {"plateau": Plateau()}])
def test_following_a_metric_without_validation_data_is_refused(option):
    (name,) = option
    with pytest.raises(ConfigError, match=f"train.{name} follows train.watch on validation data, and there are none"):
        check_validation(run_of(**option), False)
    check_validation(run_of(**option), True)
    check_validation(run_of(), False)
