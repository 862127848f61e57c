"""Buffer of an appender: its open batches and the receipts of their records, in pure Python.

The compiled kernels have classes of the same names, which replace these where the kernels are loaded.

The compiled classes take a record without a Python frame, a system call or a lock if the batch is open and has
room, the lock is free, and the process is no fork. Every other record goes to ``_try_buffer`` of the subclass, as all
records do here.

::

    Accumulator (an appender)     _open: partition -> AccumulatedBatch     _held: bytes in all of them
    AccumulatedBatch (pending)    records: tuples here, encoded there      size: upper bound of the batch's bytes
    AccumulatedRecord (a receipt) _appender, _batch, _index: its place in the batch
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from tiered.format import kernels
from tiered.format.locks import PlainLock
from tiered.model import Headers, NewRecord, PackedBatch
from tiered.times import Time

Receipt = TypeVar("Receipt")


class AccumulatedBatch:
    """Records of one pending batch.

    ``size``: upper bound of the encoded batch's bytes. ``count``: number of records, also after :meth:`release`.
    """

    __slots__ = ("_times", "count", "records", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.count = 0
        self.records: list[NewRecord] = []
        self._times: list[int] = []

    def add(self, record: NewRecord) -> None:
        """Append a record. Its timestamp must be a time, not -1 for "now"."""
        self.records.append(record)
        self.count += 1

    def packed(self) -> PackedBatch | None:
        """Return the encoded batch; None unless compiled code encoded every record. This pure class returns None."""
        return None

    def release(self) -> None:
        """Drop the records, but keep their timestamps for :meth:`time_of`."""
        self._times = [record[2] for record in self.records]
        self.records = []

    def time_of(self, index: int) -> int:
        """Return the timestamp of the record at ``index``. Call :meth:`release` first."""
        return self._times[index]


class AccumulatedRecord:
    """Base class of the receipt of one record, which is at position ``index`` of ``batch`` of ``appender``."""

    __slots__ = ("_appender", "_batch", "_index")

    def __init__(self, appender: Any, batch: Any, index: int) -> None:
        self._appender = appender
        self._batch = batch
        self._index = index


class Accumulator(Generic[Receipt]):
    """Base class of an appender: its buffer, with an open batch for each partition.

    A subclass defines ``_try_buffer``, which returns None without room, and ``_buffer_late``, which waits for room.
    """

    _try_buffer: Callable[..., Receipt | None]
    _buffer_late: Callable[..., Receipt]

    def __init__(
        self,
        partitions: int,
        *,
        record_bytes: int,
        batch_bytes: int,
        buffer_bytes: int,
        receipt: type[Receipt],
        now_ms: Callable[[], int] | None,
    ) -> None:
        """Create an accumulator for a topic with ``partitions`` partitions.

        ``record_bytes``: overhead of one record besides key and value. ``batch_bytes``: size at which a batch is full.
        ``buffer_bytes``: limit of all unwritten batches. ``receipt``: class of the receipts. ``now_ms``: clock; None:
        the machine's.
        """
        del record_bytes, receipt, now_ms
        self._partitions = partitions
        self._batch_bytes = batch_bytes
        self._buffer_bytes = buffer_bytes
        self._lock = PlainLock()
        self._open: dict[int, Any] = {}
        self._halted: dict[int, Any] = {}
        self._keyless: int | None = None
        self._held = 0
        self._closed = False

    def append(
        self,
        value: bytes | None,
        *,
        key: bytes | None = None,
        partition: int | None = None,
        timestamp: Time | None = None,
        headers: Headers | None = None,
    ) -> Receipt:
        """Buffer one record and return its receipt, which is done once the record is in the log.

        The batch is written at the latest ``linger_ms`` after its first record. ``timestamp`` None: now. ``partition``
        None: the hash of the key decides. Records with neither share one partition until its batch is full. Blocks for
        at most ``max_block_ms`` while ``buffer_bytes`` are buffered, then raises AppendTimeoutError. Raises
        InvalidRecordError, UnknownTopicError (no such partition), AppendHaltedError (an earlier batch of the partition
        failed), ClosedError or ForkedLogError. After an error the record is not buffered.
        """
        taken = self._buffer(value, key, partition, timestamp, headers)
        return self._buffer_late(value, key, partition, timestamp, headers) if taken is None else taken

    def _buffer(
        self,
        value: bytes | None,
        key: bytes | None,
        partition: int | None,
        timestamp: Time | None,
        headers: Headers | None,
    ) -> Receipt | None:
        """Buffer one record and return its receipt, or None if the buffer has no room for it."""
        return self._try_buffer(value, key, partition, timestamp, headers)


if kernels.KERNELS_IN_USE != kernels.PURE:
    from tiered.format import _kernels

    AccumulatedBatch = _kernels.AccumulatedBatch  # type: ignore[misc]
    AccumulatedRecord = _kernels.AccumulatedRecord  # type: ignore[misc]
    Accumulator = _kernels.Accumulator  # type: ignore[misc]
