"""What look-ahead asks of whoever brings the rows of other processes to a batch, and its gradients to them.

A row is held by its *owner*, one of the ranks; each rank's part of a batch needs rows of all of them. Working sets and
groups are those of the native core, of which `spec` knows nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
    """Every rank makes the same calls in the same order: share() to announce() in the thread that reads, place() in
    the one that plans, all else in the one that trains. All raise PeerError where another rank cannot go on.

    Some ways of sharing rows keep copies of others' rows on each rank. announce(), place(), commit() and discard() are
    theirs, and are called beside the store's for `owned`; without copies they do nothing.
    """

    @property
    def timeout_s(self) -> float:
        """How long a call may wait for another rank."""
        ...

    @property
    def size(self) -> int:
        """Ranks."""
        ...

    def share(self, whole: Whole, working_sets: Sequence[Any]) -> Shared | None:
        """Tell the owners which keys this rank's part of the next batch has. whole: as far as this rank knows it.

        None: another rank has stopped, and there is no such batch.
        """
        ...

    def end(self, *, read_all: bool) -> None:
        """In place of share(): there is no next batch, or this rank has stopped before it."""
        ...

    def fail(self, error: BaseException) -> None:
        """In place of share(): this rank has no next batch to give, because of this."""
        ...

    def announce(self, shared: Any) -> None: ...

    def place(self, shared: Any, number: int) -> bool:
        """Have room for the copies of group `number`; False where batches in flight hold it."""
        ...

    def bring_rows(self, shared: Any, groups: Sequence[Any]) -> None:
        """Have the weights of own's keys in own, as they are now, for forward and backward. The owned are settled."""
        ...

    def send_gradients(self, shared: Any, groups: Sequence[Any]) -> None:
        """Merge the gradients in own, of all ranks in their order, into owned."""
        ...

    def commit(self, shared: Any, step: int, *, lr_factor: float, scale: float) -> None:
        """Apply to copies what the store has applied to rows: step number `step`, from 1."""
        ...

    def discard(self, shared: Any) -> None: ...

    def view(self, working_sets: Sequence[Any], groups: Sequence[Any], see: Callable[[Sequence[Any]], None]) -> None:
        """Have the weights of these keys for reading alone; a key without a row reads as it does in one process.

        see: the store's view(), for the rows that this rank owns.
        """
        ...
