"""A trained run in hand: its best (or last) model, ready to evaluate and to score.

runs/fit/
  run.toml        the resolved run file: every default, device and thread count as they were used
  metrics.jsonl   how it went, see log.py
  best/ last/     saved models, see checkpoint; best is there once an evaluation improved the watched metric
  checkpoints/    what a run goes on from, see run_dir.py
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import msgspec
import pyarrow as pa
from torch import nn

from sfctr.checkpoint import SavedModel, open_model
from sfctr.data import open_source
from sfctr.data.files import find_files
from sfctr.data.parquet_writer import WholeParquet
from sfctr.export import Trained, export_model
from sfctr.export.scores import score_schema, score_table
from sfctr.lookahead import ReadView
from sfctr.models.registry import build_model
from sfctr.parallel.world import World
from sfctr.spec.errors import CheckpointError, ConfigError
from sfctr.spec.inputs import inputs_of
from sfctr.spec.peers import ALONE as NOBODY
from sfctr.spec.peers import Peers
from sfctr.spec.runfile import Data, RunFile
from sfctr.spec.schema import Schema
from sfctr.store import Store

from .log import Line, read_log
from .metrics import sigmoid
from .numerics import autocast, device_of_saved, numerics
from .options import paths_of
from .predictions import predicted
from .ranks import ALONE, Ranks
from .run_dir import METRICS_FILE
from .scoring import Labels, Scorer, evaluate_source
from .threads import first_threads


class Run:
    """A run's model over its rows. Close it, or hold it by `with`, to free the rows.

    dir: the run's directory. run: the resolved run file. schema: its schema. model: a torch module in evaluation mode.
    store: the rows. facts: what is known of the model (step, epoch, rows, the evaluation it had, ...).
    """

    def __init__(
        self, directory: Path, saved: SavedModel, store: Store, model: nn.Module, ranks: Ranks = ALONE
    ) -> None:
        self.dir = directory
        self.run: RunFile = saved.run
        self.schema: Schema = saved.run.schema
        self.facts = saved.facts
        self.store, self.model = store, model
        self._labels = Labels.of(self.schema, self.run.train.loss_labels)
        self._saved, self._ranks = saved, ranks
        self._exchange = ranks.exchange(store, saved.run.parallel)
        self._closed = False

    @classmethod
    def load(
        cls,
        run_dir: str | Path,
        which: Literal["best", "last"] = "best",
        *,
        model: nn.Module | None = None,
        world: World | None = None,
    ) -> Run:
        """The model of a run that was trained. Without a best one (no validation data) "best" is the last.

        model: a module like the one that was trained, for a run whose model was given as an object. world: processes
        that hold its rows between them; each calls this, and evaluate() and predict() are called by all of them.
        Raises CheckpointError where there is none, or its files are damaged.
        """
        directory, ranks = Path(run_dir), Ranks.of(world)
        saved = open_saved(directory, which, ranks.loop)
        run = saved.run
        if model is None and saved.facts.get("model_is_object"):
            raise CheckpointError(
                f"{directory}: this run's model was given as an object of {run.model.name}; give one like it, as"
                " Run.load(run_dir, model=...)"
            )
        store = open_trained(run, directory, sharers=ranks.on_machine, copies=ranks.keep_copies(run))
        try:
            saved.load_rows(store, ranks.owns(store))
            module = build_run_model(run) if model is None else model
            saved.load_model(module)
            return cls(directory, saved, store, module.to(store.device).eval(), ranks)
        except BaseException:
            store.close()
            raise

    @property
    def metrics(self) -> list[Line]:
        """The lines of metrics.jsonl."""
        return read_log(self.dir / METRICS_FILE)

    @property
    def best(self) -> Line | None:
        """The line of the best evaluation; None without validation data."""
        return next((line for line in reversed(self.metrics) if line.get("best")), None)

    @property
    def strings(self) -> dict[str, dict[int, str]]:
        """Table -> key -> text of hashed keys, for tables that keep it."""
        return self._saved.strings()

    def evaluate(self, data: Any) -> dict[str, Any]:
        """Metrics of labelled data: paths or frames, as fit takes them. Nothing is learnt."""
        self._must_be_open()
        train = self.run.train
        with (
            self._numerics(),
            open_source(
                data,
                self.schema,
                batch_size=train.batch_size,
                options=self._reading,
                shuffle=False,
                part=self._ranks.part,
            ) as source,
        ):
            return evaluate_source(
                source,
                self._scorer(),
                self._labels,
                shift=self._shift,
                group_by=train.group_by,
                slices=train.slices,
                peers=self._ranks.loop,
            )

    def predict(self, data: Any, out: str | Path | None = None) -> pa.Table | None:
        """A probability for every row, in the data's order; no label is needed, and `serve_as` applies.

        Gives a table of `row` (int64, from 0) and `score` (float64; score_<label> for several labels); or, with `out`,
        writes it to that Parquet file in bounded memory. Of several processes the first has, or writes, all rows, and
        the others none. Raises ConfigError where `out` is no local file or is one of those that are read.
        """
        self._must_be_open()
        if out is not None:
            _refuse_target(Path(out), data, self._reading)
        with (
            self._numerics(),
            open_source(
                data,
                self.schema,
                batch_size=self.run.train.batch_size,
                options=self._reading,
                shuffle=False,
                labels="none",
                serving=True,
                part=self._ranks.part,
            ) as source,
        ):
            if not self._ranks.is_first:
                self._score(source, lambda table: None)
                return None
            if out is None:
                parts: list[pa.Table] = []
                self._score(source, parts.append)
                return pa.concat_tables([score_schema(self._labels.names).empty_table(), *parts])
            with WholeParquet(Path(out), score_schema(self._labels.names)) as writer:
                self._score(source, writer.write)
            return None

    def export(self, out: str | Path) -> list[Path]:
        """Write the model and its rows for others into a directory (see export.bundle); returns the paths.

        sfctr.load_export reads it back, without the trainer. Raises ModelError where torch.export cannot take the
        model, ConfigError and CapacityError where the directory cannot be written.
        """
        self._must_be_open()
        if self._ranks.size > 1:
            raise ConfigError("a run that several processes hold is not exported by them; load it in one process")
        run = msgspec.structs.replace(self.run, data=self._reading)
        trained = Trained(
            run=run,
            store=self.store,
            model=self.model,
            labels=self._labels.names,
            log_odds_shift=self._shift,
            strings=self.strings,
        )
        return export_model(Path(out), trained)

    def close(self) -> None:
        """Free the rows. Calling it again does nothing."""
        self._closed = True
        self.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Run({str(self.dir)!r}, model={self.run.model.name!r}, step={self.facts.get('step')})"

    def _score(self, source: Any, take: Callable[[pa.Table], None]) -> None:
        for rows, logits in predicted(source, self._scorer(), self._shift, peers=self._ranks.loop):
            take(score_table(self._labels.names, rows, sigmoid(logits)))

    def _scorer(self) -> Scorer:
        view = ReadView(self.store, self.schema, self._exchange)
        return Scorer(
            self.model, view, len(self._labels.names), lambda: autocast(self.run.train, str(self.store.device))
        )

    def _numerics(self) -> AbstractContextManager[None]:
        train = self.run.train
        return numerics(
            torch_threads=train.torch_threads, flush_denormals=train.flush_denormals, device=str(self.store.device)
        )

    @property
    def _shift(self) -> float:
        return float(self.facts.get("log_odds_shift", 0.0))

    @property
    def _reading(self) -> Data:
        return reading_options(self.run.data)

    def _must_be_open(self) -> None:
        if self._closed:
            raise RuntimeError(f"this run is closed; Run.load({str(self.dir)!r}) opens it again")


def _refuse_target(out: Path, data: Any, reading: Data) -> None:
    if re.match(r"[a-z0-9]{2,}:/", str(out)):
        raise ConfigError(f"{out} is a URL, and scores go to a local file; give one, and copy it from there")
    paths = paths_of(data)
    for file in find_files(paths, reading) if paths and out.exists() else ():
        if os.path.exists(file.path) and os.path.samefile(file.path, out):
            raise ConfigError(f"{out} is read, and scores would replace it; give another file to write")


def open_store(run: RunFile, directory: Path | None = None, *, sharers: int = 1, copies: bool = False) -> Store:
    """A store of the run's tables, on its device or, said aloud, on the CPU; `directory` takes rows that leave RAM.

    sharers: processes on this machine whose stores share its memory. copies: of others' rows will be kept in it.
    """
    train = run.train
    return Store(
        run.tables,
        tiers=run.tiers,
        seed=train.seed,
        device=device_of_saved(train.device),
        threads=first_threads(train, sharers),
        directory=directory,
        sharers=sharers,
        copies=copies,
    )


def open_trained(run: RunFile, directory: Path, *, sharers: int = 1, copies: bool = False) -> Store:
    """The same for a run that was trained, perhaps elsewhere: where its place for rows cannot be written, they go to a
    temporary directory."""
    place = run.tiers.disk if isinstance(run.tiers.disk, str) else directory
    if run.tiers.disk is False or os.access(place, os.W_OK):
        return open_store(run, directory, sharers=sharers, copies=copies)
    elsewhere = msgspec.structs.replace(run, tiers=msgspec.structs.replace(run.tiers, disk=None))
    return open_store(elsewhere, sharers=sharers, copies=copies)


def build_run_model(run: RunFile) -> nn.Module:
    """The model that the run file names, with the initial weights of the run's seed."""
    labels = Labels.of(run.schema, run.train.loss_labels)
    inputs = inputs_of(run.schema, run.tables)
    return build_model(run.model.name, inputs, len(labels.names), run.model.args, seed=run.train.seed)


def reading_options(data: Data) -> Data:
    """How to read other files of the kind that the run was trained on: no split, no sampling, no files of its own."""
    return msgspec.structs.replace(
        data,
        train=(),
        valid=(),
        valid_from=None,
        valid_fraction=None,
        valid_by=None,
        negatives_keep=1.0,
        shuffle=False,
    )


def open_saved(run_dir: Path, which: str = "best", peers: Peers = NOBODY) -> SavedModel:
    """The best or the last saved model of a run; "best" is the last where no evaluation chose one.

    peers: all ranks, who ask together.

    Raises CheckpointError where there is none, or its files are damaged.
    """
    if which not in ("best", "last"):
        raise CheckpointError(f"which is {which!r} and must be 'best' or 'last'")
    if not run_dir.is_dir():
        raise CheckpointError(f"{run_dir}: there is no such run; give the directory that sfctr train or fit wrote")
    has_best = any((run_dir / name).exists() for name in ("best", "best.old"))
    return open_model(run_dir / ("best" if which == "best" and has_best else "last"), peers=peers)
