"""DIN (Zhou et al., "Deep Interest Network for Click-Through Rate Prediction", KDD 2018).

A history is pooled by how much each of its positions has to do with the candidate: sum_j a(e_j, v) e_j (equation 2),
where a is a small network and its weights are, as in the paper, not normalised by a softmax.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from sfctr.spec.errors import ModelError
from sfctr.spec.inputs import Input

from .layers import MLP, Concat, Features, to_logits
from .needs import Needs


@dataclass(frozen=True, slots=True)
class History:
    """Sequences that share their positions: a history and its side columns, side by side at every position.

    compared: names of those with a target, in order; targets: their targets' names.
    """

    names: tuple[str, ...]
    compared: tuple[str, ...]
    targets: tuple[str, ...]
    dim: int
    compared_dim: int


class Attention(nn.Module):
    """Pools positions [B, L, D] by their weight for a query [B, Q]; their compared part is [B, L, Q]. Gives [B, D].

    Only true positions pass through the network, so padding neither costs time nor enters a batch statistic.
    """

    def __init__(self, query_dim: int, hidden: Sequence[int], activation: str) -> None:
        super().__init__()
        self.weigh = MLP(4 * query_dim, hidden, out=1, activation=activation)

    def forward(self, positions: Tensor, compared: Tensor, query: Tensor, mask: Tensor) -> Tensor:
        if torch.compiler.is_compiling() and not self.training:
            return self._over_all(positions, compared, query, mask)
        batch, length = mask.shape
        true = mask.flatten().nonzero().squeeze(1)
        k = compared.flatten(0, 1).index_select(0, true)
        q = query.index_select(0, torch.div(true, length, rounding_mode="floor"))
        weights = self.weigh(torch.cat([q, k, q - k, q * k], dim=1)).squeeze(1).to(positions.dtype)
        spread = weights.new_zeros(batch * length).index_copy(0, true, weights).view(batch, 1, length)
        return torch.bmm(spread, positions).squeeze(1)

    def _over_all(self, positions: Tensor, compared: Tensor, query: Tensor, mask: Tensor) -> Tensor:
        """The same with shapes that no value decides, as torch.export needs them; padding counts for nothing."""
        q = query.unsqueeze(1).expand_as(compared)
        pairs = torch.cat([q, compared, q - compared, q * compared], dim=2)
        weights = self.weigh(pairs.flatten(0, 1)).view(mask.shape).to(positions.dtype)
        return torch.bmm((weights * mask).unsqueeze(1), positions).squeeze(1)


class DIN(nn.Module):
    """An MLP over all inputs, where each history with a target is pooled by attention.

    A side sequence (aligned_with) is pooled by its history's weights, and compared too if it has a target of its own.
    Sequences without any target enter as their mean.

    attention_hidden: hidden sizes of the attention network (36 in the paper's figure 2).
    activation:       "dice", "prelu" or "relu", in the attention network and the MLP.
    hidden, dropout, batch_norm: of the MLP.
    """

    needs: ClassVar[Needs] = Needs(attention=True)

    def __init__(
        self,
        inputs: Sequence[Input],
        *,
        num_labels: int = 1,
        attention_hidden: Sequence[int] = (36,),
        activation: str = "dice",
        hidden: Sequence[int] = (256, 128),
        dropout: float = 0.0,
        batch_norm: bool = False,
    ) -> None:
        super().__init__()
        self.needs.check("din", inputs)
        self.histories = _histories(inputs)
        attended = {name for history in self.histories for name in history.names}
        self.attention = nn.ModuleList(
            Attention(history.compared_dim, attention_hidden, activation) for history in self.histories
        )
        self.concat = Concat([item for item in inputs if item.name not in attended])
        width = self.concat.width + sum(history.dim for history in self.histories)
        self.mlp = MLP(width, hidden, out=num_labels, dropout=dropout, batch_norm=batch_norm, activation=activation)

    def forward(self, features: Features) -> Tensor:
        """Logits [B], or [B, K] for K labels."""
        parts = [self.concat(features)]
        for history, attention in zip(self.histories, self.attention, strict=True):
            positions = torch.cat([features[name] for name in history.names], dim=2)
            compared = torch.cat([features[name] for name in history.compared], dim=2)
            query = torch.cat([features[name] for name in history.targets], dim=1)
            parts.append(attention(positions, compared, query, features[f"{history.names[0]}.mask"]))
        return to_logits(self.mlp(torch.cat(parts, dim=1)))


def _histories(inputs: Sequence[Input]) -> tuple[History, ...]:
    """The groups of aligned sequences in which at least one has a target."""
    by_name = {item.name: item for item in inputs}
    groups: dict[str, list[Input]] = {}
    for item in inputs:
        if item.kind == "sequence":
            groups.setdefault(_leader(item, by_name), []).append(item)
    return tuple(_history(group, by_name) for group in groups.values() if any(item.target for item in group))


def _leader(item: Input, by_name: dict[str, Input]) -> str:
    seen = {item.name}
    while item.aligned_with is not None and item.aligned_with not in seen:
        item = by_name[item.aligned_with]
        seen.add(item.name)
    return item.name


def _history(group: list[Input], by_name: dict[str, Input]) -> History:
    compared = [item for item in group if item.target]
    targets = [by_name[item.target] for item in compared if item.target]
    for item, target in zip(compared, targets, strict=True):
        if item.dim != target.dim:
            raise ModelError(
                f"model 'din' compares sequence '{item.name}' (table '{item.table}', dim {item.dim}) with its target"
                f" '{target.name}' (table '{target.table}', dim {target.dim}); give both one table, or the same dim"
            )
    return History(
        names=tuple(item.name for item in group),
        compared=tuple(item.name for item in compared),
        targets=tuple(item.name for item in targets),
        dim=sum(item.dim for item in group),
        compared_dim=sum(item.dim for item in compared),
    )
