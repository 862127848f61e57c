"""LZ4 frames as Kafka writes them: independent 64 KiB blocks, no checksums, no content size.

::

     0  04 22 4D 18   magic
     4  FLG = 60      6-7 version 1, 5 independent blocks, 4 block checksums, 3 content size, 2 checksum, 0 dictionary
     5  BD  = 40      4-6 largest block: 4 is 64 KiB, each step is four times more
     6  HC  = 82      second byte of xxHash32(FLG, BD and what the flags add)
     7  u32 little-endian block size (top bit: stored) | block, repeated; size 0 ends the frame
"""

from __future__ import annotations

import lz4.frame

from tiered.format.decompression import Buffer, damaged, too_large

MAGIC = b"\x04\x22\x4d\x18"
_HEADER_BYTES = 7
_BLOCK_CHECKSUM, _CONTENT_SIZE, _CONTENT_CHECKSUM, _DICTIONARY = 0x10, 0x08, 0x04, 0x01
_BLOCK_BYTES = {4: 64 * 1024, 5: 256 * 1024, 6: 1024 * 1024, 7: 4 * 1024 * 1024}
_STORED = 0x8000_0000
_MAX_EXPANSION = 255


def compress(data: Buffer, level: int) -> bytes:
    """One frame with Kafka's settings."""
    frame: bytes = lz4.frame.compress(
        data,
        compression_level=level,
        block_size=lz4.frame.BLOCKSIZE_MAX64KB,
        block_linked=False,
        content_checksum=False,
        block_checksum=False,
        store_size=False,
    )
    return frame


def decompress(data: Buffer, max_bytes: int, *, mend_header: bool = False) -> bytes:
    """One frame, which fills ``data``; raises ``CorruptionError``. Linked blocks are read too; Java refuses them.

    ``mend_header`` accepts the header checksum of message format 0.
    """
    bound = _bound(memoryview(data))
    stream = lz4.frame.LZ4FrameDecompressor()
    # The library allocates what it is allowed to return: never more than the blocks can hold.
    allowed = min(bound, max_bytes) + 1
    try:
        out: bytes = stream.decompress(_mended(data) if mend_header else data, max_length=allowed)
    except (RuntimeError, EOFError, ValueError, MemoryError) as e:
        raise damaged("lz4", e) from None
    if len(out) > max_bytes:
        raise too_large("lz4", max_bytes)
    if not stream.eof:
        raise damaged("lz4", "the frame does not end", len(data))
    return out


def _bound(view: memoryview) -> int:
    """Upper bound of the decompressed size, from the header and the block sizes; refuses what ends early."""
    if len(view) < _HEADER_BYTES or view[:4] != MAGIC:
        raise damaged("lz4", "no frame header")
    flags = view[4]
    block_bytes = _BLOCK_BYTES.get(view[5] >> 4)
    if flags >> 6 != 1 or block_bytes is None:
        raise damaged("lz4", f"unknown frame version or block size, FLG {flags:#04x} BD {view[5]:#04x}", 4)
    position = _HEADER_BYTES + (8 if flags & _CONTENT_SIZE else 0) + (4 if flags & _DICTIONARY else 0)
    behind_block = 4 if flags & _BLOCK_CHECKSUM else 0
    bound = 0
    while True:
        head = int.from_bytes(view[position : position + 4], "little")
        size = head & ~_STORED
        if position + 4 <= len(view) and size > block_bytes:
            raise damaged("lz4", f"block of {size} bytes where {block_bytes} are the most", position)
        position += 4
        if head == 0:
            break
        position += size + behind_block
        bound += size if head & _STORED else min(block_bytes, size * _MAX_EXPANSION)
    position += 4 if flags & _CONTENT_CHECKSUM else 0
    if position > len(view):
        raise damaged("lz4", "it ends early", len(view))
    if position < len(view):
        raise damaged("lz4", f"{len(view) - position} bytes behind the frame", position)
    return bound


def _mended(data: Buffer) -> bytes:
    """Kafka computed the header checksum of format 0 over magic and descriptor; puts the right one in."""
    fixed = bytearray(data)
    end = 14 if fixed[4] & _CONTENT_SIZE else 6
    if fixed[end] == _xxh32_short(bytes(fixed[:end])) >> 8 & 0xFF:
        fixed[end] = _xxh32_short(bytes(fixed[4:end])) >> 8 & 0xFF
    return bytes(fixed)


def _rotate32(n: int, bits: int) -> int:
    return (n << bits | n >> (32 - bits)) & 0xFFFF_FFFF


def _xxh32_short(data: bytes) -> int:
    """xxHash32, seed 0, of fewer than 16 bytes: a frame descriptor."""
    p1, p2, p3, p4, p5 = 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D, 0x27D4EB2F, 0x165667B1
    h = p5 + len(data)
    whole = len(data) // 4 * 4
    for i in range(0, whole, 4):
        h = _rotate32(h + int.from_bytes(data[i : i + 4], "little") * p3 & 0xFFFF_FFFF, 17) * p4 & 0xFFFF_FFFF
    for byte in data[whole:]:
        h = _rotate32(h + byte * p5 & 0xFFFF_FFFF, 11) * p1 & 0xFFFF_FFFF
    h = (h ^ h >> 15) * p2 & 0xFFFF_FFFF
    h = (h ^ h >> 13) * p3 & 0xFFFF_FFFF
    return h ^ h >> 16
