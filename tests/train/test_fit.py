"""From data to a run and back: learning, scoring, saving, loading, and what a user gets wrong."""

from __future__ import annotations

import gc
import json
import os
import re
import shutil
import signal
import sys
import threading
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch import nn

from sfctr.models.registry import BUILT_IN
from sfctr.spec.errors import CheckpointError, ConfigError, DataError, ModelError
from sfctr.spec.optim import SGD, Adam, Schedule
from sfctr.spec.runfile_text import decode_run_file
from sfctr.spec.schema import Bag, Categorical, Dense, Schema
from sfctr.spec.schema import Sequence as History
from sfctr.spec.tables import Table, Tiers
from sfctr.telemetry import Recorder
from sfctr.train import Run, fit, train_run

FAST = Adam(lr=0.02)
TABLES = [Table("item", dim=4, optimizer=FAST, linear=FAST), Table("tags", dim=4, optimizer=FAST, linear=FAST)]
QUICK = {"batch_size": 256, "optimizer": FAST, "quiet": True, "torch_threads": 1}


@pytest.fixture(autouse=True)
def in_tmp(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def trained(planted, schema):
    with fit(planted(3000), schema, TABLES, model="fm", valid=planted(1000, 1), epochs=5, **QUICK) as run:
        yield run


def rows_of(run: Run) -> dict[str, dict[int, list[float]]]:
    found = {}
    for table in run.store.tables:
        blocks = list(run.store.rows(table))
        found[table] = {k: v for b in blocks for k, v in zip(b.keys.tolist(), b.vectors.tolist(), strict=True)}
    return found


def bits_of(run: Run) -> list[object]:
    return [rows_of(run), [p.tolist() for p in run.model.state_dict().values()]]


def test_a_planted_truth_is_learnt(trained, planted):
    found = trained.evaluate(planted(4000, seed=2))
    assert found["auc"] > 0.83  # the planted truth itself reaches 0.854
    assert found["calibration"] == pytest.approx(1, abs=0.1)
    assert found["unseen"] == {"item": 0.0, "tags": 0.0}
    assert trained.best["auc"] == max(line["auc"] for line in trained.metrics if line["kind"] == "valid")


@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_every_built_in_model_learns_from_its_default_tables(name, planted):
    frame = planted(1500)
    frame["past"] = [t[:2] for t in frame["tags"]]
    frame["first"] = [t[0] if t else 0 for t in frame["tags"]]
    schema = Schema(
        label="click",
        features=[
            Categorical("item"),
            Categorical("first", table="tags"),
            Dense("price"),
            History("past", table="tags", max_length=3, target="first"),
        ],
    )
    with fit(frame, schema, model=name, epochs=3, **QUICK) as run:
        losses = [line["loss"] for line in run.metrics if line["kind"] == "train"]
        assert losses[-1] < losses[0]
        assert run.predict(frame.drop(columns="click")).num_rows == 1500


def test_predictions_come_in_input_order_with_row_numbers_and_need_no_label(trained, planted):
    frame = planted(700, seed=3)
    found = trained.predict(frame.drop(columns=["click", "user"]))
    assert found.schema == pa.schema([("row", pa.int64()), ("score", pa.float64())])
    assert found["row"].to_pylist() == list(range(700))
    order = np.random.default_rng(0).permutation(700)
    shuffled = trained.predict(frame.iloc[order].drop(columns="click"))["score"].to_numpy()
    assert np.allclose(shuffled, found["score"].to_numpy()[order], atol=1e-6)


def test_predictions_go_to_a_parquet_file_with_the_same_numbers(trained, planted, tmp_path):
    frame = planted(700, seed=3)
    assert trained.predict(frame, tmp_path / "out" / "p.parquet") is None
    assert pq.read_table(tmp_path / "out" / "p.parquet").equals(trained.predict(frame))
    assert os.listdir(tmp_path / "out") == ["p.parquet"]


def test_no_rows_give_no_predictions(trained, planted):
    assert trained.predict(planted(5).iloc[:0]).num_rows == 0


def test_evaluating_and_predicting_change_nothing(trained, planted):
    before = bits_of(trained)
    first = trained.evaluate(planted(500, seed=4))
    trained.predict(planted(500, seed=4))
    assert bits_of(trained) == before
    assert trained.evaluate(planted(500, seed=4)) == first


def test_unseen_keys_are_counted_for_each_feature(trained, planted):
    frame = planted(100, seed=5)
    frame.loc[:24, "item"] = 10_000
    assert trained.evaluate(frame)["unseen"] == {"item": 0.25, "tags": 0.0}


@pytest.mark.parametrize("model", ["dcnv2", "deepfm"])
def test_two_runs_with_one_seed_have_the_same_bits_and_another_seed_has_others(model, planted, schema):
    args = {"dropout": 0.2, "hidden": [16]}
    runs = [
        fit(planted(1000), schema, TABLES, model=model, model_args=args, seed=seed, epochs=2, threads=threads, **QUICK)
        for seed, threads in ((1, 1), (1, 2), (2, 1))
    ]
    first, again, other = (bits_of(run) for run in runs)
    assert first == again
    assert first != other
    for run in runs:
        run.close()


def test_four_micro_batches_are_one_batch(planted, schema):
    runs = [fit(planted(1000), schema, TABLES, model="fm", accumulate=k, clip=0.5, **QUICK) for k in (1, 4)]
    scores = [run.predict(planted(300, seed=6))["score"].to_numpy() for run in runs]
    assert np.allclose(*scores, atol=1e-4)


def test_a_run_loads_as_it_was_left(trained, planted):
    frame = planted(300, seed=7)
    with Run.load(trained.dir) as again:
        assert bits_of(again) == bits_of(trained)
        assert again.predict(frame).equals(trained.predict(frame))
        assert again.facts["step"] == trained.best["step"]


def test_the_best_model_is_what_a_run_holds_and_the_last_is_there_too(planted, schema):
    with fit(planted(600), schema, TABLES, model="fm", valid=planted(600, 1), epochs=30, **QUICK) as run:
        lines = [line for line in run.metrics if line["kind"] == "valid"]
        assert run.facts["step"] == run.best["step"] < lines[-1]["step"]
        found = run.evaluate(planted(600, 1))
        assert {name: run.best[name] for name in found} == found
    with Run.load(run.dir, "last") as last:
        assert last.facts["step"] == lines[-1]["step"]
        assert last.evaluate(planted(600, 1))["auc"] == lines[-1]["auc"] < found["auc"]


def test_without_validation_data_the_last_model_is_the_best(planted, schema):
    with fit(planted(500), schema, TABLES, model="fm", **QUICK) as run:
        assert run.best is None
        assert run.facts["step"] == 2
        names = [name for name in sorted(os.listdir(run.dir)) if not name.startswith("sfctr-rows-")]
        assert names == ["checkpoints", "history.jsonl", "last", "metrics.jsonl", "run.toml"]
    assert [path.name for path in run.dir.glob("sfctr-rows-*")] == []


@pytest.mark.parametrize("disk", [None, "elsewhere/rows"])
def test_a_run_can_be_used_where_its_place_for_rows_cannot_be_written(planted, schema, disk, monkeypatch):
    tiers = Tiers(disk=disk)
    fit(planted(500), schema, TABLES, model="fm", run_dir="run", tiers=tiers, **QUICK).close()
    shutil.rmtree("elsewhere", ignore_errors=True)
    if disk is None:
        monkeypatch.setattr(os, "access", lambda path, mode: False)  # as in a directory that is read alone
    with Run.load("run") as run:
        assert run.predict(planted(10)).num_rows == 10
        assert list(run.dir.glob("sfctr-rows-*")) == [] and not Path("elsewhere").exists()


def test_the_run_file_that_is_left_trains_the_same_model_again(planted, schema, tmp_path):
    planted(800).to_parquet("train.parquet")
    first = fit("train.parquet", schema, TABLES, model="fm", valid_fraction=0.25, run_dir="first", **QUICK)
    run = decode_run_file((tmp_path / "first" / "run.toml").read_text(), "run.toml")
    assert run.train.device == "cpu"
    assert run.schema["item"].dtype == "int64"
    second = train_run(run, tmp_path / "second", quiet=True)
    assert bits_of(first) == bits_of(second)


def test_the_preset_of_the_paper_trains_on_the_device_and_changes_no_bit(planted, schema, caplog):
    plain = fit(planted(800), schema, TABLES, model="fm", valid_fraction=0.25, **QUICK)
    tiers, preset = Tiers(device="1MB"), "scalefreectr"
    options = {"tiers": tiers, "preset": preset, "trace": "spans.json"}
    run = fit(planted(800), schema, TABLES, model="fm", valid_fraction=0.25, **options, **QUICK)
    assert (run.run.preset, run.run.train.window, run.run.tiers.policy) == (preset, 1, "lru")
    assert 'preset "scalefreectr": train.window = 1, tiers.policy = "lru"' in caplog.text
    spans = json.loads(Path("spans.json").read_text())
    assert sum(span["name"] == "lift" for span in spans) == run.facts["step"]
    assert bits_of(run) == bits_of(plain)


def test_metrics_are_kept_line_by_line_with_groups_slices_and_progressive_scores(planted, schema):
    options = {"group_by": "user", "slices": ("user",), "progressive": True, "evaluate_every": 4, "watch": "gauc"}
    with fit(planted(2000), schema, TABLES, model="fm", valid=planted(500, 1), **options, **QUICK) as run:
        lines = [line for line in run.metrics if line["kind"] == "valid"]
    assert [line["step"] for line in lines] == [4, 8]
    assert [line["progressive"]["rows"] for line in lines] == [1024, 976]
    assert lines[-1]["gauc_groups"] + lines[-1]["gauc_skipped"] == 30
    assert sum(entry["weight"] for entry in lines[-1]["slices"]["user"].values()) == 500
    assert set(lines[-1]) >= {
        "auc",
        "gauc",
        "logloss",
        "ne",
        "calibration",
        "unseen",
        "lr_factor",
        "rows_per_s",
        "best",
    }


def test_several_labels_are_trained_together_or_one_alone(planted):
    frame = planted(2000)
    frame["buy"] = np.where(frame["item"] % 3 == 0, np.nan, (frame["item"] % 2).astype(float))
    schema = Schema(label=("click", "buy"), features=[Categorical("item"), Dense("price")])
    tables = [Table("item", dim=8, optimizer=FAST)]
    with fit(frame, schema, tables, valid=frame, epochs=4, **QUICK) as run:
        found = run.evaluate(frame)
        assert found["labels"]["buy"]["auc"] > 0.99
        assert found["labels"]["buy"]["rows"] < found["labels"]["click"]["rows"] == 2000
        assert run.predict(frame).column_names == ["row", "score_click", "score_buy"]
    with fit(frame, schema, tables, loss_labels=("buy",), **QUICK) as run:
        assert run.predict(frame).column_names == ["row", "score"]
        assert run.evaluate(frame)["rows"] < 2000


def test_a_row_weight_of_two_is_that_row_twice(planted):
    schema = Schema(label="click", features=[Categorical("item")], weight="w")
    frame = planted(100).assign(w=1.0)
    heavy = frame.copy()
    heavy.loc[:9, "w"] = 2.0
    twice = pd.concat([frame, frame.iloc[:10]])
    options = {**QUICK, "batch_size": 200, "optimizer": SGD(lr=0.1)}
    tables = [Table("item", dim=0, linear=SGD(lr=1.0))]
    runs = [fit(data, schema, tables, model="lr", epochs=3, **options) for data in (heavy, twice)]
    scores = [run.predict(frame)["score"].to_numpy() for run in runs]
    assert np.allclose(*scores, atol=1e-6)


def test_thinned_negatives_are_corrected_in_scores_and_metrics_but_not_in_training(planted, schema):
    frame = planted(20_000)
    options = {**QUICK, "negatives_keep": 0.2, "epochs": 2}
    with fit(frame, schema, TABLES, model="fm", valid=planted(5000, 1), **options) as run:
        assert run.facts["log_odds_shift"] == pytest.approx(np.log(0.2))
        assert run.evaluate(planted(5000, 2))["calibration"] == pytest.approx(1, abs=0.1)
        mean = run.predict(planted(5000, 2))["score"].to_numpy().mean()
        assert mean == pytest.approx(planted(5000, 2)["click"].mean(), rel=0.1)
        run.facts = {**run.facts, "log_odds_shift": 0.0}
        assert run.evaluate(planted(5000, 2))["calibration"] > 1.4


def test_a_tenth_of_the_negatives_is_enough_at_two_percent_clicks(tmp_path):
    """Calibration on all validation rows is within 3 % of 1, and several times that without the correction."""
    schema = Schema(label="click", features=[Categorical("item"), Categorical("user")])
    tables = [Table(name, dim=0, linear=Adam(lr=0.05)) for name in ("item", "user")]
    options = {**QUICK, "batch_size": 1024, "epochs": 3, "optimizer": Adam(lr=0.05), "negatives_keep": 0.1}
    options["schedule"] = Schedule(decay="linear")
    with fit(
        _rare_clicks(5), schema, tables, model="lr", valid=_rare_clicks(6), run_dir=tmp_path / "r", **options
    ) as run:
        assert run.evaluate(_rare_clicks(6))["calibration"] == pytest.approx(1, abs=0.03)
        run.facts = {**run.facts, "log_odds_shift": 0.0}
        # odds are ten times too high, and so, nearly, are probabilities that small
        assert 7 < run.evaluate(_rare_clicks(6))["calibration"] < 10


def _rare_clicks(seed):
    rng = np.random.default_rng(seed)
    item, user = rng.integers(0, 50, 400_000), rng.integers(0, 40, 400_000)
    logit = -4.3 + (item % 7 - 3) / 3 + 0.4 * (user % 5 - 2)
    return pd.DataFrame({"item": item, "user": user, "click": rng.random(400_000) < 1 / (1 + np.exp(-logit))})


def test_a_feature_may_have_a_fixed_value_when_scoring(planted):
    frame = planted(1000).assign(position=lambda f: f["item"] % 5)
    schema = Schema(label="click", features=[Categorical("position", serve_as=1), Dense("price")])
    with fit(frame, schema, **QUICK) as run:
        scores = run.predict(frame)["score"].to_numpy()
        fixed = run.predict(frame.assign(position=1))["score"].to_numpy()
        assert np.array_equal(scores, fixed)
        assert run.predict(frame.drop(columns="position")).num_rows == 1000


class Own(nn.Module):
    """A model of one's own, given as an object."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 1)

    def forward(self, features):
        return self.layer(features["item"]).squeeze(1)


def test_a_module_of_ones_own_is_trained_as_it_is_and_asked_for_when_loading(planted):
    schema, own = Schema(label="click", features=[Categorical("item")]), Own()
    with fit(planted(500), schema, model=own, **QUICK) as run:
        assert run.model is own
        assert run.store.tables["item"] == Table("item")
        scores = run.predict(planted(50, 1))
    with pytest.raises(
        CheckpointError, match=r"given as an object of .*:Own; give one like it, as Run.load\(run_dir, model="
    ):
        Run.load(run.dir)
    with Run.load(run.dir, model=Own()) as again:
        assert again.predict(planted(50, 1)).equals(scores)
    with pytest.raises(CheckpointError, match="the saved model does not fit Linear"):
        Run.load(run.dir, model=nn.Linear(2, 2))


NET = """
from torch import nn

class Net(nn.Module):
    def __init__(self, inputs, *, hidden=3):
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(inputs[0].dim, hidden), nn.Linear(hidden, 1))

    def forward(self, features):
        return self.mlp(features["item"])[:, 0]
"""


def test_a_class_of_ones_own_is_found_by_its_dotted_path(planted, tmp_path, monkeypatch):
    (tmp_path / "own_net_of_test.py").write_text(NET)
    monkeypatch.syspath_prepend(str(tmp_path))
    schema = Schema(label="click", features=[Categorical("item")])
    with fit(planted(500), schema, model="own_net_of_test:Net", model_args={"hidden": 5}, **QUICK) as run:
        assert run.model.mlp[0].out_features == 5
        scores = run.predict(planted(9))
    with Run.load(run.dir) as again:
        assert again.predict(planted(9)).equals(scores)
    sys.modules.pop("own_net_of_test")


class Interrupting(Own):
    left = 3

    def forward(self, features):
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGINT)
        return super().forward(features)


def test_an_interrupted_fit_leaves_the_last_model_and_nothing_open(planted):
    schema = Schema(label="click", features=[Categorical("item")])
    gc.collect()
    threads, files = set(threading.enumerate()), len(os.listdir("/proc/self/fd"))
    with pytest.raises(KeyboardInterrupt):
        fit(planted(3000), schema, model=Interrupting(), **QUICK)
    assert set(threading.enumerate()) == threads
    assert len(os.listdir("/proc/self/fd")) == files
    with Run.load("runs/fit", "last", model=Own()) as run:
        assert run.facts["step"] == 3
        assert run.predict(planted(10)).num_rows == 10
    with fit(planted(3000), schema, model=Own(), **QUICK) as run:
        assert str(run.dir) == os.path.join("runs", "fit-2")


def test_a_run_that_fails_before_its_first_model_leaves_nothing_behind(planted, schema, tmp_path):
    frame = planted(100)
    frame.loc[50, "click"] = 2
    with pytest.raises(DataError, match="row 51, column 'click'"):
        fit(frame, schema, TABLES, model="fm", run_dir="failed", **QUICK)
    with pytest.raises(ModelError, match="did you mean 'dcnv2'"):
        fit(planted(100), schema, model="dcn2", run_dir="failed", **QUICK)
    assert os.listdir(tmp_path) == []


def test_a_directory_that_holds_a_run_is_refused(trained, planted, schema):
    with pytest.raises(ConfigError, match=r"runs/fit already holds a run; choose another directory"):
        fit(planted(100), schema, run_dir=trained.dir, quiet=True)
    (trained.dir / "run.toml").unlink()
    with pytest.raises(ConfigError, match="already holds a run"):
        fit(planted(100), schema, run_dir=trained.dir, quiet=True)
    with pytest.raises(ConfigError, match=r"metrics.jsonl is a file and must be a directory"):
        fit(planted(100), schema, run_dir=trained.dir / "metrics.jsonl", quiet=True)


def test_a_closed_run_says_how_to_open_it_again(trained, planted):
    trained.close()
    with pytest.raises(RuntimeError, match=r"this run is closed; Run.load\("):
        trained.predict(planted(5))


@pytest.mark.parametrize(
    ("which", "directory", "words"),
    [
        ("best", "nowhere", "nowhere: there is no such run; give the directory that sfctr train or fit wrote"),
        ("first", ".", "which is 'first' and must be 'best' or 'last'"),
        ("best", ".", "last: there is no saved model"),
    ],
)
def test_a_run_that_is_not_there_is_said_so(which, directory, words):
    with pytest.raises(CheckpointError, match=words):
        Run.load(directory, which)


def test_one_class_in_the_validation_part_leaves_auc_undefined_and_the_run_goes_on(planted, schema):
    valid = planted(300, 1).assign(click=0)
    with fit(planted(500), schema, TABLES, model="fm", valid=valid, epochs=2, **QUICK) as run:
        lines = [line for line in run.metrics if line["kind"] == "valid"]
    assert [line["auc"] for line in lines] == [None, None]
    assert lines[0]["undefined"]["auc"] == "all labels are 0"
    assert run.best is None


def test_pretrained_rows_are_where_a_table_begins_and_frozen_ones_stay(planted, schema):
    vectors = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)
    pq.write_table(pa.table({"key": np.arange(40), "vector": list(vectors)}), "vectors.parquet")
    tables = [Table("item", dim=4, pretrained="vectors.parquet", frozen=True), Table("tags", dim=4)]
    with fit(planted(500), schema, tables, model="dcnv2", **QUICK) as run:
        rows = rows_of(run)["item"]
    assert all(np.array_equal(rows[key], vectors[key].tolist()) for key in range(40))


def test_texts_of_hashed_keys_stay_with_the_model_and_name_slices(planted):
    frame = planted(500).assign(word=lambda f: "w" + (f["item"] % 3).astype(str))
    schema = Schema(label="click", features=[Categorical("word", keep_strings=True)], keep=("word",))
    with fit(frame, schema, valid=frame, slices=("word",), **QUICK) as run:
        assert set(run.strings["word"].values()) == {"w0", "w1", "w2"}
        assert set(run.best["slices"]["word"]) == {"w0", "w1", "w2"}


def test_string_keys_of_pretrained_rows_stay_with_the_model_though_no_row_has_them(planted):
    frame = planted(500).assign(word=lambda f: "w" + (f["item"] % 3).astype(str))
    pq.write_table(pa.table({"key": ["w1", "elsewhere"], "vector": [[1.0, 2.0]] * 2}), "vectors.parquet")
    schema = Schema(label="click", features=[Categorical("word", keep_strings=True)])
    with fit(frame, schema, [Table("word", dim=2, pretrained="vectors.parquet")], **QUICK) as run:
        assert set(run.strings["word"].values()) == {"w0", "w1", "w2", "elsewhere"}


def test_parts_of_a_model_that_tables_have_and_it_ignores_are_said(planted, schema, caplog):
    with Recorder():
        fit(planted(100), schema, TABLES, model="dcnv2", **QUICK).close()
        fit(planted(100), schema, TABLES, model="lr", **QUICK).close()
    assert "model 'dcnv2' does not use the first-order weights of table 'item'" in caplog.text
    assert "model 'lr' does not use the vectors of table 'item'" in caplog.text


def test_a_fit_leaves_torch_as_it_was(planted, schema):
    torch.manual_seed(3)
    state, threads = torch.random.get_rng_state(), torch.get_num_threads()
    fit(planted(300), schema, TABLES, model="fm", quiet=True, torch_threads=2 if threads == 1 else 1).close()
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.get_num_threads() == threads


def test_a_bag_feature_may_be_all_there_is():
    rows = [{"tags": [1, 2] if i % 2 else [], "click": i % 2} for i in range(200)]
    schema = Schema(label="click", features=[Bag("tags")])
    with fit(rows, schema, epochs=20, **QUICK) as run:
        assert run.evaluate(rows)["auc"] == 1.0


@pytest.mark.parametrize("window", [0, 2])
def test_a_trace_shows_the_stages_of_every_step_in_their_threads(planted, schema, tmp_path, window):
    with fit(planted(2000), schema, TABLES, model="fm", window=window, trace=tmp_path / "t.json", **QUICK) as run:
        lines = [line for line in run.metrics if line["kind"] == "train"]
    events = json.loads((tmp_path / "t.json").read_text())
    spans = [event for event in events if event["ph"] == "X"]
    rows = {event["tid"]: event["args"]["name"] for event in events if event["ph"] == "M"}
    for stage, thread in {"unique": "reader", "fetch": "planner", "backward": "Main", "step": "Main"}.items():
        own = [event for event in spans if event["name"] == stage]
        assert [event["args"]["step"] for event in own] == list(range(1, 9))
        assert all((thread if window else "Main") in rows[event["tid"]] for event in own)
    assert ("wait" in {event["name"] for event in spans}) == (window > 0)
    for stage in ("unique", "forward", "update"):
        traced = sum(event["dur"] for event in spans if event["name"] == stage) * 1e-6
        assert sum(line["stage_s"][stage] for line in lines) == pytest.approx(traced, abs=1e-4)


def test_lines_on_training_count_the_rows_that_moved_by_table(planted, schema, tmp_path):
    frame = planted(2000).assign(item=np.random.default_rng(5).integers(0, 5000, 2000))
    tiers = Tiers(ram=100_000, disk=str(tmp_path))  # some 1,650 items take 60 bytes, and 24 in the index
    with fit(frame, schema, TABLES, model="fm", tiers=tiers, epochs=2, **QUICK) as run:
        moved = [line["moved"] for line in run.metrics if line["kind"] == "train"]
        rows = {table: run.store.num_rows(table) for table in ("item", "tags")}
    total = {table: sum((Counter(line.get(table, {})) for line in moved), Counter()) for table in rows}
    assert total["item"]["requested"] == 2 * 2000
    for table, counts in total.items():
        assert counts["unique"] == counts["hits"] + counts["fresh"] + counts["fetched"]
        assert counts["fresh"] == rows[table]
        assert counts["bytes_fetched"] == counts["fetched"] * 4 * 3 * (4 + 1)  # vector and weight, Adam's two averages
    assert total["item"]["evicted"] > 0


def test_a_trace_that_cannot_be_written_is_refused_before_anything_is_trained(planted, schema, tmp_path):
    with pytest.raises(
        ConfigError, match=r"the trace .*t.json cannot be written: No such file or directory; give another"
    ):
        fit(planted(100), schema, TABLES, model="fm", trace=tmp_path / "no" / "t.json", run_dir="r", **QUICK)
    assert not os.path.exists("r")


def test_a_run_ends_by_saying_what_bound_it(planted, schema, capsys):
    with fit(planted(1000), schema, TABLES, model="fm", **{**QUICK, "quiet": False}):
        pass
    assert re.search(r"what bound the run: .+: \d+ % of the step; .*(raise|set) ", capsys.readouterr().err)
