"""Trains the first steps of a run and writes down what they come to: in one form or another through the very pieces
that `sfctr train` works with, or in plain torch.

Nothing of the user's is touched: what a run keeps on disk goes into a temporary directory.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import numpy as np
from torch import Tensor, nn

from sfctr.data import Source
from sfctr.spec.batch import Batch
from sfctr.spec.runfile import Data, RunFile, Train
from sfctr.spec.tables import Table
from sfctr.store import RowBlock, Store
from sfctr.train.assembly import load_pretrained, loop_parts, open_sources, scorer_of, settled
from sfctr.train.numerics import numerics
from sfctr.train.parts import Parts, Step
from sfctr.train.progress import ProgressLine
from sfctr.train.run import build_run_model, open_store
from sfctr.train.schedule import decay_steps, steps_of_run
from sfctr.train.trainer import Trainer

from .outcome import Floats, Outcome, TableRows, as_array, dense_values, fields_of
from .reference import FirstBatches, train_reference

Loop = Callable[[Iterable[Batch]], Iterable[Step]]


@dataclass(frozen=True, kw_only=True)
class Makers:
    """What is judged, and what it is held against. Whoever tests verify hands in others, with faults in them or not;
    verify cannot tell.

    has_tiers: whether `store` keeps rows in more than RAM, so that it is tried with caches too small for them.
    """

    store: Callable[[RunFile], Store] = open_store
    parts: Callable[..., Parts] = loop_parts
    reference: Callable[..., Outcome] = train_reference
    has_tiers: bool = True


class Workbench:
    """Sources and directories that the trainings of one run share. Close it, or hold it by `with`.

    run: with everything decided: tables, key types, device, threads.
    """

    def __init__(self, run: RunFile, makers: Makers, *, data: Any = None, valid: Any = None) -> None:
        self._makers, self._inputs = makers, (data, valid)
        self._stack = ExitStack()
        self._sources: dict[Data, Source] = {}
        try:
            self._directory = Path(self._stack.enter_context(TemporaryDirectory(prefix="sfctr-verify-")))
            self.run = msgspec.structs.replace(settled(run), preset=None)  # its forms differ from what it decided
            self.run = msgspec.structs.replace(self.run, schema=self._source(self.run).schema)
        except BaseException:
            self._stack.close()
            raise

    def __enter__(self) -> Workbench:
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def train(self, run: RunFile, steps: int, each: Callable[[Outcome], None] | None = None) -> Outcome:
        """The first `steps` steps of `run`, a form of this workbench's run, as `sfctr train` takes them.

        each: called after every step with what the steps until then came to.
        There is no evaluation, so nothing that follows from one: no plateau, no early stopping.
        """
        source = self._source(run)
        with ExitStack() as stack:
            run = _apart(run, Path(stack.enter_context(TemporaryDirectory(dir=self._directory))))
            module = build_run_model(run).to(run.train.device)
            store = self._makers.store(run)
            stack.callback(store.close)
            load_pretrained(store, run, source)
            progress = ProgressLine(None, quiet=True)
            parts = self._makers.parts(
                run, source, store, module, scorer=scorer_of(run, store, module), progress=progress
            )
            watch = _Watch(module, lambda: _outcome(run, store, parts, watch), each)
            Trainer(replace(parts, lookahead=watch.over(parts.lookahead)), _first(run, source, steps)).run()
            return watch.end()

    def first_batches(self, steps: int) -> Iterable[Batch]:
        """The batches of the run's first steps."""
        return FirstBatches(self.run, self._source(self.run), steps)

    def reference(self, batches: Iterable[Batch], *, start: Outcome | None = None, nudge: int = 0) -> Outcome:
        """Steps in plain torch; see train_reference."""
        train, num_rows = self.run.train, self._source(self.run).num_rows
        with numerics(torch_threads=train.torch_threads, flush_denormals=train.flush_denormals, device=train.device):
            return self._makers.reference(self.run, batches, num_rows=num_rows, start=start, nudge=nudge)

    def _source(self, run: RunFile) -> Source:
        """Forms that read alike share a source, and so what it converted."""
        if run.data not in self._sources:
            source, _ = open_sources(self._stack, run, self._directory, *self._inputs)
            self._sources[run.data] = source
        return self._sources[run.data]


def _apart(run: RunFile, directory: Path) -> RunFile:
    """The run with its rows on disk, if it has such, in a directory of their own."""
    disk = str(directory) if run.tiers.disk else run.tiers.disk
    return msgspec.structs.replace(run, tiers=msgspec.structs.replace(run.tiers, disk=disk))


def _first(run: RunFile, source: Source, steps: int) -> Train:
    """The loop's options for its first steps, at the learning rates that they have in the whole run."""
    train = run.train
    length = decay_steps(train.schedule, steps_of_run(train, source.num_rows))
    return msgspec.structs.replace(
        train,
        max_steps=min(steps, train.max_steps or steps),
        schedule=msgspec.structs.replace(train.schedule, decay_steps=length),
        evaluate_every=None,
    )


class _Watch:
    """Writes down what a model is given and gives in training, step by step, and hands on what steps came to."""

    def __init__(
        self, module: nn.Module, outcome: Callable[[], Outcome], each: Callable[[Outcome], None] | None
    ) -> None:
        self._outcome, self._each, self._told = outcome, each, 0
        self.logits: list[list[Floats]] = []
        self.inputs: list[dict[str, Floats]] = []
        self.batch: Batch | None = None
        module.register_forward_pre_hook(self._given)
        module.register_forward_hook(self._gave)

    def over(self, lookahead: Loop) -> Loop:
        """The same steps; each begins a page of its own."""

        def steps(batches: Iterable[Batch]) -> Generator[Step, None, None]:
            for ready in lookahead(batches):
                self.logits.append([])
                self.inputs.clear()
                self.batch = ready.batch
                yield ready
                self._tell()

        return steps

    def end(self) -> Outcome:
        """What all steps came to."""
        if self._told < len(self.logits):
            self._tell()
        return self._outcome()

    def _tell(self) -> None:
        self._told = len(self.logits)
        if self._each is not None:
            self._each(self._outcome())

    def _given(self, module: nn.Module, arguments: tuple[dict[str, Tensor], ...]) -> None:
        if module.training:
            self.inputs.append({name: as_array(tensor) for name, tensor in arguments[0].items()})

    def _gave(self, module: nn.Module, arguments: tuple[dict[str, Tensor], ...], output: Tensor) -> None:
        if module.training:
            self.logits[-1].append(as_array(output.reshape(output.shape[0], -1)))


def _outcome(run: RunFile, store: Store, parts: Parts, watch: _Watch) -> Outcome:
    assert watch.batch is not None, "a run without steps is refused by the trainer"
    modules = {"model": parts.model, **{f"table.{name}": table for name, table in store.dense_tables.items()}}
    named: dict[str, Tensor] = {}
    for front, module in modules.items():
        named |= {f"{front}.{name}": t for name, t in (*module.named_parameters(), *module.named_buffers())}
    in_order = [p for p in (*parts.model.parameters(), *store.dense_parameters()) if p.requires_grad]
    return Outcome(
        logits=tuple(np.concatenate(logits) for logits in watch.logits),
        rows={table.name: _rows_of(store, table) for table in run.tables},
        dense=dense_values(named, parts.optimizer, in_order),
        batch=watch.batch,
        inputs={name: np.concatenate([part[name] for part in watch.inputs]) for name in watch.inputs[0]},
    )


def _rows_of(store: Store, table: Table) -> TableRows:
    """Every row that a store has of a table."""
    widths = fields_of(table)
    blocks = list(store.rows(table.name))
    fields = {
        name: np.concatenate([*(_columns(block, table, name) for block in blocks), np.empty((0, width), np.float32)])
        for name, width in widths.items()
    }
    keys = np.concatenate([*(block.keys for block in blocks), np.empty(0, np.uint64)])
    nulls = np.concatenate([*(block.nulls for block in blocks), np.empty(0, np.bool_)])
    return TableRows.sorted(keys, nulls, fields)


def _columns(block: RowBlock, table: Table, field: str) -> Floats:
    """A field of some rows, [n, W]."""
    if field == "vector":
        return block.vectors
    if field == "linear":
        assert block.linear is not None
        return block.linear[:, None]
    begin = 0
    for name, width in fields_of(table).items():
        if name == field:
            return block.state[:, begin : begin + width]
        begin += width if name not in ("vector", "linear") else 0
    raise AssertionError(f"table '{table.name}' has no field '{field}'")
