"""Synchronous consumer: the methods of Kafka's consumer, iteration, batches, Arrow."""

from __future__ import annotations

import logging
import threading
from collections.abc import Generator, Iterable, Iterator, Mapping
from concurrent.futures import Future
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from tiered import arguments
from tiered.arrow.schema import COLUMNS, RecordBatches, arrow_schema
from tiered.clock import SystemClock
from tiered.consumer.assignment import Position
from tiered.consumer.steps import MAX_POLL_RECORDS, ConsumerSteps, Request
from tiered.display import names_without
from tiered.format.kernels import ConsumerRecord
from tiered.model import TopicPartition
from tiered.read.fetch import PartitionFetch
from tiered.read.stream import ReadRange, ReadRequest
from tiered.read.topic import arrow_of
from tiered.store.base import Steps
from tiered.store.driver import Runner
from tiered.store.threads import ThreadPool
from tiered.times import Time

if TYPE_CHECKING:
    pass

T = TypeVar("T")

ARROW = arrow_of(ReadRequest((), ReadRange()), COLUMNS)
"""Emitter of Arrow record batches with all columns."""

_logger = logging.getLogger("tiered.consumer")


class Consumer:
    """Consumer of a group, and a context manager. Leaving the block closes it.

    Only with ``commit_every``, and without an exception, leaving the block also commits. Use it from one thread at a
    time. Another thread may call :meth:`close`, which ends a waiting call with ClosedError.
    """

    def __init__(self, core: ConsumerSteps, runner: Runner) -> None:
        self.core = core
        self._runner = runner
        self._clock = runner.clock or SystemClock()
        self._lock = threading.RLock()
        self._stream: Generator[Any, None, object] | None = None
        self._committing: Future[None] | None = None
        self._pool: ThreadPool | None = None

    __dir__ = names_without("core")

    def __repr__(self) -> str:
        return f"<Consumer group={self.core.group!r} partitions={len(list(self.core.assigned()))}>"

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

    @property
    def skipped(self) -> int:
        """Return the number of offsets that were skipped by ``on_trimmed="jump"``."""
        return self.core.skipped

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
        request = Request(
            arguments.whole("max_records", max_records, least=1), arguments.duration_s("timeout", timeout)
        )
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
        most = arguments.whole("max_records", max_records, least=1)
        yield from self._lists(Request(most, arguments.duration_s("timeout", timeout), fill=True))

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
        """Run the consumer's loop to its next answer: fetches with records, ``[]`` after the timeout, None at the end.

        An error ends the loop, and the next call begins another one.
        """
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
        with self._lock:
            self.core.assignment.subscribe([topics] if isinstance(topics, str) else list(topics))

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read these partitions instead of the present ones. Raises UnknownTopicError if one does not exist.

        Raises ConfigError in a group whose members share the partitions.
        """
        with self._lock:
            self.core.assignment.assign(list(partitions))

    def assignment(self) -> set[TopicPartition]:
        """Return the partitions that this consumer reads now."""
        return set(self._run(self.core.positions()))

    def pause(self, *partitions: TopicPartition) -> None:
        """Return no more records of these partitions, until :meth:`resume`. Their positions stay."""
        with self._lock:
            self.core.pause(partitions, paused=True)

    def resume(self, *partitions: TopicPartition) -> None:
        """Return records of these paused partitions again."""
        with self._lock:
            self.core.pause(partitions, paused=False)

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
        ``async_``: return at once. The error of such a commit is raised by the next commit, or by :meth:`close`. A
        group of a bucket stores positions of such commits at most once a second. A later poll or commit, or
        :meth:`close`, then stores them.
        """
        with self._lock:
            self.core.check_open()
            wanted = self.core.handed_out() if positions is None else self.core.checked(positions)
            if async_ and self.core.defers(wanted, self._clock.monotonic()):
                return
            self._await_commit()
            storing = self.core.commit(self.core.with_deferred(wanted))
            if not async_:
                self._runner.run(storing)
                return
            self._pool = self._pool or ThreadPool(1, "tiered-commit")
            self.core.committing = self._committing = self._pool.submit(self._runner.run, storing)

    def _await_commit(self) -> None:
        """Wait for the running commit. Raise its error, or that of an earlier deferred commit."""
        committing, self._committing = self._committing, None
        if committing is not None:
            committing.result()
        self.core.raise_failure()

    def close(self) -> None:
        """Leave the group, without a new commit. Safe to call again, and from any thread.

        Commits with ``async_`` are completed first, and their error is raised.
        """
        self.core.wake()
        with self._lock:
            if self.core.left:
                return
            try:
                self._await_commit()
                self._runner.run(self.core.commit(self.core.with_deferred({})))
            finally:
                if self._stream is not None:
                    self._stream.close()
                    self._stream = None
                self._runner.run(self.core.close())
                if self._pool is not None:
                    self._pool.shutdown(wait=False)


def taken(fetches: Iterable[PartitionFetch], most: int) -> list[Any]:
    """Return up to ``most`` items of these fetches, and move the positions to after them."""
    found: list[Any] = []
    for fetch in fetches:
        if fetch.ready and len(found) < most:
            found += fetch.take(most - len(found))
    return found
