"""Run files are read with every mistake named by its path, and written so that they read back the same."""

from __future__ import annotations

import tomllib
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfctr.spec.errors import ConfigError, SchemaError
from sfctr.spec.optim import FTRL, SGD, Adagrad, Adam, AdamW, Plateau, RowWiseAdagrad, Schedule
from sfctr.spec.runfile import Checkpoints, Data, Export, Model, RunFile, Train
from sfctr.spec.runfile_text import checked, decode_run_file, render_run_file
from sfctr.spec.schema import Bag, Bucket, Categorical, Cross, Dense, Schema, Sequence, TimeColumn, TimePart
from sfctr.spec.tables import Normal, Table, Tiers, Uniform

SMALL = """
[data]
train = ["a.parquet"]
[schema]
label = "click"
features = [{kind = "dense", name = "price"}, {kind = "categorical", name = "item"}]
[[tables]]
name = "item"
"""


def test_a_short_file_becomes_the_structs_with_their_defaults() -> None:
    run = decode_run_file(SMALL, "run.toml")
    assert run == RunFile(
        data=Data(train=("a.parquet",)),
        schema=Schema(label="click", features=(Dense("price"), Categorical("item"))),
        tables=(Table("item"),),
    )


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (
            'name = "price"}',
            'name = "price", sise = 2}',
            "schema.features.price.sise is not known (did you mean 'size'?)",
        ),
        ("[data]", "[train]\nbatchsize = 4\n[data]", "train.batchsize is not known (did you mean 'batch_size'?)"),
        ("[data]", "[trian]\n[data]", "trian is not known (did you mean 'train'?)"),
        ("[data]", '[train]\nepochs = "x"\n[data]', 'train.epochs is "x" and must be a whole number'),
        ("[data]", "[train]\nepochs = true\n[data]", "train.epochs is true and must be a whole number"),
        ("[data]", "train = 3\n[data]", "train is 3 and must be a table"),
        (
            '["a.parquet"]',
            '["a.parquet", 3]',
            'data.train is ["a.parquet", 3] and must be a list, each entry text',
        ),
        (
            'name = "price"}',
            "name = 'price', clip = [1]}",
            "schema.features.price.clip is [1] and must be a list of 2 numbers",
        ),
        (
            'kind = "dense"',
            'kind = "densed"',
            'schema.features.price.kind is "densed" and must be "dense", "categorical", "bucket", "time_part", "cross",'
            ' "bag" or "sequence" (did you mean \'dense\'?)',
        ),
        ('kind = "dense", name = "price"', 'kind = "dense"', "schema.features.0.name is missing and must be text"),
        ('label = "click"', "", "schema.label is missing and must be text or a list, each entry text"),
        (
            "[data]",
            "[train.optimizer]\nlr = 1.0\n[data]",
            'train.optimizer.kind is missing and must be "sgd", "adagrad",',
        ),
        (
            "[data]",
            '[train]\nwatch = "acu"\n[data]',
            'train.watch is "acu" and must be "auc", "logloss", "ne" or "gauc" (did you mean \'auc\'?)',
        ),
        ("[data]", "[train]\nclip = -1\n[data]", "train.clip is -1.0 and must be above 0"),
        ('name = "item"\n', 'name = "item"\ndim = -3\n', "tables.item: table 'item': dim is -3 and must be 1 to 4096"),
    ],
)
def test_a_mistake_is_one_line_with_the_file_the_path_and_the_remedy(old: str, new: str, words: str) -> None:
    text = SMALL.replace(old, new, 1)
    assert text != SMALL
    with pytest.raises(ConfigError) as refused:
        decode_run_file(text, "run.toml")
    assert str(refused.value).startswith(f"run.toml: {words}")
    assert "\n" not in str(refused.value)


def test_a_schema_error_keeps_its_kind_and_words() -> None:
    with pytest.raises(SchemaError, match=r"^run.toml: schema: feature 'item' is there twice"):
        decode_run_file(SMALL.replace('"price"', '"item"'), "run.toml")


def test_a_syntax_error_names_line_and_column() -> None:
    with pytest.raises(ConfigError, match=r"^run.toml, line 2, column 7: this is not TOML: expected"):
        decode_run_file("[data]\ntrain [\n", "run.toml")
    with pytest.raises(ConfigError, match=r"^run.toml: this is not TOML: invalid value at the end of the file$"):
        decode_run_file("train = [", "run.toml")


@pytest.mark.parametrize(
    ("override", "path", "value"),
    [
        ("train.batch_size=8192", "train.batch_size", 8192),
        ("train.clip=1", "train.clip", 1.0),
        ("train.optimizer.lr=0.5", "train.optimizer.lr", 0.5),
        ("train.plateau.factor=0.5", "train.plateau", Plateau(factor=0.5)),
        ("train.optimizer.kind=sgd", "train.optimizer", SGD(lr=1e-3)),
        ("tables.item.dim=32", "tables.0.dim", 32),
        ("tables.0.dim=32", "tables.0.dim", 32),
        ("tables.tag.dim=8", "tables.1", Table("tag", dim=8)),
        ("schema.features.item.keep_strings=true", "schema.features.1.keep_strings", True),
        ("schema.features.0.name=cost", "schema.features.0.name", "cost"),
        ("schema.features.item.serve_as=3", "schema.features.1.serve_as", 3),
        ("schema.features.item.serve_as=phone", "schema.features.1.serve_as", "phone"),
        ("data.valid_from=2014-10-29", "data.valid_from", "2014-10-29"),
        ("data.valid_from=14102900", "data.valid_from", "14102900"),
        ("data.train=logs/*.csv", "data.train", ("logs/*.csv",)),
        ('data.train=["x", "y"]', "data.train", ("x", "y")),
        ("data.null_values=0", "data.null_values", ("0",)),
        ("data.separator=;", "data.separator", ";"),
        ("model.args.hidden=[8, 4]", "model.args", {"hidden": [8, 4]}),
        ("model.args.tower.act=relu", "model.args", {"tower": {"act": "relu"}}),
    ],
)
def test_an_override_sets_the_field_of_that_path(override: str, path: str, value: object) -> None:
    found: Any = decode_run_file(SMALL, "run.toml", [override])
    for step in path.split("."):
        found = found[int(step)] if step.isdecimal() else getattr(found, step)
    assert found == value


def test_an_override_without_a_value_gives_the_default_back() -> None:
    text = SMALL.replace("[data]", "[data]\nvalid_fraction = 0.1")
    run = decode_run_file(text, "run.toml", ["data.valid_fraction=", "data.valid_from=2020-01-01"])
    assert (run.data.valid_fraction, run.data.valid_from) == (None, "2020-01-01")


def test_a_part_of_an_override_may_be_quoted() -> None:
    text = SMALL.replace('"item"', '"a.b"')
    assert decode_run_file(text, "run.toml", ['tables."a.b".dim=4']).tables[0].dim == 4


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("train.batch=1", "train.batch is not known (did you mean 'batch_size'?)"),
        ("train.batch_size=big", 'train.batch_size is "big" and must be a whole number'),
        ("schema.features.pric.size=2", "schema.features.pric is not known (did you mean 'price'?)"),
        ("schema.features.9.size=2", "schema.features.9 is not known; there are 2 entries"),
        ("schema.label.x=2", 'schema.label is "click" and has no parts'),
        ("train.batch_size", 'an override is written "path=value", such as train.batch_size=8192'),
        ("train.optimizer.kind=ftrl", 'train.optimizer.kind is "ftrl" and must be "sgd", "adagrad", "adam" or "adamw"'),
    ],
)
def test_a_wrong_override_is_refused_and_quoted(override: str, words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        decode_run_file(SMALL, "run.toml", [override])
    assert str(refused.value) == f"override '{override}': {words}"


def test_a_rendered_file_shows_every_field_of_every_section() -> None:
    text = render_run_file(decode_run_file(SMALL, "run.toml"))
    sections = {
        "data": Data,
        "schema": Schema,
        "model": Model,
        "train": Train,
        "train.schedule": Schedule,
        "checkpoint": Checkpoints,
    }
    for name, cls in sections.items():
        body = text.split(f"[{name}]\n")[1].split("\n[")[0]
        for field in cls.__struct_fields__:
            if field in ("optimizer", "schedule"):
                continue
            assert any(line.removeprefix("# ").startswith(f"{field} = ") for line in body.splitlines()), (name, field)


@pytest.mark.parametrize(
    ("field", "words"),
    [
        ({"every_steps": 0}, "checkpoint.every_steps is 0 and must be at least 1"),
        ({"every_minutes": -0.5}, "checkpoint.every_minutes is -0.5 and must be at least 0"),
        ({"every_minutes": float("nan")}, "checkpoint.every_minutes is nan and must be at least 0"),
        ({"keep": 0}, "checkpoint.keep is 0 and must be at least 1"),
        ({"full_every": 0}, "checkpoint.full_every is 0 and must be at least 1"),
    ],
)
def test_options_of_checkpoints_are_checked(field: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        Checkpoints(**field)
    assert str(refused.value) == words


def test_an_unset_field_is_a_commented_line_that_may_be_uncommented() -> None:
    text = render_run_file(decode_run_file(SMALL, "run.toml"))
    assert "\n# clip = 0.5 " in text
    assert decode_run_file(text.replace("# clip = 0.5", "clip = 0.5"), "run.toml").train.clip == 0.5


def test_comments_stand_above_what_they_speak_of() -> None:
    comments = {
        "": "head",
        "schema.features.item": "26 distinct",
        "train.clip": "two\nlines",
        "tables.item": "big \x07",
        "schema.features": "left out: id",
    }
    lines = render_run_file(decode_run_file(SMALL, "run.toml"), comments).splitlines()

    def after(comment: str) -> str:
        return lines[lines.index(comment) + 1]

    assert lines[0] == "# head"
    assert after("    # 26 distinct").startswith('    {kind = "categorical", name = "item"')
    assert after("# two") == "# lines"
    assert after("# lines").startswith("# clip = ")
    assert after("# big \\u0007") == "[[tables]]"
    assert after("# left out: id") == "features = ["


def test_a_run_built_in_python_is_checked_like_a_file() -> None:
    good = RunFile(
        data=Data(train=("a",)),
        schema=Schema(label="y", features=[Dense("x", clip=(0, 1))]),
        model=Model(args={"hidden": (np.int64(8), 4)}),
        train=Train(seed=np.int64(64)),  # type: ignore[arg-type]
    )
    assert checked(good).model.args == {"hidden": [8, 4]}
    assert type(checked(good).train.seed) is int
    bad = msgspec.structs.replace(good, data=Data(train="a.parquet"))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r'^data.train is "a.parquet" and must be a list, each entry text$'):
        checked(bad)
    with pytest.raises(ConfigError, match=r"^model.args.act is <function .*, which a run file cannot hold"):
        checked(msgspec.structs.replace(good, model=Model(args={"act": checked})))
    with pytest.raises(ConfigError, match=r"^model.args.act is None, which a run file cannot hold"):
        checked(msgspec.structs.replace(good, model=Model(args={"act": None})))
    with pytest.raises(ConfigError, match=r"^train.watch is missing and must be"):
        checked(msgspec.structs.replace(good, train=Train(watch=None)))  # type: ignore[arg-type]


def test_a_preset_stands_first_and_decides_what_the_paper_decides() -> None:
    device = "tiers.device=2MB"
    run = decode_run_file(SMALL, "x", ["preset=scalefreectr", device, "train.window=7", "tiers.policy=lfu"])
    decided = run.with_preset()
    assert (decided.train.window, decided.tiers.policy, decided.tiers.device) == (1, "lru", "2MB")
    assert decided.with_preset() == decided
    assert render_run_file(decided).startswith('preset = "scalefreectr" ')
    assert decode_run_file(render_run_file(decided), "x") == decided
    assert decode_run_file(SMALL, "x").with_preset().train.window == Train().window
    with pytest.raises(ConfigError, match=r'^x: preset = "scalefreectr" caches rows on the device and tiers.device is'):
        decode_run_file(SMALL, "x", ["preset=scalefreectr"])
    with pytest.raises(ConfigError, match=r"did you mean 'scalefreectr'\?"):
        decode_run_file(SMALL, "x", ["preset=scalefree", device])


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("train.seed=99999999999999999999999", r"train.seed is .* and must be a number of 64 bits"),
        ("train.threads=100000", "train.threads is 100000 and must be at most 1024"),
        ("train.threads=many", 'train.threads is "many" and must be a whole number or "auto"'),
        ("train.torch_threads=100000", "train.torch_threads is 100000 and must be at most 1024"),
        ("train.min_delta=nan", "min_delta is nan and must be >= 0"),
        ('train.loss_labels=["click", "click"]', "train.loss_labels names a label twice"),
        ("train.schedule.final=1.5", "final is 1.5 and must be at most 1"),
    ],
)
def test_numbers_out_of_bounds_are_refused(override: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        decode_run_file(SMALL, "x", [override])


@pytest.mark.parametrize(("option", "value"), [("threads", "many"), ("torch_threads", "many"), ("threads", None)])
def test_threads_that_are_no_number_are_refused_and_auto_is_named(option: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f'train.{option} is {value!r} and must be a whole number or "auto"'):
        Train(**{option: value})


def test_torchs_own_choice_of_threads_is_none() -> None:
    assert Train(torch_threads=None).torch_threads is None


# ---- a strategy over run files ------------------------------------------------------------------------------------

NUMBERS = st.floats(allow_nan=False)
SHARES = st.floats(0, 1, exclude_min=True, exclude_max=True)
POSITIVE = st.floats(0, 1e300, exclude_min=True)
COUNTS = st.integers(1, 2**40)
TEXTS = st.text(max_size=8)
NAMES = st.text(min_size=1, max_size=8).filter(lambda n: not n.endswith((".mask", ".linear")))
KEYS = st.sampled_from(["auto", "int64", "uint64", "bool", "string"])
LISTS = st.lists(TEXTS, max_size=3).map(tuple)


def maybe(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | strategy


MOMENTS = {"beta1": st.floats(0, 0.999), "beta2": st.floats(0, 0.999), "eps": POSITIVE, "weight_decay": POSITIVE}
DENSE_OPTIMIZERS = st.one_of(
    st.builds(SGD, lr=POSITIVE, momentum=st.floats(0, 0.999), weight_decay=POSITIVE),
    st.builds(Adagrad, lr=POSITIVE, eps=POSITIVE, initial_accumulator=POSITIVE),
    st.builds(Adam, lr=POSITIVE, **MOMENTS, bias_correction=st.sampled_from(["global", "row"])),
    st.builds(AdamW, lr=POSITIVE, **MOMENTS),
)
OPTIMIZERS = DENSE_OPTIMIZERS | st.builds(RowWiseAdagrad, lr=POSITIVE) | st.builds(FTRL, lr=POSITIVE, l1=POSITIVE)
BOUNDS = st.tuples(NUMBERS, NUMBERS).map(sorted).map(tuple)
FEATURES = {
    "dense": lambda name: st.builds(
        Dense,
        st.just(name),
        column=maybe(TEXTS),
        size=COUNTS,
        transform=st.sampled_from(["none", "log1p"]),
        clip=maybe(BOUNDS),
        indicator=st.booleans(),
        serve_as=maybe(NUMBERS),
    ),
    "categorical": lambda name: st.builds(
        Categorical,
        st.just(name),
        table=maybe(NAMES),
        dtype=KEYS,
        serve_as=maybe(st.integers(-(2**63), 2**64 - 1) | TEXTS | st.booleans()),
    ),
    "bucket": lambda name: st.builds(
        Bucket,
        st.just(name),
        boundaries=st.sets(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=4)
        .map(sorted)
        .map(tuple),
    ),
    "time_part": lambda name: st.builds(
        TimePart, st.just(name), part=st.sampled_from(["hour", "weekday"]), column=TEXTS, format=maybe(TEXTS)
    ),
    "cross": lambda name: st.builds(Cross, st.just(name), of=st.lists(TEXTS, min_size=2, max_size=3).map(tuple)),
    "bag": lambda name: st.builds(
        Bag, st.just(name), separator=maybe(TEXTS), pooling=st.sampled_from(["sum", "mean"]), max_length=maybe(COUNTS)
    ),
    "sequence": lambda name: st.builds(Sequence, st.just(name), dtype=KEYS, max_length=COUNTS),
}
LABEL = "\x00 no feature reads this"
SCHEMAS = st.builds(
    Schema,
    label=st.just(LABEL) | st.just((LABEL, LABEL + "2")),
    features=st.lists(NAMES, min_size=1, max_size=4, unique=True).flatmap(
        lambda names: st.tuples(
            *(st.sampled_from(sorted(FEATURES)).flatmap(lambda k, n=n: FEATURES[k](n)) for n in names)
        )
    ),
    weight=maybe(TEXTS),
    time=maybe(TEXTS | st.builds(TimeColumn, TEXTS, format=maybe(TEXTS))),
    keep=LISTS,
)
TABLES = st.lists(
    st.builds(
        Table,
        NAMES,
        dim=st.integers(1, 4096),
        init=st.builds(Normal, std=POSITIVE, mean=st.floats(-1e300, 1e300)) | st.just(Uniform(-1.0, 2.0)),
        optimizer=OPTIMIZERS,
        linear=maybe(OPTIMIZERS),
        buckets=maybe(COUNTS),
    )
    | st.builds(Table, NAMES, num_rows=COUNTS, dense=st.just(True), l2=POSITIVE),
    max_size=3,
).map(tuple)
ARGS = st.recursive(
    st.booleans() | st.integers() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
RUNS = st.builds(
    RunFile,
    data=st.builds(
        Data,
        train=LISTS,
        valid_from=maybe(TEXTS),
        separator=maybe(st.sampled_from([",", "\t", '"', "\\"])),
        null_values=LISTS,
        shuffle=maybe(st.booleans()),
        negatives_keep=SHARES,
        memory=COUNTS | st.sampled_from(["1GB", "2 MiB"]),
    ),
    schema=SCHEMAS,
    tables=TABLES,
    model=st.builds(Model, name=TEXTS, args=st.dictionaries(TEXTS, ARGS, max_size=3)),
    train=st.builds(
        Train,
        epochs=COUNTS,
        max_steps=maybe(COUNTS),
        seed=st.integers(-(2**63), 2**63),
        optimizer=DENSE_OPTIMIZERS,
        schedule=st.builds(Schedule, warmup_steps=COUNTS, decay=st.sampled_from(["none", "cosine"]), final=SHARES),
        plateau=maybe(st.builds(Plateau, factor=SHARES)),
        clip=maybe(POSITIVE),
        min_delta=st.floats(0, 1e300),
        watch=st.sampled_from(["auc", "gauc"]),
        progressive=st.booleans(),
        window=st.integers(0, 64),
    ),
    checkpoint=st.builds(
        Checkpoints,
        every_steps=maybe(COUNTS),
        every_minutes=st.floats(0, 1e300),
        at_end=st.booleans(),
        keep=COUNTS,
        full_every=COUNTS,
    ),
    export=st.builds(Export, delta_every=maybe(COUNTS)),
    tiers=st.builds(
        Tiers,
        device=maybe(COUNTS),
        ram=maybe(COUNTS | st.just("2GB")),
        disk=maybe(st.booleans() | st.text(min_size=1, max_size=8)),
        policy=st.sampled_from(["lru", "lfu"]),
    ),
)


@settings(max_examples=150)
@given(RUNS, st.dictionaries(st.sampled_from(["", "train", "train.clip", "schema.features"]), TEXTS))
def test_what_is_written_reads_back_as_the_same_run(run: RunFile, comments: dict[str, str]) -> None:
    text = render_run_file(run, comments)
    tomllib.loads(text)
    assert decode_run_file(text, "run.toml") == run
    assert checked(run) == run
