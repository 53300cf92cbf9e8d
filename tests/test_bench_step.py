"""bench_step.py: what it plans, what it says of contenders that differ or fail, and that ours can be asked."""

import importlib
import sys
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

HERE = Path(__file__).resolve().parent.parent / "benchmarks"


@pytest.fixture
def step(monkeypatch):
    monkeypatch.syspath_prepend(HERE)
    return importlib.import_module("bench_step")


def test_a_case_has_the_rows_that_were_asked_for_or_as_many_as_its_memory_allows(step):
    size = importlib.import_module("step_data").bytes_of_two
    assert step.fitting("sgd", 16, 1, 10_000_000).rows == 10_000_000
    large = step.fitting("adam", 64, 1, 10_000_000)
    assert large.rows == 3_800_000  # of 2 * 4 * 3 * 64 + 24 = 1560 bytes a row: 3.846 M fit
    assert size(large) <= step.MOST_BYTES < size(step.Case(**vars(large) | {"rows": 3_900_000}))


def test_every_rule_is_measured_with_the_ratio_that_it_is_to_reach(step):
    planned = list(step.rivalries(1_000_000, [16, 64, 128], [1, 5]))
    found = {(r.target, r.case.rule, r.case.dim, r.case.bag): (r.reach(1), r.reach(2)) for r in planned}
    assert found["step-rowwise", "rowwise_adagrad", 16, 5] == (5.0, 9.0)
    assert found["step-rowwise", "rowwise_adagrad", 128, 1] == (3.0, 6.0)
    assert found["step-sgd", "sgd", 64, 1] == (1.8, 3.5)
    assert found["step-torch", "adagrad", 16, 1] == (7.0, 7.0)
    assert found["step-torch", "adam", 64, 1] == (10.0, 10.0)
    assert len(found) == len(planned) == 16


def test_ids_are_of_the_table_and_frequent_ones_lie_apart(step):
    ids = importlib.import_module("step_data").zipf_ids(np.random.default_rng(0), 100_000, 1000, 1.05)
    assert ids.min() >= 0
    assert ids.max() < 1000
    most = np.argsort(np.bincount(ids, minlength=1000))[::-1][:3]
    assert most.tolist() == [rank * 2_654_435_761 % 1000 for rank in range(3)]


@pytest.mark.parametrize(
    ("before", "change", "said"),
    [
        (0.0, 1.0, ""),
        (0.0, 1.0005, ""),
        (1e-3, 1.0, "did not begin from the same rows"),
        (0.0, 1.01, "1.0e-02 of their change apart"),
    ],
)
def test_contenders_that_compute_something_else_are_told(step, tmp_path, before, change, said):
    rows = np.random.default_rng(0).standard_normal((2, 3, 4), dtype=np.float32)
    np.savez(tmp_path / "ours.npz", before=rows, change=rows)
    np.savez(tmp_path / "theirs.npz", before=rows + np.float32(before), change=rows * np.float32(change))
    found = step.difference(tmp_path, ("ours", "theirs"))
    assert said in found
    assert bool(found) == bool(said)


@pytest.mark.processes
def test_a_rival_that_cannot_run_is_a_line_that_says_why(step, monkeypatch, tmp_path):
    (tmp_path / "ours.py").write_text("import sys\nfor line in sys.stdin: print('{}', flush=True)")
    (tmp_path / "rival.py").write_text("raise SystemExit('it needs a GPU')")
    monkeypatch.setitem(step.SCRIPTS, step.OURS, tmp_path / "ours.py")
    monkeypatch.setitem(step.SCRIPTS, "FBGEMM", tmp_path / "rival.py")
    monkeypatch.setattr(step, "python_of", lambda name: Path(sys.executable))
    rivalry = step.Rivalry(target="step-sgd", rival="FBGEMM", case=step.Case(rule="sgd", dim=4, bag=1, rows=2600))
    with ExitStack() as stack:
        found = step.measure(rivalry, step.Contenders(stack, tmp_path), 1, tmp_path)
    lines = step.lines_of(rivalry, found)
    assert [line.figure for line in lines] == [None, None]
    assert all("it needs a GPU" in line.not_run for line in lines)


@pytest.mark.slow
@pytest.mark.processes
def test_ours_and_plain_torch_compute_the_same_and_are_timed(step, monkeypatch, tmp_path):
    monkeypatch.setattr(step, "LEAST_S", 0.0)
    case = step.Case(rule="adam", dim=4, bag=1, rows=26_000)
    rivalry = step.Rivalry(target="step-torch", rival="nn.EmbeddingBag", case=case)
    with ExitStack() as stack:
        found = step.measure(rivalry, step.Contenders(stack, tmp_path), 1, tmp_path)
    assert found.failed == ""
    for line in step.lines_of(rivalry, found):
        assert line.ours > 0
        assert line.figure == line.theirs / line.ours
        assert line.reach == 10.0
    assert {"unique", "plan", "features", "backward", "update"} <= found.parts[1][0].keys()
