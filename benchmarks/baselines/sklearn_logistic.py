"""Logistic regression of scikit-learn on one-hot columns: the rival that every deep model has to meet.

Keys become one column a value, lists one column an entry (1 where the list holds it), numbers ln(1 + max(x, 0)),
standardised, with a column that says where the number was missing. What the training rows do not have is left out. The
strength of the penalty is chosen on the validation rows; then the model is fitted again to training and validation rows
together.

Prints one line of JSON: valid_auc, auc, logloss (of the test rows), C, seconds.
"""

from __future__ import annotations

import argparse
import json
import warnings
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse as sp
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, roc_auc_score
from sklearn.preprocessing import MultiLabelBinarizer, OneHotEncoder, StandardScaler

STRENGTHS = (0.01, 0.03, 0.1, 0.3, 1.0)


class Design:
    """Columns of a frame as one sparse matrix, with values, scales and entries learnt from the frame it is made of."""

    def __init__(self, frame: pd.DataFrame, *, keys: list[str], lists: list[str], numbers: list[str]) -> None:
        self.keys, self.numbers = keys, numbers
        self.one_hot = OneHotEncoder(handle_unknown="ignore").fit(self._keys(frame))
        self.entries = {name: MultiLabelBinarizer(sparse_output=True).fit(frame[name]) for name in lists}
        self.scale = StandardScaler().fit(self._numbers(frame)[0]) if numbers else None

    def __call__(self, frame: pd.DataFrame) -> sp.csr_matrix:
        parts: list[Any] = [self.one_hot.transform(self._keys(frame))]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it warns of entries that it leaves out
            parts += [encoder.transform(frame[name]) for name, encoder in self.entries.items()]
        if self.scale is not None:
            values, missing = self._numbers(frame)
            parts += [self.scale.transform(values), missing]
        return sp.hstack(parts).tocsr()

    def _keys(self, frame: pd.DataFrame) -> np.ndarray:
        """Every value as text; a missing one is a value of its own."""
        return frame[self.keys].astype("string").fillna("missing").to_numpy(dtype=object)

    def _numbers(self, frame: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
        values = np.log1p(frame[self.numbers].to_numpy(dtype=np.float64).clip(min=0))
        missing = np.isnan(values)
        return np.where(missing, 0.0, values), missing.astype(np.float64)


def columns_of(kind: str) -> dict[str, list[str]]:
    if kind == "criteo":
        return {"keys": [f"c{i}" for i in range(1, 27)], "lists": [], "numbers": [f"i{i}" for i in range(1, 14)]}
    keys = ["user", "item", "age", "gender", "occupation", "hour", "weekday"]
    return {"keys": keys, "lists": ["genres", "title", "history"], "numbers": []}


def read(path: Path) -> pd.DataFrame:
    frame = pd.read_parquet(path)
    if "timestamp" in frame:
        frame["hour"], frame["weekday"] = frame["timestamp"].dt.hour, frame["timestamp"].dt.day_of_week
    return frame


def fitted(frame: pd.DataFrame, design: Design, strength: float) -> LogisticRegression:
    return LogisticRegression(C=strength, max_iter=3000).fit(design(frame), frame["label"])


def auc(frame: pd.DataFrame, design: Design, model: LogisticRegression) -> float:
    return float(roc_auc_score(frame["label"], model.decision_function(design(frame))))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kind", choices=("criteo", "movielens"))
    for name in ("train", "valid", "test"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    args = parser.parse_args()
    began = monotonic()
    train, valid, test = (read(path) for path in (args.train, args.valid, args.test))
    design = Design(train, **columns_of(args.kind))
    valid_auc = {c: auc(valid, design, fitted(train, design, c)) for c in STRENGTHS}
    strength = max(valid_auc, key=lambda c: valid_auc[c])
    both = pd.concat([train, valid], ignore_index=True)
    design = Design(both, **columns_of(args.kind))
    model = fitted(both, design, strength)
    found = {
        "valid_auc": valid_auc[strength],
        "auc": auc(test, design, model),
        "logloss": float(log_loss(test["label"], model.predict_proba(design(test))[:, 1])),
        "C": strength,
        "seconds": round(monotonic() - began, 1),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
