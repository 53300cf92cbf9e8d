"""What look-ahead asks of whoever brings the rows of other processes to a batch, and its gradients to them.

A row is held by its *owner*, one of the ranks; each rank's part of a batch needs rows of all of them. Working sets and
groups are those of the native core, of which `spec` knows nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Whole:
    """What is true of a batch over all ranks.

    size: rows. weights: float64 [K], of each label of the schema the sum of the weights of rows where it is known.
    time: greatest event time, or None.
    """

    size: int
    weights: F64
    time: int | None


class Shared(Protocol):
    """A batch on its way through all ranks.

    owned: this rank's rows that any rank's part needs; a working set a group, to be planned, fetched, settled and
    committed in the store as those of a batch are. own: the working sets of this rank's part.
    """

    @property
    def owned(self) -> tuple[Any, ...]: ...
    @property
    def own(self) -> tuple[Any, ...]: ...
    @property
    def whole(self) -> Whole: ...


class Exchange(Protocol):
    """Every rank makes the same calls in the same order: announce() in the thread that reads, the others in the one
    that trains. All raise PeerError where another rank cannot go on."""

    def announce(self, whole: Whole, working_sets: Sequence[Any]) -> Shared:
        """Tell the owners which keys this rank's part of the next batch has. whole: as far as this rank knows it."""
        ...

    def fail(self, error: BaseException) -> None:
        """In place of announce(): this rank has no next batch to give, because of this."""
        ...

    def bring_rows(self, shared: Shared, groups: Sequence[Any]) -> None:
        """Have the weights of own's keys in own, as they are now, for forward and backward. The owned are settled."""
        ...

    def send_gradients(self, shared: Shared, groups: Sequence[Any]) -> None:
        """Merge the gradients in own, of all ranks in their order, into owned."""
        ...

    def view(self, working_sets: Sequence[Any], groups: Sequence[Any]) -> None:
        """Have the weights of these keys for reading alone; a key without a row reads as it does in one process."""
        ...
