"""Puts a run together and trains it: sources, store, model and loop, from a run file or from Python.

`fit` builds a run file from its arguments, and `train_run` does the rest for it and for the command line alike, so that
both leave the same directory behind (see run.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import nn

from sfctr.checkpoint import save_model
from sfctr.data import Source, open_training
from sfctr.data.pretrained import read_pretrained
from sfctr.lookahead import Lookahead, ReadView
from sfctr.models.registry import default_tables, needs_of
from sfctr.spec.errors import ConfigError, SfctrError
from sfctr.spec.runfile import Model, RunFile
from sfctr.spec.runfile_text import checked, render_run_file
from sfctr.spec.schema import Schema, key_type_of_table
from sfctr.spec.tables import Table, Tiers
from sfctr.store import Store
from sfctr.telemetry import ChromeTrace, Recorder, notice

from .log import Log
from .numerics import autocast, resolve_device
from .optim import make_dense_optimizer
from .options import check_run, check_validation, name_of, options_from_keywords, paths_of
from .progress import ProgressLine
from .run import METRICS_FILE, RUN_FILE, Run, build_run_model, open_store
from .scoring import Labels, Scorer, evaluate_source, features_with_texts
from .stages import bound, stage_seconds
from .trainer import Parts, Trainer

def fit(
    data: Any,
    schema: Schema,
    tables: Sequence[Table] = (),
    *,
    model: str | nn.Module = "dcnv2",
    model_args: Mapping[str, Any] | None = None,
    valid: Any = None,
    run_dir: str | Path | None = None,
    tiers: Tiers = Tiers(),  # noqa: B008  frozen
    quiet: bool = False,
    trace: str | Path | None = None,
    **options: Any,
) -> Run:
    """Train a model and give back the run, with its best model loaded (the last one without validation data).

    data, valid: a path, glob, directory or URL, or a list of them; or a pandas or polars frame, an Arrow table, or an
        iterable of dicts. Without `valid`, valid_from= or valid_fraction= split `data`.
    tables: those that need more than the defaults; the others that the schema names are added.
    model: a built-in name, "package.module:Class", or a module; model_args are its constructor's.
    run_dir: where the run is kept, without a run in it yet; by default a new one, runs/fit, runs/fit-2 and so on. After
        an interrupt `Run.load(run_dir, "last")` has what was learnt; to call fit again starts anew.
    trace: a file to write the run's spans to, as chrome://tracing and https://ui.perfetto.dev read them.
    options: any field of the run file's [data] and [train] by its name, such as epochs=2, batch_size=8192, seed=1;
        `threads` sets both the reader's and the kernels'.

    Raises SfctrError with the remedy for anything that does not fit.
    """
    reading, training = options_from_keywords(options, paths_of(data), paths_of(valid))
    run = RunFile(
        data=reading,
        schema=schema,
        tables=tuple(tables),
        model=Model(name=name_of(model), args=dict(model_args or {})),
        train=training,
        tiers=tiers,
    )
    return train_run(
        run,
        next_run_dir("fit") if run_dir is None else Path(run_dir),
        data=None if paths_of(data) else data,
        valid=None if paths_of(valid) else valid,
        model=None if isinstance(model, str) else model,
        quiet=quiet,
        trace=trace,
    )


def train_run(
    run: RunFile,
    run_dir: Path,
    *,
    data: Any = None,
    valid: Any = None,
    model: nn.Module | None = None,
    quiet: bool = False,
    trace: str | Path | None = None,
) -> Run:
    """Train what a run file says, in `run_dir`, and give back the run with its best model loaded.

    data, valid: frames instead of run.data's files. model: a module instead of run.model. trace: a file for its spans.
    Raises ConfigError where `run_dir` holds a run already, and any SfctrError that the run causes; what was trained
    until then is kept as the last model.
    """
    run = checked(run)
    check_run(run)
    run, module = _with_model(run, model)
    with claimed(run_dir), ExitStack() as stack:
        recorder = stack.enter_context(Recorder(_open_trace(stack, trace)))
        source, held_out = _open_sources(stack, run, run_dir, data, valid)
        check_validation(run, held_out is not None)
        run = msgspec.structs.replace(run, schema=source.schema)
        store = open_store(run)
        stack.callback(store.close)
        load_pretrained(store, run)
        progress = ProgressLine(_total_rows(run, source.num_rows), quiet=quiet)
        stack.callback(progress.close)
        bench = _Bench(run, run_dir, source, held_out, store, module, is_object=model is not None)
        trainer = Trainer(bench.parts(progress), run.train)
        (run_dir / METRICS_FILE).unlink(missing_ok=True)
        (run_dir / RUN_FILE).write_text(render_run_file(run))
        try:
            trainer.run()
        except (KeyboardInterrupt, SfctrError):
            if (run_dir / "last").exists():
                progress.say(f'stopped after step {trainer.step}; Run.load("{run_dir}", "last") has the model so far')
            raise
        sentence = bound(stage_seconds(recorder.seconds()), window=run.train.window)
        if sentence is not None:
            progress.say(f"what bound the run: {sentence}")
    return Run.load(run_dir, model=model)


def _open_trace(stack: ExitStack, path: str | Path | None) -> ChromeTrace | None:
    """A trace that `stack` ends, saying so where the disk refused it on the way."""
    if path is None:
        return None
    try:
        trace = ChromeTrace(path)
    except OSError as error:
        raise ConfigError(f"the trace {path} cannot be written: {error.strerror}; give another file") from None

    def end() -> None:
        trace.close()
        if trace.error is not None:
            notice(f"the trace {path} is not whole: {trace.error.strerror}")

    stack.callback(end)
    return trace


class _Bench:
    """All that a run works with, and how its loop evaluates and saves."""

    def __init__(
        self,
        run: RunFile,
        run_dir: Path,
        source: Source,
        held_out: Source | None,
        store: Store,
        module: nn.Module,
        *,
        is_object: bool,
    ) -> None:
        self.run, self.run_dir, self.source, self.held_out = run, run_dir, source, held_out
        self.store, self.module, self.is_object = store, module, is_object
        self.labels = Labels.of(run.schema, run.train.loss_labels)
        view = ReadView(store, run.schema)
        context = partial(autocast, run.train, run.train.device)
        self.scorer = Scorer(module, view, len(self.labels.names), context)

    def parts(self, progress: ProgressLine) -> Parts:
        parameters = [*self.module.parameters(), *self.store.dense_parameters()]
        return Parts(
            model=self.module,
            optimizer=make_dense_optimizer(self.run.train.optimizer, parameters),
            source=self.source,
            labels=self.labels,
            lookahead=partial(Lookahead, store=self.store, schema=self.run.schema, window=self.run.train.window),
            scorer=self.scorer,
            evaluate=None if self.held_out is None else partial(self.evaluate, self.held_out),
            save=self.save,
            log=Log(self.run_dir / METRICS_FILE).write,
            progress=progress,
            counters=self.store.table_counters,
        )

    def evaluate(self, held_out: Source) -> dict[str, Any]:
        train = self.run.train
        return evaluate_source(
            held_out,
            self.scorer,
            self.labels,
            shift=self.source.log_odds_shift,
            group_by=train.group_by,
            slices=train.slices,
            directory=str(self.run_dir),
        )

    def save(self, name: str, facts: dict[str, Any]) -> None:
        """Keep the model under `name` in the run's directory."""
        facts = {**facts, "log_odds_shift": self.source.log_odds_shift, "model_is_object": self.is_object}
        save_model(
            self.run_dir / name,
            run=self.run,
            store=self.store,
            model=self.module,
            facts=facts,
            strings=strings_of(self.source),
        )


def _open_sources(stack: ExitStack, run: RunFile, run_dir: Path, data: Any, valid: Any) -> tuple[Source, Source | None]:
    train = run.train
    source, held_out = open_training(
        run.data,
        run.schema,
        batch_size=train.batch_size,
        seed=train.seed,
        data=data,
        valid=valid,
        spool_dir=str(run_dir),
    )
    for each in (source, held_out):
        if each is not None:
            stack.enter_context(each)
    return source, held_out


def _with_model(run: RunFile, model: nn.Module | None) -> tuple[RunFile, nn.Module]:
    """The run with every table, device and thread count settled, and its model on that device."""
    chosen = run.model.name if model is None else model
    tables = default_tables(chosen, run.schema, run.tables)
    _say_unused(chosen, run.model.name, tables)
    threads = run.train.torch_threads or torch.get_num_threads()
    train = msgspec.structs.replace(run.train, device=resolve_device(run.train.device), torch_threads=threads)
    run = msgspec.structs.replace(run, tables=tables, train=train)
    if model is None:
        model = build_run_model(run)
    return run, model.to(train.device)


def _say_unused(model: str | nn.Module, name: str, tables: Sequence[Table]) -> None:
    needs = needs_of(model)
    if needs is None:
        return
    for table in tables:
        if table.linear is not None and not needs.linear:
            notice(f"model '{name}' does not use the first-order weights of table '{table.name}': they stay 0")
        if table.dim and not needs.vectors:
            notice(f"model '{name}' does not use the vectors of table '{table.name}': dim = 0 saves their memory")


def load_pretrained(store: Store, run: RunFile) -> None:
    """Begin the rows of tables that say so from their files."""
    types = key_type_of_table(run.schema)
    for table in run.tables:
        if table.pretrained is not None:
            for keys, vectors in read_pretrained(table, types[table.name]):
                store.set_vectors(table.name, keys, vectors)


def strings_of(source: Source) -> dict[str, dict[int, str]]:
    """Table -> key -> text of hashed keys, for tables of features that keep it."""
    found: dict[str, dict[int, str]] = {}
    for feature in features_with_texts(source.schema):
        found.setdefault(feature.table_name, {}).update(source.strings(feature.columns[0]))
    return found


def _total_rows(run: RunFile, num_rows: int | None) -> int | None:
    """Rows that a run trains, if nothing stops it early and that can be known."""
    bounds = [] if num_rows is None else [run.train.epochs * num_rows]
    bounds += [] if run.train.max_steps is None else [run.train.max_steps * run.train.batch_size]
    return min(bounds, default=None)


@contextmanager
def claimed(run_dir: Path) -> Iterator[None]:
    """The directory, made if needed; where the run fails before it kept a model, nothing of it stays."""
    if run_dir.exists() and not run_dir.is_dir():
        raise ConfigError(f"{run_dir} is a file and must be a directory; choose another (--run DIR, or run_dir=)")
    if any((run_dir / name).exists() for name in (RUN_FILE, "best", "last")):
        raise ConfigError(
            f"{run_dir} already holds a run; choose another directory (--run DIR, or run_dir= in Python), or remove it"
        )
    run_dir.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        if not any((run_dir / name).exists() for name in ("best", "last")):
            for name in (RUN_FILE, METRICS_FILE):
                (run_dir / name).unlink(missing_ok=True)
            with suppress(OSError):
                run_dir.rmdir()
        raise


def next_run_dir(name: str, parent: Path = Path("runs")) -> Path:
    """The first of parent/name, parent/name-2, parent/name-3 ... that is not there yet."""
    candidate, number = parent / name, 1
    while candidate.exists():
        number += 1
        candidate = parent / f"{name}-{number}"
    return candidate
