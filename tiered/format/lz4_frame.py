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
_INDEPENDENT, _BLOCK_CHECKSUM, _CONTENT_SIZE, _CONTENT_CHECKSUM, _DICTIONARY = 0x20, 0x10, 0x08, 0x04, 0x01
_BLOCK_BYTES = {4: 64 * 1024, 5: 256 * 1024, 6: 1024 * 1024, 7: 4 * 1024 * 1024}
_STORED = 0x8000_0000
_MAX_EXPANSION = 255


def compress(data: Buffer, level: int) -> bytes:
    """Return one frame with Kafka's settings."""
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
    """Return the content of the first frame of ``data``. Raises ``CorruptionError``. Accepts linked blocks; Java does
    not.

    Like Java's reader it ignores what follows the frame, the content size and the content checksum. ``mend_header``
    accepts any header checksum: Kafka computed that of message format 0 wrongly.
    """
    view = memoryview(data)
    blocks, end_mark, bound = _walk(view)
    stream = lz4.frame.LZ4FrameDecompressor()
    # The library allocates what it is allowed to return: never more than the blocks can hold.
    allowed = min(bound, max_bytes) + 1
    try:
        out: bytes = stream.decompress(_plain(view, blocks, end_mark, mend_header), max_length=allowed)
    except (RuntimeError, EOFError, ValueError, MemoryError) as e:
        raise damaged("lz4", e) from None
    if len(out) > max_bytes:
        raise too_large("lz4", max_bytes)
    if not stream.eof:
        raise damaged("lz4", "the frame does not end", len(data))
    return out


def has_linked_blocks(data: Buffer) -> bool:
    """Return True if blocks refer to earlier blocks: no reader of Kafka's accepts such a frame."""
    view = memoryview(data)
    return len(view) > 4 and not view[4] & _INDEPENDENT


def _walk(view: memoryview) -> tuple[int, int, int]:
    """Return (start of the blocks, position of the end mark, upper bound of the size). Raises for a truncated frame."""
    if len(view) < _HEADER_BYTES or view[:4] != MAGIC:
        raise damaged("lz4", "no frame header")
    flags = view[4]
    block_bytes = _BLOCK_BYTES.get(view[5] >> 4)
    if flags >> 6 != 1 or flags & _DICTIONARY or block_bytes is None:
        raise damaged("lz4", f"unknown frame version or block size, FLG {flags:#04x} BD {view[5]:#04x}", 4)
    blocks = position = _HEADER_BYTES + (8 if flags & _CONTENT_SIZE else 0)
    behind_block = 4 if flags & _BLOCK_CHECKSUM else 0
    behind_frame = 4 if flags & _CONTENT_CHECKSUM else 0
    bound = 0
    while position + 4 <= len(view):
        head = int.from_bytes(view[position : position + 4], "little")
        size = head & ~_STORED
        if size == 0 and position + 4 + behind_frame <= len(view):
            return blocks, position, bound
        if size > block_bytes or head == 1:  # one compressed byte decodes to nothing: Java takes it for the end
            raise damaged("lz4", f"block of {size} bytes where 2 to {block_bytes} are possible", position)
        position += 4 + size + behind_block
        bound += size if head & _STORED else min(block_bytes, size * _MAX_EXPANSION)
    raise damaged("lz4", "it ends early", len(view))


def _plain(view: memoryview, blocks: int, end_mark: int, mend_header: bool) -> bytes | memoryview:
    """Return the frame without the fields that the library checks and Java does not; unchanged if it has none."""
    end = end_mark + 4
    unchecked = view[4] & (_CONTENT_SIZE | _CONTENT_CHECKSUM)
    if not unchecked and not mend_header and not view[end - 1]:
        return view if end == len(view) else view[:end]
    told, wanted = view[blocks - 1], _xxh32_short(bytes(view[4 : blocks - 1])) >> 8 & 0xFF
    if told != wanted and not mend_header:
        raise damaged("lz4", f"header checksum {told:#04x}, computed {wanted:#04x}", blocks - 1)
    descriptor = bytes((view[4] & ~unchecked, view[5]))
    check = _xxh32_short(descriptor) >> 8 & 0xFF
    return b"".join((MAGIC, descriptor, bytes((check,)), view[blocks:end_mark], bytes(4)))


def _rotate32(n: int, bits: int) -> int:
    return (n << bits | n >> (32 - bits)) & 0xFFFF_FFFF


def _xxh32_short(data: bytes) -> int:
    """Return xxHash32, seed 0, of fewer than 16 bytes: a frame descriptor."""
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
