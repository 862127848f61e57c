"""One read of a segment object, as steps: what to ask for, and what the answer must be."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tiered.errors import CorruptionError
from tiered.model import Row, TopicPartition
from tiered.plan.read import ByteRange, RequestSizes, SegmentRange
from tiered.remote.cache import ByteCache
from tiered.store.base import Get, Missing, Object, Steps


class SegmentGone(Exception):
    """An object that the pinned root names does not exist (any more). Settled inside the reader by a newer root."""

    def __init__(self, key: str, row: Row) -> None:
        super().__init__(key)
        self.key = key
        self.row = row


@dataclass(frozen=True, slots=True)
class Fetch:
    """Bytes ``range`` of the ``.log`` of a segment.

    ``chunk_bytes``: of the first read at a new place. It brings the whole aligned chunk and keeps it in the cache; the
    sequential reads behind it (0) pass the cache by, so that a scan never empties it.
    """

    segment: SegmentRange
    key: str
    range: ByteRange
    chunk_bytes: int = 0

    @property
    def size_bytes(self) -> int:
        """How much it brings to its consumer."""
        return self.range.size_bytes

    def steps(self, tp: TopicPartition, cache: ByteCache) -> Steps[memoryview]:
        """The bytes, from the cache or by one GET. Raises SegmentGone, CorruptionError if the object is too short."""
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
        """The GET of a sequential read."""
        return Get(self.key, self.range.start, self.range.end, lend=True)

    def received(self, tp: TopicPartition, found: object) -> memoryview:
        """What the answer of :meth:`request` holds. Raises as :meth:`steps`."""
        row = self.segment.row
        return memoryview(_checked(tp, self.request(), row, found, row.size).body)


def fetches(
    segment: SegmentRange, key: str, wanted: ByteRange, sizes: RequestSizes, *, seek: bool = True
) -> Iterator[Fetch]:
    """The reads that bring ``wanted`` of a segment, in order; ``sizes`` goes on growing from segment to segment."""
    position = wanted.start
    while position < wanted.end:
        piece = sizes.take(position, wanted.end)
        yield Fetch(segment, key, piece, sizes.chunk_bytes if seek else 0)
        position, seek = piece.end, False


def read_range(tp: TopicPartition, key: str, row: Row, start: int, end: int) -> Steps[bytes]:
    """Exactly the bytes ``start`` to ``end`` of the ``.log`` of ``row``. Raises SegmentGone, CorruptionError."""
    wanted = Get(key, start, end)
    return _checked(tp, wanted, row, (yield wanted), row.size).data


def read_bundle(tp: TopicPartition, key: str, row: Row, start: int, end: int) -> Steps[bytes]:
    """Exactly the bytes ``start`` to ``end`` of the index bundle of segment ``row``. Raises as :func:`read_range`."""
    wanted = Get(key, start, end)
    return _checked(tp, wanted, row, (yield wanted), row.idx_len).data


def _checked(tp: TopicPartition, wanted: Get, row: Row, found: object, size: int) -> Object:
    """The answer that holds the bytes that were asked for, of an object of ``size`` bytes."""
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
