"""A slow, obvious twin of the native rows: dictionaries, loops and NumPy, with nothing native in it.

What the native core computes in parallel and in blocks is written here in the order the documents state, one key, one
position, one operation at a time, in float32 (float64 where they say double). The two must agree in every bit.

  B rows, F features, U unique keys, D dim
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

F32 = np.float32
MASK = (1 << 64) - 1
CHUNK = 64
"""Contributions to one gradient are summed in chunks of so many, then the chunks in order."""


# ---------------------------------------------------------------------------------------------------------------- keys


def mix(z: int) -> int:
    """The finalizer of splitmix64."""
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def bucket(key: int, buckets: int) -> int:
    return (mix((key + 0x9E3779B97F4A7C15) & MASK) * buckets) >> 64


@dataclass(kw_only=True)
class Feature:
    """The arguments of native FeatureKeys."""

    table: int
    pooling: str
    keys: np.ndarray
    offsets: np.ndarray | None = None
    nulls: np.ndarray | None = None
    weights: np.ndarray | None = None
    max_length: int = 0
    buckets: int = 0

    def positions(self, row: int) -> range:
        return (
            range(row, row + 1) if self.offsets is None else range(int(self.offsets[row]), int(self.offsets[row + 1]))
        )

    def key(self, n: int) -> tuple[int, int]:
        """Native table and key of a position."""
        if self.nulls is not None and self.nulls[n]:
            return 2 * self.table + 1, 0
        key = int(self.keys[n])
        return 2 * self.table, bucket(key, self.buckets) if self.buckets else key

    def divisor_and_weight(self, row: int, n: int) -> tuple[np.float32, np.float32]:
        """What position n's vector is multiplied by (weight), and the row's sum divided by."""
        weight = F32(1) if self.weights is None else self.weights[n]
        if self.pooling != "mean":
            return F32(1), weight
        if self.weights is None:
            return F32(len(self.positions(row))), weight
        total = F32(0)
        for m in self.positions(row):
            total = total + self.weights[m]
        return total, weight


def unique(num_tables: int, features: Sequence[Feature]) -> tuple[list[tuple[int, int]], list[np.ndarray]]:
    """Unique (native table, key) in the order native table, feature, position; and every feature's virtual ids."""
    seen: dict[tuple[int, int], None] = {}
    for feature in features:
        for n in range(len(feature.keys)):
            seen.setdefault(feature.key(n))
    ordered = [key for table in range(2 * num_tables) for key in seen if key[0] == table]
    number = {key: u for u, key in enumerate(ordered)}
    ids = [np.array([number[f.key(n)] for n in range(len(f.keys))], dtype=np.int32) for f in features]
    return ordered, ids


# -------------------------------------------------------------------------------------------------------- initial rows


def philox(counter: Sequence[int], key: Sequence[int]) -> list[int]:
    """Philox4x32-10 of one counter (four words) under one key (two words)."""
    c, (k0, k1) = list(counter), key
    for _ in range(10):
        a, b = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57
        c = [(b >> 32) ^ c[1] ^ k0, b & 0xFFFFFFFF, (a >> 32) ^ c[3] ^ k1, a & 0xFFFFFFFF]
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return c


def words(seed: int, key: int, dim: int) -> np.ndarray:
    """One 32-bit word for each element of a row."""
    seeds = (seed & 0xFFFFFFFF, seed >> 32)
    blocks = [philox((key & 0xFFFFFFFF, key >> 32, e, 0), seeds) for e in range((dim + 3) // 4)]
    return np.array([word for block in blocks for word in block][:dim], dtype=np.uint32)


def uniform(word: np.ndarray, low: float, high: float) -> np.ndarray:
    unit = (word >> np.uint32(8)).astype(F32) * F32(2.0**-24)
    return F32(low) + (F32(high) - F32(low)) * unit


def _horner(coefficients: Sequence[float], x: np.ndarray) -> np.ndarray:
    value = np.full_like(x, coefficients[0])
    for c in coefficients[1:]:
        value = value * x + c
    return value


def logarithm(x: np.ndarray) -> np.ndarray:
    """ln(x) from + - * / alone: x = m * 2^e with m in [sqrt(1/2), sqrt(2)), ln(m) = 2 atanh((m - 1) / (m + 1))."""
    m, e = np.frexp(x)
    low = m < 0.7071067811865476
    m, e = np.where(low, m * 2, m), np.where(low, e - 1, e)
    s = (m - 1) / (m + 1)
    series = [1 / k for k in range(21, 0, -2)]
    return e * 0.69314718055994530942 + 2 * s * _horner(series, s * s)


# Wichura, Algorithm AS 241, PPND16 (Applied Statistics 37, 1988), coefficients from the highest power down.
A = (2.5090809287301226727e3, 3.3430575583588128105e4, 6.7265770927008700853e4, 4.5921953931549871457e4,
     1.3731693765509461125e4, 1.9715909503065514427e3, 1.3314166789178437745e2, 3.3871328727963666080e0)  # fmt: skip
B = (5.2264952788528545610e3, 2.8729085735721942674e4, 3.9307895800092710610e4, 2.1213794301586595867e4,
     5.3941960214247511077e3, 6.8718700749205790830e2, 4.2313330701600911252e1, 1.0)  # fmt: skip
C = (7.74545014278341407640e-4, 2.27238449892691845833e-2, 2.41780725177450611770e-1, 1.27045825245236838258e0,
    3.64784832476320460504e0, 5.76949722146069140550e0, 4.63033784615654529590e0, 1.42343711074968357734e0)  # fmt: skip
D = (1.05075007164441684324e-9, 5.47593808499534494600e-4, 1.51986665636164571966e-2, 1.48103976427480074590e-1,
     6.89767334985100004550e-1, 1.67638483018380384940e0, 2.05319162663775882187e0, 1.0)  # fmt: skip


def standard_normal(word: np.ndarray) -> np.ndarray:
    """Inverse of the normal distribution function at (word + 1/2) / 2^32, float64."""
    q = (word.astype(np.float64) + 0.5) * 2.0**-32 - 0.5
    r = 0.180625 - q * q
    centre = q * _horner(A, r) / _horner(B, r)
    tail_p = np.where(q < 0, 0.5 + q, 0.5 - q)
    t = np.sqrt(-logarithm(tail_p)) - 1.6
    tail = _horner(C, t) / _horner(D, t)
    return np.where(np.abs(q) <= 0.425, centre, np.where(q < 0, -tail, tail))


# ---------------------------------------------------------------------------------------------------------------- bf16


def rounding_halves(seed: int, key: int, step: int, dim: int) -> list[int]:
    """16 random bits for each element of a row at a committed step."""
    seeds = (seed & 0xFFFFFFFF, seed >> 32)
    low, high = step & 0xFFFFFFFF, step >> 32
    blocks = [philox((key & 0xFFFFFFFF, key >> 32, e + 1024 * high, low), seeds) for e in range((dim + 7) // 8)]
    return [half for block in blocks for word in block for half in (word & 0xFFFF, word >> 16)][:dim]


def bf16(value: np.float32, half: int | None) -> np.float32:
    """One of the two bf16 neighbours of a float32: the outer one where its lower bits and `half` reach 2^16, or,
    without a half, the nearer one, of two equally near ones that with an even last bit."""
    bits = int(np.asarray(value, dtype=F32).view(np.uint32))
    upper, lower = bits >> 16, bits & 0xFFFF
    if np.isnan(value):
        upper |= 0x40
    elif half is None:
        upper += lower > 0x8000 or (lower == 0x8000 and upper % 2 == 1)
    else:
        upper += lower + half >= 0x10000
    return np.asarray(upper << 16, dtype=np.uint32).view(F32)[()]


# ---------------------------------------------------------------------------------------------------------- optimizers


def tree16(values: np.ndarray) -> Any:
    """Sum in 16 lanes, column c in lane c % 16; lanes then pairwise: i with i + 8, then 4, 2, 1."""
    lanes = np.zeros(16, dtype=values.dtype)
    for c, value in enumerate(values):
        lanes[c % 16] = lanes[c % 16] + value
    for half in (8, 4, 2, 1):
        lanes = lanes[:half] + lanes[half : 2 * half]
    return lanes[0]


def power(base: float, exponent: int) -> float:
    """By repeated squaring, as the native core does it."""
    result = 1.0
    while exponent:
        if exponent & 1:
            result *= base
        base *= base
        exponent >>= 1
    return result


def adam_step_size(h: dict[str, float], t: int) -> np.float32:
    root = float(np.sqrt(1 - power(h["beta2"], t)))
    return F32(h["lr"] * root / (1 - power(h["beta1"], t)))


STATE = {"none": 0, "sgd": 0, "momentum": 1, "adagrad": 1, "adam": 2, "adam_row": 2, "ftrl": 2, "rowwise_adagrad": 0}
"""State floats for each column; rowwise_adagrad and adam_row have one more a row."""


def state_floats(rule: str, dim: int) -> int:
    return STATE[rule] * dim + (rule in ("rowwise_adagrad", "adam_row"))


def update_row(rule: str, h: dict[str, float], step: int, w: np.ndarray, s: np.ndarray, g: np.ndarray) -> None:
    """One optimizer step on one row, in place: weights w [D], state s, gradient g [D] (scaled already)."""
    dim, lr, eps = len(w), F32(h["lr"]), F32(h["eps"])
    decoupled = rule in ("adam", "adam_row") and h["decoupled"] != 0
    if h["weight_decay"] != 0 and not decoupled:
        g = g + F32(h["weight_decay"]) * w
    if rule == "sgd":
        w[:] = w - lr * g
    elif rule == "momentum":
        m = F32(h["momentum"])
        s[:] = m * s + g
        w[:] = w - lr * (g + m * s if h["nesterov"] else s)
    elif rule == "adagrad":
        s[:] = s + g * g
        w[:] = w - lr * g / (np.sqrt(s) + eps)
    elif rule == "rowwise_adagrad":
        s[0] = s[0] + tree16(g * g) / F32(dim)
        w[:] = w - lr / (np.sqrt(s[0]) + eps) * g
    elif rule in ("adam", "adam_row"):
        if rule == "adam_row":
            s[2 * dim] += F32(1)
            step = int(s[2 * dim])
        if decoupled:
            w[:] = w * F32(1 - h["lr"] * h["weight_decay"])
        m, v = s[:dim], s[dim : 2 * dim]
        m[:] = m + (g - m) * F32(1 - h["beta1"])
        v[:] = v + (g * g - v) * F32(1 - h["beta2"])
        w[:] = w - adam_step_size(h, step) * (m / (np.sqrt(v) + eps))
    elif rule == "ftrl" and lr != 0:
        n, z = s[:dim], s[dim:]
        before = np.sqrt(n)
        n[:] = n + g * g
        after = np.sqrt(n)
        z[:] = z + (g - (after - before) / lr * w)
        shrunk = np.where(z < 0, z + F32(h["l1"]), z - F32(h["l1"]))
        w[:] = np.where(np.abs(z) <= F32(h["l1"]), F32(0), -shrunk / ((F32(h["beta"]) + after) / lr + F32(h["l2"])))


# --------------------------------------------------------------------------------------------------------------- group


@dataclass(kw_only=True)
class Table:
    """The arguments of native TableInit."""

    seed: int
    null_seed: int
    kind: str = "normal"
    a: float = 0.0
    b: float = 0.01
    state0: float = 0.0
    linear_state0: float = 0.0
    frozen: bool = False


@dataclass
class Step:
    """One working set in use: its keys, their records (one for each unique key), and gradients merged so far."""

    features: Sequence[Feature]
    keys: list[tuple[int, int]]
    ids: list[np.ndarray]
    records: list[np.ndarray]
    fresh: list[bool]
    vectors: dict[int, np.ndarray] = field(default_factory=dict)
    linear: dict[int, np.float32] = field(default_factory=dict)


class Group:
    """All rows in one dictionary (native table, key) -> record. Records are float32 even for bf16, whose values they
    then have; `stored` is what the native core keeps of one."""

    def __init__(
        self, dim: int, vector_rule: str, linear_rule: str | None, tables: Sequence[Table], dtype: str = "fp32"
    ) -> None:
        self.dim, self.vector_rule, self.linear_rule, self.tables = dim, vector_rule, linear_rule, tables
        self.dtype = dtype
        self.has_linear = linear_rule is not None
        self.vector_state = state_floats(vector_rule, dim)
        self.linear_state = state_floats(linear_rule, 1) if linear_rule else 0
        self.record_floats = dim + self.has_linear + self.vector_state + self.linear_state
        self.rows: dict[tuple[int, int], np.ndarray] = {}

    def rounded(self, vector: np.ndarray, halves: Sequence[int] | None = None) -> np.ndarray:
        """A vector as the table keeps it: rounded by `halves`, or to nearest even."""
        if self.dtype == "fp32":
            return vector
        noise = [None] * self.dim if halves is None else halves
        return np.array([bf16(value, half) for value, half in zip(vector, noise, strict=True)], dtype=F32)

    def stored(self, record: np.ndarray) -> np.ndarray:
        """The record's words; of a bf16 vector two elements share one, the first in the lower half."""
        if self.dtype == "fp32":
            return record
        upper = [int(bits) >> 16 for bits in record[: self.dim].view(np.uint32)] + [0] * (self.dim % 2)
        packed = [first | second << 16 for first, second in zip(upper[::2], upper[1::2], strict=True)]
        return np.concatenate([np.array(packed, dtype=np.uint32).view(F32), record[self.dim :]])

    def seed(self, native_table: int) -> int:
        table = self.tables[native_table // 2]
        return table.null_seed if native_table % 2 else table.seed

    def initial(self, native_table: int, key: int) -> np.ndarray:
        table = self.tables[native_table // 2]
        word = words(self.seed(native_table), key, self.dim)
        record = np.zeros(self.record_floats, dtype=F32)
        normal = table.kind == "normal"
        values = (table.a + table.b * standard_normal(word)).astype(F32) if normal else uniform(word, table.a, table.b)
        record[: self.dim] = self.rounded(values)
        start = self.dim + self.has_linear
        if "adagrad" in self.vector_rule:
            record[start : start + self.vector_state] = table.state0
        if self.linear_rule and "adagrad" in self.linear_rule:
            record[start + self.vector_state :] = table.linear_state0
        return record

    def locate(self, features: Sequence[Feature], *, train: bool) -> Step:
        keys, ids = unique(len(self.tables), features)
        records, fresh = [], []
        for table, key in keys:
            row = self.rows.get((table, key))
            fresh.append(row is None and train and not self.tables[table // 2].frozen)
            if row is None:
                row = self.initial(table, key) if fresh[-1] else np.zeros(self.record_floats, dtype=F32)
            records.append(row)
        return Step(features, keys, ids, records, fresh)

    def unseen(self, step: Step) -> list[int]:
        return [sum(step.keys[u] not in self.rows for u in ids) for ids in step.ids]

    def forward(self, step: Step, begin: int, end: int) -> tuple[list[np.ndarray], np.ndarray]:
        """Vectors of each feature ([n, D] or [n, L, D]), and first-order weights [F, n]."""
        linear = np.zeros((len(step.features), end - begin), dtype=F32)
        vectors = []
        for f, feature in enumerate(step.features):
            rows = []
            for b in range(begin, end):
                if feature.pooling == "sequence":
                    row, linear[f, b - begin] = self._sequence(step, f, b)
                else:
                    row, linear[f, b - begin] = self._pooled(step, f, b)
                rows.append(row)
            shape = (feature.max_length, self.dim) if feature.pooling == "sequence" else (self.dim,)
            vectors.append(np.array(rows, dtype=F32).reshape(end - begin, *shape))
        return vectors, linear

    def _weight(self, record: np.ndarray) -> np.float32:
        return record[self.dim] if self.has_linear else F32(0)

    def _sequence(self, step: Step, f: int, b: int) -> tuple[np.ndarray, np.float32]:
        feature = step.features[f]
        out, linear = np.zeros((feature.max_length, self.dim), dtype=F32), F32(0)
        for j, n in enumerate(feature.positions(b)):
            record = step.records[step.ids[f][n]]
            out[j] = record[: self.dim]
            linear = linear + self._weight(record)
        return out, linear

    def _pooled(self, step: Step, f: int, b: int) -> tuple[np.ndarray, np.float32]:
        feature = step.features[f]
        total, linear, divisor = np.zeros(self.dim, dtype=F32), F32(0), F32(1)
        if feature.pooling == "one":
            record = step.records[step.ids[f][b]]
            return record[: self.dim].copy(), self._weight(record)
        for n in feature.positions(b):
            divisor, weight = feature.divisor_and_weight(b, n)
            record = step.records[step.ids[f][n]]
            total = total + record[: self.dim] * weight
            linear = linear + self._weight(record) * weight
        if feature.pooling == "mean":
            return (total / divisor, linear / divisor) if divisor != 0 else (total * 0, F32(0))
        return total, linear

    def backward(
        self,
        step: Step,
        begin: int,
        end: int,
        grads: Sequence[np.ndarray | None],
        linear_grads: Sequence[np.ndarray | None],
    ) -> None:
        vectors: dict[int, list[np.ndarray]] = {}
        linear: dict[int, list[np.float32]] = {}
        for f, feature in enumerate(step.features):
            if self.tables[feature.table].frozen:
                continue
            for b in range(begin, end):
                for j, n in enumerate(feature.positions(b)):
                    u = int(step.ids[f][n])
                    divisor, weight = feature.divisor_and_weight(b, n)
                    if divisor == 0:
                        divisor, weight = F32(1), F32(0)
                    g, lg = grads[f], linear_grads[f] if linear_grads else None
                    if g is not None:
                        row = g[b - begin, j] if feature.pooling == "sequence" else g[b - begin]
                        vectors.setdefault(u, []).append(row / divisor * weight)
                    if lg is not None:
                        linear.setdefault(u, []).append(lg[b - begin] / divisor * weight)
        for u, parts in vectors.items():
            merged = _chunked(parts, np.zeros(self.dim, dtype=F32))
            step.vectors[u] = step.vectors[u] + merged if u in step.vectors else merged
        for u, values in linear.items():
            merged = _chunked(values, F32(0))
            step.linear[u] = step.linear[u] + merged if u in step.linear else merged

    def grad_norm_squared(self, step: Step) -> float:
        total = 0.0
        for begin in range(0, len(step.keys), 1024):
            block = 0.0
            for u in range(begin, min(begin + 1024, len(step.keys))):
                if u in step.vectors:
                    block += float(tree16(step.vectors[u].astype(np.float64) ** 2))
                if u in step.linear:
                    block += float(step.linear[u]) ** 2
            total += block
        return total

    def update(
        self,
        step: Step,
        number: int,
        scale: float,
        hyper: Sequence[dict[str, float]],
        linear_hyper: Sequence[dict[str, float]],
    ) -> int:
        added = 0
        for u, key in enumerate(step.keys):
            if u not in step.vectors and u not in step.linear:
                continue
            record = step.records[u]
            if step.fresh[u]:
                self.rows[key] = record
                added += 1
            start = self.dim + self.has_linear
            middle = start + self.vector_state
            table = key[0] // 2
            factor = F32(scale)
            if u in step.vectors and self.dim:
                state = record[start:middle]
                update_row(self.vector_rule, hyper[table], number, record[: self.dim], state, step.vectors[u] * factor)
                halves = rounding_halves(self.seed(key[0]), key[1], number, self.dim) if self.dtype == "bf16" else None
                record[: self.dim] = self.rounded(record[: self.dim], halves)
            if u in step.linear:
                assert self.linear_rule is not None
                gradient = np.array([step.linear[u] * factor], dtype=F32)
                weight = record[self.dim : start]
                update_row(self.linear_rule, linear_hyper[table], number, weight, record[middle:], gradient)
        return added


def _chunked(parts: Sequence[Any], zero: Any) -> Any:
    total = zero
    for begin in range(0, len(parts), CHUNK):
        chunk = zero
        for part in parts[begin : begin + CHUNK]:
            chunk = chunk + part
        total = total + chunk
    return total
