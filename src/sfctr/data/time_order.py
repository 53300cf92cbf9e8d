"""Whether rows that are read in file order are in the order of their times too."""

from __future__ import annotations

import numpy as np

from sfctr.spec.schema import Schema
from sfctr.telemetry import notice

from .taking import Kept
from .times import NO_TIME


class TimeOrder:
    """Says once where a source that is read in file order steps back in time."""

    def __init__(self, schema: Schema) -> None:
        self._column = None if schema.time_column is None else schema.time_column.column
        self._latest = int(NO_TIME)

    def see(self, kept: Kept) -> None:
        """The next of the chunks, in order."""
        if self._column is None or kept.time is None or not kept.size:
            return
        chunk, time = kept.chunk, kept.time if kept.rows is None else kept.time[kept.rows]
        known = time != NO_TIME
        latest = np.maximum.accumulate(np.where(known, time, NO_TIME))
        before = np.concatenate([[self._latest], np.maximum(latest[:-1], self._latest)])
        back = np.flatnonzero(known & (time < before))
        self._latest = max(self._latest, int(latest[-1]))
        if len(back):
            row = int(back[0]) if kept.rows is None else int(kept.rows[back[0]])
            place = f"{chunk.place.file}, row {chunk.place.row(row)}"
            notice(
                f"rows are not in order of the time column '{self._column}', first at {place};"
                " they are read in file order"
            )
            self._column = None
