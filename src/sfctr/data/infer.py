"""A run file for data never seen before: what each column is, how rows are split, how long to train, and why.

Reads a bounded sample. Every decision is a comment with its evidence, at the path of what was decided; columns that
are left out stay visible as text that can be put back. The rules for columns are in infer_rules.py.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import msgspec
import numpy as np

from sfctr.spec.batch import I64
from sfctr.spec.errors import ConfigError, DataError, SchemaError, nearest
from sfctr.spec.runfile import Data, RunFile, Train
from sfctr.spec.schema import Categorical, Feature, Schema, TimeColumn, TimePart
from sfctr.spec.struct_tree import to_plain
from sfctr.spec.toml_text import toml_value

from .infer_rules import Finding, find, find_time
from .infer_sample import Sample, read_sample
from .infer_times import split_time
from .infer_values import facts_of
from .labels import labels
from .times import NO_TIME, time_of

SAMPLE_ROWS = 50_000
VALID_SHARE = 0.1

Comments = dict[str, str]

_PURE_ROWS = 20
"""Sampled rows a value, on average, from which it says something that a column's values never differ in the label."""


def infer_run_file(
    paths: Sequence[str | os.PathLike[str]],
    *,
    label: str | Sequence[str],
    time: str | None = None,
    time_format: str | None = None,
    valid: Sequence[str] = (),
    valid_from: str | None = None,
    format: Literal["auto", "parquet", "csv", "tsv", "criteo"] = "auto",
    separator: str | None = None,
    null_values: Sequence[str] = (),
    sample_rows: int = SAMPLE_ROWS,
) -> tuple[RunFile, Comments]:
    """The run file for these files, and comments by path for `render_run_file`.

    `time` names the column that orders the rows (else the one column of times, if there is just one), `time_format` its
    format where it cannot be told from its values. Raises DataError for files, columns and labels that cannot be used,
    ConfigError for options at odds, SchemaError where no column can be a feature.
    """
    options = Data(
        train=tuple(os.fspath(path) for path in paths),
        valid=tuple(valid),
        valid_from=valid_from,
        format=format,
        separator=separator,
        null_values=tuple(null_values),
    )
    sample = read_sample(options.train, options, sample_rows)
    label_names = (label,) if isinstance(label, str) else tuple(label)
    _check_columns(sample, label_names, "--label")
    _check_columns(sample, (time,) if time is not None else (), "--time")
    known = [labels([chunk[name] for name in label_names], chunk.size) for chunk in sample.chunks]
    clicks, mask = (np.concatenate(arrays) for arrays in zip(*known, strict=True))
    findings = _findings(sample, label_names, time, time_format)
    ordering = _ordering(findings, time)

    comments: Comments = {"": _head(sample), "schema.label": _label_words(label_names, clicks, mask)}
    features = _features(sample.name, findings, ordering, comments)
    for name, why in _leaks(sample, features, clicks[:, 0], mask[:, 0]).items():
        comments[f"schema.features.{name}"] += f"\n{why}"
    schema = Schema(
        label=label if isinstance(label, str) else label_names,
        features=tuple(features),
        time=_time_field(ordering, findings, time, comments),
    )
    data = _with_markers(_with_split(options, sample, ordering, schema, comments), findings, comments)
    return RunFile(data=data, schema=schema, train=_train(sample, comments)), comments


def _check_columns(sample: Sample, names: Iterable[str], option: str) -> None:
    for name in names:
        if name not in sample.columns:
            there = ", ".join(sample.columns[:20]) + (", ..." if len(sample.columns) > 20 else "")
            hint = "" if len(sample.columns) > 1 else " (or name the character that separates columns: --separator)"
            raise DataError(
                f"there is no such column{nearest(name, sample.columns)}",
                file=sample.name,
                column=name,
                remedy=f"give {option} one of the columns: {there}{hint}",
            )


def _findings(sample: Sample, label_names: Sequence[str], time: str | None, format: str | None) -> list[Finding]:
    findings = []
    for name in sample.columns:
        if name in label_names:
            continue
        if not name:
            findings.append(Finding(column="", why="it has no name", left_out=True))
            continue
        values = facts_of(name, sample.column(name))
        findings.append(find_time(values, format) if name == time else find(values, rows=sample.total))
    return findings


def _ordering(findings: Sequence[Finding], time: str | None) -> Finding | None:
    """The column that orders the rows: the one named, or the only one of times."""
    times = [f for f in findings if f.ns is not None and (time is None or f.column == time)]
    return times[0] if len(times) == 1 else None


def _features(name: str, findings: Sequence[Finding], ordering: Finding | None, comments: Comments) -> list[Feature]:
    features: list[Feature] = []
    left_out: list[str] = []
    taken = {f.column for f in findings}
    for finding in findings:
        if finding.left_out:
            left_out += _left_out_words(finding)
            continue
        for feature in finding.features:
            feature = _fitted(feature, finding is ordering, taken)
            features.append(feature)
            comments[f"schema.features.{feature.name}"] = finding.why
    if not features:
        reasons = [f"{f.column}: {f.why}" for f in findings]
        raise SchemaError(
            f"{name}: no column can be a feature: {'; '.join(reasons) or 'the label is the only one'};"
            " give a file whose columns differ from row to row"
        )
    if left_out:
        comments["schema.features"] = "\n".join(["Left out:", *left_out])
    return features


def _fitted(feature: Feature, orders: bool, taken: set[str]) -> Feature:
    """A part of a time under a name that no column has. The ordering column's format is said once, by the schema."""
    if not isinstance(feature, TimePart):
        return feature
    name = feature.name
    while name in taken:
        name += "_"
    taken.add(name)
    return msgspec.structs.replace(feature, name=name, format=None if orders else feature.format)


def _left_out_words(finding: Finding) -> list[str]:
    if not finding.column:
        return ["  a column without a name: name it to use it"]
    lines = [f"  {finding.column}: {finding.why}"]
    return lines + [f"      {toml_value(to_plain(feature, ''))}," for feature in finding.features]


# ---- label and time -----------------------------------------------------------------------------------------------


def _head(sample: Sample) -> str:
    if sample.whole:
        seen = f"all {sample.rows:,} rows"
    else:
        seen = f"{sample.rows:,} sampled rows" + (f" of about {sample.total:,}" if sample.total is not None else "")
    return f"Inferred from {seen} of {sample.name}. Whatever is written here may be changed."


def _label_words(names: Sequence[str], clicks: Any, mask: Any) -> str:
    lines = []
    for k, name in enumerate(names):
        known = clicks[mask[:, k], k]
        line = f"{name}: {np.mean(known):.2%} on average" if len(known) else f"{name}: no value"
        line += f" of {len(known):,} sampled rows"
        if len(known) < len(clicks):
            line += f"; {1 - len(known) / len(clicks):.1%} missing"
        if len(known) and np.all(known == known[0]):
            line += "; it is the same everywhere, so AUC is undefined here"
        lines.append(line)
    return "\n".join(lines)


def _time_field(
    ordering: Finding | None, findings: Sequence[Finding], time: str | None, comments: Comments
) -> TimeColumn | str | None:
    if ordering is None:
        others = [f.column for f in findings if f.ns is not None]
        if len(others) > 1:
            comments["schema.time"] = f"columns of times: {', '.join(others)}; name the one that orders the rows here"
        return None
    if time is None:
        comments["schema.time"] = "the only column of times; it orders the rows"
    return ordering.column if ordering.format is None else TimeColumn(ordering.column, ordering.format)


def _leaks(sample: Sample, features: Sequence[Feature], clicks: Any, mask: Any) -> Comments:
    """A warning for every feature whose value alone tells the label on all sampled rows."""
    warnings: Comments = {}
    known = clicks[mask]
    if len(np.unique(known)) != 2:
        return warnings
    for feature in features:
        if not isinstance(feature, Categorical):
            continue
        codes = sample.column(feature.columns[0]).array.dictionary_encode().indices.fill_null(-1).to_numpy()[mask]
        pairs = len(np.unique(codes * 2.0 + (known == known[0])))
        if pairs == len(np.unique(codes)) and len(known) >= _PURE_ROWS * pairs:
            warnings[feature.name] = (
                "its value alone tells the label on every sampled row: is it known before the click?"
            )
    return warnings


# ---- split and length ---------------------------------------------------------------------------------------------


def _with_split(data: Data, sample: Sample, ordering: Finding | None, schema: Schema, comments: Comments) -> Data:
    if ordering is not None and ordering.ns is not None and not _rises(ordering.ns):
        comments["data.shuffle"] = f"the rows are not in order of {ordering.column}, so they are shuffled"
        data = msgspec.structs.replace(data, shuffle=True)
    if data.valid_from is not None:
        if schema.time_column is None:
            raise ConfigError("--valid-from needs a column of times; name it with --time")
        time_of(data.valid_from, schema.time_column.format, "--valid-from")
    if data.valid or data.valid_from is not None:
        return data
    start, why = _split_start(sample, ordering)
    if start is not None:
        comments["data.valid_from"] = why
        return msgspec.structs.replace(data, valid_from=start)
    comments["data.valid_fraction"] = why
    return msgspec.structs.replace(data, valid_fraction=VALID_SHARE)


def _split_start(sample: Sample, ordering: Finding | None) -> tuple[str | None, str]:
    """Where the validation part begins in time and why, or None and why it has to be by hash."""
    by_hash = f"{VALID_SHARE:.0%} of the rows validate, by hash of their position"
    if ordering is None or ordering.ns is None:
        return None, f"no column orders the rows in time: {by_hash}"
    if np.any(ordering.ns == NO_TIME):
        return None, f"some rows have no time: {by_hash}"
    if not sample.spread:
        return (
            None,
            f"only the first rows were looked at, so the range of times is not known: {by_hash}; see --valid-from",
        )
    start = split_time(ordering.ns, VALID_SHARE)
    if start is None:
        return None, f"all sampled rows have one time: {by_hash}"
    share = np.mean(ordering.ns >= time_of(start, None, "data.valid_from"))
    return start, f"about the last {share:.0%} of the rows by {ordering.column}"


def _rises(ns: I64) -> bool:
    """In order but for a few rows."""
    known = ns[ns != NO_TIME]
    return bool(np.mean(np.diff(known) < 0) < 0.01) if len(known) > 1 else True


def _with_markers(data: Data, findings: Sequence[Finding], comments: Comments) -> Data:
    markers = sorted({m for f in findings for m in f.markers} - set(data.null_values))
    if not markers:
        return data
    columns = [f.column for f in findings if f.markers]
    comments["data.null_values"] = (
        f"{', '.join(map(toml_value, markers))} among the numbers of {', '.join(columns[:5])}; missing in every column"
    )
    return msgspec.structs.replace(data, null_values=(*data.null_values, *markers))


def _train(sample: Sample, comments: Comments) -> Train:
    rows = sample.total
    if rows is None or rows >= 5_000_000:
        comments["train.epochs"] = "one pass, as for large data"
        return Train()
    epochs = 5 if rows >= 500_000 else 20
    comments["train.epochs"] = f"at most, for about {rows:,} rows; see stop_after"
    size = min(4096, max(64, 2 ** round(np.log2(max(rows / 50, 1)))))
    if size < 4096:
        comments["train.batch_size"] = f"about a fiftieth of {rows:,} rows"
    return Train(epochs=epochs, batch_size=size, stop_after=2)
