"""The segments of one partition: the only place that keeps the list of them, and where it begins and ends.

Segments are sealed, ascending, or active: the last one, which is appended to. Components of the partition read the list
as they like and change it only here.
"""

from __future__ import annotations

from collections.abc import Sequence

from tiered.config import TopicConfig
from tiered.format.local_names import index_name, log_name, time_index_name
from tiered.local.disk.files import Files
from tiered.local.disk.names import SPARSE_NAME
from tiered.local.segment.active import ActiveSegment
from tiered.local.segment.factory import FoundSegment, SegmentFactory
from tiered.local.segment.read_view import Extent, SealedExtents
from tiered.local.segment.sealed import SealedLocalSegment


class LogSegments:
    """Segments of one partition. Changed under its lock. A single attribute may be read without the lock.

    ``sealed`` and ``active``: the segments; ``extents``: the sealed ones for views. ``closing``: the ActiveSegment
    objects of sealed segments that are not fsynced yet. ``end``: the next offset to be assigned. ``log_start``: the
    first offset that may be read. ``new_names``: files were created since the directory was last fsynced. ``config``:
    the topic's present settings. ``cuts``: how often the end was cut off; after a cut a file may hold other bytes.
    """

    __slots__ = (
        "_factory",
        "_files",
        "_opened",
        "active",
        "closing",
        "config",
        "cuts",
        "directory",
        "end",
        "extents",
        "log_start",
        "new_names",
        "sealed",
        "sparse",
        "tp",
    )

    def __init__(
        self,
        files: Files,
        factory: SegmentFactory,
        loaded: list[FoundSegment],
        *,
        start_offset: int | None,
        now_ms: int,
    ) -> None:
        self.tp = factory.tp
        self.directory = factory.directory
        self.config = factory.config
        self._files = files
        self._factory = factory
        self.sparse = files.state(self.directory / SPARSE_NAME) is not None
        self._factory.dense = not self.sparse
        *sealed, tail = loaded
        self._keep(tuple(self._factory.adopt(segment) for segment in sealed))
        self._factory.starts_inside = start_offset is not None and start_offset > loaded[0].base_offset
        self.active: ActiveSegment = self._factory.resume(tail, now_ms)
        self._factory.starts_inside = False
        self.closing: list[ActiveSegment] = []
        self.end = tail.end_offset
        self.log_start = loaded[0].base_offset if start_offset is None else start_offset
        self.new_names = True
        self.cuts = 0
        self._opened: tuple[ActiveSegment, tuple[SealedLocalSegment, ...], int] | None = None

    def _keep(self, sealed: tuple[SealedLocalSegment, ...]) -> None:
        """Set the list of sealed segments. Existing views keep the old list."""
        self.sealed: tuple[SealedLocalSegment, ...] = sealed
        self.extents = SealedExtents(map(Extent.whole, sealed))

    @property
    def first_base(self) -> int:
        """Return the base of the first segment on this disk."""
        sealed, active = self.sealed, self.active
        return sealed[0].base_offset if sealed else active.base_offset

    @property
    def local_start(self) -> int:
        """Return the first offset on this disk that may be read."""
        sealed = self.sealed
        return max((sealed[0] if sealed else self.active).base_offset, self.log_start)

    @property
    def all(self) -> tuple[SealedLocalSegment | ActiveSegment, ...]:
        """Return all segments, ascending, the active one last."""
        return (*self.sealed, self.active)

    @property
    def empty(self) -> bool:
        """Return True if no segment holds a batch."""
        return not (self.sealed or self.active.size_bytes)

    def configure(self, config: TopicConfig) -> None:
        """Apply changed settings. Settings of index files apply from the next segment on."""
        self.config = self._factory.config = config
        self.active.configure(config)

    @property
    def dense(self) -> bool:
        """Return True if every offset has a record, so that a missing offset is damage."""
        return not (self.config.compacted or self.sparse)

    def mark_sparse(self) -> None:
        """Mark the log, durably, as one in which offsets may be missing.

        Call it before a follower's append, a cut inside a batch or a cleaner leaves out the first offset.
        """
        if not self.sparse:
            self._files.replace(self.directory / SPARSE_NAME, b"")
            self.sparse = True
            self._factory.dense = False

    def seal_active(self, base_offset: int, now_ms: int) -> ActiveSegment:
        """Seal the active segment. Create a new one at ``base_offset``, at or above the end. Return the old one."""
        if base_offset > self.end:
            self.mark_sparse()
        old = self.active
        old.seal()
        self.active = self._factory.create(base_offset, now_ms)
        self.closing.append(old)
        self.new_names = True
        sealed = self._factory.sealed(old, base_offset)
        self.sealed = (*self.sealed, sealed)
        self.extents = self.extents.with_last(Extent.whole(sealed))
        self.end = base_offset
        return old

    def replace_empty(self, base_offset: int, now_ms: int) -> bool:
        """Replace an empty active segment by one at ``base_offset``. Return True if the log start moved."""
        if base_offset > self.end and self.sealed:
            self.mark_sparse()
            self.sealed[-1].end_offset = base_offset  # as after a reopen: else what follows the gap is never reached
            self._keep(self.sealed)
        old = self.active
        old.close()
        self._factory.remove(old.base_offset)
        self.active = self._factory.create(base_offset, now_ms)
        self.new_names = True
        self.end = base_offset
        moves = not self.sealed and self.log_start >= old.base_offset  # below that a bucket holds records
        if moves:
            self.log_start = max(self.log_start, base_offset)
        return moves

    def drop_first(self, count: int) -> None:
        """Remove the first ``count`` sealed segments from the list. The caller deletes their files."""
        self._keep(self.sealed[count:])

    def keep_first(self, count: int) -> None:
        """Remove all but the first ``count`` sealed segments from the list. The caller deletes their files."""
        self.cuts += 1
        self._keep(self.sealed[:count])

    def resume(self, found: FoundSegment, now_ms: int) -> None:
        """Make ``found``, the last segment after a cut, the active segment."""
        self.active = self._factory.resume(found, now_ms)

    def start_again(self, base_offset: int, now_ms: int) -> None:
        """Create an empty active segment. The files of the one before are deleted already."""
        self.active = self._factory.create(base_offset, now_ms)

    def remove_files(self, base_offset: int) -> None:
        """Unlink the files of an empty segment."""
        self._factory.remove(base_offset)

    def exchange(self, present: Sequence[SealedLocalSegment], new: Sequence[FoundSegment]) -> None:
        """Replace the neighbours ``present`` by ``new`` in the list. The files are renamed already."""
        at = self.sealed.index(present[0])
        fresh = tuple(self._factory.adopt(found) for found in new)
        self._keep((*self.sealed[:at], *fresh, *self.sealed[at + len(present) :]))

    def close_closing(self) -> None:
        """Close the files of segments that were sealed and not fsynced yet; they stay in the list."""
        for segment in self.closing:
            segment.close()

    def note_opened(self) -> None:
        """Remember the state after a clean open, for :meth:`as_opened`."""
        self._opened = (self.active, self.sealed, self.end)

    def as_opened(self) -> bool:
        """Return True if nothing changed since a clean open, and the files are as a clean close leaves them."""
        active, base = self.active, self.active.base_offset
        if self._opened is None or self.closing:
            return False
        before, sealed, end = self._opened
        if before is not active or sealed is not self.sealed or end != self.end:
            return False
        active.indexes.close_times(active.max_timestamp, active.max_timestamp_offset)
        sizes = {
            log_name(base): active.size_bytes,
            index_name(base): len(active.indexes.offset_bytes()),
            time_index_name(base): len(active.indexes.time_bytes()),
        }
        states = {name: self._files.state(self.directory / name) for name in sizes}
        return all(state is not None and state.size == sizes[name] for name, state in states.items())
