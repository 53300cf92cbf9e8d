"""The command line in this process, from a directory of the test's own."""

from dataclasses import dataclass

import pytest

from sfctr.cli.main import main


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    code: int
    out: str
    err: str


@pytest.fixture
def sfctr(tmp_path, monkeypatch, capsys):
    """`sfctr("train", "run.toml")` runs the command in tmp_path."""
    monkeypatch.chdir(tmp_path)

    def run(*argv: object) -> Done:
        capsys.readouterr()
        code = main([str(arg) for arg in argv])
        return Done(code, *capsys.readouterr())

    return run
