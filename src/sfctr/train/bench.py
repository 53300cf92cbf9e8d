"""All that a run works with, put together: how its loop evaluates, saves models and keeps checkpoints."""

from __future__ import annotations

import copy
import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import nn

from sfctr.checkpoint import Checkpoint, Checkpointer, TrainingState, require_savable, save_model
from sfctr.data import Source
from sfctr.data.whole_directory import sync
from sfctr.export import Deltas, Trained
from sfctr.spec.dense_parts import DenseParts
from sfctr.spec.errors import writing
from sfctr.spec.runfile import RunFile
from sfctr.spec.runfile_text import render_run_file
from sfctr.store import Store

from .assembly import loop_parts, scorer_of
from .deltas import RunDeltas
from .log import Log
from .merging import texts_on_first
from .parts import Parts
from .progress import ProgressLine
from .ranks import ALONE, DenseRanks, Ranks
from .run import reading_options
from .run_dir import DELTAS, HISTORY_FILE, JOB, METRICS_FILE, RUN_FILE
from .scoring import Labels, evaluate_source, features_with_texts
from .state import State
from .threads import MOST_CORES, KernelThreads, candidates, cores, first_threads
from .trainer import Trainer


class Bench:
    """is_object: the model was given as one. saver: of the run's checkpoints. ranks: that train it together. job: the
    launcher's, which they are of."""

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
        saver: Checkpointer,
        ranks: Ranks = ALONE,
        job: str = "",
    ) -> None:
        self.job = job
        self.run, self.run_dir, self.source, self.held_out = run, run_dir, source, held_out
        self.store, self.module, self.is_object = store, module, is_object
        self.saver, self.log, self.ranks = saver, Log(run_dir / METRICS_FILE), ranks
        self.labels = Labels.of(run.schema, run.train.loss_labels)
        self.exchange = ranks.exchange(store, run.parallel)
        self.dense: DenseRanks | None = None
        self._plain = module  # as it is in one process: what is exported
        self.scorer = scorer_of(run, store, module, self.exchange)

    def trainer(self, progress: ProgressLine, found: Checkpoint | None = None, *, goes_on: bool = False) -> Trainer:
        """The loop; from then on the directory holds what is true of the run.

        found: has the model and its moments, and where the loop stopped, if it goes on from there.
        """
        if found is not None:
            found.load_model(self.module)
        if self.ranks.size > 1 and self.run.export.delta_every is not None:
            self._plain = copy.deepcopy(self.module)
        self.dense = self.ranks.dense(self.module, self.store, self.run.parallel)
        self.scorer.needs_every_rank = self.dense is not None and self.dense.parallel.scores_on_every_rank
        parts, start = self._parts(progress), None
        require_savable(self.module, self.store, parts.optimizer, self.dense_parts)
        if found is not None:
            found.load_optimizer(parts.optimizer, self.module, self.store, self.dense_parts)
            if goes_on:
                parts = replace(parts, restore_generators=found.restore_random_states)
                start = State(found.trainer, found.trainer_tensors)
        deltas = RunDeltas(
            self.run.export,
            Deltas(self.run_dir / DELTAS, self.store, self.ranks.loop),
            self.trained,
            self.ranks.owns(self.store),
        )
        parts = replace(parts, checkpoint=_Checkpoints(self, parts.optimizer), deltas=deltas)
        trainer = Trainer(parts, self.run.train, self.run.checkpoint, start)
        self._begin_files(start)
        return trainer

    @property
    def dense_parts(self) -> DenseParts | None:
        """What this rank has of the dense part, where that is not all of it."""
        return None if self.dense is None else self.dense.parts

    def _parts(self, progress: ProgressLine) -> Parts:
        parts = loop_parts(
            self.run,
            self.source,
            self.store,
            self.module,
            scorer=self.scorer,
            evaluate=None if self.held_out is None else partial(self.evaluate, self.held_out),
            save=self.save,
            log=self.log.write if self.ranks.is_first else lambda line: None,
            progress=progress,
            ranks=self.ranks,
            exchange=self.exchange,
            dense=self.dense,
        )
        if self.run.train.threads != "auto" or self.ranks.size > 1:
            return parts
        numbers = candidates(first_threads(self.run.train), min(cores(), MOST_CORES))
        tuned = KernelThreads(numbers, self.store.use_threads, progress.say)
        return replace(parts, step_ended=tuned.step_ended)

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
            peers=self.ranks.loop,
        )

    def save(self, name: str, facts: dict[str, Any]) -> None:
        """Keep the model under `name` in the run's directory."""
        save_model(
            self.run_dir / name,
            run=self.run,
            store=self.store,
            model=self.module,
            facts={**facts, **self.facts()},
            strings=strings_of(self.source),
            peers=self.ranks.loop,
            parts=self.dense_parts,
        )

    def trained(self) -> Trained:
        """What there is to export now; all ranks ask."""
        texts = strings_of(self.source)
        if self.dense is not None:
            self._plain.load_state_dict(self.dense.parallel.state_dict())
        return Trained(
            run=msgspec.structs.replace(self.run, data=reading_options(self.run.data)),
            store=self.store,
            model=self._plain,
            labels=self.labels.names,
            log_odds_shift=self.source.log_odds_shift,
            strings=texts_on_first(self.ranks.loop, texts, list(texts)),
        )

    def facts(self) -> dict[str, Any]:
        return {"log_odds_shift": self.source.log_odds_shift, "model_is_object": self.is_object}

    def _begin_files(self, start: State | None) -> None:
        if not self.ranks.is_first:
            return
        if start is None:
            for name in (METRICS_FILE, HISTORY_FILE):
                (self.run_dir / name).unlink(missing_ok=True)
        else:
            self.log.restore(start.part("log"))
        if self.job:
            (self.run_dir / JOB).write_text(self.job, encoding="utf-8")
        beside = self.run_dir / f"{RUN_FILE}.new"
        with writing(self.run_dir / RUN_FILE):
            with beside.open("w", encoding="utf-8") as file:
                file.write(render_run_file(self.run))
                file.flush()
                os.fsync(file.fileno())
            beside.rename(self.run_dir / RUN_FILE)
            sync(self.run_dir)


class _Checkpoints:
    """See parts.Checkpointing."""

    def __init__(self, bench: Bench, optimizer: torch.optim.Optimizer | None) -> None:
        self._bench, self._optimizer = bench, optimizer
        self.wait = bench.saver.wait

    def save(self, state: State, best_step: int | None) -> None:
        """Named by the steps of the rows: more than the loop's where they come from another run."""
        bench = self._bench
        steps_before = bench.store.steps - state.plain["loop"]["step"]
        bench.saver.save(
            TrainingState(
                run=bench.run,
                store=bench.store,
                model=bench.module,
                optimizer=self._optimizer,
                trainer={**state.plain, "log": bench.log.state().plain if bench.ranks.is_first else {}},
                tensors=state.tensors,
                facts=bench.facts(),
                best_step=None if best_step is None else steps_before + best_step,
                strings=partial(strings_of, bench.source),
                parts=bench.dense_parts,
            )
        )


def strings_of(source: Source) -> dict[str, dict[int, str]]:
    """Table -> key -> text of hashed keys, for tables of features that keep it."""
    found: dict[str, dict[int, str]] = {}
    for feature in features_with_texts(source.schema):
        found.setdefault(feature.table_name, {}).update(source.strings(feature.columns[0]))
    return found
