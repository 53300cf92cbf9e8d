"""A trained model for others, in one directory that needs no trainer to be read.

  <table>.parquet   the rows of each table, see rows.py
  model.pt2         the dense part by torch.export: a dict of features in (see spec.inputs.Input), logits out
  export.json       format and version, schema, tables, labels, how scores are corrected, and sizes and CRC-32 of the
                    files above; written last, so that a directory without it is not whole

docs/format/export.md says it in full.
"""

from __future__ import annotations

import copy
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch
import torch.fx
from torch import Tensor, nn

from sfctr.spec.errors import ModelError, writing
from sfctr.spec.inputs import Input, inputs_of
from sfctr.spec.peers import ALONE, Peers
from sfctr.spec.runfile import RunFile
from sfctr.spec.struct_tree import to_plain
from sfctr.spec.together import Together
from sfctr.store import Store

from .chain import Chain
from .files import FACTS_FILE, FORMAT, MODEL_FILE, VERSION, facts_of, write_facts
from .rows import export_rows


@dataclass(frozen=True, kw_only=True)
class Trained:
    """What is exported. labels: those that the model gives a logit each for. log_odds_shift: added to every logit when
    scoring. strings: table -> key -> text of hashed keys, where it was kept. Of several ranks rank 0 has the whole
    model, and the texts of all."""

    run: RunFile
    store: Store
    model: nn.Module
    labels: Sequence[str]
    log_odds_shift: float
    strings: Mapping[str, Mapping[int, str]]


def export_model(
    out: Path,
    trained: Trained,
    *,
    chain: Chain | None = None,
    program: torch.export.ExportedProgram | None = None,
    peers: Peers = ALONE,
) -> list[Path]:
    """Write a model and its rows into the directory `out` (made if needed); returns the paths.

    chain: what deltas follow it by. program: of the model, where it was made already. peers: all ranks, who hold the
    rows between them: rank 0 writes them.
    Raises ModelError where torch.export cannot take the model, and what export_rows raises.
    """
    with Together(peers, "export") as together:
        if together.is_first:
            program = program or program_of(trained)
            (out / FACTS_FILE).unlink(missing_ok=True)
        paths = export_rows(trained.store, trained.run.schema, out, strings=trained.strings, peers=peers)
        if program is not None and together.is_first:
            paths += _finish(out, trained, paths, program, chain)
        return paths


def _finish(
    out: Path, trained: Trained, paths: Sequence[Path], program: torch.export.ExportedProgram, chain: Chain | None
) -> list[Path]:
    """The files beside the rows."""
    run, model = trained.run, save_program(program, out)
    facts = {
        "format": FORMAT,
        "version": VERSION,
        "schema": to_plain(run.schema, "schema"),
        "tables": [to_plain(table, f"tables.{table.name}") for table in run.tables],
        "data": to_plain(run.data, "data"),
        "labels": list(trained.labels),
        "log_odds_shift": trained.log_odds_shift,
        "autocast": run.train.autocast,
        "files": msgspec.to_builtins(facts_of([*paths, model])),
    }
    return [model, write_facts(out, facts if chain is None else {**facts, "chain": msgspec.to_builtins(chain)})]


def save_program(program: torch.export.ExportedProgram, out: Path) -> Path:
    path, buffer = out / MODEL_FILE, io.BytesIO()
    torch.export.save(program, buffer)  # its own writer ends the process where a disk is full
    with writing(path):
        part = out / f".{MODEL_FILE}.part"
        part.write_bytes(buffer.getbuffer())
        part.replace(path)
    return path


def program_of(trained: Trained) -> torch.export.ExportedProgram:
    """The model in evaluation mode, for batches of any size from two on. Raises ModelError."""
    model, features = trained.model, _example(inputs_of(trained.run.schema, trained.run.tables), 3)
    batch = torch.export.Dim("batch", min=2)
    try:
        with torch.no_grad():
            program = torch.export.export(
                copy.deepcopy(model).cpu().eval(),
                (features,),
                dynamic_shapes=({name: {0: batch} for name in features},),
                strict=False,
            )
    except Exception as error:  # whatever tracing somebody's forward() comes upon
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelError(
            f"torch.export cannot take model {type(model).__name__}: {reason}; its forward() must not depend on values,"
            " or export the rows alone (--rows)"
        ) from error
    _forget_source(program)
    return program


def _forget_source(program: torch.export.ExportedProgram) -> None:
    """Take away the lines of source that each operation came from: paths of this machine, in files for others."""
    for module in program.graph_module.modules():
        if isinstance(module, torch.fx.GraphModule):
            for node in module.graph.nodes:
                node.meta.pop("stack_trace", None)


def _example(inputs: Sequence[Input], size: int) -> dict[str, Tensor]:
    """Features of some batch of `size` rows."""
    found: dict[str, Tensor] = {}
    for each in inputs:
        if each.kind == "dense":
            found[each.name] = torch.zeros(size, each.width)
        elif each.kind == "pooled" and each.dim:
            found[each.name] = torch.zeros(size, each.dim)
        elif each.kind == "sequence" and each.dim:
            found[each.name] = torch.zeros(size, each.max_length, each.dim)
        if each.linear:
            found[f"{each.name}.linear"] = torch.zeros(size, 1)
        if each.kind == "sequence":
            mask = torch.zeros(size, each.max_length, dtype=torch.bool)
            mask[:, 0] = True
            found[f"{each.name}.mask"] = mask
    return found
