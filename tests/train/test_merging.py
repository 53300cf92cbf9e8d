"""Whatever parts of the rows the ranks evaluate, all are told what one process would have found."""

from __future__ import annotations

import math
from contextlib import nullcontext

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch
from ranks import in_ranks
from sklearn.metrics import log_loss, roc_auc_score

from sfctr.data import open_source
from sfctr.spec.batch import KEEP_NULL, Batch
from sfctr.spec.errors import ModelError
from sfctr.spec.schema import Categorical, Dense, Schema
from sfctr.train.auc import ScoreRuns
from sfctr.train.log import Stretch
from sfctr.train.merging import from_first, to_first
from sfctr.train.metrics import Metrics, sigmoid
from sfctr.train.predictions import predicted
from sfctr.train.scoring import Labels, Scorer, evaluate_source

ROWS = 1000
SCHEMA = Schema(
    label=("y", "z"),
    weight="w",
    keep=("user", "shop"),
    features=[Dense("x", indicator=False), Categorical("shop", dtype="string", keep_strings=True)],
)
LABELS = Labels(("y", "z"), (0, 1))


def table(rows: int = ROWS) -> pa.Table:
    rng = np.random.default_rng(1)
    shop = [None if i % 50 == 0 else f"shop {i * i % 7} of part {i * 8 // rows}" for i in range(rows)]
    return pa.table(
        {
            "x": np.round(rng.normal(size=rows), 1),  # with ties
            "y": [None if i % 9 == 0 else int(v) for i, v in enumerate(rng.random(rows) < 0.3)],
            "z": (rng.random(rows) < 0.5).astype(np.int8),
            "w": rng.integers(0, 4, rows) / 3,
            "user": rng.integers(0, 40, rows),
            "shop": shop,
        }
    )


class CountingView:
    """A view that finds the rows of shops with an even key."""

    def __init__(self) -> None:
        self.unseen: dict[str, tuple[int, int]] = {}
        self.sizes: list[int] = []

    def features(self, batch: Batch) -> dict[str, torch.Tensor]:
        missed, total = self.unseen.get("shop", (0, 0))
        keys = batch.keys["shop"].keys
        self.unseen["shop"] = missed + int((keys % np.uint64(2)).sum()), total + len(keys)
        self.sizes.append(batch.size)
        return {"x": torch.from_numpy(batch.dense["x"])}

    def reset(self) -> None:
        self.unseen = {}


class Twice(torch.nn.Module):
    """Logits x and 1 - 2x."""

    def forward(self, features: dict[str, torch.Tensor]) -> torch.Tensor:
        return torch.cat([features["x"], 1 - 2 * features["x"]], dim=1)


def scorer() -> Scorer:
    return Scorer(Twice(), CountingView(), 2, nullcontext)


def evaluated(peers, data, **more):
    with open_source(data, SCHEMA, batch_size=64, shuffle=False, part=(peers.rank, peers.size)) as source:
        return evaluate_source(
            source, scorer(), LABELS, shift=0.25, group_by="user", slices=("shop",), peers=peers, **more
        )


def close(found, wanted) -> bool:
    """Equal, but for the last bits of sums of weights, which are added in another order."""
    if isinstance(wanted, dict):
        return found.keys() == wanted.keys() and all(close(found[name], wanted[name]) for name in wanted)
    if isinstance(wanted, float):
        return math.isclose(found, wanted, rel_tol=1e-12)
    return found == wanted


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_all_ranks_are_told_what_one_process_finds(size):
    data = table()
    with open_source(data, SCHEMA, batch_size=64, shuffle=False) as source:
        alone = evaluate_source(source, scorer(), LABELS, shift=0.25, group_by="user", slices=("shop",))
    results = in_ranks(size, lambda peers: evaluated(peers, data))
    assert all(result == results[0] for result in results)
    assert close(results[0], alone)
    assert results[0]["unseen"] == alone["unseen"] and results[0]["labels"]["y"]["rows"] == alone["labels"]["y"]["rows"]
    assert any(name.startswith("shop 1 of part 7") for name in results[0]["labels"]["y"]["slices"]["shop"])


def test_more_ranks_than_rows_score_empty_batches_and_agree():
    data = table(3)
    results = in_ranks(4, lambda peers: evaluated(peers, data))
    assert [result["rows"] for result in results] == [3] * 4 and all(result == results[0] for result in results)


def test_the_figures_are_those_of_scikit_learn_on_all_rows():
    data = table()
    x, w, user = (np.asarray(data[name], np.float64) for name in ("x", "w", "user"))
    x = x.astype(np.float32).astype(np.float64)
    w = w.astype(np.float32).astype(np.float64)
    found = in_ranks(3, lambda peers: evaluated(peers, data))[2]["labels"]
    for name, logit in (("y", x + 0.25), ("z", (1 - 2 * x.astype(np.float32)).astype(np.float64) + 0.25)):
        y = np.array([math.nan if v is None else v for v in data[name].to_pylist()])
        known = ~np.isnan(y)
        y, score, weight, who = y[known], logit[known], w[known], user[known]
        assert abs(found[name]["auc"] - roc_auc_score(y, score, sample_weight=weight)) < 1e-9
        assert abs(found[name]["logloss"] - log_loss(y, sigmoid(score), sample_weight=weight)) < 1e-9
        assert abs(found[name]["calibration"] - (sigmoid(score) * weight).sum() / (y * weight).sum()) < 1e-9
        area = total = 0.0
        for one in np.unique(who):
            own = (who == one) & (weight > 0)
            if len(np.unique(y[own])) == 2:
                area += weight[own].sum() * roc_auc_score(y[own], score[own], sample_weight=weight[own])
                total += weight[own].sum()
        assert abs(found[name]["gauc"] - area / total) < 1e-9


def rows_of(peers, rows=ROWS):
    return slice(peers.rank * rows // peers.size, (peers.rank + 1) * rows // peers.size)


@pytest.mark.parametrize("memory", [32 << 20, 4096])
def test_metrics_without_weights_come_to_the_same_bits_and_leave_other_ranks_none(memory, tmp_path):
    rng = np.random.default_rng(0)
    logits, labels = np.round(rng.normal(size=(ROWS, 1)), 2), (rng.random((ROWS, 1)) < 0.4).astype(np.float32)
    users = rng.integers(0, 30, ROWS).astype(np.uint64)

    def filled(rows):
        metrics = Metrics(["y"], group_by="user", memory=memory, directory=str(tmp_path))
        metrics.update(logits[rows], labels[rows], np.ones_like(labels[rows], np.bool_), None, {"user": users[rows]})
        return metrics

    def body(peers):
        with filled(rows_of(peers)) as metrics:
            metrics.move_to_first(peers)
            moved = metrics.result()
            metrics.move_to_first(peers)  # there is nothing left to move
            return moved, metrics.result()

    with filled(slice(None)) as whole:
        expected = whole.result()
    first, *others = in_ranks(3, body)
    assert first == (expected, expected)
    assert all(result["rows"] == 0 and result["auc"] is None for pair in others for result in pair)


def test_scores_go_over_in_pieces(monkeypatch):
    monkeypatch.setattr("sfctr.train.auc._PIECE_ROWS", 10)
    scores = np.arange(95.0)

    def body(peers):
        with ScoreRuns(memory=32 * 40) as runs:
            runs.add(scores + 100 * peers.rank, np.full(95, float(peers.rank == 1)))
            runs.move_to_first(peers)
            return [found.auc.tolist() for found in runs.areas()], peers.moved.get("metrics", 0)

    (first, _), (second, moved) = in_ranks(2, body)
    assert first == [[1.0]] and second == []
    assert moved == 95 * 32


def test_soft_labels_on_one_rank_leave_all_without_an_auc():
    def body(peers):
        with Metrics(["y"]) as metrics:
            labels = np.full((4, 1), 0.5 if peers.rank == 1 else 1.0, np.float32)
            metrics.update(np.zeros((4, 1)), labels, np.ones((4, 1), np.bool_), None, {})
            metrics.move_to_first(peers)
            return from_first(peers, metrics.result)

    for result in in_ranks(3, body):
        assert result["rows"] == 12 and result["auc"] is None and "neither 0 nor 1" in result["undefined"]["auc"]


def test_an_error_on_one_rank_ends_all():
    def body(peers):
        with open_source(table(), SCHEMA, batch_size=64, shuffle=False, part=(peers.rank, 2)) as source:
            one = scorer()
            if peers.rank == 1:
                one.model = torch.nn.Module()
                one.model.forward = lambda features: torch.full((len(features["x"]), 2), math.nan)
            evaluate_source(source, one, LABELS, peers=peers)

    with pytest.raises(ModelError, match="scored a row with nan"):
        in_ranks(2, body)


def test_numbers_keep_their_bits_on_the_way():
    values = {"a": [0.1, math.inf, 5e-324, None], "b": {"c": 2**64 - 1}, "d": "text"}
    assert in_ranks(2, lambda peers: from_first(peers, lambda: values)) == [values, values]
    assert int(KEEP_NULL) < 2**64


def test_pieces_come_to_the_first_rank_in_the_order_of_ranks():
    def body(peers):
        taken: list[list[int]] = []
        pieces = [np.full(peers.rank, 10 * peers.rank + at, np.uint8) for at in range(peers.rank)]
        to_first(peers, pieces, lambda piece: taken.append(piece.tolist()))
        return taken

    assert in_ranks(4, body) == [[[10], [20] * 2, [21] * 2, [30] * 3, [31] * 3, [32] * 3], [], [], []]


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_predictions_of_all_ranks_are_those_of_one_process(size, parquet_of):
    path = parquet_of(table(501))

    def body(peers):
        with open_source(
            path, SCHEMA, batch_size=32, shuffle=False, labels="none", part=(peers.rank, peers.size)
        ) as source:
            return [(rows.copy(), logits) for rows, logits in predicted(source, scorer(), 0.5, peers=peers)]

    first, *others = in_ranks(size, body)
    assert others == [[]] * (size - 1)
    x = np.asarray(table(501)["x"], np.float32)
    assert np.array_equal(np.concatenate([rows for rows, _ in first]), np.arange(501))
    wanted = np.stack([x, 1 - 2 * x], axis=1).astype(np.float64) + 0.5
    assert np.concatenate([logits for _, logits in first]).tobytes() == wanted.tobytes()
    assert max(len(rows) for rows, _ in first) <= 32


@pytest.fixture
def parquet_of(tmp_path):
    def write(rows: pa.Table) -> str:
        pa.parquet.write_table(rows, tmp_path / "rows.parquet", row_group_size=40)
        return str(tmp_path / "rows.parquet")

    return write


def steps(lengths, seed=0):
    rng = np.random.default_rng(seed)
    return [
        (
            n,
            float(rng.random()),
            np.round(rng.normal(size=n), 1),
            (rng.random(n) < 0.5).astype(np.float64),
            rng.random(n),
        )
        for n in lengths
    ]


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("lengths", [[40], [40, 0, 30], [60, 60, 60, 60], [1, 1, 1], [100, 1], [0]])
def test_the_line_of_all_ranks_is_that_of_one_process(size, lengths, monkeypatch):
    monkeypatch.setattr(Stretch, "LAST_ROWS", 100)
    taken = steps(lengths)

    def stretch(rank=0, size=1):
        found = Stretch()
        for rows, loss, *columns in taken:
            own = (
                slice(0, 0) if rank == 0 and size > 2 else slice(rank, None, size)
            )  # of three or four the first has none
            if size > 2 and rank == 1:
                own = np.flatnonzero(np.isin(np.arange(rows) % size, (0, 1)))
            found.add(rows, loss / size, *(column[own] for column in columns))
        return found

    one = stretch()
    if not one:
        assert not any(in_ranks(size, lambda peers: bool(stretch(peers.rank, size))))
        return
    lines = in_ranks(size, lambda peers: stretch(peers.rank, size).line(peers))
    assert all(line == lines[0] for line in lines)
    assert close(lines[0], one.line())
    kept = sorted(x for scores, *_ in one._scores for x in scores.tolist())
    whole = in_ranks(size, lambda peers: stretch(peers.rank, size).of_all(peers))
    assert sorted(x for scores, *_ in whole[0]._scores for x in scores.tolist()) == kept
    assert size == 1 or not any(other._scores for other in whole[1:])


def test_a_stretch_goes_on_in_another_number_of_ranks(monkeypatch):
    monkeypatch.setattr(Stretch, "LAST_ROWS", 50)
    before, after = steps([30, 30], 1), steps([20, 10], 2)

    def add(stretch, some, rank, size):
        for rows, loss, *columns in some:
            stretch.add(rows, loss / size, *(column[rank::size] for column in columns))

    def first_half(peers):
        stretch = Stretch()
        add(stretch, before, peers.rank, peers.size)
        return stretch.of_all(peers).state()

    state = in_ranks(3, first_half)[0]

    def second_half(peers):
        stretch = Stretch()
        stretch.restore(state, peers.rank)
        assert stretch
        add(stretch, after, peers.rank, peers.size)
        return stretch.line(peers)

    whole = Stretch()
    add(whole, [*before, *after], 0, 1)
    for size in (1, 2):
        for line in in_ranks(size, second_half):
            assert close(line, whole.line())
