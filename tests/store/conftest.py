"""The NumPy twin, for every test that compares with it; threads and SIMD level are set back before each test."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import numpy_twin
import pytest

from sfctr import _native


@pytest.fixture(scope="session")
def twin() -> ModuleType:
    """tests/store/numpy_twin.py."""
    return numpy_twin


@pytest.fixture(autouse=True)
def _native_settings() -> Iterator[None]:
    """A test may change threads and SIMD level; the next begins with one thread and the best level again."""
    yield
    _native.set_num_threads(1)
    _native.set_simd_level(_native.simd_levels()[-1])
