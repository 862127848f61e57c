"""Message formats v0 and v1, read only: segments that Kafka wrote before 0.11 keep them until deleted.

::

     0  offset      i64   of the message; of the *last* inner message if compressed
     8  size        i32   total - 12
    12  crc         u32   CRC-32 (IEEE) of byte 16 to the end
    16  magic       i8    0 or 1
    17  attributes  i8    0-2 codec, 3 LogAppendTime (v1)
    18  timestamp   i64   v1 only
        key length i32 (-1 null), key, value length i32 (-1 null), value

A compressed message ("wrapper") holds a message set in its value: inner offsets are absolute in v0, relative
(0, 1, 2, ...) in v1. Each uncompressed message counts as a batch of one.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import NamedTuple

from tiered.errors import CorruptionError
from tiered.format.codecs import Codec, codec_of, decompress
from tiered.format.kernels import Record

_PREFIX = struct.Struct(">qiIbb")
_I64 = struct.Struct(">q")
_I32 = struct.Struct(">i")
_OVERHEAD_BYTES = 12
_CRC_END = 16
_MIN_SIZES = (14, 22)  # of the size field, by magic
_LOG_APPEND_TIME_BIT = 0x08
_ATTRIBUTES = (0x07, 0x0F)  # bits that mean something, by magic
_CODECS = (Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4)


class Message(NamedTuple):
    """Fixed part of one v0 or v1 message. ``size``: its bytes after the size field. ``timestamp``: -1 in v0.

    ``body``: position of its key length in the buffer.
    """

    offset: int
    size: int
    crc: int
    magic: int
    attributes: int
    timestamp: int
    body: int


def read_message(buf: bytes | bytearray | memoryview, position: int) -> Message:
    """Return the message at ``position``. ``buf`` need not contain its key and value.

    Raises ``CorruptionError`` for a truncated header, an impossible size, or a magic above 1.
    """
    try:
        offset, size, crc, magic, attributes = _PREFIX.unpack_from(buf, position)
    except struct.error:
        raise CorruptionError("message ends inside its header", position=position) from None
    if not 0 <= magic <= 1:
        raise CorruptionError(f"magic {magic} where a v0 or v1 message was expected", position=position)
    if size < _MIN_SIZES[magic]:
        raise CorruptionError(
            f"message size {size} is below the minimum {_MIN_SIZES[magic]} of v{magic}", position=position
        )
    timestamp, body = -1, position + _PREFIX.size
    if magic:
        if len(buf) < body + _I64.size:
            raise CorruptionError("message ends inside its timestamp", position=position)
        (timestamp,) = _I64.unpack_from(buf, body)
        body += _I64.size
    return Message(offset, size, crc, magic, attributes & _ATTRIBUTES[magic], timestamp, body)


def verify_message(buf: bytes | bytearray | memoryview, message: Message) -> None:
    """Raise ``CorruptionError`` if the CRC of the message at the start of ``buf`` is wrong. ``message``: its header."""
    crc = zlib.crc32(memoryview(buf)[_CRC_END : _OVERHEAD_BYTES + message.size])
    if crc != message.crc:
        raise CorruptionError(
            f"CRC mismatch in the message at offset {message.offset}: stored {message.crc:#010x}, computed {crc:#010x}",
            position=0,
            offset=message.offset,
        )


def _read_field(buf: memoryview, position: int, end: int, what: str) -> tuple[bytes | None, int]:
    if position + _I32.size > end:
        raise CorruptionError(f"message ends before its {what}", position=position)
    (length,) = _I32.unpack_from(buf, position)
    position += _I32.size
    if length > end - position:
        raise CorruptionError(f"{what} length {length} exceeds the message", position=position)
    if length < 0:
        return None, position
    return bytes(buf[position : position + length]), position + length


def _key_and_value(buf: memoryview, message: Message, end: int) -> tuple[bytes | None, bytes | None]:
    """Return key and value. As in Kafka, any negative length is null, and bytes after the value are ignored."""
    key, position = _read_field(buf, message.body, end, "key")
    return key, _read_field(buf, position, end, "value")[0]


def decode_message(
    buf: bytes | bytearray | memoryview, message: Message, max_bytes: int, *, check_crcs: bool = False
) -> Iterator[Record]:
    """Return the records of the one message in ``buf``: itself, or the inner records if it is a compressed wrapper.

    A wrapper is decoded whole, as v1 offsets count from its end. ``message``: header of the one message.
    ``max_bytes``: limit of a wrapper's decompressed bytes. ``check_crcs``: check the CRCs of its inner messages, not
    its own. Raises ``CorruptionError`` for damage, and above ``max_bytes``.
    """
    view = memoryview(buf)
    key, value = _key_and_value(view, message, _OVERHEAD_BYTES + message.size)
    codec = codec_of(message.attributes)
    if codec is Codec.NONE:
        return iter((Record(message.offset, message.timestamp, key, value, []),))
    if codec not in _CODECS:
        raise CorruptionError(f"{codec.label} is not allowed in a v{message.magic} message", position=0)
    if value is None:
        raise CorruptionError("compressed message without a value", position=message.body)
    data = decompress(codec, value, max_bytes=max_bytes, legacy_lz4=message.magic == 0)
    return iter(_decode_set(memoryview(data), message, check_crcs))


def inner_messages(data: bytes | memoryview) -> Iterator[tuple[Message, memoryview]]:
    """Yield each message of a decompressed set and its bytes. As in Kafka, a truncated one just ends the set.

    Raises CorruptionError for an impossible header.
    """
    view = memoryview(data)
    position = 0
    while len(view) - position >= _OVERHEAD_BYTES:
        end = position + _OVERHEAD_BYTES + _I32.unpack_from(view, position + _I64.size)[0]
        if end > len(view):
            return
        message = view[position:end]
        yield read_message(message, 0), message
        position = end


def _decode_set(view: memoryview, wrapper: Message, check_crcs: bool) -> list[Record]:
    """Return the records of the inner messages in ``view``. As in Kafka, v0 and v1 messages may be mixed."""
    inner: list[tuple[Message, bytes | None, bytes | None]] = []
    for message, data in inner_messages(view):
        if check_crcs:
            verify_message(data, message)
        if message.attributes & 7:
            raise CorruptionError("compressed message inside a compressed message", position=0)
        inner.append((message, *_key_and_value(data, message, len(data))))
    if not inner:
        raise CorruptionError("compressed message without inner messages", position=0)
    shift = _shift(wrapper, inner[-1][0].offset)
    if min(m.offset for m, _, _ in inner) + shift < 0:
        raise CorruptionError(f"inner offsets begin below zero at wrapper {wrapper.offset}", position=0)
    stamp = wrapper.timestamp if wrapper.attributes & _LOG_APPEND_TIME_BIT else None
    return [
        Record(m.offset + shift, m.timestamp if stamp is None or m.magic == 0 else stamp, k, v, []) for m, k, v in inner
    ]


def _shift(wrapper: Message, last_inner: int) -> int:
    """Return the distance from inner to absolute offsets. ``last_inner``: inner offset of the last message.

    0 for a v0 wrapper, and for a v1 wrapper at offset 0, as a producer sends it. Raises CorruptionError if the offset
    of the wrapper is below ``last_inner``.
    """
    if wrapper.magic == 0 or wrapper.offset == 0:
        return 0
    if wrapper.offset < last_inner:
        raise CorruptionError(f"wrapper offset {wrapper.offset} is below that of the last message inside, {last_inner}")
    return wrapper.offset - last_inner
