"""`sfctr trace` on files: the numbers it prints and writes, where it writes them, and what it refuses."""

import csv
import json
import random
from pathlib import Path
from xml.etree import ElementTree

import pytest

from sfctr.data import open_training
from sfctr.spec.runfile_text import decode_run_file

ROWS = 400
BATCH = 50

RUN = """\
[data]
train = ["clicks.csv"]
[schema]
label = "click"
time = "at"
features = [
  {kind = "categorical", name = "item", dtype = "int64"},
  {kind = "categorical", name = "city", table = "place", dtype = "string"},
  {kind = "categorical", name = "home", table = "place", dtype = "string"},
  {kind = "bag", name = "tags", separator = "|", dtype = "string"},
  {kind = "sequence", name = "history", table = "item", separator = " ", max_length = 3, dtype = "int64"},
  {kind = "categorical", name = "page", dtype = "int64"},
  {kind = "bucket", name = "price", boundaries = [10.0, 20.0]},
  {kind = "dense", name = "age"},
]
[[tables]]
name = "item"
dim = 8
optimizer = {kind = "adam"}
[[tables]]
name = "place"
dim = 4
optimizer = {kind = "sgd"}
linear = {kind = "ftrl"}
[[tables]]
name = "page"
buckets = 20
[[tables]]
name = "price"
dense = true
num_rows = 3
[model]
name = "dcnv2"
[train]
batch_size = 50
"""

COLUMNS = ("click", "at", "item", "city", "home", "tags", "history", "page", "price", "age")


def clicks() -> list[dict[str, str]]:
    draw = random.Random(3)
    skewed = lambda n: str(int(n ** draw.random()))  # noqa: E731
    return [
        {
            "click": str(draw.randint(0, 1)),
            "at": f"2024-03-{1 + row // 20:02}",
            "item": "" if draw.random() < 0.1 else skewed(90),
            "city": draw.choice(["Oslo", "Rome", "NA", ""]),
            "home": draw.choice(["Oslo", "Lima", ""]),
            "tags": "|".join(draw.choices("abcdefg", k=draw.randint(0, 4))),
            "history": " ".join(skewed(90) for _ in range(draw.randint(0, 5))),
            "page": skewed(5000),
            "price": str(draw.randint(0, 30)),
            "age": str(draw.randint(18, 80)),
        }
        for row in range(ROWS)
    ]


def write_csv(path: Path, rows: list[dict[str, str]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)


@pytest.fixture
def files(tmp_path):
    write_csv(tmp_path / "clicks.csv", clicks())
    (tmp_path / "run.toml").write_text(RUN)
    return tmp_path


def found_in(path: Path) -> dict:
    return json.loads((path / "trace.json").read_text())


def looked_up(row: dict[str, str]) -> dict[str, list[str | None]]:
    """What a row looks up in each table, a missing value as None; but for buckets."""
    return {
        "item": [row["item"] or None, *row["history"].split()[-3:]],
        "place": [row["city"] or None, row["home"] or None],
        "tags": [tag for tag in row["tags"].split("|") if tag],
        "page": [row["page"]],
    }


def test_its_numbers_are_those_of_a_count_by_hand(sfctr, files):
    done = sfctr("trace", "run.toml")
    assert done.code == 0, done.err
    report = found_in(files / "runs" / "run" / "trace")
    assert (report["rows"], report["batches"]) == (ROWS, ROWS // BATCH)
    rows = [looked_up(row) for row in clicks()]
    assert [table["name"] for table in report["tables"]] == ["item", "place", "page", "tags"]
    for table in report["tables"]:
        keys = [row[table["name"]] for row in rows]
        batches = [{key for row in keys[start : start + BATCH] for key in row} for start in range(0, ROWS, BATCH)]
        flat = [key for row in keys for key in row]
        assert table["lookups"] == len(flat)
        assert table["missing"] == pytest.approx(flat.count(None) / len(flat))
        if table["name"] != "page":
            assert table["accesses"] == sum(map(len, batches))
            assert table["rows"] == len(set(flat))
            assert table["unique"]["max"] == max(map(len, batches))
            assert table["reuse"]["repeats"] == sum(map(len, batches)) - len(set(flat))
    page = report["tables"][2]
    assert page["rows"] == 20
    assert page["unique"]["max"] <= 20


def test_a_row_takes_its_vector_its_weight_and_their_state(sfctr, files):
    sfctr("trace", "run.toml")
    tables = found_in(files / "runs" / "run" / "trace")["tables"]
    floats = {table["name"]: table["row_bytes"] / 4 for table in tables}
    assert floats == {
        "item": 8 + 2 * 8,  # a vector and Adam's two averages
        "place": 4 + 1 + 2,  # a vector under SGD, a first-order weight and FTRL's two sums
        "page": 16 + 2 * 16,
        "tags": 16 + 2 * 16,  # a table that the run file does not name has the model's defaults
    }
    for table in tables:
        assert table["index_bytes"] == 24 * table["rows"]
        assert table["all_bytes"] == (24 + table["row_bytes"]) * table["rows"]


def test_it_prints_keys_reuse_and_advice(sfctr, files):
    done = sfctr("trace", "run.toml")
    lines = done.out.splitlines()
    assert lines[0] == "400 rows in 8 batches"
    assert " ".join(lines[2].split()) == "table look-ups missing keys a batch at most bytes a row all rows"
    assert [line.split()[0] for line in lines[3:7]] == ["item", "place", "page", "tags"]
    assert "table 'place': keep all 5 rows: they take 260 B" in lines
    assert "not traced, because all their rows sit with the model: price" in lines
    assert lines[-1] == "files: runs/run/trace/trace.json, runs/run/trace/trace.svg"
    assert done.err == ""


def test_the_advice_names_memory_hits_window_and_what_lru_would_need(sfctr, tmp_path):
    draw = random.Random(1)
    rows = "".join(f"{draw.randint(0, 1)},{int(3000 ** draw.random())}\n" for _ in range(20_000))
    (tmp_path / "clicks.csv").write_text("click,item\n" + rows)
    (tmp_path / "run.toml").write_text(
        '[data]\ntrain = ["clicks.csv"]\n[schema]\nlabel = "click"\n'
        'features = [{kind = "categorical", name = "item"}]\n[train]\nbatch_size = 200\n'
    )
    done = sfctr("trace", "run.toml", "--window", 2)
    report = found_in(tmp_path / "runs" / "run" / "trace")
    advice = report["tables"][0]["advice"]
    words = f" kB of RAM gives {advice['hit_rate']:.1%} hits with window 2 (LRU would need "
    (line,) = [line for line in done.out.splitlines() if line.startswith("table 'item': ")]
    assert words in line
    assert advice["hit_rate"] >= 0.99
    assert report["advised_bytes"] == advice["bytes"] < report["all_bytes"]


def test_the_order_is_that_of_training(sfctr, files):
    """Shuffled, the batches hold other keys, and the trace is of those that training would see."""
    sfctr("trace", "run.toml", "--set", "data.shuffle=true", "--out", "shuffled")
    run = decode_run_file(RUN, "run.toml", ["data.shuffle=true"])
    source, _ = open_training(run.data, run.schema, batch_size=BATCH, seed=0)
    with source:
        tags = [len(set(batch.keys["tags"].keys.tolist())) for batch in source]
    table = found_in(files / "shuffled")["tables"][3]
    assert (table["name"], table["accesses"], table["unique"]["max"]) == ("tags", sum(tags), max(tags))


def test_held_out_rows_are_not_traced(sfctr, files):
    sfctr("trace", "run.toml", "--set", "data.valid_from=2024-03-11", "--out", "x")
    assert found_in(files / "x")["rows"] == ROWS // 2


def test_the_picture_has_a_panel_for_each_table(sfctr, files):
    sfctr("trace", "run.toml", "--out", "x")
    root = ElementTree.parse(files / "x" / "trace.svg").getroot()
    names = [t.text for t in root.iter("{http://www.w3.org/2000/svg}text") if t.get("class") == "name"]
    assert names == ["item", "place", "page", "tags"]


def test_options_set_the_batch_and_where_to_stop(sfctr, files):
    sfctr("trace", "run.toml", "--set", "train.batch_size=64", "--max-rows", "0.1K", "--out", "deep/er")
    report = found_in(files / "deep" / "er")
    assert (report["rows"], report["batches"]) == (100, 2)


def test_a_trace_may_be_made_anew_beside_a_run(sfctr, files):
    first = sfctr("trace", "run.toml")
    assert sfctr("trace", "run.toml").out == first.out
    trained = sfctr("train", "run.toml", "--set", "tables.place.dim=8", "--set", "tables.page.dim=8")
    assert trained.code == 0, trained.err
    assert {path.name for path in (files / "runs" / "run").iterdir()} >= {"trace", "last", "run.toml"}


def test_a_bound_on_memory_makes_it_an_estimate_and_it_says_so(sfctr, tmp_path):
    draw = random.Random(1)
    rows = "".join(f"{draw.randint(0, 1)},{int(200_000 ** draw.random())}\n" for _ in range(150_000))
    (tmp_path / "clicks.csv").write_text("click,item\n" + rows)
    (tmp_path / "run.toml").write_text(
        '[data]\ntrain = ["clicks.csv"]\n[schema]\nlabel = "click"\n'
        'features = [{kind = "categorical", name = "item"}]\n'
    )
    done = sfctr("trace", "run.toml", "--memory", "1MB", "--out", "x")
    assert done.code == 0, done.err
    assert "; estimated from 1 key in 2; standard error of its hit rates at most " in done.out


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["missing.toml"], ("missing.toml: there is no such run file", "sfctr init")),
        (["run.toml", "--set", "train.bach_size=3"], ("train.bach_size", "did you mean 'batch_size'")),
        (["run.toml", "--out", "clicks.csv"], ("clicks.csv is a file", "--out DIR")),
        (["run.toml", "--max-rows", "none"], ("--max-rows is 'none'", "10M")),
        (["run.toml", "--memory", "lots"], ("--memory is 'lots'", "2GB")),
        (["run.toml", "--memory", "5kB"], ("5,000 bytes", "at least 1,000,000")),
        (["run.toml", "--window", "-1"], ("window is -1", "at least 0")),
        (["run.toml", "--window", "four"], ("'--window'", "sfctr trace --help")),
        (["run.toml", "--set", "model.name=dcnv3"], ("'dcnv3'", "did you mean 'dcnv2'")),
        (["run.toml", "--set", "data.train=['clicks2.csv']"], ("'clicks2.csv'", "did you mean 'clicks.csv'")),
        (["dense.toml"], ("nothing to trace", "categorical")),
        (["unused.toml"], ("table 'user'", "no feature")),
        (["bad.toml"], ("bad.csv, row 3, column 'click': ", "0, 1")),
    ],
)
def test_a_mistake_is_one_line_and_leaves_nothing_behind(sfctr, files, argv, words):
    plain = '[data]\ntrain = ["clicks.csv"]\n[schema]\nlabel = "click"\nfeatures = [{kind = "dense", name = "age"}]\n'
    (files / "dense.toml").write_text(plain)
    (files / "unused.toml").write_text(RUN + '[[tables]]\nname = "user"\n')
    rows = clicks()
    rows[2]["click"] = "2"
    write_csv(files / "bad.csv", rows)
    (files / "bad.toml").write_text(RUN.replace("clicks.csv", "bad.csv"))
    done = sfctr("trace", *argv)
    assert (done.code, done.out) == (2, ""), done.err
    assert done.err.startswith("sfctr: error: ") and done.err.count("\n") == 1, done.err
    assert [word for word in words if word not in done.err] == [], done.err
    assert not (files / "runs").exists()
