"""A run on several processes comes to what it comes to in one, whatever shares of the rows they read."""

from __future__ import annotations

import json
import logging
import math
import os
import re
from pathlib import Path

import msgspec
import numpy as np
import pyarrow.parquet as pq
import pytest
from processes import run_places, run_ranks
from ranks_run import assert_near, assert_same_run, lines_of, train_on, with_parallel
from sklearn.metrics import roc_auc_score
from stopped_run import run_of, write_data

from sfctr.data import Source
from sfctr.export import apply_deltas, load_export
from sfctr.parallel.world import World
from sfctr.spec.errors import CapacityError, DataError
from sfctr.spec.runfile import Export, Model, RunFile
from sfctr.spec.runfile_text import decode_run_file, render_run_file
from sfctr.spec.schema import Dense, Schema
from sfctr.train import history
from sfctr.train.fit import train_there
from sfctr.train.run import Run, open_saved
from sfctr.train.trainer import Trainer

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]


@pytest.fixture(scope="module", autouse=True)
def place(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("runs"))
        write_data()
        yield


@pytest.fixture(scope="module")
def alone(place):
    train_there(run_of(), Path("alone"), quiet=True)
    return "alone"


CASES = {
    "3, uneven": (3, {"shares": (9, 0, 7)}),
    "2, allreduce": (2, {"sync": "allreduce"}),
}


@pytest.mark.parametrize("case", CASES)
def test_ranks_come_to_what_one_process_comes_to(alone, case):
    size, options = CASES[case]
    run_dir = case.replace(", ", "-")
    train_on(size, with_parallel(run_of(), **options), run_dir)
    assert_same_run(run_dir, alone)
    lines = [json.loads(line) for line in Path(run_dir, "metrics.jsonl").read_text().splitlines()]
    wires = [line["wire"] for line in lines if line["kind"] == "train"]
    assert all(wire[kind] > 0 for wire in wires for kind in ("keys", "rows", "gradients", "dense"))
    assert all(wire["positions"] > wire["virtual_ids"] > 0 for wire in wires)


def notices_in_rank(world, text: str, directory: str) -> list[str]:
    os.chdir(directory)
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    logging.getLogger("sfctr").addHandler(handler)
    train_there(decode_run_file(text, "run.toml"), Path("unmeasured"), world=world, quiet=True)
    return [line for line in said if "torch_threads" in line]


def test_a_run_of_several_processes_says_once_that_torchs_threads_are_not_measured(place):
    train = msgspec.structs.replace(run_of().train, torch_threads="auto", epochs=1)
    text = render_run_file(msgspec.structs.replace(run_of(), train=train))
    (line,), others = run_ranks(2, notices_in_rank, text, str(Path.cwd()))
    assert re.fullmatch(
        r"train.torch_threads: \d+, because a run of several processes is not measured; .* set it", line
    )
    assert others == []


def score_in_rank(world, directory: str) -> dict | None:
    os.chdir(directory)
    with Run.load("alone", world=world) as run:
        found = run.evaluate("valid.parquet")
        table = run.predict("train.parquet")
        assert (table is None) == (world.rank > 0)
        run.predict("train.parquet", out=f"scores-{world.size}.parquet")
        return found


def test_ranks_measure_and_score_as_one_process_does(alone):
    size = 3
    found = run_ranks(size, score_in_rank, str(Path.cwd()))
    with Run.load(alone) as run:
        expected = run.evaluate("valid.parquet")
        table = run.predict("train.parquet")
    assert found == [found[0]] * size
    assert_near(found[0], expected, tolerance=1e-7)
    scores = pq.read_table(f"scores-{size}.parquet")
    assert scores["row"].equals(table["row"])
    np.testing.assert_allclose(scores["score"], table["score"], rtol=0, atol=1e-6)
    labels = pq.read_table("valid.parquet")["click"].to_numpy()
    with Run.load(alone) as run:
        of_valid = run.predict("valid.parquet")["score"].to_numpy()
    assert found[0]["auc"] == pytest.approx(roc_auc_score(labels, of_valid), abs=1e-7)


@pytest.mark.parametrize("sizes", [(1, 4, 2), (3, 1)], ids=str)
def test_a_run_goes_on_with_another_number_of_ranks(alone, sizes):
    go_on(alone, [(size, {}) for size in sizes])


def test_a_run_goes_on_with_another_division_of_the_dense_part(alone):
    go_on(alone, [(2, {"dense": "fsdp"}), (3, {"dense": "fsdp"}), (2, {"sync": "allreduce"})])


def go_on(alone, stretches):
    run_dir = "-".join(f"{size}{''.join(options.values())}" for size, options in stretches)
    for number, (size, options) in enumerate(stretches):
        is_last = number == len(stretches) - 1
        stop_at = None if is_last else 7 * (number + 1)
        train_on(size, with_parallel(run_of(), **options), run_dir, resume=number > 0, stop_at=stop_at)
    assert_same_run(run_dir, alone)


def test_an_mlp_whose_layers_are_split_comes_to_the_same(place):
    wide = Model(name="dcnv2", args={"hidden": [8, 6], "dropout": 0.2})
    run = msgspec.structs.replace(run_of(), model=wide)
    train_there(run, Path("wide"), quiet=True)
    train_on(2, with_parallel(run, tensor=2), "split", stop_at=9)
    train_on(4, with_parallel(run, tensor=2), "split", resume=True)
    assert_same_run("split", "wide")


def fail_in_rank(place, text: str, run_dir: str, directory: str, kind: str) -> str:
    """Rank 1 fails in step 6, by itself or together with the others."""
    os.chdir(directory)
    backward = Trainer.backward

    def failing(trainer, ready):
        share, scores = backward(trainer, ready)
        if trainer.step == 5 and place["rank"] == 1:
            if kind == "bug":
                raise ZeroDivisionError("a bug of one rank")
            share = math.nan
        return share, scores

    Trainer.backward = failing
    try:
        with World.join(**place) as world:
            train_there(decode_run_file(text, "run.toml"), Path(run_dir), world=world, quiet=True)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "ended"


def test_what_ends_one_rank_by_itself_the_others_name(place):
    found = run_places(3, fail_in_rank, render_run_file(run_of()), "bug", str(Path.cwd()), "bug", timeout_s=60)
    assert found[1] == "ZeroDivisionError: a bug of one rank"
    for words in (found[0], found[2]):
        assert words.startswith("PeerError: rank 1 (") and words.endswith(
            "has ended: ZeroDivisionError: a bug of one rank"
        )


def test_a_loss_that_is_no_number_on_one_rank_ends_all_at_that_step_and_keeps_the_model(place):
    found = run_places(2, fail_in_rank, render_run_file(run_of()), "nan", str(Path.cwd()), "nan", timeout_s=60)
    assert [words[:40] for words in found] == ["ModelError: the loss is nan at step 6 (e"] * 2
    assert open_saved(Path("nan"), "last").facts["step"] == 5


def outcome_in_rank(place, text: str, run_dir: str, directory: str) -> str:
    os.chdir(directory)
    try:
        with World.join(**place) as world:
            train_there(decode_run_file(text, "run.toml"), Path(run_dir), world=world, quiet=True)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "ended"


def outcomes(run: RunFile, run_dir: str, size: int = 2) -> list[str]:
    return run_places(size, outcome_in_rank, render_run_file(run), run_dir, str(Path.cwd()), timeout_s=90)


def test_a_run_may_have_no_rows_of_tables(place):
    schema = Schema(label="click", features=[Dense("price", standardize=True)])
    run = msgspec.structs.replace(run_of(), schema=schema, tables=(), model=Model(name="dcnv2", args={"hidden": [4]}))
    train_there(run, Path("dense"), quiet=True)
    assert outcomes(run, "dense-2") == ["ended"] * 2
    assert_near(lines_of("dense-2"), lines_of("dense"))


def bad_batch_in_rank(place, text: str, run_dir: str, directory: str) -> str:
    """The seventh batch of rank 1 cannot be read."""
    batches = Source.batches

    def reading(source, epoch=0, *, start_row=0):
        for number, batch in enumerate(batches(source, epoch, start_row=start_row)):
            if number == 6 and place["rank"] == 1:
                raise DataError("label 7 is none", file="clicks.parquet", row=500)
            yield batch

    Source.batches = reading
    return outcome_in_rank(place, text, run_dir, directory)


def full_disk_in_rank(place, text: str, run_dir: str, directory: str) -> str:
    def refused(path, line):
        raise CapacityError(f"{path} could not be written: no space left")

    history._append = refused
    return outcome_in_rank(place, text, run_dir, directory)


def test_a_history_that_cannot_be_written_ends_all_ranks_with_the_reason(place):
    found = run_places(2, full_disk_in_rank, render_run_file(run_of()), "full", str(Path.cwd()), timeout_s=60)
    why = "full/history.jsonl could not be written: no space left"
    assert found == [f"CapacityError: {why}", f"CapacityError: rank 0: {why}"]


@pytest.mark.parametrize("window", [0, 3])
def test_bad_data_of_one_rank_end_all_at_its_batch_and_the_model_is_kept(place, window):
    text, run_dir = render_run_file(run_of(window=window)), f"bad-{window}"
    found = run_places(2, bad_batch_in_rank, text, run_dir, str(Path.cwd()), timeout_s=60)
    assert found[1] == "DataError: clicks.parquet, row 500: label 7 is none"
    assert found[0] == "PeerError: rank 1 cannot go on: DataError: clicks.parquet, row 500: label 7 is none"
    assert open_saved(Path(run_dir), "last").facts["step"] == 6
    assert any(Path(run_dir, "checkpoints").glob("step-*006"))


def test_deltas_of_several_ranks_are_those_of_the_whole_model(place):
    model = Model(name="dcnv2", args={"hidden": [8], "batch_norm": True})
    run = msgspec.structs.replace(run_of(), model=model, export=Export(delta_every=9))
    assert outcomes(run, "followed") == ["ended"] * 2
    deltas = sorted(Path("followed/deltas").iterdir())
    assert [path.name for path in deltas] == ["000001", "000002", "base"]
    apply_deltas(deltas[2], deltas[:2], Path("served"))
    with Run.load("followed", "last") as last:
        last.export("exported")
    for path in Path("exported").glob("*.parquet"):
        assert (Path("served") / path.name).read_bytes() == path.read_bytes(), path
    frame = pq.read_table("valid.parquet")
    served, own = (load_export(directory).predict(frame) for directory in ("served", "exported"))
    np.testing.assert_array_equal(served["score"], own["score"])


def test_other_data_on_one_rank_are_refused(place):
    os.makedirs("other", exist_ok=True)
    pq.write_table(pq.read_table("train.parquet").slice(0, 400), "other/train.parquet")
    pq.write_table(pq.read_table("valid.parquet"), "other/valid.parquet")
    found = run_places(2, elsewhere_in_rank, render_run_file(run_of()), str(Path.cwd()), timeout_s=60)
    assert all(
        "do not read the same data: rows for training and for validation are [502, 100] and [400, 100]" in words
        for words in found
    ), found


def elsewhere_in_rank(place, text: str, directory: str) -> str:
    run_dir = str(Path(directory, "elsewhere"))
    directory = str(Path(directory, "other")) if place["rank"] else directory
    return outcome_in_rank(place, text, run_dir, directory)


def test_micro_batches_of_which_a_rank_has_no_rows_draw_what_they_draw_in_one_process(place):
    run = run_of(accumulate=16, epochs=1)  # four rows each: the second rank has none of most
    train_there(run, Path("micro"), quiet=True)
    train_on(2, with_parallel(run, shares=(15, 1)), "micro-2")
    assert_same_run("micro-2", "micro")
