"""Steps from batch to batch, the only implementation for all sources of bytes (a buffer, a file, a feed of ranges).

The CRC of a batch leaves out its first 21 bytes. Order reveals damage there: offsets never go back inside a segment
and never leave its range, and the batches of a segment end where the segment does. A walk with the :class:`Offsets` of
its segment checks every batch against them. A walk without them accepts what a crash may have left.

First bytes of a batch that the walk reads (big-endian; v0, v1 and v2 agree up to ``magic``)::

    0        8        12       16      17      21           23                 27
    | base   | length | epoch  | magic | crc   | attributes | last offset delta |
    | int64  | int32  | int32  | int8  | u32   | int16      | int32             |
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

from tiered.errors import CorruptionError
from tiered.format import kernels
from tiered.format.header import HEADER_BYTES, LOG_OVERHEAD_BYTES, BatchHeader, Buffer, read_header
from tiered.format.kernel_values import Survey
from tiered.format.segment_indexes import IndexPace

MAX_IGNORED_TAIL_BYTES = 17
"""A tail of at most this many bytes ends a walk silently: it is too short for a batch."""

MIN_BATCH_LENGTH = 14
"""Kafka's smallest length field; it detects zeros after a crash."""

NO_LIMIT = 2**63 - 1
"""Value above every offset and every size: the unknown end of a range."""

_PREFIX = struct.Struct(">qiib")
_LENGTH = struct.Struct(">8xi")
_LAST_OFFSET_DELTA = struct.Struct(">i")
_PLACE = struct.Struct(">qi4xb6xi")  # base, length, magic, last offset delta of a v2 batch
_PLACE_BYTES = _PLACE.size
_MIN_V2_LENGTH = HEADER_BYTES - LOG_OVERHEAD_BYTES


class Offsets(NamedTuple):
    """Offsets that a segment may hold: from its base (in its name) to the base of the next one (exclusive)."""

    base: int
    next: int


class BatchPosition(NamedTuple):
    """One batch in a log: its position and the offsets it covers (``last_offset`` inclusive)."""

    position: int
    size: int
    base_offset: int
    last_offset: int


class BatchRun(NamedTuple):
    """Consecutive verified v2 batches: offsets ``base_offset`` to ``next_offset`` (exclusive).

    ``total``: CRC-32C of all bytes from the start of the scan to the end of this run; -1 if not requested.
    """

    data: memoryview
    base_offset: int
    next_offset: int
    total: int = -1


class Damage(Protocol):
    """Function that returns the error for damage at byte ``position``, and names the file or the object.

    ``what``: description of the damage. ``offset``: offset of the record or batch there, -1 if unknown.
    """

    def __call__(self, position: int, what: str, offset: int = -1, /) -> CorruptionError: ...


class BatchWalk:
    """Walk over consecutive batches, from view to view of their bytes.

    ``damage``: maker of the errors. ``position``: byte at which the next batch begins. ``expected``: the lowest offset
    that the next batch may have. The caller passes a view that begins at ``position``, consumes its whole batches, and
    passes the next view.

    ``offsets``: allowed offsets of the segment; None: any order. ``dense``: no offset may be missing, from the first
    batch on if the walk begins at byte 0 (v2 batches only: older ones do not store their first offset). ``most_bytes``:
    a larger declared batch is damage.
    """

    __slots__ = ("_damage", "_dense", "_exact", "_limit", "_most_length", "_ordered", "expected", "position")

    def __init__(
        self,
        damage: Damage,
        *,
        position: int = 0,
        offsets: Offsets | None = None,
        dense: bool = False,
        most_bytes: int = NO_LIMIT,
    ) -> None:
        self.position = position
        self.expected = -1 if offsets is None else offsets.base
        self._limit = NO_LIMIT if offsets is None else offsets.next
        self._ordered = offsets is not None
        self._dense = dense
        self._exact = self.expected if dense and position == 0 else -1
        self._most_length = most_bytes - LOG_OVERHEAD_BYTES
        self._damage = damage

    def whole(self, view: memoryview) -> Iterator[tuple[BatchPosition, memoryview]]:
        """Yield each whole batch of a view that begins at ``position``, by declared length. CRCs are not checked.

        Stops silently at a partial batch. Raises the error of ``damage`` where no batch can begin, for a batch out of
        order, and for missing offsets if the walk is ``dense``.
        """
        unpack, new, limit, most_length = _PLACE.unpack_from, tuple.__new__, self._limit, self._most_length
        at, filled, start, expected, exact = 0, len(view), self.position, self.expected, self._exact
        while filled - at > MAX_IGNORED_TAIL_BYTES:
            base, length, magic, delta = unpack(view, at) if filled - at >= _PLACE_BYTES else (-1, 0, 0, 0)
            if magic == 2 and _MIN_V2_LENGTH <= length <= most_length and base >= 0 <= delta:
                size, last = LOG_OVERHEAD_BYTES + length, base + delta
                if size > filled - at:
                    return
                missing = base > exact >= 0
            else:
                size = self.size_at(view, at)
                if size > filled - at:
                    return
                base, last = self._odd_range(view[at : at + size])
                missing = False
            if self._ordered:
                if base < expected or last >= limit:
                    raise self._misplaced(base, last)
                if missing:
                    raise self._damage(self.position, f"offsets {exact} to {base} are missing", exact)
                self.expected = expected = last + 1
                if self._dense:
                    self._exact = exact = expected
            self.position = start + at + size
            yield new(BatchPosition, (start + at, size, base, last)), view[at : at + size]
            at += size

    def verified(
        self, view: memoryview, stop: int, *, most_bytes: int = NO_LIMIT, latest: int = NO_LIMIT, total: int = -1
    ) -> BatchRun | None:
        """Return the longest run of valid batches, CRCs included, at the start of a view that begins at ``position``.

        None: the caller passes the view to :meth:`whole`, and verifies the first batch itself. The batch is partial,
        damaged, out of order, of an old format, or larger than ``most_bytes``. Or it has a timestamp above ``latest``
        (in milliseconds), or begins at or above offset ``stop``.
        The run ends with the batch that reaches ``stop``. ``total``: CRC-32C of the bytes before the view, which
        the run's ``total`` continues; -1: compute none. Only for a walk with offsets.
        """
        most_bytes = min(most_bytes, self._most_length + LOG_OVERHEAD_BYTES)
        used, first, after, total = kernels.scan(
            view, self.expected, self._limit, self._exact, self._dense, most_bytes, stop, latest, total
        )
        if not used:
            return None
        self.position += used
        self.expected = after
        if self._dense:
            self._exact = after
        return BatchRun(view[:used], first, after, total)

    def survey(
        self,
        view: memoryview,
        order: tuple[int, int, int],
        pace: IndexPace,
        indexed: tuple[int, int],
        *,
        dense: bool = False,
        newest_epoch: int = NO_LIMIT,
    ) -> Survey | None:
        """Verify the valid v2 batches at the start of ``view``, which begins at ``position``. Return their Survey.

        Recovery rebuilds the indexes from it. Only for a walk without ``offsets``. ``order``: lowest allowed offset,
        exclusive end of all offsets, offset at which to stop. ``pace``: rule for index entries; its state is updated.
        ``indexed``: base offset of the segment and timestamp of the last entry in its time index. ``dense``: no offset
        may be missing. The run ends before a batch with a leader epoch above ``newest_epoch``. None: the first batch
        is not valid here; pass the view to :meth:`whole`.
        """
        base, timed = indexed
        state = base, self.position, pace.interval_bytes, pace.since, *pace.largest, timed
        found = kernels.survey(view, order, dense, newest_epoch, state)
        if found is not None:
            self.position += found.used
            pace.since, pace.largest = found.since, found.largest
        return found

    def can_verify_from(self, offset: int) -> bool:
        """Return True if all later batches begin at or after ``offset``, so that :meth:`verified` can check many at
        once.

        False also in a ``dense`` walk that began after byte 0 and has read no batch yet.
        """
        return self.expected >= offset and (not self._dense or self._exact >= 0)

    def size_at(self, view: memoryview, at: int = 0) -> int:
        """Return the declared size of the batch at byte ``at`` of ``view``, header included.

        ``view`` must have ``MAX_IGNORED_TAIL_BYTES`` bytes or more from there. Raises the error of ``damage`` if no
        batch can begin there.
        """
        base, length, _, magic = _PREFIX.unpack_from(view, at)
        if not MIN_BATCH_LENGTH <= length <= self._most_length or base < 0 or not 0 <= magic <= 2:
            what = f"no batch starts here (offset {base}, length {length}, magic {magic})"
            raise self._damage(self.position, what, base)
        if magic == 2 and length < _MIN_V2_LENGTH:
            raise self._damage(self.position, f"a batch of {length} bytes is shorter than its header", base)
        return LOG_OVERHEAD_BYTES + int(length)

    def finish(self, end: int, *, reach: int = -1) -> None:
        """End the walk, and check the end if the walk has offsets.

        Raises the error of ``damage`` unless the batches end at position ``end``, and their exclusive end offset is at
        least ``reach`` (-1: any).
        """
        if not self._ordered:
            return
        if self.position != end:
            left = f"no whole batch starts here, {end - self.position} bytes are left of {end}"
            raise self._damage(self.position, left, self.expected)
        if self.expected < reach:
            what = f"the file ends here, and offsets {self.expected} to {reach} are missing"
            raise self._damage(self.position, what, self.expected)

    def _odd_range(self, batch: memoryview) -> tuple[int, int]:
        """Return the first and last offset of a whole v0 or v1 batch."""
        base, _, _, magic = _PREFIX.unpack_from(batch)
        if magic == 2:
            delta = _LAST_OFFSET_DELTA.unpack_from(batch, 23)[0]
            raise self._damage(self.position, f"the last offset delta is {delta}", base)
        try:
            header = read_header(batch)
        except CorruptionError as error:
            raise self._damage(self.position, error.message) from None
        return header.base_offset, header.last_offset

    def _misplaced(self, base: int, last: int) -> CorruptionError:
        what = f"a batch of offsets {base} to {last} stands where {self.expected} to {self._limit - 1} are expected"
        return self._damage(self.position, what, max(self.expected, 0))


def walk_headers(buf: Buffer, position: int = 0) -> Iterator[tuple[int, BatchHeader]]:
    """Yield position and header of each whole batch of a buffer from ``position`` on, by declared lengths.

    Stops silently at a tail that is too short for the batch it announces. Raises ``CorruptionError`` where no batch can
    begin, such as in zero padding.
    """
    view = memoryview(buf)
    for span, batch in BatchWalk(corrupt_at, position=position).whole(view[position:]):
        yield span.position, read_header(batch)


def first_of(run: memoryview) -> tuple[BatchHeader, memoryview]:
    """Return header and bytes of the first batch in ``run``, consecutive verified batches (``BatchRun.data``)."""
    header = read_header(run)
    return header, run[: header.size_bytes]


def cut(run: memoryview) -> Iterator[memoryview]:
    """Yield the bytes of each batch in ``run``, consecutive verified batches (``BatchRun.data``)."""
    at, unpack = 0, _LENGTH.unpack_from
    while at < len(run):
        behind = at + LOG_OVERHEAD_BYTES + unpack(run, at)[0]
        yield run[at:behind]
        at = behind


def hop(header_at: Callable[[int], BatchHeader], position: int, end: int) -> Iterator[tuple[int, BatchHeader]]:
    """Yield position and header of each batch from byte ``position`` (a batch's start) to ``end`` (exclusive). Bodies
    are not read.

    ``header_at`` returns the header of the batch at a byte position, and raises where no batch begins.
    """
    while position < end:
        header = header_at(position)
        yield position, header
        position += header.size_bytes


def corrupt_at(position: int, what: str, offset: int = -1) -> CorruptionError:
    """Return the error for damage ``what`` at ``position`` of a nameless buffer. The caller adds the file or key."""
    return CorruptionError(what, position=position, offset=offset)
