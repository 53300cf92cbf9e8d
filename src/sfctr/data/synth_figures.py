"""The shape of Criteo's logs in figures: how many ids a column has, how skewed they are, and what is missing.

Origin. Cardinalities: the Criteo 1TB Click Logs without a frequency threshold, as published with MLPerf's DLRM. Missing
shares, top shares and quantiles: measured on a sample of 60,000 to 80,000 rows of the same logs. `exponent` and `shift`
were fitted to that sample so that the share of its ten commonest ids and its number of distinct ids come out right.

An id has a rank k = 1, 2, ... cardinality. Rank 1 has probability `top`; the others share the rest with probability
proportional to the integral of (x + shift) ** -exponent over [k - 1/2, k + 1/2] (Zipf and Mandelbrot's law).
"""

from __future__ import annotations

from typing import NamedTuple


class Ids(NamedTuple):
    """One id column. Columns that share a `missing_with` are missing in the same rows."""

    name: str
    cardinality: int
    top: float
    exponent: float
    shift: float
    missing: float = 0.0
    missing_with: str = ""


class Numbers(NamedTuple):
    """One number column: values at `QUANTILES`, linear in log(x + 2) between them and then rounded."""

    name: str
    values: tuple[float, ...]
    missing: float = 0.0
    missing_with: str = ""


_USER, _AD = "six columns", "four columns"

IDS = (
    Ids("C1", 45_833_188, 0.1989, 1.062, -0.96, 0.0407, _USER),
    Ids("C2", 36_746, 0.0232, 1.621, 37.25),
    Ids("C3", 17_245, 0.0155, 1.386, 58.90),
    Ids("C4", 7_413, 0.2916, 1.427, 0.05),
    Ids("C5", 20_243, 0.2076, 1.215, -0.44),
    Ids("C6", 3, 0.8658, 0.700, 0.25),
    Ids("C7", 7_114, 0.0308, 1.479, 47.65),
    Ids("C8", 1_441, 0.0792, 2.815, 43.77),
    Ids("C9", 62, 0.4995, 12.000, 13.38),
    Ids("C10", 29_275_261, 0.1989, 1.099, -0.39, 0.0407, _USER),
    Ids("C11", 1_572_176, 0.1993, 1.276, 1.38, 0.0407, _USER),
    Ids("C12", 345_138, 0.2015, 1.318, 43.70),
    Ids("C13", 10, 0.3879, 0.700, 0.25),
    Ids("C14", 2_209, 0.6255, 1.553, 4.17, 0.4204, _AD),
    Ids("C15", 11_267, 0.0277, 1.935, 40.04),
    Ids("C16", 128, 0.6354, 12.000, 41.93, 0.4204, _AD),
    Ids("C17", 4, 0.5876, 0.700, 0.25, 0.4204, _AD),
    Ids("C18", 974, 0.5002, 2.010, 0.64),
    Ids("C19", 14, 0.5406, 1.645, -1.35),
    Ids("C20", 48_937_457, 0.1989, 1.045, -1.07, 0.0407, _USER),
    Ids("C21", 11_316_796, 0.1989, 1.162, 0.59, 0.0407, _USER),
    Ids("C22", 40_094_537, 0.1989, 1.076, -0.77, 0.0407, _USER),
    Ids("C23", 452_104, 0.3292, 1.201, 4.14, 0.4204, _AD),
    Ids("C24", 12_606, 0.0148, 1.680, 71.37),
    Ids("C25", 104, 0.3706, 12.000, 28.84),
    Ids("C26", 35, 0.3268, 12.000, 28.36),
)

QUANTILES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0)

NUMBERS = (
    Numbers("I1", (1, 1, 3, 7, 19, 46, 248, 51_834), 0.2006),
    Numbers("I2", (1, 19, 70, 220, 561, 1_157, 3_587, 7_999), 0.0953),
    Numbers("I3", (0, 1, 2, 4, 9, 18, 41, 519), 0.2316, "I3 and I13"),
    Numbers("I4", (0, 2, 11, 37, 111, 289, 1_672, 55_288), 0.2601),
    Numbers("I5", (1, 1, 2, 6, 17, 47, 312, 5_020), 0.4068, "I5 and I11"),
    Numbers("I6", (0, 0, 0, 0, 1, 4, 29, 463), 0.0686, "I6 and I10"),
    Numbers("I7", (0, 0, 0, 0, 0, 0, 3, 347), 0.0185),
    Numbers("I8", (-1, 0, 0, 4, 42, 189, 2_185, 9_153)),
    Numbers("I9", (0, 0, 1, 6, 16, 32, 48, 179)),
    Numbers("I10", (0, 0, 0, 0, 1, 1, 2, 7), 0.0686, "I6 and I10"),
    Numbers("I11", (1, 1, 1, 2, 4, 9, 38, 147), 0.4068, "I5 and I11"),
    Numbers("I12", (0, 21, 804, 2_967, 11_712, 34_264, 363_918, 2_011_298), 0.0137),
    Numbers("I13", (0, 1, 2, 4, 10, 20, 47, 3_563), 0.2316, "I3 and I13"),
)
