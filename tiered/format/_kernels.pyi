"""The compiled twin. Names that ``pure_kernels`` has, too, have its signatures; the others are described here.

A function that returns None for *odd* input leaves it to its caller, which takes the steps one by one. Without the
extension every input is odd: ``kernels`` then has a function that returns None.
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
    """Lock that is handed over in the order of the requests. It serves threads that wait for an fsync.

    A thread with a new record queues after the threads that the last fsync covered, so the next fsync covers it, too.
    ``threading.Lock`` has no order: the thread that released it would take it again, for an fsync of one record.
    """

    @property
    def waiting(self) -> int: ...

def crc32c(data: Buffer, value: int = 0, /, *, way: int | None = None) -> int:
    """Return what ``pure_kernels.crc32c`` returns; ``way`` is one of ``CRC_WAYS``, and None the fastest of them."""

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
    """Return (one uncompressed v2 batch, its facts, its first timestamp, the CRC of its file, its metadata).

    The facts are size, last offset, number of records, lowest and highest timestamp. ``crc`` is the CRC-32C of the file
    before the batch. ``now_ms`` replaces a timestamp of -1. None: the input is odd, such as a buffer other than
    ``bytes``, a record without a key if the topic is ``keyed``, a timestamp out of bounds, or more than
    ``form.most_bytes``. The caller then takes the steps one by one, which report the error.
    """

def group(
    records: Iterable[object], partitions: int, fixed: int, keyless: int
) -> tuple[tuple[object, ...], list[tuple[int, Sequence[object]]]] | None:
    """Group ``append_many``'s records by partition: return all of them, and (partition, its records) in order.

    A record is a ``NewRecord``, a (value, key) pair, or a value. ``fixed`` is the partition of all; -1: Kafka's
    partitioner chooses among ``partitions``. ``keyless`` is the partition of records without a key. None: the input is
    odd, such as an iterator or a value that is not ``bytes``, and the caller examines each record itself.
    """

def intact_header(batch: Buffer, header: type[T]) -> T | None:
    """Return the header of exactly one whole v2 batch with a valid CRC and count, as the NamedTuple ``header``.

    None: the batch is another one or damaged, and the caller decodes it to report the error.
    """

def records_extent(
    data: Buffer, count: int, base_offset: int, base_timestamp: int, begin: int
) -> tuple[int, int, int] | None:
    """Return (lowest offset, highest offset, lowest timestamp >= 0 or -1) of ``count`` records in ``data[begin:]``.

    None: there are no records, or one is odd or damaged, and the caller decodes them.
    """

def batch_records(batch: Buffer, shown: Shown | None) -> Iterator[Record] | Iterator[ConsumerRecord] | None:
    """Return the records of the one whole v2 batch in ``batch``: all, or those that ``shown`` selects.

    None: the caller must read the header itself, as for a compressed batch. The CRC is not checked.
    """

def run_records(batches: Buffer, shown: Shown) -> Iterator[ConsumerRecord] | None:
    """Return what a reader sees of consecutive whole v2 batches: no control records, and only within ``shown``.

    Timestamp type and leader epoch are those of each batch. None: the caller takes batch after batch. CRCs are not
    checked.
    """

def arrow_columns(
    names: Collection[str], start: int, end: int | None, since: int | None, until: int | None, micros: bool
) -> ArrowColumns | None:
    """Return a collector for the columns ``names`` and the offsets, in Arrow's buffers.

    Only records of ``start <= offset < end`` and ``since <= timestamp < until`` become rows (None: no bound).
    ``micros``: timestamps become microseconds.
    """

def arrow_rows(
    count: int, values: Elements, keys: Elements, timestamps: Buffer, headers: tuple[Buffer, Elements, Elements] | None
) -> EncoderColumns | None:
    """Return ``count`` records as columns. ``timestamps`` are resolved, int64. ``headers``: int64 bounds of each
    record's headers in the columns of names and values, then these columns.

    Nothing is copied, and the memory stays referenced. None if an element is outside its data.
    """

@overload
def batch_filler(room: int, lend: Literal[False] = False) -> BatchFiller[bytes] | None: ...
@overload
def batch_filler(room: int, lend: Literal[True]) -> BatchFiller[bytes | memoryview] | None:
    """Return a filler of batches whose rows have at most ``room`` bytes, by ``RecordColumns.sizes``.

    ``lend``: large batches are read-only views of memory that is refilled once no view is left.
    """

def key_hashes(count: int, keys: Elements) -> bytes | None:
    """Return Kafka's hash of each of ``count`` keys, uint32; 0 for a null. None as for :func:`arrow_rows`."""
