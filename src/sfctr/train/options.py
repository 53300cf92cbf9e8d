"""From Python arguments to options of a run, and what options and schema must agree on before anything is read."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from torch import nn

from sfctr.spec.errors import ConfigError, nearest
from sfctr.spec.runfile import Data, RunFile, Train
from sfctr.spec.struct_tree import build, to_plain

from .scoring import Labels

_NOT_BY_KEYWORD = ("train", "valid")
"""Fields of Data that are arguments of fit."""


def paths_of(data: Any) -> tuple[str, ...]:
    """The paths that `data` is, or none where it is something in memory."""
    if isinstance(data, str | os.PathLike):
        return (os.fspath(data),)
    if isinstance(data, list | tuple) and all(isinstance(part, str | os.PathLike) for part in data):
        return tuple(os.fspath(part) for part in data)
    return ()


def name_of(model: str | nn.Module) -> str:
    """A model as a run file names it."""
    return model if isinstance(model, str) else f"{type(model).__module__}:{type(model).__qualname__}"


def options_from_keywords(options: Mapping[str, Any], train: Sequence[str], valid: Sequence[str]) -> tuple[Data, Train]:
    """Fields of [data] and [train] by name. Raises ConfigError for a name that is neither's, or a wrong value."""
    data_fields = [f for f in Data.__struct_fields__ if f not in _NOT_BY_KEYWORD]
    known = [*data_fields, *(f for f in Train.__struct_fields__ if f not in data_fields)]
    for name in options:
        if name not in known:
            hint = nearest(name, known) or f"; options are {', '.join(known)}"
            raise ConfigError(f"fit has no option '{name}'{hint}")
    for_data = {name: value for name, value in options.items() if (name, value) != ("threads", "auto")}
    reading = {"train": tuple(train), "valid": tuple(valid)} | _of(for_data, Data, "data")
    return build(reading, Data, "data"), build(_of(options, Train, "train"), Train, "train")


def _of(options: Mapping[str, Any], struct: type[msgspec.Struct], path: str) -> dict[str, Any]:
    """The options that are fields of `struct`, as plain data; None where it is a field's default is left out."""
    defaults = {field.name: field.default for field in msgspec.structs.fields(struct)}
    chosen = {k: v for k, v in options.items() if k in defaults and not (v is None and defaults[k] is None)}
    return {k: None if v is None else to_plain(v, f"{path}.{k}") for k, v in chosen.items()}


def check_run(run: RunFile) -> None:
    """Raise ConfigError where [train] names labels or columns that the schema lacks."""
    train, keep = run.train, run.schema.keep
    Labels.of(run.schema, train.loss_labels)
    wanted = [("group_by", train.group_by)] + [("slices", column) for column in train.slices]
    for option, column in wanted:
        if column is not None and column not in keep:
            raise ConfigError(
                f"train.{option} names column '{column}', which schema.keep does not list{nearest(column, keep)};"
                f" add '{column}' to schema.keep"
            )
    if train.compile and (run.parallel.dense != "ddp" or run.parallel.tensor > 1):
        other = f'parallel.dense = "{run.parallel.dense}"' if run.parallel.tensor == 1 else "parallel.tensor"
        raise ConfigError(
            f"train.compile compiles a model that is whole in each process, and {other} divides it; set train.compile ="
            " false, or leave the model whole"
        )
    if train.watch == "gauc" and train.group_by is None:
        raise ConfigError('train.watch is "gauc", which needs train.group_by: the column to group by')


def check_validation(run: RunFile, has_validation: bool) -> None:
    """Raise ConfigError where [train] waits for a watched metric and there is no validation part to take it from."""
    for option in ("stop_after", "plateau"):
        if getattr(run.train, option) is not None and not has_validation:
            raise ConfigError(
                f"train.{option} follows train.watch on validation data, and there are none; give data.valid,"
                " data.valid_from or data.valid_fraction"
            )
