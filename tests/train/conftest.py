"""A small planted data set: the label follows from an item, a list of tags and a number."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from sfctr.spec.schema import Bag, Categorical, Dense, Schema


def planted_rows(rows: int, seed: int = 0) -> pd.DataFrame:
    """Rows of one planted truth; `seed` draws rows alone."""
    truth = np.random.default_rng(99)
    item_effect, tag_effect = truth.normal(0, 1.5, 40), truth.normal(0, 1, 12)
    rng = np.random.default_rng(seed)
    item = rng.integers(0, 40, rows)
    tags = [rng.integers(0, 12, count).tolist() for count in rng.integers(0, 4, rows)]
    price = rng.normal(size=rows)
    logit = item_effect[item] + price + np.array([tag_effect[t].sum() for t in tags]) - 1
    clicked = rng.random(rows) < 1 / (1 + np.exp(-logit))
    return pd.DataFrame(
        {
            "item": item,
            "tags": tags,
            "price": price,
            "click": clicked.astype(np.int64),
            "user": rng.integers(0, 30, rows),
        }
    )


@pytest.fixture(scope="session")
def planted():
    return planted_rows


@pytest.fixture
def schema() -> Schema:
    return Schema(
        label="click",
        features=[Categorical("item"), Bag("tags"), Dense("price", indicator=False)],
        keep=("user",),
    )
