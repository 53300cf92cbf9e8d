"""Scores of batches, read-only, and what they are worth.  B rows, K trained labels

Training's validation, `Run.evaluate`, `Run.predict` and progressive validation all score here.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from sfctr.spec.batch import Batch
from sfctr.spec.errors import ConfigError, nearest
from sfctr.spec.peers import ALONE, Peers
from sfctr.spec.schema import Bag, Categorical, Schema
from sfctr.spec.schema import Sequence as SequenceFeature

from .loss import as_logits
from .merging import from_first, summed_counts, texts_on_first
from .metrics import F64, Metrics


class View(Protocol):
    """What scoring asks of a lookahead.ReadView."""

    def features(self, batch: Batch) -> dict[str, Tensor]: ...
    @property
    def unseen(self) -> dict[str, tuple[int, int]]: ...
    def reset(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Labels:
    """The labels that a run trains: names, and their columns among all labels of the schema."""

    names: tuple[str, ...]
    columns: tuple[int, ...]

    @classmethod
    def of(cls, schema: Schema, wanted: Sequence[str]) -> Labels:
        """The labels `wanted`, or all. Raises ConfigError for one that the schema lacks."""
        for name in wanted:
            if name not in schema.labels:
                raise ConfigError(
                    f"train.loss_labels names '{name}', which is no label of the schema{nearest(name, schema.labels)};"
                    f" labels are {', '.join(schema.labels)}"
                )
        names = tuple(wanted) or schema.labels
        return cls(names, tuple(schema.labels.index(name) for name in names))


class Scorer:
    """A model over a read view. `autocast` makes the context that the model runs in."""

    def __init__(
        self,
        model: nn.Module,
        view: View,
        num_labels: int,
        autocast: Callable[[], AbstractContextManager[Any]],
    ) -> None:
        self.model, self.view = model, view
        self._num_labels, self._autocast = num_labels, autocast
        self.needs_every_rank = False
        """Whether the model must be called for a batch without rows, too."""

    @contextmanager
    def scoring(self) -> Iterator[None]:
        """The model in its evaluation mode, without gradients; afterwards in the mode that it was in."""
        was_training = self.model.training
        self.model.eval()
        try:
            with torch.no_grad():
                yield
        finally:
            self.model.train(was_training)

    def logits(self, batch: Batch) -> F64:
        """Logits [B, K] of a batch, within `scoring()`."""
        with self._autocast():
            features = self.view.features(batch)
            if batch.size == 0 and not self.needs_every_rank:
                return np.zeros((0, self._num_labels))
            output = self.model(features)
        logits = as_logits(output, batch.size, self._num_labels, type(self.model).__name__)
        return logits.cpu().numpy().astype(np.float64)


class Rows(Protocol):
    """What training and scoring ask of a data.Source."""

    schema: Schema
    num_rows: int | None
    log_odds_shift: float

    def strings(self, column: str) -> Mapping[int, str]: ...
    def batches(self, epoch: int = 0, *, start_row: int = 0) -> Generator[Batch, None, None]: ...


def scored(source: Rows, scorer: Scorer, shift: float) -> Generator[tuple[Batch, F64], None, None]:
    """Each batch with its logits [B, K], `shift` (a correction of log-odds) added.

    A batch without rows is scored too: where rows come from other ranks, all of them score equally often.
    """
    with closing(source.batches()) as batches, scorer.scoring():
        for batch in batches:
            yield batch, scorer.logits(batch) + shift


def add_batch(metrics: Metrics, batch: Batch, logits: F64, labels: Labels) -> None:
    columns = list(labels.columns)
    metrics.update(logits, batch.labels[:, columns], batch.label_mask[:, columns], batch.weight, batch.keep)


def evaluate_source(
    source: Rows,
    scorer: Scorer,
    labels: Labels,
    *,
    shift: float = 0.0,
    group_by: str | None = None,
    slices: Sequence[str] = (),
    directory: str | None = None,
    peers: Peers = ALONE,
) -> dict[str, Any]:
    """Metrics of a labelled source (see metrics.Metrics), and under "unseen" each keyed feature's share of unseen keys.

    directory: where large states spill. peers: the ranks, each of which has a part of the rows in its source; all are
    given the metrics of all rows.
    """
    scorer.view.reset()
    with Metrics(labels.names, group_by=group_by, slices=slices, directory=directory) as metrics:
        with closing(scored(source, scorer, shift)) as scores:
            for batch, logits in scores:
                add_batch(metrics, batch, logits, labels)
        metrics.move_to_first(peers)
        unseen = unseen_rates(summed_counts(peers, scorer.view.unseen))
        texts = texts_on_first(peers, texts_by_column(source), slices)
        return {**from_first(peers, lambda: metrics.result(texts)), "unseen": unseen}


def texts_by_column(source: Rows) -> dict[str, Mapping[int, str]]:
    """Column -> key -> text, for columns of features that keep the text of their hashed keys."""
    return {feature.columns[0]: source.strings(feature.columns[0]) for feature in features_with_texts(source.schema)}


def features_with_texts(schema: Schema) -> list[Categorical | Bag | SequenceFeature]:
    listed = [f for f in schema.keyed if isinstance(f, Categorical | Bag | SequenceFeature)]
    return [f for f in listed if f.keep_strings and f.dtype == "string"]


def unseen_rates(unseen: Mapping[str, tuple[int, int]]) -> dict[str, float]:
    """Share of look-ups that found no row, for features that were looked up at all."""
    return {name: missed / total for name, (missed, total) in unseen.items() if total}
