"""
The native core: threads, hashing, working sets and rows. Calls that work or wait release the GIL.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, overload

import numpy
from numpy.typing import NDArray


def xxh3_64(data: bytes) -> int:
    """XXH3-64 of data with seed 0."""

@overload
def hash_spans(data: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], starts: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], ends: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], out: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C', device='cpu')]) -> int: ...

@overload
def hash_spans(data: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], starts: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], ends: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], out: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C', device='cpu')]) -> int:
    """
    XXH3-64 of every span into out. Returns the first span that is not UTF-8, or -1.
    """

@overload
def parse_int64s(data: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], starts: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], ends: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], out: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu')]) -> int: ...

@overload
def parse_int64s(data: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], starts: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], ends: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], out: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu')]) -> int:
    """
    Canonical decimal integers (empty: 0). Returns the first span that is none, or -1.
    """

@overload
def parse_uint64s(data: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], starts: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], ends: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], out: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C', device='cpu')]) -> int: ...

@overload
def parse_uint64s(data: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], starts: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], ends: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], out: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C', device='cpu')]) -> int:
    """
    Canonical decimal integers (empty: 0). Returns the first span that is none, or -1.
    """

@overload
def parse_doubles(data: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], starts: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], ends: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], out: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu')]) -> int: ...

@overload
def parse_doubles(data: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], starts: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], ends: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], out: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu')]) -> int:
    """
    Decimal numbers (empty: NaN). Returns the first span that is none, or -1.
    """

@overload
def overlay_integers(data: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], starts: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], ends: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], out: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C', device='cpu')]) -> None: ...

@overload
def overlay_integers(data: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], starts: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], ends: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], out: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C', device='cpu')]) -> None:
    """Writes the bits of every canonical integer over its entry of out."""

@overload
def mark_null_spans(data: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], starts: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], ends: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], nulls: Sequence[bytes], out: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')]) -> None: ...

@overload
def mark_null_spans(data: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], starts: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], ends: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], nulls: Sequence[bytes], out: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')]) -> None:
    """out[i] = 1 where span i is empty or one of nulls, else 0."""

@overload
def count_tokens(data: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], starts: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], ends: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], separator: bytes, out_offsets: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu')]) -> None: ...

@overload
def count_tokens(data: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], starts: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], ends: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], separator: bytes, out_offsets: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu')]) -> None:
    """Offsets of each span's tokens; an empty span has none."""

@overload
def find_tokens(data: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], starts: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], ends: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], separator: bytes, out_starts: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu')], out_ends: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu')]) -> None: ...

@overload
def find_tokens(data: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], starts: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], ends: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], separator: bytes, out_starts: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu')], out_ends: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu')]) -> None:
    """Start and end in data of every token that count_tokens counts."""

@overload
def find_last(data: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], starts: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], ends: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], separator: bytes, out: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu')]) -> None: ...

@overload
def find_last(data: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], starts: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], ends: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], separator: bytes, out: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu')]) -> None:
    """Position in data of the last separator inside each span, or -1."""

def widen_floats(values: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], out: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu')]) -> None:
    """Each float as the double its shortest decimal names."""

def cross_keys(keys: Sequence[Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C', device='cpu', writable=False)]], nulls: Sequence[Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)] | None], out: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C', device='cpu')]) -> None:
    """
    Key of each row's combination of keys; nulls[part] (None: none) marks missing parts with 1.
    """

def pack_records(columns: Sequence[Annotated[NDArray, dict(order='C', device='cpu', writable=False)]], offsets: Sequence[int], records: Annotated[NDArray[numpy.uint8], dict(shape=(None, None), order='C', device='cpu')]) -> None:
    """Row i of every column into records[i], each at its offset."""

def gather_records(pieces: Sequence[Annotated[NDArray[numpy.uint8], dict(shape=(None, None), order='C', device='cpu', writable=False)]], which: Annotated[NDArray[numpy.uint32], dict(shape=(None,), order='C', device='cpu', writable=False)], rows: Annotated[NDArray[numpy.uint32], dict(shape=(None,), order='C', device='cpu', writable=False)], offsets: Sequence[int], columns: Sequence[Annotated[NDArray, dict(order='C', device='cpu')]]) -> None:
    """Row i of every column from record rows[i] of pieces[which[i]]."""

def gather_offsets(offsets: Sequence[Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)]], pieces: Annotated[NDArray[numpy.uint32], dict(shape=(None,), order='C', device='cpu', writable=False)], rows: Annotated[NDArray[numpy.uint32], dict(shape=(None,), order='C', device='cpu', writable=False)], out_offsets: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu')]) -> None:
    """Offsets of the picked ragged rows."""

def gather_items(items: Sequence[Annotated[NDArray, dict(order='C', device='cpu', writable=False)]], offsets: Sequence[Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)]], pieces: Annotated[NDArray[numpy.uint32], dict(shape=(None,), order='C', device='cpu', writable=False)], rows: Annotated[NDArray[numpy.uint32], dict(shape=(None,), order='C', device='cpu', writable=False)], out_offsets: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], out: Annotated[NDArray, dict(order='C', device='cpu')]) -> None:
    """Items of the picked ragged rows, placed by gather_offsets' result."""

def num_threads() -> int:
    """Threads that native loops use, the caller's included. At first 1."""

def set_num_threads(n: int) -> None:
    """
    Let native loops use n threads (1 to 1024), the caller's included. No result depends on it.
    """

def empty_floats(size: int) -> Annotated[NDArray[numpy.float32], dict(shape=(None,))]:
    """
    float32 [size] whose contents are undefined. It begins at a cache line, and the memory of a large one is that of
    an array which was given back, where there is one: fresh pages would cost a fault each.
    """

def simd_level() -> str:
    """The level of the kernels in use: the best of simd_levels() unless set."""

def simd_levels() -> list[str]:
    """Levels that this processor can run, the plainest first."""

def set_simd_level(level: str) -> None:
    """
    Use the kernels of another level, while none is running. No result depends on it: this is for tests.
    """

def shards_of(keys: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C', device='cpu', writable=False)], out: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')]) -> None:
    """
    out[i] = the shard, one of 256, of keys[i]: the leading bits of the hash in whose order rows are exported.
    """

def bucket_keys(keys: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C', device='cpu', writable=False)], buckets: int, out: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C', device='cpu')]) -> None:
    """
    out[i] = the row, below buckets, that keys[i] shares with other keys by the hashing trick.
    """

class FeatureKeys:
    """The keys that one feature looks up for a batch of B rows."""

    def __init__(self, table: int, pooling: str, keys: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C', device='cpu', writable=False)], offsets: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None, nulls: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None, weights: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None, max_length: int = 0, buckets: int = 0) -> None:
        """
        table: number of the table in its group. pooling: 'one', 'sum', 'mean' or 'sequence'.
        keys uint64 [N]; offsets int64 [B + 1] for all but 'one', where N = B; nulls uint8 [N] for 'one', 1 where the
        value is missing; weights float32 [N] for 'sum' and 'mean'. max_length: vectors a row of a sequence becomes;
        no row may have more keys. buckets: above 0, keys are hashed into so many.
        The arrays are kept, not copied: nobody may change them while a working set uses them.
        """

    @property
    def table(self) -> int: ...

    @property
    def pooling(self) -> str: ...

    @property
    def offsets(self) -> Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)] | None: ...

    @property
    def weights(self) -> Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None: ...

    @property
    def max_length(self) -> int: ...

class WorkingSet:
    """
    The unique keys of a batch for the tables of one group. One thread at a time may use it.

    Table t is native tables 2t (its keys) and 2t + 1 (the row of a missing value, key 0).
    Keys are numbered by native table, then by first appearance (feature, then position).
    """

    def __init__(self, num_tables: int, num_rows: int, features: Sequence[FeatureKeys], rare_tables: Sequence[int] = []) -> None:
        """
        Raises ValueError, naming the feature by its number, where shapes or options do not fit together.
        rare_tables: numbers of the tables that list their rare row, key 1 of native table 2t + 1, with every batch.
        """

    @staticmethod
    def of_sources(num_tables: int, sources: list[tuple[NDArray[numpy.uint64], NDArray[numpy.int64]]]) -> WorkingSet:
        """
        The unique keys of other working sets, each given as (keys [n], table_begin [2T + 1]): numbered by native
        table, then by first appearance (source, then position). It has no features and no rows. Raises ValueError.
        """

    def source_ids(self, source: int) -> Annotated[NDArray[numpy.int32], dict(shape=(None,), writable=False)]:
        """
        int32 [n] of one source: for each of its keys the number of the unique key. A view.
        """

    @property
    def has_gradients(self) -> bool:
        """Whether gradients have come to it since it was located."""

    @property
    def num_rows(self) -> int:
        """B, rows of the batch."""

    @property
    def features(self) -> list[FeatureKeys]:
        """What each feature looks up, in order."""

    @property
    def num_unique(self) -> int:
        """U, unique keys of all tables."""

    def keys(self) -> Annotated[NDArray[numpy.uint64], dict(shape=(None,), writable=False)]:
        """uint64 [U], hashed already where the feature has buckets. A view."""

    def table_begin(self) -> Annotated[NDArray[numpy.int64], dict(shape=(None,), writable=False)]:
        """
        int64 [2T + 1]: native table n owns unique keys table_begin[n] to table_begin[n + 1]. A view.
        """

    def virtual_ids(self, feature: int) -> Annotated[NDArray[numpy.int32], dict(shape=(None,), writable=False)]:
        """
        int32 [N] of one feature: for each position the number of its unique key. A view.
        """

def scratch_bytes() -> int:
    """
    Bytes that working sets hold for keys, gradients and first values, kept for the next one included.
    """

class RamFull(MemoryError):
    pass

class IndexOutgrown(MemoryError):
    pass

class DiskError(OSError):
    pass

class ChecksumError(OSError):
    pass

class LocationsExhausted(MemoryError):
    pass

class Budget:
    """Bytes of RAM that the groups of a store share."""

    def __init__(self, limit: int) -> None: ...

    @property
    def limit(self) -> int: ...

    @property
    def used(self) -> int:
        """Of frames and indexes, as they are counted."""

class MembershipRule:
    """Which keys of a table have a row."""

    def __init__(self, capacity: int = 0, admit_after: int = 1, expire_after_steps: int = 0, expire_after_ns: int = 0, rare: bool = False, most_waiting: int = 65536) -> None:
        """
        capacity: rows; 0: no bound. admit_after: committed steps that must have held a key, the one that admits it
        included. expire_after_steps, expire_after_ns: life of a row that is not trained again, one of the two; 0: for
        ever. rare: refused keys read and train the table's rare row, else they read as zeros. most_waiting: keys
        whose count is kept.
        """

class TableInit:
    """How the rows of one table begin, and whether they change."""

    def __init__(self, seed: int, null_seed: int, kind: str, a: float, b: float, state0: float = 0.0, linear_state0: float = 0.0, frozen: bool = False, membership: MembershipRule | None = None) -> None:
        """
        seed: of the Philox words that first values and the rounding of bf16 are made of; null_seed: the same for the
        row of a missing value.
        kind 'normal' with mean a and standard deviation b, or 'uniform' in [a, b). state0, linear_state0: first value
        of Adagrad's accumulators. frozen: rows are neither trained nor added.
        membership: who has a row; None: every key that was trained.
        """

class RowFaults:
    """Ways in which keeping rows can go wrong, by name, for tests."""

    def __init__(self) -> None: ...

    def arm(self, fault: str, skip: int = 0, times: int | None = None) -> None:
        """
        Let `skip` occasions pass and strike on the next `times` (None: all). fault: 'fetch_early', 'drop_write_back',
        'apply_twice', 'lose_state' or 'use_wrong_slot'; row_faults.h says what each does.
        """

    def num_struck(self, fault: str) -> int:
        """How often it has struck."""

def least_staging_bytes(record_bytes: int) -> int:
    """
    The least of RowGroup's staging_bytes with which records of this size are written while others come.
    """

def hyper_columns() -> list[str]:
    """
    Names of the columns of update's hyper, in order. A column that a table's rule does not name is ignored.
    """

class RowGroup:
    """
    The rows of all tables of one group in memory: locate, forward, backward, update.

    A record is float32: vector [dim], first-order weight [1, if linear], state of the vector's
    rule, state of the weight's rule. With dtype 'bf16' the vector is dim halves of float32 words, in
    order of address, and a zero half after an odd dim. One thread plans and fetches, another may train and read.
    """

    def __init__(self, dim: int, linear: bool, vector_rule: str, linear_rule: str | None, tables: Sequence[TableInit], budget: Budget | None = None, disk: str | None = None, policy: str = 'lru', segment_bytes: int = 67108864, staging_bytes: int = 4194304, io: str = 'auto', dtype: str = 'fp32', snapshot_bytes: int = 1048576, faults: RowFaults | None = None, forgets: bool = False) -> None:
        """
        Rules: 'sgd', 'momentum', 'adagrad', 'rowwise_adagrad', 'adam', 'adam_row', 'ftrl'; 'none' for a vector of
        dim 0; None for the weight where linear is False. budget: of RAM; None: no bound. disk: a directory for rows that
        the budget has no room for; None: they are refused. policy: 'lru' or 'lfu', whose rows leave first.
        segment_bytes, staging_bytes: of a file there, and of buffers. io: 'auto', 'uring' or 'threads'. dtype: 'fp32' or
        'bf16', of the vectors alone. snapshot_bytes: of rows that training changes before a snapshot took them; a step
        waits where there are more. faults: for tests. forgets: rows are copies, and those that the budget has no room for
        are forgotten.
        """

    @property
    def record_floats(self) -> int:
        """Length of a record."""

    def layout(self) -> dict[str, tuple[int, int]]:
        """
        Offset and length, in float32 words, of 'vector', 'linear', 'vector_state' and 'linear_state'.
        """

    def announce(self, ws: WorkingSet) -> None:
        """
        Say that the batch will be planned after those announced before it: its rows are then spared where they can be.
        It must be planned, or discarded, in its turn, and kept until then.
        """

    def plan(self, ws: WorkingSet) -> bool:
        """
        Give every unique key its place in RAM, pinned until update or discard. False, with nothing changed, where
        batches in flight hold frames that it needs. Raises RamFull, IndexOutgrown, DiskError.
        """

    def fetch(self, ws: WorkingSet) -> None:
        """Read what the plan needs from disk. Raises DiskError, ChecksumError."""

    def locate(self, ws: WorkingSet, train: bool) -> None:
        """
        train: plan and fetch. Otherwise find the records for reading alone: nothing is added, moved or counted, and a
        key without a row reads as zeros; good until rows change: by update, remove_rows, import_rows. Forgets what was
        located or merged before.
        """

    def discard(self, ws: WorkingSet) -> None:
        """
        End the use of a batch that was announced, planned or located, without training it.
        """

    def unseen(self, ws: WorkingSet) -> Annotated[NDArray[numpy.int64], dict(shape=(None,))]:
        """int64 [F]: look-ups of each feature whose key has no row."""

    def forward_floats(self, ws: WorkingSet, num_rows: int) -> int:
        """Length of forward's `out` for so many rows."""

    def forward(self, ws: WorkingSet, begin: int, end: int, out: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu')], linear_out: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu')] | None = None) -> None:
        """
        Pool rows [begin, end) of the batch, n of them. out: the features in order, each n * dim floats, or
        n * max_length * dim for a sequence (left aligned, zeros after). linear_out [F, n]: first-order weights, pooled
        alike (summed for a sequence); None leaves them out.
        """

    def backward(self, ws: WorkingSet, begin: int, end: int, grads: list[NDArray[numpy.float32] | None], linear_grads: list[NDArray[numpy.float32] | None]) -> None:
        """
        Add the gradients of rows [begin, end) to those of their unique keys. grads[f] holds as many floats as
        forward's part of feature f, and as a matrix with a line a row it may be one of neighbouring columns of a
        larger one; linear_grads[f] one a row; None: the feature is not reached. linear_grads may be
        an empty list.
        """

    def gradients(self, ws: WorkingSet) -> tuple[NDArray[numpy.float32], NDArray[numpy.float32], NDArray[numpy.uint8]]:
        """
        Views: vectors [U, dim], first-order weights [U] (or [0]), and reached [U], whose bit 1 says that the vector
        was reached and bit 2 the weight. Gradients that were not reached are undefined.
        """

    def grad_norm_squared(self, ws: WorkingSet) -> float:
        """
        Sum of the squares of all merged gradients, vectors and first-order weights, in double.
        """

    def update(self, ws: WorkingSet, step: int, scale: float, hyper: Annotated[NDArray[numpy.float64], dict(shape=(None, None), order='C', device='cpu', writable=False)], linear_hyper: Annotated[NDArray[numpy.float64], dict(shape=(None, None), order='C', device='cpu', writable=False)] | None = None) -> None:
        """
        Multiply the gradient of every key that was reached by scale, and apply the optimizers; those without a row have
        one from now on. step counts committed steps from 1. hyper, linear_hyper: float64 [T, len(hyper_columns())].
        The working set must then be located again before further use.
        """

    def settle(self, ws: WorkingSet, time: int | None = None) -> None:
        """
        Decide which keys of a fetched batch have a row, are given one or are refused, after the batch before it has
        ended. time: its greatest event time, ns since 1970. Needed only where a table has a membership rule.
        """

    def remove_rows(self, native_table: int, keys: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> int:
        """
        The keys' rows, and counts that wait, are gone. Returns how many had a row.
        """

    def membership(self, t: int) -> dict[str, int]:
        """
        Keys of table t that were admitted, refused (once a committed step), expired, removed for capacity, withdrawn by
        hand and forgotten while they waited; and those that wait now.
        """

    def waiting(self, t: int) -> tuple[NDArray[numpy.uint64], NDArray[numpy.uint32], NDArray[numpy.uint32]]:
        """
        Keys of table t that wait for a row, in the order of their hashes; the committed steps that reached each, and
        the last of them.
        """

    def last_trained(self, native_table: int, keys: NDArray[numpy.uint64]) -> NDArray[numpy.uint32]:
        """The step that trained each key's row last; 0 for one without."""

    def clock(self) -> tuple[NDArray[numpy.uint32], NDArray[numpy.int64]]:
        """
        Steps at which the greatest event time rose, and what it was then, as far back as a row may live.
        """

    def restore_membership(self, t: int, counters: Mapping[str, int], keys: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C', device='cpu', writable=False)], counts: Annotated[NDArray[numpy.uint32], dict(shape=(None,), order='C', device='cpu', writable=False)], last: Annotated[NDArray[numpy.uint32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None:
        """
        Set what membership() and waiting() tell of table t; what was counted, and waited, before is forgotten.
        """

    def restore_clock(self, step: int, steps: Annotated[NDArray[numpy.uint32], dict(shape=(None,), order='C', device='cpu', writable=False)], times: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None:
        """Set the last committed step, and what clock() tells."""

    def list_gone(self, on: bool) -> None:
        """Whether to list the keys whose rows go, from now on."""

    def take_gone(self) -> list[tuple[int, NDArray[numpy.uint64]]]:
        """
        Tables and keys whose rows have gone since the last call, in the order of their going.
        """

    def num_rows(self, native_table: int) -> int:
        """Rows of native table 2t (table t) or 2t + 1 (its missing value)."""

    def memory_bytes(self) -> int:
        """Bytes of RAM that rows, indexes and buffers of the disk take."""

    def counters(self) -> dict[str, int]:
        """
        Positions requested, unique keys, hits in RAM, fresh, fetched and evicted rows, rows in scratch and plans put off,
        since the group was made; the same of the device, with the rows there, those newer than RAM's, and the
        batches in flight there; rows and bytes on disk, and microseconds for which evictions waited for it.
        """

    def table_counters(self) -> list[dict[str, int]]:
        """
        For each table, since the group was made: positions requested, unique keys, hits in RAM, fresh, fetched
        and evicted rows; unique keys found on the device, rows lifted there and lowered from there, and keys that
        found no line.
        """

    @property
    def num_in_flight(self) -> int:
        """Batches planned and not yet ended."""

    @property
    def is_spilling(self) -> bool:
        """Whether rows have begun to leave RAM."""

    @property
    def is_shrinking(self) -> bool:
        """
        Whether the last plan() was put off only until frames could go for more keys.
        """

    def find(self, native_table: int, keys: NDArray[numpy.uint64], records: NDArray[numpy.float32]) -> NDArray[numpy.uint8]:
        """
        Copy the record of every key that has a row into records [n, record_floats]; returns uint8 [n], 1 where it has.
        """

    def initial_records(self, native_table: int, keys: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C', device='cpu', writable=False)], records: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu')]) -> None:
        """
        Write what the rows of keys [n] begin as into records [n, record_floats]; adds nothing.
        """

    def export_rows(self, native_table: int, from_hash: int, count: int) -> tuple[NDArray[numpy.uint64], NDArray[numpy.float32], int | None]:
        """
        Keys [m] and records [m, record_floats] in the order of the keys' hashes from from_hash on, at most count, and
        the hash to go on from (None after the last). Begin with 0.
        """

    def import_rows(self, native_table: int, keys: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C', device='cpu', writable=False)], records: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], last: Annotated[NDArray[numpy.uint32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None) -> None:
        """
        Add rows, or overwrite those there are: records [n, record_floats] of keys [n]. last [n]: the step that trained
        each last; None: the last one committed.
        """

    def expect_shards(self, t: int, shards: Annotated[NDArray[numpy.bool_], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None:
        """
        Say that keys of table t will be of these shards, bool [256] (see shards_of), and few of others: finding
        them is then as fast as if they were of all. Changes no row.
        """

    def mean_probes(self, native_table: int) -> float:
        """
        How many buckets of the index finding a key looks at, on the average: about 1, unless keys crowd.
        Of keys that have a row or of those that wait, whichever is more.
        """

    def reserve(self, native_table: int, num_rows: int) -> None:
        """
        Make room in the index for so many rows in all: before rows are imported in the order of their hashes.
        """

    def missing(self, ws: WorkingSet) -> NDArray[numpy.int64]:
        """
        int64 [m]: unique keys of a fetched batch, the next to train, that have no copy now. All are to be filled.
        """

    def fill(self, ws: WorkingSet, ids: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], records: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)]) -> None:
        """
        The records [m, record_floats] of unique keys, int64 [m], are copies of rows from now on.
        """

    def forget_all(self) -> None:
        """
        There are no copies any more. Raises RuntimeError while a batch is in flight.
        """

    @property
    def wire_words(self) -> int:
        """
        W, float32 words of a row's weights: its vector and its first-order weight, as a record begins.
        """

    def weights(self, ws: WorkingSet, out: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu')], ids: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None) -> None:
        """
        Write the weights of unique keys, int32 [n], as they are in RAM now, to out [n, W]; of all of them where ids is
        None. Zeros of one that is absent or refused. The working set is located, and settled if it is to be trained.
        """

    def kinds(self, ws: WorkingSet) -> NDArray[numpy.uint8]:
        """
        uint8 [U]: 0 for a key that has a row, 1 for one that is absent, 2 for one that is refused in training, 3
        for one that is being given a row.
        """

    def adopt(self, ws: WorkingSet, weights: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], kinds: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)] | None, train: bool) -> None:
        """
        From now on the rows of this batch are weights [U, W] and kinds [U] (None: all have a row), as another
        process gave them; until discard it is then pooled and merged as if it had been located. Nothing is pinned,
        and plan, settle and update refuse it. The array is kept, not copied.
        """

    def add_gradients(self, ws: WorkingSet, ids: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], vectors: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], linear: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], reached: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None:
        """
        Add gradients to those of unique keys, int32 [n], each there once; what comes first to a key is taken as it is.
        vectors [n, dim] and linear [n] (or [0]) count where reached, uint8 [n], has bit 1 and bit 2; bit 4 says that a
        refused key was reached. What comes to a frozen table is dropped, and what a refused key would be trained by.
        """

    def num_shares(self, t: int) -> int:
        """
        In how many equal ranges of hashes table t's rule of membership counts; 256 where it has none.
        """

    def keep_lines(self, num_lines: int) -> None:
        """
        Rows may be in so many lines on a device from now on, and are then trained there alone. Called once.
        """

    def lines_bound(self) -> int:
        """
        Lines that may be in use: all, but no more than half of the rows that RAM holds once rows leave it.
        """

    def plan_lines(self, ws: WorkingSet) -> bool:
        """
        Choose a line for every key of a fetched batch, pinned until end_step or discard. False, with nothing
        changed, where batches in flight hold lines that it needs. Then, in this order: lower the lines that
        leave, lines_lowered, put the records of rising keys (gather) into their lines, lines_ready.
        """

    def lines(self, ws: WorkingSet) -> Annotated[NDArray[numpy.int64], dict(shape=(None,))]:
        """
        int64 [U]: the line of each unique key; the number of lines for a key without one.
        """

    def line_moves(self, ws: WorkingSet) -> tuple[NDArray[numpy.uint32], NDArray[numpy.uint32], NDArray[numpy.uint32]]:
        """
        uint32: lines that leave; unique keys whose record must be put into their line; unique keys without one.
        Of the last, what was trained must be scattered before end_step; no other batch is ready until then.
        """

    def lines_lowered(self, ws: WorkingSet) -> None:
        """The lines that leave were lowered; the rows are in RAM alone."""

    def lines_ready(self, ws: WorkingSet) -> None:
        """The records of rising keys are in lines."""

    def gather(self, ws: WorkingSet, keys: Annotated[NDArray[numpy.uint32], dict(shape=(None,), order='C', device='cpu', writable=False)], records: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu')]) -> None:
        """
        Copy the records of unique keys, uint32 [n], as they are in RAM, to records [n, record_floats].
        """

    def scatter(self, ws: WorkingSet, keys: Annotated[NDArray[numpy.uint32], dict(shape=(None,), order='C', device='cpu', writable=False)], records: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)]) -> None:
        """Copy records to the unique keys' places in RAM."""

    def dirty_lines(self) -> Annotated[NDArray[numpy.uint32], dict(shape=(None,))]:
        """uint32: lines whose record is newer than RAM's."""

    def lower(self, lines: Annotated[NDArray[numpy.uint32], dict(shape=(None,), order='C', device='cpu', writable=False)], records: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)]) -> None:
        """
        Copy records [n, record_floats] of lines, uint32 [n], to RAM; the lines are then clean.
        """

    def drop_lines(self) -> None:
        """
        No row is on the device any more. Raises RuntimeError where lines are dirty, or batches in flight there.
        """

    def end_step(self, ws: WorkingSet, step: int, reached: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None:
        """
        End a batch that was trained on the device: keys whose reached, uint8 [U], is not 0 now have a row.
        """

    def begin_snapshot(self, full: bool) -> None:
        """
        Between two steps: from now on the snapshot is the rows as they are now, all of them or those trained,
        loaded or new since the one before began. Batches may be planned ahead, no line may be dirty. Raises
        RuntimeError if one is under way, or if it is not full and needs_full.
        """

    def take_snapshot(self, count: int) -> tuple[int, NDArray[numpy.uint64], NDArray[numpy.uint32], NDArray[numpy.float32]] | None:
        """
        The next rows, at most count, of one native table: its number, keys [n], the step that trained each last
        ([n], or [0] without membership), records [n, record_floats]. None: all were given. From any thread, one at a
        time, beside everything else. Raises DiskError and ChecksumError; the snapshot cannot then be kept.
        """

    def take_tombstones(self) -> list[tuple[int, NDArray[numpy.uint64]]]:
        """
        Native tables and their keys, sorted, whose rows went for good since the snapshot before began; of those that
        came back, the row is in the snapshot. Once for each snapshot; one that had to be full may leave some out.
        """

    def end_snapshot(self, kept: bool) -> None:
        """
        kept: all of it was taken, and lies where it will be found again; if not, the next must be full.
        """

    @property
    def needs_full(self) -> bool:
        """
        Whether the next snapshot must hold all rows: none was kept yet, the last was not, or more rows went
        than are worth being listed.
        """

    def mark_saved(self) -> None:
        """
        The rows are those of a snapshot that was kept: none counts as changed.
        """

    def mark_sent(self) -> None:
        """
        Between two steps, as the next four: whoever follows the rows has them as they are now.
        """

    def needs_base(self) -> bool:
        """
        Whether the follower must be sent all rows: it never had any, or more went than are worth being listed.
        Rows that have expired go now.
        """

    def unsent_rows(self, native_table: int, from_hash: int, count: int, *, with_records: bool = True) -> tuple[NDArray[numpy.uint64], NDArray[numpy.float32], int | None]:
        """
        As export_rows, of the rows that were trained, loaded or new since the follower had all;
        with_records=False gives their keys alone. Raises RuntimeError where it needs all.
        """

    def unsent_gone(self, native_table: int) -> NDArray[numpy.uint64]:
        """
        Keys, sorted, whose rows went since then and that have none now. Raises as unsent_rows.
        """

    def mark_unsent(self, native_table: int, rows: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C', device='cpu', writable=False)], gone: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None:
        """
        After mark_sent, of rows that were loaded: keys whose rows the follower has otherwise, or not at all, and
        keys without a row of which it has one.
        """

class AccessLog:
    """
    What the batches of one table asked for: one access for each distinct key of a batch, in order.
    One thread at a time may use it.
    """

    def __init__(self) -> None: ...

    def halve(self) -> None:
        """
        Forget the keys in the upper half of the hashes kept, and every access to them.
        """

    def part(self, number: int, bits: int) -> AccessLog:
        """The log with only the keys of one of 2^bits equal parts of its hashes."""

    @property
    def halvings(self) -> int:
        """The share of keys kept is 2^-halvings."""

    @property
    def num_rows(self) -> int:
        """D, distinct rows."""

    @property
    def num_accesses(self) -> int:
        """N."""

    @property
    def memory_bytes(self) -> int:
        """Bytes that it takes."""

    def rows(self) -> Annotated[NDArray[numpy.uint32], dict(shape=(None,))]:
        """uint32 [N], numbers from 0 by first appearance. A copy."""

    def batch_begin(self) -> Annotated[NDArray[numpy.int64], dict(shape=(None,))]:
        """
        int64 [B + 1]: batch b is accesses batch_begin[b] to batch_begin[b + 1]. A copy.
        """

def log_working_set(working_set: WorkingSet, logs: Sequence[AccessLog]) -> None:
    """
    Add a batch to the logs of its tables, one a table: its unique keys, and the row of a missing value if asked for.
    """

def stack_distance_counts(rows: Annotated[NDArray[numpy.uint32], dict(shape=(None,), order='C', device='cpu', writable=False)], batch_begin: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], num_rows: int) -> Annotated[NDArray[numpy.uint64], dict(shape=(None,))]:
    """
    uint64 [D + 1]: entry d counts the accesses whose row was the d-th most recently used, entry 0 first uses.
    rows uint32 [N], each below D; batch_begin int64 [B + 1] from 0 to N. Raises ValueError.
    """

def gap_counts(rows: Annotated[NDArray[numpy.uint32], dict(shape=(None,), order='C', device='cpu', writable=False)], batch_begin: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], num_rows: int) -> Annotated[NDArray[numpy.uint64], dict(shape=(None,))]:
    """
    uint64 [B]: entry g counts the accesses whose row was used g batches before, and not since.
    """

def rows_ahead(rows: Annotated[NDArray[numpy.uint32], dict(shape=(None,), order='C', device='cpu', writable=False)], batch_begin: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], num_rows: int, window: int) -> Annotated[NDArray[numpy.int64], dict(shape=(None,))]:
    """
    int64 [B]: distinct rows of each batch and the `window` batches after it.
    """

def replay(rows: Annotated[NDArray[numpy.uint32], dict(shape=(None,), order='C', device='cpu', writable=False)], batch_begin: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], num_rows: int, policy: str, capacities: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C', device='cpu', writable=False)], window: int = 0) -> Annotated[NDArray[numpy.uint64], dict(shape=(None,))]:
    """
    uint64 [C]: hits of a cache of each capacity (uint64 [C], from 1 on), first uses not counted.
    policy: 'lru', 'clock', 'lfu', 'frequency', 'window', 'optimal' or 'hot_set'; native/include/sfctr/replay.h has their rules.
    window: batches known after the current one, for 'window' alone. Raises ValueError.
    """
