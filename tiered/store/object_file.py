"""One object of the directory store as one file: the body first, then what S3 would keep beside it.

::

    0            body
    size         key, UTF-8
    size+keylen  trailer, 64 bytes, little-endian:
                 0  magic "TLOBJ\\0\\0\\1"   8
                 8  ETag, random           16
                24  body size, u64          8
                32  modified, ms, i64       8
                40  key length, u32         4
                44  CRC32C of the body      4
                48  zeros                  12
                60  CRC32C of bytes 0..60   4

Body and ETag are in one file so that one rename replaces both: a reader never sees the bytes of one version
with the ETag of another, and a range of the body is a range of the file. The key is there because long path
parts are hashed, and because a file system that folds case would hand out the wrong object.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass

from tiered.errors import CorruptionError
from tiered.format.crc import crc32c
from tiered.store.key_rules import MAX_KEY_BYTES

TRAILER_BYTES = 64
_MAGIC = b"TLOBJ\0\0\1"
_TRAILER = struct.Struct("<8s16sQqII12x")


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """What the trailer says. ``etag`` is quoted as S3's are."""

    key: str
    etag: str
    size: int
    modified_ms: int
    crc32c: int


def encode_tail(info: ObjectInfo) -> bytes:
    """Key and trailer, to be written after the body."""
    key = info.key.encode()
    head = _TRAILER.pack(
        _MAGIC, bytes.fromhex(info.etag.strip('"')), info.size, info.modified_ms, len(key), info.crc32c
    )
    return key + head + struct.pack("<I", crc32c(head))


def read_info(fd: int, path: str) -> ObjectInfo:
    """The trailer of an open file; raises ``CorruptionError`` if it is not a whole object of this store."""
    file_bytes = os.fstat(fd).st_size
    tail = os.pread(fd, MAX_KEY_BYTES + TRAILER_BYTES, max(0, file_bytes - MAX_KEY_BYTES - TRAILER_BYTES))
    trailer = tail[-TRAILER_BYTES:]
    if len(trailer) < TRAILER_BYTES or trailer[:8] != _MAGIC:
        raise _damaged(path, file_bytes, "it does not end in the trailer of an object")
    head = trailer[:-4]
    (crc,) = struct.unpack("<I", trailer[-4:])
    if crc != crc32c(head):
        raise _damaged(path, file_bytes, "its trailer fails its checksum")
    _, etag, size, modified_ms, key_bytes, body_crc = _TRAILER.unpack(head)
    if key_bytes > MAX_KEY_BYTES or size + key_bytes + TRAILER_BYTES != file_bytes:
        raise _damaged(path, file_bytes, f"its trailer names {size} bytes of body and {key_bytes} of key")
    try:
        key = tail[-TRAILER_BYTES - key_bytes : -TRAILER_BYTES].decode()
    except UnicodeDecodeError as error:
        raise _damaged(path, file_bytes, "its key is not UTF-8") from error
    return ObjectInfo(key, f'"{etag.hex()}"', size, modified_ms, body_crc)


def read_body(fd: int, start: int, end: int, path: str) -> bytes:
    """Bytes ``start`` to ``end`` of an open file; raises ``CorruptionError`` if the file was cut meanwhile."""
    pieces: list[bytes] = []
    position = start
    while position < end:
        piece = os.pread(fd, end - position, position)
        if not piece:
            raise _damaged(path, os.fstat(fd).st_size, f"it ended at byte {position} of {start}..{end}")
        pieces.append(piece)
        position += len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _damaged(path: str, file_bytes: int, why: str) -> CorruptionError:
    return CorruptionError(
        f"{path} ({file_bytes} bytes) is not an object of this store: {why}",
        path_or_key=path,
        position=file_bytes,
        hint="nothing but tieredlog may write below the folder of a file:// store; restore the file from a copy",
    )
