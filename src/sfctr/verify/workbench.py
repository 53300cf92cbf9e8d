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
import torch
from torch import Tensor, nn

from sfctr.data import Source
from sfctr.parallel.world import World
from sfctr.spec.batch import I64, Batch
from sfctr.spec.runfile import Checkpoints, Data, RunFile, Train
from sfctr.spec.tables import Table, Tiers
from sfctr.store import RowBlock, Store
from sfctr.train.assembly import load_pretrained, loop_parts, open_sources, scorer_of, settled
from sfctr.train.bench import Bench
from sfctr.train.checkpoint_files import checkpointer, newest_checkpoint
from sfctr.train.numerics import numerics
from sfctr.train.parts import Parts, Step
from sfctr.train.progress import ProgressLine
from sfctr.train.ranks import DenseRanks, Ranks
from sfctr.train.run import build_run_model, open_saved, open_store
from sfctr.train.run_dir import CHECKPOINTS
from sfctr.train.schedule import decay_steps, steps_of_run
from sfctr.train.trainer import Trainer

from .outcome import Floats, Outcome, TableRows, as_array, dense_values, fields_of
from .parts import Part
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

    run: with everything decided: tables, key types, device, threads. world: the processes that train it together, each
    with a workbench of its own; None: this one alone.
    """

    def __init__(
        self, run: RunFile, makers: Makers, *, data: Any = None, valid: Any = None, world: World | None = None
    ) -> None:
        self._makers, self._inputs, self._ranks = makers, (data, valid), Ranks.of(world)
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

    def train(
        self, run: RunFile, steps: int, each: Callable[[Outcome], None] | None = None, *, nudge: int = 0
    ) -> Outcome:
        """The first `steps` steps of `run`, a form of this workbench's run, as `sfctr train` takes them.

        each: called after every step with what the steps until then came to. nudge: above 0, first move every weight of
        the dense part by one unit in its last place, up or down by the draw of that number.
        There is no evaluation, so nothing that follows from one: no plateau, no early stopping.
        """
        return self.train_part(
            run, steps, None if each is None else lambda part: each(part.outcome), nudge=nudge
        ).outcome

    def train_part(
        self, run: RunFile, steps: int, each: Callable[[Part], None] | None = None, *, nudge: int = 0
    ) -> Part:
        """The same where this is one of several ranks: what it came to by itself."""
        source = self._source(run)
        with ExitStack() as stack:
            run = _apart(run, Path(stack.enter_context(TemporaryDirectory(dir=self._directory))))
            module = build_run_model(run).to(run.train.device)
            _nudge(module, nudge)
            store = self._store(run)
            stack.callback(store.close)
            load_pretrained(store, run, source, self._ranks.owns(store))
            exchange = self._ranks.exchange(store, run.parallel)
            parts = self._makers.parts(
                run,
                source,
                store,
                module,
                scorer=scorer_of(run, store, module, exchange),
                progress=ProgressLine(None, quiet=True),
                ranks=self._ranks,
                exchange=exchange,
                dense=self._ranks.dense(module, store, run.parallel),
            )
            num_labels = len(parts.labels.names)
            watch = _Watch(module, num_labels, lambda: _part(run, store, parts, watch), each)
            Trainer(replace(parts, lookahead=watch.over(parts.lookahead)), _first(run, source, steps)).run()
            return watch.end()

    def train_kept(self, run: RunFile, steps: int, run_dir: Path, *, goes_on: bool) -> None:
        """The first `steps` steps, kept in a run's directory, with a checkpoint at their end.

        goes_on: from the checkpoint that is there.
        """
        source, ranks = self._source(run), self._ranks
        run = msgspec.structs.replace(_apart(run, self._directory), train=_first(run, source, steps))
        with ExitStack() as stack:
            start = newest_checkpoint(run_dir / CHECKPOINTS, ranks.loop) if goes_on else None
            module = build_run_model(run).to(run.train.device)
            store = self._store(run)
            stack.callback(store.close)
            if start is None:
                load_pretrained(store, run, source, ranks.owns(store))
            else:
                start.load_store(store, ranks.owns(store), ranks.loop)
            options = Checkpoints(every_minutes=0)
            saver = stack.enter_context(checkpointer(run_dir / CHECKPOINTS, options, store, start, ranks.saving))
            bench = Bench(run, run_dir, source, None, store, module, is_object=False, saver=saver, ranks=ranks)
            bench.trainer(ProgressLine(None, quiet=True), start, goes_on=goes_on).run()

    def kept(self, run_dir: Path, like: Outcome) -> Outcome:
        """What a training that was kept has come to; what it did not keep is taken to be that of `like`."""
        saved = open_saved(run_dir, "last")
        module = build_run_model(saved.run)
        saved.load_model(module)
        with self._makers.store(msgspec.structs.replace(self.run, tiers=Tiers())) as store:
            saved.load_rows(store)
            modules = {"model": module, **{f"table.{name}": table for name, table in store.dense_tables.items()}}
            rows = {table.name: _rows_of(store, table) for table in self.run.tables}
        dense = dict(like.dense)
        for front, part in modules.items():
            for name, tensor in (*part.named_parameters(), *part.named_buffers()):
                dense[f"{front}.{name}"] = as_array(tensor)
        return replace(like, rows=rows, dense=dense)

    def first_batches(self, steps: int) -> Iterable[Batch]:
        """The batches of the run's first steps."""
        return FirstBatches(self.run, self._source(self.run), steps)

    def reference(self, batches: Iterable[Batch], *, start: Outcome | None = None, nudge: int = 0) -> Outcome:
        """Steps in plain torch; see train_reference."""
        train, num_rows = self.run.train, self._source(self.run).num_rows
        with numerics(torch_threads=train.torch_threads, flush_denormals=train.flush_denormals, device=train.device):
            return self._makers.reference(self.run, batches, num_rows=num_rows, start=start, nudge=nudge)

    def _store(self, run: RunFile) -> Store:
        if self._ranks.size == 1:
            return self._makers.store(run)
        return open_store(run, sharers=self._ranks.on_machine, copies=self._ranks.keep_copies(run))

    def _source(self, run: RunFile) -> Source:
        """Forms that read alike share a source, and so what it converted."""
        if run.data not in self._sources:
            source, _ = open_sources(self._stack, run, self._directory, *self._inputs, ranks=self._ranks)
            self._sources[run.data] = source
        return self._sources[run.data]


def _apart(run: RunFile, directory: Path) -> RunFile:
    """The run with its rows on disk, if it has such, in a directory of their own."""
    disk = str(directory) if run.tiers.disk else run.tiers.disk
    return msgspec.structs.replace(run, tiers=msgspec.structs.replace(run.tiers, disk=disk))


@torch.no_grad()
def _nudge(module: nn.Module, draw: int) -> None:
    if draw:
        generator = torch.Generator().manual_seed(draw)
        for parameter in module.parameters():
            up = torch.rand(parameter.shape, generator=generator) < 0.5
            parameter.copy_(torch.nextafter(parameter.cpu(), torch.where(up, torch.inf, -torch.inf)))


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
        self, module: nn.Module, num_labels: int, part: Callable[[], Part], each: Callable[[Part], None] | None
    ) -> None:
        self._part, self._each, self._told = part, each, 0
        self._nothing = np.zeros((0, num_labels), np.float32)
        self.logits: list[list[Floats]] = []
        self.places: list[I64] = []
        self.inputs: list[dict[str, Floats]] = []
        self.batch: Batch | None = None
        module.register_forward_pre_hook(self._given)
        module.register_forward_hook(self._gave)

    def over(self, lookahead: Loop) -> Loop:
        """The same steps; each begins a page of its own."""

        def steps(batches: Iterable[Batch]) -> Generator[Step, None, None]:
            for ready in lookahead(batches):
                self.logits.append([self._nothing])
                self.places.append(ready.places)
                self.inputs.clear()
                self.batch = ready.batch
                yield ready
                self._tell()

        return steps

    def end(self) -> Part:
        """What all steps came to."""
        if self._told < len(self.logits):
            self._tell()
        return self._part()

    def _tell(self) -> None:
        self._told = len(self.logits)
        if self._each is not None:
            self._each(self._part())

    def _given(self, module: nn.Module, arguments: tuple[dict[str, Tensor], ...]) -> None:
        if module.training:
            self.inputs.append({name: as_array(tensor) for name, tensor in arguments[0].items()})

    def _gave(self, module: nn.Module, arguments: tuple[dict[str, Tensor], ...], output: Tensor) -> None:
        if module.training:
            self.logits[-1].append(as_array(output.reshape(output.shape[0], -1)))


def _part(run: RunFile, store: Store, parts: Parts, watch: _Watch) -> Part:
    return Part(outcome=_outcome(run, store, parts, watch), places=tuple(watch.places))


def _outcome(run: RunFile, store: Store, parts: Parts, watch: _Watch) -> Outcome:
    assert watch.batch is not None, "a run without steps is refused by the trainer"
    return Outcome(
        logits=tuple(np.concatenate(logits) for logits in watch.logits),
        rows={table.name: _rows_of(store, table) for table in run.tables},
        dense=_dense_of(store, parts),
        batch=watch.batch,
        inputs={name: np.concatenate([part[name] for part in watch.inputs]) for name in (watch.inputs or [{}])[0]},
    )


def _dense_of(store: Store, parts: Parts) -> dict[str, Floats]:
    """Parameters, buffers and optimizer state, whole; all ranks ask."""
    shared = parts.dense.parts if isinstance(parts.dense, DenseRanks) else None
    if shared is not None:
        whole = {f"model.{name}": value for name, value in shared.state_dict().items()}
        whole |= {f"table.{name}": value for name, value in store.dense_state().items()}
        trained = {name: p for name, p in shared.parameters.items() if p.requires_grad}
        found = dense_values(dict(trained), parts.optimizer, list(trained.values()))
        moments = {name: value for name, value in found.items() if " of " in name}
        return {name: as_array(value) for name, value in whole.items()} | {
            name: as_array(shared.whole(name.partition(" of ")[2], torch.from_numpy(value)))
            for name, value in moments.items()
        }
    modules = {"model": parts.model, **{f"table.{name}": table for name, table in store.dense_tables.items()}}
    named: dict[str, Tensor] = {}
    for front, module in modules.items():
        named |= {f"{front}.{name}": t for name, t in (*module.named_parameters(), *module.named_buffers())}
    in_order = [p for p in (*parts.model.parameters(), *store.dense_parameters()) if p.requires_grad]
    return dense_values(named, parts.optimizer, in_order)


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
