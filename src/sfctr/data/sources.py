"""Opens inputs as sources of batches: what every other folder uses of this one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import Any, Literal

from sfctr.spec.errors import ConfigError, DataError, SchemaError
from sfctr.spec.runfile import Data
from sfctr.spec.schema import Schema, check_fixed
from sfctr.spec.struct_tree import rebuilt
from sfctr.telemetry import notice

from .chunk import Chunk, Scan
from .convert import Converter
from .resolve import SAMPLE_ROWS, is_resolved, resolve_keys
from .scans import open_scan
from .source import Reading, Source
from .split import Rule, rules
from .survey import counted, survey, unknown_moments
from .taking import Part, part_of

Labels = Literal["required", "none"]


def open_source(
    data: Any,
    schema: Schema,
    *,
    batch_size: int = 4096,
    options: Data | None = None,
    shuffle: bool | None = None,
    seed: int = 0,
    labels: Labels = "required",
    serving: bool = False,
    spool_dir: str | os.PathLike[str] | None = None,
    lanes: range | None = None,
    part: tuple[int, int] | None = None,
) -> Source:
    """Open files or a frame as a source of batches.

    data:    a path, glob, directory or fsspec URL, or a list of them; a pandas or polars DataFrame; an Arrow table or
             reader; an iterable of dicts.
    options: how files are read; what it says of splits and of thinning negatives is not used here.
    shuffle: None: options.shuffle, else whether the schema has no time column; off when scoring (serving or no labels).
    labels:  "none" leaves label and weight columns unread: batches then have K = 0.
    serving: features with serve_as take that value instead of their column.
    lanes:   of the lanes that rows are read in, those of this process (see `lanes_of`): its part of every batch.
    part:    (rank, size): this process reads one of `size` ranges of the rows, in file order, and all of them give
             equally many batches. Not with lanes, nor shuffled.
    With either, rows that no metadata counts are counted first, where they are shuffled or cut into ranges.
    Raises DataError, SchemaError or ConfigError, naming the place.
    """
    options, schema = rebuilt(options or Data(), "data"), rebuilt(schema, "schema")
    scoring = serving or labels == "none"
    reading = _reading(options, schema, batch_size, seed, spool_dir, lanes)
    if shuffle is not None or scoring:
        reading = replace(reading, shuffle=bool(shuffle))
    assert part is None or (lanes is None and not reading.shuffle), "a part is neither shuffled nor in lanes"
    with ExitStack() as undo:
        scan = open_scan(data, options)
        undo.callback(scan.close)
        converter = _resolved(scan, schema, with_labels=labels == "required", serving=serving)
        num_rows = scan.num_rows
        if unknown_moments(converter.schema):
            if scoring:
                name = unknown_moments(converter.schema)[0].name
                raise SchemaError(
                    f"feature '{name}' is standardised and its mean and std are not known;"
                    " score with the schema that the training run resolved"
                )
            counts, converter = survey(scan, converter, [Rule()], options.threads)
            num_rows = counts[0]
        if part is not None or (lanes is not None and reading.shuffle):
            num_rows = counted(scan, options.threads)
        source = _source(scan, converter, Rule(), reading, num_rows, release=scan.close, part=part)
        undo.pop_all()
        return source


def open_training(
    options: Data,
    schema: Schema,
    *,
    batch_size: int,
    seed: int,
    data: Any = None,
    valid: Any = None,
    spool_dir: str | os.PathLike[str] | None = None,
    lanes: range | None = None,
    part: tuple[int, int] | None = None,
) -> tuple[Source, Source | None]:
    """The training source, and the validation source if the options (or `valid`) name one.

    data, valid: in-memory inputs that stand for options.train and options.valid. Validation rows are never shuffled or
    thinned, and are read under the schema that the training rows resolved.
    lanes, part: what this process reads of the training rows and of the validation rows, as of open_source. Every
    process looks at all rows for what holds of all of them: key types, means and deviations, counts.
    Raises DataError where either part has no rows, and what open_source raises.
    """
    reading = _reading(options, schema, batch_size, seed, spool_dir, lanes)
    rule, valid_rule = rules(options, schema)
    valid = valid if valid is not None else options.valid or None
    if valid is not None and valid_rule is not None:
        raise ConfigError("validation rows are given, and data.valid_from or data.valid_fraction splits them off too")
    with ExitStack() as undo:
        scan = open_scan(options.train if data is None else data, options)
        undo.callback(scan.close)
        converter = _resolved(scan, schema, with_labels=True, serving=False, more_columns=rule.columns)
        counts: list[int | None] = [scan.num_rows, None]
        if not rule.takes_all or unknown_moments(converter.schema):
            asked = [rule] if valid_rule is None else [rule, valid_rule]
            found, converter = survey(scan, converter, asked, options.threads)
            counts[: len(found)] = found
        elif lanes is not None and reading.shuffle:
            counts[0] = counted(scan, options.threads)
        _refuse_empty(scan, converter, counts[0], "training", options)
        release = _LastOf(2 if valid_rule is not None else 1, scan.close)
        train = _source(scan, converter, rule, reading, counts[0], release=release)
        validation = None
        in_order = replace(reading, shuffle=False, lanes=None)
        if valid_rule is not None:
            _refuse_empty(scan, converter, counts[1], "validation", options)
            validation = _source(scan, converter, valid_rule, in_order, counts[1], release=release, part=part)
        elif valid is not None:
            validation = _open_validation(valid, options, converter.schema, in_order, part)
        undo.pop_all()
        return train, validation


def _open_validation(
    data: Any, options: Data, schema: Schema, reading: Reading, part: tuple[int, int] | None
) -> Source:
    """A source of validation rows of their own."""
    with ExitStack() as undo:
        scan = open_scan(data, options)
        undo.callback(scan.close)
        converter = _resolved(scan, schema, with_labels=True, serving=False)
        num_rows = scan.num_rows if part is None else counted(scan, options.threads)
        _refuse_empty(scan, converter, num_rows, "validation", options)
        undo.pop_all()
        return _source(scan, converter, Rule(), reading, num_rows, release=scan.close, part=part)


def _source(
    scan: Scan,
    converter: Converter,
    rule: Rule,
    reading: Reading,
    num_rows: int | None,
    *,
    release: Callable[[], None],
    part: tuple[int, int] | None = None,
) -> Source:
    """part: (rank, size) of processes that read a range each; the rows are then counted."""
    own: Part | None = None
    if part is not None:
        assert num_rows is not None
        edges = scan.edges if rule.takes_all else ()
        own = part_of(*part, num_rows=num_rows, batch_size=reading.batch_size, edges=edges)
    return Source(scan, converter, rule, reading, num_rows=num_rows, release=release, part=own)


def _reading(
    options: Data,
    schema: Schema,
    batch_size: int,
    seed: int,
    spool_dir: str | os.PathLike[str] | None,
    lanes: range | None,
) -> Reading:
    check_fixed(batch_size, 1, "batch_size")
    shuffle = schema.time_column is None if options.shuffle is None else options.shuffle
    return Reading(
        batch_size=batch_size,
        shuffle=shuffle,
        seed=seed,
        lanes=lanes,
        threads=options.threads,
        memory_bytes=options.memory_bytes,
        spool_dir=None if spool_dir is None else os.fspath(spool_dir),
    )


def _resolved(
    scan: Scan, schema: Schema, *, with_labels: bool, serving: bool, more_columns: tuple[str, ...] = ()
) -> Converter:
    """The converter of a scan, its columns checked and its key types decided."""

    def converter(schema: Schema) -> Converter:
        return Converter(schema, with_labels=with_labels, serving=serving, present=frozenset(scan.columns))

    needed = (*converter(schema).columns, *more_columns)
    scan.check(needed)
    named = {*needed, *_named(schema)}
    ignored = [c for c in scan.columns if c not in named]
    if ignored:
        names = ", ".join(ignored[:10]) + (f" and {len(ignored) - 10} more" if len(ignored) > 10 else "")
        notice(f"{scan.name}: columns that the schema does not name are ignored: {names}")
    if is_resolved(schema):
        return converter(resolve_keys(schema, []))
    return converter(resolve_keys(schema, _sample(scan, converter(schema).columns)))


def _named(schema: Schema) -> Iterator[str | None]:
    """Every column that the schema speaks of, read or not."""
    yield from (*schema.labels, schema.weight, *schema.keep)
    yield schema.time_column.column if schema.time_column is not None else None
    for feature in schema.features:
        yield from feature.columns


def _sample(scan: Scan, columns: tuple[str, ...]) -> list[Chunk]:
    """Chunks with the first SAMPLE_ROWS rows."""
    found: list[Chunk] = []
    wanted = SAMPLE_ROWS
    with closing(scan.chunks(columns)) as chunks:
        for chunk in chunks:
            found.append(chunk.head(wanted))
            wanted -= found[-1].size
            if not wanted:
                break
    return found


def _refuse_empty(scan: Scan, converter: Converter, num_rows: int | None, part: str, options: Data) -> None:
    if num_rows is None:
        with closing(scan.chunks(converter.columns)) as chunks:
            num_rows = sum(1 for _ in zip(chunks, range(1), strict=False))
    if num_rows:
        return
    if options.valid_from is not None:
        remedy = f"move data.valid_from, {options.valid_from!r}"
    elif options.valid_fraction is not None:
        remedy = f"change data.valid_fraction, {options.valid_fraction}"
    else:
        remedy = "name files that have rows"
    raise DataError(f"the {part} part has no rows", file=scan.name, remedy=remedy)


class _LastOf:
    """Calls `close` when it has itself been called by each of `holders` users."""

    def __init__(self, holders: int, close: Callable[[], None]) -> None:
        self._holders, self._close = holders, close

    def __call__(self) -> None:
        self._holders -= 1
        if self._holders == 0:
            self._close()
