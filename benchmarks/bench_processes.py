"""Measures what many processes cost: bytes between them, steps with them, and rivals beside them.

All on one machine, by gloo over loopback: bytes are what they would be between machines, times are not. A network adds
its own time, and processes share cores, memory bandwidth and caches here: with 2 cores, 4 processes take turns, and of
2 processes, the threads that read ahead compete with those that train. Torch has one thread a process.

The stream is synthetic and has Criteo's shape (26 keyed columns, 13 numbers); the model is a DLRM, the same module for
all, with vectors of 16 floats and a top MLP of 512-256; its dense part learns by SGD.

1. Bytes, of all kinds, that a rank sends a step. Exact, and the same on any machine. Batches are not read ahead, and
   the first half of the steps is not counted: copies are brought then. (Kinds whose length the receiver does not know
   travel in a message of at least 1,024 bytes, which is counted as what it has to say.) How many copies are missing
   after that still depends on how long a run is: the synthetic stream has new keys for ever. Beside it: what keys, rows
   and gradients would be if each look-up of another rank's row had its own, without virtual ids.
2. owners against allreduce: the bytes that follow from the sizes of messages, and step times.
3. One process against two, and two against TorchRec and DistributedDataParallel over a sparse nn.EmbeddingBag, with the
   same rows and global batch. Ours has batches in memory as its reader gives them; it finds unique keys and makes new
   rows during the measured steps, up to 4 batches ahead. Rivals have tensors made before the clock starts, ids numbered
   from 0, and tables of just as many rows, all in their favour. TorchRec shards all tables, as ours does (its
   planner would replicate small ones: see baselines/dlrm_torchrec.py). Plain torch has the whole table on every rank,
   and one accumulator an element where the others have one a row.

Rounds are taken in turn, medians quoted: of a training its median step, past the first quarter, and of these over
rounds. It would measure something else with larger batches (more is merged), other skew of ids, longer vectors, a real
network, or more cores than processes' threads.

    python benchmarks/bench_processes.py [--rounds 3] [--steps 40] [--batch 4096] [--save]

Needs to install TorchRec into benchmarks/.rivals once; a row that gave no figures says why.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from origin import keep, origin
from processes_bytes import ROW_KINDS, Counted, counted, rule_of_thumb
from processes_data import write_arrays, write_rows
from processes_model import DIM, HIDDEN
from rivals import HERE, NotInstalled, python_of
from team import Team, TeamFailed

OURS = HERE / "processes_rank.py"
PLAIN_TORCH = HERE / "baselines" / "dlrm_ddp.py"
TORCHREC = HERE / "baselines" / "dlrm_torchrec.py"
BYTES_STEPS = 12
WINDOW = 4
BEGAN = time.monotonic()


@dataclass(frozen=True, kw_only=True)
class Form:
    """A training that is timed: `ranks` processes of `who`."""

    who: str
    ranks: int
    rows: str
    sync: str = "owners"

    @property
    def team(self) -> tuple[str, int]:
        return self.who, self.ranks

    def __str__(self) -> str:
        sync = f", {self.sync}" if self.who == "sfctr" and self.ranks > 1 else ""
        return f"{self.who}, {self.ranks} {'process' if self.ranks == 1 else 'processes'}{sync}"


FORMS = (
    *(Form(who="sfctr", ranks=1, rows=rows) for rows in ("sgd", "rowwise_adagrad")),
    *(Form(who="sfctr", ranks=2, rows=rows) for rows in ("sgd", "rowwise_adagrad")),
    *(Form(who="TorchRec", ranks=2, rows=rows) for rows in ("sgd", "rowwise_adagrad")),
    *(Form(who="plain torch", ranks=2, rows=rows) for rows in ("sgd", "adagrad")),
    Form(who="sfctr", ranks=2, rows="rowwise_adagrad", sync="allreduce"),
    *(Form(who="sfctr", ranks=4, rows="rowwise_adagrad", sync=sync) for sync in ("owners", "allreduce")),
)


def say(text: str) -> None:
    """How far it is, on stderr."""
    print(f"{time.monotonic() - BEGAN:4.0f} s  {text}", file=sys.stderr, flush=True)


def measure_bytes(folder: Path, batches: Sequence[int]) -> list[Counted]:
    found = []
    for ranks in (2, 4):
        with Team(OURS, ranks, folder) as team:
            for batch in batches:
                for sync in ("owners", "allreduce"):
                    for wire in ("fp32", "bf16"):
                        job = {"batch": batch, "sync": sync, "wire": wire, "rows": "rowwise_adagrad", "window": 0}
                        job |= {"steps": BYTES_STEPS, "warm": BYTES_STEPS // 2}
                        found.append(counted(job, team.ask(job), DIM))
                        say(f"{ranks} ranks, batch {batch}, {sync}, {wire}: {found[-1].rows / 1e3:,.1f} kB of rows")
    return found


@dataclass(frozen=True, kw_only=True)
class Timed:
    """step_s: seconds of a step. loss: of the last step, which shows that all learn the same."""

    step_s: float
    loss: float


def measure_times(folder: Path, batch: int, steps: int, rounds: int) -> dict[Form, Timed | str]:
    """What each took, or why that is not known."""
    found: dict[Form, list[Timed]] = {form: [] for form in FORMS}
    failed: dict[tuple[str, int], str] = {}
    with ExitStack() as stack:
        teams = _teams(stack, folder, failed)
        for number in range(rounds):
            for form in FORMS:
                if form.team in failed:
                    continue
                job = {"batch": batch, "steps": steps, "warm": max(1, steps // 4), "window": WINDOW}
                try:
                    answers = teams[form.team].ask(job | {"rows": form.rows, "sync": form.sync})
                except TeamFailed as error:
                    failed[form.team] = str(error)
                else:
                    step_s = statistics.median(s for answer in answers for s in answer["step_s"])
                    found[form].append(Timed(step_s=step_s, loss=sum(answer["loss"] for answer in answers)))
                say(f"round {number + 1}, {form}, {form.rows}: {failed.get(form.team) or found[form][-1]}")
    return {form: failed.get(form.team) or _median(found[form]) for form in FORMS}


def _median(of_rounds: Sequence[Timed]) -> Timed:
    return Timed(step_s=statistics.median(timed.step_s for timed in of_rounds), loss=of_rounds[0].loss)


def _teams(stack: ExitStack, folder: Path, failed: dict[tuple[str, int], str]) -> dict[tuple[str, int], Team]:
    scripts: Mapping[str, Callable[[], tuple[Path, dict[str, Any]]]] = {
        "sfctr": lambda: (OURS, {}),
        "plain torch": lambda: (PLAIN_TORCH, {}),
        "TorchRec": lambda: (TORCHREC, {"python": python_of("torchrec")}),
    }
    teams = {}
    for who, ranks in dict.fromkeys(form.team for form in FORMS):
        try:
            script, more = scripts[who]()
        except NotInstalled as error:
            failed[who, ranks] = str(error)
        else:
            teams[who, ranks] = stack.enter_context(Team(script, ranks, folder, **more))
    return teams


def bytes_page(found: Sequence[Counted]) -> list[str]:
    kinds = [*ROW_KINDS, "dense"]
    lines = [
        "## Bytes that a rank sends a step, in kB",
        "",
        f"| ranks | batch | sync | wire | {' | '.join(kinds)} | rows in all | without virtual ids | of it |",
        "|---:|---:|---|---|" + "---:|" * (len(kinds) + 3),
    ]
    for c in found:
        numbers = [f"{c.kinds.get(kind, 0) / 1e3:,.1f}" for kind in kinds] + [f"{c.rows / 1e3:,.1f}"]
        apart = [f"{c.positions / 1e3:,.1f}", f"{c.rows / c.positions:.2f}"] if c.sync == "owners" else ["", ""]
        lines.append(f"| {c.ranks} | {c.batch} | {c.sync} | {c.wire} | {' | '.join(numbers + apart)} |")
    return [*lines, "", 'Rows in all: of all kinds but "dense". Of it: rows in all, to what they would be.', ""]


def formula_page(found: Sequence[Counted]) -> list[str]:
    lines = [
        "## owners against allreduce, in bytes",
        "",
        "| ranks | batch | wire | U | n | o | m | owners, kB | by formula | allreduce, kB | by formula"
        " | allreduce / owners |",
        "|---:|---:|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    by_place = {(c.ranks, c.batch, c.wire, c.sync): c for c in found}
    for (ranks, batch, wire, sync), own in by_place.items():
        if sync == "owners":
            all_ = by_place[ranks, batch, wire, "allreduce"]
            lines.append(
                f"| {ranks} | {batch} | {wire} | {own.unique:,.0f} | {own.n:.2f} | {own.overlap:.2f} | {all_.m:.2f}"
                f" | {own.rows / 1e3:,.1f} | {own.formula / 1e3:,.1f} | {all_.rows / 1e3:,.1f}"
                f" | {all_.formula / 1e3:,.1f} | {all_.rows / own.rows:.2f} |"
            )
    return [
        *lines,
        "",
        "Of a rank and step. U: unique keys of its part. n: distinct keys of the whole batch, to U. o: share of U that"
        " others have, too. m: share of others' rows of the batch that have no copy yet.",
        "",
        rule_of_thumb(DIM),
        "",
    ]


def times_page(found: Mapping[Form, Timed | str], batch: int) -> list[str]:
    lines = [
        f"## Steps of {batch} rows",
        "",
        "| who | rows' optimizer | step, ms | rows/s | to sfctr, 1 process | to sfctr, 2, owners | last loss |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for form, timed in found.items():
        if isinstance(timed, str):
            lines.append(f"| {form} | {form.rows} | not measured | | | | |")
            continue
        rule = "sgd" if form.rows == "sgd" else "rowwise_adagrad"
        ratios = []
        for ranks in (1, 2):
            base = found[Form(who="sfctr", ranks=ranks, rows=rule)]
            ratios.append("" if isinstance(base, str) else f"{base.step_s / timed.step_s:.2f}")
        pace = f"{timed.step_s * 1e3:.1f} | {batch / timed.step_s:,.0f}"
        lines.append(f"| {form} | {form.rows} | {pace} | {' | '.join(ratios)} | {timed.loss:.4f} |")
    failed = dict.fromkeys(f"{form}: {why}" for form, why in found.items() if isinstance(why, str))
    return [
        *lines,
        "",
        "Ratios are of rows/s: above 1 is faster. adagrad is compared with rowwise_adagrad.",
        *failed,
        "",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=40, help="of a training that is timed")
    parser.add_argument("--batch", type=int, default=4096, help="of a training that is timed")
    parser.add_argument("--bytes-batches", type=int, nargs="*", default=[4096, 16384], help="of those counted")
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/processes.json and processes.md")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        write_rows(folder, max([args.steps * args.batch, *(BYTES_STEPS * batch for batch in args.bytes_batches)]))
        write_arrays(folder, args.batch, args.steps)
        found_bytes = measure_bytes(folder, args.bytes_batches)
        found_times = measure_times(folder, args.batch, args.steps, args.rounds)
    facts = origin(rounds=args.rounds, steps=args.steps, model="dlrm", mlp="-".join(map(str, HIDDEN)), dim=DIM)
    lines = ["# What many processes cost", "", ", ".join(f"{name}: {value}" for name, value in facts.items()), ""]
    lines += [*bytes_page(found_bytes), *formula_page(found_bytes), *times_page(found_times, args.batch)]
    page = "\n".join(lines).rstrip() + "\n"
    print(page)
    if args.save:
        times = [asdict(form) | ({"why": t} if isinstance(t, str) else asdict(t)) for form, t in found_times.items()]
        keep("processes", page, {**facts, "bytes": [asdict(c) for c in found_bytes], "times": times})


if __name__ == "__main__":
    main()
