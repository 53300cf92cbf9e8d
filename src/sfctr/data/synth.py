"""A click log with Criteo's columns, sizes and skew, whose best possible AUC is known.

`synth_criteo` writes train/00000.parquet ..., valid/00000.parquet ... and synth.json, the report. Memory is that of one
row group, whatever the number of rows; the rows depend on the seed alone, not on how they are divided into files. (The
power function's last bit differs between processors, which may change a rare id.)
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sfctr.spec.errors import ConfigError, writing

from .parquet_writer import WholeParquet
from .synth_figures import IDS, NUMBERS
from .synth_model import LEVELS, MISSING_ID, Block, World, blocks_of

_ROW_GROUP = 131_072
_DICTIONARY_UP_TO = 10_000
"""Columns with more ids than this are written plain: a dictionary of them would only be given up later."""


class SynthReport(msgspec.Struct, frozen=True, kw_only=True):
    """What was written, and what a perfect model would score on its validation rows."""

    train: tuple[str, ...]
    """Files to train on, within the folder."""
    valid: tuple[str, ...]
    """Files to validate on, within the folder."""
    train_rows: int
    valid_rows: int
    seed: int
    scale: float
    """Factor that the cardinalities were multiplied by."""
    cardinalities: dict[str, int]
    """How many ids each column can have (the rows written hold only some of them)."""
    click_rate: float
    """Share of clicks among the validation rows."""
    train_click_rate: float
    best_auc: float | None
    """AUC of the true probabilities on the validation rows, exact: on average no model can do better. None where these
    rows have one label only."""
    best_logloss: float
    """Log loss of the true probabilities on the validation rows."""
    best_ne: float | None
    """The same over the entropy of the click rate (normalised entropy)."""


def synth_criteo(
    out_dir: str | os.PathLike[str],
    rows: int,
    *,
    seed: int = 0,
    valid_fraction: float = 0.1,
    rows_per_file: int = 1_000_000,
    click_rate: float = 0.03,
    scale: float = 1.0,
) -> SynthReport:
    """Write `rows` rows, the last `valid_fraction` of them as validation files, and return the report.

    Columns: label int8; I1-I13 int32, null where missing; C1-C26 int64 below 2^40, null where missing. Another seed is
    another day of the same world: other rows, the same ids and the same planted model. Raises ConfigError for options
    out of range and for a folder that already holds such files.
    """
    _check(rows=rows, valid_fraction=valid_fraction, rows_per_file=rows_per_file, click_rate=click_rate, scale=scale)
    root = Path(out_dir)
    valid_rows = max(1, round(rows * valid_fraction))
    train_rows = rows - valid_rows
    world = World(click_rate=click_rate, scale=scale)
    train, valid = _Part(root / "train", 0, train_rows), _Part(root / "valid", train_rows, rows)
    for part in (train, valid):
        part.write(world, seed, rows_per_file)
    report = _report(root, train, valid, world, seed, scale)
    with writing(root / "synth.json"):
        (root / "synth.json").write_bytes(msgspec.json.format(msgspec.json.encode(report)) + b"\n")
    return report


def _check(*, rows: int, valid_fraction: float, rows_per_file: int, click_rate: float, scale: float) -> None:
    for name, value, low, high in (
        ("rows", rows, 2, 2**48),
        ("rows_per_file", rows_per_file, 1, 2**48),
        ("valid_fraction", valid_fraction, 0.0, 0.99),
        ("click_rate", click_rate, 1e-4, 0.9),
        ("scale", scale, 1e-6, 1000.0),
    ):
        if not low <= value <= high:
            raise ConfigError(f"synth: {name} is {value} and must be {low} to {high}")


@dataclass
class _Part:
    """The rows [first, end) as files of a folder, and the counts that metrics need."""

    folder: Path
    first: int
    end: int
    files: list[str] = field(default_factory=list)
    clicks: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(LEVELS, np.int64))
    others: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(LEVELS, np.int64))

    def write(self, world: World, seed: int, rows_per_file: int) -> None:
        if self.folder.exists() and any(self.folder.iterdir()):
            raise ConfigError(f"synth: {self.folder} already holds files; choose another folder, or remove it first")
        for number, first in enumerate(range(self.first, self.end, rows_per_file)):
            path = self.folder / f"{number:05}.parquet"
            self._write_file(path, world, seed, first, min(first + rows_per_file, self.end))
            self.files.append(f"{self.folder.name}/{path.name}")

    def _write_file(self, path: Path, world: World, seed: int, first: int, end: int) -> None:
        small = [c.name for c in world.columns if c.cardinality <= _DICTIONARY_UP_TO]
        with WholeParquet(path, _schema(), compression="zstd", use_dictionary=small) as writer:
            for start in range(first, end, _ROW_GROUP):
                blocks = [*self._counted(world, seed, start, min(start + _ROW_GROUP, end))]
                writer.write(pa.concat_tables(blocks).combine_chunks())

    def _counted(self, world: World, seed: int, first: int, end: int) -> Iterator[pa.Table]:
        for start, count in blocks_of(first, end):
            block = world.block(seed, start, count)
            self.clicks += np.bincount(block.level[block.label == 1], minlength=LEVELS)
            self.others += np.bincount(block.level[block.label == 0], minlength=LEVELS)
            yield _table(block)


def _schema() -> pa.Schema:
    return pa.schema(
        [pa.field("label", pa.int8(), nullable=False)]
        + [pa.field(column.name, pa.int32()) for column in NUMBERS]
        + [pa.field(column.name, pa.int64()) for column in IDS]
    )


def _table(block: Block) -> pa.Table:
    columns = [pa.array(block.label)]
    for values in block.numbers.values():
        missing = np.isnan(values)
        columns.append(pa.array(np.where(missing, 0.0, values).astype(np.int32), mask=missing))
    columns += [pa.array(ids, mask=ids == MISSING_ID) for ids in block.ids.values()]
    return pa.Table.from_arrays(columns, schema=_schema())


def _report(root: Path, train: _Part, valid: _Part, world: World, seed: int, scale: float) -> SynthReport:
    rate = float(valid.clicks.sum() / (valid.end - valid.first))
    logloss = _logloss(valid, world.click_rates)
    entropy = -rate * np.log(rate) - (1 - rate) * np.log1p(-rate) if 0 < rate < 1 else 0.0
    return SynthReport(
        train=tuple(train.files),
        valid=tuple(valid.files),
        train_rows=train.end - train.first,
        valid_rows=valid.end - valid.first,
        seed=seed,
        scale=scale,
        cardinalities={column.name: column.cardinality for column in world.columns},
        click_rate=rate,
        train_click_rate=float(train.clicks.sum() / (train.end - train.first)),
        best_auc=_auc(valid),
        best_logloss=logloss,
        best_ne=float(logloss / entropy) if entropy else None,
    )


def _auc(part: _Part) -> float | None:
    """Probability that a click stands above another row, ties counting half."""
    pairs = float(part.clicks.sum()) * float(part.others.sum())
    below = np.cumsum(part.others) - part.others
    won = float(np.sum(part.clicks * (below + 0.5 * part.others)))
    return won / pairs if pairs else None


def _logloss(part: _Part, click_rates: npt.NDArray[np.float64]) -> float:
    losses = -part.clicks * np.log(click_rates) - part.others * np.log1p(-click_rates)
    return float(losses.sum() / (part.end - part.first))
