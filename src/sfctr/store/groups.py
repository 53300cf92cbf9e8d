"""Which tables are served by one native call, and how their options become the numbers that call takes. Pure.

A *group* holds the tables of equal dim, dtype and update rules: one record layout and one kernel serve them all.
Tables with a rule of membership are apart, so that others do not pay for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from sfctr.spec.errors import ConfigError
from sfctr.spec.optim import FTRL, SGD, Adagrad, Adam, AdamW, Optimizer, RowWiseAdagrad
from sfctr.spec.tables import Table


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupPlan:
    """The tables of one group, in the order they were given, and the rules that update them."""

    dim: int
    dtype: Literal["fp32", "bf16"]
    vector_rule: str
    linear_rule: str | None
    tables: tuple[Table, ...]

    @property
    def has_membership(self) -> bool:
        return any(table.has_membership for table in self.tables)

    @property
    def may_be_on_device(self) -> bool:
        """Whether there are kernels for a device; else rows are trained in RAM."""
        return self.dtype == "fp32" and not self.has_membership


def plan_groups(tables: Sequence[Table]) -> tuple[GroupPlan, ...]:
    """Groups of the tables that are not dense, each group and each table in order of first appearance."""
    members: dict[tuple[int, Literal["fp32", "bf16"], str, str | None, bool], list[Table]] = {}
    names: set[str] = set()
    for table in tables:
        if table.name in names:
            raise ConfigError(f"table '{table.name}' is there twice")
        names.add(table.name)
        if not table.dense:
            key = (table.dim, table.dtype, *rules_of(table), table.has_membership)
            members.setdefault(key, []).append(table)
    return tuple(
        GroupPlan(dim=dim, dtype=dtype, vector_rule=vector, linear_rule=linear, tables=tuple(group))
        for (dim, dtype, vector, linear, _), group in members.items()
    )


def rules_of(table: Table) -> tuple[str, str | None]:
    """Native names of the rules that update a table's vectors and its first-order weights."""
    vector = rule_of(table.optimizer) if table.dim else "none"
    return vector, None if table.linear is None else rule_of(table.linear)


def rule_of(optimizer: Optimizer) -> str:
    """Native name of an optimizer's update rule; it decides how much state a row carries."""
    match optimizer:
        case SGD(momentum=0.0):
            return "sgd"
        case SGD():
            return "momentum"
        case Adagrad():
            return "adagrad"
        case RowWiseAdagrad():
            return "rowwise_adagrad"
        case Adam(bias_correction="row") | AdamW(bias_correction="row"):
            return "adam_row"
        case Adam() | AdamW():
            return "adam"
        case FTRL():
            return "ftrl"


def initial_accumulator(optimizer: Optimizer | None) -> float:
    """Value that an Adagrad accumulator begins at; 0 for every other state."""
    return optimizer.initial_accumulator if isinstance(optimizer, Adagrad | RowWiseAdagrad) else 0.0
