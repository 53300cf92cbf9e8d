"""Tables: where features look their keys up, and how rows begin, learn and are kept."""

from __future__ import annotations

from typing import Literal

import msgspec

from .errors import ConfigError
from .optim import Adam, Optimizer, _check


class Normal(msgspec.Struct, frozen=True, tag="normal", tag_field="kind", forbid_unknown_fields=True):
    """Rows begin as N(mean, std); each element follows from (seed, table, key, element) alone."""

    std: float = 0.01
    """Standard deviation; 0 begins at the mean."""
    mean: float = 0.0
    """Mean."""

    def __post_init__(self) -> None:
        _check(self, "std", 0.0)
        _check(self, "mean", -float("inf"), open_low=True)


class Uniform(msgspec.Struct, frozen=True, tag="uniform", tag_field="kind", forbid_unknown_fields=True):
    """Rows begin uniform in [low, high); each element follows from (seed, table, key, element) alone."""

    low: float = -0.01
    """Least value."""
    high: float = 0.01
    """Bound above every value."""

    def __post_init__(self) -> None:
        if not -float("inf") < self.low <= self.high < float("inf"):
            raise ConfigError(f"Uniform.low is {self.low!r} and must be finite and not exceed high, {self.high!r}")


Init = Normal | Uniform


class Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A named set of rows that features look keys up in.

    `Table("item", dim=16)` grows with the data: any 64-bit key, or a missing value, owns a row from the first committed
    step that trained it. `Table("hour", num_rows=24, dense=True)` is an ordinary parameter of the dense part.
    """

    name: str
    """What features call it."""
    dim: int = 16
    """Length of a row's vector. 0 is allowed with `linear`: the table then has first-order weights alone."""
    init: Init = Normal()
    """What rows begin from: kind "normal" (std, mean) or "uniform" (low, high)."""
    optimizer: Optimizer = Adam()
    """What updates the vectors."""
    linear: Optimizer | None = None
    """Optimizer of a first-order weight beside the vector (starts at 0); None: the table has none."""
    dtype: Literal["fp32", "bf16"] = "fp32"
    """What vectors are kept in. "bf16" halves their bytes; an update is computed in fp32 and rounded at random to one
    of the two neighbours, without bias. Optimizer state and first-order weights stay fp32."""
    buckets: int | None = None
    """The hashing trick: keys are hashed into this many rows, so memory is fixed and keys collide."""
    dense: bool = False
    """A small table whose every row moves at every step: a parameter of the dense part, under its optimizer."""
    num_rows: int | None = None
    """Rows of a dense table; its keys are 0 .. num_rows - 1 (or hashed, with `buckets`)."""
    l2: float = 0.0
    """Dense tables only: adds l2 / 2 * sum(w^2) over the whole table to the loss, at every step."""
    linear_l2: float = 0.0
    """The same for a dense table's first-order weights."""
    pretrained: str | None = None
    """A Parquet file with a column `key` and a list column `vector` of `dim` floats that rows begin from."""
    frozen: bool = False
    """Rows keep their first value: nothing is trained or added."""
    capacity: int | None = None
    """Most rows that keys may have; beyond it those trained longest ago are removed. None: no bound."""
    admit_after: int = 1
    """Steps that must have trained a key, the one that gives it a row included; 1: every trained key has a row."""
    expire_after_steps: int | None = None
    """A row that so many steps have not trained is removed, and its key begins anew."""
    expire_after: str | None = None
    """The same by the time column: "7d", "12h" (w, d, h, m, s), counted from the greatest time trained so far."""
    unseen: Literal["zero", "rare"] = "zero"
    """What a key without a row reads as: zeros, or the table's one rare row, which keys not yet admitted train."""
    placement: Literal["auto", "sharded", "one", "replicated"] = "auto"
    """Where its rows are when several processes train: sharded among them by the hash of the key; all on one of them;
    or sharded with a copy on each, which is for small tables that every batch uses. auto: replicated where buckets or
    capacity bound it to 1 MB, else sharded. Changes no number."""

    def __post_init__(self) -> None:
        where = f"table '{self.name}'"
        if not self.name:
            raise ConfigError("a table needs a name that is not empty")
        if not 0 <= self.dim <= 4096 or (self.dim == 0 and self.linear is None):
            raise ConfigError(f"{where}: dim is {self.dim} and must be 1 to 4096 (0 only with linear)")
        if self.dtype == "bf16" and (self.dense or self.dim == 0):
            what = "its vectors are a parameter of the dense part" if self.dense else "it has no vectors (dim is 0)"
            raise ConfigError(f'{where}: dtype is "bf16" and {what}; leave dtype out')
        _check(self, "l2", 0.0)
        _check(self, "linear_l2", 0.0)
        for name in ("buckets", "num_rows"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{where}: {name} is {value} and must be at least 1")
        if self.dense and self.buckets is None and self.num_rows is None:
            raise ConfigError(f"{where}: a dense table needs num_rows (or buckets)")
        if not self.dense and (self.num_rows is not None or self.l2 or self.linear_l2):
            raise ConfigError(f"{where}: num_rows, l2 and linear_l2 belong to dense tables; add dense = true")
        if self.dense and self.buckets is not None and self.num_rows not in (None, self.buckets):
            raise ConfigError(f"{where}: num_rows is {self.num_rows} and buckets {self.buckets}; give one of them")
        if self.frozen and self.pretrained is None:
            raise ConfigError(f"{where}: frozen rows need pretrained values to begin from")
        if self.pretrained is not None and (self.dense or self.buckets is not None or self.dim == 0):
            raise ConfigError(
                f"{where}: pretrained rows need a table with vectors that is not dense and has no buckets"
            )
        _check_membership(self, where)

    @property
    def expire_after_ns(self) -> int:
        """Nanoseconds of `expire_after`; 0 without it."""
        return 0 if self.expire_after is None else parse_duration(self.expire_after, f"table '{self.name}'")

    @property
    def has_membership(self) -> bool:
        """Whether a key may be without a row although it was trained."""
        return bool(self._membership_options())

    def _membership_options(self) -> list[str]:
        """Names of the options of membership that are set, `unseen` apart."""
        limits = [
            name for name in ("capacity", "expire_after_steps", "expire_after") if getattr(self, name) is not None
        ]
        return [*limits, *(["admit_after"] if self.admit_after > 1 else [])]

    @property
    def rows_of_dense(self) -> int:
        """Rows of a dense table without the one that stands for a missing value."""
        rows = self.buckets if self.buckets is not None else self.num_rows
        assert rows is not None
        return rows


def _check_membership(table: Table, where: str) -> None:
    for name in ("capacity", "admit_after", "expire_after_steps"):
        value = getattr(table, name)
        if value is not None and not 1 <= value < 2**31:
            raise ConfigError(f"{where}: {name} is {value} and must be 1 to {2**31 - 1:,}")
    if table.expire_after is not None:
        parse_duration(table.expire_after, where)
    if table.expire_after is not None and table.expire_after_steps is not None:
        raise ConfigError(f"{where}: expire_after and expire_after_steps are both given; keep one of them")
    if table.unseen == "rare" and table.admit_after == 1:
        raise ConfigError(
            f"{where}: unseen = 'rare' needs admit_after of 2 or more, because keys not yet admitted train the rare row"
        )
    options = table._membership_options()
    if options and (table.dense or table.frozen):
        kind = "dense" if table.dense else "frozen"
        raise ConfigError(f"{where}: the rows of a {kind} table stay as they are; take away {options[0]}")
    if table.buckets is not None and (table.capacity is not None or table.admit_after > 1):
        raise ConfigError(f"{where}: buckets bound its rows already; take away {options[0]}, or buckets")


class Tiers(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where rows may sit and how much they may take; changes no number."""

    device: int | str | None = None
    """Bytes, or text such as "2GB", of the cache of rows on the accelerator (on a CPU: a simulated one); None: none."""
    ram: int | str | None = None
    """Bytes, or text, that rows, index and the disk's buffers may take (a few MB of buffers come on top of less than
    some 64 MB); None: half of what the machine has left."""
    disk: str | bool | None = None
    """Directory for rows that RAM has no room for; None or true: the run's own; false: none may leave RAM."""
    policy: Literal["lru", "lfu"] = "lru"
    """Which rows leave first among those that no batch of the window needs: the least recently or least often used."""

    def __post_init__(self) -> None:
        self.device_bytes, self.ram_bytes  # noqa: B018  a wrong size is refused at once
        if self.disk == "":
            raise ConfigError("tiers.disk is empty; name a directory, or false to keep all rows in RAM")

    @property
    def device_bytes(self) -> int | None:
        return None if self.device is None else parse_bytes(self.device, "tiers.device")

    @property
    def ram_bytes(self) -> int | None:
        return None if self.ram is None else parse_bytes(self.ram, "tiers.ram")


_UNITS: dict[str, int] = {
    "": 1,
    "b": 1,
    **{f"{unit}b": 1000**power for power, unit in enumerate("kmgt", 1)},
    **{f"{unit}ib": 1024**power for power, unit in enumerate("kmgt", 1)},
}


def parse_bytes(value: int | str, where: str) -> int:
    """Bytes of 2000000, "2GB" or "512 MiB". Raises ConfigError for anything else, or for less than one byte."""
    text = str(value).strip().lower().replace("_", "")
    number = text.rstrip("bkmgti ")
    unit = text[len(number) :].strip()
    try:
        size = int(float(number) * _UNITS[unit])
    except (ValueError, KeyError, OverflowError):
        raise ConfigError(f'{where} is {value!r}; write bytes, or a size such as "512MB", "2GB" or "1.5GiB"') from None
    if size < 1:
        raise ConfigError(f"{where} is {value!r} and must be at least one byte")
    return size


_SECONDS = {"w": 604800, "d": 86400, "h": 3600, "m": 60, "s": 1}


def parse_duration(text: str, where: str) -> int:
    """Nanoseconds of "7d", "12h", "90m" or "1.5d". Raises ConfigError for anything else, or for 292 years and more."""
    try:
        span = round(float(text[:-1]) * _SECONDS[text[-1:]] * 1e9)
    except (ValueError, KeyError, OverflowError):
        span = 0
    if not 0 < span < 2**63:
        raise ConfigError(f'{where}: expire_after is {text!r}; write a duration such as "7d", "12h" or "90m"')
    return span


Pooling = Literal["sum", "mean"]
