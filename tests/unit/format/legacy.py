"""Messages of formats v0 and v1 and their compressed wrappers, written by hand: the product only reads them."""

from __future__ import annotations

import struct
import zlib

from tiered.format.codecs import Codec, compress


def field(data: bytes | None) -> bytes:
    return struct.pack(">i", -1) if data is None else struct.pack(">i", len(data)) + data


def message(
    magic: int, offset: int, key: bytes | None, value: bytes | None, timestamp: int = 0, attributes: int = 0
) -> bytes:
    body = struct.pack(">bb", magic, attributes) + (struct.pack(">q", timestamp) if magic else b"")
    body += field(key) + field(value)
    return struct.pack(">qiI", offset, len(body) + 4, zlib.crc32(body)) + body


def wrapper(magic: int, offset: int, inner: bytes, codec: Codec, timestamp: int = 0, attributes: int = 0) -> bytes:
    packed = bytearray(compress(codec, inner))
    if codec is Codec.LZ4 and magic == 0:
        packed[6] = 0x1A  # the checksum over magic and descriptor that Kafka wrote then
    return message(magic, offset, None, bytes(packed), timestamp, attributes | codec)
