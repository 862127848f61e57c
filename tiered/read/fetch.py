"""Reader of one partition that follows it, as steps: as many items as requested, from a position on, without an end.

::

    position            end of the items that were returned to the caller
    position to end     decoded items, then the undecoded rest of the piece from which they come
    end                 begin of the next piece; after the last piece of a read, the partition is polled for new records

    each partition:  poll its end ──> read the new records ──> wait
      written here      after the signal of an append
      of another log    every 0.05 to 1 s, by two ``stat`` calls (``plan.pacing``)
      in a bucket       every 0.5 to 10 s, by a conditional GET of the root
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain, islice
from typing import Any, NamedTuple

from tiered.errors import ClosedError, RemoteUnavailableError
from tiered.format.kernels import ConsumerRecord
from tiered.format.locks import Signal
from tiered.plan.pacing import PollInterval, backoff_bound_seconds
from tiered.read.stream import Cursor, Part, StepIterator, TierStream
from tiered.store.base import Now, Steps, Time

DECODED_RECORDS = 500
"""Records that are decoded at once."""
DISK_S = (0.05, 1.0)
"""Least and largest interval, in seconds, between polls of a log directory that another process writes."""
BUCKET_S = (0.5, 10.0)
"""Least and largest interval, in seconds, between polls of a root."""
DISK_FULL_S = 10.0
"""Seconds between two reads of a partition on disk whose ``stamp`` is unchanged.

A preallocated file may keep its size and time after an append.
"""
LONGEST_WAIT_S = 60.0
"""Seconds of one wait, at most."""

_logger = logging.getLogger("tiered.read")


class Emitter(NamedTuple):
    """Steps that emit one part of a partition. ``buffers``: the cursor passes items before they are emitted."""

    steps: Callable[[TierStream, Part, Cursor | None], Steps[None]]
    buffers: bool


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


class PartitionFetch:
    """Reader of one partition that follows it. Not thread-safe. ``position``: the next offset to return.

    ``stop``: the offset before which reads end, None for no end. ``due``: monotonic second of the next read. ``gone``:
    only the partition was closed, open it again. A consumer calls :meth:`drop` after an error or a cancellation. The
    next read then starts at ``position``.
    """

    def __init__(self, stream: TierStream, now_s: float, *, signalled: bool, isolation: str) -> None:
        """Make a reader at offset 0. ``signalled``: appends set a signal, so that no polling is needed."""
        self.tp, self.stream = stream.tp, stream
        self.position = 0
        self.epoch = -1
        self.stop: int | None = None
        self.due = now_s
        self.gone = False
        self._signalled, self._isolation = signalled, isolation
        self._disk, self._bucket = PollInterval(now_s, *DISK_S), PollInterval(now_s, *BUCKET_S)
        self._refresh_due_s = self._full_due_s = 0.0
        self._stamp: object = None
        self._fresh, self._failures = True, 0
        self._cursor = Cursor(0)
        self._begun = self._end = 0
        self._bound: int | None = None
        self._pieces: StepIterator | None = None
        self._piece: Iterator[Any] | None = None
        self._items: list[Any] = []
        self._taken = 0
        self._woken = False

    @classmethod
    def open(cls, stream: TierStream, signal: Signal, *, isolation: str) -> Steps[PartitionFetch]:
        """Return a reader of a refreshed stream. :meth:`seek` must then set its position.

        ``signal``: set by each append of this process. ``isolation``: "read_uncommitted" or "read_committed".
        """
        now_s = yield from monotonic_s()
        return cls(stream, now_s, signalled=stream.watch(signal), isolation=isolation)

    @property
    def reached(self) -> int:
        """Return the exclusive end offset of the items that were read, including those not returned yet."""
        return self._end

    @property
    def ended(self) -> bool:
        return self.stop is not None and self._end >= self.stop

    def wake(self) -> None:
        """Make the next read due now. Do nothing for a partition that is polled because other processes write it."""
        if self._signalled:
            self.due, self._woken = 0.0, True

    @property
    def ready(self) -> int:
        """Return the number of decoded items that were not returned yet."""
        return len(self._items) - self._taken

    def seek(self, offset: int, epoch: int = -1) -> None:
        """Set the position: the next read begins at ``offset``. ``epoch``: leader epoch of the record before it, -1 if
        unknown.
        """
        self.position, self.epoch = offset, epoch
        self.drop()

    def drop(self) -> None:
        """Drop the items that were read but not returned. The next read begins at the position."""
        if self._pieces is not None:
            self._pieces.close()
        self._pieces = self._piece = None
        self._items, self._taken = [], 0
        self._end = self.position
        self.due, self._fresh = 0.0, True

    def next_item(self) -> Any:
        """Return the next decoded item, and move the position after it. Raises IndexError if none is ready."""
        item = self._items[self._taken]
        self._taken += 1
        self.position = self._end if self._taken == len(self._items) and self._piece is None else _offset_after(item)
        if isinstance(item, ConsumerRecord):
            self.epoch = item.leader_epoch
        return item

    def take(self, most: int) -> list[Any]:
        """Return 1 to ``most`` decoded items, and move the position after them. Raises IndexError if none is ready."""
        items = self._items[self._taken : self._taken + min(most, self.ready) - 1]
        self._taken += len(items)
        return [*items, self.next_item()]

    def take_piece(self) -> Iterable[Any]:
        """Return all items of the last :meth:`pull`, and move the position after them.

        Records are decoded while the caller iterates.
        """
        piece, self._piece = self._piece or iter(()), None
        first = next(piece, None)
        items: Iterable[Any] = () if first is None else chain((first,), piece)
        if first is not None and not isinstance(first, ConsumerRecord):
            items = list(items)
            self._end = _offset_after(items[-1])
        self.position = self._end
        return items

    def fill(self, most: int) -> None:
        """Decode items that :meth:`pull` has read, until ``most`` are ready or none is left.

        An error, such as CorruptionError, is raised after all items that are ready were dropped.
        """
        while self._piece is not None and self.ready < most:
            try:
                found = list(islice(self._piece, DECODED_RECORDS))
            except BaseException:
                self.drop()
                raise
            self._items = self._items[self._taken :] + found
            self._taken = 0
            if found and not isinstance(found[-1], ConsumerRecord):
                self._end = _offset_after(found[-1])  # Arrow rows come later than the place of their read
            if len(found) < DECODED_RECORDS:
                self._piece = None

    def pull(self, now_s: float, emit: Emitter, followers: Followers) -> Steps[bool]:
        """Read the next records, which :meth:`fill` decodes.

        Return True if records were read or another call may read some at once. Return False until the next read is due,
        which an outage of the store delays. Raises OffsetOutOfRangeError, OffsetGapError, CorruptionError, and
        ClosedError if the log or reader was closed.
        """
        found = False
        try:
            if self._pieces is None:
                self._woken = False
                if (yield from self._has_news(now_s)):
                    self._begun, self._cursor = self._end, Cursor(self._end)
                    self._pieces = yield from self._read_on(emit, self._cursor)
            if self._pieces is not None:
                self.due = 0.0
                piece = yield from self._pieces.next()
                found = piece is not StepIterator.END
                if not (found and emit.buffers):  # a batch may reach beyond what was asked for
                    self._end = self._cursor.at if self._bound is None else min(self._cursor.at, self._bound)
                if found:
                    self._piece = iter(piece)
                else:
                    self._pieces = None
            if self._pieces is None:
                self._fresh, self._failures = False, 0
        except RemoteUnavailableError as error:
            self._drop_pieces()
            self._failures += 1
            if self._failures == 1:
                _logger.warning("%s cannot be read now, retrying: %s", self.tp, error)
        except ClosedError:
            self.drop()
            followers.check_open()  # raises, unless the partition alone went
            self.gone = True
        except BaseException:
            self._drop_pieces()
            raise
        if self._pieces is None and not self._woken:  # what came during the read is after the end that it was given
            yield from self._plan_next(now_s, moved=self._end > self._begun)
        if self._piece is None and not self.ready:
            self.position = self._end  # control records and deleted ones were passed
        return found or self._woken

    def _has_news(self, now_s: float) -> Steps[bool]:
        """Run the polls that are due. Return True if there may be new records, and False only if there are none.

        True: appends set a signal, the disk's ``stamp`` changed or is too old, or the root was read again.
        """
        if self._signalled:
            return True
        looked = self._fresh
        if self.stream.in_bucket and now_s >= self._refresh_due_s:
            if not self._fresh:
                yield from self.stream.refresh()
            looked, self._refresh_due_s = True, 0.0
        if self.stream.on_disk:
            stamp = yield from self.stream.stamp()
            if stamp != self._stamp or now_s >= self._full_due_s:
                looked, self._stamp, self._full_due_s = True, stamp, now_s + DISK_FULL_S
        return looked

    def _plan_next(self, now_s: float, *, moved: bool) -> Steps[None]:
        """Set the time of the next poll. ``moved``: the last read found new records."""
        if self._signalled and not self._failures:
            self.due = now_s + LONGEST_WAIT_S  # an interrupt may have come between an append and its signal
            return
        now_s = yield from monotonic_s()
        if moved:
            self._disk.changed(now_s)
            self._bucket.changed(now_s)
        if self._failures:
            self.due = self._refresh_due_s = now_s + backoff_bound_seconds(self._failures)
            return
        self.due = now_s + self._disk.interval_s(now_s) if self.stream.on_disk else math.inf
        if self.stream.in_bucket:
            self._refresh_due_s = self._refresh_due_s or now_s + self._bucket.interval_s(now_s)
            self.due = min(self.due, self._refresh_due_s)

    def _drop_pieces(self) -> None:
        """End the read in progress. The next one begins at the offset :attr:`reached`."""
        if self._pieces is not None:
            self._pieces.close()
        self._pieces, self._fresh = None, True

    def _read_on(self, emit: Emitter, cursor: Cursor) -> Steps[StepIterator | None]:
        start, hidden, end = cursor.at, None, self.stop
        if self._isolation == "read_committed":
            stable = yield from self.stream.last_stable_offset()
            end = stable if end is None else min(stable, end)
            if start < end:
                hidden = yield from self.stream.hidden(start, end)
        if end is not None and start >= end:
            return None
        self._bound = end
        return StepIterator(emit.steps(self.stream, Part(start, end, hidden), cursor))


def _offset_after(item: Any) -> int:
    """Return the offset after a record, or after the last row of an Arrow record batch."""
    return int(item.offset if isinstance(item, ConsumerRecord) else item.column("offset")[-1].as_py()) + 1


def monotonic_s() -> Steps[float]:
    """Return the driver's monotonic clock, in seconds."""
    time: Time = yield Now()
    return time.monotonic
