"""The committed stub of the native module is what the module itself says."""

import subprocess
import sys
from pathlib import Path

STUB = Path(__file__).parents[1] / "src" / "sfctr" / "_native.pyi"


def test_the_committed_stub_equals_the_generated_one(tmp_path):
    generated = tmp_path / "_native.pyi"
    command = [sys.executable, "-m", "nanobind.stubgen", "-m", "sfctr._native", "-o", str(generated)]
    subprocess.run(command, check=True, capture_output=True, cwd=tmp_path, timeout=60)
    assert STUB.read_text() == generated.read_text(), f"make it anew: {' '.join(command[:-1])} {STUB}"
