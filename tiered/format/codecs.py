"""Compression of record batches, in the framings that Kafka's clients and broker write.

===== ====== ==================================================================================================
id    codec  framing
===== ====== ==================================================================================================
0     none   the bytes
1     gzip   one RFC 1952 member (more are read), no name, no time
2     snappy xerial: 16-byte header, then ``i32 length | raw block`` per 32 KiB; bare raw snappy is read as well
3     lz4    one LZ4 frame: independent 64 KiB blocks, no checksums, no content size
4     zstd   frames without content size; read by streaming
5..7  -      never assigned
===== ====== ==================================================================================================

Decompression is bounded: what would grow beyond ``max_bytes`` is refused, and no length that the data claims
is believed before it was compared with that limit. Compressed bytes are not canonical between libraries.
"""

from __future__ import annotations

import enum
import struct
import threading
import zlib
from collections.abc import Callable

import cramjam
import lz4.frame
import zstandard

from tiered.errors import CodecUnavailableError, ConfigError, CorruptionError

MAX_DECOMPRESSED_BYTES = 256 * 1024 * 1024
"""Default limit of one batch after decompression (Kafka's ``max.message.bytes`` is 1 MiB compressed)."""

MAX_ZSTD_WINDOW_BYTES = 128 * 1024 * 1024
"""Largest zstd window that is read: what the highest level writes, and the format's usual limit."""

_ZSTD_BLOCK_BYTES = 128 * 1024
_ZSTD_RAW_BLOCK, _ZSTD_RLE_BLOCK = 0, 1
_ZSTD_CAUTIOUS_STEP_BYTES = 256
_GZIP_WBITS = 31  # zlib's way to say: gzip header and trailer

XERIAL_HEADER = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
XERIAL_BLOCK_BYTES = 32 * 1024
_XERIAL_MAGIC = XERIAL_HEADER[:8]
# A snappy copy of 64 bytes takes 3: nothing expands more than about 22 times.
_SNAPPY_MAX_EXPANSION = 32
_MAX_UVARINT_BYTES = 5

LZ4_MAGIC = b"\x04\x22\x4d\x18"
_LZ4_FRAME_MIN_BYTES = 7
_LZ4_CONTENT_SIZE_FLAG = 0x08

_Bytes = bytes | bytearray | memoryview


class Codec(enum.IntEnum):
    """Bits 0 to 2 of the batch attributes; names are those of ``compression.type``."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4

    @property
    def label(self) -> str:
        """Kafka's word: ``none``, ``gzip``, ``snappy``, ``lz4`` or ``zstd``."""
        return self.name.lower()

    @classmethod
    def parse(cls, name: str) -> Codec:
        """The codec of that name (``uncompressed`` is ``none``); ``ConfigError`` for any other."""
        word = name.strip().lower()
        try:
            return cls.NONE if word == "uncompressed" else cls[word.upper()]
        except KeyError:
            raise ConfigError(f"unknown codec {name!r}", hint="use one of none, gzip, snappy, lz4, zstd") from None


DEFAULT_LEVELS = {Codec.GZIP: -1, Codec.LZ4: 0, Codec.ZSTD: 3}
"""Used when no level is given. lz4 0 is the fast one: level 9, which some clients use, is six times slower."""

LEVELS = {Codec.GZIP: (-1, 9), Codec.LZ4: (-(2**16), 17), Codec.ZSTD: (-131072, 22)}
"""Smallest and largest level of the codecs that have one (Kafka's ranges; gzip -1 is its default)."""


def codec_of(attributes: int) -> Codec:
    """The codec in bits 0 to 2 of ``attributes``; ``CodecUnavailableError`` for 5, 6 and 7."""
    try:
        return Codec(attributes & 7)
    except ValueError:
        raise CodecUnavailableError(
            f"unknown compression codec {attributes & 7} in attributes {attributes:#x}",
            hint="the batch is damaged, or was written by a newer Kafka",
        ) from None


class _Contexts(threading.local):
    """zstd contexts are costly to make and must not be shared between threads."""

    def __init__(self) -> None:
        self.compressors: dict[int, zstandard.ZstdCompressor] = {}
        self.decompressor = zstandard.ZstdDecompressor(max_window_size=MAX_ZSTD_WINDOW_BYTES)


_contexts = _Contexts()


def compress(codec: Codec, data: _Bytes, level: int | None = None) -> bytes:
    """``data`` in the framing of ``codec``. ``level`` None is the default; none and snappy have no levels."""
    if codec is Codec.NONE:
        return bytes(data)
    if codec is Codec.SNAPPY:
        return _compress_snappy(data)
    lowest, highest = LEVELS[codec]
    if level is None:
        level = DEFAULT_LEVELS[codec]
    elif not lowest <= level <= highest:
        raise ConfigError(f"{codec.label} has no level {level}", hint=f"use {lowest} to {highest}")
    if codec is Codec.GZIP:
        stream = zlib.compressobj(level, zlib.DEFLATED, _GZIP_WBITS)
        return stream.compress(data) + stream.flush()
    if codec is Codec.LZ4:
        framed: bytes = lz4.frame.compress(
            data,
            compression_level=level,
            block_size=lz4.frame.BLOCKSIZE_MAX64KB,
            block_linked=False,
            content_checksum=False,
            block_checksum=False,
            store_size=False,
        )
        return framed
    context = _contexts.compressors.get(level)
    if context is None:
        context = zstandard.ZstdCompressor(level=level, write_content_size=False)
        _contexts.compressors[level] = context
    return context.compress(data)


def decompress(
    codec: Codec, data: _Bytes, *, max_bytes: int = MAX_DECOMPRESSED_BYTES, legacy_lz4: bool = False
) -> bytes:
    """The bytes that ``compress`` or any Kafka client packed.

    Raises ``CorruptionError`` (position relative to ``data``) if they are damaged, end early, or would exceed
    ``max_bytes``. ``legacy_lz4`` accepts the wrong header checksum that Kafka wrote in format 0.
    """
    if codec is Codec.NONE:
        if len(data) > max_bytes:
            raise _too_large(codec, max_bytes)
        return bytes(data)
    if codec is Codec.LZ4:
        return _decompress_lz4(data, max_bytes, legacy_lz4)
    return _DECOMPRESSORS[codec](data, max_bytes)


def _too_large(codec: Codec, max_bytes: int) -> CorruptionError:
    return CorruptionError(
        f"{codec.label} data is larger than {max_bytes} bytes when decompressed",
        position=0,
        hint="raise the limit of decompressed bytes if the batch is genuine",
    )


def _damaged(codec: Codec, why: object, position: int = 0) -> CorruptionError:
    return CorruptionError(f"{codec.label} data is damaged: {why}", position=position)


def _decompress_gzip(data: _Bytes, max_bytes: int) -> bytes:
    out: list[bytes] = []
    size = 0
    rest = bytes(data)
    while rest or not out:
        stream = zlib.decompressobj(_GZIP_WBITS)
        try:
            piece = stream.decompress(rest, max_bytes - size + 1)
        except zlib.error as e:
            raise _damaged(Codec.GZIP, e, len(data) - len(rest)) from None
        size += len(piece)
        if size > max_bytes:
            raise _too_large(Codec.GZIP, max_bytes)
        if not stream.eof:
            raise _damaged(Codec.GZIP, "it ends early", len(data))
        out.append(piece)
        rest = stream.unused_data
    return out[0] if len(out) == 1 else b"".join(out)


def _compress_snappy(data: _Bytes) -> bytes:
    view = memoryview(data)
    out = [XERIAL_HEADER]
    for start in range(0, len(view), XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + XERIAL_BLOCK_BYTES]))
        out += (len(block).to_bytes(4, "big"), block)
    return b"".join(out)


def _decompress_snappy_block(block: _Bytes, budget: int, max_bytes: int, position: int) -> bytes:
    """One raw block. Its claimed size is checked against the limit and against what snappy can expand to."""
    claimed = shift = 0
    for byte in block[:_MAX_UVARINT_BYTES]:
        claimed |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    else:
        raise _damaged(Codec.SNAPPY, "no length at the start of a block", position)
    if claimed > len(block) * _SNAPPY_MAX_EXPANSION:
        raise _damaged(Codec.SNAPPY, f"{len(block)} bytes cannot hold the claimed {claimed}", position)
    if claimed > budget:
        raise _too_large(Codec.SNAPPY, max_bytes)
    try:
        return bytes(cramjam.snappy.decompress_raw(block))
    except cramjam.DecompressionError as e:
        raise _damaged(Codec.SNAPPY, e, position) from None


def _decompress_snappy(data: _Bytes, max_bytes: int) -> bytes:
    view = memoryview(data)
    if bytes(view[:8]) != _XERIAL_MAGIC:
        return _decompress_snappy_block(view, max_bytes, max_bytes, 0)
    position = len(XERIAL_HEADER)
    if len(view) < position:
        raise _damaged(Codec.SNAPPY, "the stream header ends early", len(view))
    out: list[bytes] = []
    size = 0
    while position < len(view):
        if position + 4 > len(view):
            raise _damaged(Codec.SNAPPY, "it ends inside a block length", position)
        length = int.from_bytes(view[position : position + 4], "big", signed=True)
        if length < 0 or length > len(view) - position - 4:
            raise _damaged(Codec.SNAPPY, f"block length {length} exceeds the data", position)
        position += 4
        piece = _decompress_snappy_block(view[position : position + length], max_bytes - size, max_bytes, position)
        size += len(piece)
        out.append(piece)
        position += length
    return b"".join(out)


def _rotate32(n: int, bits: int) -> int:
    return (n << bits | n >> (32 - bits)) & 0xFFFF_FFFF


def _xxh32_short(data: bytes) -> int:
    """xxHash32, seed 0, of fewer than 16 bytes: an LZ4 frame descriptor."""
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


def _mend_lz4_header(data: _Bytes) -> bytes:
    """Kafka computed the descriptor checksum of format 0 over magic and descriptor; puts the right one in."""
    fixed = bytearray(data)
    end = 14 if len(fixed) > 4 and fixed[4] & _LZ4_CONTENT_SIZE_FLAG else 6
    if len(fixed) > end and fixed[:4] == LZ4_MAGIC and fixed[end] == _xxh32_short(bytes(fixed[:end])) >> 8 & 0xFF:
        fixed[end] = _xxh32_short(bytes(fixed[4:end])) >> 8 & 0xFF
    return bytes(fixed)


def _decompress_lz4(data: _Bytes, max_bytes: int, legacy: bool) -> bytes:
    if len(data) < _LZ4_FRAME_MIN_BYTES or bytes(data[:4]) != LZ4_MAGIC:
        raise _damaged(Codec.LZ4, "no frame header")
    stream = lz4.frame.LZ4FrameDecompressor()
    out: list[bytes] = []
    size = 0
    piece_of_input = _mend_lz4_header(data) if legacy else data
    try:
        while True:
            piece = stream.decompress(piece_of_input, max_length=max_bytes - size + 1)
            size += len(piece)
            if size > max_bytes:
                raise _too_large(Codec.LZ4, max_bytes)
            out.append(piece)
            if stream.eof:
                break
            if not piece or stream.needs_input:
                raise _damaged(Codec.LZ4, "it ends early", len(data))
            piece_of_input = b""
    except (RuntimeError, EOFError, ValueError, MemoryError) as e:
        raise _damaged(Codec.LZ4, e) from None
    if stream.unused_data:
        raise _damaged(
            Codec.LZ4, f"{len(stream.unused_data)} bytes behind the frame", len(data) - len(stream.unused_data)
        )
    return out[0] if len(out) == 1 else b"".join(out)


def _bound_zstd(view: memoryview) -> int:
    """Upper bound of the decompressed size, by walking frames and block headers; refuses what ends early.

    One block (``u24 LE: last bit, type (2 bits), size``) expands to 128 KiB at most, so a bomb shows here.
    """
    bound = position = 0
    while position < len(view):
        frame = view[position:]
        try:
            parameters = zstandard.get_frame_parameters(frame)
            header_bytes = zstandard.frame_header_size(frame)
        except zstandard.ZstdError as e:
            raise _damaged(Codec.ZSTD, e, position) from None
        if parameters.window_size > MAX_ZSTD_WINDOW_BYTES:
            raise _damaged(
                Codec.ZSTD, f"window of {parameters.window_size} bytes exceeds {MAX_ZSTD_WINDOW_BYTES}", position
            )
        position += header_bytes
        last = False
        while not last:
            head = int.from_bytes(view[position : position + 3], "little")
            last, kind, size = bool(head & 1), head >> 1 & 3, head >> 3
            position += 3 + (1 if kind == _ZSTD_RLE_BLOCK else size)
            bound += size if kind in (_ZSTD_RAW_BLOCK, _ZSTD_RLE_BLOCK) else _ZSTD_BLOCK_BYTES
            if position > len(view):
                raise _damaged(Codec.ZSTD, "it ends early", len(view))
        position += 4 if parameters.has_checksum else 0
        if position > len(view):
            raise _damaged(Codec.ZSTD, "it ends early", len(view))
    return bound


def _decompress_zstd(data: _Bytes, max_bytes: int) -> bytes:
    view = memoryview(data)
    if not view:
        raise _damaged(Codec.ZSTD, "no frame")
    # What cannot reach the limit goes in at once; the rest in slices that pass it by a few MiB at most.
    step = len(view) if _bound_zstd(view) <= max_bytes else _ZSTD_CAUTIOUS_STEP_BYTES
    stream = _contexts.decompressor.decompressobj(write_size=_ZSTD_BLOCK_BYTES, read_across_frames=True)
    out: list[bytes] = []
    size = 0
    try:
        for start in range(0, len(view), step):
            piece = stream.decompress(view[start : start + step])
            size += len(piece)
            if size > max_bytes:
                raise _too_large(Codec.ZSTD, max_bytes)
            out.append(piece)
    except zstandard.ZstdError as e:
        raise _damaged(Codec.ZSTD, e) from None
    return out[0] if len(out) == 1 else b"".join(out)


_DECOMPRESSORS: dict[Codec, Callable[[_Bytes, int], bytes]] = {
    Codec.GZIP: _decompress_gzip,
    Codec.SNAPPY: _decompress_snappy,
    Codec.ZSTD: _decompress_zstd,
}
