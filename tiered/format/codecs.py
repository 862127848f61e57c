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

Bytes after the compressed data are ignored wherever Java's decoder of that codec ignores them (see its module): a
broker stores such batches, and its consumers read them.
"""

from __future__ import annotations

import enum

from tiered.config import TopicConfig
from tiered.errors import CodecUnavailableError, ConfigError
from tiered.format import gzip_members, lz4_frame, snappy, zstd_frame
from tiered.format.decompression import MAX_DECOMPRESSED_BYTES, Buffer, too_large

__all__ = [
    "DEFAULT_LEVELS",
    "LEVELS",
    "MAX_DECOMPRESSED_BYTES",
    "Codec",
    "codec_of",
    "compress",
    "configured",
    "decompress",
]


class Codec(enum.IntEnum):
    """Bits 0 to 2 of the batch attributes; names are those of ``compression.type``."""

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


_SETTINGS = {
    "producer": Codec.NONE,
    "uncompressed": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}


def configured(config: TopicConfig) -> tuple[Codec, int | None]:
    """Return the codec and level of a topic's configuration; ``producer`` means no compression here."""
    codec = _SETTINGS[config.compression_type]
    levels = {
        Codec.GZIP: config.compression_gzip_level,
        Codec.LZ4: config.compression_lz4_level,
        Codec.ZSTD: config.compression_zstd_level,
    }
    return codec, levels.get(codec)


def compress(codec: Codec, data: Buffer, level: int | None = None) -> bytes:
    """Compress ``data`` in the framing of ``codec``. ``level`` None is the default; none and snappy have no levels."""
    if codec is Codec.NONE:
        return bytes(data)
    if codec is Codec.SNAPPY:
        return snappy.compress(data)
    lowest, highest = LEVELS[codec]
    if level is None:
        level = DEFAULT_LEVELS[codec]
    elif not lowest <= level <= highest:
        raise ConfigError(f"{codec.label} has no level {level}", hint=f"use {lowest} to {highest}")
    if codec is Codec.GZIP:
        return gzip_members.compress(data, level)
    if codec is Codec.LZ4:
        return lz4_frame.compress(data, level)
    return zstd_frame.compress(data, level)


def decompress(
    codec: Codec, data: Buffer, *, max_bytes: int = MAX_DECOMPRESSED_BYTES, legacy_lz4: bool = False
) -> bytes:
    """Decompress bytes that ``compress`` or any Kafka client packed.

    Raises ``CorruptionError`` (position relative to ``data``) if they are damaged or truncated, or would exceed
    ``max_bytes``. ``legacy_lz4`` accepts the wrong header checksum that Kafka wrote in format 0.
    """
    if codec is Codec.ZSTD:
        return zstd_frame.decompress(data, max_bytes)
    if codec is Codec.LZ4:
        return lz4_frame.decompress(data, max_bytes, mend_header=legacy_lz4)
    if codec is Codec.SNAPPY:
        return snappy.decompress(data, max_bytes)
    if codec is Codec.GZIP:
        return gzip_members.decompress(data, max_bytes)
    if len(data) > max_bytes:
        raise too_large("uncompressed", max_bytes)
    return bytes(data)
