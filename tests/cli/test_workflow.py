"""From files that init has never seen to scores, exports and a summary, with every command as a user types it."""

import csv
import itertools
import json
import re
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sfctr.store import Store
from sfctr.train.run import open_saved
from sfctr.train.trainer import Trainer

ROWS = 600
IDS = [0, 2**63 - 1, 2**63, 2**64 - 1, 1234567890123456788, 1234567890123456789, *range(100, 120)]
CITIES = ["Oslo", "NA", "Köln", 'Paris, "Texas"', None]


def clicks() -> pa.Table:
    """Click rows with uint64 ids, text, lists of text, decimals and times; with nulls."""
    draw = Random(7)
    items = [draw.choice(IDS) for _ in range(ROWS)]
    tags = [None if draw.random() < 0.1 else draw.choices(["a", "b", "c"], k=draw.randint(0, 4)) for _ in items]
    prices = [None if draw.random() < 0.1 else Decimal(draw.randint(1, 99_999)).scaleb(-2) for _ in items]
    return pa.table(
        {
            "click": pa.array([int(draw.random() < 0.2 + 0.5 * (item % 2)) for item in items], pa.int8()),
            "item": pa.array(items, pa.uint64()),
            "city": [draw.choice(CITIES) for _ in items],
            "tags": tags,
            "price": pa.array(prices, pa.decimal128(9, 2)),
            "at": [datetime(2024, 2, 26) + timedelta(minutes=23 * i) for i in range(ROWS)],
        }
    )


def write_dirty_csv(table: pa.Table, path: Path) -> None:
    """The same rows as a person's spreadsheet has them: a byte-order mark, CRLF, quotes, lists as text."""
    with path.open("w", encoding="utf-8-sig", newline="") as file:
        writer = csv.writer(file, lineterminator="\r\n")
        writer.writerow(table.column_names)
        for row in table.to_pylist():
            row["tags"] = "|".join(row["tags"] or [])
            writer.writerow(["" if value is None else str(value) for value in row.values()])


@pytest.fixture
def files(tmp_path):
    pq.write_table(clicks(), tmp_path / "clicks.parquet")
    write_dirty_csv(clicks(), tmp_path / "clicks.csv")
    return tmp_path


def run_of(sfctr, data: str, run_dir: str, *more: str) -> None:
    """init, then train on what it wrote, unchanged but for being short."""
    written = sfctr("init", data, "--label", "click")
    assert written.code == 0, written.err
    Path(f"{run_dir}.toml").write_text(written.out, encoding="utf-8")
    done = sfctr("train", f"{run_dir}.toml", "--run", run_dir, "--set", "train.epochs=1", *more)
    assert done.code == 0, done.err


@pytest.fixture
def run(sfctr, files):
    run_of(sfctr, "clicks.parquet", "run", "--set", "train.torch_threads=1")
    return files / "run"


def test_a_csv_and_its_parquet_twin_train_to_the_same_predictions(sfctr, files, run):
    run_of(sfctr, "clicks.csv", "twin", "--set", "train.torch_threads=1")
    for name, data in (("run", "clicks.parquet"), ("twin", "clicks.csv")):
        assert sfctr("predict", name, "--data", data, "--out", f"{name}.scores").code == 0
    scores = pq.read_table("run.scores")
    assert scores.equals(pq.read_table("twin.scores"))
    assert scores["row"].to_pylist() == list(range(ROWS))
    assert len(set(scores["score"].to_pylist())) > ROWS // 2
    for table in ("item", "city", "tags"):
        exports = [by_key(sfctr, name, table) for name in ("run", "twin")]
        assert exports[0] == exports[1]


def by_key(sfctr, run_dir: str, table: str) -> dict[object, list[float]]:
    out = f"{run_dir}.rows"
    done = sfctr("export", run_dir, "--out", out, "--rows")
    assert done.code == 0
    assert f"{out}/{table}.parquet" in done.out.splitlines()
    rows = pq.read_table(f"{out}/{table}.parquet")
    return dict(zip(rows["key"].to_pylist(), rows["vector"].to_pylist(), strict=True))


def test_exported_keys_are_what_the_data_had(sfctr, run):
    assert set(by_key(sfctr, "run", "item")) == set(IDS)
    assert set(by_key(sfctr, "run", "city")) == set(CITIES)
    assert set(by_key(sfctr, "run", "tags")) == {"a", "b", "c"}


def test_evaluate_prints_metrics_and_the_share_of_unseen_keys(sfctr, run):
    table = pq.read_table("clicks.parquet")
    fresh = table.set_column(1, "item", pa.array([7, *table["item"].to_pylist()[1:]], pa.uint64()))
    pq.write_table(fresh.slice(0, 200), "fresh.parquet")
    done = sfctr("evaluate", "run", "--data", "fresh.parquet", "--which", "last")
    assert done.code == 0
    lines = [line.split() for line in done.out.splitlines() if line]
    assert [line[0] for line in lines[:5]] == ["auc", "logloss", "ne", "calibration", "rows"]
    assert lines[4] == ["rows", "200"]
    assert ["item", "0.50%"] in lines
    assert ["city", "0.00%"] in lines


def test_scoring_needs_no_label_and_several_files_follow_each_other(sfctr, run):
    unlabelled = pq.read_table("clicks.parquet").drop_columns("click")
    pq.write_table(unlabelled.slice(0, 250), "a.parquet")
    pq.write_table(unlabelled.slice(250), "b.parquet")
    sfctr("predict", "run", "--data", "clicks.parquet", "--out", "whole.scores")
    done = sfctr("predict", "run", "--data", "a.parquet", "--data", "b.parquet", "--out", "parts.scores")
    assert (done.code, done.out) == (0, "parts.scores\n")
    assert pq.read_table("parts.scores").equals(pq.read_table("whole.scores"))


def test_scores_replace_none_of_the_files_that_are_read(sfctr, run):
    before = Path("clicks.parquet").read_bytes()
    done = sfctr("predict", "run", "--data", "clicks.parquet", "--out", "./clicks.parquet")
    assert (done.code, done.err) == (
        2,
        "sfctr: error: clicks.parquet is read, and scores would replace it; give another file to write\n",
    )
    assert Path("clicks.parquet").read_bytes() == before
    done = sfctr("predict", "run", "--data", "clicks.parquet", "--out", "s3://bucket/scores.parquet")
    assert done.code == 2 and "is a URL, and scores go to a local file" in done.err
    assert not Path("s3:").exists()


def test_a_run_that_is_used_keeps_its_tiers_and_its_directory(sfctr, run, monkeypatch):
    made = []

    class Recorded(Store):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            made.append((options["tiers"], options["directory"]))

    monkeypatch.setattr("sfctr.train.run.Store", Recorded)
    for command in (
        ("inspect", "run"),
        ("export", "run", "--rows", "--out", "rows"),
        ("predict", "run", "--data", "clicks.parquet", "--out", "p.parquet"),
    ):
        assert sfctr(*command).code == 0
    assert made == [(open_saved(run).run.tiers, Path("run"))] * 3


def test_a_line_that_was_cut_off_is_no_line(sfctr, run):
    with Path("run/metrics.jsonl").open("a") as file:
        file.write('{"kind": "tra')
    assert sfctr("inspect", "run").code == 0


def test_inspect_shows_tables_rows_and_sizes(sfctr, run):
    done = sfctr("inspect", "run")
    assert done.code == 0
    lines = [line.split() for line in done.out.splitlines()]
    assert ["model", "dcnv2"] in lines
    # 26 ids of 16 weights and Adam's two moments of each, 4 bytes a float
    assert ["item", "26", "16", "Adam", "-", "5.0", "kB"] in lines
    assert "auc" in done.out


def test_inspect_shows_what_moved_while_training_and_what_bound_it(sfctr, run):
    lines = sfctr("inspect", "run").out.splitlines()
    moved = dict(
        zip(
            *(line.replace("in RAM", "hits").replace("asked for", "asked").split() for line in _table(lines)),
            strict=True,
        )
    )
    assert moved["table"] == "item"
    assert int(moved["asked"].replace(",", "")) > int(moved["unique"].replace(",", "")) > int(moved["new"]) == 26
    assert any(re.fullmatch(r"what bound the run: .+ % of the step; .+", line) for line in lines)


def _table(lines):
    """Heading and first row of the counters."""
    start = next(i for i, line in enumerate(lines) if line.startswith("table") and "asked for" in line)
    return [line.replace("from disk", "from_disk").replace("to disk", "to_disk") for line in lines[start : start + 2]]


def test_a_trace_of_training_is_a_file_for_the_viewers(sfctr, files, run):
    done = sfctr("train", "run.toml", "--set", "train.max_steps=2", "--trace", "trace.json")
    assert done.code == 0
    assert "what bound the run: " in done.err
    steps = [event for event in json.loads(Path("trace.json").read_text()) if event["name"] == "step"]
    assert [event["args"] for event in steps] == [{"step": 1}, {"step": 2}]
    refused = sfctr("train", "run.toml", "--run", "other", "--trace", "no/trace.json")
    assert (refused.code, len(refused.err.splitlines())) == (2, 1)
    assert "the trace no/trace.json cannot be written" in refused.err


def test_training_says_what_the_model_is_worth_and_where_the_files_are(sfctr, files, run):
    done = sfctr("train", "run.toml", "--set", "train.max_steps=3")
    assert done.code == 0
    assert "validation part, model of step 3" in done.out
    named = [
        word.strip(",/") for line in done.out.splitlines() if line.startswith("files:") for word in line.split()[1:]
    ]
    assert named[:3] == ["runs/run/run.toml", "runs/run/metrics.jsonl", "runs/run/last"]
    assert all(Path(name).exists() for name in named)


def test_a_run_is_replaced_only_when_asked_to(sfctr, run):
    before = (run / "run.toml").read_text(), (run / "last" / "manifest.json").read_text()
    refused = sfctr("train", "run.toml", "--run", "run")
    assert (refused.code, refused.err.count("\n")) == (2, 1)
    assert "--overwrite" in refused.err
    failed = sfctr("train", "run.toml", "--run", "run", "--overwrite", "--set", "model.name=din")
    assert failed.code == 2
    assert before == ((run / "run.toml").read_text(), (run / "last" / "manifest.json").read_text())
    (run / "notes.txt").write_text("mine")
    replaced = sfctr("train", "run.toml", "--run", "run", "--overwrite", "--set", "train.max_steps=2")
    assert replaced.code == 0, replaced.err
    assert "max_steps = 2" in (run / "run.toml").read_text()
    assert sorted(p.name for p in run.iterdir()) == [
        *("best", "checkpoints", "history.jsonl", "last", "metrics.jsonl", "notes.txt", "report.html", "run.toml")
    ]


def test_an_interrupted_run_keeps_what_it_learnt_and_can_be_used(sfctr, files, monkeypatch):
    steps = itertools.count()
    learn = Trainer.learn

    def interrupted(self, ready):
        if next(steps) == 5:
            raise KeyboardInterrupt
        learn(self, ready)

    Path("run.toml").write_text(sfctr("init", "clicks.parquet", "--label", "click").out)
    monkeypatch.setattr(Trainer, "learn", interrupted)
    done = sfctr("train", "run.toml", "--run", "run")
    assert done.code == 130
    assert done.err.splitlines()[-1] == "sfctr: interrupted; what was learnt until then is in run/last/"
    assert ["step", "5"] in [line.split() for line in sfctr("inspect", "run").out.splitlines()]
    assert sfctr("predict", "run", "--data", "clicks.parquet", "--out", "p.parquet").code == 0


def test_an_hour_such_as_14102100_orders_the_rows(sfctr, tmp_path):
    hours = [f"1410{21 + day}{hour:02}" for day in range(10) for hour in range(24)]
    lines = ["id,click,hour,site", *(f"{i},{i % 3 % 2},{hour},s{i % 5}" for i, hour in enumerate(hours))]
    (tmp_path / "avazu.csv").write_text("\n".join(lines) + "\n")
    written = sfctr("init", "avazu.csv", "--label", "click", "--time", "hour", "--valid-from", "2014-10-29")
    assert written.code == 0, written.err
    (tmp_path / "run.toml").write_text(written.out)
    done = sfctr("train", "run.toml", "--set", "train.epochs=1")
    assert done.code == 0, done.err
    assert ["rows", "48"] in [line.split() for line in done.out.splitlines()]
    assert ["rows", f"{8 * 24}"] in [line.split() for line in sfctr("inspect", "runs/run").out.splitlines()]


def test_ones_own_model_is_found_beside_the_run_file(sfctr, files):
    Path("my_models.py").write_text(
        "import torch\n\n\n"
        "class Sum(torch.nn.Module):\n"
        "    def __init__(self, inputs, *, num_labels=1):\n"
        "        super().__init__()\n"
        "        self.out = torch.nn.Linear(sum(i.dim or i.width for i in inputs), num_labels)\n\n"
        "    def forward(self, features):\n"
        "        return self.out(torch.cat(list(features.values()), 1)).squeeze(1)\n"
    )
    run_of(sfctr, "clicks.parquet", "own", "--set", "model.name=my_models:Sum")
    assert "my_models:Sum" in sfctr("inspect", "own").out
    assert sfctr("evaluate", "own", "--data", "clicks.parquet").code == 0


def test_synthetic_data_are_made_described_and_used(sfctr):
    made = sfctr("synth", "criteo", "--rows", "2K", "--out", "made", "--scale", "0.001", "--click-rate", "0.2")
    assert made.code == 0
    assert "best possible AUC" in made.out
    written = sfctr("init", "made/train", "--valid", "made/valid", "--label", "label")
    assert written.code == 0
    Path("run.toml").write_text(written.out)
    done = sfctr("train", "run.toml", "--set", "train.epochs=1", "--set", "model.name=lr")
    assert done.code == 0, done.err
    assert ["rows", "200"] in [line.split() for line in done.out.splitlines()]


def test_inspect_and_the_log_tell_which_keys_have_come_and_gone(sfctr, files):
    options = ("tables.item.admit_after=2", "tables.item.unseen=rare", "tables.city.capacity=2", "train.batch_size=64")
    run_of(sfctr, "clicks.parquet", "run", *(word for option in options for word in ("--set", option)))
    lines = [line.split() for line in sfctr("inspect", "run", "--which", "last").out.splitlines()]
    (heading,) = (line for line in lines if line[:2] == ["table", "admitted"])
    by_table = {line[0]: dict(zip(heading, line, strict=True)) for line in lines if len(line) == len(heading)}
    assert int(by_table["item"]["refused"]) > 0 and int(by_table["city"]["removed"]) > 0
    assert by_table["city"]["live"] == "2"
    assert "tags" not in by_table
    logged = [
        line["membership"]
        for line in map(json.loads, Path("run/metrics.jsonl").read_text().splitlines())
        if line["kind"] == "train"
    ][-1]
    assert {table: {name: str(n) for name, n in counts.items()} for table, counts in logged.items()} == {
        name: {key: each for key, each in by_table[name].items() if key != "table"} for name in ("item", "city")
    }
    done = sfctr("export", "run", "--out", "rows", "--rows", "--which", "last")
    assert done.code == 0, done.err
    rows = pq.read_table("rows/item.parquet")
    assert rows.filter(rows["rare"])["key"].to_pylist() == [None]
    assert "rare" not in pq.read_table("rows/city.parquet").column_names
