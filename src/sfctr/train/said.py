"""What each rank says of a step before it is applied, so that all of them go on in the same way.

P ranks
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from sfctr.spec.exchange import F64


@dataclass(frozen=True)
class Said:
    """loss: this rank's share of the loss of the whole batch. stop: what asked it to end, 0 for nothing (see
    interrupt.py). is_late: by its clock a checkpoint is due."""

    loss: float
    stop: int = 0
    is_late: bool = False

    def numbers(self) -> F64:
        """float64 [3]"""
        return np.array([self.loss, self.stop, self.is_late], dtype=np.float64)

    @staticmethod
    def agreed(numbers: F64) -> Said:
        """What is so for all, of the numbers [P, 3] of every rank: the first one's clock counts."""
        return Said(math.fsum(numbers[:, 0]), int(numbers[:, 1].max()), bool(numbers[0, 2]))
