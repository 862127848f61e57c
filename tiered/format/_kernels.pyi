"""The compiled twin. Names that ``pure_kernels`` has, too, have its signatures; the others are described here.

A function returns None for *odd* input, which its fast path does not take: the caller then uses a slower path, record
by record. Without the extension ``kernels`` has a function that always returns None.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Literal, TypeVar, overload

from tiered.format import locks
from tiered.format.accumulator import AccumulatedBatch as AccumulatedBatch
from tiered.format.accumulator import AccumulatedRecord as AccumulatedRecord
from tiered.format.accumulator import Accumulator as Accumulator
from tiered.format.kernel_values import (
    ArrowColumns,
    BatchFiller,
    BatchForm,
    Buffer,
    Elements,
    EncoderColumns,
    Shown,
)
from tiered.format.partitioner import murmur2 as murmur2
from tiered.format.pure_kernels import KeyTable as KeyTable
from tiered.format.pure_kernels import assign_offsets as assign_offsets
from tiered.format.pure_kernels import consumer_records as consumer_records
from tiered.format.pure_kernels import decode_records as decode_records
from tiered.format.pure_kernels import encode_records as encode_records
from tiered.format.pure_kernels import run_batches as run_batches
from tiered.format.pure_kernels import scan as scan
from tiered.format.pure_kernels import survey as survey
from tiered.format.records import ConsumerRecord as ConsumerRecord
from tiered.format.records import Record as Record
from tiered.model import RecordMetadata

T = TypeVar("T")

COMPILED: str
CRC_WAYS: tuple[int, ...]

class PlainLock(locks.PlainLock): ...

class TurnLock(locks.PlainLock):
    """Lock that waiting threads get in the order of their requests. It is for threads that wait for an fsync.

    A thread with a new record queues after the threads that the last fsync covered, so the next fsync covers its
    record, too. ``threading.Lock`` has no order: the thread that released it would often get it again, and each fsync
    would cover one record.
    """

    @property
    def waiting(self) -> int: ...

def crc32c(data: Buffer, value: int = 0, /, *, way: int | None = None) -> int:
    """Return the CRC-32C of ``data``, continued from ``value``, the CRC of the bytes before it.

    ``way``: one of ``CRC_WAYS``, for tests; None: the fastest one.
    """

def encode_batch(
    records: Sequence[object],
    form: BatchForm,
    now_ms: int,
    append_time_ms: int,
    base_offset: int,
    leader_epoch: int,
    producer: tuple[int, int, int],
    crc: int = 0,
) -> tuple[bytes | bytearray, tuple[int, int, int, int, int], int, int, RecordMetadata | None] | None:
    """Return (one uncompressed v2 batch, its totals, its first timestamp, the file's CRC, RecordMetadata or None).

    The totals are size, last offset, number of records, lowest and highest timestamp. ``crc``: CRC-32C of the file
    before the batch; the result has the CRC after it. ``now_ms`` replaces a timestamp of -1. None: the input is odd,
    such as a buffer other than ``bytes``, a record without a key if ``form.keyed``, a timestamp out of bounds, or a
    batch of more than ``form.most_bytes``. The caller then encodes record by record, which raises the error, if any.
    """

def group(
    records: Iterable[object], partitions: int, fixed: int, keyless: int
) -> tuple[tuple[object, ...], list[tuple[int, Sequence[object]]]] | None:
    """Return all records of ``append_many``, and a list of (partition, its records) in the order of partitions.

    A record is a ``NewRecord``, a (value, key) pair, or a value. ``fixed``: the partition of all records; -1: Kafka's
    partitioner chooses among ``partitions``. ``keyless``: the partition of records without a key. None: the input is
    odd, such as an iterator or a value that is not ``bytes``, and the caller examines each record itself.
    """

def intact_header(batch: Buffer, header: type[T]) -> T | None:
    """Return the header of exactly one whole v2 batch with a valid CRC and count, as the NamedTuple ``header``.

    None: ``batch`` is something else or damaged. The caller decodes it, and reports the error.
    """

def records_extent(
    data: Buffer, count: int, base_offset: int, base_timestamp: int, begin: int
) -> tuple[int, int, int] | None:
    """Return (lowest offset, highest offset, lowest timestamp >= 0 or -1) of ``count`` records in ``data[begin:]``.

    None: there are no records, or the fast path does not take one of them. The caller then decodes the records.
    """

def batch_records(batch: Buffer, shown: Shown | None) -> Iterator[Record] | Iterator[ConsumerRecord] | None:
    """Return the records of the one whole v2 batch in ``batch``: all, or those that ``shown`` selects.

    None: the caller must read the header itself, as for a compressed batch. The CRC is not checked.
    """

def run_records(batches: Buffer, shown: Shown) -> Iterator[ConsumerRecord] | None:
    """Return the records of consecutive whole v2 batches within the bounds of ``shown``, without control records.

    Timestamp type and leader epoch are those of each batch, not of ``shown``. CRCs are not checked. None: the caller
    must decode each batch alone.
    """

def arrow_columns(
    names: Collection[str], start: int, end: int | None, since: int | None, until: int | None, micros: bool
) -> ArrowColumns | None:
    """Return a collector of records as Arrow buffers, with the columns ``names`` and the offsets.

    Only records of ``start <= offset < end`` and ``since <= timestamp < until`` become rows (None: no bound).
    ``micros``: timestamps become microseconds. None: an argument is odd.
    """

def arrow_rows(
    count: int, values: Elements, keys: Elements, timestamps: Buffer, headers: tuple[Buffer, Elements, Elements] | None
) -> EncoderColumns | None:
    """Return ``count`` records as columns for :func:`batch_filler`, without copying. The memory stays referenced.

    ``timestamps``: int64, each a time or -1 for none. ``headers``: int64 bounds of each record's headers in two
    columns, then these columns, names and values. None: an element is outside its data.
    """

@overload
def batch_filler(room: int, lend: Literal[False] = False) -> BatchFiller[bytes] | None: ...
@overload
def batch_filler(room: int, lend: Literal[True]) -> BatchFiller[bytes | memoryview] | None:
    """Return a filler of batches whose rows have at most ``room`` bytes, by ``RecordColumns.sizes``.

    ``lend``: large batches are read-only views of memory that is refilled once no view is left.
    """

def key_hashes(count: int, keys: Elements) -> bytes | None:
    """Return Kafka's hash of each of ``count`` keys as uint32, 0 for a null. None: an element is outside its data."""
