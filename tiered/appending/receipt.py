"""Batches that wait to be written, and the receipts of their records."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable
from typing import TYPE_CHECKING

from tiered import arguments
from tiered.errors import AppendTimeoutError, TieredError
from tiered.format.accumulator import AccumulatedBatch, AccumulatedRecord
from tiered.local.partition.write_log import WriteLog
from tiered.model import RecordMetadata

if TYPE_CHECKING:
    from tiered.appending.appender import Appender

BATCH_OVERHEAD_BYTES = 61
"""Size of a batch header."""

Outcome = RecordMetadata | TieredError
"""Result of consecutive records of a batch: the position of the first one, or the error of all."""


class PendingBatch(AccumulatedBatch):
    """Batch of one partition that waits to be written at ``due`` (monotonic seconds).

    ``pieces``: (index of the first record, outcome) of consecutive records with one write; empty until the batch is
    done.
    """

    __slots__ = ("callbacks", "done", "due", "event", "log", "partition", "pieces")

    def __init__(self, log: WriteLog, due: float) -> None:
        super().__init__(BATCH_OVERHEAD_BYTES)
        self.log = log
        self.partition = log.tp.partition
        self.due = due
        self.pieces: list[tuple[int, Outcome]] = []
        self.done = False
        self.event: threading.Event | None = None
        self.callbacks: list[Callable[[], None]] = []

    def complete(self, pieces: list[tuple[int, Outcome]]) -> None:
        """Mark the batch as done, with the outcomes ``pieces``, and drop its records from memory."""
        self.pieces = pieces
        self.release()
        self.done = True

    def outcome(self, index: int) -> Outcome:
        """Return the outcome of one record. The batch must be done."""
        first, found = self.pieces[bisect_right(self.pieces, index, key=lambda piece: piece[0]) - 1]
        if isinstance(found, TieredError):
            return found
        offset = found.offset + index - first
        timestamp = found.timestamp if self.log.config.timestamp_type else self.time_of(index)
        return RecordMetadata(found.topic, found.partition, offset, timestamp, offset + 1)


class Receipt(AccumulatedRecord):
    """Result of ``Appender.append``: the position of the record, once it is in the log. Thread-safe."""

    __slots__ = ()
    _appender: Appender
    _batch: PendingBatch
    _index: int

    def __repr__(self) -> str:
        state = f"offset={self.offset}" if self.offset is not None else "failed" if self.done() else "pending"
        return f"<Receipt {self._batch.log.tp} {state}>"

    @property
    def partition(self) -> int:
        """Return the record's partition, which is known before the record is written."""
        return self._batch.partition

    @property
    def offset(self) -> int | None:
        """Return the offset, None until the record is in the log. It stays None if the record failed."""
        known = self._known()
        return None if known is None else known.offset

    @property
    def timestamp(self) -> int | None:
        """Return the timestamp in ms, None until the record is in the log. It stays None if the record failed."""
        known = self._known()
        return None if known is None else known.timestamp

    def done(self) -> bool:
        """Return True once the record is in the log (``durability="disk"``: and fsynced) or has failed."""
        return self._batch.done

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Wait until the record is in the log, at most ``timeout`` seconds, and return its position.

        ``timeout`` None: no limit. The wait does not write the batch earlier. Raises the error with which the record
        failed, such as InvalidRecordError, FencedError or DiskFullError. Raises AppendHaltedError if an earlier batch
        of the partition failed. Raises AppendTimeoutError on a timeout: the record may still be written.
        """
        outcome = self._wait(timeout)
        if isinstance(outcome, TieredError):
            raise outcome.with_traceback(None)
        return outcome

    def exception(self, timeout: float | None = None) -> TieredError | None:
        """Wait until the record is in the log or has failed. Return its error, None if it is in the log.

        Raises AppendTimeoutError after ``timeout`` seconds (None: no limit).
        """
        outcome = self._wait(timeout)
        return outcome if isinstance(outcome, TieredError) else None

    def _when_done(self, callback: Callable[[], None]) -> bool:
        """Call ``callback`` from another thread once the record is done. Return False, without a call, if it is."""
        return self._appender._when_done(self._batch, callback)

    def _known(self) -> RecordMetadata | None:
        outcome = self._batch.outcome(self._index) if self._batch.done else None
        return outcome if isinstance(outcome, RecordMetadata) else None

    def _wait(self, timeout: float | None) -> Outcome:
        timeout = arguments.seconds_or_none("timeout", timeout)
        if not self._batch.done and not self._appender._wait_for(self._batch, timeout):
            raise self._late(timeout)
        return self._batch.outcome(self._index)

    def _late(self, timeout: float | None) -> AppendTimeoutError:
        return AppendTimeoutError(
            f"{self._batch.log.tp}: a record was not written within {timeout} s",
            hint="call flush() to write the buffered records, then ask the receipt again",
        )
