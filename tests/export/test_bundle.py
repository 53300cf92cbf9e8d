"""An exported model scores as the run does, from its files alone; what is not whole is refused."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from torch import nn

import sfctr
from sfctr.models.registry import BUILT_IN
from sfctr.spec.errors import CheckpointError, ModelError

RATE = sfctr.Adagrad(lr=0.1)
SCHEMA = sfctr.Schema(
    label="click",
    features=[
        sfctr.Dense("price", transform="log1p", standardize=True),
        sfctr.Categorical("item"),
        sfctr.Categorical("city", keep_strings=True),
        sfctr.Categorical("agent"),
        sfctr.Bucket("hour", boundaries=(6.0, 12.0, 18.0)),
        sfctr.Bag("tags", pooling="mean", weights="shares"),
        sfctr.Sequence("history", table="item", max_length=4, target="item"),
        sfctr.Categorical("position", serve_as=1),
    ],
)
TABLES = [
    sfctr.Table("item", dim=4, optimizer=RATE, linear=RATE, admit_after=2, unseen="rare"),
    sfctr.Table("city", dim=4, optimizer=RATE, linear=RATE),
    sfctr.Table("agent", dim=4, optimizer=RATE, linear=RATE, buckets=7),
    sfctr.Table("hour", dim=4, num_rows=4, dense=True, linear=RATE),
    sfctr.Table("tags", dim=4, optimizer=RATE, linear=RATE, dtype="bf16"),
]


def clicks(rows: int, seed: int = 0) -> pd.DataFrame:
    random = np.random.default_rng(seed)
    lists = [random.integers(0, 9, random.integers(0, 4)).tolist() for _ in range(rows)]
    return pd.DataFrame(
        {
            "click": random.integers(0, 2, rows),
            "price": random.lognormal(0, 1, rows),
            "item": pd.array(random.integers(-5, 60, rows), "Int64"),
            "city": random.choice(["Bern", "Genève", "Zürich", None], rows),
            "agent": random.choice([f"agent {n}" for n in range(40)], rows),
            "hour": random.choice([3.0, 7.5, 12.0, 23.0, np.nan], rows),
            "tags": lists,
            "shares": [random.random(len(row)).tolist() for row in lists],
            "history": [random.integers(-5, 80, random.integers(0, 7)).tolist() for _ in range(rows)],
            "position": random.integers(1, 5, rows),
        }
    ).assign(item=lambda frame: frame["item"].mask(random.random(rows) < 0.1))


@pytest.fixture(autouse=True)
def in_tmp(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)


def trained(model: str | nn.Module = "dcnv2", **options: object) -> sfctr.Run:
    settings = {"batch_size": 64, "quiet": True, "torch_threads": 1, "negatives_keep": 0.7, **options}
    return sfctr.fit(clicks(400), SCHEMA, TABLES, model=model, **settings)  # type: ignore[arg-type]


def scores(table) -> np.ndarray:
    return table["score"].to_numpy()


@pytest.mark.parametrize("model", sorted(BUILT_IN))
def test_scores_are_those_of_the_run(model: str) -> None:
    with trained(model) as run:
        run.export("out")
        exported = sfctr.load_export("out")
        for size in (1, 2, 300):
            data = clicks(size, seed=1).drop(columns="click")
            expected, found = run.predict(data), exported.predict(data, batch_size=128)
            assert found["row"].equals(expected["row"])
            np.testing.assert_allclose(scores(found), scores(expected), rtol=0, atol=1e-6)
        assert np.ptp(scores(expected)) > 0.01


def test_autocast_goes_with_the_model() -> None:
    with trained("dlrm", autocast="bf16") as run:
        run.export("out")
        data = clicks(100, seed=2)
        found = sfctr.load_export("out").predict(data)
        np.testing.assert_allclose(scores(found), scores(run.predict(data)), rtol=0, atol=1e-6)


def test_no_rows_give_no_scores() -> None:
    with trained("lr") as run:
        run.export("out")
    assert sfctr.load_export("out").predict(clicks(3).iloc[:0].astype({"item": "Int64"})).num_rows == 0


def test_reading_needs_no_trainer() -> None:
    with trained("lr") as run:
        run.export("out")
    code = (
        "import sys, sfctr; sfctr.load_export('out');"
        "sys.exit(any(name.startswith(('sfctr.train', 'sfctr.lookahead', 'sfctr.models')) for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("name", ["export.json", "model.pt2", "item.parquet"])
def test_an_export_that_is_not_whole_or_damaged_is_refused_by_file(name: str) -> None:
    with trained("lr") as run:
        run.export("out")
    path = Path("out") / name
    whole = bytearray(path.read_bytes())
    path.write_bytes(whole[:40] + bytes([whole[40] ^ 255]) + whole[41:])
    with pytest.raises(CheckpointError, match=rf"out/{name}: "):
        sfctr.load_export("out")
    path.unlink()
    with pytest.raises(CheckpointError, match=name):
        sfctr.load_export("out")


def test_another_version_is_refused() -> None:
    with trained("lr") as run:
        run.export("out")
    facts = json.loads(Path("out/export.json").read_text())
    Path("out/export.json").write_text(json.dumps(facts | {"version": 99}))
    with pytest.raises(CheckpointError, match="use the release that wrote it"):
        sfctr.load_export("out")


class Choosy(nn.Module):
    """Looks at values to choose its way, which torch.export cannot follow."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 1)

    def forward(self, features):
        price = features["price"]
        return self.linear(price)[:, 0] if price.sum() > 0 else self.linear(-price)[:, 0]


def test_a_model_that_cannot_be_exported_is_named_and_its_rows_can_be() -> None:
    with trained(Choosy()) as run, pytest.raises(ModelError, match=r"torch.export cannot take model Choosy: .*--rows"):
        run.export("out")
    assert not Path("out/export.json").exists()


def test_rows_open_in_other_tools_with_one_line() -> None:
    duckdb, polars = pytest.importorskip("duckdb"), pytest.importorskip("polars")
    with trained("fm") as run:
        run.export("out")
        held = run.store.num_rows("city")
    [(count, known)] = duckdb.sql("select count(*), count(key) from 'out/city.parquet'").fetchall()
    assert (count, known) == (held, held - 1)
    texts = polars.read_parquet("out/city.parquet").filter(polars.col("key").is_not_null())["key"].to_list()
    assert sorted(texts) == ["Bern", "Genève", "Zürich"]


def test_no_path_of_this_machine_is_in_the_model() -> None:
    with trained() as run:
        run.export("out")
    with zipfile.ZipFile("out/model.pt2") as archive:
        assert not [
            name for name in archive.namelist() if str(Path(sfctr.__file__).parent).encode() in archive.read(name)
        ]
        assert {name.split("/")[0] for name in archive.namelist()} == {"archive"}
