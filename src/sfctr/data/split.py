"""Which rows train, which validate, and which negatives are left out: decided by each row's time, hash or position.

No decision depends on the order of reading, the format of the file or the seed of the run.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from sfctr.spec.batch import F32, I64, U64, Bools
from sfctr.spec.errors import ConfigError
from sfctr.spec.runfile import Data
from sfctr.spec.schema import Schema

from .chunk import Chunk
from .keys import identity_keys
from .order import mix64
from .times import NO_TIME, time_of

Part = Literal["all", "train", "valid"]

_SPLIT_SALT = np.uint64(0x5F3A_1C9B_7E24_D681)
_THIN_SALT = np.uint64(0xA1D4_88E3_0B57_6C2F)


@dataclass(frozen=True, slots=True)
class Rule:
    """How the rows of one source are chosen. The default takes them all.

    valid_from:     nanoseconds; rows at or after it validate.
    valid_fraction: share of the values of `valid_by` (None: of the rows) that validates.
    negatives_keep: share of the negatives that is kept.
    """

    part: Part = "all"
    valid_from: int | None = None
    valid_fraction: float | None = None
    valid_by: str | None = None
    negatives_keep: float = 1.0

    @property
    def columns(self) -> tuple[str, ...]:
        return () if self.valid_by is None else (self.valid_by,)

    @property
    def takes_all(self) -> bool:
        return self.part == "all" and self.negatives_keep == 1.0

    @property
    def log_odds_shift(self) -> float:
        """What to add to logits learnt from the thinned rows: thinning negatives by p adds -log p to the log-odds."""
        return math.log(self.negatives_keep)

    def picked(self, chunk: Chunk, time: I64 | None, known: tuple[F32, Bools]) -> I64 | None:
        """Positions in the chunk of the rows that are taken; None: all."""
        if self.takes_all:
            return None
        kept = np.ones(chunk.size, np.bool_)
        if self.part != "all":
            valid = self._validates(chunk, time)
            kept &= valid if self.part == "valid" else ~valid
        if self.negatives_keep < 1.0:
            kept &= _is_positive(known) | (_hashed_rows(chunk, _THIN_SALT) < _threshold(self.negatives_keep))
        return None if kept.all() else np.flatnonzero(kept)

    def _validates(self, chunk: Chunk, time: I64 | None) -> Bools:
        if self.valid_from is not None:
            assert time is not None
            missing = np.flatnonzero(time == NO_TIME)
            if len(missing):
                chunk.place.refuse(
                    "the time is missing, and data.valid_from splits by it",
                    int(missing[0]),
                    remedy="give every row a time, or split by valid_fraction",
                )
            return np.asarray(time >= self.valid_from)
        assert self.valid_fraction is not None
        if self.valid_by is None:
            hashed = _hashed_rows(chunk, _SPLIT_SALT)
        else:
            hashed = mix64(identity_keys(chunk[self.valid_by]) ^ _SPLIT_SALT)
        return np.asarray(hashed < _threshold(self.valid_fraction))


def rules(options: Data, schema: Schema) -> tuple[Rule, Rule | None]:
    """How the training rows are chosen, and the validation rows where they come from the same files."""
    keep = options.negatives_keep
    if options.valid_from is not None:
        time = schema.time_column
        if time is None:
            raise ConfigError("data.valid_from needs schema.time, the column that holds the time")
        bound = time_of(options.valid_from, time.format, "data.valid_from")
        return Rule("train", bound, negatives_keep=keep), Rule("valid", bound)
    if options.valid_fraction is not None:
        fraction, by = options.valid_fraction, options.valid_by
        return Rule("train", None, fraction, by, keep), Rule("valid", None, fraction, by)
    return Rule(negatives_keep=keep), None


def _hashed_rows(chunk: Chunk, salt: np.uint64) -> U64:
    positions = np.arange(chunk.position, chunk.position + chunk.size, dtype=np.uint64)
    return mix64(positions ^ salt)


def _threshold(share: float) -> np.uint64:
    """Hashes below it are `share` of all; share is below 1."""
    return np.uint64(int(share * 2**64))


def _is_positive(known: tuple[F32, Bools]) -> Bools:
    """Rows that are no hard negatives: a known label above 0, or no known label at all."""
    label, mask = known
    return np.asarray((label > 0).any(axis=1) | ~mask.any(axis=1))
