"""A reader of format 1 that imports nothing of the product: what the documents draw is enough to read all data.

A directory of a store holds one file for each object, its body first. The root of a partition names the segments,
itself and through pages. A segment is a file of Kafka's batches, on disk and in the bucket. A group has a plan, and one
object for each member and each partition, in JSON.
"""

from __future__ import annotations

import gzip
import json
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

import pyarrow
import zstandard

TRAILER = struct.Struct("<8s16sQqII12xI")
SIZES = {"<i8": ("q", 8), "<i4": ("i", 4)}
SEGMENT_FLAG_MAINTAINER, SEGMENT_FLAG_HOLE = 1, 2
POINTER_FLAG_MAINTAINER = 1


class Batch(NamedTuple):
    """One batch of Kafka's format 2, decompressed."""

    base: int
    last: int
    attributes: int
    base_ms: int
    producer: int
    body: bytes


def objects(bucket: Path) -> dict[str, bytes]:
    """Return key and body of each object in a directory store."""
    found: dict[str, bytes] = {}
    for path in bucket.rglob("*.obj"):
        data = path.read_bytes()
        magic, _, size, _, key_bytes, crc, _ = TRAILER.unpack(data[-TRAILER.size :])
        assert magic == b"TLOBJ\0\0\1"
        assert crc32c(data[:size]) == crc
        found[data[size : size + key_bytes].decode()] = data[:size]
    return found


def framed(data: bytes) -> tuple[dict[str, Any], dict[str, list[dict[str, int]]]]:
    """Return the header and the tables of a root or page, by name, a dictionary for each row."""
    magic, number, _, header_bytes = struct.unpack_from("<4sHHI", data)
    assert (magic, number) == (b"OLC1", 1)
    assert struct.unpack("<I", data[-4:])[0] == crc32c(data[:-4])
    header = json.loads(data[12 : 12 + header_bytes])
    body = data[12 + header_bytes : -4]
    assert header["codec"] in ("zstd", "none")
    raw = zstandard.ZstdDecompressor().decompress(body) if header["codec"] == "zstd" else body
    assert len(raw) == header["raw_len"]
    tables: dict[str, list[dict[str, int]]] = {}
    at = 0
    for name, rows, columns in header["tables"]:
        values: dict[str, tuple[int, ...]] = {}
        for column, dtype in columns:
            letter, width = SIZES[dtype]
            values[column] = struct.unpack_from(f"<{rows}{letter}", raw, at)
            at += rows * width
        tables[name] = [dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True)]
    assert at == len(raw)
    return header, tables


def uid(row: dict[str, int]) -> str:
    """Return the id in an object's key."""
    return f"{row['id_hi'] % 2**64:016x}{row['id_lo'] % 2**64:016x}"


def segments(found: dict[str, bytes], prefix: str) -> Iterator[tuple[dict[str, int], bytes]]:
    """Yield the live rows of a partition and the bytes of their segments, in order."""
    _, root = framed(found[f"{prefix}/root"])
    rows = [row for pointer in (*root.get("inner", ()), *root.get("leaf", ())) for row in leaf(found, prefix, pointer)]
    for row in (*rows, *root.get("tail", ())):
        if row["flags"] & SEGMENT_FLAG_HOLE:
            continue
        role = "m" if row["flags"] & SEGMENT_FLAG_MAINTAINER else "w"
        data = found[f"{prefix}/s/{role}{row['claim_epoch']:08x}/{row['base']:020d}-{uid(row)}.log"]
        assert (len(data), crc32c(data)) == (row["size"], row["crc"])
        yield row, data


def leaf(found: dict[str, bytes], prefix: str, pointer: dict[str, int]) -> Iterator[dict[str, int]]:
    """Yield the rows below a pointer."""
    role = "m" if pointer["flags"] & POINTER_FLAG_MAINTAINER else "w"
    header, tables = framed(found[f"{prefix}/p/{role}{pointer['epoch']:08x}/{uid(pointer)}.page"])
    if header["kind"] == "leaf":
        yield from tables["rows"]
    for below in tables.get("pointers", ()):
        yield from leaf(found, prefix, below)


def batches(data: bytes) -> Iterator[Batch]:
    """Yield the batches of a segment."""
    at = 0
    while at < len(data):
        base, length, _, magic, crc = struct.unpack_from(">qiibI", data, at)
        assert magic == 2
        assert crc32c(data[at + 21 : at + 12 + length]) == crc
        attributes, delta, base_ms, _, producer = struct.unpack_from(">hiqqq", data, at + 21)
        body = decompressed(data[at + 61 : at + 12 + length], attributes & 7)
        yield Batch(base, base + delta, attributes, base_ms, producer, body)
        at += 12 + length


def decompressed(body: bytes, codec: int) -> bytes:
    """Return the records of a batch, decompressed: 1 gzip, 2 snappy in xerial's frame, 3 lz4's frame, 4 zstd."""
    if codec == 1:
        return gzip.decompress(body)
    if codec == 2:
        return b"".join(snappy_blocks(body))
    if codec == 3:
        stream = pyarrow.CompressedInputStream(pyarrow.BufferReader(body), "lz4")
        return bytes(stream.read())
    return zstandard.ZstdDecompressor().decompressobj().decompress(body) if codec == 4 else body


def snappy_blocks(body: bytes) -> Iterator[bytes]:
    """Yield the blocks of xerial's frame: 16 bytes of head, then the length of each block before it."""
    assert body.startswith(b"\x82SNAPPY\0")
    at = 16
    while at < len(body):
        size = struct.unpack_from(">i", body, at)[0]
        block = body[at + 4 : at + 4 + size]
        length, _ = varint(block, 0)
        yield bytes(pyarrow.decompress(block, decompressed_size=length, codec="snappy"))
        at += 4 + size


def varint(data: bytes, at: int) -> tuple[int, int]:
    """Return an unsigned varint and the position after it."""
    value = shift = 0
    while True:
        value |= (data[at] & 0x7F) << shift
        at, shift, more = at + 1, shift + 7, data[at] & 0x80
        if not more:
            return value, at


def zigzag(data: bytes, at: int) -> tuple[int, int]:
    """Return a signed varint and the position after it."""
    value, at = varint(data, at)
    return (value >> 1) ^ -(value & 1), at


def some(data: bytes, at: int) -> tuple[bytes | None, int]:
    """Return bytes after their length, None for length -1, and the position after them."""
    size, at = zigzag(data, at)
    return (None, at) if size < 0 else (data[at : at + size], at + size)


def records(batch: Batch) -> Iterator[tuple[int, int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]]:
    """Yield (offset, timestamp, key, value, headers) of the records of a batch."""
    at = 0
    while at < len(batch.body):
        size, at = zigzag(batch.body, at)
        end = at + size
        delta_ms, at = zigzag(batch.body, at + 1)
        delta, at = zigzag(batch.body, at)
        key, at = some(batch.body, at)
        value, at = some(batch.body, at)
        count, at = zigzag(batch.body, at)
        headers: list[tuple[str, bytes | None]] = []
        for _ in range(count):
            name, at = some(batch.body, at)
            content, at = some(batch.body, at)
            headers.append(((name or b"").decode(), content))
        assert at == end
        yield batch.base + delta, batch.base_ms + delta_ms, key, value, headers


def visible(found: list[Batch], start: int, *, committed: bool) -> Iterator[Any]:
    """Yield the records from ``start`` on: without control records, and where ``committed`` without aborted ones."""
    aborted: dict[int, list[int]] = {}
    for batch in found:
        if batch.attributes & 0x20:
            _, _, key, _, _ = next(records(batch))
            kind = struct.unpack(">hh", key or b"")[1]
            aborted.setdefault(batch.producer, []).append(batch.base if kind == 0 else -batch.base)
    for batch in found:
        if batch.attributes & 0x20:
            continue
        ends = [at for at in aborted.get(batch.producer, ()) if abs(at) > batch.base]
        is_hidden = committed and batch.attributes & 0x10 and ends and min(ends, key=abs) > 0
        for record in records(batch):
            if record[0] >= start and not is_hidden:
                yield record


def bucket_partitions(bucket: Path) -> Iterator[tuple[str, int, list[Batch]]]:
    """Yield name, earliest offset and batches of each partition of a bucket."""
    found = objects(bucket)
    for key, data in found.items():
        if re.fullmatch("../[0-9a-f]{32}-[0-9]+/root", key):
            header, _ = framed(data)
            whole = [batch for _, log in segments(found, key.removesuffix("/root")) for batch in batches(log)]
            yield f"{header['name']}-{header['partition']}", header["start_offset"], whole


def groups(bucket: Path) -> dict[str, dict[str, list[Any]]]:
    """Return [name of the owner, offset, metadata] of each partition, by group. The plan and the members must agree."""
    shared: dict[str, dict[str, dict[str, Any]]] = {}
    for key, data in objects(bucket).items():
        if key.startswith("groups/"):
            _, group, kind, *name = key.split("/")
            value = json.loads(data)
            assert value["format"] == 1
            shared.setdefault(unquote(group), {}).setdefault(kind, {})[unquote("/".join(name))] = value
    found: dict[str, dict[str, list[Any]]] = {}
    for group, kinds in shared.items():
        ids = {name: topic_id for name, topic_id, _, _ in kinds["plan"][""]["topics"]}
        planned = kinds["plan"][""]["members"]
        assert sorted(kinds.get("members", {})) == sorted(member for member, _, _ in planned)
        owned = {
            f"{ids[topic]}-{partition}": member
            for member, _, shares in planned
            for topic, numbers in shares
            for partition in numbers
        }
        found[group] = {}
        for name, value in kinds["partitions"].items():
            assert name.rpartition("-")[0] == ids[value["topic"]]
            assert value["owner"] == owned.get(name, "")
            place = f"{value['topic']}-{name.rpartition('-')[2]}"
            found[group][place] = [value["owner"].rpartition("~")[0], value["offset"], value["metadata"]]
    return found


def copied_positions(bucket: Path) -> dict[str, dict[str, list[Any]]]:
    """Return [offset, metadata] of each partition, by group of a log: the copies beside the roots."""
    found: dict[str, dict[str, list[Any]]] = {}
    for key, data in objects(bucket).items():
        if key.endswith("/positions"):
            value = json.loads(data)
            assert value["format"] == 1
            place = f"{value['topic']}-{key.split('/')[1].rpartition('-')[2]}"
            for group, offset, _, metadata, _ in value["groups"]:
                found.setdefault(group, {})[place] = [offset, metadata]
    return found


def disk_partitions(directory: Path) -> Iterator[tuple[str, int, list[Batch]]]:
    """Yield name, earliest offset and batches of each partition of a log directory."""
    lines = (directory / "log-start-offset-checkpoint").read_text().splitlines()[2:]
    starts = {f"{name}-{partition}": int(offset) for name, partition, offset in (line.split() for line in lines)}
    for folder in sorted(path for path in directory.iterdir() if path.is_dir()):
        logs = sorted(folder.glob("*.log"))
        whole = [batch for path in logs for batch in batches(path.read_bytes())]
        yield folder.name, starts.get(folder.name, int(logs[0].stem) if logs else 0), whole


def crc32c(data: bytes) -> int:
    """Return the CRC-32C (Castagnoli)."""
    value = 0xFFFFFFFF
    for byte in data:
        value = (value >> 8) ^ _TABLE[(value ^ byte) & 0xFF]
    return value ^ 0xFFFFFFFF


def _entry(value: int) -> int:
    for _ in range(8):
        value = (value >> 1) ^ (0x82F63B78 * (value & 1))
    return value


_TABLE = [_entry(number) for number in range(256)]
