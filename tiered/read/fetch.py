"""Reader of one partition for a consumer, as steps: as many records as requested, from a position on, without an end.

::

    position            end of the records that were returned to the consumer
    position to end     decoded records, then the undecoded rest of the piece from which they come
    end                 begin of the next piece; after the last piece of a read, the partition is polled for new records
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from tiered.errors import ClosedError, RemoteUnavailableError
from tiered.format.kernels import ConsumerRecord
from tiered.format.locks import Signal
from tiered.model import TopicPartition
from tiered.read.follow import Emitter, FollowedPartition, Followers
from tiered.read.stream import Cursor, Part, StepIterator, TierStream
from tiered.store.base import Steps

DECODED_RECORDS = 500
"""Records that are decoded at once."""

StreamOpener = Callable[[TopicPartition], Steps[TierStream]]
"""Steps that open a refreshed stream of one partition."""


class PartitionFetch:
    """Reader of one partition for a consumer. Not thread-safe. ``position``: the next offset to return.

    The consumer calls :meth:`drop` after an error or a cancellation. The next read then starts at ``position``.
    """

    def __init__(self, tp: TopicPartition, stream: TierStream, followed: FollowedPartition, *, isolation: str) -> None:
        self.tp = tp
        self.stream = stream
        self.position = followed.cursor.at
        self.epoch = -1
        self._followed = followed
        self._isolation = isolation
        self._begun = self._end = self.position
        self._bound: int | None = None
        self._pieces: StepIterator | None = None
        self._piece: Iterator[Any] | None = None
        self._items: list[Any] = []
        self._taken = 0
        self._woken = False
        self.gone = False

    @classmethod
    def open(cls, tp: TopicPartition, opener: StreamOpener, signal: Signal, *, isolation: str) -> Steps[PartitionFetch]:
        """Open one partition for a consumer. :meth:`seek` must then set its position.

        ``signal``: set by each append of this process. ``isolation``: "read_uncommitted" or "read_committed".
        """
        stream = yield from opener(tp)
        followed = yield from FollowedPartition.open(stream, 0, None, signalled=stream.watch(signal))
        return cls(tp, stream, followed, isolation=isolation)

    @property
    def due(self) -> float:
        """Return the monotonic second at which the next read is due, 0 if a read is in progress."""
        return 0.0 if self._pieces is not None else self._followed.due

    @property
    def reached(self) -> int:
        """Return the exclusive end offset of the items that were read, including those not returned yet."""
        return self._end

    def wake(self) -> None:
        """Make the next read due now. Do nothing for a partition that is polled because other processes write it."""
        if self._followed.signalled:
            self._followed.due, self._woken = 0.0, True

    def defer(self, until_s: float) -> None:
        """Delay the next read until the monotonic second ``until_s``."""
        self._followed.due = until_s

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
        self._followed.due, self._followed.fresh = 0.0, True

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

    def pull(self, now_s: float, emit: Emitter, followers: Followers, stop: int | None) -> Steps[bool]:
        """Read the next records below offset ``stop`` (None: no bound), which :meth:`fill` decodes.

        ``now_s``: monotonic seconds. ``emit``: makes the steps of a read. ``followers``: all reads of the log.
        Return True if records were read or another call may read some at once. Return False until the next read is due,
        which an outage of the store delays. ``gone`` is True if only the partition was closed: open it again. Raises
        OffsetOutOfRangeError, OffsetGapError, CorruptionError, and ClosedError if the log or reader was closed.
        """
        followed, found = self._followed, False
        try:
            if self._pieces is None:
                self._woken = False
                if (yield from followed.has_news(now_s)):
                    self._begun = self._end
                    followed.cursor = Cursor(self._end)
                    self._pieces = yield from self._read_on(emit, followed.cursor, stop)
                followed.succeed()
            if self._pieces is not None:
                piece = yield from self._pieces.next()
                found = piece is not StepIterator.END
                if not found or not isinstance(piece, list):  # a batch may reach beyond what was asked for
                    self._end = followed.cursor.at if self._bound is None else min(followed.cursor.at, self._bound)
                if found:
                    self._piece = iter(piece)
                else:
                    self._pieces = None
        except RemoteUnavailableError as error:
            self._drop_pieces()
            followed.fail(error)
        except ClosedError:
            self.drop()
            followers.check_open()  # raises, unless the partition alone went
            self.gone = True
        except BaseException:
            self._drop_pieces()
            raise
        if self._pieces is None and not self._woken:  # what came during the read is after the end that it was given
            yield from followed.plan_next(now_s, moved=self._end > self._begun)
        if self._piece is None and not self.ready:
            self.position = self._end  # control records and deleted ones were passed
        return found or self._woken

    def _drop_pieces(self) -> None:
        """End the read in progress. The next one begins at the offset :attr:`reached`."""
        if self._pieces is not None:
            self._pieces.close()
        self._pieces, self._followed.fresh = None, True

    def _read_on(self, emit: Emitter, cursor: Cursor, stop: int | None) -> Steps[StepIterator | None]:
        start, hidden, end = cursor.at, None, stop
        if self._isolation == "read_committed":
            stable = yield from self.stream.last_stable_offset()
            end = stable if stop is None else min(stable, stop)
            if start < end:
                hidden = yield from self.stream.hidden(start, end)
        if end is not None and start >= end:
            return None
        self._bound = end
        return StepIterator(emit(self.stream, Part(start, end, hidden), cursor))


def _offset_after(item: Any) -> int:
    """Return the offset after a record, or after the last row of an Arrow record batch."""
    return int(item.offset if isinstance(item, ConsumerRecord) else item.column("offset")[-1].as_py()) + 1
