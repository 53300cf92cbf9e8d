"""Puts a run together and trains it: sources, store, model and loop, from a run file or from Python.

`fit` builds a run file from its arguments, and `train_run` does the rest for it and for the command line alike, so that
both leave the same directory behind (see run.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
from torch import nn

from sfctr.checkpoint import Checkpoint
from sfctr.data import Source
from sfctr.parallel.world import World
from sfctr.spec.errors import ConfigError
from sfctr.spec.runfile import Checkpoints, Export, Model, Preset, RunFile
from sfctr.spec.schema import Schema
from sfctr.spec.tables import Table, Tiers
from sfctr.spec.together import Together
from sfctr.store import Store
from sfctr.telemetry import ChromeTrace, Recorder, notice

from .assembly import load_pretrained, open_sources, settled
from .bench import Bench
from .checkpoint_files import checkpointer
from .history import told
from .options import check_validation, name_of, options_from_keywords, paths_of
from .origin import Origin
from .progress import ProgressLine
from .ranks import Ranks
from .resume import check_data, check_order, find_start
from .run import Run, build_run_model, open_store
from .run_dir import CHECKPOINTS, HISTORY_FILE, RUN_FILE, began_here, claimed, next_run_dir
from .stages import bound, stage_seconds
from .torch_threads import say_unmeasured, with_torch_threads
from .trainer import Trainer


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
    checkpoint: Checkpoints = Checkpoints(),  # noqa: B008  frozen
    export: Export = Export(),  # noqa: B008  frozen
    resume: bool = False,
    restore: str | Path | None = None,
    allow: Sequence[str] = (),
    **options: Any,
) -> Run:
    """Train a model and give back the run, with its best model loaded (the last one without validation data).

    data, valid: a path, glob, directory or URL, or a list of them; or a pandas or polars frame, an Arrow table, or an
        iterable of dicts. Without `valid`, valid_from= or valid_fraction= split `data`.
    tables: those that need more than the defaults; the others that the schema names are added.
    model: a built-in name, "package.module:Class", or a module; model_args are its constructor's.
    run_dir: where the run is kept, without a run in it yet; by default a new one, runs/fit, runs/fit-2 and so on. After
        an interrupt `Run.load(run_dir, "last")` has what was learnt.
    tiers: where rows may sit, and how much they may take. preset: "scalefreectr", the paper's pipeline; see RunFile.
    checkpoint: when all that the run needs to go on is saved, beside the end and whenever it is stopped.
    export: what is written for others while the run trains: deltas, for whoever serves its rows.
    resume: go on with the run in run_dir from its newest checkpoint, as if it had not stopped; all else is given as it
        was, but for what changes no number, and epochs and max_steps. Without a checkpoint the run begins anew.
    restore: a checkpoint of another run; begin from rows, model and moments of it that fit, while epochs, schedule and
        metrics begin anew. What differs is refused but for names in `allow`, such as "tables.item" or "model.*". With
        resume=True, where the run has a checkpoint of its own already, that one counts.
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
        checkpoint=checkpoint,
        export=export,
    )
    if resume and run_dir is None:
        raise ConfigError("resume=True goes on with the run in run_dir=; give it")
    return train_run(
        run,
        next_run_dir("fit") if run_dir is None else Path(run_dir),
        data=None if paths_of(data) else data,
        valid=None if paths_of(valid) else valid,
        model=None if isinstance(model, str) else model,
        quiet=quiet,
        trace=trace,
        resume=resume,
        restore=None if restore is None else Path(restore),
        allow=tuple(allow),
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
    resume: bool = False,
    overwrite: bool = False,
    restore: Path | None = None,
    allow: tuple[str, ...] = (),
) -> Run:
    """Train what a run file says, in `run_dir`, and give back the run with its best model loaded; see train_there."""
    train_there(
        run,
        run_dir,
        data=data,
        valid=valid,
        model=model,
        quiet=quiet,
        trace=trace,
        resume=resume,
        overwrite=overwrite,
        restore=restore,
        allow=allow,
    )
    return Run.load(run_dir, model=model)


def train_there(
    run: RunFile,
    run_dir: Path,
    *,
    data: Any = None,
    valid: Any = None,
    model: nn.Module | None = None,
    quiet: bool = False,
    trace: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    restore: Path | None = None,
    allow: tuple[str, ...] = (),
    world: World | None = None,
    job: str = "",
) -> None:
    """Train what a run file says, in `run_dir`.

    world: the processes that train it together; each calls this, with the same arguments, and `run_dir` is on a file
    system that all of them share. Signals that ask one of them to end have all end after the same step.
    job: their launchers, a line each; where one of them has begun the run that is there, it failed and is gone on with.
    data, valid: frames instead of run.data's files. model: a module instead of run.model. trace: a file for its spans.
    resume: go on from the newest checkpoint there; restore, allow: begin from another run's; see fit.
    overwrite: replace the run that is there. With several ranks each writes a trace of its own (FILE.rank-1, ...).
    Raises ConfigError where `run_dir` holds a run already, and any SfctrError that the run causes; what was trained
    until then is kept as the last model, and as a checkpoint where it ended between two steps. Raises Terminated, a
    SystemExit, after SIGTERM.
    """
    with ExitStack() as stack:
        ranks = Ranks.of(world)
        with Together(ranks.loop, "begin") as together:
            if together.is_first:
                resume = resume or began_here(run_dir, job)
                stack.enter_context(claimed(run_dir, resume=resume, overwrite=overwrite and not resume))
            resume = together.hear_first(bytes([resume])) == b"\1"
        recorder = stack.enter_context(Recorder(_open_trace(stack, ranks.own_path(trace))))
        origin = None if restore is None else Origin.open(restore, allow, ranks.loop)
        run = run if origin is None else origin.settle(run)
        asked_threads, is_new = run.train.torch_threads, not (resume and (run_dir / RUN_FILE).exists())
        run, start = find_start(run, run_dir, model, ranks.loop) if resume else (settled(run, model), None)
        module = (build_run_model(run) if model is None else model).to(run.train.device)
        source, held_out = open_sources(stack, run, run_dir, data, valid, ranks=ranks)
        ranks.require_same_data(source, held_out)
        check_validation(run, held_out is not None)
        run = msgspec.structs.replace(run, schema=source.schema)
        if asked_threads == "auto" and is_new and start is None:
            if ranks.size == 1:
                run = with_torch_threads(run, module, source)
            elif ranks.is_first:
                say_unmeasured(run)
        store = open_store(run, run_dir, sharers=ranks.on_machine, copies=ranks.keep_copies(run))
        stack.callback(store.close)
        progress = ProgressLine(_total_rows(run, source.num_rows), quiet=quiet or not ranks.is_first)
        stack.callback(progress.close)
        found = _begin(run, module, source, store, progress, start, origin, ranks)
        saver = stack.enter_context(checkpointer(run_dir / CHECKPOINTS, run.checkpoint, store, start, ranks.saving))
        is_object = model is not None
        bench = Bench(
            run, run_dir, source, held_out, store, module, is_object=is_object, saver=saver, ranks=ranks, job=job
        )
        trainer = bench.trainer(progress, found, goes_on=start is not None)
        if trainer.has_ended and (run_dir / "last").exists():
            notice(f"{run_dir}: the run has ended, at step {trainer.step:,}, and nothing is left to train")
        else:
            with ExitStack() as history:
                with Together(ranks.loop, "begin") as together:
                    if together.is_first:
                        history.enter_context(told(run_dir / HISTORY_FILE, trainer.place, processes=ranks.size))
                _train(trainer, run_dir, progress)
            sentence = bound(stage_seconds(recorder.seconds()), window=run.train.window)
            if sentence is not None:
                progress.say(f"what bound the run: {sentence}")


def _begin(
    run: RunFile,
    module: nn.Module,
    source: Source,
    store: Store,
    progress: ProgressLine,
    start: Checkpoint | None,
    origin: Origin | None,
    ranks: Ranks,
) -> Checkpoint | None:
    """Rows and texts as they were, as another run left them, or as pre-trained rows begin.

    Gives what has model and moments, if anything does.
    """
    if start is not None:
        loop = start.trainer["loop"]
        check_data(source, loop["num_rows"])
        check_order(run, loop.get("order", 1))
        start.load_store(store, ranks.owns(store), ranks.loop)
        source.restore_strings(start.strings() if ranks.is_first else {})  # who writes them again
        progress.start_from(loop["rows"])
        return start
    if origin is not None:
        fitted = origin.fill(run, module, store, source, ranks)
        for line in fitted.restore.lines() if fitted.restore is not None else ():
            progress.say(line)
        return fitted
    load_pretrained(store, run, source, ranks.owns(store))
    return None


def _train(trainer: Trainer, run_dir: Path, progress: ProgressLine) -> None:
    try:
        trainer.run()
    except BaseException:
        if (run_dir / "last").exists():
            progress.say(f'stopped after step {trainer.step}; Run.load("{run_dir}", "last") has the model so far')
        raise


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


def _total_rows(run: RunFile, num_rows: int | None) -> int | None:
    """Rows that a run trains, if nothing stops it early and that can be known."""
    bounds = [] if num_rows is None else [run.train.epochs * num_rows]
    bounds += [] if run.train.max_steps is None else [run.train.max_steps * run.train.batch_size]
    return min(bounds, default=None)
