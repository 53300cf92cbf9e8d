"""Has the rows of the next batches in place when their step begins, with the results of depth zero."""

from .embed import embed
from .lookahead import Lookahead
from .ready import Ready, RowRange
from .ready_rows import ReadyRows
from .view import ReadView

__all__ = ["Lookahead", "ReadView", "Ready", "ReadyRows", "RowRange", "embed"]
