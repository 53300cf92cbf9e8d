"""The generators of random numbers that a user's model may draw from: torch's, NumPy's, Python's."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


@contextmanager
def generators_kept() -> Iterator[None]:
    """Whatever is drawn inside leaves no trace."""
    python, legacy, own = random.getstate(), np.random.get_state(), torch.random.get_rng_state()
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(legacy)
        torch.random.set_rng_state(own)
        for number, state in enumerate(cuda):
            torch.cuda.set_rng_state(state, number)
