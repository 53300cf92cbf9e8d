"""The run file: one struct for the whole of a run, decoded from TOML with unknown fields refused by path.

`RunFile` holds what changes results first (schema, tables, data, model, train), then what changes speed. `sfctr init`
writes every field; in Python `sfctr.fit` builds the same struct, so that both end in the same resolved run file.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from .errors import ConfigError
from .optim import Adam, DenseOptimizer, Plateau, Schedule, _check
from .schema import Schema, check_fixed
from .tables import Table, Tiers, parse_bytes

Metric = Literal["auc", "logloss", "ne", "gauc"]
MOST_THREADS = 1024
Preset = Literal["scalefreectr"]


class Data(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which files, how they are read, and which rows train and which validate."""

    train: tuple[str, ...] = ()
    """Files, directories, globs or fsspec URLs."""
    valid: tuple[str, ...] = ()
    """Separate validation files; at most one of valid, valid_from and valid_fraction may be given."""
    valid_from: str | None = None
    """Rows whose time is at or after this (ISO 8601, or the time column's own format) validate; all before train."""
    valid_fraction: float | None = None
    """This share of the values of `valid_by` validates, by hash."""
    valid_by: str | None = None
    """Column whose hash decides with valid_fraction; None: the row's position."""
    format: Literal["auto", "parquet", "csv", "tsv", "criteo"] = "auto"
    """auto: by the file's name. "criteo" is the headerless TSV of label, I1-I13, C1-C26."""
    separator: str | None = None
    """CSV only; None: "," (tab for TSV)."""
    null_values: tuple[str, ...] = ()
    """CSV only: texts that mean a missing value, beside the empty one."""
    shuffle: bool | None = None
    """None: shuffle unless the schema has a time column."""
    negatives_keep: float = 1.0
    """Share of the training rows with label 0 that is kept, by hash of the row's position; scores are corrected."""
    memory: int | str = "512MB"
    """Bound on converted rows held in memory when shuffling; more than that is spooled to disk."""
    threads: int = 1
    """Reader threads."""

    def __post_init__(self) -> None:
        splits = [n for n in ("valid", "valid_from", "valid_fraction") if getattr(self, n) not in (None, ())]
        if len(splits) > 1:
            raise ConfigError(f"data.{splits[0]} and data.{splits[1]} are both given; a split needs one of them")
        if self.valid_by is not None and self.valid_fraction is None:
            raise ConfigError("data.valid_by needs data.valid_fraction")
        if self.valid_fraction is not None:
            _check(self, "valid_fraction", 0.0, 1.0, open_low=True)
        if not 0 < self.negatives_keep <= 1:
            raise ConfigError(f"data.negatives_keep is {self.negatives_keep!r} and must be above 0 and at most 1")
        if self.separator is not None and (len(self.separator) != 1 or not self.separator.isascii()):
            raise ConfigError(f"data.separator is {self.separator!r} and must be one ASCII character")
        check_fixed(self.threads, 1, "data.threads")
        parse_bytes(self.memory, "data.memory")

    @property
    def memory_bytes(self) -> int:
        return parse_bytes(self.memory, "data.memory")


class Model(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which model: a built-in name, or the dotted path "package.module:Class" of one's own."""

    name: str = "dcnv2"
    """Name or dotted path."""
    args: dict[str, Any] = {}
    """Keyword arguments of its constructor, after the inputs."""


class Train(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The loop: how long, how fast, what is watched."""

    epochs: int = 1
    """Passes over the training rows."""
    max_steps: int | None = None
    """Stop after this many steps, whatever the epochs."""
    batch_size: int = 4096
    """Rows of a step, over all processes."""
    seed: int = 0
    """Decides first weights, the order of rows and every draw."""
    optimizer: DenseOptimizer = Adam()
    """Of the dense part; each table has its own."""
    schedule: Schedule = Schedule()
    """How the learning rates move over the steps."""
    plateau: Plateau | None = None
    """Reduce the learning rates when the watched metric stands still; None: never."""
    clip: float | None = None
    """Bound on the norm of all gradients, dense and sparse together."""
    accumulate: int = 1
    """Micro-batches a step is split into."""
    loss_labels: tuple[str, ...] = ()
    """Labels whose losses are summed; empty: all."""
    evaluate_every: int | None = None
    """Steps between evaluations; None: at the end of each epoch."""
    watch: Metric = "auc"
    """Metric of the validation part that decides which model is best, early stopping and plateaus."""
    stop_after: int | None = None
    """Stop after this many evaluations without improvement."""
    min_delta: float = 0.0
    """What counts as an improvement of the watched metric."""
    group_by: str | None = None
    """Column of grouped AUC (it must be in schema.keep)."""
    slices: tuple[str, ...] = ()
    """Columns by whose values AUC is reported (they must be in schema.keep)."""
    progressive: bool = False
    """Score each training batch before learning from it, and report the metrics of those scores."""
    device: str = "auto"
    """"auto": the accelerator if there is one, else "cpu"."""
    autocast: Literal["none", "bf16"] = "none"
    """bf16: the model computes in bfloat16 where torch's autocast says so; weights stay float32."""
    compile: bool = False
    """Train through torch.compile's code for the model (part of the run's numerics): fewer microseconds a step, which
    tells in small batches, after about half a minute at the start. Needs a C++ compiler."""
    torch_threads: int | Literal["auto"] | None = None
    """Threads of torch, part of the run's numerics; None: as torch chooses; "auto": as many as make a new run's steps
    quickest, measured first by at least four steps of each number, twice (a run of several processes takes what torch
    chooses). The resolved run file records the number; resuming and verifying use it."""
    threads: int | Literal["auto"] = "auto"
    """Threads of sfctr's own kernels; changes no number. "auto": measured in the first steps, which try several."""
    window: int = 4
    """Batches prepared ahead of the one that trains; changes no number."""
    flush_denormals: bool = True
    """Numbers too small for a normal float count as 0 (part of the run's numerics)."""

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "accumulate"):
            check_fixed(getattr(self, name), 1, f"train.{name}")
        check_fixed(self.window, 0, "train.window")
        _check(self, "min_delta", 0.0)
        for name in ("threads", "torch_threads"):
            count = getattr(self, name)
            if count == "auto" or (count is None and name == "torch_threads"):
                continue
            if not isinstance(count, int):
                raise ConfigError(f'train.{name} is {count!r} and must be a whole number or "auto"')
            check_fixed(count, 1, f"train.{name}")
            if count > MOST_THREADS:
                raise ConfigError(f"train.{name} is {count} and must be at most {MOST_THREADS}")
        if not -(2**63) <= self.seed < 2**64:
            raise ConfigError(f"train.seed is {self.seed} and must be a number of 64 bits")
        if len(set(self.loss_labels)) < len(self.loss_labels):
            raise ConfigError(f"train.loss_labels names a label twice: {', '.join(self.loss_labels)}")
        for name in ("max_steps", "evaluate_every", "stop_after"):
            if getattr(self, name) is not None:
                check_fixed(getattr(self, name), 1, f"train.{name}")
        if self.clip is not None and not self.clip > 0:
            raise ConfigError(f"train.clip is {self.clip!r} and must be above 0")
        if self.accumulate > self.batch_size:
            raise ConfigError(f"train.accumulate is {self.accumulate} and exceeds train.batch_size {self.batch_size}")


class Checkpoints(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When all that a run needs to go on is saved, beside whenever it is told to stop; changes no number."""

    every_steps: int | None = None
    """Steps between checkpoints; None: by time alone."""
    every_minutes: float = 10.0
    """Minutes between checkpoints; 0: by steps alone."""
    at_end: bool = True
    """Save one at the end too, from which the run goes on when train.epochs or train.max_steps is raised."""
    keep: int = 2
    """Newest checkpoints that stay; older ones are removed."""
    full_every: int = 8
    """One in so many holds every row; those between write only the rows that changed. 1: each of them is full."""

    def __post_init__(self) -> None:
        for name in ("keep", "full_every"):
            check_fixed(getattr(self, name), 1, f"checkpoint.{name}")
        if self.every_steps is not None:
            check_fixed(self.every_steps, 1, "checkpoint.every_steps")
        if not 0 <= self.every_minutes < float("inf"):
            raise ConfigError(f"checkpoint.every_minutes is {self.every_minutes!r} and must be at least 0")


class Export(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is written for others while a run trains; changes no number."""

    delta_every: int | None = None
    """Steps between deltas, in RUN/deltas: rows changed and removed since the one before. The first is a base with all
    rows, the last is written at the end; training stands still for each. None: there are none."""

    def __post_init__(self) -> None:
        if self.delta_every is not None:
            check_fixed(self.delta_every, 1, "export.delta_every")


class Parallel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How several processes train one model; a run of one process is told nothing by it."""

    sync: Literal["owners", "allreduce"] = "owners"
    """owners: rows travel to whoever needs them at each step, and gradients back; allreduce: every process keeps copies
    of the rows that any of them uses, and applies the sum of all gradients to them. Changes no number."""
    wire: Literal["fp32", "bf16"] = "fp32"
    """What vectors and their gradients are rounded to on their way (to nearest even); optimizer state never is."""
    dense: Literal["ddp", "fsdp"] = "ddp"
    """ddp: every process has the whole dense part; fsdp: each has a part of its weights, gradients and moments."""
    tensor: int = 1
    """Processes that share the columns and rows of the weights of an MLP's layers among them; 1: none do."""
    shares: tuple[int, ...] = ()
    """Of the 16 lanes that rows are read in, how many each process reads, in the order of ranks; empty: as equal as may
    be. A process may have none."""
    timeout_s: float = 120.0
    """How long a process waits for the others before it ends the run."""

    def __post_init__(self) -> None:
        check_fixed(self.tensor, 1, "parallel.tensor")
        if not 0 < self.timeout_s < float("inf"):
            raise ConfigError(f"parallel.timeout_s is {self.timeout_s!r} and must be above 0")
        if self.shares and (min(self.shares) < 0 or sum(self.shares) != 16):
            raise ConfigError(
                f"parallel.shares is {list(self.shares)} and must be numbers from 0 on that add up to 16 lanes"
            )


class RunFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A whole run."""

    preset: Preset | None = None
    """The paper's pipeline, a cache on the device filled one batch ahead (docs/scalefreectr.md): decides train.window,
    tiers.policy and parallel.sync, and needs tiers.device."""
    data: Data
    """Which files, how they are read, and which rows train and which validate."""
    schema: Schema
    """Which columns are labels, features, weight and time."""
    tables: tuple[Table, ...] = ()
    """Tables that no entry names are added with the defaults that the model needs."""
    model: Model = Model()
    """Which model."""
    train: Train = Train()
    """The loop."""
    tiers: Tiers = Tiers()
    """Where rows may sit and how much they may take."""
    checkpoint: Checkpoints = Checkpoints()
    """When all that the run needs to go on is saved."""
    export: Export = Export()
    """What is written for others while it trains."""
    parallel: Parallel = Parallel()
    """How several processes train it together."""

    def __post_init__(self) -> None:
        if self.preset is not None and self.tiers.device is None:
            raise ConfigError(
                f'preset = "{self.preset}" caches rows on the device and tiers.device is not set; give its size, such'
                ' as tiers.device = "2GB" (on a CPU a device is simulated)'
            )

    def with_preset(self) -> RunFile:
        """The run with what its preset decides."""
        if self.preset is None:
            return self
        return msgspec.structs.replace(
            self,
            train=msgspec.structs.replace(self.train, window=1),
            tiers=msgspec.structs.replace(self.tiers, policy="lru"),
            parallel=msgspec.structs.replace(self.parallel, sync="allreduce"),
        )
