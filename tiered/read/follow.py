"""Reads of a topic that continue with each new record, as steps: ``read(follow=True)``. ``fetch`` has one partition."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from tiered.errors import RemoteUnavailableError
from tiered.format.locks import Signal
from tiered.read.fetch import LONGEST_WAIT_S, Emitter, Followers, PartitionFetch, monotonic_s
from tiered.read.stream import ReadRequest, TierStream
from tiered.store.base import Emit, Steps, Wait

COUNT_S = 60.0
"""Seconds between two checks for new partitions of a topic, which cost a request to the bucket."""
COUNT_HERE_S = 1.0
"""Seconds between two checks for new partitions in a log that is open for writing, which cost no request."""

_logger = logging.getLogger("tiered.read")


Opener = Callable[[int, list[TierStream]], Steps[TierStream]]
"""Steps that open and refresh the stream of one partition, and add it to the list, for its release."""


class PartitionCounter(NamedTuple):
    """Steps that return a topic's number of partitions. ``interval_s``: seconds between two calls."""

    number: Callable[[], Steps[int]]
    interval_s: float


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
            rows: dict[int, PartitionFetch] = {}
            try:
                yield from self._rounds(rows, opened, signal)
            finally:
                for row in rows.values():
                    row.stream.unwatch(signal)

    def _rounds(self, rows: dict[int, PartitionFetch], opened: list[TierStream], signal: Signal) -> Steps[None]:
        for partition in self.wanted.partitions:
            rows[partition] = yield from self._start(partition, opened, signal, is_new=False)
        now_s = last_s = yield from monotonic_s()
        count_s = math.inf if self.counter is None else now_s + self.counter.interval_s
        while live := [partition for partition, row in rows.items() if not row.ended]:
            if signal.is_set():
                signal.clear()  # before the ends are read: an append from here on ends the next wait
                for row in rows.values():
                    row.wake()
            self.followers.check_open()
            moved = False
            for partition in live:
                before = rows[partition].reached
                if rows[partition].due <= now_s:
                    yield from self._read_new(rows[partition], now_s)
                if rows[partition].gone:  # to another directory of this log
                    rows[partition] = yield from self._open_again(partition, rows[partition], opened, signal)
                moved |= rows[partition].reached > before
            if self.counter is not None and now_s >= count_s:
                moved |= yield from self._add_new(self.counter, rows, opened, signal)
                count_s = now_s + self.counter.interval_s
            now_s = yield from monotonic_s()
            if moved:
                last_s = now_s
                continue
            idle_end_s = math.inf if self.wanted.idle_s is None else last_s + self.wanted.idle_s
            if now_s >= idle_end_s:
                return
            next_s = min(count_s, idle_end_s, *(rows[partition].due for partition in live))
            if self.before_wait is not None:
                self.before_wait()
            yield Wait(signal, min(max(next_s - now_s, 0.0), LONGEST_WAIT_S))
            now_s = yield from monotonic_s()

    def _read_new(self, row: PartitionFetch, now_s: float) -> Steps[None]:
        more = True
        while more:
            more = yield from row.pull(now_s, self.emit, self.followers)
            yield Emit(row.take_piece())

    def _open_again(
        self, partition: int, row: PartitionFetch, opened: list[TierStream], signal: Signal
    ) -> Steps[PartitionFetch]:
        yield from row.stream.release()
        stream = yield from self.open(partition, opened)
        found = yield from PartitionFetch.open(stream, signal, isolation=self.wanted.isolation)
        found.seek(row.position)
        found.stop = row.stop
        return found

    def _start(
        self, partition: int, opened: list[TierStream], signal: Signal, *, is_new: bool
    ) -> Steps[PartitionFetch]:
        """Open one partition. ``is_new``: it was added to the topic during the read, so it is read from its start."""
        stream = yield from self.open(partition, opened)
        row = yield from PartitionFetch.open(stream, signal, isolation=self.wanted.isolation)
        wanted = self.wanted.span
        if partition in self.starts:
            row.seek(self.starts[partition])
        elif is_new:
            row.seek((yield from stream.earliest()))
        else:
            start = "earliest" if wanted.start is None else wanted.start
            row.seek((yield from stream.first_offset(start, wanted.since_ms)))
        row.stop = None if wanted.end is None else (yield from stream.offset(wanted.end))
        return row

    def _add_new(
        self, counter: PartitionCounter, rows: dict[int, PartitionFetch], opened: list[TierStream], signal: Signal
    ) -> Steps[bool]:
        """Begin to read the partitions that were added. Return True if there are any."""
        try:
            new = [partition for partition in range((yield from counter.number())) if partition not in rows]
            for partition in new:
                rows[partition] = yield from self._start(partition, opened, signal, is_new=True)
        except RemoteUnavailableError as error:
            _logger.warning("new partitions of %s cannot be looked for now: %s", self.topic, error)
            return False
        return bool(new)
