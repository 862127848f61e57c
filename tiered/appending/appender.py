"""Buffered appender of one topic. It collects records for a few milliseconds and writes them as batches.

::

    with topic.appender(linger_ms=5) as appender:
        receipt = appender.append(b"v", key=b"k")   # only in the memory of this process
        receipt.result().offset                     # waits until it is in the log
    # here all records are in the log

Partitions, timestamps, checks and order are as if ``Topic.append`` was called for each record. A batch costs one lock
and one write. Differences from Kafka's producer: docs/deviations.md.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, Self

from tiered import arguments
from tiered.appending.receipt import BATCH_OVERHEAD_BYTES, Outcome, PendingBatch, Receipt
from tiered.appending.thread import AppenderThread
from tiered.clock import Clock, SystemClock
from tiered.display import names_without
from tiered.errors import (
    AppendHaltedError,
    AppendTimeoutError,
    ClosedError,
    ConfigError,
    ForkedLogError,
    InvalidRecordError,
    TieredError,
)
from tiered.format.accumulator import Accumulator
from tiered.format.batch import encode_batch
from tiered.format.kernels import PlainLock
from tiered.format.locks import SafeEvent
from tiered.model import NO_TIMESTAMP, Headers, NewRecord, RecordMetadata
from tiered.times import Time

if TYPE_CHECKING:
    from tiered.topic import Topic

LINGER_MS = 5
"""Time that a batch waits for more records (Kafka's ``linger.ms``)."""
MAX_LINGER_MS = 3_600_000
BATCH_BYTES = 1024 * 1024
"""Size at which a batch is written at once (Kafka's ``batch.size``)."""
BUFFER_BYTES = 32 * 1024 * 1024
"""Most bytes that wait in one appender (Kafka's ``buffer.memory``)."""
MAX_BLOCK_MS = 60_000
"""Longest time that ``append`` waits for room (Kafka's ``max.block.ms``)."""
RECORD_OVERHEAD_BYTES = 36
"""Most bytes that lengths, deltas and the header count add to one record."""
HEADER_OVERHEAD_BYTES = 10
"""Most bytes that the two lengths of a header add to it."""

APPENDER_DURABILITIES = ("memory", "disk")
"""Durability levels that a receipt can wait for."""

_logger = logging.getLogger("tiered")


class AppenderLimits(NamedTuple):
    """Checked arguments of ``Topic.appender``. ``max_bytes``: largest batch. ``buffer_bytes``: most buffered bytes.

    ``linger_ms``: wait of a batch for more records. ``max_block_ms``: longest wait of an append for room.
    ``durability``: "memory" or "disk", which a receipt waits for.
    """

    linger_ms: int = LINGER_MS
    max_bytes: int = BATCH_BYTES
    buffer_bytes: int = BUFFER_BYTES
    max_block_ms: int = MAX_BLOCK_MS
    durability: str = "memory"

    @classmethod
    def checked(
        cls, linger_ms: object, max_bytes: object, buffer_bytes: object, max_block_ms: object, durability: object
    ) -> AppenderLimits:
        """Check the keyword arguments of ``Topic.appender`` and return them.

        Raises ConfigError for a wrong type or range, the durability "remote", or ``buffer_bytes`` < ``max_bytes``.
        """
        if durability == "remote":
            hint = 'appender.flush(durability="remote") waits for the bucket, for all records at once'
            raise ConfigError(
                "a receipt cannot wait for the bucket: its record is uploaded only when its segment is sealed",
                hint=hint,
            )
        found = cls(
            arguments.whole("linger_ms", linger_ms, least=0, most=MAX_LINGER_MS),
            arguments.whole("max_bytes", max_bytes, least=1),
            arguments.whole("buffer_bytes", buffer_bytes, least=1),
            arguments.whole("max_block_ms", max_block_ms, least=0, most=MAX_LINGER_MS),
            arguments.one_of("durability", durability, APPENDER_DURABILITIES),
        )
        if found.buffer_bytes < found.max_bytes:
            hint = "raise buffer_bytes, or lower max_bytes"
            raise ConfigError(
                f"buffer_bytes={found.buffer_bytes} has no room for one batch of max_bytes={found.max_bytes}", hint=hint
            )
        return found


class Appender(Accumulator[Receipt]):
    """Buffered writer of one topic, made by ``Topic.appender``; a context manager. Thread-safe.

    Within a partition, the records of one thread keep their order. If the log refuses a record, only this record fails.
    If a batch fails for another reason (disk full, fenced, offline), its partition halts. Later records of the
    partition fail with AppendHaltedError and are not written, until ``flush`` raises the reason.
    """

    def __init__(self, topic: Topic, thread: AppenderThread, limits: AppenderLimits) -> None:
        super().__init__(
            topic.partitions,
            record_bytes=RECORD_OVERHEAD_BYTES,
            batch_bytes=limits.max_bytes,
            buffer_bytes=limits.buffer_bytes,
            receipt=Receipt,
            now_ms=None if type(thread.clock) is SystemClock else thread.clock.now_ms,
        )
        self._topic = topic
        self._thread = thread
        self._clock = thread.clock
        self._limits = limits
        self._linger_s = limits.linger_ms / 1000
        self._now_ms = thread.clock.now_ms
        self._pid = os.getpid()
        self._writing = PlainLock()  # held while batches are written; acquired before ``_lock``
        self._room = SafeEvent()
        self._ready: deque[PendingBatch] = deque()
        self._refused: TieredError | None = None
        self._failed = 0  # records that failed since ``flush`` or ``close`` last raised
        self._ends: dict[int, int] = {}
        self._counts = thread.add(topic.name, self)

    __dir__ = names_without()

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"buffered={self._held}"
        return f"<Appender {self._topic.name!r} {state}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except TieredError as failed:
            if error is None:
                raise
            _logger.warning("records of an appender of %s failed: %s", self._topic.name, failed)

    @property
    def buffered_bytes(self) -> int:
        """Return the bytes of records that are not in the log yet: at most ``buffer_bytes``, or one larger record."""
        return self._held

    @property
    def _failures(self) -> tuple[int, TieredError | None]:
        """Return (number of records that failed since the last flush, the error that the next flush raises or None)."""
        with self._lock:
            return self._failed, next(iter(self._halted.values()), None) or self._refused

    def flush(self, *, durability: str | None = None) -> None:
        """Write all buffered records, and wait until they have ``durability``. None: that of the appender.

        Raises one error if records have failed since the last flush: an error that halted a partition, otherwise the
        first refusal of a record. Afterwards halted partitions accept records again. Raises ClosedError for a closed
        appender, DataLocalError if a wait for "remote" takes too long.
        """
        if durability is not None:
            self._topic._check_durability(durability)
        self._check_process()
        with self._lock:
            if self._closed:
                raise self._closed_error()
        self._drain()
        self._topic._wait(dict(self._ends), durability or self._limits.durability)
        self._raise_failed()

    def close(self) -> None:
        """Write all buffered records and close the appender. Safe to call again.

        Raises one error if records have failed since the last flush: an error that halted a partition, otherwise the
        first refusal of a record.
        """
        self._check_process()
        self._check_caller()
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._room.set()
        try:
            self._drain()
        finally:
            self._thread.remove(self)
        self._raise_failed()

    def _check_caller(self) -> None:
        """Raise ReentrantCallError in a thread that is inside a call of this appender."""
        self._writing.check_caller()
        self._lock.check_caller()

    # -- what the thread of the log calls ------------------------------------------------------------------------------

    def _write_due(self, now_s: float) -> float | None:
        """Write the batches that are due. Return when the next batch is due (monotonic seconds), None without one."""
        with self._lock:
            for batch in list(self._open.values()):
                if batch.due > now_s:
                    break
                self._seal(batch)
        self._write_ready()
        with self._lock:
            return next((batch.due for batch in self._open.values()), None)

    def _spread(self, partitions: int) -> None:
        """Set the number of partitions to which records without a key are spread."""
        with self._lock:
            self._partitions = partitions

    def _drain(self) -> None:
        """Write all buffered records. It raises no failures: receipts and :meth:`flush` do."""
        with self._lock:
            self._seal_all()
        self._write_ready()

    # -- taking records ------------------------------------------------------------------------------------------------

    def _try_buffer(
        self,
        value: bytes | None,
        key: bytes | None,
        partition: int | None,
        timestamp: Time | None,
        headers: Headers | None,
    ) -> Receipt | None:
        """Buffer a record and return its receipt. Without room seal all batches for writing, and return None."""
        if self._pid != os.getpid():
            self._check_process()
        keyless = key is None and partition is None
        if keyless:
            partition = self._keyless
        if timestamp is None and headers is None and type(value) is bytes and (key is None or type(key) is bytes):
            chosen = self._topic._place(key, partition)
            record: NewRecord = (value, key, self._now_ms(), None)  # type: ignore[assignment]  # a tuple costs a third
            size = RECORD_OVERHEAD_BYTES + len(value) + (0 if key is None else len(key))
        else:
            chosen, given = self._topic._route(value, key, partition, timestamp, headers)
            record, size = _own(given, self._clock)
        with self._lock:
            batch = self._open.get(chosen)
            if (
                batch is not None
                and not self._halted
                and batch.size + 2 * size <= self._batch_bytes
                and self._held + size <= self._buffer_bytes
            ):  # the fast path, for most records: the batch has room for this record and one more of its size
                batch.size += size
                self._held += size
                if keyless:
                    self._keyless = chosen
                batch.add(record)
                return Receipt(self, batch, batch.count - 1)
            self._check_takes(chosen)
            if self._held and self._held + size > self._buffer_bytes:
                receipt, wakes = None, True
                self._seal_all()
                self._room.clear()
            else:
                receipt, wakes = self._put(chosen, record, size)
                if keyless:
                    self._keyless = chosen if chosen in self._open else None
        if wakes:
            self._thread.wake(self)
        return receipt

    def _buffer_late(
        self,
        value: bytes | None,
        key: bytes | None,
        partition: int | None,
        timestamp: Time | None,
        headers: Headers | None,
    ) -> Receipt:
        """Wait for room, then buffer the record. Raises AppendTimeoutError after ``max_block_ms``."""
        with self._lock:
            self._counts.waits += 1
        deadline = self._clock.monotonic() + self._limits.max_block_ms / 1000
        while (left_s := deadline - self._clock.monotonic()) > 0:
            self._clock.wait(self._room, left_s)
            receipt = self._buffer(value, key, partition, timestamp, headers)
            if receipt is not None:
                return receipt
        raise self._full()

    def _put(self, partition: int, record: NewRecord, size: int) -> tuple[Receipt, bool]:
        """Add a record to its partition's open batch. Return (receipt, True to wake the thread). Needs the lock."""
        batch = self._open.get(partition)
        wakes = False
        if batch is not None and batch.size + size > self._batch_bytes:
            self._seal(batch)
            wakes, batch = True, None
        if batch is None:
            log = self._topic.log(partition)
            wakes = wakes or not self._open
            batch = self._open[partition] = PendingBatch(log, self._clock.monotonic() + self._linger_s)
        batch.add(record)
        batch.size += size
        self._held += size
        receipt = Receipt(self, batch, batch.count - 1)
        if batch.size + size > self._batch_bytes:  # another record of this size does not fit
            self._seal(batch)
            wakes = True
        return receipt, wakes

    def _seal(self, batch: PendingBatch) -> None:
        """Close an open batch to further records and queue it for writing. The caller holds the lock."""
        del self._open[batch.partition]
        if batch.partition == self._keyless:
            self._keyless = None
        self._ready.append(batch)

    def _seal_all(self) -> None:
        for batch in list(self._open.values()):
            self._seal(batch)

    def _check_takes(self, partition: int) -> None:
        if self._closed:
            raise self._closed_error()
        if self._halted and partition in self._halted:
            raise self._halted_error(partition)
        self._topic._check_uploader()

    # -- writing -------------------------------------------------------------------------------------------------------

    def _write_ready(self) -> None:
        """Write all sealed batches, in the order of their sealing."""
        if not self._writing.hold(0):
            # The writing thread may wait for a call of the log that this thread, in a signal handler, has interrupted.
            self._topic._check_caller()
            self._writing.hold(-1)
        try:
            with self._lock:
                batches = list(self._ready)
                self._ready.clear()
            try:
                self._write(batches)
            finally:  # after an interrupt no receipt may wait for a batch that will not be written
                for batch in batches:
                    if not batch.done:
                        self._complete(batch, [(0, _interrupted(batch))])
        finally:
            self._writing.release()

    def _write(self, batches: list[PendingBatch]) -> None:
        flushes = self._limits.durability == "disk"
        written: list[tuple[PendingBatch, list[tuple[int, Outcome]]]] = []
        for batch in batches:
            pieces: list[tuple[int, Outcome]] = []
            with self._lock:
                halted = batch.partition in self._halted
            if halted:
                pieces.append((0, self._halted_error(batch.partition)))
            else:
                self._append(batch, 0, batch.count, pieces)
                self._halt(batch, pieces)  # before the next batch of this partition
            if flushes:
                written.append((batch, pieces))
            else:
                self._complete(batch, pieces)
        failed: dict[int, TieredError] = {}
        for log in {batch.partition: batch.log for batch, _ in written}.values():
            try:
                log.flush()
            except TieredError as error:
                failed[log.tp.partition] = error
        for batch, pieces in written:
            why = failed.get(batch.partition)
            self._complete(
                batch, [(at, why if why and isinstance(found, RecordMetadata) else found) for at, found in pieces]
            )

    def _append(self, batch: PendingBatch, start: int, end: int, pieces: list[tuple[int, Outcome]]) -> None:
        """Write records ``start`` to ``end`` (exclusive) of a batch, and add the outcomes to ``pieces``.

        An outcome is (index of the first record, position or error). It is for all records before the next outcome's.
        If the log refuses a record, halve the range until the record is alone, so that only this record fails.
        """
        before = _halting(pieces)
        if before is not None:
            pieces.append((start, self._behind_error(batch.partition, before)))
            return
        try:
            whole = batch.packed() if end - start == batch.count else None
            written = None if whole is None else batch.log.append_packed(whole)
            if written is None:
                written = batch.log.append(batch.records if end - start == batch.count else batch.records[start:end])
            pieces.append((start, written))
        except InvalidRecordError as error:
            if end - start <= 1:  # 0 if an interrupt came between the batch and its first record
                pieces.append((start, error))
                return
            middle = (start + end) // 2
            self._append(batch, start, middle, pieces)
            self._append(batch, middle, end, pieces)
        except TieredError as error:
            pieces.append((start, error))
        except Exception as error:
            _logger.exception("an appender could not write to %s", batch.log.tp)
            broken = TieredError(f"{batch.log.tp}: {type(error).__name__}: {error}", hint="report this as a bug")
            broken.__cause__ = error
            pieces.append((start, broken))

    def _halt(self, batch: PendingBatch, pieces: list[tuple[int, Outcome]]) -> None:
        """Halt the batch's partition if one of its outcomes is an error other than the refusal of a record."""
        halting = _halting(pieces)
        if halting is not None:
            with self._lock:
                self._halted.setdefault(batch.partition, halting)

    def _complete(self, batch: PendingBatch, pieces: list[tuple[int, Outcome]]) -> None:
        """Store the outcomes of a batch, wake threads that wait for it, and free its room in the buffer."""
        self._halt(batch, pieces)
        count, failed = batch.count, 0
        for (start, found), end in zip(pieces, [*(at for at, _ in pieces[1:]), count], strict=True):
            failed += end - start if isinstance(found, TieredError) else 0
        with self._lock:
            for _, found in pieces:
                if isinstance(found, RecordMetadata):
                    self._ends[batch.partition] = found.end_offset
                elif isinstance(found, InvalidRecordError):
                    self._refused = self._refused or found
            batch.complete(pieces)
            self._held -= batch.size - BATCH_OVERHEAD_BYTES
            self._counts.batches += 1
            self._counts.records += count - failed
            self._counts.failed += failed
            self._failed += failed
            event, callbacks, batch.callbacks = batch.event, batch.callbacks, []  # they may hold receipts of it
        self._room.set()
        if event is not None:
            event.set()
        for each in callbacks:
            each()

    # -- waiting, and errors -------------------------------------------------------------------------------------------

    def _wait_for(self, batch: PendingBatch, timeout_s: float | None) -> bool:
        """Wait until the batch is done. Return False on a timeout."""
        self._check_process()
        with self._lock:
            if batch.done:
                return True
            event = batch.event = batch.event or SafeEvent()
        return self._clock.wait(event, timeout_s)

    def _when_done(self, batch: PendingBatch, callback: Callable[[], None]) -> bool:
        """Call ``callback`` from another thread once the batch is done. Return False, without a call, if it is done."""
        with self._lock:
            if not batch.done:
                batch.callbacks.append(callback)
            return not batch.done

    def _raise_failed(self) -> None:
        """Raise an error if records failed since the last call, and let halted partitions accept records again.

        An error that halted a partition comes first, then the first refusal of a record.
        Buffered records of halted partitions fail first.
        """
        with self._writing:  # so that no batch that follows a halted one is being written
            with self._lock:
                self._seal_all()
                behind = [batch for batch in self._ready if batch.partition in self._halted]
                self._ready = deque(batch for batch in self._ready if batch.partition not in self._halted)
            for batch in behind:
                self._complete(batch, [(0, self._halted_error(batch.partition))])
            with self._lock:
                found = next(iter(self._halted.values()), None) or self._refused
                self._halted, self._refused, self._failed = {}, None, 0
                waits = bool(self._ready)
        if waits:
            self._thread.wake(self)
        if found is not None:
            raise found.with_traceback(None)

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise ForkedLogError(
                f"the appender of {self._topic.name} belongs to process {self._pid}; the forked process "
                f"{os.getpid()} cannot use it",
                hint="open the log in the child, after the fork; the parent process writes what it has buffered",
            )

    def _closed_error(self) -> ClosedError:
        return ClosedError(
            f"the appender of {self._topic.name} is closed and takes no records",
            hint="topic.appender() makes a new one",
        )

    def _halted_error(self, partition: int) -> AppendHaltedError:
        return self._behind_error(partition, self._halted[partition])

    def _behind_error(self, partition: int, cause: TieredError) -> AppendHaltedError:
        error = AppendHaltedError(
            f"{self._topic.name}-{partition}: the record was not written, because an earlier batch of "
            f"this appender failed: {cause.message}",
            hint="call flush(): it raises the first error, then the partition takes records again",
        )
        error.__cause__ = cause
        return error

    def _full(self) -> AppendTimeoutError:
        return AppendTimeoutError(
            f"{self._topic.name}: the buffer is full: {self._held} bytes are buffered, buffer_bytes is "
            f"{self._buffer_bytes}, and no batch was written within "
            f"max_block_ms={self._limits.max_block_ms}",
            hint="the record was not added: append it again, or give the appender more buffer_bytes",
        )


def _own(record: NewRecord, clock: Clock) -> tuple[NewRecord, int]:
    """Return (copy that the caller cannot change, with a timestamp; upper bound of its bytes in a batch)."""
    value, key, timestamp, headers = record
    if timestamp == NO_TIMESTAMP:
        timestamp = clock.now_ms()
    size = RECORD_OVERHEAD_BYTES
    if headers or (value is not None and type(value) is not bytes) or (key is not None and type(key) is not bytes):
        encode_batch([record])
        value, key = _copy(value), _copy(key)
        if headers:
            headers = [(name, _copy(held)) for name, held in headers]
            size += sum(len(name) * 4 + len(held or b"") + HEADER_OVERHEAD_BYTES for name, held in headers)
    return NewRecord(value, key, timestamp, headers), size + len(value or b"") + len(key or b"")


def _copy(field: bytes | None) -> bytes | None:
    return field if field is None or type(field) is bytes else bytes(memoryview(field))


def _halting(pieces: Sequence[tuple[int, Outcome]]) -> TieredError | None:
    """Return the first outcome that halts a partition: an error that is no refusal of a record. None without one."""
    failures = (found for _, found in pieces if isinstance(found, TieredError))
    return next((found for found in failures if not isinstance(found, InvalidRecordError)), None)


def _interrupted(batch: PendingBatch) -> TieredError:
    return TieredError(
        f"{batch.log.tp}: the write of a batch was interrupted: it is unknown whether its records are in the log",
        hint="read the end of the partition, then append only the records that are missing",
    )
