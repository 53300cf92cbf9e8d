"""What a benchmark found, as a line of the one table that `make bench` prints, and what each line is to reach.

A line without figures says why it has none: a rival that could not be installed or that failed is never left out.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Target:
    """what: is measured. reach: in words. must: a release has to reach it; the others may have a reason instead."""

    what: str
    reach: str
    must: bool


TARGETS = {
    "unique": Target(
        what="unique ids with their inverse", reach="torch.unique 12x, np.unique 8x, 3.3 ns an id", must=True
    ),
    "index": Target(
        what="index look-up",
        reach="4x absl (malloc's pages, plain loop), 35x dict, 1.1x a random line of memory",
        must=True,
    ),
    "step-rowwise": Target(
        what="embedding step, row-wise Adagrad",
        reach="FBGEMM: dim 16 5x (1 thread), 9x (2); dim 64-128 3x, 6x",
        must=True,
    ),
    "step-sgd": Target(what="embedding step, SGD", reach="FBGEMM: 1.8x (1 thread), 3.5x (2)", must=True),
    "step-torch": Target(what="embedding step", reach="nn.EmbeddingBag: Adagrad 7x, SparseAdam 10x", must=True),
    "end-to-end": Target(
        what="training end to end, one-hot",
        reach="TorchRec: fp32 1.5x, bf16 1.9x; 80 % of the dense part alone",
        must=True,
    ),
    "end-to-end-bag": Target(what="training end to end, 5-hot, bf16", reach="TorchRec: 3.2x", must=True),
    "planning": Target(what="planning hidden behind training", reach="95 % hidden", must=True),
    "disk-reads": Target(
        what="random rows of 256 B from disk, look-ahead 8",
        reach="RocksDB 2.5x, LMDB 3x, mmap 2x; 1.5 us CPU a row",
        must=True,
    ),
    "device-cache": Target(what="cache of 10 % over rows in RAM, window 4", reach="1.1x of all rows there", must=False),
    "write-back": Target(what="write-back of evicted rows", reach="40x in place", must=False),
    "disk-training": Target(
        what="training with rows on disk", reach="1.15x of the larger of training and fetching", must=False
    ),
    "reader": Target(what="Parquet to batches", reach="5x pandas", must=False),
    "growth": Target(what="time a step, 10^8 against 10^6 rows", reach="1.6x", must=False),
    "index-memory": Target(what="vocabulary memory beyond the row", reach="24 bytes a key", must=False),
}


@dataclass(frozen=True, kw_only=True)
class Measure:
    """One line. target: a key of TARGETS. case: what was varied ("dim 16, one-hot, 1 thread"). rival: by name, or "".

    ours, theirs: medians in `unit`, of rounds taken in turn. figure: what is held against the target, in its own words'
    unit (mostly the ratio to the rival). reach: the least, or with at_most the greatest, that it should be; None: shown
    only. not_run: why there is no figure.
    """

    target: str
    case: str
    rival: str = ""
    ours: float | None = None
    theirs: float | None = None
    unit: str = ""
    figure: float | None = None
    figure_unit: str = "x"
    reach: float | None = None
    at_most: bool = False
    not_run: str = ""

    @property
    def is_met(self) -> bool | None:
        """None: nothing is to be reached, or nothing was measured."""
        if self.figure is None or self.reach is None:
            return None
        return self.figure <= self.reach if self.at_most else self.figure >= self.reach


def add_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--measures", type=Path, metavar="FILE", help="write the lines of the table there, as JSON")


def write(path: Path | None, measures: Iterable[Measure]) -> None:
    if path is not None:
        path.write_text(json.dumps([asdict(measure) for measure in measures], indent=1) + "\n")


def read(path: Path) -> list[Measure]:
    return [Measure(**line) for line in json.loads(path.read_text())]
