"""How good are the models, on real click rows, against published figures and against rivals?

Each run file in benchmarks/quality is trained under several seeds by the trainer that `sfctr train` uses. Whatever is
chosen (the best epoch, when the learning rate falls, when to stop, and the settings in the run files themselves) is
chosen on validation rows. Test rows are scored once a seed, by the model that was best on the validation rows, and the
median over seeds counts.

  frappe     the published split against the published AUC (BARS leaderboard)
  parity     DeepFM on Frappe against deepctr-torch 0.3.0 with the same model and settings, in an environment of its own
  criteo     60,000 rows of click logs: the last 10,000 against scikit-learn's logistic regression on one-hot columns,
             and once more with labels dealt out anew, when nothing can be learnt. Both sides are fitted again to
             all 50,000 rows before the test, with what the validation rows chose (ours: for how long)
  movielens  MovieLens-100K by time, most users of the test rows unseen, against the same logistic regression

What would make it measure something else: settings chosen by a look at the test rows; a rival that is weaker than it
could be (its penalty is chosen on the validation rows, over a grid, and it is then fitted to them too, which on
MovieLens our models are not); fewer seeds (the test AUC of one seed moves by 0.001 on Frappe and by 0.01 on the
Criteo sample, whose test
part has 314 clicks); another torch build or processor, which moves every figure a little.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

import quality_data
from quality_data import Absent, Split
from quality_report import HEAD, Check, Part, Row, write
from quality_runs import NotRun, Tested, deepctr, logistic, median, refitted, run_file, trained, trained_file

ROOT = Path(__file__).resolve().parent.parent

DEEP = ("widedeep", "deepfm", "dcnv2", "dlrm")
MOVIELENS_MODELS = ("fm", "deepfm", "dcnv2", "din")


@dataclass(frozen=True, kw_only=True)
class Options:
    """data: the folder of the data sets. work: for files made from them. seeds: None is each part's own number."""

    data: Path
    work: Path
    wheel: Path | None
    seeds: int | None

    def seeds_or(self, number: int) -> range:
        return range(self.seeds or number)


def measured(part: Part, what: str, tests: Sequence[Tested]) -> Tested:
    """Add the row of `tests`, one a seed, to the part; their medians."""
    middle = median(tests)
    aucs = [test.auc for test in tests]
    row = Row(
        what=what,
        valid_auc=middle.valid_auc,
        auc=middle.auc,
        least=min(aucs),
        most=max(aucs),
        logloss=middle.logloss,
        epochs=middle.epochs,
        seconds=middle.seconds,
    )
    part.rows.append(row)
    print(row.line(), flush=True)
    return middle


def ours(part: Part, what: str, file: str, split: Split, seeds: range) -> Tested:
    return measured(part, what, [trained_file(file, split, seed) for seed in seeds])


def rival(part: Part, what: str, run: Callable[[], list[Tested]]) -> Tested | None:
    """As `measured`; a rival that fails is noted with its reason, and gives None."""
    try:
        return measured(part, what, run())
    except NotRun as error:
        part.notes.append(f"{what}: not run: {error}")
        print(part.notes[-1], flush=True)
        return None


def within(part: Part, needed: str, value: float, low: float, high: float = 1.0) -> None:
    part.checks.append(Check(needed=needed, found=f"{value:.4f}", passed=low <= value <= high))


def against(part: Part, needed: str, value: float, other: Tested | None, judge: Callable[[float], bool]) -> None:
    """A check on by how much the AUC `value` is above the rival's."""
    if other is None:
        part.checks.append(Check(needed=needed, found="the rival was not run", passed=None))
    else:
        gain = value - other.auc
        part.checks.append(Check(needed=needed, found=f"{gain:+.4f}", passed=judge(gain)))


def frappe(options: Options) -> Part:
    part = Part(title="Frappe_x1, published split")
    split, seeds = quality_data.frappe(options.data), options.seeds_or(3)
    lr = ours(part, "LR (published 0.9356 / 0.3076)", "frappe_lr", split, seeds)
    within(part, "LR: test AUC within 0.0003 of 0.9356", lr.auc, 0.9353, 0.9359)
    within(part, "LR: log loss within 0.001 of 0.3076", lr.logloss, 0.3066, 0.3086)
    fm = ours(part, "FM (published 0.9671)", "frappe_fm", split, seeds)
    within(part, "FM: test AUC 0.965 to 0.973", fm.auc, 0.965, 0.973)
    for model, name, published in (("deepfm", "DeepFM", 0.9842), ("dcnv2", "DCN-v2", 0.9845), ("dlrm", "DLRM", 0.984)):
        deep = ours(part, f"{name} (published {published:.4f})", f"frappe_{model}", split, seeds)
        within(part, f"{name}: test AUC at least 0.982", deep.auc, 0.982)
    return part


def parity(options: Options) -> Part:
    part = Part(title="Frappe_x1: DeepFM against deepctr-torch 0.3.0, the same settings")
    split, seeds = quality_data.frappe(options.data), options.seeds_or(3)
    run = run_file("frappe_deepfm")
    mine = ours(part, "sfctr", "frappe_deepfm", split, seeds)
    other = rival(part, "deepctr-torch 0.3.0", lambda: [deepctr(run, split, seed) for seed in seeds])
    against(part, "the same test AUC within 0.003", mine.auc, other, lambda gain: abs(gain) <= 0.003)
    return part


def criteo(options: Options) -> Part:
    part = Part(title="Criteo sample: 50,000 rows, tested on the last 10,000")
    split, seeds = quality_data.criteo(options.data, options.work), options.seeds_or(3)
    other = rival(part, "logistic regression (scikit-learn)", lambda: [logistic("criteo", split)])
    for model in DEEP:
        run = run_file(f"criteo_{model}")
        deep = measured(part, model, [refitted(run, split, seed) for seed in seeds])
        against(part, f"{model}: no more than 0.01 below the rival", deep.auc, other, lambda gain: gain >= -0.01)
    for model in DEEP:
        run = run_file(f"criteo_{model}")
        tests = [trained(run, quality_data.shuffled(split, options.work, seed), seed) for seed in seeds]
        chance = measured(part, f"{model}, labels shuffled", tests)
        within(part, f"{model}, labels shuffled: 0.5 within 0.03", chance.auc, 0.47, 0.53)
    return part


def movielens(options: Options) -> Part:
    part = Part(title="MovieLens-100K by time: from the 80 % point on")
    split, seeds = quality_data.movielens(options.work, options.wheel), options.seeds_or(5)
    other = rival(part, "logistic regression (scikit-learn)", lambda: [logistic("movielens", split)])
    found = {model: ours(part, model, f"movielens_{model}", split, seeds) for model in MOVIELENS_MODELS}
    best = max(found, key=lambda model: found[model].valid_auc)
    needed = f"the model that is best on validation rows ({best}): at least 0.005 above the rival"
    against(part, needed, found[best].auc, other, lambda gain: gain >= 0.005)
    for column in ("user", "item"):
        share = quality_data.share_unseen(split, column)
        part.notes.append(
            f"{share:.1%} of the test rows have a {column} that no row before the 80 % point has"
            f" ({found[best].unseen[column]:.1%} of the look-ups by {best}, which was trained on rows before the 70 %"
            " point, found no row)"
        )
    return part


PARTS: dict[str, Callable[[Options], Part]] = {
    "frappe": frappe,
    "parity": parity,
    "criteo": criteo,
    "movielens": movielens,
}


def run_part(name: str, options: Options) -> Part | None:
    """The part, measured; None, with a line that says so, where its data are not here."""
    print(f"\n{name}\n{HEAD}", flush=True)
    began = monotonic()
    try:
        part = PARTS[name](options)
    except Absent as error:
        print(f"{name}: skipped: {error}", flush=True)
        return None
    part.seconds = monotonic() - began
    for line in (*(check.line() for check in part.checks), *(f"- {note}" for note in part.notes)):
        print(line)
    return part


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), help="parts to run; all by default")
    parser.add_argument("--seeds", type=int, help="trainings of each run file (3; MovieLens 5)")
    parser.add_argument("--data", type=Path, default=ROOT / "../shared/data", help="folder of the data sets")
    parser.add_argument("--work", type=Path, default=ROOT / "benchmarks/data", help="folder for files made from them")
    parser.add_argument("--wheel", type=Path, help="the recbole 1.2.1 wheel that carries MovieLens; else pip is asked")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results", help="folder for quality.json and .md")
    args = parser.parse_args()
    options = Options(data=args.data, work=args.work, wheel=args.wheel, seeds=args.seeds)
    failed = 0
    for name in args.only:
        part = run_part(name, options)
        if part is not None:
            write(args.out, {name: part})  # each as soon as it is there: a whole run takes many minutes
            failed += sum(check.passed is False for check in part.checks)
    print(f"\n{failed} checks failed" if failed else "\nno check failed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
