"""The generators of random numbers that a user's model may draw from: torch's, NumPy's, Python's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sfctr.checkpoint.random_states import random_states, restore_random_states


@contextmanager
def generators_kept() -> Iterator[None]:
    """Whatever is drawn inside leaves no trace."""
    before = random_states()
    try:
        yield
    finally:
        restore_random_states(before)
