"""The batches from a row of an epoch on are those of the whole pass, whatever the source and its rules."""

from __future__ import annotations

from functools import cache

import polars as pl
import pyarrow as pa
import pytest

from sfctr.data.sources import open_training
from sfctr.spec.runfile import Data
from sfctr.spec.schema import Bag, Categorical, Dense, Schema, TimeColumn

ROWS, BATCH = 20_000, 1000  # more than a chunk, and a block
SCHEMA = Schema(
    label="y",
    features=[
        Categorical("id"),
        Categorical("word", keep_strings=True),
        Bag("tags"),
        Dense("x", standardize=True),
    ],
    keep=("id",),
    time=TimeColumn("t", format="s"),
)


@cache
def table() -> pa.Table:
    ids = [None if i % 13 == 0 else i * 2654435761 % 5000 for i in range(ROWS)]
    return pa.table(
        {
            "y": [int(i % 7 == 0) for i in range(ROWS)],
            "id": ids,
            "word": [f"w{i % 301}" for i in range(ROWS)],
            "tags": [list(range(i % 4)) for i in range(ROWS)],
            "x": [float(i % 97) for i in range(ROWS)],
            "t": list(range(ROWS)),
        }
    )


KINDS = {
    "parquet": lambda rows, parquet, text_file: str(parquet(rows, row_group_size=9000)),
    "csv": lambda rows, parquet, text_file: str(
        text_file(
            [
                rows.column_names,
                *([*r[:3], "|".join(map(str, r[3])), *r[4:]] for r in zip(*rows.to_pydict().values(), strict=True)),
            ]
        )
    ),
    "pandas": lambda rows, parquet, text_file: rows.to_pandas().astype({"id": "Int64"}),
    "polars": lambda rows, parquet, text_file: pl.from_arrow(rows),
    "arrow": lambda rows, parquet, text_file: rows,
    "reader": lambda rows, parquet, text_file: rows.to_reader(max_chunksize=7000),
    "dicts": lambda rows, parquet, text_file: rows.to_pylist(),
    "generator": lambda rows, parquet, text_file: iter(rows.to_pylist()),
}
RULES = {
    "all": {},
    "thinned": {"negatives_keep": 0.3},
    "hashed": {"valid_fraction": 0.2},
    "hashed by column": {"valid_fraction": 0.2, "valid_by": "id"},
    "by time": {"valid_from": "16000"},
}


def bits(batch):
    arrays = [batch.rows, batch.labels, batch.time, *batch.dense.values(), *batch.keep.values()]
    arrays += [a for keys in batch.keys.values() for a in (keys.keys, keys.offsets, keys.nulls)]
    return [None if a is None else (a.shape, a.tobytes()) for a in arrays]


def batches_of(data, options, epoch, start_row, schema=SCHEMA):
    """Of a source that has given nothing yet, as in a process that goes on."""
    source, held_out = open_training(options, schema, batch_size=BATCH, seed=5, data=data)
    with source:
        found = [bits(batch) for batch in source.batches(epoch, start_row=start_row)]
        if held_out is not None:
            held_out.close()
        return found, source.schema


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_source_goes_on_at_a_batch(kind, shuffle, parquet, text_file):
    def data():
        return KINDS[kind](table(), parquet, text_file)

    options, schema = Data(shuffle=shuffle), SCHEMA
    if kind == "csv":
        schema = Schema(
            label="y",
            features=[*(f for f in SCHEMA.features if f.name != "tags"), Bag("tags", separator="|")],
            keep=SCHEMA.keep,
            time=SCHEMA.time,
        )
    whole, resolved = batches_of(data(), options, 1, 0, schema)
    for start in (7, len(whole)):
        assert batches_of(data(), options, 1, start * BATCH, resolved)[0] == whole[start:]


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("rule", RULES)
def test_every_way_to_choose_rows_goes_on_at_a_batch(rule, shuffle):
    options = Data(shuffle=shuffle, **RULES[rule])
    whole, resolved = batches_of(table(), options, 2, 0)
    for start in (5, len(whole) - 1, len(whole)):
        assert batches_of(table(), options, 2, start * BATCH, resolved)[0] == whole[start:]


def test_texts_that_another_source_kept_are_known(parquet):
    source, _ = open_training(Data(), SCHEMA, batch_size=BATCH, seed=0, data=table())
    with source:
        source.restore_strings({"word": {7: "seven"}, "elsewhere": {8: "eight"}, "id": {9: "nine"}})
        assert dict(source.strings("word")) == {7: "seven"}
        next(source.batches())
        assert source.strings("word")[7] == "seven" and len(source.strings("word")) > 1
