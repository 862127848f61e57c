"""Judgement of the batches of a segment under recovery: are they in a possible place, and does any follow damage?

Base offsets are outside the CRC. A rotted one shows by its neighbours. It is below the end of the batch before it,
beyond the segment, or after a hole where none can be. Or it is so high that the next batch goes back.

Where lengths lead nowhere, whole batches are searched: if one follows, the bytes were damaged; if none does, the end
was torn.
"""

from __future__ import annotations

from collections.abc import Iterator

from tiered.errors import CorruptionError
from tiered.format.batch import HEADER_BYTES
from tiered.format.batch_scanner import NO_LIMIT, BatchPosition, Offsets
from tiered.format.pure_kernels import Survey
from tiered.local.segment.scan import LogFile
from tiered.plan.roll import MAX_RELATIVE_OFFSET

PIECE_BYTES = 4 * 1024 * 1024
"""Bytes searched at once."""

_MAGIC_AT = 16
_MAGIC = b"\x02"


class BatchOrder:
    """Order of the batches. ``expected``: end of the good ones so far; ``damage``: (position, offset) of the first bad.

    ``dense``: every offset has a record. ``promised``: an offset at which a batch ends if any batch follows it (the
    recovery point of the segment that is appended to), -1 if none is known.
    """

    def __init__(self, offsets: Offsets, *, dense: bool, promised: int = -1) -> None:
        self.dense = dense
        self.expected = offsets.base
        self.damage: tuple[int, int] | None = None
        self._offsets = offsets
        self._promised = promised
        self._before: tuple[int, int] | None = None

    def resume(self, expected: int) -> None:
        """Begin at ``expected``: all below is known to be good."""
        self.expected = expected

    def bounds(self) -> tuple[int, int, int]:
        """Return the bounds of an ordinary run: its least first offset, the end of its offsets, and its stop."""
        limit = min(self._offsets.next, self._offsets.base + MAX_RELATIVE_OFFSET + 1)
        return self.expected, limit, self._promised if self.expected < self._promised else NO_LIMIT

    def accept(self, found: Survey, position: int) -> None:
        """Accept a run at ``position`` that is within :meth:`bounds`: all of its batches fit."""
        self._before = position + found.last_at, found.before
        self.expected = found.next

    def spoil(self, position: int) -> None:
        """Mark ``position`` as damaged, if it is the first."""
        self.damage = self.damage or (position, self.expected)

    def fits(self, span: BatchPosition, first: int) -> bool:
        """Return True if a batch is good; it then counts, and perhaps the one before it no longer does.

        ``first``: its first offset, which the span of a compressed v0/v1 message does not know.
        """
        position, _, base, last = span
        if last >= self._offsets.next or self._is_far(last) or self._is_hole(first):
            self.spoil(position)
            return False
        # mutant offsets-do-not-go-back
        if base < self.expected:
            if self._before is None or base < self._before[1]:
                self.spoil(position)
                return False
            # This batch follows the one before the last: the last one's offset is wrong.
            self.damage = self.damage or self._before
            self.expected = self._before[1]
        self._before = position, self.expected
        self.expected = last + 1
        return True

    def _is_far(self, last: int) -> bool:
        return last - self._offsets.base > MAX_RELATIVE_OFFSET

    def _is_hole(self, base: int) -> bool:
        """Return True if a batch at ``base`` leaves out offsets of a dense log. After damage no gap counts."""
        if base <= self.expected or self.damage is not None:
            return False
        # mutant hole-is-below-recovery-point
        return self.dense or self.expected < self._promised <= base


def salvage(log: LogFile, position: int, size_bytes: int, offsets: Offsets) -> Iterator[BatchPosition]:
    """Yield v2 batches from ``position`` on, at any byte, in ``offsets`` and with a right CRC; ascending.

    A batch inside the value of a record counts, too: the question is whether bytes were written here.
    """
    expected = offsets.base
    while position + HEADER_BYTES <= size_bytes:
        piece = log.read_at(position, min(PIECE_BYTES, size_bytes - position))
        at = piece.find(_MAGIC, _MAGIC_AT) - _MAGIC_AT
        while at >= 0 and at + HEADER_BYTES <= len(piece):
            span = _whole(log, position + at, size_bytes, Offsets(expected, offsets.next))
            if span is not None:
                yield span
                expected = span.last_offset + 1
                at += span.size
                if at >= len(piece):
                    break
                at -= 1
            at = piece.find(_MAGIC, at + 1 + _MAGIC_AT) - _MAGIC_AT
        else:
            at = max(len(piece) - HEADER_BYTES + 1, 1)
        position += at


def _whole(log: LogFile, position: int, size_bytes: int, offsets: Offsets) -> BatchPosition | None:
    try:
        header = log.header_at(position, size_bytes)
        if not offsets.base <= header.base_offset <= header.last_offset < offsets.next:
            return None
        if position + header.size_bytes > size_bytes:
            return None
        data = log.read_at(position, header.size_bytes)
    except CorruptionError:
        return None
    if not log.is_intact(memoryview(data)):
        return None
    return BatchPosition(position, header.size_bytes, header.base_offset, header.last_offset)
