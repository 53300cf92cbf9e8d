"""A small click log with every kind of feature, and runs over it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from sfctr.spec.optim import FTRL, SGD, Adagrad, Adam, AdamW, RowWiseAdagrad
from sfctr.spec.runfile import Data, Model, RunFile, Train
from sfctr.spec.schema import Bag, Bucket, Categorical, Cross, Dense, Schema, Sequence, TimePart
from sfctr.spec.tables import Normal, Table

ROWS = 400


def click_log(rows: int = ROWS, seed: int = 3) -> pd.DataFrame:
    draw = np.random.default_rng(seed)

    def lists(longest: int, top: int) -> list[list[int]]:
        return [draw.integers(0, top, draw.integers(0, longest + 1)).tolist() for _ in range(rows)]

    tags = lists(4, 20)
    item = pd.array(draw.integers(-5, 30, rows), dtype="Int64")
    item[draw.random(rows) < 0.1] = pd.NA
    return pd.DataFrame(
        {
            "click": draw.integers(0, 2, rows),
            "like": pd.array(np.where(draw.random(rows) < 0.2, None, draw.integers(0, 2, rows)), dtype="Int64"),
            "weight": draw.uniform(0.5, 2, rows),
            "item": item,
            "user": [f"u{number}" for number in draw.integers(0, 50, rows)],
            "hour": draw.integers(0, 24, rows),
            "tags": tags,
            "tag_weights": [draw.uniform(0, 2, len(row)).tolist() for row in tags],
            "words": lists(5, 25),
            "history": lists(6, 30),
            "price": np.where(draw.random(rows) < 0.1, np.nan, draw.normal(size=rows)),
            "at": pd.Timestamp("2024-05-01") + pd.to_timedelta(draw.integers(0, 10**6, rows), unit="s"),
        }
    )


FEATURES = [
    Categorical("item"),
    Categorical("user"),
    Categorical("hour"),
    Categorical("hashed", column="item"),
    Bucket("price_cut", column="price", boundaries=[-1.0, 0.0, 1.0]),
    TimePart("weekday", part="weekday", column="at"),
    Cross("both", of=["user", "hour"]),
    Bag("tags", table="tag", weights="tag_weights", pooling="mean"),
    Bag("sums", column="tags", table="tag", pooling="sum"),
    Bag("words", pooling="mean"),
    Sequence("history", table="item", max_length=4, target="item"),
    Dense("price"),
]
SCHEMA = Schema(label="click", features=FEATURES, weight="weight")

FAST = 0.02
OPTIMIZERS: dict[str, Any] = {
    "item": Adam(lr=FAST),
    "user": SGD(lr=0.5, momentum=0.9, nesterov=True),
    "hashed": Adagrad(lr=0.05, initial_accumulator=0.1),
    "price_cut": SGD(lr=0.5, weight_decay=0.01),
    "weekday": AdamW(lr=FAST, bias_correction="row", weight_decay=0.1),
    "both": RowWiseAdagrad(lr=0.05, weight_decay=0.01),
    "tag": Adam(lr=FAST, bias_correction="row", weight_decay=1e-3),
    "words": AdamW(lr=FAST),
}
LINEAR = FTRL(l1=1e-3, l2=0.1)
TABLES = (
    *(
        Table(name, dim=4, optimizer=optimizer, linear=LINEAR, buckets=11 if name == "hashed" else None)
        for name, optimizer in OPTIMIZERS.items()
    ),
    Table("hour", dim=4, dense=True, num_rows=24, l2=0.05, linear_l2=0.05, linear=Adam(), init=Normal(std=0.1)),
)


@pytest.fixture
def log() -> pd.DataFrame:
    return click_log()


@pytest.fixture
def run() -> RunFile:
    """Every kind of feature and every row optimizer, small and at high learning rates so that errors show."""
    return RunFile(
        data=Data(),
        schema=SCHEMA,
        tables=TABLES,
        model=Model(name="deepfm", args={"hidden": [8]}),
        train=Train(batch_size=64, optimizer=Adam(lr=FAST), torch_threads=1, epochs=2),
    )
