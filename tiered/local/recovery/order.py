"""Whether the batches of a segment that is being recovered stand where they can: pure, one decision a batch.

Base offsets are outside the CRC. One that rotted shows by its neighbours: it lies below the end of the batch before it,
beyond the segment, behind a hole where none can be, or so high that the batch behind it goes back.
"""

from __future__ import annotations

from tiered.format.walk import Offsets, Span
from tiered.plan.roll import MAX_RELATIVE_OFFSET


class BatchOrder:
    """``expected``: the end of the good batches so far. ``damage``: (position, offset) where the first bad one stands.

    ``dense``: every offset has a record. ``promised``: an offset at which a batch ends if any batch lies behind it (the
    recovery point of the segment that is appended to), -1 if none is known.
    """

    def __init__(self, offsets: Offsets, *, dense: bool, promised: int = -1) -> None:
        self.expected = offsets.base
        self.damage: tuple[int, int] | None = None
        self._offsets = offsets
        self._dense = dense
        self._promised = promised
        self._before: tuple[int, int] | None = None

    def resume(self, expected: int) -> None:
        """All below ``expected`` is known to be good."""
        self.expected = expected

    def spoil(self, position: int) -> None:
        """What stands at ``position`` is no good batch."""
        self.damage = self.damage or (position, self.expected)

    def fits(self, span: Span, first: int) -> bool:
        """Whether a batch is good; it then counts, and perhaps the one before it no longer does.

        ``first``: its first offset, which the span of a compressed v0/v1 message does not know.
        """
        position, _, base, last = span
        if last >= self._offsets.next or self._is_far(last) or self._is_hole(first):
            self.spoil(position)
            return False
        if base < self.expected:
            if self._before is None or base < self._before[1]:
                self.spoil(position)
                return False
            # It follows the batch before the last one: the last one said too much.
            self.damage = self.damage or self._before
            self.expected = self._before[1]
        self._before = position, self.expected
        self.expected = last + 1
        return True

    def overflows(self, span: Span, first: int) -> bool:
        """Whether it may be good but for its distance from the base of the segment, as old brokers left some."""
        last = span.last_offset
        return self._is_far(last) and last < self._offsets.next and not self._is_hole(first)

    def _is_far(self, last: int) -> bool:
        return last - self._offsets.base > MAX_RELATIVE_OFFSET

    def _is_hole(self, base: int) -> bool:
        """Offsets are left out where they cannot be; behind damage they can."""
        if base <= self.expected or self.damage is not None:
            return False
        return self._dense or self.expected < self._promised <= base
