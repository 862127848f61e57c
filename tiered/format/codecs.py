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

Decompression is bounded: output beyond ``max_bytes`` is refused, and every length that the data claims is compared
with that limit before it is trusted. Compressed bytes are not canonical between libraries.

Bytes after the compressed data are ignored wherever Java's decoder of that codec ignores them: a broker stores such
batches, and its consumers read them. Positions in errors count from the first byte of the compressed data.
"""

from __future__ import annotations

import enum
import struct
import threading
import zlib

import cramjam
import lz4.frame
import zstandard

from tiered.config import TopicConfig
from tiered.errors import CodecUnavailableError, ConfigError, CorruptionError

MAX_DECOMPRESSED_BYTES = 256 * 1024 * 1024
"""Default limit of one batch after decompression. Kafka has none; its ``max.message.bytes`` is 1 MiB compressed.

Larger batches are never written compressed. Decompression stops with an error at the limit.
"""

Buffer = bytes | bytearray | memoryview


class Codec(enum.IntEnum):
    """Compression codecs: bits 0 to 2 of a batch's attributes. The names are those of ``compression.type``."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4

    @property
    def label(self) -> str:
        """Kafka's name: ``none``, ``gzip``, ``snappy``, ``lz4`` or ``zstd``."""
        return self.name.lower()


DEFAULT_LEVELS = {Codec.GZIP: -1, Codec.LZ4: 0, Codec.ZSTD: 3}
"""Levels used when none is given. lz4 0 is the fast one: level 9, which some clients use, is six times slower."""

LEVELS = {Codec.GZIP: (-1, 9), Codec.LZ4: (-(2**16), 17), Codec.ZSTD: (-131072, 22)}
"""Lowest and highest level of the codecs that have levels (Kafka's ranges; gzip -1 is its default)."""


def codec_of(attributes: int) -> Codec:
    """Return the codec in bits 0 to 2 of ``attributes``. Raises ``CodecUnavailableError`` for 5, 6 and 7."""
    try:
        return Codec(attributes & 7)
    except ValueError:
        raise CodecUnavailableError(
            f"unknown compression codec {attributes & 7} in attributes {attributes:#x}"
        ) from None


def configured(config: TopicConfig) -> tuple[Codec, int | None]:
    """Return the codec of a topic, and its level (None: the codec has none).

    The ``compression.type`` "producer" means no compression here.
    """
    name = config.compression_type
    codec = Codec.NONE if name in {"producer", "uncompressed"} else Codec[name.upper()]
    levels = {
        Codec.GZIP: config.compression_gzip_level,
        Codec.LZ4: config.compression_lz4_level,
        Codec.ZSTD: config.compression_zstd_level,
    }
    return codec, levels.get(codec)


def compress(codec: Codec, data: Buffer, level: int | None = None) -> bytes:
    """Return ``data`` compressed in the framing of ``codec``.

    ``level`` None: the default. Codecs without levels ignore it. Raises ConfigError for a level out of range.
    """
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
    context = _contexts.compressors.get(level)
    if context is None:
        context = zstandard.ZstdCompressor(level=level, write_content_size=False)
        _contexts.compressors[level] = context
    return context.compress(data)


def decompress(
    codec: Codec, data: Buffer, *, max_bytes: int = MAX_DECOMPRESSED_BYTES, legacy_lz4: bool = False
) -> bytes:
    """Return the decompressed bytes of ``data``, which ``compress`` or any Kafka client has compressed.

    Raises ``CorruptionError`` (position relative to ``data``) if they are damaged or truncated, or would exceed
    ``max_bytes``. ``legacy_lz4`` accepts the wrong header checksum that Kafka wrote in format 0.
    """
    if codec is Codec.ZSTD:
        return _decompress_zstd(memoryview(data), max_bytes)
    if codec is Codec.LZ4:
        return _decompress_lz4(memoryview(data), max_bytes, legacy_lz4)
    if codec is Codec.SNAPPY:
        return _decompress_snappy(memoryview(data), max_bytes)
    if codec is Codec.GZIP:
        return _decompress_gzip(memoryview(data), max_bytes)
    if len(data) > max_bytes:
        raise _too_large("uncompressed", max_bytes)
    return bytes(data)


def _too_large(codec: str, max_bytes: int) -> CorruptionError:
    """Return the error for data beyond the limit: a decompression bomb, or a limit that is too low."""
    return CorruptionError(
        f"{codec} data is larger than {max_bytes} bytes when decompressed",
        position=0,
        hint="the batch is damaged, or was made to exhaust the memory of readers: do not read it",
    )


def _damaged(codec: str, why: object, position: int = 0) -> CorruptionError:
    return CorruptionError(f"{codec} data is damaged: {why}", position=position)


# -- gzip: consecutive RFC 1952 members, and bytes after them that begin no member ------------------------------------

_GZIP_WBITS = 31  # zlib's way to say: gzip header and trailer
_GZIP_MAGIC = b"\x1f\x8b\x08"
_MIN_MEMBER_BYTES = 19  # shortest rest in which Java looks for another member
_STEP_BYTES = 64 * 1024  # compressed bytes given to zlib at once: it copies what it has not used at every call
_PIECE_BYTES = 1024 * 1024  # decompressed bytes taken at once: a bomb is found before more than its limit is in memory


def _decompress_gzip(view: memoryview, max_bytes: int) -> bytes:
    out: list[bytes] = []
    size = position = 0
    while position == 0 or (len(view) - position >= _MIN_MEMBER_BYTES and view[position : position + 3] == _GZIP_MAGIC):
        stream, ended = zlib.decompressobj(_GZIP_WBITS), False
        while not ended:
            given = view[position : position + _STEP_BYTES]
            try:
                piece = stream.decompress(given, _PIECE_BYTES)
            except zlib.error as e:
                raise _damaged("gzip", e, position) from None
            ended = stream.eof
            used = len(given) - len(stream.unused_data if ended else stream.unconsumed_tail)
            if not (ended or used or piece):
                raise _damaged("gzip", "it ends early", len(view))
            position += used
            size += len(piece)
            if size > max_bytes:
                raise _too_large("gzip", max_bytes)
            out.append(piece)
    return b"".join(out)


# -- snappy: xerial framing as Java writes it, or one raw block as librdkafka writes it ----------------------------
#
#  0  82 53 4E 41 50 50 59 00   magic
#  8  i32 = 1                   version
# 12  i32 = 1                   lowest version that can read it
# 16  i32 length | raw snappy block of at most 32 KiB of input, repeated to the end

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK_BYTES = 32 * 1024
_LENGTH_BYTES = 4
_MAX_SNAPPY_EXPANSION = 32  # a copy of 64 bytes takes 3: nothing expands more than about 22 times
_MAX_UVARINT_BYTES = 5


def _compress_snappy(data: Buffer) -> bytes:
    view = memoryview(data)
    out = [_XERIAL_HEADER]
    for start in range(0, len(view), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK_BYTES]))
        out += (len(block).to_bytes(_LENGTH_BYTES, "big"), block)
    return b"".join(out)


def _decompress_snappy(view: memoryview, max_bytes: int) -> bytes:
    """Return the decompressed bytes of snappy data: xerial blocks, or one raw block.

    Like Java's ``SnappyInputStream`` it skips the header of a second stream between blocks, and ignores fewer than four
    bytes after the last block. Raises CorruptionError for damage, and above ``max_bytes`` of output.
    """
    header_bytes = len(_XERIAL_HEADER)
    if len(view) < header_bytes or view[:8] != _XERIAL_MAGIC:
        return _decompress_block(view, max_bytes, max_bytes, 0)
    position = header_bytes
    out: list[bytes] = []
    size = 0
    while len(view) - position >= _LENGTH_BYTES:
        if view[position : position + _LENGTH_BYTES] == _XERIAL_MAGIC[:_LENGTH_BYTES]:
            header = view[position : position + header_bytes]
            if len(header) < header_bytes or header[:8] != _XERIAL_MAGIC:
                raise _damaged("snappy", "the header of a second stream is cut off or another", position)
            if int.from_bytes(header[12:], "big", signed=True) < 1:
                raise _damaged("snappy", "a second stream of a version that was never written", position)
            position += header_bytes
            continue
        length = int.from_bytes(view[position : position + _LENGTH_BYTES], "big", signed=True)
        position += _LENGTH_BYTES
        if length < 0 or length > len(view) - position:
            raise _damaged("snappy", f"block length {length} exceeds the data", position - _LENGTH_BYTES)
        piece = _decompress_block(view[position : position + length], max_bytes - size, max_bytes, position)
        size += len(piece)
        out.append(piece)
        position += length
    return b"".join(out)


def _decompress_block(block: memoryview, budget: int, max_bytes: int, position: int) -> bytes:
    """Return the decompressed bytes of one raw block. ``budget``: bytes left of the limit ``max_bytes``."""
    claimed = shift = 0
    for byte in block[:_MAX_UVARINT_BYTES]:
        claimed |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    else:
        raise _damaged("snappy", "no length at the start of a block", position)
    if claimed > len(block) * _MAX_SNAPPY_EXPANSION:
        raise _damaged("snappy", f"{len(block)} bytes cannot hold the claimed {claimed}", position)
    if claimed > budget:
        raise _too_large("snappy", max_bytes)
    try:
        return bytes(cramjam.snappy.decompress_raw(block))
    except cramjam.DecompressionError as e:
        raise _damaged("snappy", e, position) from None


# -- lz4: one frame ------------------------------------------------------------------------------------------------
#
#  0  04 22 4D 18   magic
#  4  FLG = 60      6-7 version 1, 5 independent blocks, 4 block checksums, 3 content size, 2 checksum, 0 dictionary
#  5  BD  = 40      4-6 largest block: 4 is 64 KiB, each step is four times more
#  6  HC  = 82      second byte of xxHash32(FLG, BD and what the flags add)

_LZ4_HEADER_BYTES = 7
_INDEPENDENT, _BLOCK_CHECKSUM, _CONTENT_SIZE, _CONTENT_CHECKSUM = 0x20, 0x10, 0x08, 0x04
_LZ4_ROOM = 6  # times the frame: what the library may return at once, for which it allocates memory
_LEAST_LZ4_ROOM_BYTES = 64 * 1024


def _decompress_lz4(view: memoryview, max_bytes: int, mend_header: bool) -> bytes:
    """Return the content of the first frame. Accepts linked blocks; Java does not. Ignores what follows the frame.

    ``mend_header`` accepts any header checksum: Kafka computed that of message format 0 wrongly. Raises CorruptionError
    for damage, and above ``max_bytes`` of content.
    """
    stream = lz4.frame.LZ4FrameDecompressor()
    out: list[bytes] = []
    size, room = 0, max(len(view) * _LZ4_ROOM, _LEAST_LZ4_ROOM_BYTES)
    given: bytes | memoryview = _with_checked_header(view) if mend_header else view
    while not stream.eof:
        try:
            piece: bytes = stream.decompress(given, max_length=min(room, max_bytes - size + 1))
        except (RuntimeError, EOFError, ValueError, MemoryError) as e:
            raise _damaged("lz4", e) from None
        if not piece and not stream.eof:
            raise _damaged("lz4", "it ends early", len(view))
        size += len(piece)
        if size > max_bytes:
            raise _too_large("lz4", max_bytes)
        out.append(piece)
        given = b""
    return b"".join(out)


def has_linked_blocks(data: Buffer) -> bool:
    """Return True if blocks of an LZ4 frame refer to earlier blocks. Java's Kafka clients refuse such a frame."""
    view = memoryview(data)
    return len(view) > 4 and not view[4] & _INDEPENDENT


def _with_checked_header(view: memoryview) -> bytes:
    """Return the frame with the right header checksum. A frame with a content size or checksum is returned as it is."""
    flags = view[4] if len(view) >= _LZ4_HEADER_BYTES else _CONTENT_SIZE
    if flags & (_CONTENT_SIZE | _CONTENT_CHECKSUM):
        return bytes(view)
    header = lz4.frame.LZ4FrameCompressor(
        block_size=view[5] >> 4, block_linked=not flags & _INDEPENDENT, block_checksum=bool(flags & _BLOCK_CHECKSUM)
    ).begin()
    return b"".join((header, view[_LZ4_HEADER_BYTES:]))


# -- zstd: frames without a content size, as Kafka's streaming encoders write them ----------------------------------

_MAX_WINDOW_BYTES = 128 * 1024 * 1024  # what the highest level writes, and the format's usual limit
_ZSTD_BLOCK_BYTES = 128 * 1024
_MAX_ZSTD_EXPANSION = 32 * 1024  # a block of 128 KiB takes 4 bytes or more
_LEAST_ZSTD_STEP_BYTES = 256
_SKIPPABLE_MAGIC = 0x184D2A50


class _Contexts(threading.local):
    """Zstandard contexts of one thread. They are costly to create, and threads must not share them."""

    def __init__(self) -> None:
        self.compressors: dict[int, zstandard.ZstdCompressor] = {}
        self.decompressor = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW_BYTES)


_contexts = _Contexts()


def _decompress_zstd(view: memoryview, max_bytes: int) -> bytes:
    """Return the decompressed bytes of all frames in ``view``.

    As in Java, a truncated frame after a whole one ends the data. Raises CorruptionError for damage, for bytes that
    begin no frame, and above ``max_bytes`` of output.
    """
    out: list[bytes] = []
    size = position = frames = 0
    stream, is_skippable = None, False
    while position < len(view):
        if stream is None:
            is_skippable = int.from_bytes(view[position : position + 4], "little") & ~0xF == _SKIPPABLE_MAGIC
            stream = _contexts.decompressor.decompressobj(write_size=_ZSTD_BLOCK_BYTES)
        # Each slice of input is too short to pass the limit by more than a few MiB.
        step = max((max_bytes - size) // _MAX_ZSTD_EXPANSION, _LEAST_ZSTD_STEP_BYTES)
        given = view[position : position + step]
        try:
            piece = stream.decompress(given)
        except zstandard.ZstdError as e:
            raise _damaged("zstd", e, position) from None
        position += len(given)
        size += len(piece)
        if size > max_bytes:
            raise _too_large("zstd", max_bytes)
        out.append(piece)
        if stream.eof:
            position -= len(stream.unused_data)
            frames += not is_skippable
            stream = None
    if stream is not None and not frames:
        raise _damaged("zstd", "it ends early", len(view))
    if not view:
        raise _damaged("zstd", "no frame")
    return b"".join(out)
