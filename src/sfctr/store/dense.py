"""Dense tables: small tables that are ordinary parameters, moved at every step by the dense part's optimizer.

  R rows, D dim

Row R (one past the last key) stands for a missing value. Rows begin as a stored table's rows would, from the key alone.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from sfctr import _native
from sfctr.spec.batch import F32
from sfctr.spec.tables import Table

from .seeds import table_init


class DenseTable(nn.Module):
    """`weight` [R + 1, D] (absent for dim 0) and, with `linear`, `linear` [R + 1, 1]; both float32 on `device`."""

    weight: nn.Parameter | None
    linear: nn.Parameter | None

    def __init__(self, table: Table, seed: int, device: torch.device) -> None:
        super().__init__()
        self.table = table
        rows = table.rows_of_dense + 1
        self.weight = nn.Parameter(torch.from_numpy(_initial_rows(table, seed)).to(device)) if table.dim else None
        self.linear = nn.Parameter(torch.zeros(rows, 1, device=device)) if table.linear is not None else None

    @torch.no_grad()
    def add_l2_gradient(self) -> None:
        """Add the gradient of l2 / 2 * sum(w^2), over the whole table, to what backward left."""
        for parameter, l2 in ((self.weight, self.table.l2), (self.linear, self.table.linear_l2)):
            if parameter is None or l2 == 0:
                continue
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            parameter.grad.add_(parameter, alpha=l2)


def _initial_rows(table: Table, seed: int) -> F32:
    """float32 [R + 1, D]: what a stored table with this name and seed would begin its rows with."""
    rows = np.empty((table.rows_of_dense + 1, table.dim), dtype=np.float32)
    group = _native.RowGroup(table.dim, False, "sgd", None, [table_init(table, seed)])
    group.initial_records(0, np.arange(table.rows_of_dense, dtype=np.uint64), rows[:-1])
    group.initial_records(1, np.zeros(1, dtype=np.uint64), rows[-1:])
    return rows
