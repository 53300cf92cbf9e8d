"""A run that goes on: from which checkpoint, and which options may be others than they were."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any

import msgspec
from torch import nn

from sfctr.checkpoint import Checkpoint
from sfctr.data import Source
from sfctr.data.order import ORDER
from sfctr.spec.errors import ConfigError, DataError
from sfctr.spec.peers import ALONE, Peers
from sfctr.spec.runfile import RunFile
from sfctr.spec.runfile_text import decode_run_file
from sfctr.spec.schema import Cross, Dense, Feature
from sfctr.spec.struct_tree import entry_name, join_path, shown, to_plain
from sfctr.telemetry import notice

from .assembly import settled
from .checkpoint_files import newest_checkpoint
from .run_dir import CHECKPOINTS, RUN_FILE

MAY_CHANGE = (
    *("tiers", "checkpoint", "export"),
    *("parallel.sync", "parallel.dense", "parallel.tensor", "parallel.shares", "parallel.timeout_s"),
    *("data.memory", "data.threads"),
    *("train.epochs", "train.max_steps", "train.threads", "train.window"),
)
"""Options that a run may go on with others of, and the placement of tables: they decide how long it takes, no number
of a step."""
_LENGTHS = ("train.epochs", "train.max_steps")
"""Which do decide numbers where the learning rates fall until the end of the run."""


def find_start(
    run: RunFile, run_dir: Path, model: nn.Module | None, peers: Peers = ALONE
) -> tuple[RunFile, Checkpoint | None]:
    """The run in `run_dir`, settled as it was when it began and with what may change as `run` has it; and its newest
    checkpoint, or None, said aloud, where it begins anew.

    Raises ConfigError for an option that may not change, CheckpointError where no checkpoint is sound.
    """
    found = newest_checkpoint(run_dir / CHECKPOINTS, peers)
    file = run_dir / RUN_FILE
    if found is not None:
        notice(f"{run_dir}: going on from step {found.trainer['loop']['step']:,}")
        return continued(found.run, run, model), found
    notice(f"{run_dir}: there is no checkpoint to go on from; training begins anew")
    if file.exists():
        return continued(decode_run_file(file.read_text(encoding="utf-8"), str(file)), run, model), None
    return settled(run, model), None


def continued(saved: RunFile, asked: RunFile, model: nn.Module | None = None) -> RunFile:
    """The saved run with what may change as asked for. Raises ConfigError naming what may not, and is other."""
    asked = settled(_decided(asked, saved), model)
    changed = [path for path in differences(saved, asked) if not _may_change(path[0], saved)]
    if changed:
        path, was, now = changed[0]
        more = f", nor can {', '.join(path for path, _, _ in changed[1:])}" if changed[1:] else ""
        raise ConfigError(
            f"{path} is {now} and was {was} in the run that is to go on, where it cannot change{more}; set it back, or"
            " train in another directory"
        )
    return asked


def check_data(source: Source, num_rows: int | None) -> None:
    """Raise DataError where the data have another number of rows than they had, if both are known."""
    if None not in (num_rows, source.num_rows) and num_rows != source.num_rows:
        raise DataError(
            f"the training data have {source.num_rows:,} rows, and had {num_rows:,} in the run that is to go on",
            remedy="give it the same data, or train in another directory",
        )


def check_order(run: RunFile, order: int) -> None:
    """Raise ConfigError where rows were shuffled in another order than this version's."""
    is_shuffled = run.data.shuffle if run.data.shuffle is not None else run.schema.time_column is None
    if is_shuffled and order != ORDER:
        raise ConfigError(
            f"the run that is to go on read its rows in order {order} of shuffling, and this version of sfctr knows"
            f" order {ORDER} alone: some rows would be trained twice and others not; train anew, or begin from its rows"
            " with --restore"
        )


def differences(saved: Any, asked: Any, path: str = "") -> Iterator[tuple[str, str, str]]:
    """(path, what was saved, what is asked for) of each option that differs."""
    saved, asked = (to_plain(value, path) if isinstance(value, msgspec.Struct) else value for value in (saved, asked))
    if isinstance(saved, dict) and isinstance(asked, dict):
        for name in dict.fromkeys((*saved, *asked)):
            yield from differences(saved.get(name), asked.get(name), join_path(path, name))
    elif _are_entries(saved) and _are_entries(asked):
        for number, (one, other) in enumerate(zip_longest(saved, asked)):
            yield from differences(one, other, join_path(path, entry_name(one or other, number)))
    elif saved != asked:
        yield path, _words(saved), _words(asked)


def _may_change(path: str, saved: RunFile) -> bool:
    schedule = saved.train.schedule
    if path in _LENGTHS and schedule.decay in ("linear", "cosine") and not schedule.decay_steps:
        return False  # the decay ends with the run
    if path.startswith("tables.") and path.endswith(".placement"):
        return True
    return any(path == option or path.startswith(f"{option}.") for option in MAY_CHANGE)


def _are_entries(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(entry, dict) for entry in value)


def _words(value: Any) -> str:
    return "not set" if value is None else shown(value)


def _decided(asked: RunFile, saved: RunFile) -> RunFile:
    """What was left to the data or the machine is as it came out then."""
    train = asked.train
    train = msgspec.structs.replace(
        train,
        device=saved.train.device if train.device == "auto" else train.device,
        torch_threads=train.torch_threads if isinstance(train.torch_threads, int) else saved.train.torch_threads,
    )
    return with_decided_features(msgspec.structs.replace(asked, train=train), saved)


def with_decided_features(asked: RunFile, saved: RunFile) -> RunFile:
    """What `asked` leaves to its data (types of keys, moments) is as it was for features of the same name."""
    were = {feature.name: feature for feature in saved.schema.features}
    features = tuple(_decided_feature(feature, were.get(feature.name)) for feature in asked.schema.features)
    return msgspec.structs.replace(asked, schema=msgspec.structs.replace(asked.schema, features=features))


def _decided_feature(asked: Feature, saved: Feature | None) -> Feature:
    if isinstance(asked, Dense) and isinstance(saved, Dense):
        moments = {"mean": saved.mean, "std": saved.std} if asked.standardize and asked.mean is None else {}
        return msgspec.structs.replace(asked, **moments)
    if isinstance(asked, Cross) and isinstance(saved, Cross):
        is_decided = asked.dtypes is not None and "auto" not in asked.dtypes
        return asked if is_decided else msgspec.structs.replace(asked, dtypes=saved.dtypes)
    if getattr(asked, "dtype", None) == "auto":
        return msgspec.structs.replace(asked, dtype=getattr(saved, "dtype", "auto"))
    return asked
