"""The dense part of a run whose ranks share it."""

from __future__ import annotations

import torch

from sfctr.checkpoint.dense import copies, is_shared


class Part(torch.Tensor):
    """What torch's DTensor is to us: the whole is had by asking."""

    def full_tensor(self):
        return torch.cat([torch.Tensor(self), torch.ones(2)])


def test_a_tensor_that_ranks_have_parts_of_is_saved_whole():
    plain = torch.zeros(3)
    found = copies({"part": torch.zeros(1).as_subclass(Part), "plain": plain})
    assert found["part"].tolist() == [0, 1, 1]
    assert found["plain"].tolist() == [0, 0, 0] and found["plain"].data_ptr() != plain.data_ptr()
    assert [is_shared(torch.zeros(1).as_subclass(Part)), is_shared(plain)] == [True, False]
