"""The hyper-parameters of a group's tables as the native update takes them: one row a table, columns by name."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from sfctr import _native
from sfctr.spec.optim import AdamW, Optimizer

F64 = npt.NDArray[np.float64]


def hyper_parameters(optimizers: Sequence[Optimizer]) -> F64:
    """float64 [T, columns]: each optimizer's options, under the names that they have there; 0 where it has none."""
    columns = _native.hyper_columns()
    table = np.zeros((len(optimizers), len(columns)))
    for row, optimizer in zip(table, optimizers, strict=True):
        options = msgspec.structs.asdict(optimizer) | {"decoupled": isinstance(optimizer, AdamW)}
        row[:] = [options.get(name, 0) for name in columns]
    return table


def with_lr(hyper: F64, factor: float) -> F64:
    """The same with every learning rate multiplied by `factor`."""
    scaled = hyper.copy()
    scaled[:, _native.hyper_columns().index("lr")] *= factor
    return scaled
