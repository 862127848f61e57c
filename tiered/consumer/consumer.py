"""Synchronous consumer: the methods of Kafka's consumer, iteration, batches, Arrow."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, Self, TypeVar

from tiered.arrow.schema import COLUMNS, RecordBatches, arrow_schema
from tiered.consumer.assignment import Position
from tiered.consumer.steps import MAX_POLL_RECORDS, ConsumerFace, ConsumerSteps, Request
from tiered.format.kernels import ConsumerRecord
from tiered.model import TopicPartition
from tiered.read.fetch import PartitionFetch
from tiered.read.stream import ReadRange, ReadRequest
from tiered.read.topic import arrow_of
from tiered.store.base import Steps
from tiered.store.driver import Runner
from tiered.times import Time

T = TypeVar("T")

ARROW = arrow_of(ReadRequest((), ReadRange()), COLUMNS)
"""Emitter of Arrow record batches with all columns."""


class Consumer(ConsumerFace):
    """Consumer of a group, and a context manager. Leaving the block closes it.

    Only with ``commit_every``, and without an exception, leaving the block also commits. Use it from one thread at a
    time. Another thread may call :meth:`close`, which ends a waiting call with ClosedError.
    """

    def __init__(self, core: ConsumerSteps, runner: Runner) -> None:
        super().__init__(core, runner.clock)
        self._runner = runner
        self._lock = threading.RLock()
        self._stream: Generator[Any, None, object] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None and self.core.commits_by_itself and not self.core.closed:
                self.commit()
        finally:
            self.close()

    # -- records -----------------------------------------------------------------------------------------------------

    def poll(self, max_records: int = MAX_POLL_RECORDS, timeout: float | str | None = None) -> list[ConsumerRecord]:
        """Return up to ``max_records`` records as soon as there are any; an empty list after ``timeout``.

        ``timeout``: seconds or text such as "5s"; None: no limit. After the end by ``stop_at`` or ``idle_timeout`` the
        list is empty, too.

        The positions move to after the returned records. Raises OffsetOutOfRangeError if retention deleted the next
        record, LogTruncatedError if the log was truncated below the position, OffsetGapError if neither tier has the
        next record, CorruptionError, and ClosedError after the close. Raises PartitionLostError if a member of a group
        polled too seldom, RemoteUnavailableError if the store is unreachable before the first read, and errors of
        automatic commits. After an error the next call continues at the positions, so no record is skipped.
        """
        request = Request.checked(max_records, timeout)
        with self._lock:
            return taken(self._next(request) or (), request.most)

    def __iter__(self) -> Iterator[ConsumerRecord]:
        """Return an iterator over the records. It ends only by the options ``stop_at`` and ``idle_timeout``."""
        request = Request()
        interval_s = self.core.assignment.poll_interval_s
        while True:
            with self._lock:
                fetches = self._next(request)
            if fetches is None:
                return
            look_s = self._clock.monotonic() + interval_s
            while (record := self.core.hand_out(fetches)) is not None:
                yield record
                if self._clock.monotonic() >= look_s:  # a slow caller: its partitions may have changed
                    break

    def batches(
        self, max_records: int = MAX_POLL_RECORDS, timeout: float | str | None = 1.0
    ) -> Iterator[list[ConsumerRecord]]:
        """Yield lists of ``max_records`` records, or of fewer after ``timeout``; never an empty list.

        ``timeout``: seconds or text such as "5s"; None: no limit. The iteration ends only by the options ``stop_at``
        and ``idle_timeout``.
        """
        yield from self._lists(Request.checked(max_records, timeout, fill=True))

    def record_batches(self) -> RecordBatches:
        """Return Arrow record batches of about 1 MiB, with all columns. Loop over the result once, or pass it to Arrow.

        The loop ends only by the options ``stop_at`` and ``idle_timeout``.
        """
        return RecordBatches(arrow_schema(COLUMNS), (found[0] for found in self._lists(Request(1, emit=ARROW))))

    def _lists(self, request: Request) -> Iterator[list[Any]]:
        while True:
            with self._lock:
                fetches = self._next(request)
                found = taken(fetches or (), request.most)
            if found:
                yield found
            elif fetches is None:
                return

    def _next(self, request: Request) -> list[PartitionFetch] | None:
        """Return fetches with items, ``[]`` after the timeout, None at the end. After an error a new loop begins."""
        self.core.request = request
        if self._stream is None:
            self._stream = self._runner.stream(self.core.loop())
        try:
            found: list[PartitionFetch] | None = next(self._stream)
        except BaseException:
            self._stream = None
            raise
        return found

    def _run(self, steps: Steps[T]) -> T:
        with self._lock:
            return self._runner.run(steps)

    # -- partitions --------------------------------------------------------------------------------------------------

    def subscribe(self, topics: str | Iterable[str]) -> None:
        """Read these topics instead of the present ones. Partitions that a topic gets later are read, too.

        Raises UnknownTopicError if a topic does not exist.
        """
        self._run(self.core.subscribe(topics))

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read these partitions instead of the present ones. Raises UnknownTopicError if one does not exist.

        Raises ConfigError in a group whose members share the partitions.
        """
        self._run(self.core.assign(partitions))

    def assignment(self) -> set[TopicPartition]:
        """Return the partitions that this consumer reads now."""
        return set(self._run(self.core.positions()))

    # -- positions ---------------------------------------------------------------------------------------------------

    def position(self, partition: TopicPartition) -> int:
        """Return the offset of the next record to be returned from this partition.

        Raises UnknownTopicError if the partition is not assigned to this consumer.
        """
        return self._run(self.core.positions([partition]))[TopicPartition(*partition)]

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Continue at ``offset`` of this partition. The committed position stays until the next commit.

        Raises UnknownTopicError if the partition is not assigned to this consumer, ConfigError for an offset below 0.
        """
        self._run(self.core.seek(TopicPartition(*partition), offset))

    def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Continue at the earliest offset of these partitions. Without arguments: of all assigned ones.

        Raises UnknownTopicError if one is not assigned to this consumer.
        """
        self._run(self.core.seek_to(partitions or None, end=False))

    def seek_to_end(self, *partitions: TopicPartition) -> None:
        """Continue at the end of these partitions. Without arguments: of all assigned ones.

        Only later records are read. With ``isolation="read_committed"`` the end is the last stable offset. Raises
        UnknownTopicError if one is not assigned to this consumer.
        """
        self._run(self.core.seek_to(partitions or None, end=True))

    def offsets_for_times(self, times: Mapping[TopicPartition, Time]) -> dict[TopicPartition, tuple[int, int] | None]:
        """Return for each partition (offset, timestamp) of its first record at or after its time, None without one.

        Raises UnknownTopicError if a partition is not assigned to this consumer.
        """
        return self._run(self.core.offsets_for_times(times))

    def lag(self) -> dict[TopicPartition, int]:
        """Return the number of offsets between the position and the end of each partition.

        With ``isolation="read_committed"`` the end is the last stable offset.
        """
        return self._run(self.core.lag())

    def committed(self, *partitions: TopicPartition) -> dict[TopicPartition, Position]:
        """Return the stored positions of these partitions. Partitions without a position are left out.

        Without arguments: of all partitions that this consumer reads.
        """
        return self._run(self.core.committed(partitions))

    def commit(self, positions: Mapping[TopicPartition, Position | int] | None = None, *, async_: bool = False) -> None:
        """Store the positions after the last returned records, or ``positions``.

        Raises the first error after all partitions were tried. Examples are ConfigError for a partition that is not
        assigned, LogDestroyedError for a deleted topic, and PartitionLostError for a partition of another member.
        ``async_``: return at once. The next poll stores the positions, in a group of a bucket at most once a second.
        The next commit or :meth:`close` stores them, too, or raises the error of an earlier attempt.
        """
        self._run(self.core.commit_now(positions, later=async_))

    def close(self) -> None:
        """Leave the group, without a new commit. Safe to call again, and from any thread.

        Positions of commits with ``async_`` are stored first, and their error is raised.
        """
        self.core.wake()
        with self._lock:
            if self.core.left:
                return
            try:
                self._runner.run(self.core.settle())
            finally:
                if self._stream is not None:
                    self._stream.close()
                    self._stream = None
                self._runner.run(self.core.close())


def taken(fetches: Iterable[PartitionFetch], most: int) -> list[Any]:
    """Return up to ``most`` items of these fetches, and move the positions to after them."""
    found: list[Any] = []
    for fetch in fetches:
        if fetch.ready and len(found) < most:
            found += fetch.take(most - len(found))
    return found
