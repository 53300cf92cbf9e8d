"""Rows with Criteo's shape, and the planted model that decides their clicks.

Everything about a row follows from (seed, row number, column) through a counter-based hash, so that rows may be made in
any order and any division into files. Ids and the planted model are the same for every seed: another seed is another
day of the same world.

  R rows of a block
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .synth_figures import IDS, NUMBERS, QUANTILES, Ids, Numbers

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]
Bools = npt.NDArray[np.bool_]

BLOCK = 16_384
"""Rows made at once; a block's arrays stay in the processor's second cache."""
ID_BITS = 40
MISSING_ID = np.int64(-1)
LEVELS = 1 << 17
"""The planted logit is rounded to LEVELS steps over [-16, 16), so that exact metrics need only a count for each."""

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MASK_40 = np.uint64((1 << ID_BITS) - 1)
_SMALLEST = 100
"""`scale` leaves columns with fewer ids than this alone."""
_PAIRS = (("C6", "C9"), ("C13", "C19"), ("C17", "C26"), ("C9", "C25"), ("C16", "C18"), ("C4", "C6"), ("C14", "C13"))
_PAIR_SPREAD = 0.2
_NUMBER_WEIGHTS = (0.5, -0.4, 0.3, -0.7, 0.4, 0.3, 0.9, -0.3, 0.5, 0.4, -0.2, -0.5, 0.3)
_HUMP_SPREAD = 0.15


@dataclass(frozen=True, slots=True)
class Block:
    """Rows as columns. numbers: float64 [R], NaN where missing; ids: int64 [R], MISSING_ID where missing; level: the
    planted logit's level; label: int8 [R]."""

    numbers: Mapping[str, F64]
    ids: Mapping[str, I64]
    level: I64
    label: npt.NDArray[np.int8]


class World:
    """The columns at one scale, and the planted model calibrated to one click rate."""

    def __init__(self, *, click_rate: float, scale: float = 1.0) -> None:
        self.columns = tuple(_scaled(ids, scale) for ids in IDS)
        self.bias = 0.0
        calibration = _logits(self, _key("calibration", 0), 8 * BLOCK)
        self.bias = _bias(calibration, click_rate)
        self.click_rates = 1.0 / (1.0 + np.exp(-_logit_of(np.arange(LEVELS))))

    def block(self, seed: int, first: int, count: int) -> Block:
        """`count` rows from row number `first` on."""
        key = _key("rows", seed)
        rows = np.arange(first, first + count, dtype=np.uint64)
        numbers, ids, logit = self._rows(key, rows)
        level = _level_of(logit)
        label = _uniform(_draw(key, "label", rows)) < self.click_rates[level]
        return Block(numbers, ids, level, label.astype(np.int8))

    def _rows(self, key: np.uint64, rows: U64) -> tuple[dict[str, F64], dict[str, I64], F64]:
        missing = _Missing(key, rows)
        logit = np.full(len(rows), self.bias)
        numbers, ids = {}, {}
        for number, weight in zip(NUMBERS, _NUMBER_WEIGHTS, strict=True):
            values = _number_values(number, _uniform(_draw(key, number.name, rows)))
            logit += _number_effect(number, weight, values, missing.of(number))
            values[missing.of(number)] = np.nan
            numbers[number.name] = values
        for column in self.columns:
            keys = _id_values(column, _uniform(_draw(key, column.name, rows)))
            keys[missing.of(column)] = MISSING_ID
            logit += _effect(_hash_of(keys, _key(column.name, 1)), _spread(column))
            ids[column.name] = keys
        for one, other in _PAIRS:
            mixed = _hash_of(ids[one], _key(one, 2)) ^ _hash_of(ids[other], _key(other, 3))
            logit += _effect(_finalized(mixed), _PAIR_SPREAD)
        return numbers, ids, logit


class _Missing:
    """Which values of a block are missing; columns named together are missing together."""

    def __init__(self, key: np.uint64, rows: U64) -> None:
        self._key, self._rows = key, rows
        self._known: dict[str, Bools] = {}

    def of(self, column: Ids | Numbers) -> Bools:
        stream = column.missing_with or column.name
        if stream not in self._known:
            draws = _uniform(_draw(self._key, f"missing {stream}", self._rows))
            self._known[stream] = draws < column.missing
        return self._known[stream]


def expected_rank_share(column: Ids, ranks: I64) -> F64:
    """Probability of each of `ranks` (from 1)."""
    low, high = _edges(column)
    power = 1.0 - column.exponent
    at = ranks + column.shift
    share = ((at + 0.5) ** power - (at - 0.5) ** power) / (high - low) * (1.0 - column.top)
    return np.where(ranks == 1, column.top, share)


# ---- columns ------------------------------------------------------------------------------------------------------


def _scaled(column: Ids, scale: float) -> Ids:
    smallest = min(column.cardinality, _SMALLEST)
    return column._replace(cardinality=max(smallest, round(column.cardinality * scale)))


def _edges(column: Ids) -> tuple[float, float]:
    """The power law's antiderivative, but for a factor, at rank 2's low end and the last rank's high end."""
    power = 1.0 - column.exponent
    return float((1.5 + column.shift) ** power), float((column.cardinality + 0.5 + column.shift) ** power)


def _id_values(column: Ids, uniform: F64) -> I64:
    """Ids by inverting the cumulative distribution, which needs no table however many ids there are."""
    low, high = _edges(column)
    rest = (uniform - column.top) * (1.0 / (1.0 - column.top))
    np.maximum(rest, 0.0, out=rest)
    at = (low + rest * (high - low)) ** (1.0 / (1.0 - column.exponent)) - column.shift
    ranks = np.clip(np.rint(at), 2, column.cardinality).astype(np.uint64)
    ranks[uniform < column.top] = 1
    return _permuted(ranks + (_key(column.name, 0) & _MASK_40)).view(np.int64)


def _permuted(values: U64) -> U64:
    """A one-to-one scrambling of 40-bit numbers, so that distinct ranks stay distinct ids."""
    values &= _MASK_40
    for factor in (0xBF58476D1CE4E5B9, 0x94D049BB133111EB):
        values ^= values >> np.uint64(21)
        values *= np.uint64(factor)
        values &= _MASK_40
    values ^= values >> np.uint64(20)
    return values


def _number_values(column: Numbers, uniform: F64) -> F64:
    logs = np.log(np.asarray(column.values, dtype=np.float64) + 2.0)
    return np.rint(np.exp(np.interp(uniform, QUANTILES, logs)) - 2.0)


# ---- the planted model --------------------------------------------------------------------------------------------


def _spread(column: Ids) -> float:
    """Standard deviation of an id's effect: what a model can learn from few rows weighs more."""
    return 0.3 if column.cardinality <= 1_000 else 0.2 if column.cardinality <= 50_000 else 0.15


def _effect(hashes: U64, spread: float) -> F64:
    """Uniform with mean 0 and this standard deviation."""
    effect = _uniform(hashes)
    effect -= 0.5
    effect *= spread * 12.0**0.5
    return effect


def _number_effect(column: Numbers, weight: float, values: F64, missing: Bools) -> F64:
    """A slope and a hump over the logarithm's range; a missing value has the effect of a third of that range."""
    low, high = np.log(column.values[0] + 2.0), np.log(column.values[-2] + 2.0)
    at: F64 = (np.log(values + 2.0) - low) * (1.0 / (high - low))
    at[missing] = 1.0 / 3.0
    at += 0.5 * np.exp(-(((at - 0.5) / _HUMP_SPREAD) ** 2))
    at *= weight
    return at


def _logits(world: World, key: np.uint64, count: int) -> F64:
    starts = range(0, count, BLOCK)
    blocks = (world._rows(key, np.arange(s, s + BLOCK, dtype=np.uint64))[2] for s in starts)
    return np.concatenate(list(blocks))


def _bias(logits: F64, click_rate: float) -> float:
    """The constant that brings the mean probability to the click rate, by bisection."""
    low, high = -40.0, 40.0
    for _ in range(50):
        middle = (low + high) / 2
        if np.mean(1.0 / (1.0 + np.exp(-(logits + middle)))) < click_rate:
            low = middle
        else:
            high = middle
    return low


def _level_of(logit: F64) -> I64:
    return np.clip(np.rint((logit + 16.0) * (LEVELS / 32.0)), 0, LEVELS - 1).astype(np.int64)


def _logit_of(level: I64) -> F64:
    return level.astype(np.float64) * (32.0 / LEVELS) - 16.0


# ---- draws --------------------------------------------------------------------------------------------------------


@functools.cache
def _key(name: str, seed: int) -> np.uint64:
    """A 64-bit number for a name and a seed, by FNV-1a over its bytes and a finalizer."""
    state = 0xCBF29CE484222325
    for byte in name.encode() + seed.to_bytes(8, "little", signed=True):
        state = (state ^ byte) * 0x100000001B3 % 2**64
    return np.uint64(_finalized(np.array([state], dtype=np.uint64))[0])


def _draw(key: np.uint64, stream: str, rows: U64) -> U64:
    """64 random bits for each row number: SplitMix64 at that position of the stream's sequence."""
    start = _finalized(np.array([key ^ _key(stream, 0)], dtype=np.uint64))
    return _finalized(rows * _GOLDEN + start)


def _hash_of(keys: I64, key: np.uint64) -> U64:
    return _finalized(keys.view(np.uint64) + key)


def _finalized(z: U64) -> U64:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z ^= z >> np.uint64(27)
    z *= np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    return z


def _uniform(bits: U64) -> F64:
    """[0, 1) from the upper 53 bits."""
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def blocks_of(first: int, end: int) -> Iterator[tuple[int, int]]:
    """(first row, rows) of pieces that never cross a multiple of BLOCK."""
    while first < end:
        stop = min(end, (first // BLOCK + 1) * BLOCK)
        yield first, stop - first
        first = stop
