"""Which condition a partition is in, and what it refuses in each: closed, offline, fenced, behind its bucket."""

from __future__ import annotations

import logging
from collections.abc import Callable

from tiered.errors import ClosedError, FencedError, LocalIOError, ReentrantCallError, TieredError
from tiered.local.disk.uploads import PartitionUpload
from tiered.model import TopicPartition

LOGGER = logging.getLogger("tiered.local")

APPEND = "an append"
ROLL = "an append that began a segment"
CUT = "a cut of the log"
EXCHANGE = "an exchange of segments"
"""Changes that :attr:`Condition.under_way` names."""


class Condition:
    """Changed under the partition's lock. ``failed`` is told what takes the partition offline.

    ``upload`` is what the uploader told last, None while the log is not tiered. ``ending``: close has begun, what
    changes the log is refused, what makes it durable goes on. ``halfway``: a cut or an exchange failed midway, the
    files are not what the segments say. ``offline``: a write or an fsync failed, nothing is acknowledged.

    ``under_way`` names the change that is being made, None between changes. It is set before the first effect and
    cleared after the last one, so whoever finds it set, with the lock in hand, follows a change that an exception ended
    midway (:meth:`settle`). ``resume_at``: where the log ended before the append that is under way. ``mend`` cuts it
    back to there.
    """

    __slots__ = (
        "_failed",
        "_tp",
        "closed",
        "ending",
        "halfway",
        "mend",
        "offline",
        "resume_at",
        "under_way",
        "upload",
    )

    def __init__(
        self, tp: TopicPartition, *, upload: PartitionUpload | None, failed: Callable[[TieredError], None]
    ) -> None:
        self.upload = upload
        self.offline: TieredError | None = None
        self.halfway = False
        self.ending = False
        self.closed = False
        self.under_way: str | None = None
        self.resume_at = 0
        self.mend: Callable[[int], None] = _nothing
        self._tp = tp
        self._failed = failed

    @property
    def at_work(self) -> bool:
        """Neither closed nor offline."""
        return self.offline is None and not self.closed

    @property
    def fenced(self) -> bool:
        """Whether another volume owns the partition."""
        return self.upload is not None and self.upload.fenced

    def check_open(self) -> None:
        """ClosedError once it was closed. The lock is held."""
        if self.closed:
            raise ClosedError(f"{self._tp} was closed before")
        self.settle()

    def settle(self) -> None:
        """Cuts an append back that ended midway; takes the partition offline after any other change. The lock is held.

        An exception in here leaves ``under_way`` set: the next call begins again.
        """
        what = self.under_way
        if what is None or self.offline is not None:
            return
        if what != APPEND:
            self.break_off(LocalIOError(f"{self._tp}: {what} was interrupted"))
            return
        try:
            self.mend(self.resume_at)
        except ReentrantCallError:
            raise
        except TieredError as error:
            self.break_off(error)
            return
        self.under_way = None
        LOGGER.warning("append_cut_back partition=%s offset=%d reason=interrupted", self._tp, self.resume_at)

    def check_readable(self) -> None:
        """As :meth:`check_open`; LocalIOError where the files are not what the segments say."""
        self.check_open()
        if self.halfway and self.offline is not None:
            raise self.offline_error(self.offline)

    def check_writable(self, *, fenced_too: bool = True) -> None:
        """ClosedError, LocalIOError (offline) or FencedError. ``fenced_too`` False: what a fenced partition may do.

        The lock is held.
        """
        if self.closed or (self.ending and fenced_too):
            raise ClosedError(f"{self._tp} was closed before")
        if self.under_way is not None:
            self.settle()
        if self.offline is not None:
            raise self.offline_error(self.offline)
        if fenced_too and self.upload is not None and self.upload.fenced:
            raise FencedError(
                f"{self._tp}: another volume owns this partition now; appends are refused, nothing here is deleted",
                hint="`tiered repair rejoin` moves what only this disk holds aside and starts again",
            )

    def check_continues(self, end: int) -> None:
        """Refuses to give out offsets that the bucket has given to other records: the end below its end is the mark.

        So ends a log that was cut on purpose, or whose tail was lost; it lasts over restarts, until a rejoin.
        """
        if self.upload is not None and end < self.upload.end_offset:
            raise FencedError(
                f"{self._tp} ends at offset {end} on this disk, and the bucket holds all below"
                f" {self.upload.end_offset}: appends would give other records the same offsets",
                hint=f"`tiered repair rejoin {self._tp.topic}:{self._tp.partition}` sets this disk's files aside and"
                " goes on where the bucket ends",
            )

    def tell_upload(self, upload: PartitionUpload) -> None:
        """What the bucket holds; a committed end never goes back."""
        known = self.upload
        if known is not None and upload.end_offset < known.end_offset:
            upload = PartitionUpload(known.end_offset, upload.claim_epoch, upload.fenced, upload.start_offset)
        self.upload = upload

    def go_offline(self, error: TieredError) -> None:
        """The disk failed under this partition; the directory is told, once."""
        if self.offline is None:
            self.offline = error
            LOGGER.error("partition_offline partition=%s error=%s", self._tp, error)
            self._failed(error)

    def go_offline_with_directory(self, error: TieredError) -> None:
        """The disk failed elsewhere in the directory: nothing is acknowledged here any more, either."""
        self.offline = self.offline or error

    def break_off(self, error: TieredError) -> None:
        """A cut or an exchange failed midway."""
        self.halfway = True
        self.go_offline(error)

    def offline_error(self, error: TieredError) -> LocalIOError:
        """What is answered because of ``error``."""
        return LocalIOError(
            f"{self._tp} is offline: {error.message}",
            hint="what was not flushed may be lost: repair the disk, then open the log again",
        )


def _nothing(end: int) -> None:
    """Cuts nothing back: the partition is not open yet."""
