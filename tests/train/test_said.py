"""What ranks agree upon at a step, and what each keeps for itself."""

import numpy as np
from ranks import Meeting, ThreadPeers

from sfctr.train.ranks import Ranks
from sfctr.train.said import Said


def test_losses_add_up_any_signal_counts_and_the_clock_is_that_of_rank_0():
    late, asked = Said(0.25, 0, is_late=True), Said(0.5, 2, is_late=False)
    assert Said.agreed(np.stack([late.numbers(), asked.numbers()])) == Said(0.75, 2, is_late=True)
    assert Said.agreed(np.stack([asked.numbers(), late.numbers()])) == Said(0.75, 2, is_late=False)


def test_each_rank_keeps_a_trace_of_its_own():
    first, second = (Ranks(loop=ThreadPeers(Meeting(2), rank)) for rank in range(2))
    assert (first.own_path("t.json"), second.own_path("t.json")) == ("t.json", "t.json.rank-1")
    assert first.own_path(None) is None and second.own_path(None) is None
