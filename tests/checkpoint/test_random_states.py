"""Every generator goes on with what it would have drawn next."""

from __future__ import annotations

import random

import numpy as np
import torch

from sfctr.checkpoint.random_states import random_states, restore_random_states


def draws():
    return [random.random(), random.gauss(0, 1), np.random.random(), np.random.normal(), torch.rand(1).item()]


def test_draws_are_repeated():
    for odd in (False, True):  # a normal draw makes two, and keeps the second for the next call
        random.seed(1), np.random.seed(2), torch.manual_seed(3)
        if odd:
            draws()
        states = random_states()
        wanted = [draws() for _ in range(3)]
        restore_random_states(states)
        assert [draws() for _ in range(3)] == wanted
