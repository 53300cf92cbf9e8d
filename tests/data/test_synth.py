"""The synthetic log has Criteo's shape, is the same for a seed however it is divided, and knows its best AUC."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, roc_auc_score

from sfctr.data.synth import SynthReport, synth_criteo
from sfctr.data.synth_figures import IDS, NUMBERS
from sfctr.data.synth_model import BLOCK, LEVELS, MISSING_ID, World, blocks_of, expected_rank_share
from sfctr.spec.errors import ConfigError

ROWS = 80_000
# Share of the ten commonest ids among rows that have one, and distinct ids, in 80,000 rows of the real log.
REAL = {
    "C1": (0.393, 24_777),
    "C2": (0.149, 6_440),
    "C3": (0.076, 8_356),
    "C4": (0.699, 2_567),
    "C5": (0.552, 6_273),
    "C7": (0.117, 4_789),
    "C8": (0.343, 922),
    "C10": (0.393, 21_397),
    "C11": (0.471, 9_325),
    "C12": (0.266, 13_755),
    "C14": (0.789, 1_084),
    "C15": (0.196, 3_270),
    "C18": (0.909, 424),
    "C20": (0.383, 26_716),
    "C21": (0.408, 16_156),
    "C22": (0.393, 23_486),
    "C23": (0.469, 7_889),
    "C24": (0.095, 5_773),
}


@pytest.fixture(scope="module")
def ids() -> dict[str, npt.NDArray[np.int64]]:
    world = World(click_rate=0.03)
    blocks = [world.block(0, first, count) for first, count in blocks_of(0, ROWS)]
    return {c.name: np.concatenate([b.ids[c.name] for b in blocks]) for c in IDS}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, SynthReport]:
    folder = tmp_path_factory.mktemp("synth")
    return folder, synth_criteo(folder, 60_000, seed=3, valid_fraction=0.5, scale=0.01, click_rate=0.1)


@pytest.mark.parametrize("column", IDS, ids=lambda column: column.name)
def test_ids_are_as_skewed_and_as_often_missing_as_the_real_ones(
    column: object, ids: dict[str, npt.NDArray[np.int64]]
) -> None:
    (figures,) = [c for c in IDS if c is column]
    keys = ids[figures.name]
    there = keys[keys != MISSING_ID]
    assert np.mean(keys == MISSING_ID) == pytest.approx(figures.missing, abs=0.01)
    _, counts = np.unique(there, return_counts=True)
    shares = np.sort(counts)[::-1] / len(there)
    assert shares[0] == pytest.approx(figures.top, abs=0.01)
    assert len(counts) <= figures.cardinality
    if figures.name in REAL:
        top_10, distinct = REAL[figures.name]
        assert shares[:10].sum() == pytest.approx(top_10, abs=0.02)
        assert len(counts) == pytest.approx(distinct, rel=0.15)


def test_columns_that_are_missing_together_are_missing_in_the_same_rows(
    ids: dict[str, npt.NDArray[np.int64]],
) -> None:
    gone = {name: keys == MISSING_ID for name, keys in ids.items()}
    assert np.array_equal(gone["C1"], gone["C22"])
    assert np.array_equal(gone["C14"], gone["C23"])
    assert not np.array_equal(gone["C1"], gone["C14"])


@pytest.mark.parametrize("column", [IDS[1], IDS[3], IDS[7], IDS[24]], ids=lambda column: column.name)
def test_the_probabilities_of_all_ranks_sum_to_one_and_are_what_is_drawn(
    column: object, ids: dict[str, npt.NDArray[np.int64]]
) -> None:
    (figures,) = [c for c in IDS if c is column]
    share = expected_rank_share(figures, np.arange(1, figures.cardinality + 1))
    assert share.sum() == pytest.approx(1.0)
    keys = ids[figures.name]
    _, counts = np.unique(keys[keys != MISSING_ID], return_counts=True)
    expected_distinct = np.sum(-np.expm1(-share * counts.sum()))
    assert len(counts) == pytest.approx(expected_distinct, rel=0.05)


def test_ids_are_forty_bits_and_distinct_ranks_are_distinct_ids() -> None:
    from sfctr.data.synth_model import _permuted

    ranks = np.arange(200_000, dtype=np.uint64)
    keys = _permuted(ranks.copy())
    assert len(np.unique(keys)) == len(ranks)
    assert keys.max() < 2**40


def test_numbers_have_the_real_quantiles_and_missing_shares() -> None:
    block = World(click_rate=0.03).block(0, 0, ROWS)
    for column in NUMBERS:
        values = block.numbers[column.name]
        assert np.mean(np.isnan(values)) == pytest.approx(column.missing, abs=0.01)
        _, low, quarter, middle, upper, high, *_ = column.values
        found = np.nanquantile(values, [0.1, 0.25, 0.5, 0.75, 0.9])
        assert found == pytest.approx([low, quarter, middle, upper, high], rel=0.15, abs=1.0)


def _table(folder: Path, files: tuple[str, ...]) -> pa.Table:
    return pa.concat_tables([pq.read_table(folder / file) for file in files])


def _logit_levels(report: SynthReport, click_rate: float) -> tuple[World, npt.NDArray[np.int64]]:
    world = World(click_rate=click_rate, scale=report.scale)
    first, end = report.train_rows, report.train_rows + report.valid_rows
    return world, np.concatenate([world.block(report.seed, *piece).level for piece in blocks_of(first, end)])


def test_the_reported_figures_are_those_of_the_true_probabilities(written: tuple[Path, SynthReport]) -> None:
    folder, report = written
    label = _table(folder, report.valid)["label"].to_numpy()
    world, level = _logit_levels(report, 0.1)
    assert report.best_auc == pytest.approx(roc_auc_score(label, world.click_rates[level]), abs=1e-12)
    assert report.best_logloss == pytest.approx(log_loss(label, world.click_rates[level]), abs=1e-12)
    assert report.click_rate == label.mean()
    entropy = log_loss(label, np.full(len(label), label.mean()))
    assert report.best_ne == pytest.approx(report.best_logloss / entropy)
    assert msgspec.json.decode((folder / "synth.json").read_bytes(), type=SynthReport) == report


def test_a_model_that_knows_the_true_logit_reaches_the_best_auc_and_no_recalibration_helps(
    written: tuple[Path, SynthReport],
) -> None:
    folder, report = written
    label = _table(folder, report.valid)["label"].to_numpy()
    _, level = _logit_levels(report, 0.1)
    logit = (level * 32 / LEVELS - 16)[:, None]
    oracle = LogisticRegression(C=1e6).fit(logit, label)
    assert roc_auc_score(label, oracle.decision_function(logit)) == pytest.approx(report.best_auc, abs=1e-12)
    assert oracle.coef_[0, 0] == pytest.approx(1.0, abs=0.06)
    assert oracle.intercept_[0] == pytest.approx(0.0, abs=0.12)


def test_true_probabilities_are_calibrated_in_every_tenth(written: tuple[Path, SynthReport]) -> None:
    folder, report = written
    label = _table(folder, report.valid)["label"].to_numpy()
    world, level = _logit_levels(report, 0.1)
    order = np.argsort(level)
    for tenth in np.array_split(order, 10):
        expected = world.click_rates[level[tenth]].mean()
        assert abs(label[tenth].mean() - expected) < 4 * np.sqrt(expected / len(tenth))


def test_the_click_rate_is_the_one_asked_for(written: tuple[Path, SynthReport]) -> None:
    assert written[1].train_click_rate == pytest.approx(0.1, abs=0.006)


def test_rows_depend_on_the_seed_and_not_on_the_division_into_files(
    written: tuple[Path, SynthReport], tmp_path: Path
) -> None:
    folder, report = written
    other = synth_criteo(
        tmp_path, 60_000, seed=3, valid_fraction=0.5, scale=0.01, click_rate=0.1, rows_per_file=BLOCK + 77
    )
    assert len(other.train) == 2
    assert _table(tmp_path, other.train).equals(_table(folder, report.train))
    assert _table(tmp_path, other.valid).equals(_table(folder, report.valid))
    assert (other.best_auc, other.best_logloss) == (report.best_auc, report.best_logloss)


def test_another_seed_is_another_day_of_the_same_world(written: tuple[Path, SynthReport], tmp_path: Path) -> None:
    folder, report = written
    other = synth_criteo(tmp_path, 5_000, seed=4, scale=0.01, click_rate=0.1)
    mine, theirs = _table(folder, report.train), _table(tmp_path, other.train)
    assert not mine.slice(0, 4_500).equals(theirs)
    assert mine["C6"].unique().sort().equals(theirs["C6"].unique().sort())


def test_columns_have_criteos_names_and_types(written: tuple[Path, SynthReport]) -> None:
    folder, report = written
    schema = pq.read_schema(folder / report.train[0])
    assert schema.names == ["label", *(f"I{i}" for i in range(1, 14)), *(f"C{i}" for i in range(1, 27))]
    assert schema.field("I1").type == pa.int32()
    assert schema.field("C1").type == pa.int64()


def test_scale_shrinks_the_cardinality_of_large_columns_alone(written: tuple[Path, SynthReport]) -> None:
    assert written[1].cardinalities["C1"] == 458_332
    assert written[1].cardinalities["C9"] == 62
    assert written[1].cardinalities["C16"] == 100


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"rows": 1}, "synth: rows is 1 and must be 2 to"),
        ({"rows": 10, "click_rate": 0.0}, "synth: click_rate is 0.0 and must be 0.0001 to 0.9"),
        ({"rows": 10, "valid_fraction": 1.0}, "synth: valid_fraction is 1.0 and must be 0.0 to 0.99"),
        ({"rows": 10, "rows_per_file": 0}, "synth: rows_per_file is 0 and must be 1 to"),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, float], words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"^{words}"):
        synth_criteo(tmp_path, **options)  # type: ignore[arg-type]


def test_a_folder_that_already_holds_files_is_refused(written: tuple[Path, SynthReport]) -> None:
    with pytest.raises(ConfigError, match=r"train already holds files; choose another folder, or remove it first"):
        synth_criteo(written[0], 10)


def test_a_validation_part_without_clicks_has_no_auc(tmp_path: Path) -> None:
    report = synth_criteo(tmp_path, 2, click_rate=0.001)
    assert (report.best_auc, report.best_ne) == (None, None)
    assert report.best_logloss < 0.1
