"""Metrics of an evaluation as a person reads them. Pure functions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from .text import number_text, table_text

_NAMES = ("auc", "gauc", "logloss", "ne", "calibration", "rows")


def metrics_text(found: Mapping[str, Any]) -> str:
    """The metrics, one a line, then those of each label and slice, then the shares of unseen keys."""
    parts = [table_text(list(_lines(found)))]
    for label, of_label in found.get("labels", {}).items():
        parts.append(f"label {label}\n{table_text(list(_lines(of_label)))}")
        parts += _slices(of_label)
    parts += _slices(found)
    if found.get("unseen"):
        shares = [("feature", "unseen keys"), *((name, f"{share:.2%}") for name, share in found["unseen"].items())]
        parts.append(table_text(shares))
    return "\n\n".join(parts)


def _lines(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name in _NAMES:
        if found.get(name) is not None:
            yield name, number_text(found[name]) + _about_groups(name, found)
        elif name in found:
            yield name, f"undefined: {found['undefined'][name]}"


def _about_groups(name: str, found: Mapping[str, Any]) -> str:
    if name != "gauc" or "gauc_groups" not in found:
        return ""
    return f"  over {found['gauc_groups']:,} groups; {found['gauc_skipped']:,} of one class skipped"


def _slices(found: Mapping[str, Any]) -> list[str]:
    return [
        table_text([(column, "auc", "weight"), *((v, _or_dash(s["auc"]), s["weight"]) for v, s in values.items())])
        for column, values in found.get("slices", {}).items()
    ]


def _or_dash(auc: float | None) -> float | str:
    return "-" if auc is None else auc
