"""The promised names, and nothing else, are public; and naming them costs no more than it must."""

import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

import sfctr

ROOT = Path(__file__).parents[1]

NOUNS = {
    *{"Schema", "Dense", "Categorical", "Bucket", "TimePart", "Cross", "Bag", "Sequence", "TimeColumn"},
    *{"Table", "Tiers", "Normal", "Uniform", "Checkpoints", "Export"},
    *{"SGD", "Adagrad", "RowWiseAdagrad", "Adam", "AdamW", "FTRL", "Schedule", "Plateau"},
}
ERRORS = {
    *{"SfctrError", "ConfigError", "SchemaError", "ModelError", "CapacityError", "CheckpointError", "DataError"},
    "PeerError",
    "DiskError",
}
WORK = {"Store", "Lookahead", "ReadView", "embed", "open_source", "fit", "Run", "load_export"}
PROMISED = NOUNS | ERRORS | WORK | {"__version__"}


def test_the_promised_names_are_exactly_the_exported_ones():
    assert sorted(sfctr.__all__) == sorted(PROMISED)
    assert set(dir(sfctr)) >= PROMISED


def test_every_promised_name_is_there_and_documented():
    for name in sorted(PROMISED - {"__version__"}):
        assert getattr(sfctr, name).__doc__, name


def test_whatever_else_the_package_holds_is_private_or_a_submodule():
    others = {name: value for name in dir(sfctr) if name not in PROMISED for value in [getattr(sfctr, name)]}
    stray = [
        name
        for name, value in others.items()
        if not name.startswith("_") and not (isinstance(value, ModuleType) and value.__name__ == f"sfctr.{name}")
    ]
    assert stray == []


def test_every_error_a_user_can_cause_is_public():
    def below(kind):
        return {kind.__name__} | {name for child in kind.__subclasses__() for name in below(child)}

    assert below(sfctr.SfctrError) == ERRORS


def test_a_name_that_does_not_exist_says_so():
    with pytest.raises(AttributeError, match="module 'sfctr' has no attribute 'Stor'"):
        sfctr.Stor  # noqa: B018


def test_the_version_is_the_packages():
    assert sfctr.__version__ == tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


@pytest.mark.parametrize("doing", ["import sfctr", "import sfctr.cli.main"])
def test_torch_and_pyarrow_are_not_loaded_before_they_are_needed(doing):
    code = f"{doing}; import sys; print(sorted({{'torch', 'pyarrow', 'pandas', 'numpy'}} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert found.stdout.strip() == "[]"
