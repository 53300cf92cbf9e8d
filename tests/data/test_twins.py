"""A dirty CSV and the Parquet file that says the same give the same bits, and ids keep all of theirs."""

from __future__ import annotations

import gzip
from datetime import datetime
from decimal import Decimal

import numpy as np
import pyarrow as pa

from sfctr.data import open_source
from sfctr.spec.runfile import Data
from sfctr.spec.schema import Bag, Bucket, Categorical, Cross, Dense, Schema, Sequence, TimePart

SIX = [0, 2**63 - 1, 2**63, 2**64 - 1, 1234567890123456789, 1234567890123456788]

CSV = """\ufeffclick,view,w,id,user,city,price,score,cents,vec,tags,tag_w,hist,hist_cat,ok,when,junk\r
1,,0.5,0,-5,"Paris, ""FR""\",12.5,0.1,1.10,1 2.5,a|b,0.5|2,1|2||3,x|y|z|w,true,2014-03-30T00:59:59Z,"q\r
q"\r
\r
0,0.25,1,9223372036854775807,7,,,nan,,,,,,,,,\r
,1,2e0,9223372036854775808,,NULL,1e3,-2,-0.05,0 -1,"",,NULL,,false,2014-03-30 02:30:00+01:00,\r
0,0,1,18446744073709551615,7,"two
lines",+7,16777217,99999.99,.5 5.,NA|NULL|é,1|2|3,4|5|6,x|NULL|z,TRUE,2014-03-30 01:00:00.5,\r
true,1.0,3,1234567890123456789,8,NA, 4 ,3e-45,0.00,1 1,a,0,,,False,2014-12-31,\r
False,0,0,1234567890123456788,9,é,0,-0.0,7.00,2 2,|,1|1,7,x,true,2014-06-15T12:00:00+0530,\r
"""

PARQUET = {
    "click": pa.array([True, False, None, False, True, False]),
    "view": pa.array([None, 0.25, 1, 0, 1, 0]),
    "w": pa.array([0.5, 1, 2, 1, 3, 0], pa.float32()),
    "id": pa.array(SIX, pa.uint64()),
    "user": pa.array([-5, 7, None, 7, 8, 9], pa.int16()),
    "city": pa.array(['Paris, "FR"', None, "", "two\nlines", "NA", "é"]).dictionary_encode(),
    "price": pa.array([12.5, None, 1000, 7, 4, 0], pa.float32()),
    "score": pa.array([0.1, np.nan, -2, 16777216, 3e-45, -0.0], pa.float32()),
    "cents": pa.array([Decimal(c) if c else None for c in ("1.10", None, "-0.05", "99999.99", "0.00", "7.00")]),
    "vec": pa.array([[1, 2.5], None, [0, -1], [0.5, 5], [1, 1], [2, 2]], pa.list_(pa.float64())),
    "tags": pa.array([["a", "b"], None, [], ["NA", None, "é"], ["a"], ["", None]], pa.large_list(pa.string())),
    "tag_w": pa.array([[0.5, 2], None, [], [1, 2, 3], [0], [1, 1]], pa.list_(pa.float32())),
    "hist": pa.array([[1, 2, None, 3], [], None, [4, 5, 6], None, [7]], pa.list_(pa.int32())),
    "hist_cat": pa.array([list("xyzw"), None, [], ["x", None, "z"], [], ["x"]]),
    "ok": pa.array([True, None, False, True, False, True]),
    "when": pa.array(
        [
            datetime(2014, 3, 30, 0, 59, 59),
            None,
            datetime(2014, 3, 30, 1, 30),
            datetime(2014, 3, 30, 1, 0, 0, 500_000),
            datetime(2014, 12, 31),
            datetime(2014, 6, 15, 6, 30),
        ],
        pa.timestamp("us", "UTC"),
    ),
}


def schema(separator: str | None) -> Schema:
    return Schema(
        label=("click", "view"),
        weight="w",
        time="when",
        keep=("user", "city"),
        features=[
            Categorical("id"),
            Categorical("user", dtype="int64"),
            Categorical("city"),
            Categorical("ok", dtype="bool"),
            Dense("price", transform="log1p", standardize=True),
            Dense("score"),
            Dense("cents"),
            Dense("vec", size=2),
            Bucket("score_level", column="score", boundaries=(-1.0, 0.1, 100.0)),
            Bag("tags", weights="tag_w", pooling="mean", separator=separator),
            Sequence("hist", max_length=2, separator=separator),
            Sequence("hist_cat", max_length=2, separator=separator, aligned_with="hist"),
            TimePart("hour", part="hour", column="when", zone="Europe/Paris"),
            TimePart("how", part="hour_of_week", column="when"),
            Cross("pair", of=("user", "city")),
        ],
    )


def everything(data, separator, **options) -> dict[str, list]:
    """Every array of the batches, by name, with its bits."""
    found: dict[str, list] = {}
    given = Data(null_values=("NULL",), **options)
    with open_source(data, schema(separator), batch_size=4, options=given, shuffle=False) as source:
        for b in source:
            parts = {"labels": b.labels, "mask": b.label_mask, "weight": b.weight, "time": b.time, "rows": b.rows}
            parts |= dict(b.dense) | {f"keep {n}": a for n, a in b.keep.items()}
            for name, k in b.keys.items():
                parts |= {f"{name} {part}": getattr(k, part) for part in ("keys", "offsets", "nulls", "weights")}
            for name, array in parts.items():
                found.setdefault(name, []).append(
                    None if array is None else (array.dtype, array.tolist(), array.tobytes())
                )
    return found


def test_a_dirty_csv_and_its_parquet_twin_give_the_same_bits(text_file, parquet):
    expected = everything(parquet(PARQUET), None)
    assert everything(text_file(CSV), "|") == expected
    assert everything(text_file(gzip.compress(CSV.encode()), "rows.csv.gz"), "|") == expected
    assert everything(pa.table(PARQUET), None) == expected


def test_six_neighbouring_ids_stay_six_keys(text_file, parquet, read, keys_of):
    for path in (text_file(CSV), parquet(PARQUET)):
        assert keys_of(read(path, Categorical("id")), "id") == SIX


def test_random_rows_give_the_same_bits_in_both_formats(text_file, parquet):
    rng = np.random.default_rng(5)
    floats = np.round(rng.lognormal(0, 4, 3000), 3).astype(np.float32)
    doubles = rng.normal(size=3000) * 10.0 ** rng.integers(-9, 9, 3000)
    ids = rng.integers(0, 2**64, 3000, dtype=np.uint64)
    words = [f"w{v}" if v % 3 else "" for v in rng.integers(0, 50, 3000)]
    columns = {"f": floats, "d": doubles, "i": ids, "s": words, "y": rng.integers(0, 2, 3000)}
    lines = [
        list(columns),
        *zip((str(v) for v in floats), (repr(float(v)) for v in doubles), ids, words, columns["y"], strict=True),
    ]
    features = [
        Dense("f", transform="log1p", standardize=True),
        Dense("d", standardize=True),
        Categorical("i"),
        Categorical("s"),
        Bucket("b", column="f", boundaries=tuple(np.unique(floats[:50]).astype(float))),
    ]
    found = []
    for path in (text_file([list(line) for line in lines]), parquet(columns)):
        with open_source(path, Schema(label="y", features=features), shuffle=False) as source:
            batch = next(source.batches())
        found.append([a.tobytes() for a in (*batch.dense.values(), *(k.keys for k in batch.keys.values()))])
    assert found[0] == found[1]
