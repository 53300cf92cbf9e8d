"""The examples run as they stand; each asserts what it says."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.mark.timeout(300)
def test_a_model_of_ones_own_trains_the_same_in_torch_in_ram_and_over_a_disk(tmp_path):
    run = [sys.executable, EXAMPLES / "swap.py"]
    done = subprocess.run(run, capture_output=True, text=True, cwd=tmp_path, timeout=280, check=True)
    assert "every weight is the same, bit for bit" in done.stdout
