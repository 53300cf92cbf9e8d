"""The NumPy twin, for every test that compares with it; threads and SIMD level are set back before each test."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from sfctr import _native


@pytest.fixture(scope="session")
def twin() -> ModuleType:
    """tests/store/numpy_twin.py."""
    name = "sfctr_numpy_twin"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name("numpy_twin.py"))
        assert spec is not None and spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


@pytest.fixture(autouse=True)
def _native_settings() -> Iterator[None]:
    """A test may change threads and SIMD level; the next begins with one thread and the best level again."""
    yield
    _native.set_num_threads(1)
    _native.set_simd_level(_native.simd_levels()[-1])
