"""Which time format numbers such as 14102100, 20141021 or 1413849600000 are written in."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sfctr.spec.batch import I64
from sfctr.spec.errors import DataError

from .column import Column
from .place import Place
from .times import DAY_S, EPOCH_UNITS, NO_TIME, times

_NOWHERE = Place("the sample")

_CALENDAR = {6: ("%y%m%d",), 8: ("%Y%m%d", "%y%m%d%H"), 10: ("%Y%m%d%H",), 12: ("%Y%m%d%H%M",), 14: ("%Y%m%d%H%M%S",)}
"""By the number of digits, the likeliest first."""
_FIRST = int(datetime(1980, 1, 1, tzinfo=UTC).timestamp()) * 10**9
_LAST = int(datetime(2100, 1, 1, tzinfo=UTC).timestamp()) * 10**9
FORMATS = 'such as "%y%m%d%H" for 14102100, or "s" or "ms" since 1970'


def number_time_format(found: npt.NDArray[Any]) -> str | None:
    """The format under which all of these whole numbers are times between 1980 and 2100, or None."""
    if len(found) == 0 or found.min() <= 0:
        return None
    low, high = int(found.min()), int(found.max())
    formats = _CALENDAR.get(len(str(low)), ()) if len(str(low)) == len(str(high)) else ()
    for format in formats:
        ns = _parsed(np.unique(found), format)
        if ns is not None and ns.min() >= _FIRST and ns.max() < _LAST:
            return format
    for unit, unit_ns in EPOCH_UNITS.items():
        if low * unit_ns >= _FIRST and high * unit_ns < _LAST:
            return unit
    return None


def _parsed(distinct: npt.NDArray[Any], format: str) -> I64 | None:
    try:
        return times(Column(pa.array(distinct), _NOWHERE), format)
    except DataError:
        return None


def split_time(ns: I64, share: float = 0.1) -> str | None:
    """The time, in ISO 8601, that leaves nearest to `share` of these at or after it; None where they are all equal."""
    ns = np.sort(ns[ns != NO_TIME])
    starts = np.flatnonzero(np.diff(ns, prepend=ns[:1] - 1)) if len(ns) else np.zeros(0, np.int64)
    if len(starts) < 2:
        return None
    later = 1.0 - starts[1:] / len(ns)
    best = int(ns[starts[1:][np.argmin(np.abs(later - share))]])
    seconds, rest = divmod(best, 10**9)
    text = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return text if rest == 0 else f"{text}.{rest:09}"


def has_hours(ns: I64) -> bool:
    """Whether these times say more than a day."""
    return bool(np.any(ns % (DAY_S * 10**9) != 0))
