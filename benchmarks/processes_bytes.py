"""Bytes between ranks, as counted and as they follow from what a key costs.

  P ranks; U unique keys of a rank's part of a batch; N distinct keys of the whole batch; n = N / U, from 1, where all
  ranks have the same keys, to P, where none has another's; m: share of them of which a rank has no copy and is no owner

Each owner has 1/P of all keys. A rank's key of a row that others own costs `key` bytes to ask for, `weights` to bring
and `gradient` to answer; a record is a row with its state; an exact gradient is never rounded. All ranks together send

  owners      U (P - 1) (key + weights + gradient)
  allreduce   U (P - 1) (P key + gradient + n (exact gradient + m (key + record)))

since with copies every rank is told all keys, and owners tell every rank the sums of all rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

ROW_KINDS = ("keys", "rows", "requests", "records", "gradients", "sums")
KEY = 8


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Bytes of one key's messages, without first-order weights."""

    weights: int
    gradient: int
    exact_gradient: int
    record: int

    @classmethod
    def of(cls, dim: int, wire: str, record: int) -> Costs:
        size = 2 if wire == "bf16" else 4
        return cls(weights=size * dim, gradient=size * dim + 1, exact_gradient=4 * dim + 1, record=record)

    def owners(self) -> float:
        """Bytes a unique key of a rank and other rank."""
        return KEY + self.weights + self.gradient

    def allreduce(self, ranks: int, n: float, m: float) -> float:
        """The same with copies."""
        return ranks * KEY + self.gradient + n * (self.exact_gradient + m * (KEY + self.record))


@dataclass(frozen=True, kw_only=True)
class Counted:
    """A job's means of a step. kinds: bytes that a rank sends. overlap: share of a rank's unique keys that others have.

    positions: bytes of keys, rows and gradients of others' rows, a rank, were they sent for every look-up.
    """

    ranks: int
    batch: int
    sync: str
    wire: str
    kinds: Mapping[str, float]
    unique: float
    n: float
    m: float
    overlap: float
    positions: float
    merged: float
    formula: float

    @property
    def rows(self) -> float:
        """Bytes that a rank sends of rows, in whatever kind."""
        return sum(self.kinds.get(kind, 0.0) for kind in ROW_KINDS)


def counted(job: Mapping[str, Any], answers: Sequence[Mapping[str, Any]], dim: int) -> Counted:
    """From what the ranks of a job answered."""
    ranks = len(answers)
    uses, shared, distinct, misses = (
        sum(a[name] for a in answers) for name in ("uses", "shared", "distinct", "misses")
    )
    unique = uses / ranks
    n, m = distinct / unique, misses / (distinct * (ranks - 1))
    costs = Costs.of(dim, job["wire"], answers[0]["record_bytes"])
    a_key = costs.owners() if job["sync"] == "owners" else costs.allreduce(ranks, n, m)
    return Counted(
        ranks=ranks,
        batch=job["batch"],
        sync=job["sync"],
        wire=job["wire"],
        kinds={kind: sum(a["bytes"].get(kind, 0.0) for a in answers) / ranks for kind in answers[0]["bytes"]},
        unique=unique,
        n=n,
        m=m,
        overlap=shared / uses,
        positions=sum(a["traffic"]["bytes_positions"] for a in answers) / ranks,
        merged=sum(a["traffic"]["bytes_unique"] for a in answers) / ranks,
        formula=unique * (ranks - 1) * a_key / ranks,
    )


def rule_of_thumb(dim: int) -> str:
    """Which way of synchronising sends less, in a sentence."""
    costs = Costs.of(dim, "fp32", 0)
    cheapest = costs.allreduce(2, 1.0, 0.0) / costs.owners()
    most = costs.allreduce(4, 4.0, 0.0) / costs.owners()
    return (
        "Rule of thumb: a rank sends U (P - 1) / P times [key + weights + gradient] bytes a step with owners, and that"
        " many times [P key + gradient + n (exact gradient + m (key + record))] with allreduce, where n = P - o (P - 1)"
        " if those of a rank's unique keys that any other has, a share o, are had by all; as n is at least 1 and an"
        " exact gradient is longer than a row's weights, allreduce never sends fewer bytes, whatever the overlap and"
        f" the number of ranks: with vectors of {dim} floats, {cheapest:.2f} times those of owners with 2 ranks, all"
        f" keys in common and all copies there, and {most:.1f} times with 4 ranks and no key in common; each copy that"
        " is not there adds its record, and a step has three exchanges more (requests, records, sums)."
    )
