"""The private directory beside a broker's log directory, as the engine sees it: a log directory that nobody writes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from tiered.clock import Clock, IdSource
from tiered.engine.directory import LogDirectory
from tiered.engine.disk import Extent, Granted
from tiered.engine.scanner import Look
from tiered.errors import TieredError
from tiered.model import TopicPartition
from tiered.sidecar.mirror import HELD_BYTES, Mirror


class BrokerDirectory(LogDirectory):
    """The private directory beside a broker's, for the engine. Nothing in it is ever opened for writing."""

    def __init__(
        self,
        broker: Path,
        path: Path,
        *,
        clock: Clock,
        ids: IdSource,
        compacted: Collection[str] = (),
        held_bytes: int = HELD_BYTES,
    ) -> None:
        super().__init__(path, clock=clock, ids=ids)
        self._mirror = Mirror(broker, path, self.files, compacted=compacted, held_bytes=held_bytes)

    def acquire(self) -> None:
        """As of a log directory. Raises what :meth:`Mirror.make` does, too."""
        self._mirror.make(self._ids)
        super().acquire()
        try:
            self._mirror.forget_removed()
        except BaseException:
            super().release()
            raise

    def release(self) -> None:
        """Lets another uploader in, once a look that was left in the middle has ended."""
        with self._busy:  # two would link side by side
            super().release()

    def scan(self, *, whole: bool = True) -> Look:
        """What changed, after the broker's directory was looked at."""
        del whole  # what is there follows from the broker's directory, too
        with self._busy:
            self._lock.check()  # a look makes missing directories of partitions
            self._mirror.look()
            again = [tp for tp in sorted(self._mirror.taken_back) if self._scanner.forget(tp)]
            look = super().scan()
            look.gone[:0] = again
            return look

    def unreadable(self) -> dict[TopicPartition, TieredError]:
        """Of the private directory and of the broker's."""
        return {**self._mirror.unreadable(), **super().unreadable()}

    def segments_of(self, tp: TopicPartition, bases: Sequence[int]) -> Iterable[tuple[int, int]]:
        """As of a log directory, but none reaches over a link that is gone. Raises CorruptionError."""
        return self._mirror.segments_of(tp, bases)

    def tell_owner(self, tp: TopicPartition, error: TieredError) -> None:
        """As :meth:`Mirror.tell_owner`."""
        self._mirror.tell_owner(tp, error)

    def extent(self, tp: TopicPartition, *, exact: bool) -> Extent:
        """Exact whatever is asked for: the last file is empty. What was never claimed has no records yet.

        So a new directory beside an old broker goes on where the bucket ends, whoever filled it, if one of the broker's
        segments begins there: another replica rolls at other offsets, and a claim would only fence its sidecar.
        """
        del exact
        found = super().extent(tp, exact=False)
        if self._mirror.begun(tp):
            return found
        start = self._mirror.start(tp, found.local_start_offset)
        return Extent(start, start, self._mirror.joints(tp))

    def seal(self) -> bool:
        """Nothing is ever active here: the broker rolls its own."""
        return False

    def begin(self, tp: TopicPartition, granted: Granted) -> bool:
        """What is linked is the log from here on; in a new directory, what the bucket does not hold. Never later."""
        with self._busy:
            self._mirror.begin(tp, granted.next_offset, resumes=granted.resumes, producers=granted.producers)
        return False
