"""What a run of some steps came to: nouns that every way of training fills in, so that they can be laid side by side.

B rows of a batch, K labels, n rows of a table, W floats of a field
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sfctr.spec.batch import U64, Batch, Bools
from sfctr.spec.optim import FTRL, SGD, Adagrad, Adam, AdamW, Optimizer, RowWiseAdagrad
from sfctr.spec.tables import Table

Floats = npt.NDArray[np.floating[Any]]


@dataclass(frozen=True, kw_only=True, slots=True)
class TableRows:
    """Every row of a table, by (null, key): keys uint64 [n], nulls bool [n] (the row of a missing value), and of each
    field its values [n, W]; see `fields_of`."""

    keys: U64
    nulls: Bools
    fields: Mapping[str, Floats]

    @classmethod
    def sorted(cls, keys: U64, nulls: Bools, fields: Mapping[str, Floats]) -> TableRows:
        """The same rows, given in any order."""
        order = np.lexsort((keys, nulls))
        return cls(keys=keys[order], nulls=nulls[order], fields={name: field[order] for name, field in fields.items()})


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What some steps came to.

    logits: of each step, [B, K] as the model gave them in training. rows: of each table, after the last step.
    dense: parameters, buffers and optimizer state of the dense part after the last step, by name.
    batch, inputs: the last step's batch, and what the model was given for it, feature entry -> [B, ...].
    """

    logits: tuple[Floats, ...]
    rows: Mapping[str, TableRows]
    dense: Mapping[str, Floats]
    batch: Batch
    inputs: Mapping[str, Floats]

    @property
    def steps(self) -> int:
        return len(self.logits)

    @property
    def num_predictions(self) -> int:
        return sum(logits.size for logits in self.logits)

    @property
    def num_rows(self) -> int:
        return sum(rows.keys.size for rows in self.rows.values())


def state_widths(optimizer: Optimizer, dim: int) -> dict[str, int]:
    """Floats of each part of the state that a weight vector of `dim` has, in the order of docs/optimizers.md."""
    match optimizer:
        case SGD(momentum=0.0):
            return {}
        case SGD():
            return {"m": dim}
        case Adagrad():
            return {"s": dim}
        case RowWiseAdagrad():
            return {"s": 1}
        case Adam() | AdamW():
            return {"m": dim, "v": dim} | ({"t": 1} if optimizer.bias_correction == "row" else {})
        case FTRL():
            return {"n": dim, "z": dim}


def state_name(part: str, of: str) -> str:
    """How reports call a part of the state of a row's vector or first-order weight."""
    return f"state {part} of the {of}"


def fields_of(table: Table) -> dict[str, int]:
    """Floats of each field of a table's rows: weights, then the state in the order in which a record has it."""
    parts = [("vector", table.dim, table.optimizer)] if table.dim else []
    parts += [("linear", 1, table.linear)] if table.linear is not None else []
    widths = {name: width for name, width, _ in parts}
    for name, width, optimizer in [] if table.dense else parts:
        widths |= {state_name(part, name): size for part, size in state_widths(optimizer, width).items()}
    return widths


def dense_values(
    named: Mapping[str, Tensor], optimizer: torch.optim.Optimizer | None, in_order: Sequence[Tensor]
) -> dict[str, Floats]:
    """Values of the dense part by name: `named` parameters and buffers, and the state that `optimizer` has of them.

    in_order: the parameters as the optimizer was given them.
    """
    values = {name: as_array(tensor) for name, tensor in named.items()}
    if optimizer is None:
        return values
    names = {id(tensor): name for name, tensor in named.items()}
    for number, state in optimizer.state_dict()["state"].items():
        for part, value in state.items():
            if value is not None:
                values[f"{part} of {names[id(in_order[number])]}"] = as_array(torch.as_tensor(value))
    return values


@torch.no_grad()
def load_dense(
    values: Mapping[str, Floats],
    named: Mapping[str, Tensor],
    optimizer: torch.optim.Optimizer | None,
    in_order: Sequence[Tensor],
) -> None:
    """The way back of dense_values."""
    for name, tensor in named.items():
        tensor.copy_(torch.from_numpy(values[name]).reshape(tensor.shape))
    if optimizer is None:
        return
    names = {id(tensor): name for name, tensor in named.items()}
    for parameter in in_order:
        whose = f" of {names[id(parameter)]}"
        for part in (name.removesuffix(whose) for name in values if name.endswith(whose)):
            state = torch.from_numpy(values[part + whose])
            is_count = part == "step"
            optimizer.state[parameter][part] = state.reshape(()) if is_count else state.to(parameter).view_as(parameter)


def as_array(tensor: Tensor) -> Floats:
    """A copy of a tensor's values, of one dimension at least. What is neither float32 nor float64 becomes float32."""
    known = tensor.dtype in (torch.float32, torch.float64)
    array: Floats = np.atleast_1d(tensor.detach().to(tensor.dtype if known else torch.float32).cpu().numpy().copy())
    return array
