"""Caches and counts in plain Python, from the rules as they are written: slow, obvious, and sharing nothing with what
they judge. Batches are lists of keys that differ within a batch."""

from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence

Batches = Sequence[Sequence[int]]


def next_use(stream: Sequence[int], key: int, after: int) -> float:
    """Time of the first use of a key after a time, infinite where there is none."""
    return next((time for time in range(after + 1, len(stream)) if stream[time] == key), float("inf"))


def last_use(stream: Sequence[int], key: int, before: int) -> int:
    return max(time for time in range(before) if stream[time] == key)


def hits(policy: str, batches: Batches, capacity: int, window: int = 0) -> int:
    """Accesses after a key's first that find it in the cache."""
    if policy == "clock":
        return clock_hits(batches, capacity)
    if policy == "hot_set":
        return hot_set_hits(batches, capacity)
    stream = [key for batch in batches for key in batch]
    ends = [sum(map(len, batches[: b + 1])) for b in range(len(batches))]
    victim = VICTIMS[policy]
    held: set[int] = set()
    found, time = 0, 0
    for number, batch in enumerate(batches):
        known_end = ends[min(number + window, len(batches) - 1)]
        for key in batch:
            if key in held:
                found += 1
            else:
                if len(held) == capacity:
                    held.remove(victim(stream, time, held, known_end))
                held.add(key)
            time += 1
    return found


def _lru(stream: Sequence[int], time: int, held: set[int], known_end: int) -> int:
    return min(held, key=lambda key: last_use(stream, key, time))


def _lfu(stream: Sequence[int], time: int, held: set[int], known_end: int) -> int:
    return min(held, key=lambda key: (stream[:time].count(key), last_use(stream, key, time)))


def _frequency(stream: Sequence[int], time: int, held: set[int], known_end: int) -> int:
    return min(held, key=lambda key: (stream.count(key), -stream.index(key)))


def _window(stream: Sequence[int], time: int, held: set[int], known_end: int) -> int:
    coming = {key: next_use(stream[:known_end], key, time) for key in held}
    unknown = {key for key in held if coming[key] == float("inf")}
    return _lru(stream, time, unknown, 0) if unknown else max(coming, key=lambda key: coming[key])


def _optimal(stream: Sequence[int], time: int, held: set[int], known_end: int) -> int:
    return max(held, key=lambda key: next_use(stream, key, time))


VICTIMS: dict[str, Callable[[Sequence[int], int, set[int], int], int]] = {
    "lru": _lru,
    "lfu": _lfu,
    "frequency": _frequency,
    "window": _window,
    "optimal": _optimal,
}


def clock_hits(batches: Batches, capacity: int) -> int:
    places: list[int] = []
    marked: dict[int, bool] = {}
    hand = found = 0
    for key in (key for batch in batches for key in batch):
        if key in marked:
            found += 1
        elif len(places) < capacity:
            places.append(key)
        else:
            while marked[places[hand]]:
                marked[places[hand]] = False
                hand = (hand + 1) % capacity
            del marked[places[hand]]
            places[hand] = key
            hand = (hand + 1) % capacity
        marked[key] = True
    return found


def hot_set_hits(batches: Batches, capacity: int) -> int:
    uses = Counter(key for batch in batches for key in batch)
    return sum(count - 1 for _, count in uses.most_common(capacity))


def lru_hits(batches: Batches, capacity: int) -> int:
    """The same as hits("lru", ...), in a time that long sequences allow."""
    held: OrderedDict[int, None] = OrderedDict()
    found = 0
    for key in (key for batch in batches for key in batch):
        if key in held:
            found += 1
            held.move_to_end(key)
            continue
        if len(held) == capacity:
            held.popitem(last=False)
        held[key] = None
    return found


def rows_ahead(batches: Batches, window: int) -> list[int]:
    return [len(set().union(*batches[b : b + window + 1])) for b in range(len(batches))]


def gap_counts(batches: Batches) -> list[int]:
    """How many accesses come g batches after the use of their key before, for each g."""
    gaps = Counter[int]()
    for number, batch in enumerate(batches):
        for key in batch:
            before = [b for b in range(number) if key in batches[b]]
            gaps.update([number - before[-1]] if before else [])
    return [gaps[g] for g in range(len(batches))]
