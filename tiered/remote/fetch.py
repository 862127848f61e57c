"""One read of a segment object, as steps: the request, and the checks of its answer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tiered.errors import CorruptionError
from tiered.model import Row, TopicPartition
from tiered.plan.read import ByteRange, RequestSizes, SegmentRange
from tiered.remote.cache import ByteCache
from tiered.store.base import Get, Missing, Object, Steps


class SegmentGone(Exception):
    """Missing object that the pinned root names. The reader handles it by looking at a newer root."""

    def __init__(self, key: str, row: Row) -> None:
        super().__init__(key)
        self.key = key
        self.row = row


@dataclass(frozen=True, slots=True)
class Fetch:
    """Bytes ``range`` of a segment's ``.log``.

    ``chunk_bytes``: chunk size of the first read at a new place, which reads and caches the whole aligned chunk. The
    sequential reads after it (0) bypass the cache, so that a scan never evicts it.
    """

    segment: SegmentRange
    key: str
    range: ByteRange
    chunk_bytes: int = 0

    @property
    def size_bytes(self) -> int:
        """Return the number of bytes."""
        return self.range.size_bytes

    def steps(self, tp: TopicPartition, cache: ByteCache) -> Steps[memoryview]:
        """Return the bytes, from the cache or by one GET. Raises SegmentGone, CorruptionError for a short object."""
        start, end = self.range.start, self.range.end
        if not self.chunk_bytes:
            return self.received(tp, (yield self.request()))
        chunk_start = start - start % self.chunk_bytes
        held = cache.get((self.key, chunk_start))
        if held is None:
            row = self.segment.row
            chunk_end = min(max(chunk_start + self.chunk_bytes, end), row.size)
            held = yield from read_range(tp, self.key, row, chunk_start, chunk_end)
            cache.put((self.key, chunk_start), held)
        return memoryview(held)[start - chunk_start : end - chunk_start]

    def request(self) -> Get:
        """Return the GET of a sequential read."""
        return Get(self.key, self.range.start, self.range.end, lend=True)

    def received(self, tp: TopicPartition, found: object) -> memoryview:
        """Return the bytes in the answer to :meth:`request`. Raises as :meth:`steps`."""
        row = self.segment.row
        return memoryview(_checked(tp, self.request(), row, found, row.size).body)


def fetches(
    segment: SegmentRange, key: str, wanted: ByteRange, sizes: RequestSizes, *, seek: bool = True
) -> Iterator[Fetch]:
    """Yield the reads of ``wanted`` in order. ``sizes`` keeps growing from segment to segment."""
    position = wanted.start
    while position < wanted.end:
        piece = sizes.next_request(position, wanted.end)
        yield Fetch(segment, key, piece, sizes.chunk_bytes if seek else 0)
        position, seek = piece.end, False


def read_range(tp: TopicPartition, key: str, row: Row, start: int, end: int) -> Steps[bytes]:
    """Return exactly the bytes ``start`` to ``end`` of the ``.log`` of ``row``. Raises SegmentGone, CorruptionError."""
    wanted = Get(key, start, end)
    return _checked(tp, wanted, row, (yield wanted), row.size).data


def read_bundle(tp: TopicPartition, key: str, row: Row, start: int, end: int) -> Steps[bytes]:
    """Return exactly the bytes ``start`` to ``end`` of the index bundle of ``row``. Raises as :func:`read_range`."""
    wanted = Get(key, start, end)
    return _checked(tp, wanted, row, (yield wanted), row.idx_len).data


def _checked(tp: TopicPartition, wanted: Get, row: Row, found: object, size: int) -> Object:
    """Return the answer. Raises unless it has all wanted bytes of an object of ``size`` bytes."""
    key, start, end = wanted.key, wanted.start, wanted.end or 0
    if isinstance(found, Missing):
        raise SegmentGone(key, row)
    if not isinstance(found, Object):
        raise TypeError(f"a GET gave {found!r}")
    if len(found.body) != end - start or found.size != size:
        raise CorruptionError(
            f"{tp}: {key} gave {len(found.body)} of the bytes {start} to {end}; the object has {found.size} bytes, the "
            f"catalog says {size}",
            path_or_key=key,
            position=start + len(found.body),
            offset=row.base,
            hint="the object is not the one that was committed: run check",
        )
    return found
