"""What some steps came to on one of several ranks, and the parts of all ranks as one outcome. Pure.

B rows of a rank's part of a batch, K labels
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sfctr.spec.batch import I64, Batch

from .difference import Difference
from .outcome import Floats, Outcome, TableRows


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """outcome: of a rank: its rows of each batch and of each table, and the whole of the dense part.

    places: of each step, int64 [B], where its rows stand in the whole batch.
    """

    outcome: Outcome
    places: tuple[I64, ...]


def joined(parts: Sequence[Part], batch: Batch) -> Outcome:
    """What all ranks came to. batch: the whole of the last step's, which parts have parts of.

    A row that two ranks have is there twice.
    """
    outcomes = [part.outcome for part in parts]
    first = outcomes[0]
    steps = range(len(parts[0].places))
    return Outcome(
        logits=tuple(_in_order([o.logits[t] for o in outcomes], [part.places[t] for part in parts]) for t in steps),
        rows={
            table: _all_rows([o.rows[table] for o in outcomes], table in _dense_tables(first)) for table in first.rows
        },
        dense=first.dense,
        batch=batch,
        inputs={
            name: _in_order(
                [o.inputs[name] for o in outcomes if name in o.inputs],
                [part.places[-1] for part in parts if name in part.outcome.inputs],
            )
            for name in next(o.inputs for o in outcomes if o.inputs)
        },
    )


def _in_order(values: Sequence[Floats], places: Sequence[I64]) -> Floats:
    order = np.argsort(np.concatenate(places), kind="stable")
    found: Floats = np.concatenate(values)[order]
    return found


def _all_rows(rows: Sequence[TableRows], is_dense: bool) -> TableRows:
    if is_dense:
        return rows[0]
    return TableRows.sorted(
        np.concatenate([each.keys for each in rows]),
        np.concatenate([each.nulls for each in rows]),
        {name: np.concatenate([each.fields[name] for each in rows]) for name in rows[0].fields},
    )


def _dense_tables(outcome: Outcome) -> set[str]:
    """Tables whose rows are parameters, which every rank has."""
    names = (name.split(".") for name in outcome.dense if name.startswith("table."))
    return {".".join(parts[1:-1]) for parts in names}


def ranks_at_odds(parts: Sequence[Part]) -> Difference | None:
    """A tensor of the dense part that two ranks have with other bits: all must have the same."""
    step = len(parts[0].places)
    for rank, part in enumerate(parts):
        for name, values in parts[0].outcome.dense.items():
            theirs = part.outcome.dense[name]
            if values.tobytes() != theirs.tobytes():
                what = f"{name} is not the same on rank 0 and rank {rank}: ranks have drifted apart"
                return Difference(step=step, field=name, what=what)
    return None
