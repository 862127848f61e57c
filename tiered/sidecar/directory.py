"""Private directory of a sidecar: links to a broker's files, which the engine uploads like a log directory."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from tiered.clock import Clock, IdSource
from tiered.engine.disk import Granted, LogDirectory, LogExtent
from tiered.engine.scanner import Look
from tiered.errors import TieredError
from tiered.model import TopicPartition
from tiered.sidecar.mirror import HELD_BYTES, Mirror


class BrokerDirectory(LogDirectory):
    """Private directory ``path`` of a sidecar, with links to the files of ``broker``. It is never opened as a log.

    ``compacted``: topics that are uploaded although the broker compacts them. ``held_bytes``: limit of linked bytes
    that are not uploaded.
    """

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
        """Create the directory if it is missing, lock it, and remove the state of partitions without links.

        Raises LockedError if another uploader has it, NotFoundError if ``broker`` is no broker's directory. Raises
        ConfigError if ``path`` is on another file system, inside ``broker``, or in use for another log or broker.
        """
        self._mirror.make(self._ids)
        super().acquire()
        try:
            self._mirror.forget_removed()
        except BaseException:
            super().release()
            raise

    def release(self) -> None:
        """Release the lock, after a running scan has ended."""
        with self._busy:  # two uploaders would link side by side
            super().release()

    def scan(self, *, whole: bool = True) -> Look:
        """Update the links from the broker's directory, and return the changes since the last scan.

        ``whole`` has no effect: each scan reads all partitions. Raises LocalIOError if ``path`` is gone or replaced.
        """
        del whole  # the result depends on the broker's directory, too
        with self._busy:
            self._lock.check()  # a look makes missing directories of partitions
            self._mirror.scan()
            again = [tp for tp in sorted(self._mirror.taken_back) if self._scanner.forget(tp)]
            look = super().scan()
            look.gone[:0] = again
            return look

    def unreadable(self) -> dict[TopicPartition, TieredError]:
        """Return the error of each partition that could not be read, in the private directory or in the broker's."""
        return {**self._mirror.broken, **super().unreadable()}

    def segments_of(self, tp: TopicPartition, bases: Sequence[int]) -> Iterable[tuple[int, int]]:
        """Return (base, end) of each existing link. A link ends where the next one begins, even if that is missing.

        ``bases``: bases of the ``.log`` files in the private directory. Raises CorruptionError if the list of links is
        damaged.
        """
        return self._mirror.folder(tp).there(bases)

    def add_owner_hint(self, tp: TopicPartition, error: TieredError) -> None:
        self._mirror.add_owner_hint(tp, error)

    def extent(self, tp: TopicPartition, *, exact: bool) -> LogExtent:
        """Return the start and the end of the links, both exact, so that ``exact`` has no effect.

        A partition that was never claimed counts as empty. ``joints`` of the result has the starts of the broker's
        segments: a new directory continues at the bucket's end only if a segment begins there. Another replica has
        other segments and gets no claim, which would only fence the replica's sidecar.
        """
        del exact
        found = super().extent(tp, exact=False)
        folder = self._mirror.folder(tp)
        if folder.begun:
            return found
        start = folder.start(found.local_start_offset)
        return LogExtent(start, start, self._mirror.joints(tp))

    def seal(self) -> bool:
        """Return False without an action: the broker rolls its own segments."""
        return False

    def start_log(self, tp: TopicPartition, granted: Granted) -> bool:
        """Prepare the links for uploads under a granted claim. Always return False: the links are ready."""
        with self._busy:
            self._mirror.folder(tp).start_log(granted.next_offset, resumes=granted.resumes, producers=granted.producers)
        return False
