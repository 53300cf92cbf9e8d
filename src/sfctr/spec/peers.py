"""What one of the processes of a run asks of the others.

A *rank* is one of `size` processes that train one model together. Every call is collective: all ranks make the same
calls in the same order, each from one thread. Whoever needs calls of another thread has Peers of its own for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
"""Contiguous uint8 [n]."""


class Peers(Protocol):
    """All ranks of a run, seen by one of them.

    `kind` says in a word what moves ("keys", "rows", "gradients", ...): bytes are counted by it. Raises PeerError,
    naming the rank, where another one has gone or does not answer in time; no call works after that.
    """

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def gather(self, kind: str, mine: Bytes) -> list[Bytes]:
        """What every rank gave, in the order of ranks. Lengths may differ."""
        ...

    def exchange(self, kind: str, parts: Sequence[Bytes], lengths: Sequence[int] | None = None) -> list[Bytes]:
        """parts[q] is for rank q; gives what each rank had for this one. lengths: of what comes, where that is known:
        it saves a message."""
        ...


class Alone:
    """The Peers of a run that has one process."""

    rank = 0
    size = 1

    def gather(self, kind: str, mine: Bytes) -> list[Bytes]:
        return [mine]

    def exchange(self, kind: str, parts: Sequence[Bytes], lengths: Sequence[int] | None = None) -> list[Bytes]:
        return list(parts)


ALONE = Alone()
