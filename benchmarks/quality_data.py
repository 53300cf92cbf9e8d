"""The files that the quality benchmark trains on, each a part of data that somebody else made.

Frappe is read as it was published, in three files. The Criteo sample and MovieLens are split here, into
benchmarks/data, which git ignores: their terms let nobody pass them on.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sfctr.data.movielens import prepare_movielens

CRITEO_TRAIN, CRITEO_VALID, CRITEO_ROWS = 45_000, 50_000, 60_000
"""Rows of the sample before which training, and validation, end; the rest is the test part."""

MOVIELENS_VALID, MOVIELENS_TEST = 0.7, 0.8
"""Shares of the ratings, in time order, after which validation, and the test part, begin."""


class Absent(Exception):
    """Data that a part needs are not on this machine."""


class Split(NamedTuple):
    """Three Parquet files."""

    train: Path
    valid: Path
    test: Path


def frappe(data: Path) -> Split:
    """The published split."""
    split = Split(*(data / "frappe_x1" / f"{name}.parquet" for name in Split._fields))
    for path in split:
        if not path.is_file():
            raise Absent(f"{path} is not there")
    return split


def criteo(data: Path, out: Path) -> Split:
    """The first 45,000 rows, the 5,000 after them, and the last 10,000 of the Criteo sample, in the order it has."""
    source = data / "criteo_sample_60k" / "rows.parquet"
    if not source.is_file():
        raise Absent(f"{source} is not there")
    rows = pq.read_table(source)
    if rows.num_rows != CRITEO_ROWS:
        raise Absent(f"{source} has {rows.num_rows} rows, not the {CRITEO_ROWS} of the sample that the figures are for")
    cuts = (0, CRITEO_TRAIN, CRITEO_VALID, CRITEO_ROWS)
    return _written(out / "criteo", [rows.slice(a, b - a) for a, b in pairwise(cuts)])


def shuffled(split: Split, out: Path, seed: int) -> Split:
    """The same rows with all labels dealt out anew over the three files: nothing is left to learn."""
    parts = [pq.read_table(path) for path in split]
    labels = np.concatenate([part["label"].to_numpy() for part in parts])
    np.random.default_rng(seed).shuffle(labels)
    dealt = np.split(labels, np.cumsum([part.num_rows for part in parts])[:-1])
    place = parts[0].schema.get_field_index("label")
    return _written(
        out / f"{split.train.parent.name}-shuffled-{seed}",
        [part.set_column(place, "label", pa.array(own)) for part, own in zip(parts, dealt, strict=True)],
    )


def movielens(out: Path, wheel: Path | None) -> Split:
    """MovieLens-100K by time: ratings before the 70 % point, up to the 80 % point, and from there on."""
    rows = pq.read_table(prepare_movielens(out / "movielens", wheel).ratings)
    times = rows["timestamp"]
    valid_from, test_from = (times[int(share * rows.num_rows)] for share in (MOVIELENS_VALID, MOVIELENS_TEST))
    early, late = pc.less(times, valid_from), pc.greater_equal(times, test_from)
    middle = pc.invert(pc.or_(early, late))
    return _written(out / "movielens", [rows.filter(mask) for mask in (early, middle, late)])


def share_unseen(split: Split, column: str, *, known: tuple[str, ...] = ("train", "valid")) -> float:
    """Share of the test rows whose value of `column` no row of the files `known` has."""
    read = {name: pq.read_table(path, columns=[column])[column] for name, path in split._asdict().items()}
    seen = pa.chunked_array([chunk for name in known for chunk in read[name].chunks])
    return 1.0 - float(pc.mean(pc.cast(pc.is_in(read["test"], value_set=seen.combine_chunks()), pa.float64())).as_py())


def _written(folder: Path, parts: list[pa.Table]) -> Split:
    folder.mkdir(parents=True, exist_ok=True)
    split = Split(*(folder / f"{name}.parquet" for name in Split._fields))
    for path, part in zip(split, parts, strict=True):
        pq.write_table(part, path)
    return split
