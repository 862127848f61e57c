"""Odd batches with right CRCs: what other clients write, what rot and malice make, and what no writer should do.

:func:`odd_batches` makes them from a seed. What a real broker and Kafka's own consumer say of those of one seed is kept
in ``data/foreign-batches.json.gz`` (``tests/integration/servers/kafka_foreign.py`` writes it and asks again).
"""

from __future__ import annotations

import base64
import gzip
import json
import random
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import cramjam
import lz4.block
import lz4.frame
import zstandard

from tiered.format.codecs import Codec, compress
from tiered.format.header import BatchHeader
from tiered.format.kernels import Record, crc32c

HUNG_UP = -99
ARCHIVE = Path(__file__).parent / "data" / "foreign-batches.json.gz"
TOPICS: dict[str, dict[str, str]] = {
    "plain": {},
    "compacted": {"cleanup.policy": "compact"},
    "stamped": {"message.timestamp.type": "LogAppendTime"},
    "unpacked": {"compression.type": "uncompressed"},
}
"""The topics that every batch is sent to, and what is set for each."""

NOW = 1_700_000_000_000
HEADER = struct.Struct(">qiibIhiqqqhii")
INT32, INT64 = 2**31 - 1, 2**63 - 1
MUTANTS = 240
XERIAL = b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1)


class OddBatch(NamedTuple):
    """``name`` says what is odd about it."""

    name: str
    data: bytes


def varint(number: int, least_bytes: int = 1) -> bytes:
    """Zigzag, as 64 bits; drawn out to ``least_bytes`` by bytes that add nothing."""
    rest = (number << 1 ^ number >> 63) & 2**64 - 1
    out = bytearray()
    while rest >= 0x80 or len(out) + 1 < least_bytes:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes((*out, rest))


def field(data: bytes | None, length: int | None = None) -> bytes:
    """Length and bytes; ``length`` to lie about it."""
    claimed = (-1 if data is None else len(data)) if length is None else length
    return varint(claimed) + (data or b"")


def record(
    offset: int = 0,
    time: int = 0,
    key: bytes = field(b"k"),
    value: bytes = field(b"v"),
    headers: bytes = b"\0",
    *,
    attributes: int = 0,
    length: int | None = None,
    tail: bytes = b"",
) -> bytes:
    """One record: ``key``, ``value`` and ``headers`` (with their count) are encoded already."""
    body = bytes((attributes,)) + varint(time) + varint(offset) + key + value + headers + tail
    return varint(len(body) if length is None else length) + body


def named(*headers: tuple[bytes, bytes | None]) -> bytes:
    """Headers of a record with any bytes as names."""
    return varint(len(headers)) + b"".join(field(name) + field(value) for name, value in headers)


def plain_records(count: int, size: int = 1) -> bytes:
    """``count`` records as a client writes them."""
    return b"".join(record(i, i, field(b"key-%d" % i), field(b"%d" % i * size)) for i in range(count))


def batch(
    records: bytes,
    count: int = 1,
    *,
    codec: int = 0,
    packed: bytes | None = None,
    base: int = 0,
    epoch: int = -1,
    magic: int = 2,
    attributes: int = 0,
    last: int | None = None,
    first_time: int = NOW,
    max_time: int | None = None,
    producer: tuple[int, int, int] = (-1, -1, -1),
) -> bytes:
    """A batch around ``records``; ``packed`` is what stands in their place if they are compressed in an odd way."""
    body = packed if packed is not None else compress(Codec(codec), records) if 0 < codec <= 4 else records
    last = max(count - 1, 0) if last is None else last
    max_time = first_time + max(count - 1, 0) if max_time is None else max_time
    flags = attributes | codec
    head = HEADER.pack(
        base,
        49 + len(body),
        epoch,
        magic,
        0,
        flags - 2**16 * (flags >> 15),
        last,
        first_time,
        max_time,
        *producer,
        count,
    )
    return sealed(head + body)


def sealed(data: bytes) -> bytes:
    """With the CRC that its bytes have."""
    return data[:17] + struct.pack(">I", crc32c(data[21:])) + data[21:]


def _headers() -> Iterator[tuple[str, bytes]]:
    three = plain_records(3)
    yield "as it should be", batch(three, 3)
    for last in (0, 1, 3, 5, INT32, -1, -(2**31)):
        yield f"3 records, last offset delta {last}", batch(three, 3, last=last)
    for count in (0, 1, 2, 4, 9, INT32, -1, -(2**31)):
        yield f"3 records, count {count}", batch(three, count)
        yield f"3 records, count {count}, last offset delta 2", batch(three, count, last=2)
    yield "no records, count 0", batch(b"", 0, last=0)
    yield "no records, count 0, last offset delta 4", batch(b"", 0, last=4)
    for codec in (1, 2, 3, 4):
        yield f"no records, count 0, codec {codec}", batch(b"", 0, last=0, codec=codec)
        yield f"no records, count 0, no bytes, codec {codec}", batch(b"", 0, last=0, codec=codec, packed=b"")
    yield "no records, count 1", batch(b"", 1)
    for base in (1, 7, 2**40, INT64 - 3, INT64, -1):
        yield f"base offset {base}", batch(three, 3, base=base)
    for epoch in (0, 5, INT32, -2, -(2**31)):
        yield f"leader epoch {epoch}", batch(three, 3, epoch=epoch)
    for magic in (3, 5, 127, -1, -128):
        yield f"magic {magic}", batch(three, 3, magic=magic)
    for time in (-1, -2, 0, NOW + 1, NOW + 3, NOW + 2**32, INT64, -(2**63)):
        yield f"max timestamp {time}", batch(three, 3, max_time=time)
        yield f"LogAppendTime, max timestamp {time}", batch(three, 3, max_time=time, attributes=8)
    for time in (-1, -2, -3, 0, 2**62, INT64, INT64 - 2, -(2**63)):
        yield f"base timestamp {time}", batch(three, 3, first_time=time, max_time=NOW)
    yield "all timestamps -1", batch(record(0, 0) + record(1, 0), 2, first_time=-1, max_time=-1)
    yield "a timestamp -1 among others", batch(record(0, 0) + record(1, -NOW - 1), 2)
    yield "a timestamp -2 among others", batch(record(0, 0) + record(1, -NOW - 2), 2)
    for bit in (3, 5, 6, 7, 8, 9, 11, 14, 15):
        yield f"attribute bit {bit}", batch(three, 3, attributes=1 << bit)
    yield "a control batch of a producer", batch(record(0, 0, field(bytes(4))), producer=(9, 0, 0), attributes=0x20)
    for codec in (5, 6, 7):
        yield f"codec {codec}", batch(three, 3, codec=codec)
    producers = [(5, 0, 0), (6, 0, -1), (8, -1, 0), (-1, 0, 0), (-1, 3, -1), (-1, -1, 4), (-2, 0, 0), (-2, -1, -1)]
    producers += [
        (10, 32767, 0),
        (11, 0, INT32),
        (12, 0, INT32 - 1),
        (13, 5, 44),
        (14, 0, -2),
        (INT64, 0, 0),
        (15, -2, 0),
    ]
    for producer in producers:
        yield f"producer {producer}", batch(three, 3, producer=producer)


def _records() -> Iterator[tuple[str, bytes]]:
    for gaps in ((0, 2), (0, 0), (1, 0), (1, 2), (5, 9), (-1, 0), (0, -7), (0, INT32), (0, -(2**31)), (2**40, 0)):
        yield f"offset deltas {gaps}", batch(record(gaps[0]) + record(gaps[1]), 2)
        yield f"offset deltas {gaps}, last offset delta 9", batch(record(gaps[0]) + record(gaps[1]), 2, last=9)
        yield f"offset deltas {gaps}, gzip", batch(record(gaps[0]) + record(gaps[1]), 2, codec=1)
    for attributes in (1, 8, 0x7F, 0xFF):
        yield f"record attributes {attributes}", batch(record(attributes=attributes))
    for delta in (-1, -NOW, 2**31, 2**40, INT64, -(2**63)):
        yield f"timestamp delta {delta}", batch(record(0, delta))
    for size in range(2, 12):
        long = varint(1, size)
        yield f"length in {size} bytes", batch(varint(len(record()) - 1, size) + record()[1:])
        yield f"time delta in {size} bytes", batch(_body(b"\0" + long + b"\0" + field(b"k") + field(b"v") + b"\0"))
        yield (
            f"offset delta in {size} bytes",
            batch(_body(b"\0\0" + varint(0, size) + field(b"k") + field(b"v") + b"\0")),
        )
        yield f"key length in {size} bytes", batch(record(key=long + b"k"))
        yield f"value length in {size} bytes", batch(record(value=long + b"v"))
        yield f"header count in {size} bytes", batch(record(headers=varint(0, size)))
        yield f"name length in {size} bytes", batch(record(headers=b"\2" + long + b"n" + field(b"x")))
        yield f"header value length in {size} bytes", batch(record(headers=b"\2" + field(b"n") + long + b"x"))
        yield (
            f"null value in {size} bytes",
            batch(record(value=varint(-1, size) if size < 6 else b"\x81" * size + b"\0")),
        )
    for top in (0x0F, 0x10, 0x70, 0x7F):
        high = b"\x82\x80\x80\x80" + bytes((top,))
        yield f"key length with top bits {top:#x}", batch(record(key=high + b"k"))
        yield f"header count with top bits {top:#x}", batch(record(headers=high + field(b"n") + field(b"x")))
        deep = b"\x82" + b"\x80" * 8 + bytes((top,))
        yield (
            f"time delta with top bits {top:#x}",
            batch(_body(b"\0" + deep + b"\0" + field(b"k") + field(b"v") + b"\0")),
        )
    for what, key, value in (
        ("null", None, None),
        ("empty", b"", b""),
        ("key null", None, b"v"),
        ("value null", b"k", None),
    ):
        yield f"{what} key and value", batch(record(key=field(key), value=field(value)))
    for length in (-1, -2, -5, -100, -(2**31), 0, 1, 2, 3, 50, INT32):
        yield f"key length {length}", batch(record(key=field(b"", length)))
        yield f"key length {length}, gzip", batch(record(key=field(b"", length)), codec=1)
        yield f"value length {length}", batch(record(value=field(b"", length)))
        yield f"header count {length}", batch(record(headers=varint(length)))
        yield f"header count {length}, zstd", batch(record(headers=varint(length)), codec=4)
        yield f"name length {length}", batch(record(headers=b"\2" + field(b"", length) + field(b"x")))
        yield f"header value length {length}", batch(record(headers=b"\2" + field(b"n") + field(b"", length)))
        for codec in (0, 1):
            text = f"record length {length}, codec {codec}"
            yield text, batch(record(length=length) + record(1), 2, codec=codec)
    for by in (-7, -3, -1, 1, 2, 8):
        yield f"record length off by {by}", batch(record(length=len(record()) - 1 + by))
        yield f"record length off by {by}, more behind", batch(record(length=len(record()) - 1 + by) + record(1), 2)
    yield "a byte behind the fields", batch(record(tail=b"\0"))
    yield "a byte behind the records", batch(record() + b"\0")
    yield "a record behind the records, lz4", batch(record() + record(1), 1, codec=3)
    yield "an empty record", batch(b"\0")
    yield "a record of nothing but zeros", batch(b"\x0c" + bytes(6))
    yield "large value", batch(record(value=field(b"ab" * 9000)))


def _body(body: bytes) -> bytes:
    return varint(len(body)) + body


_HEX_NAMES = (
    "fffe 61c3 c328 e282 e28278 f09f98 f09f9878 f09f28 c080 e08080 f0808080 eda080 eda0 "
    "eda078 eda080edb080 f4908080 f5808080 f888808080 8080 6f6bfe6f6bfe ed9fbfee8080"
)
ODD_NAMES = [bytes.fromhex(name) for name in _HEX_NAMES.split()]
"""Cut off, overlong, surrogates, beyond U+10FFFF, and good ones at the edges of those."""


def _names() -> Iterator[tuple[str, bytes]]:
    for name in ODD_NAMES:
        yield f"header name {name.hex()}", batch(record(headers=named((name, b"x"), (b"plain", None), (name, name))))
    for codec in (1, 2, 3, 4):
        yield f"header name fffe, codec {codec}", batch(record(headers=named((b"\xff\xfe", b"x"))), codec=codec)
    yield "header name fffe, out of order", batch(record(1, headers=named((b"\xff", b"x"))) + record(0), 2)
    yield "empty header name", batch(record(headers=named((b"", b""))))
    yield "the same name twice", batch(record(headers=named((b"a", b"1"), (b"a", None), (b"a", b""))))
    yield "zero byte in a name", batch(record(headers=named((b"a\0b", b"1"))))
    yield "astral name", batch(record(headers=named(("\N{GRINNING FACE}é\ufeff".encode(), b"1"))))


def gzip_member(data: bytes, flags: int = 0, extra: bytes = b"", method: int = 8) -> bytes:
    """One RFC 1952 member with any flags; ``extra`` follows the fixed header."""
    stream = zlib.compressobj(6, zlib.DEFLATED, -15)
    body = stream.compress(data) + stream.flush()
    head = b"\x1f\x8b" + bytes((method, flags)) + bytes(6) + extra
    return head + body + struct.pack("<II", zlib.crc32(data), len(data))


def _gzip(data: bytes) -> Iterator[tuple[str, bytes]]:
    half = len(data) // 2
    whole = gzip_member(data)
    yield "two members", gzip_member(data[:half]) + gzip_member(data[half:])
    yield "many members", b"".join(gzip_member(data[at : at + 7]) for at in range(0, len(data), 7))
    yield "an empty member behind", whole + gzip_member(b"")
    yield "an empty member before", gzip_member(b"") + whole
    for tail in (b"\0", b"junk", b"\0" * 18, b"\0" * 19, b"\0" * 40, b"\x1f\x8b", whole[:12], whole[:18], whole[:19]):
        yield f"{tail.hex()} behind", whole + tail
    yield "half a member behind", whole + whole[: len(whole) // 2 + 12]
    yield "a member of another method behind", whole + gzip_member(b"x" * 50, method=9)
    yield "a member with a wrong CRC behind", whole + gzip_member(b"")[:-8] + b"\1" * 8
    yield "a member with more records behind", whole + gzip_member(data)
    yield "junk between members", gzip_member(data[:half]) + b"junk" * 9 + gzip_member(data[half:])
    yield "extra field, name, comment", gzip_member(data, 0x1C, b"\3\0abcname\0comment\0")
    head = b"\x1f\x8b\x08\x02" + bytes(6)
    checked = struct.pack("<H", zlib.crc32(head) & 0xFFFF)
    yield "header CRC", gzip_member(data, 2, checked)
    yield "wrong header CRC", gzip_member(data, 2, b"\1\1")
    yield "wrong header CRC of a second member", whole + gzip_member(b"", 2, b"\1\1") + bytes(30)
    yield "reserved flags", gzip_member(data, 0xE0)
    yield "another method", gzip_member(data, method=7)
    yield "wrong CRC", whole[:-8] + b"\1\1\1\1" + whole[-4:]
    yield "wrong length", whole[:-4] + b"\1\1\1\1"
    for cut in (1, 4, 8, 9, 12):
        yield f"{cut} bytes short", whole[:-cut]
    yield "zlib instead", zlib.compress(data)
    yield "text flag", gzip_member(data, 1)


def snappy_block(data: bytes) -> bytes:
    """One block of the xerial framing."""
    block = bytes(cramjam.snappy.compress_raw(data))
    return struct.pack(">i", len(block)) + block


def _snappy(data: bytes) -> Iterator[tuple[str, bytes]]:
    half = len(data) // 2
    first, second = snappy_block(data[:half]), snappy_block(data[half:])
    whole = XERIAL + snappy_block(data)
    raw = bytes(cramjam.snappy.compress_raw(data))
    yield "raw", raw
    yield "raw, bytes behind", raw + b"\0\0"
    yield "raw, short", raw[:-1]
    yield "two blocks", XERIAL + first + second
    yield "a second stream header", XERIAL + first + XERIAL + second
    yield "a second stream header at the end", whole + XERIAL
    yield "three stream headers in a row", XERIAL + XERIAL + XERIAL + snappy_block(data)
    yield "half a stream header behind", whole + XERIAL[:9]
    yield "four bytes of a stream header behind", whole + XERIAL[:4]
    yield "another magic behind", whole + b"\x82SNAXXX\0" + XERIAL[8:] + b"junk"
    yield "a second stream of version 0", whole + XERIAL[:8] + bytes(8)
    yield "a second stream that needs version 9", whole + XERIAL[:8] + struct.pack(">ii", 9, 9) + b"\0"
    for tail in (
        b"\0",
        b"\0\0",
        b"abc",
        b"\0\0\0\0",
        b"\0\0\0\1",
        b"\0\0\0\1\0",
        b"\0\0\0\2\0",
        b"\0\0\0\x09ab",
        b"\xff" * 4,
        b"\x7f" + b"\xff" * 3,
    ):
        yield f"{tail.hex()} behind", whole + tail
    yield "an empty block between", XERIAL + first + snappy_block(b"") + second
    for version in ((0, 1), (1, 0), (0, 0), (9, 9), (-1, -1), (1, 2)):
        yield f"version {version}", XERIAL[:8] + struct.pack(">ii", *version) + snappy_block(data)
    yield "another magic", b"\x82SNAPPX\0" + whole[8:]
    yield "no blocks", XERIAL
    yield "half a header", XERIAL[:10]
    yield "short", whole[:-1]
    yield "block length too long", XERIAL + struct.pack(">i", 999) + whole[20:]
    yield "block longer than 32 KiB", XERIAL + snappy_block(data + b"")
    yield "claimed size too large", XERIAL + struct.pack(">i", 5 + len(raw)) + b"\xff\xff\xff\xff\x07" + raw
    yield "nothing", b""


def xxh32(data: bytes) -> int:
    """xxHash32, seed 0, of fewer than 16 bytes: a frame descriptor."""

    def turned(n: int, bits: int) -> int:
        return (n << bits | n >> (32 - bits)) & 0xFFFF_FFFF

    p1, p2, p3, p4, p5 = 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D, 0x27D4EB2F, 0x165667B1
    h, whole = p5 + len(data), len(data) // 4 * 4
    for i in range(0, whole, 4):
        h = turned(h + int.from_bytes(data[i : i + 4], "little") * p3 & 0xFFFF_FFFF, 17) * p4 & 0xFFFF_FFFF
    for byte in data[whole:]:
        h = turned(h + byte * p5 & 0xFFFF_FFFF, 11) * p1 & 0xFFFF_FFFF
    h = (h ^ h >> 15) * p2 & 0xFFFF_FFFF
    h = (h ^ h >> 13) * p3 & 0xFFFF_FFFF
    return h ^ h >> 16


def lz4_frame(
    blocks: bytes,
    flags: int = 0x60,
    size: int = 0x40,
    between: bytes = b"",
    end: bytes = bytes(4),
    check: int | None = None,
) -> bytes:
    """A frame around ready blocks; ``between`` is what the flags add to the descriptor."""
    descriptor = bytes((flags, size)) + between
    check = xxh32(descriptor) >> 8 & 0xFF if check is None else check
    return b"\x04\x22\x4d\x18" + descriptor + bytes((check,)) + blocks + end


def lz4_block(data: bytes, *, stored: bool = False, behind: bytes = b"") -> bytes:
    """One block of a frame."""
    block = data if stored else lz4.block.compress(data, store_size=False)
    return struct.pack("<I", len(block) | (0x8000_0000 if stored else 0)) + block + behind


def _lz4(data: bytes) -> Iterator[tuple[str, bytes]]:
    half = len(data) // 2
    blocks = lz4_block(data[:half]) + lz4_block(data[half:])
    whole = lz4_frame(blocks)
    yield "two blocks", whole
    yield "stored blocks", lz4_frame(lz4_block(data[:half], stored=True) + lz4_block(data[half:], stored=True))
    for tail in (b"\0", b"junk", bytes(12), whole, lz4_frame(lz4_block(b"more"))):
        yield f"{len(tail)} bytes behind, {tail[:4].hex()}", whole + tail
    yield "two frames", lz4_frame(lz4_block(data[:half])) + lz4_frame(lz4_block(data[half:]))
    yield "a skippable frame before", struct.pack("<II", 0x184D2A50, 3) + b"abc" + whole
    yield "end mark with the top bit", lz4_frame(blocks, end=b"\0\0\0\x80")
    yield "no end mark", lz4_frame(blocks, end=b"")
    yield "half an end mark", lz4_frame(blocks, end=b"\0\0")
    yield "content size", lz4_frame(blocks, 0x68, between=struct.pack("<Q", len(data)))
    yield "wrong content size", lz4_frame(blocks, 0x68, between=struct.pack("<Q", 7))
    yield "huge content size", lz4_frame(blocks, 0x68, between=struct.pack("<Q", 2**60))
    good = lz4.frame.compress(data, block_linked=False, content_checksum=True, store_size=False)
    yield "content checksum", good
    yield "wrong content checksum", good[:-4] + b"\1\1\1\1"
    yield "content checksum cut off", good[:-2]
    yield "content checksum missing", good[:-4]
    checked = lz4.frame.compress(data, block_linked=False, block_checksum=True, store_size=False)
    yield "block checksum", checked
    yield "wrong block checksum", checked[:-8] + b"\1\1\1\1" + bytes(4)
    yield "linked blocks", lz4.frame.compress(data, block_linked=True, store_size=False)
    yield "linked flag, small blocks", lz4_frame(blocks, 0x40)
    yield "dictionary flag", lz4_frame(blocks, 0x61, between=b"\1\2\3\4")
    yield "reserved flag", lz4_frame(blocks, 0x62)
    yield "version 0", lz4_frame(blocks, 0x20)
    yield "version 2", lz4_frame(blocks, 0xA0)
    for size in (0x00, 0x30, 0x50, 0x60, 0x70, 0x41, 0x48, 0xC0):
        yield f"block size byte {size:#x}", lz4_frame(blocks, size=size)
    yield "wrong header checksum", lz4_frame(blocks, check=0)
    yield "header checksum of format 0", lz4_frame(blocks, check=0x1A)
    yield "a block too large", lz4_frame(lz4_block(bytes(70_000), stored=True) + blocks)
    yield "a block that grows too large", lz4_frame(lz4_block(data + bytes(70_000)))
    yield "an empty compressed block", lz4_frame(struct.pack("<I", 1) + b"\0" + blocks)
    yield "short", whole[:-5]
    yield "no blocks", lz4_frame(b"")
    yield "half a header", whole[:6]
    yield "nothing", b""
    yield "the old magic", b"\x02\x21\x4c\x18" + whole[4:]


def zstd_frame(data: bytes, **options: bool) -> bytes:
    """One frame; options are those of the library."""
    return zstandard.ZstdCompressor(**{"write_content_size": False, **options}).compress(data)  # type: ignore[arg-type]  # bools


def _zstd(data: bytes) -> Iterator[tuple[str, bytes]]:
    half = len(data) // 2
    whole = zstd_frame(data)
    skippable = struct.pack("<II", 0x184D2A53, 3) + b"abc"
    yield "content size", zstd_frame(data, write_content_size=True)
    yield "checksum", zstd_frame(data, write_checksum=True)
    yield "wrong checksum", zstd_frame(data, write_checksum=True)[:-4] + b"\1\1\1\1"
    yield "two frames", zstd_frame(data[:half]) + zstd_frame(data[half:])
    yield "skippable before", skippable + whole
    yield "skippable between", zstd_frame(data[:half]) + skippable + zstd_frame(data[half:])
    yield "skippable behind", whole + skippable
    yield "an empty frame behind", whole + zstd_frame(b"")
    yield "a second frame cut off", whole + zstd_frame(data)[:-4]
    for tail in (
        b"\0",
        b"\x28",
        b"\x28\xb5",
        b"\x28\xb5\x2f",
        b"\x28\xb5\x2f\xfd",
        whole[:5],
        whole[:6],
        b"\0" * 4,
        b"junk!",
        skippable[:7],
        skippable[:-1],
    ):
        yield f"{tail.hex()} behind", whole + tail
    for cut in (1, 2, 5):
        yield f"{cut} bytes short", whole[:-cut]
    yield "junk", b"junk" * 5
    yield "nothing", b""
    yield "only a skippable frame", skippable
    window = struct.pack("<IBB", 0xFD2FB528, 0, 0xA8) + b"\x01\0\0"
    yield "window of 2 GiB", window


def _framings() -> Iterator[tuple[str, bytes]]:
    framings: dict[int, Callable[[bytes], Iterator[tuple[str, bytes]]]] = {1: _gzip, 2: _snappy, 3: _lz4, 4: _zstd}
    for count, size in ((5, 3), (40, 40)):
        data = plain_records(count, size)
        for codec, make in framings.items():
            yield f"{Codec(codec).label}, {count} records", batch(data, count, codec=codec)
            for name, packed in make(data):
                yield f"{Codec(codec).label}, {count} records, {name}", batch(data, count, codec=codec, packed=packed)
    data = plain_records(5)
    for codec in (0, 1, 2, 3, 4):
        for claimed in (0, 1, 2, 3, 4):
            packed = compress(Codec(codec), data)
            if codec != claimed:
                yield f"codec {codec} called {claimed}", batch(data, 5, codec=claimed, packed=packed)


def message(
    value: bytes | None,
    *,
    magic: int = 1,
    key: bytes | None = b"k",
    offset: int = 0,
    time: int = NOW,
    attributes: int = 0,
    size: int | None = None,
    crc: int | None = None,
    lengths: tuple[int, int] | None = None,
    tail: bytes = b"",
) -> bytes:
    """A v0 or v1 message; ``lengths`` to lie about key and value."""
    key_size, value_size = lengths or tuple(-1 if x is None else len(x) for x in (key, value))
    body = struct.pack(">bb", magic, attributes) + (struct.pack(">q", time) if magic else b"")
    body += struct.pack(">i", key_size) + (key or b"") + struct.pack(">i", value_size) + (value or b"") + tail
    crc = zlib.crc32(body) if crc is None else crc
    return struct.pack(">qiI", offset, len(body) + 4 if size is None else size, crc) + body


def wrapper(inner: bytes, codec: int, **fields: int) -> bytes:
    """A compressed message set."""
    attributes = fields.pop("attributes", 0)
    packed = compress(Codec(codec), inner)
    if codec == 3 and not fields.get("magic", 1):
        packed = packed[:6] + b"\x1a" + packed[7:]
    return message(packed, key=None, attributes=codec | attributes, **fields)  # type: ignore[arg-type]  # only numbers


def _legacy() -> Iterator[tuple[str, bytes]]:
    for magic in (0, 1):
        v = f"v{magic}"
        yield f"{v}", message(b"v", magic=magic, offset=5)
        yield f"{v}, nulls", message(None, key=None, magic=magic)
        yield f"{v}, bytes behind the value", message(b"v", magic=magic, tail=b"xyz")
        yield f"{v}, wrong CRC", message(b"v", magic=magic, crc=1)
        for lengths in ((-2, 1), (1, -2), (2, 1), (1, 2), (1, 0), (-(2**31), INT32)):
            yield f"{v}, lengths {lengths}", message(b"v", magic=magic, lengths=lengths)
        yield f"{v}, negative key length, no bytes", message(b"v", key=b"", magic=magic, lengths=(-9, 1))
        for bits in (0x10, 0x40, -128):
            yield f"{v}, attributes {bits}", message(b"v", magic=magic, attributes=bits)
        for time in (-1, -2, INT64, -(2**63)):
            yield f"{v}, timestamp {time}", message(b"v", magic=magic, time=time)
        yield f"{v}, LogAppendTime", message(b"v", magic=magic, attributes=8)
        for codec in (1, 2, 3):
            inner = b"".join(message(b"v%d" % i, magic=magic, offset=i, time=NOW + i) for i in range(3))
            for offset in (0, 1, 2, 9):
                yield f"{v} wrapper, codec {codec}, offset {offset}", wrapper(inner, codec, magic=magic, offset=offset)
            yield (
                f"{v} wrapper, codec {codec}, LogAppendTime",
                wrapper(inner, codec, magic=magic, offset=2, attributes=8),
            )
        gaps = [
            b"".join(message(b"v", magic=magic, offset=i) for i in places)
            for places in ((0, 2, 5), (2, 1, 0), (4, 4), (7, 8), (-3, 0))
        ]
        for number, inner in enumerate(gaps):
            yield f"{v} wrapper, inner offsets {number}", wrapper(inner, 1, magic=magic, offset=20)
        good = message(b"v", magic=magic)
        for name, inner in {
            "nothing inside": b"",
            "bytes behind": good + b"junk",
            "half a message behind": good + good[:-3],
            "a header behind": good + good[:12],
            "a size too small": good + struct.pack(">qi", 1, 13) + bytes(20),
            "inner CRC wrong": message(b"v", magic=magic, crc=7),
            "the other magic inside": message(b"v", magic=1 - magic),
            "both magics inside": good + message(b"w", magic=1 - magic, offset=1),
            "v2 inside": batch(record()),
            "compressed inside": wrapper(good, 1, magic=magic),
            "inner LogAppendTime": message(b"v", magic=magic, attributes=8),
            "inner bytes behind the value": message(b"v", magic=magic, tail=b"zz"),
        }.items():  # fmt: skip
            yield f"{v} wrapper, {name}", wrapper(inner, 1, magic=magic, offset=3)
        yield f"{v} wrapper, null value", message(None, magic=magic, attributes=1)
        yield f"{v} wrapper, zstd", wrapper(good, 4, magic=magic)
        yield f"{v} wrapper, codec 6", message(b"v", magic=magic, attributes=6)
        yield f"{v} wrapper, junk", message(b"junk", magic=magic, attributes=1)
        frame = compress(Codec.LZ4, good)
        for check in (0x82, 0x1A, 0x00):
            yield (
                f"{v} wrapper, lz4 header checksum {check:#x}",
                message(frame[:6] + bytes((check,)) + frame[7:], key=None, magic=magic, attributes=3),
            )


def _mutants(chance: random.Random) -> Iterator[tuple[str, bytes]]:
    """Good batches with one to three bytes changed: in the header behind the CRC, in the records, in what is packed."""
    for number in range(MUTANTS):
        count, codec = chance.randint(1, 6), chance.choice((0, 0, 0, 1, 2, 3, 4))
        records = bytearray()
        for i in range(count):
            key, value = (field(chance.choice((None, b"", chance.randbytes(chance.randint(1, 70))))) for _ in range(2))
            headers = [
                (chance.choice((b"", b"name", b"a", chance.randbytes(3))), chance.choice((None, b"x")))
                for _ in range(chance.choice((0, 0, 1, 3)))
            ]
            records += record(i, chance.choice((0, i, -3, 70_000)), key, value, named(*headers))
        where = chance.choice(("header", "records", "packed"))
        for _ in range(chance.randint(1, 3) if where == "records" else 0):
            records[chance.randrange(len(records))] = chance.choice((0, 1, 2, 0x7F, 0x80, 0xFF, chance.randrange(256)))
        data = bytearray(batch(bytes(records), count, codec=codec, max_time=NOW + 70_000))
        if where != "records":
            low, high = (21, 61) if where == "header" else (61, len(data))
            for _ in range(chance.randint(1, 2)):
                data[chance.randrange(low, high)] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)))
            data[22] &= ~0x10  # a transaction is another matter
        yield f"mutant {number}, codec {codec}, {where}", sealed(bytes(data))


def odd_batches(seed: int) -> list[OddBatch]:
    """All of them; only the mutants depend on ``seed``. Compressed bytes may differ between versions of libraries."""
    families = (_headers(), _records(), _names(), _framings(), _legacy(), _mutants(random.Random(seed)))
    found = {name: data for family in families for name, data in family}
    return [OddBatch(name, data) for name, data in found.items()]


class Sent(NamedTuple):
    """What a broker made of a batch: Kafka's error code (0 taken, -1 an error of its own, ``HUNG_UP``), its time if
    it stamped the batch (else -1), and the bytes that it stored."""

    code: int
    time: int
    stored: bytes | None


class Answer(NamedTuple):
    """``reads``: the records as Kafka's consumer decodes them (:func:`shown`), None if it refuses."""

    batch: OddBatch
    reads: list[Any] | None
    sent: dict[str, Sent]


def shown(header: BatchHeader, records: Iterable[Record]) -> list[Any]:
    """Our records as ``DecodeBatches.java`` prints those of Kafka."""
    kind = int(header.timestamp_type) if header.magic else 0
    return [
        [r.offset, r.timestamp, kind, _text(r.key), _text(r.value), [[name, _text(value)] for name, value in r.headers]]
        for r in records
    ]


def _text(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def _data(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def write_answers(seed: int, answers: Iterable[Answer]) -> None:
    """Keeps them beside the other golden data, the same bytes for the same answers."""
    rows = [
        {
            "name": one.batch.name,
            "batch": _text(one.batch.data),
            "reads": one.reads,
            "sent": {topic: [sent.code, sent.time, _text(sent.stored)] for topic, sent in one.sent.items()},
        }
        for one in answers
    ]
    text = json.dumps({"kafka": "4.1.1", "seed": seed, "answers": rows}, indent=0)
    ARCHIVE.write_bytes(gzip.compress(text.encode(), mtime=0))


def golden_answers() -> list[Answer]:
    """What was kept."""
    rows = json.loads(gzip.decompress(ARCHIVE.read_bytes()))["answers"]
    return [
        Answer(
            OddBatch(row["name"], _data(row["batch"]) or b""),
            row["reads"],
            {topic: Sent(code, time, _data(stored)) for topic, (code, time, stored) in row["sent"].items()},
        )
        for row in rows
    ]
