"""What scores are worth: AUC, log loss, normalised entropy, calibration, grouped and sliced AUC.

States are exact (sums are rounded once, areas count every pair) and merge: the states of parts make the state of the
whole. Log loss comes from logits and is never clamped. A number without a meaning is None, with the reason beside it.

  B rows, K labels
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sfctr.spec.batch import KEEP_NULL
from sfctr.spec.errors import ModelError
from sfctr.spec.peers import Bytes, Peers

from .auc import MEMORY, ScoreRuns
from .exact import ExactSum
from .merging import packed, to_first, unpacked
from .state import State

F64 = npt.NDArray[np.float64]
U64 = npt.NDArray[np.uint64]
Bools = npt.NDArray[np.bool_]

SLICE_LIMIT = 100
"""Values of a slice column that are reported: the heaviest."""

AVERAGED = ("auc", "gauc", "logloss", "ne", "calibration")


def log_losses(logits: F64, labels: F64) -> F64:
    """-(y ln p + (1 - y) ln(1 - p)) of p = sigmoid(logit), without ever forming p."""
    losses: F64 = np.maximum(logits, 0) - labels * logits + np.log1p(np.exp(-np.abs(logits)))
    return losses


def sigmoid(logits: F64) -> F64:
    """1 / (1 + exp(-logit)) without overflow."""
    small = np.exp(-np.abs(logits))
    probabilities: F64 = np.where(logits >= 0, 1.0, small) / (1 + small)
    return probabilities


class LabelMetrics:
    """The metrics of one label. Hold it by `with`: large states spill to a file.

    group: whether rows come with a group for grouped AUC. slices: columns by whose values AUC is reported.
    """

    def __init__(
        self, *, group: bool = False, slices: Sequence[str] = (), memory: int = MEMORY, directory: str | None = None
    ) -> None:
        self._rows = 0
        self._soft = False
        self._weight, self._label, self._predicted, self._loss = (ExactSum() for _ in range(4))
        columns = ["", *(["group"] if group else []), *(f"slice {name}" for name in slices)]
        self._scores = {column: ScoreRuns(memory=memory, directory=directory) for column in columns}
        self._slices = tuple(slices)

    def __enter__(self) -> LabelMetrics:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        for scores in self._scores.values():
            scores.close()

    def update(
        self,
        logits: F64,
        labels: F64,
        weights: F64 | None = None,
        group: U64 | None = None,
        slices: Mapping[str, U64] | None = None,
    ) -> None:
        """Add rows, all arrays [B]. Raises ModelError for a logit that is not finite."""
        if len(logits) == 0:
            return
        if not np.isfinite(logits).all():
            bad = logits[~np.isfinite(logits)][0]
            raise ModelError(
                f"the model scored a row with {bad}, and a score must be a finite number; it has diverged:"
                " train it with lower learning rates, or with train.clip"
            )
        self._rows += len(logits)
        added = np.ones(len(logits)), labels, sigmoid(logits), log_losses(logits, labels)
        for total, values in zip(self._sums, added, strict=True):
            total.add(values if weights is None else values * weights)
        self._soft |= bool(((labels != 0) & (labels != 1)).any())
        if not self._soft:
            for column, groups in self._columns(group, slices or {}):
                self._scores[column].add(logits, labels, weights, groups)

    def _columns(self, group: U64 | None, slices: Mapping[str, U64]) -> list[tuple[str, U64 | None]]:
        columns: list[tuple[str, U64 | None]] = [("", None)]
        if "group" in self._scores:
            columns.append(("group", group))
        return columns + [(f"slice {name}", slices[name]) for name in self._slices]

    def merge(self, other: LabelMetrics) -> None:
        """Take in all rows of `other`, which stays as it is and has the same columns."""
        self._rows += other._rows
        self._soft |= other._soft
        for total, theirs in zip(self._sums, other._sums, strict=True):
            total.merge(theirs)
        for column, scores in self._scores.items():
            scores.merge(other._scores[column])

    def move_to_first(self, peers: Peers) -> None:
        """Give all rows to the metrics of the first rank: its result is that of all, and the others have none left."""
        own = packed((self._rows, self._soft, [total.state() for total in self._sums]))
        to_first(peers, [own], self._take_sums)
        for scores in self._scores.values():
            scores.move_to_first(peers)
        if peers.rank:
            self._rows, self._soft = 0, False
            self._weight, self._label, self._predicted, self._loss = (ExactSum() for _ in range(4))

    def _take_sums(self, piece: Bytes) -> None:
        rows, soft, sums = unpacked(piece)
        self._rows += rows
        self._soft |= soft
        for total, state in zip(self._sums, sums, strict=True):
            theirs = ExactSum()
            theirs.restore(state)
            total.merge(theirs)

    @property
    def _sums(self) -> tuple[ExactSum, ...]:
        return self._weight, self._label, self._predicted, self._loss

    def state(self) -> State:
        own = State({"rows": self._rows, "soft": self._soft, "sums": [total.state() for total in self._sums]})
        return State.joined({"own": own, **{column: scores.state() for column, scores in self._numbered()}})

    def restore(self, state: State) -> None:
        """Of metrics without rows, made with the same options."""
        own = state.part("own").plain
        self._rows, self._soft = own["rows"], own["soft"]
        for total, saved in zip(self._sums, own["sums"], strict=True):
            total.restore(saved)
        for column, scores in self._numbered():
            scores.restore(state.part(column))

    def _numbered(self) -> list[tuple[str, ScoreRuns]]:
        return [(str(number), scores) for number, scores in enumerate(self._scores.values())]

    def result(self, names: Mapping[str, Mapping[int, str]] | None = None) -> dict[str, Any]:
        """Plain numbers: rows, auc, logloss, ne, calibration; with groups gauc, gauc_groups, gauc_skipped; with slices
        slices[column][value] = {auc, weight}. What is None has its reason under "undefined".

        names: column -> key -> the text of a slice's value; a key without one is written as a signed number.
        """
        undefined: dict[str, str] = {}
        result: dict[str, Any] = {"rows": self._rows, **self._averages(undefined), "auc": self._auc(undefined)}
        if "group" in self._scores:
            result |= self._grouped(undefined)
        if self._slices:
            texts = names or {}
            result["slices"] = {column: self._sliced(column, texts.get(column, {})) for column in self._slices}
        if undefined:
            result["undefined"] = undefined
        return result

    def _averages(self, undefined: dict[str, str]) -> dict[str, float | None]:
        weight, label = self._weight.value(), self._label.value()
        if weight == 0:
            undefined |= dict.fromkeys(("logloss", "ne", "calibration"), _NO_ROWS)
            return dict.fromkeys(("logloss", "ne", "calibration"))
        loss, mean = self._loss.value() / weight, label / weight
        entropy = -(mean * math.log(mean) + (1 - mean) * math.log1p(-mean)) if 0 < mean < 1 else 0.0
        if entropy == 0:
            undefined["ne"] = f"the mean label is {mean:g}, whose entropy is 0"
        if label == 0:
            undefined["calibration"] = "the labels sum to 0"
        return {
            "logloss": loss,
            "ne": loss / entropy if entropy else None,
            "calibration": self._predicted.value() / label if label else None,
        }

    def _auc(self, undefined: dict[str, str]) -> float | None:
        if self._soft:
            undefined["auc"] = _SOFT
            return None
        areas = next(self._scores[""].areas(), None)
        if areas is None:
            undefined["auc"] = _NO_ROWS
            return None
        auc = float(areas.auc[0])
        if math.isnan(auc):
            undefined["auc"] = f"all labels are {int(areas.positive[0] > 0)}"
            return None
        return auc

    def _grouped(self, undefined: dict[str, str]) -> dict[str, Any]:
        """AUC of each group, averaged by the groups' weight (impressions); groups of one class are skipped."""
        area, weight, groups, skipped = ExactSum(), ExactSum(), 0, 0
        if not self._soft:
            for found in self._scores["group"].areas():
                auc = found.auc
                good = ~np.isnan(auc)
                if good.any():
                    area.add(auc[good] * found.weight[good])
                    weight.add(found.weight[good])
                groups += int(good.sum())
                skipped += int((~good).sum())
        if groups == 0:
            undefined["gauc"] = _SOFT if self._soft else "no group has labels of both classes"
        gauc = area.value() / weight.value() if groups else None
        return {"gauc": gauc, "gauc_groups": groups, "gauc_skipped": skipped}

    def _sliced(self, column: str, texts: Mapping[int, str]) -> dict[str, Any]:
        heaviest: list[tuple[float, int, float]] = []
        if not self._soft:
            for found in self._scores[f"slice {column}"].areas():
                entries = zip(found.weight.tolist(), found.group.tolist(), found.auc.tolist(), strict=True)
                heaviest = heapq.nlargest(SLICE_LIMIT, [*heaviest, *entries])
        return {
            _text(key, texts): {"auc": None if math.isnan(auc) else auc, "weight": weight}
            for weight, key, auc in heaviest
        }


_NO_ROWS = "there is no row with a known label and a weight above 0"
_SOFT = "some labels are neither 0 nor 1"


def _text(key: int, texts: Mapping[int, str]) -> str:
    if key == int(KEEP_NULL):
        return "null"
    return texts.get(key) or str(key - (1 << 64) if key >> 63 else key)


class Metrics:
    """The metrics of several labels over batches; see LabelMetrics for what the options and numbers mean.

    labels: names, one a column of logits. With more than one, the result has each label's under "labels", and above
    them the mean over the labels of what is a number for all of them.
    """

    def __init__(
        self,
        labels: Sequence[str],
        *,
        group_by: str | None = None,
        slices: Sequence[str] = (),
        memory: int = MEMORY,
        directory: str | None = None,
    ) -> None:
        self._group_by, self._slices = group_by, tuple(slices)
        self._labels = {
            name: LabelMetrics(group=group_by is not None, slices=slices, memory=memory, directory=directory)
            for name in labels
        }

    def __enter__(self) -> Metrics:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        for metrics in self._labels.values():
            metrics.close()

    def update(
        self,
        logits: F64,
        labels: npt.NDArray[np.float32],
        mask: Bools,
        weight: npt.NDArray[np.float32] | None,
        keep: Mapping[str, U64],
    ) -> None:
        """Add a batch: logits, labels and mask [B, K], weight [B] or None, kept columns [B]."""
        for k, metrics in enumerate(self._labels.values()):
            known = slice(None) if mask[:, k].all() else mask[:, k]
            metrics.update(
                logits[known, k],
                labels[known, k].astype(np.float64),
                None if weight is None else weight[known].astype(np.float64),
                None if self._group_by is None else keep[self._group_by][known],
                {name: keep[name][known] for name in self._slices},
            )

    def merge(self, other: Metrics) -> None:
        for name, metrics in self._labels.items():
            metrics.merge(other._labels[name])

    def move_to_first(self, peers: Peers) -> None:
        """Give all rows to the metrics of the first rank: its result is that of all, and the others have none left."""
        for metrics in self._labels.values():
            metrics.move_to_first(peers)

    def state(self) -> State:
        return State.joined({str(number): metrics.state() for number, metrics in enumerate(self._labels.values())})

    def restore(self, state: State) -> None:
        """Of metrics without rows, made with the same options."""
        for number, metrics in enumerate(self._labels.values()):
            metrics.restore(state.part(str(number)))

    def result(self, names: Mapping[str, Mapping[int, str]] | None = None) -> dict[str, Any]:
        results = {name: metrics.result(names) for name, metrics in self._labels.items()}
        if len(results) == 1:
            return next(iter(results.values()))
        return {**_means(results), "labels": results}


def _means(results: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    means: dict[str, Any] = {"rows": max(result["rows"] for result in results.values())}
    undefined: dict[str, str] = {}
    for metric in AVERAGED:
        values = {name: result[metric] for name, result in results.items() if metric in result}
        missing = [name for name, value in values.items() if value is None]
        if not values:
            continue
        means[metric] = None if missing else math.fsum(values.values()) / len(values)
        if missing:
            undefined[metric] = f"label '{missing[0]}': {results[missing[0]]['undefined'][metric]}"
    return means | ({"undefined": undefined} if undefined else {})
