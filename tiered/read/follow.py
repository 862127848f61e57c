"""Reads that continue with each new record, as steps: ``read(follow=True)``.

::

    each partition:  poll its end ──> emit new records ──> wait
      written here      after the signal of an append
      of another log    every 0.05 to 1 s, by two ``stat`` calls (``plan.pacing``)
      in a bucket       every 0.5 to 10 s, by a conditional GET of the root
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from tiered.errors import ClosedError, RemoteUnavailableError
from tiered.format.locks import Signal
from tiered.plan.pacing import PollInterval, backoff_bound_seconds
from tiered.read.stream import Cursor, Part, ReadRequest, TierStream
from tiered.store.base import Now, Steps, Time, Wait

DISK_S = (0.05, 1.0)
"""Least and largest interval, in seconds, between polls of a log directory that another process writes."""
BUCKET_S = (0.5, 10.0)
"""Least and largest interval, in seconds, between polls of a root."""
DISK_FULL_S = 10.0
"""Seconds between two reads of a partition on disk whose ``stamp`` is unchanged.

A preallocated file may keep its size and time after an append.
"""
COUNT_S = 60.0
"""Seconds between two checks for new partitions of a topic, which cost a request to the bucket."""
COUNT_HERE_S = 1.0
"""Seconds between two checks for new partitions in a log that is open for writing, which cost no request."""
LONGEST_WAIT_S = 60.0
"""Seconds of one wait, at most."""

_logger = logging.getLogger("tiered.read")

Emitter = Callable[[TierStream, Part, Cursor | None], Steps[None]]
"""Steps that emit one part of a partition, as records or as Arrow."""


class Opener(Protocol):
    """Steps that open and refresh the stream of one partition, and add it to ``opened``, for its release."""

    def __call__(self, partition: int, opened: list[TierStream]) -> Steps[TierStream]: ...


class PartitionCounter(NamedTuple):
    """Source of a topic's number of partitions. ``number``: steps that return it. ``interval_s``: seconds between two
    calls.
    """

    number: Callable[[], Steps[int]]
    interval_s: float


class Followers:
    """Registry of the reads that follow one log or reader. Closing it wakes them, and they end. Thread-safe."""

    def __init__(self) -> None:
        self.closed = False
        self._signals: list[Signal] = []

    @contextmanager
    def signal(self) -> Iterator[Signal]:
        """Return a context manager that registers and yields a signal for one read."""
        signal = Signal()
        self._signals.append(signal)
        try:
            yield signal
        finally:
            self._signals.remove(signal)

    def close(self) -> None:
        """Wake all reads. Each then raises ClosedError."""
        self.closed = True
        for signal in tuple(self._signals):
            signal.set()

    def check_open(self) -> None:
        """Raise ClosedError after :meth:`close`."""
        if self.closed:
            raise ClosedError("the read ended: its log or reader was closed", hint="open it again")


@dataclass(slots=True)
class FollowedPartition:
    """Polling state of one partition of a read that follows.

    ``signalled``: appends set the read's signal, so that no polling is needed. ``stop``: the offset before which the
    read ends; None: never. ``fresh``: nothing was read since the stream was opened. Monotonic seconds of the next poll:
    ``due`` of any kind, ``refresh_due`` of the bucket, ``full_due`` of the disk even if its ``stamp`` is unchanged.
    """

    stream: TierStream
    cursor: Cursor
    stop: int | None
    disk: PollInterval
    bucket: PollInterval
    due: float
    signalled: bool
    refresh_due: float = 0.0
    full_due: float = 0.0
    stamp: object = None
    fresh: bool = True
    failures: int = 0

    @classmethod
    def open(cls, stream: TierStream, start: int, stop: int | None, *, signalled: bool) -> Steps[FollowedPartition]:
        """Return the state for following ``stream`` from offset ``start`` to ``stop`` (exclusive; None: no end).

        ``signalled``: appends set the read's signal, so that no polling is needed.
        """
        now_s = yield from monotonic_s()
        intervals = PollInterval(now_s, *DISK_S), PollInterval(now_s, *BUCKET_S)
        return cls(stream, Cursor(start), stop, *intervals, now_s, signalled)

    @property
    def ended(self) -> bool:
        return self.stop is not None and self.cursor.at >= self.stop

    def is_due(self, now_s: float, *, signalled: bool) -> bool:
        """Return True if the next poll is due. ``signalled``: an append has set the signal."""
        return self.due <= now_s or (self.signalled and signalled)

    def has_news(self, now_s: float) -> Steps[bool]:
        """Run the polls that are due. Return True if there may be new records, and False only if there are none.

        True: appends set a signal, the disk's ``stamp`` changed or is too old, or the root was read again.
        """
        if self.signalled:
            return True
        looked = self.fresh
        if self.stream.in_bucket and now_s >= self.refresh_due:
            if not self.fresh:
                yield from self.stream.refresh()
            looked, self.refresh_due = True, 0.0
        if self.stream.on_disk:
            stamp = yield from self.stream.stamp()
            if stamp != self.stamp or now_s >= self.full_due:
                looked, self.stamp, self.full_due = True, stamp, now_s + DISK_FULL_S
        return looked

    def succeed(self) -> None:
        """Note that all new records were read, and reset the count of failed polls."""
        self.fresh, self.failures = False, 0

    def fail(self, error: RemoteUnavailableError) -> None:
        """Count a failed poll, and log the first failure of an outage."""
        self.failures += 1
        if self.failures == 1:
            _logger.warning("%s cannot be read now, retrying: %s", self.stream.tp, error)

    def plan_next(self, now_s: float, *, moved: bool) -> Steps[None]:
        """Set the time of the next poll. ``moved``: the last poll found new records."""
        if self.signalled and not self.failures:
            self.due = now_s + LONGEST_WAIT_S  # an interrupt may have come between an append and its signal
            return
        now_s = yield from monotonic_s()
        if moved:
            self.disk.changed(now_s)
            self.bucket.changed(now_s)
        if self.failures:
            self.due = self.refresh_due = now_s + backoff_bound_seconds(self.failures)
        else:
            self.due = now_s + self.disk.interval_s(now_s) if self.stream.on_disk else math.inf
            if self.stream.in_bucket:
                self.refresh_due = self.refresh_due or now_s + self.bucket.interval_s(now_s)
                self.due = min(self.due, self.refresh_due)


@dataclass(frozen=True, slots=True)
class Following:
    """Read with ``follow=True``. ``counter``: source of the number of partitions; None: added ones are not read.

    ``starts``: first offsets by partition, in place of the start in ``wanted``. ``open`` opens a partition's stream,
    ``emit`` emits its records. ``before_wait`` is called before each wait.
    """

    topic: str
    wanted: ReadRequest
    counter: PartitionCounter | None
    open: Opener
    emit: Emitter
    followers: Followers
    starts: Mapping[int, int] = field(default_factory=dict)
    before_wait: Callable[[], None] | None = None

    def steps(self, opened: list[TierStream]) -> Steps[None]:
        """Emit records until the caller stops, the range ends, or no record comes for ``idle_s``.

        Each stream is added to ``opened``; the caller releases them at the end.
        """
        with self.followers.signal() as signal:
            rows: dict[int, FollowedPartition] = {}
            try:
                yield from self._rounds(rows, opened, signal)
            finally:
                for row in rows.values():
                    row.stream.unwatch(signal)

    def _rounds(self, rows: dict[int, FollowedPartition], opened: list[TierStream], signal: Signal) -> Steps[None]:
        for partition in self.wanted.partitions:
            rows[partition] = yield from self._start(partition, opened, signal, is_new=False)
        now_s = last_s = yield from monotonic_s()
        count_s = math.inf if self.counter is None else now_s + self.counter.interval_s
        while not all(row.ended for row in rows.values()):
            signalled, moved = signal.is_set(), False
            signal.clear()  # before the ends are read: an append from here on ends the next wait
            self.followers.check_open()
            for partition, row in rows.items():
                if not row.ended and row.is_due(now_s, signalled=signalled):
                    moved |= yield from self._turn(partition, row, now_s, opened, signal)
            if self.counter is not None and now_s >= count_s:
                moved |= yield from self._add_new(self.counter, rows, opened, signal)
                count_s = now_s + self.counter.interval_s
            now_s = yield from monotonic_s()
            if moved:
                last_s = now_s
            elif self.wanted.idle_s is not None and now_s - last_s >= self.wanted.idle_s:
                return
            else:
                idle_end_s = math.inf if self.wanted.idle_s is None else last_s + self.wanted.idle_s
                next_s = min(count_s, idle_end_s, *(row.due for row in rows.values() if not row.ended))
                if self.before_wait is not None:
                    self.before_wait()
                yield Wait(signal, min(max(next_s - now_s, 0.0), LONGEST_WAIT_S))
                now_s = yield from monotonic_s()

    def _start(
        self, partition: int, opened: list[TierStream], signal: Signal, *, is_new: bool
    ) -> Steps[FollowedPartition]:
        """Open one partition. ``is_new``: it was added to the topic during the read, so it is read from its start."""
        stream = yield from self.open(partition, opened)
        signalled = stream.watch(signal)
        wanted = self.wanted.span
        if partition in self.starts:
            start = self.starts[partition]
        elif is_new:
            start = yield from stream.earliest()
        elif wanted.since_ms is not None:
            found = yield from stream.offset_for_time(wanted.since_ms)
            start = (yield from stream.latest()) if found is None else found[0]
        else:
            start = yield from stream.offset("earliest" if wanted.start is None else wanted.start)
        stop = None if wanted.end is None else (yield from stream.offset(wanted.end))
        return (yield from FollowedPartition.open(stream, start, stop, signalled=signalled))

    def _add_new(
        self, counter: PartitionCounter, rows: dict[int, FollowedPartition], opened: list[TierStream], signal: Signal
    ) -> Steps[bool]:
        """Begin to read the partitions that were added. Return True if there are any.

        ``rows``: the state of each partition that is read, to extend. ``opened``: gets the new streams.
        """
        try:
            count = yield from counter.number()
            new = [partition for partition in range(count) if partition not in rows]
            for partition in new:
                rows[partition] = yield from self._start(partition, opened, signal, is_new=True)
        except RemoteUnavailableError as error:
            _logger.warning("new partitions of %s cannot be looked for now: %s", self.topic, error)
            return False
        return bool(new)

    def _turn(
        self, partition: int, row: FollowedPartition, now_s: float, opened: list[TierStream], signal: Signal
    ) -> Steps[bool]:
        """Emit the new records of one partition, and set the time of its next poll. Return True if there were any.

        ``row``: the partition's state. A stream whose partition was moved is opened again, and added to ``opened``.
        """
        before = row.cursor.at
        try:
            if (yield from row.has_news(now_s)):
                yield from self._emit_new(row)
            row.succeed()
        except RemoteUnavailableError as error:
            row.fail(error)
        except ClosedError:
            self.followers.check_open()  # raises, unless the partition alone went: to another directory of this log
            yield from row.stream.release()
            row.stream = yield from self.open(partition, opened)
            row.signalled = row.stream.watch(signal)
        moved = row.cursor.at > before
        yield from row.plan_next(now_s, moved=moved)
        return moved

    def _emit_new(self, row: FollowedPartition) -> Steps[None]:
        start = row.cursor.at
        if self.wanted.isolation != "read_committed":
            yield from self.emit(row.stream, Part(start, row.stop, None), row.cursor)
            return
        end = yield from row.stream.last_stable_offset()
        end = end if row.stop is None else min(end, row.stop)
        if start < end:
            hidden = yield from row.stream.hidden(start, end)
            yield from self.emit(row.stream, Part(start, end, hidden), row.cursor)


def monotonic_s() -> Steps[float]:
    """Return the driver's monotonic clock, in seconds."""
    time: Time = yield Now()
    return time.monotonic
