"""Every model that the data allow agrees with plain torch on real rows: Frappe, the Criteo sample and MovieLens-100K.

The files are not part of the project (their terms do not allow it); where one is absent its tests are skipped.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from sfctr.models.registry import BUILT_IN
from sfctr.spec.runfile import Data, Model, RunFile, Train
from sfctr.spec.schema import Bag, Categorical, Dense, Schema, Sequence, TimePart
from sfctr.verify import verify_run

ROOT = Path(__file__).parents[2]
SHARED = ROOT.parent / "shared" / "data"
ROWS = 4000

FRAPPE = ("user", "item", "daytime", "weekday", "isweekend", "homework", "cost", "weather", "country", "city")
DATA = {
    "frappe": (
        SHARED / "frappe_x1" / "train.parquet",
        Schema(label="label", features=[Categorical(name, table="ids") for name in FRAPPE]),
    ),
    "criteo": (
        SHARED / "criteo_sample_60k" / "rows.parquet",
        Schema(
            label="label",
            features=[Dense(f"i{n}", transform="log1p") for n in range(1, 14)]
            + [Categorical(f"c{n}") for n in range(1, 27)],
        ),
    ),
    "movielens": (
        ROOT / "examples" / "data" / "movielens" / "movielens.parquet",
        Schema(
            label="label",
            features=[
                Categorical("user"),
                Categorical("item"),
                TimePart("hour", part="hour", column="timestamp"),
                Bag("genres", pooling="mean"),
                Sequence("history", table="item", max_length=20, target="item"),
            ],
        ),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", DATA)
@pytest.mark.parametrize("model", BUILT_IN)
def test_a_run_on_real_rows_agrees_with_plain_torch(name, model):
    file, schema = DATA[name]
    if not file.is_file():
        pytest.skip(f"{file} is not there")
    if model == "din" and not any(isinstance(feature, Sequence) for feature in schema.features):
        pytest.skip(f"{name} has no history")
    run = RunFile(data=Data(), schema=schema, model=Model(name=model), train=Train(batch_size=512, torch_threads=1))
    findings = list(verify_run(run, steps=5, quick=True, data=pd.read_parquet(file).head(ROWS)))
    assert [str(finding.difference) for finding in findings if not finding.holds] == []
    assert {finding.steps for finding in findings} == {5}
