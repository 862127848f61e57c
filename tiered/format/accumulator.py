"""What an appender does for each record: the pure twin of the compiled classes of the same names.

The compiled ones take a record without a Python frame, a system call or a lock where nothing is out of the ordinary:
its batch is open and has room, the lock is free, and the process is no fork. Whatever
else there is goes the way that it goes here, to ``_take_any`` of the subclass.

::

    Accumulator (an appender)     _open: partition -> AccumulatedBatch     _held: bytes in all of them
    AccumulatedBatch (pending)    records, here tuples, there encoded      size: of the batch, at most
    AccumulatedRecord (a receipt) _appender, _batch, _index: its place in the batch
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from tiered.format import kernels
from tiered.format.locks import PlainLock
from tiered.model import Headers, NewRecord, PackedBatch
from tiered.times import Time

Receipt = TypeVar("Receipt")
Taken_co = TypeVar("Taken_co", covariant=True)


class AccumulatedBatch:
    """Records of one batch. ``size``: of the batch in bytes, at most; ``count`` stays when the records are let go."""

    __slots__ = ("_times", "count", "records", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.count = 0
        self.records: list[NewRecord] = []
        self._times: list[int] = []

    def add(self, record: NewRecord) -> None:
        """Behind the others; its time is resolved."""
        self.records.append(record)
        self.count += 1

    def packed(self) -> PackedBatch | None:
        """The whole batch, if compiled code has encoded every record as it came."""
        return None

    def let_go(self) -> None:
        """Of the records only the times stay."""
        self._times = [record[2] for record in self.records]
        self.records = []

    def time_of(self, index: int) -> int:
        """Of a record that was let go."""
        return self._times[index]


class AccumulatedRecord:
    """A record's place: ``batch.records[index]`` of an appender."""

    __slots__ = ("_appender", "_batch", "_index")

    def __init__(self, appender: Any, batch: Any, index: int) -> None:
        self._appender = appender
        self._batch = batch
        self._index = index


class Taking(Protocol[Taken_co]):
    """What takes a record: value, key, partition, timestamp, headers."""

    def __call__(
        self,
        value: bytes | None,
        key: bytes | None,
        partition: int | None,
        timestamp: Time | None,
        headers: Headers | None,
    ) -> Taken_co:
        """What became of it."""


class Accumulator(Generic[Receipt]):
    """Open batches by partition. A subclass has ``_take_any`` and ``_take_late``, and makes ``receipt`` objects."""

    _take_any: Taking[Receipt | None]
    _take_late: Taking[Receipt]

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
        """``record_bytes``: what a record takes beside key and value. ``now_ms`` None: the machine's clock."""
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
        """Takes one record; it is in the log when the receipt says so, ``linger_ms`` later as a rule.

        ``timestamp`` None: now. Records without a key stay together for a batch. Waits ``max_block_ms`` at most while
        ``buffer_bytes`` are buffered, then raises AppendTimeoutError. Raises InvalidRecordError, AppendHaltedError,
        ClosedError, ForkedLogError; the record is not taken then.
        """
        taken = self._take(value, key, partition, timestamp, headers)
        return self._take_late(value, key, partition, timestamp, headers) if taken is None else taken

    def _take(
        self,
        value: bytes | None,
        key: bytes | None,
        partition: int | None,
        timestamp: Time | None,
        headers: Headers | None,
    ) -> Receipt | None:
        """None if there is no room: then all that waits is to be written now."""
        return self._take_any(value, key, partition, timestamp, headers)


if kernels.AT_WORK != kernels.PURE:
    from tiered.format import _kernels

    AccumulatedBatch = _kernels.AccumulatedBatch  # type: ignore[misc]
    AccumulatedRecord = _kernels.AccumulatedRecord  # type: ignore[misc]
    Accumulator = _kernels.Accumulator  # type: ignore[misc]
