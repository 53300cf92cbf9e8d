"""The pieces of a run, put together from its run file: sources, rows, scorer and what the loop works with.

`fit` keeps what comes out of them in a run directory; whoever wants the loop alone (see verify) takes them from here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import nn

from sfctr.data import Source, open_training
from sfctr.data.pretrained import read_pretrained
from sfctr.lookahead import Lookahead, ReadView
from sfctr.models.registry import default_tables, needs_of
from sfctr.spec.exchange import Exchange
from sfctr.spec.owned import Owns
from sfctr.spec.runfile import RunFile
from sfctr.spec.runfile_text import checked
from sfctr.spec.schema import key_type_of_table
from sfctr.spec.tables import Table
from sfctr.store import Store
from sfctr.telemetry import notice

from .compiled import compiled
from .history import peak_bytes
from .log import Line
from .numerics import autocast, resolve_device
from .optim import make_dense_optimizer
from .options import check_run
from .parts import Parts
from .progress import ProgressLine
from .ranks import ALONE, DenseRanks, Ranks
from .scoring import Labels, Rows, Scorer


def settled(run: RunFile, model: nn.Module | None = None) -> RunFile:
    """The run with every table, device and thread count decided, and what its preset decides.

    Raises ConfigError where its options do not fit.
    """
    given = checked(run)
    run = given.with_preset()
    if run != given:
        notice(f'preset "{run.preset}": train.window = {run.train.window}, tiers.policy = "{run.tiers.policy}"')
    check_run(run)
    chosen = run.model.name if model is None else model
    tables = default_tables(chosen, run.schema, run.tables)
    _say_unused(chosen, run.model.name, tables)
    threads = run.train.torch_threads
    threads = threads if isinstance(threads, int) else torch.get_num_threads()
    train = msgspec.structs.replace(run.train, device=resolve_device(run.train.device), torch_threads=threads)
    return msgspec.structs.replace(run, tables=tables, train=train)


def _say_unused(model: str | nn.Module, name: str, tables: Sequence[Table]) -> None:
    needs = needs_of(model)
    if needs is None:
        return
    for table in tables:
        if table.linear is not None and not needs.linear:
            notice(f"model '{name}' does not use the first-order weights of table '{table.name}': they stay 0")
        if table.dim and not needs.vectors:
            notice(f"model '{name}' does not use the vectors of table '{table.name}': dim = 0 saves their memory")


def open_sources(
    stack: ExitStack,
    run: RunFile,
    spool_dir: Path,
    data: Any = None,
    valid: Any = None,
    *,
    ranks: Ranks = ALONE,
) -> tuple[Source, Source | None]:
    """The training source and, where rows are held out, the validation source; `stack` closes them.

    ranks: whose parts of the rows they give.
    """
    train = run.train
    source, held_out = open_training(
        run.data,
        run.schema,
        batch_size=train.batch_size,
        seed=train.seed,
        data=data,
        valid=valid,
        spool_dir=str(spool_dir),
        lanes=ranks.lanes(run.parallel),
        part=ranks.part,
    )
    for each in (source, held_out):
        if each is not None:
            stack.enter_context(each)
    return source, held_out


def load_pretrained(store: Store, run: RunFile, source: Source, owns: Owns | None = None) -> None:
    """Begin the rows of tables that say so from their files; `source` keeps the texts of their keys with its own.

    owns: which rows are this rank's, where there are several.
    """
    types = key_type_of_table(run.schema)
    for table in run.tables:
        if table.pretrained is not None:
            for keys, vectors in read_pretrained(table, types[table.name], source.remember_for(table.name)):
                if owns is not None:
                    is_own = owns(table.name, keys)
                    keys, vectors = keys[is_own], vectors[is_own]
                store.set_vectors(table.name, keys, vectors)


def scorer_of(run: RunFile, store: Store, module: nn.Module, exchange: Exchange | None = None) -> Scorer:
    """What scores batches for a settled run; exchange: with the ranks that have the other rows."""
    num_labels = len(Labels.of(run.schema, run.train.loss_labels).names)
    view = ReadView(store, run.schema, exchange)
    return Scorer(module, view, num_labels, partial(autocast, run.train, run.train.device))


def loop_parts(
    run: RunFile,
    source: Rows,
    store: Store,
    module: nn.Module,
    *,
    scorer: Scorer,
    progress: ProgressLine,
    evaluate: Callable[[], dict[str, Any]] | None = None,
    save: Callable[[str, dict[str, Any]], None] = lambda name, facts: None,
    log: Callable[[Line], None] = lambda line: None,
    ranks: Ranks = ALONE,
    exchange: Exchange | None = None,
    dense: DenseRanks | None = None,
) -> Parts:
    """What the loop of a settled run works with; by default nothing is evaluated, kept or logged.

    ranks, exchange, dense: the processes that train it together.
    """
    trained = [*module.parameters(), *store.dense_parameters()] if dense is None else dense.parameters
    return Parts(
        model=module,
        optimizer=make_dense_optimizer(run.train.optimizer, trained),
        source=source,
        labels=Labels.of(run.schema, run.train.loss_labels),
        lookahead=partial(Lookahead, store=store, schema=run.schema, window=run.train.window, exchange=exchange),
        scorer=scorer,
        evaluate=evaluate,
        save=save,
        log=log,
        progress=progress,
        membership=lambda: ranks.summed(store.membership()),
        counters=lambda: ranks.summed(store.table_counters()),
        held=lambda: ranks.summed({**store.held(), "process": {"peak_bytes": peak_bytes()}}),
        wire=lambda: ranks.wire(exchange),
        peers=ranks.loop,
        failed=ranks.failed,
        dense=dense,
        call=compiled(module, run.train) if run.train.compile else None,
    )
