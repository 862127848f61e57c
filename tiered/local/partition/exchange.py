"""A cleaner's segments take the place of those that they were made from."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Sequence

from tiered.errors import ConfigError, TieredError
from tiered.local.partition.condition import EXCHANGE
from tiered.local.partition.flusher import Flusher
from tiered.local.partition.surroundings import Shared
from tiered.local.segment.factory import FoundSegment
from tiered.local.segment.replacement import remove_copy, swap_in
from tiered.local.segment.seal import SEAL_SUFFIX
from tiered.local.segment.sealed import SealedLocalSegment

LOGGER = logging.getLogger("tiered.local")


class Exchange:
    """Replaces sealed segments while the log is read and appended to. Takes the partition's lock."""

    __slots__ = ("_condition", "_files", "_flusher", "_lock", "_segments", "_trash")

    def __init__(self, shared: Shared, *, flusher: Flusher) -> None:
        self._files = shared.around.files
        self._lock = shared.lock
        self._condition = shared.condition
        self._segments = shared.segments
        self._flusher = flusher
        self._trash = shared.trash

    @property
    def settled(self) -> tuple[SealedLocalSegment, ...]:
        """Sealed segments that are durable and that no fsync is at work on: their files may get other names."""
        segments = self._segments
        with self._lock:
            bound = min([segment.base_offset for segment in segments.closing], default=segments.end)
            return tuple(segment for segment in self._flusher.durable_segments if segment.base_offset < bound)

    def holds(self, segment: SealedLocalSegment) -> bool:
        """Whether this very segment, not another one of its base, is still a part of the log."""
        return segment in self._segments.sealed

    def replace_segments(
        self, new: Sequence[FoundSegment], old: Sequence[int], *, witness: SealedLocalSegment | None = None
    ) -> bool:
        """Finished copies (``replacement.SegmentCopy``) take the place of the sealed segments ``old``, crash-safe.

        ``old`` are bases, one after the other; those that retention took meanwhile are passed over. If it took all, or
        if ``witness``, the last segment that the cleaner looked at, was cut or left, nothing is replaced, and False is
        returned. ConfigError if ``old`` are not sealed neighbours.
        """
        segments, directory = self._segments, self._segments.directory
        with self._lock:
            self._condition.check_writable()
            sealed = segments.sealed
            if witness is not None and witness not in sealed:
                return False
            present = [segment for segment in sealed if segment.base_offset in set(old)]
            if not present or not new:
                for found in new:
                    remove_copy(self._files, directory, found.base_offset)
                return False
            at = sealed.index(present[0])
            if sealed[at : at + len(present)] != tuple(present) or present[-1].base_offset != max(old):
                raise ConfigError(
                    f"{segments.tp}: segments {list(old)} are not sealed neighbours: they cannot be replaced"
                )
            end = present[-1].end_offset
            for segment in present:
                _ = segment.lookup  # reads that go on over the old file need its own indexes
            new = sorted(new, key=lambda found: found.base_offset)
            for found, following in itertools.pairwise(new):
                found.end_offset = following.base_offset
            new[-1].end_offset = end
            self._condition.under_way = EXCHANGE
            try:
                segments.mark_sparse()
                bases = [found.base_offset for found in new]
                for segment in present:
                    self._files.unlink(segment.path.with_suffix(SEAL_SUFFIX))
                renamed = swap_in(self._files, directory, bases, [s.base_offset for s in present])
                self._trash.put(renamed)
            except TieredError as error:
                self._condition.break_off(error)
                raise
            for segment in present:
                segment.moved_to_deleted()
            segments.exchange(present, new)
            self._condition.under_way = None
        LOGGER.info("segments_replaced partition=%s old=%s new=%s", segments.tp, list(old), bases)
        return True
