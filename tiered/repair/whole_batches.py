"""Whole batches of a damaged ``.log``, and the lost offsets between them.

::

    lengths lead from batch to batch, each CRC holds ── offsets and leader epochs rotted: both are outside the CRC
    otherwise                                        ── whole batches are searched at every byte
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tiered.errors import CorruptionError
from tiered.format.batch_scanner import BatchPosition, Offsets
from tiered.local.recovery.segment_recovery import salvage
from tiered.local.segment.scan import LogFile

Ranges = tuple[tuple[int, int], ...]
"""Ranges of offsets that are lost."""


def whole_batches(
    log: LogFile, offsets: Offsets, epoch_at: Callable[[int], int], *, dense: bool, sealed: int
) -> tuple[tuple[BatchPosition, ...], Ranges]:
    """Return the whole batches of a ``.log`` in a range of offsets, and the ranges that are lost.

    ``epoch_at``: leader epoch of an offset, -1 if it is not known. ``dense``: each offset had a record.
    ``sealed``: size of the ``.log`` when it was whole, -1 if it is not known.
    """
    size = log.size()
    found = _intact(log, size)
    if not found:
        found = list(salvage(log, 0, size, offsets))
    elif dense:
        found = _in_their_place(found, offsets)
    spans, lost, at, position = list[BatchPosition](), list[tuple[int, int]](), offsets.base, 0
    for span in found:
        epoch = epoch_at(span.base_offset)
        if not at <= span.base_offset <= span.last_offset < offsets.next:
            continue
        if epoch >= 0 and log.header_at(span.position, size).leader_epoch != epoch:
            continue
        if span.base_offset > at and (dense or span.position > position):
            lost.append((at, span.base_offset))
        spans.append(span)
        at, position = span.last_offset + 1, span.position + span.size
    if at < offsets.next and (dense or position < size or sealed > size):
        lost.append((at, offsets.next))
    return tuple(spans), tuple(lost)


def _intact(log: LogFile, size: int) -> list[BatchPosition]:
    """Return all batches if each has its CRC and they fill the file."""
    spans: list[BatchPosition] = []
    try:
        for span, view in log.batches(0, size):
            if not log.is_intact(view):
                return []
            spans.append(span)
    except CorruptionError:
        return []
    return spans if spans and spans[-1].position + spans[-1].size == size else []


def _in_their_place(spans: Sequence[BatchPosition], offsets: Offsets) -> list[BatchPosition]:
    """Return the batches that follow each other from the start, or up to the end.

    A batch whose base offset rotted is between both.
    """
    first, at, after = 0, offsets.base, offsets.next
    while first < len(spans) and spans[first].base_offset == at:
        at, first = spans[first].last_offset + 1, first + 1
    last = len(spans)
    while last > first and spans[last - 1].last_offset + 1 == after and spans[last - 1].base_offset >= at:
        after, last = spans[last - 1].base_offset, last - 1
    return [*spans[:first], *spans[last:]]
