"""Zstandard frames without a content size, as Kafka's streaming encoders write them.

::

    frame   28 B5 2F FD | descriptor, window | blocks | checksum u32, if the descriptor says so
    block   u24 little-endian: 0 last, 1-2 type (0 stored, 1 one byte repeated, 2 compressed), 3-23 size | bytes
"""

from __future__ import annotations

import threading

import zstandard

from tiered.format.decompression import Buffer, damaged, too_large

MAX_WINDOW_BYTES = 128 * 1024 * 1024
"""Largest accepted window: what the highest level writes, and the format's usual limit."""

_BLOCK_BYTES = 128 * 1024
_RAW_BLOCK, _RLE_BLOCK = 0, 1
_CAUTIOUS_STEP_BYTES = 256
_SKIPPABLE_MAGIC = 0x184D2A50
_SKIPPABLE_HEADER_BYTES = 8
_MAX_HEADER_BYTES = 18


class _Contexts(threading.local):
    """Contexts per thread: costly to make, and not to be shared between threads."""

    def __init__(self) -> None:
        self.compressors: dict[int, zstandard.ZstdCompressor] = {}
        self.decompressor = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW_BYTES)


_contexts = _Contexts()


def compress(data: Buffer, level: int) -> bytes:
    """Return one frame."""
    context = _contexts.compressors.get(level)
    if context is None:
        context = zstandard.ZstdCompressor(level=level, write_content_size=False)
        _contexts.compressors[level] = context
    return context.compress(data)


def decompress(data: Buffer, max_bytes: int) -> bytes:
    """Decompress any number of frames. Raises ``CorruptionError``.

    As in Java, a truncated frame after a whole one ends the data; bytes that begin no frame are refused.
    """
    view = memoryview(data)
    if not view:
        raise damaged("zstd", "no frame")
    # Input that cannot reach the limit goes in at once; other input in slices that pass it by a few MiB at most.
    step = len(view) if _bound(view) <= max_bytes else _CAUTIOUS_STEP_BYTES
    stream = _contexts.decompressor.decompressobj(write_size=_BLOCK_BYTES, read_across_frames=True)
    out: list[bytes] = []
    size = 0
    try:
        for start in range(0, len(view), step):
            piece = stream.decompress(view[start : start + step])
            size += len(piece)
            if size > max_bytes:
                raise too_large("zstd", max_bytes)
            out.append(piece)
    except zstandard.ZstdError as e:
        raise damaged("zstd", e) from None
    return out[0] if len(out) == 1 else b"".join(out)


def _bound(view: memoryview) -> int:
    """Return an upper bound of the decompressed size by walking frames and blocks. Raises if the first frame ends
    early.

    One block expands to at most 128 KiB, so that a bomb is found here.
    """
    bound = position = frames = 0
    while position < len(view):
        if int.from_bytes(view[position : position + 4], "little") & ~0xF == _SKIPPABLE_MAGIC:
            length = int.from_bytes(view[position + 4 : position + 8], "little")
            position += _SKIPPABLE_HEADER_BYTES + length
        elif frames and len(view) - position < _MAX_HEADER_BYTES:
            break  # too little for a frame: the library says whether one begins
        else:
            frame_bound, position = _bound_frame(view, position, may_be_cut=frames > 0)
            bound += frame_bound
            frames += 1
        if position > len(view) and not frames:
            raise damaged("zstd", "it ends early", len(view))
    return bound


def _bound_frame(view: memoryview, position: int, *, may_be_cut: bool) -> tuple[int, int]:
    """Return (upper bound of one frame's output, position after the frame), a position past the data if truncated."""
    try:
        parameters = zstandard.get_frame_parameters(view[position:])
        header_bytes = zstandard.frame_header_size(view[position:])
    except zstandard.ZstdError as e:
        raise damaged("zstd", e, position) from None
    if parameters.window_size > MAX_WINDOW_BYTES:
        raise damaged("zstd", f"window of {parameters.window_size} bytes exceeds {MAX_WINDOW_BYTES}", position)
    position += header_bytes
    bound = 0
    last = False
    while not last and position < len(view):
        head = int.from_bytes(view[position : position + 3], "little")
        last, kind, size = bool(head & 1), head >> 1 & 3, head >> 3
        position += 3 + (1 if kind == _RLE_BLOCK else size)
        bound += size if kind in (_RAW_BLOCK, _RLE_BLOCK) else _BLOCK_BYTES
    end = position + (4 if last and parameters.has_checksum else 0)
    if (not last or end > len(view)) and not may_be_cut:
        raise damaged("zstd", "it ends early", len(view))
    return bound, end if last else max(end, len(view))
