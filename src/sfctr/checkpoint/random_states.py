"""States of the generators that a user's model or loss may draw from: torch's, NumPy's global one and Python's own."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import cast

import numpy as np
import torch
from torch import Tensor

from sfctr.spec.snapshot import U32


def random_states() -> dict[str, Tensor]:
    """By name. A generator of an accelerator is there where the accelerator was used."""
    version, words, gauss = random.getstate()
    assert version == 3, "Python's generator has the state that this file knows"
    kind, key, pos, has_gauss, cached = cast(tuple[str, U32, int, int, float], np.random.get_state())
    assert kind == "MT19937", "NumPy's global generator is what it has been since its first release"
    states = {
        "torch": torch.get_rng_state(),
        "python": torch.tensor(words, dtype=torch.int64),
        "python.gauss": torch.tensor([] if gauss is None else [gauss], dtype=torch.float64),
        "numpy": torch.from_numpy(key.astype(np.int64)),
        "numpy.position": torch.tensor([pos, has_gauss], dtype=torch.int64),
        "numpy.gauss": torch.tensor([cached], dtype=torch.float64),
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        states |= {f"cuda.{number}": state for number, state in enumerate(torch.cuda.get_rng_state_all())}
    return states


def restore_random_states(states: Mapping[str, Tensor]) -> None:
    """Go on drawing from there. States of accelerators that are not here are left out."""
    torch.set_rng_state(states["torch"])
    gauss = states["python.gauss"].tolist()
    random.setstate((3, tuple(states["python"].tolist()), gauss[0] if gauss else None))
    pos, has_gauss = states["numpy.position"].tolist()
    key = states["numpy"].numpy().astype(np.uint32)
    np.random.set_state(("MT19937", key, pos, has_gauss, states["numpy.gauss"].item()))
    for number in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        if f"cuda.{number}" in states:
            torch.cuda.set_rng_state(states[f"cuda.{number}"], number)
