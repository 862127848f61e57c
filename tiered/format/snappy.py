"""Snappy in xerial framing, as Java writes it; bare raw snappy, as librdkafka writes it, is read as well.

::

     0  82 53 4E 41 50 50 59 00   magic
     8  i32 = 1                   version
    12  i32 = 1                   lowest version that can read it
    16  i32 length | raw snappy block of at most 32 KiB of input, repeated to the end
"""

from __future__ import annotations

import struct

import cramjam

from tiered.format.decompression import Buffer, damaged, too_large

XERIAL_HEADER = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
XERIAL_BLOCK_BYTES = 32 * 1024
_XERIAL_MAGIC = XERIAL_HEADER[:8]
_LENGTH_BYTES = 4
# A copy of 64 bytes takes 3: nothing expands more than about 22 times.
_MAX_EXPANSION = 32
_MAX_UVARINT_BYTES = 5


def compress(data: Buffer) -> bytes:
    """Return ``data`` in xerial framing."""
    view = memoryview(data)
    out = [XERIAL_HEADER]
    for start in range(0, len(view), XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + XERIAL_BLOCK_BYTES]))
        out += (len(block).to_bytes(4, "big"), block)
    return b"".join(out)


def decompress(data: Buffer, max_bytes: int) -> bytes:
    """Decompress either framing. Raises ``CorruptionError``.

    Like Java's ``SnappyInputStream`` it skips the header of a second stream between blocks, and ignores fewer than four
    bytes after the last block.
    """
    view = memoryview(data)
    header_bytes = len(XERIAL_HEADER)
    if len(view) < header_bytes or view[:8] != _XERIAL_MAGIC:
        return _decompress_block(view, max_bytes, max_bytes, 0)
    position = header_bytes
    out: list[bytes] = []
    size = 0
    while len(view) - position >= _LENGTH_BYTES:
        if view[position : position + _LENGTH_BYTES] == _XERIAL_MAGIC[:_LENGTH_BYTES]:
            _check_next_stream(view, position)
            position += header_bytes
            continue
        length = int.from_bytes(view[position : position + _LENGTH_BYTES], "big", signed=True)
        position += _LENGTH_BYTES
        if length < 0 or length > len(view) - position:
            raise damaged("snappy", f"block length {length} exceeds the data", position - _LENGTH_BYTES)
        piece = _decompress_block(view[position : position + length], max_bytes - size, max_bytes, position)
        size += len(piece)
        out.append(piece)
        position += length
    return b"".join(out)


def _check_next_stream(view: memoryview, position: int) -> None:
    header = view[position : position + len(XERIAL_HEADER)]
    if len(header) < len(XERIAL_HEADER) or header[:8] != _XERIAL_MAGIC:
        raise damaged("snappy", "the header of a second stream is cut off or another", position)
    if int.from_bytes(header[12:], "big", signed=True) < 1:
        raise damaged("snappy", "a second stream of a version that was never written", position)


def _decompress_block(block: memoryview, budget: int, max_bytes: int, position: int) -> bytes:
    """Decompress one raw block after checking its claimed size against the limit and snappy's largest expansion."""
    claimed = shift = 0
    for byte in block[:_MAX_UVARINT_BYTES]:
        claimed |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    else:
        raise damaged("snappy", "no length at the start of a block", position)
    if claimed > len(block) * _MAX_EXPANSION:
        raise damaged("snappy", f"{len(block)} bytes cannot hold the claimed {claimed}", position)
    if claimed > budget:
        raise too_large("snappy", max_bytes)
    try:
        return bytes(cramjam.snappy.decompress_raw(block))
    except cramjam.DecompressionError as e:
        raise damaged("snappy", e, position) from None
