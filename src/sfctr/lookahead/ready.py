"""Ready: a batch whose rows are in place, and the one optimizer step that it stands for.

Life: made by Lookahead, then features() any number of times and backward, then exactly one of step() or discard().
Until then no other Ready of the same Lookahead is handed out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from types import TracebackType
from typing import Protocol, Self

import numpy as np
import torch
from torch import Tensor

from sfctr import _native
from sfctr.spec.batch import I64, Batch
from sfctr.spec.errors import ConfigError, ModelError
from sfctr.spec.exchange import F64, Whole
from sfctr.spec.schema import Schema
from sfctr.telemetry import span

from .features import FeatureReader, as_tensor, places_between, slice_batch
from .prepared import Prepared, Rows


class DenseSum(Protocol):
    """Sums the gradients of the dense part over all ranks; then knows the sum of their squares."""

    def sum_gradients(self, extras: F64) -> F64:
        """extras: float64 [n]; returns those of all ranks, [P, n]."""
        ...

    def square_norm(self) -> float: ...


class RowRange:
    """Rows [begin, end) of a ready batch: its features, labels, mask and weights, on the store's device.

    They are this rank's of the rows [first, last) of the whole batch.
    """

    def __init__(
        self,
        reader: FeatureReader,
        batch: Batch,
        working_sets: Sequence[_native.WorkingSet],
        first: int,
        last: int,
    ) -> None:
        begin, end = places_between(batch, first, last)
        self._first, self.whole_size = first, last - first
        self._reader, self._all, self._working_sets = reader, batch, working_sets
        self._begin, self._end = begin, end
        self.batch = slice_batch(batch, begin, end)
        self.size = end - begin

    @property
    def places(self) -> I64:
        """int64 [B]: where the rows stand among the whole_size rows of all ranks that these are a part of."""
        return np.arange(self.size) if self.batch.places is None else self.batch.places - self._first

    @property
    def _schema(self) -> Schema:
        return self._reader.layout.schema

    @property
    def labels(self) -> Tensor:
        """float32 [B] where the schema has one label by name, else [B, K]; 0 where masked."""
        return self._by_label(as_tensor(self.batch.labels, self._reader.store.device))

    @property
    def label_mask(self) -> Tensor:
        """bool, shaped as labels: True where the label is known."""
        return self._by_label(as_tensor(self.batch.label_mask, self._reader.store.device))

    @property
    def weight(self) -> Tensor | None:
        """float32 [B] of row weights, or None for all ones."""
        return None if self.batch.weight is None else as_tensor(self.batch.weight, self._reader.store.device)

    def _by_label(self, values: Tensor) -> Tensor:
        return values[:, 0] if isinstance(self._schema.label, str) else values

    def features(self) -> dict[str, Tensor]:
        """Name -> tensor, in the schema's order, shaped as spec.inputs.Input says; backward is collected."""
        with span("features"):
            return self._reader.read(self._all, self._working_sets, self._begin, self._end, training=True)


class Ready(RowRange):
    """All rows of a batch. `number` counts the steps committed before it."""

    def __init__(
        self,
        reader: FeatureReader,
        prepared: Prepared,
        rows: Rows,
        *,
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(reader, prepared.batch, prepared.own, 0, prepared.batch.whole_size)
        self._prepared, self._rows, self._store, self._on_end = prepared, rows, rows.store, on_end
        self.number = rows.store.steps
        self.is_open = True
        self._is_merged = False
        self._dense: DenseSum | None = None
        self._squares: float | None = None  # of all ranks' rows

    @property
    def whole(self) -> Whole | None:
        """Of the batch over all ranks; None where this is all of it."""
        return None if self._prepared.shared is None else self._prepared.shared.whole

    def micro_batches(self, count: int) -> Iterator[RowRange]:
        """The batch in at most `count` row ranges of nearly equal size; their gradients add up.

        Over all ranks they are ranges of the whole batch; of each this is what this rank has of it, perhaps nothing.
        """
        if count < 1:
            raise ConfigError(f"count is {count} and must be at least 1")
        size = self._all.whole_size
        cuts = [round(i * size / count) for i in range(count + 1)]
        for first, last in pairwise(cuts):
            if first < last:
                yield RowRange(self._reader, self._all, self._working_sets, first, last)

    def merge(self, dense: DenseSum | None = None, extras: F64 | None = None) -> F64:
        """Sum the gradients of all ranks: rows' where they are kept, the dense part's everywhere.

        step() does it where it was not done before. dense: sums those of the dense part; None: they are summed already,
        or this rank is alone. extras: float64 [n], the same n on all ranks. Returns float64 [P, n], those of each rank.
        """
        self._must_be_open()
        assert not self._is_merged, "merged already"
        extras = np.zeros(0) if extras is None else extras
        self._rows.merge(self._prepared)
        self._is_merged, self._dense = True, dense
        if dense is None:
            return extras[None]
        own = np.append(extras, math.fsum(self._rows.squares(self._prepared)))
        with span("sum", step=self.number + 1):
            found = dense.sum_gradients(own)
        self._squares = math.fsum(found[:, -1])
        return found[:, :-1]

    def _row_squares(self) -> float:
        """The squared norm of the gradients of all rows."""
        if self._squares is None:
            self._squares = math.fsum(self._rows.squares(self._prepared))
        return self._squares

    def step(
        self,
        optimizer: torch.optim.Optimizer | None,
        *,
        clip: float | None = None,
        lr_factor: float = 1.0,
        check: bool = False,
    ) -> float | None:
        """Clip dense and sparse gradients together, step the dense optimizer, update exactly the working set's rows.

        clip: bound on the norm of all gradients; they are scaled by clip / norm where it is exceeded.
        lr_factor: multiplies the learning rate of every table (the dense optimizer's is the caller's).
        check: refuse gradients that are not finite without `clip`, too.
        Returns the norm before clipping, or None without `clip`. Dense gradients are set to None afterwards.
        Raises ModelError where the norm is to be known or checked and not finite, and ConfigError where the optimizer
        lacks parameters of a dense table; the batch then stays open, and no weight has changed.
        """
        self._must_be_open()
        if clip is not None and not clip > 0:
            raise ConfigError(f"clip is {clip!r} and must be above 0")
        self._must_train_dense_tables(optimizer)
        if not self._is_merged:
            if self._prepared.shared is not None and (check or clip is not None):
                raise ConfigError("the norm is of the gradients of all ranks: call merge(dense) before step()")
            self.merge()
        with span("update", step=self.number + 1), torch.no_grad():
            for table in self._store.dense_tables.values():
                table.add_l2_gradient()
            norm, scale = self._clip(optimizer, clip, check=check)
            if optimizer is not None:
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
            self.is_open = False
            try:
                self._rows.commit(self._prepared, lr_factor=lr_factor, scale=scale)
            finally:
                self._on_end()
        return norm

    def _clip(
        self, optimizer: torch.optim.Optimizer | None, clip: float | None, *, check: bool
    ) -> tuple[float | None, float]:
        gradients = [p.grad for p in _parameters(optimizer) if p.grad is not None]
        if clip is None:
            if check and (self._dense is not None or not self._sum_is_finite(gradients)):
                self._norm(gradients)
            return None, 1.0
        norm = self._norm(gradients)
        scale = clip / norm if norm > clip else 1.0
        if scale != 1.0:
            for gradient in gradients:
                gradient.mul_(scale)
        return norm, scale

    def _sum_is_finite(self, gradients: Sequence[Tensor]) -> bool:
        """Where it is, all gradients are. It costs a fraction of the norm."""
        sums = [float(gradient.sum()) for gradient in gradients]
        return math.isfinite(sum(sums) + self._row_squares())

    def _norm(self, gradients: Sequence[Tensor]) -> float:
        if self._dense is not None:
            squares = [self._dense.square_norm()]
        else:
            squares = [float(g.double().square().sum()) for g in gradients]
        norm = math.sqrt(math.fsum((*squares, self._row_squares())))
        if not math.isfinite(norm):
            raise ModelError(
                f"the norm of the gradients is {norm} at step {self.number + 1}, and nothing of that step was applied;"
                " lower the learning rates, or standardize big numbers"
            )
        return norm

    def _must_train_dense_tables(self, optimizer: torch.optim.Optimizer | None) -> None:
        trained = {id(parameter) for parameter in _parameters(optimizer)}
        for name, table in self._store.dense_tables.items():
            if any(id(p) not in trained and p.grad is not None and p.requires_grad for p in table.parameters()):
                raise ConfigError(
                    f"dense table '{name}' has gradients, and the optimizer of this step has not its parameters; make"
                    " it of [*model.parameters(), *store.dense_parameters()]"
                )

    def discard(self, optimizer: torch.optim.Optimizer | None = None) -> None:
        """Forget the batch and its gradients; no row and no count changes.

        optimizer: of the dense part, whose gradients are forgotten too; without it those of the model are the caller's.
        """
        self._must_be_open()
        self.is_open = False
        if optimizer is not None:
            optimizer.zero_grad(set_to_none=True)
        for parameter in self._store.dense_parameters():
            parameter.grad = None
        self._rows.discard(self._prepared)
        self._on_end()

    def _must_be_open(self) -> None:
        if not self.is_open:
            raise RuntimeError("this Ready was stepped or discarded already")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.is_open:
            self.discard()


def _parameters(optimizer: torch.optim.Optimizer | None) -> list[Tensor]:
    return [] if optimizer is None else [p for group in optimizer.param_groups for p in group["params"]]
