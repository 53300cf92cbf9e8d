"""Measures rows on disk: random reads against RocksDB, LMDB and a mapped file, write-back, and training on top.

Rows of 256 bytes, one file or database a contender on the same disk, each with 7 % of the rows' bytes for its cache;
ours has at most 7 % of the rows in RAM.

- Reads. Batches are the distinct rows of draws by Zipf's law, known 8 batches ahead. Ours is a Store driven by a
  Lookahead of 8 whose steps are discarded at once; it also writes back what its reads displace. RocksDB reads with
  O_DIRECT; LMDB and the mapped file get a page cache that is dropped before each round and warmed with the pages that
  LRU would hold, and that may then grow to the end of the round, which helps them: the longer a round, the more. Each
  of them is tried with several threads, RocksDB with a cache of blocks and one of rows, in rounds that do not count,
  and the fastest goes on. LMDB's line is bounded by its Python binding (see disk_rivals.py).
  A row counts whether a cache had it or not. CPU is that of the whole process, kernel included; of ours also that of
  `fetch` alone, which is one thread: look-up of places, submission, waiting, checksums, copying into RAM.
- Write-back. Ours appends rows that are on disk already, so that compaction has all it can have, and all are on the
  disk (fsync) after each IN_PLACE rows; in place are single pwrites of 256 bytes in random places, pages dropped
  before: as many, on the disk by one fdatasync for all, or fewer, on the disk one by one (O_DSYNC), which ours does not
  offer. The rate of ours is that of all rounds together, since compaction comes now and then.
- Training. An MLP over 8 look-ups of these rows, torch on one thread: all rows in RAM (the rows' training alone), a
  tiered store whose steps are discarded (fetching alone), and a tiered store that trains. Those two never see the same
  batches, whose rows would be in RAM the second time.

It would measure something else in memory (a tmpfs is refused), with so few rows that the rounds reread most pages,
while another process uses the disk or the processors, or without O_DIRECT.

    python benchmarks/bench_disk.py [--rows 3000000] [--rounds 4] [--dir DIR] [--measures FILE] [--save]
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import measures
from disk_rows import Plan
from measures import Measure
from origin import keep, origin
from rivals import NotInstalled, python_of
from team import Team, TeamFailed

HERE = Path(__file__).resolve().parent
REACH = {"RocksDB": 2.5, "LMDB": 3.0, "mmap": 2.0}
THREADS = {"RocksDB": (1, 8, 32, 64), "LMDB": (1, 8, 32), "mmap": (32,)}
CACHES = {"RocksDB": ("blocks", "rows")}
TRIALS = max(len(THREADS[name]) * len(CACHES.get(name, ("pages",))) for name in THREADS)
CEILING = "LMDB, a round read before: what its binding can give"
CPU_US = 1.5
IN_PLACE, ONE_BY_ONE, LOTS = 80_000, 2_000, 5
"""Rows that are written at once, and how many such lots ours writes for each one in place."""
TRAINING_BATCHES = 32

Answer = dict[str, Any]


def ask(team: Team, **job: Any) -> Answer:
    return team.ask(job, timeout_s=600)[0]


@contextmanager
def contender(name: str, folder: Path) -> Iterator[Team]:
    """A process with the rows of a rival, loaded. Raises NotInstalled, TeamFailed."""
    with Team(HERE / "disk_rivals.py", 1, folder, python=python_of("disk")) as team:
        ask(team, do="load", what=name)
        yield team


class Rivals:
    """Those that are at hand, and why the others are not."""

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        self.teams: dict[str, Team] = {}
        self.absent: dict[str, str] = {}
        for name in REACH:
            self._try(name, lambda name=name: stack.enter_context(contender(name, folder)))  # type: ignore[misc]

    def _try(self, name: str, work: Callable[[], Any]) -> Any:
        try:
            found = work()
        except (NotInstalled, TeamFailed) as error:
            self.absent[name] = str(error)
            self.teams.pop(name, None)
            return None
        if isinstance(found, Team):
            self.teams[name] = found
        return found

    def ask(self, name: str, **job: Any) -> Answer | None:
        return self._try(name, lambda: ask(self.teams[name], **job)) if name in self.teams else None


@dataclass(frozen=True)
class Setting:
    """caches: what of the rows is kept in memory."""

    threads: int
    caches: str


def best_setting(rivals: Rivals, name: str) -> Setting | None:
    """The fastest one of a rival's, each in a round of its own, since the rows of the one before are in its cache."""
    found: dict[Setting, float] = {}
    number = 0
    for caches in CACHES.get(name, ("pages",)):
        if name in CACHES:
            rivals.ask(name, do="cache", what=caches, round=number)
        for threads in THREADS[name]:
            answer = rivals.ask(name, do="read", round=number, threads=threads)
            number += 1
            if answer:
                found[Setting(threads, caches)] = rate([answer])
    best = max(found, key=lambda setting: found[setting], default=None)
    if best and name in CACHES:
        rivals.ask(name, do="cache", what=best.caches, round=TRIALS)
    return best


def measure_reads(ours: Team, rivals: Rivals, plan: Plan) -> dict[str, list[Answer]]:
    best = {name: best_setting(rivals, name) for name in list(rivals.teams)}
    for number in range(TRIALS):
        ask(ours, do="read", round=number)
    found: dict[str, list[Answer]] = {"ours": []}
    for number in range(TRIALS, plan.rounds):
        found["ours"].append(ask(ours, do="read", round=number))
        for name, setting in best.items():
            answer = setting and rivals.ask(name, do="read", round=number, threads=setting.threads)
            if setting and answer:
                found.setdefault(name, []).append({**answer, **asdict(setting)})
    answer = rivals.ask("LMDB", do="read", round=TRIALS, threads=1, again=True)
    if answer:
        found[CEILING] = [{**answer, **asdict(Setting(1, "all pages"))}]
    return found


def measure_writes(ours: Team, rivals: Rivals, plan: Plan) -> dict[str, list[Answer]]:
    """Half of all rows first, so that compaction has begun."""
    ask(ours, do="write", rows=plan.rows // 2, seed=0)
    found: dict[str, list[Answer]] = {"ours": [], "batch": [], "each": []}
    for number in range(1, plan.rounds - TRIALS + 1):
        for lot in range(LOTS):
            seed = number * LOTS + lot
            found["ours"].append(ask(ours, do="write", rows=min(IN_PLACE, plan.rows), seed=seed))
        for sync, rows in (("batch", IN_PLACE), ("each", ONE_BY_ONE)):
            answer = rivals.ask("mmap", do="write", rows=min(rows, plan.rows), round=number, sync=sync)
            if answer:
                found[sync].append(answer)
    return found


def measure_training(ours: Team, plan: Plan) -> dict[str, list[Answer]]:
    ask(ours, do="load", what="ram", share=1.3)
    ask(ours, do="train", what="tiered", round=0, model=True)
    ask(ours, do="train", what="ram", round=0, model=True)
    found: dict[str, list[Answer]] = {"train": [], "fetch": [], "both": []}
    for number in range(1, plan.training_rounds, 2):
        jobs = {
            "train": {"what": "ram", "model": True, "round": number},
            "fetch": {"what": "tiered", "model": False, "round": number},
            "both": {"what": "tiered", "model": True, "round": number + 1},
        }
        for name, job in jobs.items():
            found[name].append(ask(ours, do="train", **job))
    return found


def rate(answers: list[Answer], what: str = "rows") -> float:
    return statistics.median(each[what] / each["seconds"] for each in answers)


def total_rate(answers: list[Answer]) -> float:
    """Rows a second of all rounds together."""
    return sum(each["rows"] for each in answers) / sum(each["seconds"] for each in answers)


def us_a_row(answers: list[Answer], what: str, rows: str) -> float:
    return statistics.median(1e6 * each[what] / each[rows] for each in answers)


def read_lines(found: dict[str, list[Answer]], absent: dict[str, str], plan: Plan) -> list[Measure]:
    ours = rate(found["ours"])
    case = f"Zipf {plan.skew:g}, cache {plan.share:.0%}"
    lines = []
    for name, reach in REACH.items():
        if name in found:
            theirs = rate(found[name])
            threads, caches = found[name][0]["threads"], found[name][0]["caches"]
            line = Measure(
                target="disk-reads",
                case=f"{case}, {threads} thread{'s' * (threads > 1)} there, which caches {caches}",
                rival=name,
                ours=ours,
                theirs=theirs,
                unit="rows/s",
                figure=ours / theirs,
                reach=reach,
            )
        else:
            line = Measure(target="disk-reads", case=case, rival=name, not_run=absent.get(name, "it gave no figures"))
        lines.append(line)
    for what, key, reach_us in (("fetch alone", "fetch_cpu_s", CPU_US), ("whole process", "cpu_s", None)):
        figure = us_a_row(found["ours"], key, "rows")
        lines.append(
            Measure(
                target="disk-reads",
                case=f"{case}, CPU a row, {what}",
                ours=figure,
                unit="us",
                figure=figure,
                figure_unit="us",
                reach=reach_us,
                at_most=True,
            )
        )
    return lines


def write_lines(found: dict[str, list[Answer]], absent: dict[str, str]) -> list[Measure]:
    lines = []
    for sync, rival, reach in (
        ("batch", "pwrite, one fdatasync", 40.0),
        ("each", "pwrite, O_DSYNC: each durable", None),
    ):
        if not found[sync]:
            why = absent.get("mmap", "it gave no figures")
            lines.append(Measure(target="write-back", case="256 B", rival=rival, not_run=why))
            continue
        ours, theirs = total_rate(found["ours"]), rate(found[sync])
        lines.append(
            Measure(
                target="write-back",
                case="256 B, compaction and a last fsync included",
                rival=rival,
                ours=ours,
                theirs=theirs,
                unit="rows/s",
                figure=ours / theirs,
                reach=reach,
            )
        )
    return lines


def training_lines(found: dict[str, list[Answer]]) -> list[Measure]:
    if not all(each["fetched"] for each in found["both"]):
        why = "all rows of a round were in RAM already, and training waited for none; take more --rows"
        return [Measure(target="disk-training", case="8 look-ups, MLP 512-256", not_run=why)]
    step = {name: statistics.median(each["step_s"] for each in answers) for name, answers in found.items()}
    bound = max(("train", "fetch"), key=lambda name: step[name])
    return [
        Measure(
            target="disk-training",
            case=f"8 look-ups, MLP 512-256; training {1e3 * step['train']:.1f} ms, fetching {1e3 * step['fetch']:.1f};"
            f" {rows_fetched(found['both']):.0%} of the rows fetched",
            rival={"train": "all rows in RAM", "fetch": "fetching alone"}[bound],
            ours=1e3 * step["both"],
            theirs=1e3 * step[bound],
            unit="ms a step",
            figure=step["both"] / step[bound],
            reach=1.15,
            at_most=True,
        )
    ]


def rows_fetched(answers: list[Answer]) -> float:
    """Their share."""
    return sum(each["fetched"] for each in answers) / sum(each["rows"] for each in answers)


def as_markdown(found: dict[str, dict[str, list[Answer]]], lines: list[Measure], facts: dict[str, object]) -> str:
    page = ["# Rows on disk", "", *(f"{name}: {value}  " for name, value in facts.items()), "", "## Reads", ""]
    page += [
        "| contender | threads | caches | rows/s | CPU us a row | bytes read a row |",
        "|---|---:|---|---:|---:|---:|",
    ]
    for name, answers in found["reads"].items():
        cells = [str(answers[0].get("threads", "1 + look-ahead")), answers[0].get("caches", "rows")]
        cells += [f"{rate(answers):,.0f}"]
        cells += [f"{us_a_row(answers, 'cpu_s', 'rows'):.2f}", f"{us_a_row(answers, 'disk_bytes', 'rows') * 1e-6:,.0f}"]
        page.append(f"| {name} | {' | '.join(cells)} |")
    ours = found["reads"]["ours"]
    page += ["", f"Ours: {ours[-1]['rows_in_ram']:,} rows in RAM;"]
    page += [f"{rate(ours, 'fetched'):,.0f} rows/s from disk and as many written back;"]
    inside = statistics.median(each["fetched"] / each["fetch_s"] for each in ours)
    page += [f"within `fetch` {inside:,.0f} rows/s at {us_a_row(ours, 'fetch_cpu_s', 'fetched'):.2f} us of CPU each."]
    if found["writes"]["ours"]:
        lots = found["writes"]["ours"]
        moved = sum(each["moved"] for each in lots) / sum(each["rows"] for each in lots)
        page += ["", f"Write-back: compaction moved {moved:.2f} rows for each that was written."]
    page += ["", "| what | case | against | ours | theirs | figure |", "|---|---|---|---:|---:|---:|"]
    for line in lines:
        if line.figure is None or line.ours is None:
            page.append(f"| {line.target} | {line.case} | {line.rival} | not run: {line.not_run} | | |")
            continue
        theirs = "" if line.theirs is None else f"{line.theirs:,.1f}"
        cells = f"{line.ours:,.1f} {line.unit} | {theirs} | {line.figure:.2f} {line.figure_unit}"
        page.append(f"| {line.target} | {line.case} | {line.rival} | {cells} |")
    return "\n".join(page) + "\n"


def require_disk(folder: Path) -> str:
    """The file system of a folder. Exits where it is in memory."""
    words = ["stat", "--file-system", "--format=%T", str(folder)]
    kind = subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
    if kind in ("tmpfs", "ramfs"):
        raise SystemExit(f"{folder} is a {kind}, in memory: name a directory on a disk with --dir")
    return kind


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=3_000_000)
    parser.add_argument("--skew", type=float, default=1.05, help="Zipf's exponent; 0: even draws")
    parser.add_argument("--draws", type=int, default=65_536, help="a batch")
    parser.add_argument("--batches", type=int, default=6, help="a round")
    parser.add_argument("--rounds", type=int, default=4, help="that count, after those in which rivals are tried")
    parser.add_argument("--dir", type=Path, default=HERE.parent / "build", help="on the disk that is measured")
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/disk.json and disk.md")
    measures.add_option(parser)
    args = parser.parse_args()
    args.dir.mkdir(parents=True, exist_ok=True)
    kind = require_disk(args.dir)
    folder = Path(tempfile.mkdtemp(prefix="bench-disk-", dir=args.dir))
    plan = Plan(
        rows=args.rows,
        skew=args.skew,
        draws=args.draws,
        batches=args.batches,
        history=40,
        rounds=TRIALS + args.rounds,
        training_rounds=1 + 2 * args.rounds,
        training_batches=TRAINING_BATCHES,
        share=0.07,
    )
    try:
        plan.write(folder)
        found, lines = measure(folder, plan)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    facts = origin(rows=args.rows, skew=args.skew, draws=args.draws, rounds=args.rounds, file_system=kind)
    print(as_markdown(found, lines, facts))
    measures.write(args.measures, lines)
    if args.save:
        keep("disk", as_markdown(found, lines, facts), {**facts, **found})


def measure(folder: Path, plan: Plan) -> tuple[dict[str, dict[str, list[Answer]]], list[Measure]]:
    found = {}
    with Team(HERE / "disk_ours.py", 1, folder) as ours:
        ask(ours, do="load", what="tiered", share=plan.share)
        with ExitStack() as stack:
            rivals = Rivals(stack, folder)
            found["reads"] = measure_reads(ours, rivals, plan)
            found["writes"] = measure_writes(ours, rivals, plan)
        found["training"] = measure_training(ours, plan)
    lines = read_lines(found["reads"], rivals.absent, plan)
    return found, [*lines, *write_lines(found["writes"], rivals.absent), *training_lines(found["training"])]


if __name__ == "__main__":
    main()
