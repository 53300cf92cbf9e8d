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
from torch import nn

from sfctr.checkpoint import save_model
from sfctr.data import Source
from sfctr.spec.errors import ConfigError, SfctrError, writing
from sfctr.spec.runfile import Model, Preset, RunFile
from sfctr.spec.runfile_text import render_run_file
from sfctr.spec.schema import Schema
from sfctr.spec.tables import Table, Tiers
from sfctr.store import Store
from sfctr.telemetry import ChromeTrace, Recorder, notice

from .assembly import load_pretrained, loop_parts, open_sources, scorer_of, settled
from .log import Log
from .options import check_validation, name_of, options_from_keywords, paths_of
from .progress import ProgressLine
from .run import METRICS_FILE, RUN_FILE, Run, build_run_model, open_store
from .scoring import Labels, evaluate_source, features_with_texts
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
    preset: Preset | None = None,
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
    tiers: where rows may sit, and how much they may take. preset: "scalefreectr", the paper's pipeline; see RunFile.
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
        preset=preset,
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
    run = settled(run, model)
    module = (build_run_model(run) if model is None else model).to(run.train.device)
    with claimed(run_dir), ExitStack() as stack:
        recorder = stack.enter_context(Recorder(_open_trace(stack, trace)))
        source, held_out = open_sources(stack, run, run_dir, data, valid)
        check_validation(run, held_out is not None)
        run = msgspec.structs.replace(run, schema=source.schema)
        store = open_store(run, run_dir)
        stack.callback(store.close)
        load_pretrained(store, run, source)
        progress = ProgressLine(_total_rows(run, source.num_rows), quiet=quiet)
        stack.callback(progress.close)
        bench = _Bench(run, run_dir, source, held_out, store, module, is_object=model is not None)
        trainer = Trainer(bench.parts(progress), run.train)
        (run_dir / METRICS_FILE).unlink(missing_ok=True)
        with writing(run_dir / RUN_FILE):
            (run_dir / RUN_FILE).write_text(render_run_file(run), encoding="utf-8")
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
        self.scorer = scorer_of(run, store, module)

    def parts(self, progress: ProgressLine) -> Parts:
        return loop_parts(
            self.run,
            self.source,
            self.store,
            self.module,
            scorer=self.scorer,
            evaluate=None if self.held_out is None else partial(self.evaluate, self.held_out),
            save=self.save,
            log=Log(self.run_dir / METRICS_FILE).write,
            progress=progress,
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
    with writing(run_dir):
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
