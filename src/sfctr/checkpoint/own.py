"""What of a saved table one rank takes, where several hold its rows between them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from sfctr.spec.batch import U64
from sfctr.spec.owned import Owns
from sfctr.store import Waiting

_SAMPLE: U64 = np.arange(4096, dtype=np.uint64)


def share_of(num_rows: int, table: str, owns: Owns | None) -> int:
    """About how many of a table's rows are this rank's own, rather a few more: judged by keys that are not the table's,
    whose hashes are as evenly spread."""
    if owns is None:
        return num_rows
    return min(num_rows, round(1.1 * num_rows * float(owns(table, _SAMPLE).mean())))


def own_membership(
    table: str, counters: Mapping[str, int], waiting: Waiting, owns: Owns | None
) -> tuple[Mapping[str, int], Waiting]:
    """The keys of its own that wait; and what the table has counted goes to one rank, so that sums stay what they
    were."""
    if owns is None:
        return counters, waiting
    is_own = owns(table, waiting.keys)
    has_counters = bool(owns(table, np.zeros(1, np.uint64))[0])
    return (
        counters if has_counters else dict.fromkeys(counters, 0),
        Waiting(keys=waiting.keys[is_own], counts=waiting.counts[is_own], last=waiting.last[is_own]),
    )
