"""What the records of a group hold, as a checkpoint writes it down."""

from __future__ import annotations

from typing import Literal

import msgspec

from sfctr.store import Group


class RecordLayout(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The tables of a group in order, and the parts of their records.

    vector_rule, linear_rule: what updates the vector and the first-order weight (None: there is no weight).
    parts: offset and length, in float32 words, of "vector", "linear", "vector_state" and "linear_state".
    has_last: whether the step that trained a row last is kept beside it.
    """

    tables: tuple[str, ...]
    dim: int
    dtype: Literal["fp32", "bf16"]
    vector_rule: str
    linear_rule: str | None
    record_floats: int
    parts: dict[str, tuple[int, int]]
    has_last: bool

    @property
    def row_bytes(self) -> int:
        """Of a row in a rows file: key, last step and record."""
        return 8 + 4 * self.has_last + 4 * self.record_floats


def layout_of(group: Group) -> RecordLayout:
    plan = group.plan
    return RecordLayout(
        tables=tuple(table.name for table in plan.tables),
        dim=plan.dim,
        dtype=plan.dtype,
        vector_rule=plan.vector_rule,
        linear_rule=plan.linear_rule,
        record_floats=group.native.record_floats,
        parts=group.native.layout(),
        has_last=plan.has_membership,
    )
