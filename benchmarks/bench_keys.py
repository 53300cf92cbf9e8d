"""Measures finding the unique ids of a batch with their inverse, and looking keys up in the index, on one thread.

Times are of the processor, since each contender has one thread: other work on the machine counts only by what it takes
of memory and caches. Rounds are taken in turn, and medians quoted.

1. Unique ids: 8,192 rows of 26 features with a table each, 212,992 ids by Zipf's law. Ours is one call for all
   features, which keeps the order of first appearance; torch.unique(return_inverse=True) and np.unique are called once
   a feature, and sort. All give uint64 or int64 keys and an inverse, which is compared once. Several batches in turn.
   It would measure something else with one batch again and again (its branches are learnt), with bags or several
   features of a table, or with torch's threads.
2. Look-ups of keys that are there, drawn evenly, in batches as a step makes them: native/bench/bench_index.cpp tells
   what is measured. It is built with cmake into build/bench, with absl where its development files are installed
   (Debian: libabsl-dev). What is judged is named "malloc's pages, plain loop": absl as it comes, a find a key, where
   ours has huge pages and asks for lines ahead by itself. Fairer to the table itself, and shown: another run with absl
   in huge pages, and there also a loop that prefetches ("asked ahead"). Four times as fast as that would be faster than
   memory. A line of memory at random is the floor: the better of
   reading lines with and without prefetching. Where the processor's last cache holds the table, the floor is that
   cache's.
3. A Python dict of int to int, up to 10^7 keys: `list(map(slots.__getitem__, keys))` with ints made before.
   Measured after ours, not in turn.

Memory: what the index has a key at most, while it grows from a tenth of its keys on. A stamped one belongs to tables
that count or expire keys.

    python benchmarks/bench_keys.py [--keys 10000000 100000000] [--rounds 5] [--save]

10^8 keys take 6 GB, and are filled in twice, which is most of the time: about two minutes where nothing else runs.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import measures
import numpy as np
import table
import torch
from measures import Measure
from origin import keep, origin
from step_data import B, F, zipf_ids

from sfctr import _native

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "bench"
IDS_OF_A_TABLE = 400_000
SKEWS = (1.05, 1.2)
MOST_DICT_KEYS = 10_000_000
"""A dict of more would take longer to make than everything else here."""
LEAST_KEYS = 10_000_000
"""From so many on, look-ups are to reach what measures.TARGETS says."""
INDEX_BYTES = 24.0
BEGAN = time.monotonic()


def say(text: str) -> None:
    """How far it is, on stderr."""
    print(f"{time.monotonic() - BEGAN:4.0f} s  {text}", file=sys.stderr, flush=True)


def median_in_turn(contenders: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, float]:
    found: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, body in contenders.items():
            found[name].append(body())
    return {name: statistics.median(values) for name, values in found.items()}


class Uniques:
    """The batches of a skew, as each contender takes them."""

    def __init__(self, skew: float, batches: int) -> None:
        random = np.random.default_rng(0)
        self.ids = [[zipf_ids(random, B, IDS_OF_A_TABLE, skew) for _ in range(F)] for _ in range(batches)]
        self._features = [
            [_native.FeatureKeys(f, "one", keys.view(np.uint64)) for f, keys in enumerate(batch)] for batch in self.ids
        ]
        self._tensors = [[torch.from_numpy(keys) for keys in batch] for batch in self.ids]

    def ours(self, batch: int) -> _native.WorkingSet:
        return _native.WorkingSet(F, B, self._features[batch])

    def torch(self, batch: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        return [torch.unique(keys, return_inverse=True) for keys in self._tensors[batch]]

    def numpy(self, batch: int) -> list[tuple[np.ndarray, np.ndarray]]:
        return [np.unique(keys, return_inverse=True) for keys in self.ids[batch]]

    def check(self) -> None:
        """Each gives every id back through its inverse, and the same number of keys."""
        ws = self.ours(0)
        begin = ws.table_begin()
        for f, (keys, (by_torch, inverse)) in enumerate(zip(self.ids[0], self.torch(0), strict=True)):
            assert np.array_equal(ws.keys()[ws.virtual_ids(f)].view(np.int64), keys)
            assert np.array_equal(by_torch[inverse].numpy(), keys)
            assert begin[2 * f + 1] - begin[2 * f] == len(by_torch)

    def ns_an_id(self, body: Callable[[int], object]) -> float:
        began = time.process_time()
        for batch in range(len(self.ids)):
            body(batch)
        return (time.process_time() - began) * 1e9 / (len(self.ids) * F * B)


def unique_lines(skew: float, batches: int, rounds: int) -> list[Measure]:
    uniques = Uniques(skew, batches)
    uniques.check()
    found = median_in_turn(
        {
            "ours": lambda: uniques.ns_an_id(uniques.ours),
            "torch.unique": lambda: uniques.ns_an_id(uniques.torch),
            "np.unique": lambda: uniques.ns_an_id(uniques.numpy),
        },
        rounds + 1,  # the first warms memory
    )
    case, ours = f"212,992 ids of 26 features, Zipf {skew}", found["ours"]
    lines = [
        ratio("unique", case, rival, ours, found[rival], "ns an id", reach)
        for rival, reach in (("torch.unique", 12.0), ("np.unique", 8.0))
    ]
    return [*lines, absolute("unique", case, ours, "ns an id", 3.3)]


def ratio(target: str, case: str, rival: str, ours: float, theirs: float, unit: str, reach: float | None) -> Measure:
    """Of times: how many times as fast ours is."""
    return Measure(
        target=target, case=case, rival=rival, ours=ours, theirs=theirs, unit=unit, figure=theirs / ours, reach=reach
    )


def absolute(target: str, case: str, figure: float, unit: str, at_most: float) -> Measure:
    return Measure(
        target=target, case=case, ours=figure, unit=unit, figure=figure, figure_unit=unit, reach=at_most, at_most=True
    )


class NotBuilt(Exception):
    """The native benchmark gave no figures; the message says why."""


def build_index() -> Path:
    """Raises NotBuilt."""
    beside = Path(sys.executable).parent
    cmake = shutil.which("cmake", path=f"{beside}{os.pathsep}{os.environ.get('PATH', '')}")
    if cmake is None:
        raise NotBuilt("there is no cmake to build native/bench/bench_index.cpp with; pip install cmake")
    run([cmake, "-S", str(ROOT), "-B", str(BUILD), "-DSFCTR_BENCH=ON", "-DCMAKE_BUILD_TYPE=Release"])
    run([cmake, "--build", str(BUILD), "--target", "bench_index"])
    return BUILD / "bench_index"


def run(command: Sequence[str], **environment: str) -> str:
    try:
        done = subprocess.run(
            command, env=os.environ | environment, capture_output=True, text=True, check=False, timeout=900
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotBuilt(f"{command[0]}: {error}") from None
    if done.returncode:
        words = (done.stderr.strip() or done.stdout.strip() or f"status {done.returncode}").splitlines()[-1]
        raise NotBuilt(f"{' '.join(command[:3])}: {words}")
    return done.stdout


@dataclass(frozen=True, kw_only=True)
class Looked:
    """ns: contender -> median nanoseconds a key. most_bytes, most_bytes_stamped: of the index, a key; 0: not known."""

    ns: dict[str, float]
    most_bytes: float
    most_bytes_stamped: float


def look_up(program: Path, num_keys: int, rounds: int, *, huge: bool) -> Looked:
    """huge: whether absl's memory is advised to be of huge pages, as ours always is. Raises NotBuilt."""
    tunables = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"} if huge else {}
    found = json.loads(run([str(program), str(num_keys), str(rounds + 1)], **tunables))
    return Looked(
        ns={name: statistics.median(values[1:]) for name, values in found.items() if isinstance(values, list)},
        most_bytes=found["most_bytes_a_key"],
        most_bytes_stamped=found["most_bytes_a_key_stamped"],
    )


def index_lines(program: Path, num_keys: int, rounds: int) -> Iterator[Measure]:
    """Raises NotBuilt."""
    case, judged = f"{num_keys:,} keys", num_keys >= LEAST_KEYS
    huge, plain = (look_up(program, num_keys, rounds, huge=huge) for huge in (True, False))
    ours = huge.ns["index"]
    if "absl" in huge.ns:
        reach = 4.0 if judged else None
        for rival, found, name, own_reach in (
            ("absl, malloc's pages, plain loop", plain, "absl", reach),
            ("absl, huge pages, plain loop", huge, "absl", None),
            ("absl, huge pages, asked ahead", huge, "absl_ahead", None),
        ):
            yield ratio("index", case, rival, found.ns["index"], found.ns[name], "ns a key", own_reach)
    else:
        yield Measure(
            target="index", case=case, rival="absl, malloc's pages, plain loop", not_run="libabsl-dev is not installed"
        )
    floor = min(huge.ns["line"], huge.ns["line_ahead"])
    yield Measure(
        target="index",
        case=case,
        rival="a random line of memory",
        ours=ours,
        theirs=floor,
        unit="ns a key",
        figure=ours / floor,
        figure_unit="x the floor",
        reach=1.1 if judged else None,
        at_most=True,
    )
    if num_keys <= MOST_DICT_KEYS:
        theirs = dict_ns_a_key(num_keys, rounds)
        yield ratio("index", case, "Python dict", ours, theirs, "ns a key", 35.0 if judged else None)
    for name, most in (("the index alone", huge.most_bytes), ("the index alone, stamped", huge.most_bytes_stamped)):
        if most:
            yield absolute("index-memory", f"{case}, {name}", most, "bytes a key", INDEX_BYTES)


def dict_ns_a_key(num_keys: int, rounds: int) -> float:
    random = np.random.default_rng(0)
    keys = np.arange(num_keys, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    slots = dict(zip(keys.tolist(), range(num_keys), strict=True))
    times = []
    for _ in range(rounds + 1):
        batch = keys[random.integers(0, num_keys, F * B)].tolist()
        began = time.process_time()
        found = list(map(slots.__getitem__, batch))
        times.append((time.process_time() - began) * 1e9 / len(found))
    return statistics.median(times[1:])


def all_index_lines(sizes: Sequence[int], rounds: int) -> Iterator[Measure]:
    try:
        program = build_index()
    except NotBuilt as error:
        for target in ("index", "index-memory"):
            yield Measure(target=target, case=", ".join(f"{size:,} keys" for size in sizes), not_run=str(error))
        return
    for size in sizes:
        try:
            yield from list(index_lines(program, size, rounds))
        except NotBuilt as error:
            yield Measure(target="index", case=f"{size:,} keys", not_run=str(error))


def page_of(lines: Sequence[Measure], facts: Mapping[str, object]) -> str:
    text = ["# Unique ids, and the index", "", *(f"{name}: {value}  " for name, value in facts.items()), ""]
    by_target = sorted(lines, key=lambda line: list(measures.TARGETS).index(line.target))
    return "\n".join([*text, *table.rows(by_target)]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--keys", type=int, nargs="*", default=[10_000_000, 100_000_000], help="sizes of the index")
    parser.add_argument("--batches", type=int, default=16, help="of ids, taken in turn")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/keys.json and keys.md")
    measures.add_option(parser)
    args = parser.parse_args()
    torch.set_num_threads(1)
    _native.set_num_threads(1)
    lines: list[Measure] = []
    for skew in SKEWS:
        lines += unique_lines(skew, args.batches, args.rounds)
        say(f"unique, Zipf {skew}: {lines[-1].figure:.2f} ns an id")
    for line in all_index_lines(args.keys, args.rounds):
        lines.append(line)
        say(f"{line.case}, {line.rival}: {line.not_run or f'{line.figure:.2f} {line.figure_unit}'}")
    facts = origin(rounds=args.rounds, took=f"{time.monotonic() - BEGAN:.0f} s")
    page = page_of(lines, facts)
    print(page)
    measures.write(args.measures, lines)
    if args.save:
        keep("keys", page, {**facts, "lines": [asdict(line) for line in lines]})


if __name__ == "__main__":
    main()
