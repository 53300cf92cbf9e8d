"""Says what the ids of a data set look like and what tiers they need.

`trace_batches` makes one pass over batches in training order and gives a `TraceReport`; `write_trace` writes it as
trace.json and trace.svg. The unit of access is a distinct key of a batch: its row is fetched once, however often the
batch looks it up. Nothing here reads a row, a model or a device.
"""

from .accesses import Accesses
from .picture import picture
from .recording import Recording, TracedTable, traced_features
from .report import Advice, Curve, Reuse, Spread, TableTrace, TraceReport, write_trace
from .tracing import Tracing, trace_batches

__all__ = [
    "Accesses",
    "Advice",
    "Curve",
    "Recording",
    "Reuse",
    "Spread",
    "TableTrace",
    "TraceReport",
    "TracedTable",
    "Tracing",
    "picture",
    "trace_batches",
    "traced_features",
    "write_trace",
]
