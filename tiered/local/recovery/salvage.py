"""Whole batches in bytes where lengths lead nowhere: does anything follow the damage, or was the end torn?"""

from __future__ import annotations

from collections.abc import Iterator

from tiered.errors import CorruptionError
from tiered.format.batch import HEADER_BYTES
from tiered.format.walk import Offsets, Span
from tiered.local.segment.scan import LogFile

PIECE_BYTES = 4 * 1024 * 1024
"""Bytes looked through at once."""

_MAGIC_AT = 16
_MAGIC = b"\x02"


def salvage(log: LogFile, position: int, size_bytes: int, offsets: Offsets) -> Iterator[Span]:
    """v2 batches from ``position`` on, wherever they begin, that lie in ``offsets`` and whose CRC is right; ascending.

    A batch that lies in the value of a record is taken for one, too: what is asked is whether bytes were written here.
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


def _whole(log: LogFile, position: int, size_bytes: int, offsets: Offsets) -> Span | None:
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
    return Span(position, header.size_bytes, header.base_offset, header.last_offset)
