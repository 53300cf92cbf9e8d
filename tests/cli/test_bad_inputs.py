"""Whatever is wrong with data, run files or arguments: one line with the place and the remedy, and exit code 2."""

import gzip
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

ROWS = 40
COLUMNS = {
    "click": [str(i % 2) for i in range(ROWS)],
    "item": [str(100 + i % 7) for i in range(ROWS)],
    "price": [f"{i}.5" for i in range(ROWS)],
    "tags": ["a|b"] * ROWS,
    "day": [f"2024-03-{1 + i % 20:02}" for i in range(ROWS)],
}


def csv(names: str = "click item price", **changes: Mapping[int, str]) -> str:
    """A good file with these columns; `price={6: "cheap"}` changes its data row 6, counted from 1."""
    columns = [[changes.get(n, {}).get(r, text) for r, text in enumerate(COLUMNS[n], 1)] for n in names.split()]
    return "".join(",".join(row) + "\n" for row in [names.split(), *zip(*columns, strict=True)])


ITEM = '{kind = "categorical", name = "item"}'
INT64_ITEM = '{kind = "categorical", name = "item", dtype = "int64"}'
PRICE = '{kind = "dense", name = "price"}'


def run_file(*features: str, data: str = "", schema: str = "") -> str:
    """A good run file with these features, and further fields of [data] and [schema]."""
    return f"""\
[data]
train = ["clicks.csv"]
{data}
[schema]
label = "click"
{schema}
features = [{", ".join(features)}]
[model]
name = "lr"
[train]
batch_size = 16
"""


RUN = run_file(ITEM, PRICE)

Content = str | bytes | pa.Table
TRAIN = ("train", "run.toml")


@dataclass(frozen=True)
class Bad:
    """files: contents by name, beside a good clicks.csv and run.toml. words: all of them are in the one line."""

    words: tuple[str, ...]
    files: Mapping[str, Content] = field(default_factory=dict)
    argv: tuple[str, ...] = TRAIN


def parquet(feature: str, **columns: object) -> dict[str, Content]:
    """clicks.parquet with these columns beside the label, and a run file with one feature of them."""
    clicks = pa.table({"click": [i % 2 for i in range(ROWS)], **columns})
    return {"clicks.parquet": clicks, "run.toml": run_file(feature).replace("clicks.csv", "clicks.parquet")}


def timed(data: str = "", schema: str = 'time = "day"') -> dict[str, Content]:
    """clicks.csv with days, and a run file that is ordered by them."""
    return {"clicks.csv": csv("click item day"), "run.toml": run_file(ITEM, data=data, schema=schema)}


BAD_INPUTS: dict[str, Bad] = {
    # ---- values -------------------------------------------------------------------------------------------------
    "label yes": Bad(("clicks.csv, row 3, column 'click': ", "yes", "0, 1"), {"clicks.csv": csv(click={3: "yes"})}),
    "label 2": Bad(("clicks.csv, row 5, column 'click': ", "2", "0, 1"), {"clicks.csv": csv(click={5: "2"})}),
    "label below 0": Bad(("clicks.csv, row 5, column 'click': ", "-1", "0, 1"), {"clicks.csv": csv(click={5: "-1"})}),
    "float ids": Bad(("clicks.parquet, column 'item': ", "double"), parquet(ITEM, item=[0.5] * ROWS)),
    "decimal ids": Bad(
        ("clicks.parquet, column 'item': ", "decimal", "dense"), parquet(ITEM, item=[Decimal("1.50")] * ROWS)
    ),
    "a float id declared int64": Bad(
        ("clicks.csv, row 2, column 'item': ", "'1.5'", 'dtype = "string"'),
        {"clicks.csv": csv("click item", item={2: "1.5"}), "run.toml": run_file(INT64_ITEM)},
    ),
    "integer ids that were made floats": Bad(
        ("clicks.csv, row 1, column 'item': ", "'101.0'", "astype('Int64')", 'dtype = "string"'),
        {"clicks.csv": csv("click item", item={r: f"{100 + r}.0" for r in range(1, ROWS + 1)})}
        | {"run.toml": run_file(ITEM)},
    ),
    "an integer id that was made a float": Bad(
        ("clicks.csv, row 7, column 'item': ", "'1e5'", "floats are no ids"),
        {"clicks.csv": csv("click item", item={7: "1e5"}), "run.toml": run_file(ITEM)},
    ),
    "negative id declared uint64": Bad(
        ("clicks.csv, row 4, column 'item': ", "'-7'", "uint64"),
        {"clicks.csv": csv("click item", item={4: "-7"}), "run.toml": run_file(INT64_ITEM.replace("int64", "uint64"))},
    ),
    "id above int64 declared int64": Bad(
        ("clicks.csv, row 4, column 'item': ", "'9223372036854775808'", "int64"),
        {"clicks.csv": csv("click item", item={4: "9223372036854775808"}), "run.toml": run_file(INT64_ITEM)},
    ),
    "text in a number": Bad(
        ("clicks.csv, row 6, column 'price': ", "'cheap'", "data.null_values"), {"clicks.csv": csv(price={6: "cheap"})}
    ),
    "infinite number": Bad(("clicks.csv, row 6, column 'price': inf", "finite"), {"clicks.csv": csv(price={6: "inf"})}),
    "negative refused under log1p": Bad(
        ("clicks.csv, row 6, column 'price': ", "-3", 'negatives = "clip"'),
        {
            "clicks.csv": csv("click price", price={6: "-3"}),
            "run.toml": run_file('{kind = "dense", name = "price", transform = "log1p", negatives = "refuse"}'),
        },
    ),
    "weights of another length": Bad(
        ("clicks.parquet, row 8, column 'weights': ", "'tags'", "equally long"),
        parquet(
            '{kind = "bag", name = "tags", weights = "weights"}',
            tags=[[1, 2]] * ROWS,
            weights=[[0.5, 1.0]] * 7 + [[0.5]] + [[0.5, 1.0]] * (ROWS - 8),
        ),
    ),
    "vector of another length": Bad(
        ("clicks.parquet, row 2, column 'embedding': ", "2", "3"),
        parquet(
            '{kind = "dense", name = "embedding", size = 3}', embedding=[[1.0, 2.0, 3.0], [1.0, 2.0]] * (ROWS // 2)
        ),
    ),
    "row weight below 0": Bad(
        ("clicks.csv, row 9, column 'price': ", "-1", "0 or more"),
        {"clicks.csv": csv(price={9: "-1"}), "run.toml": run_file(ITEM, schema='weight = "price"')},
    ),
    "bad time": Bad(
        ("clicks.csv, row 7, column 'day': ", "'last Tuesday'", "2014-10-29"),
        timed() | {"clicks.csv": csv("click item day", day={7: "last Tuesday"})},
    ),
    "time in another format": Bad(
        ("clicks.csv, row 1, column 'day': ", "'2024-03-01'", "'%d.%m.%Y'"),
        timed(schema='time = {column = "day", format = "%d.%m.%Y"}'),
    ),
    # ---- files --------------------------------------------------------------------------------------------------
    "missing column": Bad(
        ("clicks.csv", "'itm'", "did you mean 'item'"),
        {"run.toml": run_file('{kind = "categorical", name = "itm"}', PRICE)},
    ),
    "missing label column": Bad(
        ("clicks.csv", "'clik'", "did you mean 'click'"), {"run.toml": RUN.replace('"click"', '"clik"')}
    ),
    "missing file": Bad(
        ("'clicks2.csv'", "did you mean 'clicks.csv'", "check the path"),
        {"run.toml": RUN.replace("clicks.csv", "clicks2.csv")},
    ),
    "a glob that matches nothing": Bad(
        ("'logs/*.csv'", "quote"), {"run.toml": RUN.replace("clicks.csv", "logs/*.csv")}
    ),
    "no files at all": Bad(("no files", "name at least one"), {"run.toml": RUN.replace('["clicks.csv"]', "[]")}),
    "unknown ending": Bad(
        ("'clicks.dat'", "data.format"), {"clicks.dat": csv(), "run.toml": RUN.replace("clicks.csv", "clicks.dat")}
    ),
    "truncated gzip": Bad(
        ("clicks.csv.gz: ", "truncated", "copy it again"),
        {"clicks.csv.gz": gzip.compress(csv().encode())[:-20], "run.toml": RUN.replace("clicks.csv", "clicks.csv.gz")},
    ),
    "no gzip": Bad(
        ("clicks.csv.gz: ", "header"), {"clicks.csv.gz": csv(), "run.toml": RUN.replace("clicks.csv", "clicks.csv.gz")}
    ),
    "truncated parquet": Bad(
        ("b.parquet", "Parquet"),
        {"b.parquet": b"PAR1" + bytes(100), "run.toml": RUN.replace("clicks.csv", "b.parquet")},
    ),
    "ragged line": Bad(
        ("clicks.csv, row 12: ", "4 values", "3 columns", "quote"), {"clicks.csv": csv(price={12: "1,5"})}
    ),
    "bad UTF-8": Bad(
        ("clicks.csv, row 1, column 'tags': ", "UTF-8", "iconv"),
        {
            "clicks.csv": csv("click tags").encode().replace(b"a|b", b"a|\xff", 1),
            "run.toml": run_file('{kind = "bag", name = "tags", separator = "|"}'),
        },
    ),
    "header twice": Bad(
        ("clicks.csv, column 'item': two columns", "rename"), {"clicks.csv": csv().replace("price", "item", 1)}
    ),
    "empty file": Bad(("clicks.csv", "empty"), {"clicks.csv": ""}),
    "header alone": Bad(("clicks.csv", "no rows"), {"clicks.csv": csv().splitlines()[0] + "\n"}),
    "a second file without the column": Bad(
        ("more.csv", "'item'"),
        {"more.csv": "click,price\n1,2\n", "run.toml": RUN.replace('"clicks.csv"', '"clicks.csv", "more.csv"')},
    ),
    "columns of two types": Bad(
        ("b.parquet", "column 'item'", "string"),
        {
            "a.parquet": pa.table({"click": [0, 1], "item": [1, 2]}),
            "b.parquet": pa.table({"click": [0, 1], "item": ["x", "y"]}),
            "run.toml": run_file(ITEM).replace('"clicks.csv"', '"a.parquet", "b.parquet"'),
        },
    ),
    # ---- splits -------------------------------------------------------------------------------------------------
    "validation by time without rows": Bad(
        ("clicks.csv: the validation part has no rows", "data.valid_from"), timed(data='valid_from = "2031-01-01"')
    ),
    "validation by time without training rows": Bad(
        ("clicks.csv: the training part has no rows", "data.valid_from"), timed(data='valid_from = "2001-01-01"')
    ),
    "validation time without a time column": Bad(
        ("data.valid_from", "schema.time"), {"run.toml": run_file(ITEM, PRICE, data='valid_from = "2024-03-10"')}
    ),
    "validation time that is none": Bad(("data.valid_from", "'soon'"), timed(data='valid_from = "soon"')),
    "validation twice": Bad(
        ("data.valid", "data.valid_fraction"),
        {"run.toml": run_file(ITEM, PRICE, data='valid = ["clicks.csv"]\nvalid_fraction = 0.1')},
    ),
    "early stopping without validation": Bad(
        ("train.stop_after", "data.valid_fraction"), argv=(*TRAIN, "--set", "train.stop_after=2")
    ),
    # ---- run files ----------------------------------------------------------------------------------------------
    "no run file": Bad(("missing.toml", "sfctr init"), argv=("train", "missing.toml")),
    "not TOML": Bad(("run.toml, line 4, ", "not TOML"), {"run.toml": RUN.replace("[schema]", "[schema")}),
    "not UTF-8": Bad(("run.toml", "UTF-8"), {"run.toml": b"\xff\xfe"}),
    "unknown field": Bad(
        ("run.toml: train.batchsize", "did you mean 'batch_size'"), {"run.toml": RUN.replace("batch_size", "batchsize")}
    ),
    "unknown section": Bad(
        ("run.toml: trian", "did you mean 'train'"), {"run.toml": RUN.replace("[train]", "[trian]")}
    ),
    "unknown kind of feature": Bad(
        ("run.toml: schema.features.item.kind", "did you mean 'categorical'"),
        {"run.toml": RUN.replace("categorical", "categoric")},
    ),
    "ill-typed field": Bad(
        ("run.toml: train.batch_size", '"16"', "a whole number"), {"run.toml": RUN.replace("= 16", '= "16"')}
    ),
    "batch size 0": Bad(("train.batch_size is 0", "at least 1"), {"run.toml": RUN.replace("= 16", "= 0")}),
    "label missing": Bad(("run.toml: schema.label is missing",), {"run.toml": RUN.replace('label = "click"\n', "")}),
    "autocast typo": Bad(("train.autocast", '"bf61"', '"bf16"'), argv=(*TRAIN, "--set", "train.autocast=bf61")),
    "bad --set": Bad(("train.batch_size", "path=value"), argv=(*TRAIN, "--set", "train.batch_size")),
    "--set of an unknown field": Bad(
        ("train.bach_size", "did you mean 'batch_size'"), argv=(*TRAIN, "--set", "train.bach_size=3")
    ),
    "--set of a wrong type": Bad(
        ("train.epochs", '"many"', "a whole number"), argv=(*TRAIN, "--set", "train.epochs=many")
    ),
    "bad size": Bad(("tiers.ram", "2 gigs", "2GB"), argv=(*TRAIN, "--set", "tiers.ram=2 gigs")),
    "too little memory": Bad(("tiers.ram is 100 bytes", "buckets"), argv=(*TRAIN, "--set", "tiers.ram=100B")),
    "unknown model": Bad(("'dcnv3'", "did you mean 'dcnv2'"), argv=(*TRAIN, "--set", "model.name=dcnv3")),
    "unknown argument of a model": Bad(("'lr'", "'hidden'"), argv=(*TRAIN, "--set", "model.args.hidden=[8]")),
    "a model's module that is not there": Bad(
        ("'nowhere:Net'", "importable"), argv=(*TRAIN, "--set", "model.name=nowhere:Net")
    ),
    "attention without a sequence": Bad(("'din'", "target"), argv=(*TRAIN, "--set", "model.name=din")),
    "unknown device": Bad(("train.device", '"warp"'), argv=(*TRAIN, "--set", "train.device=warp")),
    "a feature that reads the label": Bad(
        ("'answer'", "label column 'click'"),
        {"run.toml": run_file('{kind = "categorical", name = "answer", column = "click"}')},
    ),
    "a feature twice": Bad(("'item'", "twice"), {"run.toml": run_file(ITEM, ITEM)}),
    "boundaries that fall": Bad(
        ("'price'", "boundaries"), {"run.toml": run_file('{kind = "bucket", name = "price", boundaries = [3.0, 2.0]}')}
    ),
    "mean without std": Bad(("'price'", "std"), {"run.toml": run_file('{kind = "dense", name = "price", mean = 1.0}')}),
    "two key types in a table": Bad(
        ("table 'item'", "int64", "string"),
        {
            "clicks.csv": csv("click item tags"),
            "run.toml": run_file(INT64_ITEM, '{kind = "bag", name = "tags", table = "item", dtype = "string"}'),
        },
    ),
    "strings of a table kept by one feature alone": Bad(
        ("run.toml: schema: table 'item'", "'item'", "'tags'", "keep_strings"),
        {
            "run.toml": run_file(
                ITEM.replace("}", ", keep_strings = true}"), '{kind = "bag", name = "tags", table = "item"}'
            )
        },
    ),
    "a table that no feature uses": Bad(
        ("table 'user'", "no feature", "remove it"),
        {"run.toml": f'{RUN}[[tables]]\nname = "user"\ndim = 0\nlinear = {{kind = "sgd"}}\n'},
    ),
    "a table that is wrong": Bad(
        ("table 'item'", "dim is 99999", "4096"), {"run.toml": f'{RUN}[[tables]]\nname = "item"\ndim = 99999\n'}
    ),
    "unknown zone": Bad(
        ("'hour'", "'Mars/Olympus'", "Europe/Paris"),
        timed()
        | {
            "run.toml": run_file(
                '{kind = "time_part", name = "hour", part = "hour", column = "day", zone = "Mars/Olympus"}'
            )
        },
    ),
    "grouping by a column that is not kept": Bad(
        ("train.group_by", "'item'", "schema.keep"), argv=(*TRAIN, "--set", "train.group_by=item")
    ),
    # ---- runs ---------------------------------------------------------------------------------------------------
    "run directory that is a file": Bad(("clicks.csv is a file", "--run DIR"), argv=(*TRAIN, "--run", "clicks.csv")),
    "evaluate what is no run": Bad(("nowhere", "sfctr train"), argv=("evaluate", "nowhere", "--data", "clicks.csv")),
    "predict with a directory that is no run": Bad(
        ("empty/last", "was trained"),
        {"empty/x": ""},
        ("predict", "empty", "--data", "clicks.csv", "--out", "p.parquet"),
    ),
    "inspect a file": Bad(("clicks.csv", "sfctr train"), argv=("inspect", "clicks.csv")),
    "a directory as run file": Bad(("clicks: is a directory",), {"clicks/a.csv": csv()}, ("train", "clicks")),
    "export what is no run": Bad(("nowhere", "sfctr train"), argv=("export", "nowhere", "--out", "x")),
    # ---- init and synth -----------------------------------------------------------------------------------------
    "init without the label": Bad(
        ("'clik'", "did you mean 'click'", "--label"), argv=("init", "clicks.csv", "--label", "clik")
    ),
    "init with a label that is none": Bad(
        ("clicks.csv, row 2, column 'price': ", "1.5", "0, 1"), argv=("init", "clicks.csv", "--label", "price")
    ),
    "init with a time that is not there": Bad(
        ("'itemm'", "did you mean 'item'", "--time"), argv=("init", "clicks.csv", "--label", "click", "--time", "itemm")
    ),
    "init on nothing": Bad(("'nothing.csv'",), argv=("init", "nothing.csv", "--label", "click")),
    "synth of no rows": Bad(("--rows is 'none'", "10M"), argv=("synth", "criteo", "--rows", "none", "--out", "x")),
    "synth over files": Bad(
        ("x/train already holds files",), {"x/train/a": ""}, ("synth", "criteo", "--rows", "1K", "--out", "x")
    ),
}


def write(path: Path, content: Content) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, pa.Table):
        pq.write_table(content, path)
    else:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())


@pytest.mark.parametrize("name", BAD_INPUTS)
def test_it_is_refused_in_one_line_that_names_the_place(sfctr, tmp_path, name):
    bad = BAD_INPUTS[name]
    for file, content in ({"clicks.csv": csv(), "run.toml": RUN} | dict(bad.files)).items():
        write(tmp_path / file, content)
    done = sfctr(*bad.argv)
    assert (done.code, done.out) == (2, ""), done.err
    assert done.err.startswith("sfctr: error: ")
    assert done.err.count("\n") == 1, done.err
    assert [word for word in bad.words if word not in done.err] == [], done.err


def test_the_table_has_at_least_thirty_cases_and_each_begins_from_what_works(sfctr, tmp_path):
    write(tmp_path / "clicks.csv", csv())
    write(tmp_path / "run.toml", RUN)
    assert len(BAD_INPUTS) >= 30
    assert sfctr(*TRAIN).code == 0


def test_a_run_that_was_refused_leaves_nothing_behind(sfctr, tmp_path):
    write(tmp_path / "clicks.csv", csv(click={3: "yes"}))
    write(tmp_path / "run.toml", RUN)
    assert sfctr(*TRAIN).code == 2
    assert not (tmp_path / "runs" / "run").exists()
