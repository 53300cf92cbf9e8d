"""How a table's rows begin: the numbers that the native initialiser takes, from the run's seed and the table's name."""

from __future__ import annotations

from sfctr import _native
from sfctr.spec.tables import Normal, Table

from .groups import initial_accumulator
from .membership import membership_rule


def table_seed(name: str, seed: int) -> int:
    """64 bits for a table: the name's XXH3 mixed with the run's seed, so that tables of one run start unlike."""
    return _mix(_native.xxh3_64(name.encode()) ^ _mix(seed & _MASK))


_MASK = (1 << 64) - 1


def _mix(word: int) -> int:
    """The splitmix64 finaliser (Steele, Lea and Flood 2014)."""
    word = (word + 0x9E3779B97F4A7C15) & _MASK
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & _MASK
    return word ^ (word >> 31)


def table_init(table: Table, seed: int) -> _native.TableInit:
    """What the native core needs to begin this table's rows."""
    own = table_seed(table.name, seed)
    init = table.init
    kind, a, b = ("normal", init.mean, init.std) if isinstance(init, Normal) else ("uniform", init.low, init.high)
    return _native.TableInit(
        seed=own,
        null_seed=_mix(own),
        kind=kind,
        a=a,
        b=b,
        state0=initial_accumulator(table.optimizer),
        linear_state0=initial_accumulator(table.linear),
        frozen=table.frozen,
        membership=membership_rule(table),
    )
