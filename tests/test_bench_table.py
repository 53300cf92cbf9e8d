"""The one table of the benchmarks: what it says of lines that are met, missed, without figures, or not there."""

import importlib
import json
import os
import time
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent.parent / "benchmarks"


@pytest.fixture
def bench(monkeypatch):
    """Modules of benchmarks/, which is no package, by name."""
    monkeypatch.syspath_prepend(HERE)
    return importlib.import_module


@pytest.fixture
def line(bench):
    def make(**more):
        return bench("measures").Measure(**{"target": "unique", "case": "c", "figure": 2.0} | more)

    return make


@pytest.mark.parametrize(
    ("more", "met"),
    [
        ({"reach": 2.0}, True),
        ({"reach": 2.1}, False),
        ({"reach": 2.1, "at_most": True}, True),
        ({"reach": 1.9, "at_most": True}, False),
        ({}, None),
        ({"reach": 2.0, "figure": None, "not_run": "no rival"}, None),
    ],
)
def test_a_line_is_met_where_its_figure_reaches_what_it_should(line, more, met):
    assert line(**more).is_met is met


def test_a_file_of_measures_gives_its_lines_back(bench, line, tmp_path):
    lines = [line(ours=1.5, theirs=3.0, unit="ms"), line(figure=None, not_run="it failed")]
    bench("measures").write(tmp_path / "lines.json", lines)
    assert bench("measures").read(tmp_path / "lines.json") == lines


def test_lines_stand_in_the_order_of_targets_and_each_target_has_one(bench, line):
    targets = list(bench("measures").TARGETS)
    found = bench("table").complete([line(target="reader"), line(case="first"), line(case="second")], {})
    assert list(dict.fromkeys(one.target for one in found)) == targets
    assert [one.case for one in found if one.target == "unique"] == ["first", "second"]
    assert next(one for one in found if one.target == "index").not_run == "not measured"


def test_a_benchmark_that_failed_is_a_line_of_each_of_its_targets_beside_those_of_others(bench, line):
    found = bench("table").complete([line(target="index")], {"index": "it fell over", "growth": "it fell over"})
    assert [one.not_run for one in found if one.target == "index"] == ["", "it fell over"]
    assert [one.not_run for one in found if one.target == "growth"] == ["it fell over"]


def test_rows_show_figures_with_units_and_say_what_is_missed(bench, line):
    met = line(rival="np.unique", ours=2.5, theirs=20.0, unit="ns an id", figure=8.0, reach=8.0)
    missed = line(ours=4.04, unit="ns an id", figure=4.04, figure_unit="ns an id", reach=3.3, at_most=True)
    absent = line(target="index", figure=None, not_run="no compiler")
    assert bench("table").rows([met, missed, absent])[2:] == [
        "| unique ids with their inverse | c | np.unique | 2.5 ns an id | 20 ns an id | **8x** | >= 8 | yes |",
        "|  | c |  | 4.04 ns an id |  | **4.04 ns an id** | <= 3.3 | no |",
        "| index look-up | c |  |  |  | not run: no compiler |  |  |",
    ]


def test_the_sums_count_what_must_be_met_apart(bench, line):
    lines = [line(reach=1.0), line(reach=3.0), line(target="growth", reach=3.0, at_most=True), line()]
    assert bench("table").sums(lines) == ["2 of 3 lines reach what they should; of those that must, 1 of 2."]
    absent = line(target="index", figure=None, not_run="no compiler")
    assert bench("table").sums([absent])[1] == "With lines that have no figure: index look-up."


def test_every_target_has_a_benchmark_and_every_benchmark_known_targets(bench):
    scripts = bench("all").SCRIPTS
    assert {target for own in scripts.values() for target in own} == set(bench("measures").TARGETS)


@pytest.fixture
def scripts(bench, monkeypatch, tmp_path):
    """Makes benchmarks of these bodies, which `all` then knows."""

    def make(**bodies):
        for name, body in bodies.items():
            (tmp_path / f"bench_{name}.py").write_text(f"import json, sys\n{body}\n")
        monkeypatch.setattr(bench("all"), "SCRIPTS", dict.fromkeys([*bodies, "absent"], ("index",)))
        return tmp_path

    return make


def writes(lines: list[dict[str, object]]) -> str:
    return f"open(sys.argv[sys.argv.index('--measures') + 1], 'w').write({json.dumps(lines)!r})"


@pytest.mark.processes
def test_a_benchmark_that_fails_is_told_and_the_next_one_runs(bench, scripts):
    folder = scripts(
        bad="sys.exit(3)",
        silent="pass",
        odd=writes([{"target": "speed", "case": "c"}]),
        good=writes([{"target": "index", "case": "c", "figure": 2.0}]),
    )
    runs = bench("all")
    whys = {name: runs.run_all([name], [], folder).failed["index"] for name in ("bad", "silent", "odd", "absent")}
    assert "status 3" in whys["bad"]
    assert "wrote no measures" in whys["silent"]
    assert "has lines for speed" in whys["odd"]
    assert "there is no bench_absent.py" in whys["absent"]
    found = runs.run_all(["bad", "good"], [], folder)
    assert [one.figure for one in found.lines] == [2.0]
    assert list(found.seconds) == ["bad", "good"]


@pytest.mark.processes
@pytest.mark.timeout(60)
def test_a_benchmark_that_does_not_end_is_ended_with_the_processes_that_it_began(bench, scripts, monkeypatch, tmp_path):
    pipe = tmp_path / "open while a process of its own runs"
    os.mkfifo(pipe)
    child = "subprocess.Popen(['sh', '-c', 'echo begun; sleep 50'], stdout=open(sys.argv[-1], 'w'))"
    folder = scripts(slow=f"import subprocess, time; {child}; time.sleep(50)")
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    monkeypatch.setattr(bench("all"), "LIMIT_S", 3)
    before = time.monotonic()
    assert "had not ended" in bench("all").run_all(["slow"], [str(pipe)], folder).failed["index"]
    os.set_blocking(reader, True)
    assert os.read(reader, 100) == b"begun\n"
    assert os.read(reader, 100) == b""  # no one has it open any longer
    assert time.monotonic() - before < 40
    os.close(reader)


def test_arguments_reach_each_benchmark(bench, scripts):
    folder = scripts(told=writes([{"target": "index", "case": "c"}]).replace('"c"', "\"' + sys.argv[-1] + '\""))
    assert [one.case for one in bench("all").run_all(["told"], ["--rounds", "7"], folder).lines] == ["7"]
