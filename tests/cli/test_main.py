"""The command line's manners: help, version, exit codes, one line for an error, results alone on stdout."""

import os
import signal
import subprocess
import sys
import time

import pytest

SFCTR = [sys.executable, "-m", "sfctr"]

COMMANDS = {
    "init": {"--label", "--time", "--valid-from"},
    "train": {"--set", "--run", "--overwrite"},
    "report": {"--out", "--tensorboard"},
    "launch": {"--processes", "--nodes", "--node-rank", "--rendezvous", "--restarts", "--set"},
    "evaluate": {"--data", "--which"},
    "predict": {"--data", "--out", "--which"},
    "export": {"--out", "--rows", "--which"},
    "inspect": {"--which"},
    "trace": {"--set", "--out", "--max-rows", "--window", "--memory"},
    "verify": {"--steps", "--set", "--quick"},
    "synth": {"--rows", "--out", "--seed", "--click-rate", "--scale"},
    "apply": {"--out"},
    "fetch": {"--out"},
}


def test_help_lists_every_command(sfctr):
    done = sfctr("--help")
    assert done.code == 0
    listed = {line.split()[0] for line in done.out.split("Commands:")[1].splitlines() if line.strip()}
    assert listed == set(COMMANDS)


def test_no_command_is_a_question_for_help(sfctr):
    assert sfctr().out == sfctr("--help").out


@pytest.mark.parametrize("command", COMMANDS)
def test_each_commands_help_lists_its_options(sfctr, command):
    done = sfctr(command, "--help")
    assert done.code == 0
    assert COMMANDS[command] <= {word.rstrip(",") for word in done.out.split() if word.startswith("--")}


def test_the_version_is_one_line(sfctr):
    import sfctr as package

    assert sfctr("--version").out == f"sfctr {package.__version__}\n"


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["trian"], "No such command 'trian'"),
        (["train"], "see 'sfctr train --help'"),
        (["train", "run.toml", "--overwite"], "No such option: --overwite"),
        (["evaluate", "run", "--data", "x.csv", "--which", "worst"], "'worst' is not one of 'best', 'last'"),
        (["synth", "criteo", "--rows", "many", "--out", "x"], "--rows is 'many'; write a whole number"),
    ],
)
def test_a_wrong_command_line_is_one_line_and_exit_code_2(sfctr, argv, expected):
    done = sfctr(*argv)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("sfctr: error: ")
    assert expected in done.err
    assert done.err.count("\n") == 1


def test_debug_shows_the_traceback_as_well(sfctr):
    done = sfctr("--debug", "train", "missing.toml")
    assert done.code == 2
    assert "Traceback" in done.err
    assert done.err.splitlines()[-1].startswith("sfctr: error: missing.toml: there is no such run file")


def test_a_mistake_of_ours_keeps_its_traceback(sfctr, monkeypatch):
    monkeypatch.setattr("sfctr.data.synth.synth_criteo", None)
    with pytest.raises(TypeError):
        sfctr("synth", "criteo", "--rows", "1K", "--out", "x")


def test_an_interrupt_is_one_line_and_exit_code_130(sfctr, monkeypatch):
    def interrupted(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("sfctr.data.synth.synth_criteo", interrupted)
    done = sfctr("synth", "criteo", "--rows", "1K", "--out", "x")
    assert (done.code, done.err) == (130, "sfctr: interrupted\n")


@pytest.mark.processes
def test_a_reader_that_went_away_ends_the_command_quietly(tmp_path):
    code = "import time; time.sleep(1); import sys; from sfctr.cli.main import main; sys.exit(main(['--help']))"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        err = process.stderr.read()
        assert (process.wait(60), err) == (141, b"")


@pytest.mark.processes
def test_the_installed_command_and_the_module_are_the_same():
    beside = os.path.join(os.path.dirname(sys.executable), "sfctr")
    asked = [subprocess.run([*c, "--help"], capture_output=True, text=True, timeout=60) for c in (SFCTR, [beside])]
    assert asked[0].stdout == asked[1].stdout
    assert [done.returncode for done in asked] == [0, 0]


@pytest.mark.processes
def test_a_mistake_in_the_data_is_one_line_from_a_process_of_its_own(tmp_path):
    (tmp_path / "clicks.csv").write_text("click,item\n" + "0,1\n1,2\n" * 20 + "yes,3\n")
    asked = [*SFCTR, "init", "clicks.csv", "--label", "click"]
    done = subprocess.run(asked, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("sfctr: error: clicks.csv, row 41, column 'click': label 'yes' is no number")
    assert done.stderr.count("\n") == 1


@pytest.mark.processes
def test_ctrl_c_ends_a_command_with_one_line(tmp_path):
    command = [*SFCTR, "synth", "criteo", "--rows", "100M", "--out", "made"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        deadline = time.monotonic() + 60
        while not (tmp_path / "made" / "train").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, b"", b"sfctr: interrupted\n")
