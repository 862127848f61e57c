"""Gzip as Kafka reads and writes it: consecutive RFC 1952 members.

::

     0  1F 8B 08      magic, deflate
     3  FLG           0 text, 1 header CRC, 2 extra field, 3 name, 4 comment; 5-7 are ignored
     4  6 bytes       time, level, system
    10  what the flags add, deflated data, CRC-32 u32, size u32 (little-endian)

Java's ``GZIPInputStream`` is the model: after a member it reads the next one, and ends at bytes that are no header
of another member. zlib gets the deflated data alone, as it refuses more headers than Java does.
"""

from __future__ import annotations

import struct
import zlib

from tiered.format.decompression import Buffer, damaged, too_large

_WBITS = 31  # zlib's way to say: gzip header and trailer
_RAW_WBITS = -15
_MAGIC = b"\x1f\x8b\x08"
_HEADER_BYTES = 10
_HEADER_CRC, _EXTRA, _NAME, _COMMENT = 0x02, 0x04, 0x08, 0x10
_TRAILER = struct.Struct("<II")
_MIN_MEMBER_BYTES = 19
"""Shortest rest in which Java looks for another member."""

_STEP_BYTES = 64 * 1024
"""Compressed bytes given to zlib at once: it copies what it has not used at every call."""

_PIECE_BYTES = 1024 * 1024
"""Decompressed bytes taken at once, so that a bomb is found before more than its limit is in memory."""


def compress(data: Buffer, level: int) -> bytes:
    """Return one member without name and time."""
    stream = zlib.compressobj(level, zlib.DEFLATED, _WBITS)
    return stream.compress(data) + stream.flush()


def decompress(data: Buffer, max_bytes: int) -> bytes:
    """Return the data of all members. Raises ``CorruptionError``."""
    raw = bytes(data)
    if len(raw) <= _STEP_BYTES:
        whole = _one_member(raw, max_bytes)
        if whole is not None:
            return whole
    out: list[bytes] = []
    size = 0
    start = _body(raw, 0)
    if start is None:
        raise damaged("gzip", "no member begins here")
    while start is not None:
        position, size = _read_member(raw, start, out, size, max_bytes)
        start = _body(raw, position) if len(raw) - position >= _MIN_MEMBER_BYTES else None
    return out[0] if len(out) == 1 else b"".join(out)


def _one_member(raw: bytes, max_bytes: int) -> bytes | None:
    """Return the data of a batch that is exactly one good member (the common case); None for anything else."""
    stream = zlib.decompressobj(_WBITS)
    try:
        piece = stream.decompress(raw, max_bytes + 1)
    except zlib.error:
        return None
    return piece if stream.eof and not stream.unused_data and len(piece) <= max_bytes else None


def _body(raw: bytes, at: int) -> int | None:
    """Return the start of the deflated data of the member at ``at``; None if no member begins there."""
    if not raw.startswith(_MAGIC, at) or len(raw) < at + _HEADER_BYTES:
        return None
    flags = raw[at + 3]
    position = at + _HEADER_BYTES
    if flags & _EXTRA:
        position += 2 + int.from_bytes(raw[position : position + 2], "little")
    for text in (_NAME, _COMMENT):
        if flags & text:
            end = raw.find(b"\0", position)
            if end < 0:
                return None
            position = end + 1
    if flags & _HEADER_CRC:
        if zlib.crc32(raw[at:position]) & 0xFFFF != int.from_bytes(raw[position : position + 2], "little"):
            return None
        position += 2
    return position if position <= len(raw) else None


def _read_member(raw: bytes, position: int, out: list[bytes], before: int, max_bytes: int) -> tuple[int, int]:
    """Append the data of one member to ``out``; return (position after the member, size of all data so far)."""
    stream = zlib.decompressobj(_RAW_WBITS)
    view = memoryview(raw)
    crc, size = 0, before
    ended = False
    while not ended:
        given = view[position : position + _STEP_BYTES]
        try:
            piece = stream.decompress(given, _PIECE_BYTES)
        except zlib.error as e:
            raise damaged("gzip", e, position) from None
        ended = stream.eof
        used = len(given) - len(stream.unused_data if ended else stream.unconsumed_tail)
        if not (ended or used or piece):
            raise damaged("gzip", "it ends early", len(raw))
        position += used
        size += len(piece)
        if size > max_bytes:
            raise too_large("gzip", max_bytes)
        crc = zlib.crc32(piece, crc)
        out.append(piece)
    if position + _TRAILER.size > len(raw):
        raise damaged("gzip", "it ends early", len(raw))
    if _TRAILER.unpack_from(raw, position) != (crc, size - before & 0xFFFF_FFFF):
        raise damaged("gzip", "CRC or size of a member is wrong", position)
    return position + _TRAILER.size, size
