"""Puts together what several processes need to train one model: who owns which rows, and how they reach the others.

T tables of a group
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from sfctr.parallel.exchange import GroupSide, RowExchange
from sfctr.parallel.owners import GroupOwners, owners_of, placed
from sfctr.parallel.shapes import RowShape
from sfctr.spec.peers import Peers
from sfctr.spec.runfile import Parallel
from sfctr.spec.tables import Table
from sfctr.store import Group, Store
from sfctr.telemetry import notice


def make_exchange(store: Store, options: Parallel, reading: Peers, training: Peers) -> RowExchange:
    """reading, training: Peers for the thread that reads and for the one that trains."""
    sides = [_side(store, group, options, training.size) for group in store.groups]
    return RowExchange(reading, training, sides, timeout_s=options.timeout_s)


def group_owners(store: Store, group: Group, size: int) -> GroupOwners:
    """Who owns the rows of a group's tables, among `size` ranks."""
    names = [name for name, table in store.tables.items() if not table.dense]
    return GroupOwners(
        [
            owners_of(
                placed(table, group.row_bytes).placement,
                size,
                parts=group.shares(place),
                number=names.index(table.name),
            )
            for place, table in enumerate(group.plan.tables)
        ]
    )


def _side(store: Store, group: Group, options: Parallel, size: int) -> GroupSide:
    plan = group.plan
    is_replicated = [_is_replicated(table, group, options) for table in plan.tables]
    return GroupSide(
        owners=group_owners(store, group, size),
        shape=RowShape(
            dim=plan.dim,
            has_linear=plan.linear_rule is not None,
            words=group.wire_words,
            is_float=plan.dtype == "fp32",
            is_narrow=options.wire == "bf16",
        ),
        is_replicated=np.repeat(np.array(is_replicated, dtype=np.bool_), 2),
        has_membership=plan.has_membership,
        record_words=group.native.record_floats,
        replica=None,
    )


def _is_replicated(table: Table, group: Group, options: Parallel) -> bool:
    return False
