"""Record batches: the unit that is appended, stored, checksummed, uploaded and read.

``header`` draws and reads the 61 bytes of the header. The records follow, compressed as one piece unless the codec
is 0. Format v2 is written; v2, v1 and v0 are read.

Positions in errors are relative to the buffer that was passed in.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple, cast

from tiered.config import MAX_LONG
from tiered.errors import CorruptionError, InvalidRecordError, InvalidTimestampError, RecordTooLargeError
from tiered.format import kernels, legacy
from tiered.format.batch_scanner import walk_headers as walk
from tiered.format.codecs import MAX_DECOMPRESSED_BYTES, Codec, codec_of, compress, decompress
from tiered.format.control import ControlType, control_type, marker
from tiered.format.header import (
    CODEC_MASK,
    CONTROL_BIT,
    DELETE_HORIZON_BIT,
    HEADER_BYTES,
    LOG_APPEND_TIME_BIT,
    LOG_OVERHEAD_BYTES,
    MAX_BATCH_BYTES,
    PREFIX_BYTES,
    TRANSACTIONAL_BIT,
    BatchHeader,
    Buffer,
    header_of_message,
    read_header,
)
from tiered.format.kernel_values import BatchForm, Shown
from tiered.format.kernels import ConsumerRecord, Record, assign_offsets, crc32c, scan
from tiered.format.pure_kernels import as_bytes, chosen
from tiered.model import NewRecord, TimestampType

__all__ = [
    "HEADER_BYTES",
    "MAX_BATCH_BYTES",
    "PREFIX_BYTES",
    "BatchHeader",
    "ControlType",
    "assign_offsets",
    "consumer_records",
    "control_type",
    "decode_records",
    "encode_batch",
    "least_timestamp",
    "read_header",
    "rebased",
    "rebuild_batch",
    "scan",
    "verify_batch",
    "walk",
]

_CRC_START = 21
_CHECKED = struct.Struct(">hiqqqhii")  # attributes to records_count: the part of the header under the CRC
_UNCHECKED = struct.Struct(">qiibI")  # base offset to CRC
_BASE_OFFSET = struct.Struct(">q")
_LEADER_EPOCH = struct.Struct(">i")
_LEADER_EPOCH_AT = 12


def rebased(
    batch: memoryview, header: BatchHeader, base_offset: int, leader_epoch: int
) -> tuple[BatchHeader, memoryview]:
    """Return (header, bytes) of a copy of the v2 batch ``batch``, whose header is ``header``.

    ``base_offset`` is added to the copy's offsets. ``leader_epoch`` replaces the leader epoch.
    """
    moved = header._replace(base_offset=header.base_offset + base_offset, leader_epoch=leader_epoch)
    data = bytearray(batch)
    # base offset and leader epoch are 12 bytes outside the CRC, so that it stays valid
    _BASE_OFFSET.pack_into(data, 0, moved.base_offset)
    _LEADER_EPOCH.pack_into(data, _LEADER_EPOCH_AT, leader_epoch)
    return moved, memoryview(data).toreadonly()


def verify_batch(buf: Buffer, header: BatchHeader | None = None) -> BatchHeader:
    """Check lengths, counts and CRC of ``buf``, which must be exactly one batch, and return its header.

    ``header``: that of ``buf`` if the caller has read it. None: it is read from ``buf``. For a compressed v0/v1 wrapper
    the returned header has the real ``base_offset`` and ``records_count``. Raises ``CorruptionError`` if a check fails.
    """
    if header is None:
        intact = kernels.intact_header(buf, BatchHeader)
        if intact is not None:
            return intact
        header = read_header(buf)
    if header.batch_length + LOG_OVERHEAD_BYTES != len(buf):
        raise CorruptionError(
            f"the batch is cut off: its header says {header.size_bytes} bytes, {len(buf)} are there", position=0
        )
    if header.magic < 2:
        message = legacy.read_message(buf, 0)
        legacy.verify_message(buf, message)
        if not message.attributes & CODEC_MASK:
            return header
        records = list(legacy.decode_message(buf, message, MAX_DECOMPRESSED_BYTES, check_crcs=True))
        return header_of_message(message, min(r.offset for r in records), len(records))
    crc = crc32c(memoryview(buf)[_CRC_START:])
    if crc != header.crc:
        raise CorruptionError(
            f"CRC mismatch at offset {header.base_offset}: stored {header.crc:#010x}, computed {crc:#010x}",
            position=0,
            offset=header.base_offset,
        )
    if header.records_count > header.last_offset_delta + 1:
        raise CorruptionError(
            f"the batch at offset {header.base_offset} has {header.records_count} records, but spans "
            f"{header.last_offset_delta + 1} offsets",
            position=0,
            offset=header.base_offset,
        )
    return header


def decode_records(buf: Buffer, *, max_bytes: int = MAX_DECOMPRESSED_BYTES) -> Iterator[Record]:
    """Return an iterator over the records of the one whole batch in ``buf``, also of a control batch.

    Does not check the CRC; :func:`verify_batch` does. ``max_bytes``: limit of the decompressed records. Records of a
    LogAppendTime batch all report its ``max_timestamp``. Raises ``CorruptionError`` at the call for a bad header or
    compression, and for all damage in v0 and v1. In v2 the iterator raises it at the damaged record. Its position
    counts in the decompressed records.
    """
    quickly = kernels.batch_records(buf, None)
    if quickly is not None:
        return cast("Iterator[Record]", quickly)
    header = _whole(buf)
    if header.magic < 2:
        return legacy.decode_message(buf, legacy.read_message(buf, 0), max_bytes)
    if header.records_count == 0:
        return iter(())
    return kernels.decode_records(*_payload(buf, header, max_bytes))


def records_extent(buf: Buffer, header: BatchHeader) -> tuple[int, int, int] | None:
    """Return (lowest offset, highest offset, lowest timestamp) of the records of the one batch in ``buf``.

    The timestamp is -1 if no record has one. None means that the fast path does not apply: use :func:`decode_records`,
    which also reports damage. Raises CorruptionError if decompression fails.
    """
    if header.magic < 2 or kernels.KERNELS_IN_USE == kernels.PURE:
        return None
    data, count, offset, timestamp, append_time, begin = _payload(buf, header, MAX_DECOMPRESSED_BYTES)
    found = kernels.records_extent(data, count, offset, timestamp, begin)
    return found if found is None or append_time is None else (found[0], found[1], max(append_time, -1))


def consumer_records(buf: Buffer, shown: Shown) -> Iterator[ConsumerRecord]:
    """Return an iterator over those records of the one whole batch in ``buf`` that are within the bounds of ``shown``.

    Does not check the CRC. Raises ``CorruptionError`` at the call for a bad header or compression, and for all damage
    in v0 and v1. In v2 the iterator raises it at the damaged record.
    """
    quickly = kernels.batch_records(buf, shown)
    if quickly is not None:
        return cast("Iterator[ConsumerRecord]", quickly)
    header = _whole(buf)
    if header.magic < 2:
        return chosen(legacy.decode_message(buf, legacy.read_message(buf, 0), MAX_DECOMPRESSED_BYTES), shown)
    if header.records_count == 0:
        return iter(())
    data, count, offset, timestamp, append_time, begin = _payload(buf, header, MAX_DECOMPRESSED_BYTES)
    return kernels.consumer_records(data, count, offset, timestamp, append_time, shown, begin)


def _whole(buf: Buffer) -> BatchHeader:
    header = read_header(buf)
    if header.batch_length + LOG_OVERHEAD_BYTES != len(buf):
        raise CorruptionError(
            f"the batch is cut off: its header says {header.size_bytes} bytes, {len(buf)} are there", position=0
        )
    return header


def _payload(buf: Buffer, header: BatchHeader, max_bytes: int) -> tuple[Buffer, int, int, int, int | None, int]:
    """Return (data, record count, base offset, base timestamp, append time, position of the first record in data).

    Data: the decompressed records, or all of ``buf`` if the batch is not compressed. Append time: None unless
    LogAppendTime. ``max_bytes``: limit of the decompressed records. Raises CorruptionError if decompression fails.
    """
    attributes = header.attributes
    compressed = attributes & CODEC_MASK
    data = decompress(codec_of(attributes), memoryview(buf)[HEADER_BYTES:], max_bytes=max_bytes) if compressed else buf
    append_time = header.max_timestamp if attributes & LOG_APPEND_TIME_BIT else None
    begin = 0 if compressed else HEADER_BYTES
    return data, header.records_count, header.base_offset, header.base_timestamp, append_time, begin


def least_timestamp(header: BatchHeader, batch: Buffer) -> int:
    """Return the lowest timestamp of a verified batch's records, -1 if none has one.

    Falls back to the header if the records cannot be decoded: Kafka's followers store such batches of a leader.
    """
    if not header.records_count:
        return -1  # compaction emptied the batch; its max_timestamp is that of removed records
    if header.records_count <= 1 or header.timestamp_type:
        return header.max_timestamp
    try:
        found = records_extent(batch, header)
        if found is not None:
            return found[2]
        return min((record.timestamp for record in decode_records(batch) if record.timestamp >= 0), default=-1)
    except CorruptionError:
        return min((at for at in (header.base_timestamp, header.max_timestamp) if at >= 0), default=-1)


class BatchProducer(NamedTuple):
    """Producer fields of a batch's header, and its transactional and control bits. -1: no producer.

    ``sequence``: sequence number of the first record.
    """

    id: int = -1
    epoch: int = -1
    sequence: int = -1
    transactional: bool = False
    control: bool = False


def encode_batch(
    records: Sequence[NewRecord],
    *,
    base_offset: int = 0,
    leader_epoch: int = -1,
    codec: Codec = Codec.NONE,
    level: int | None = None,
    timestamp_type: TimestampType = TimestampType.CREATE_TIME,
    append_time_ms: int = -1,
    producer: BatchProducer = BatchProducer(),  # noqa: B008 - it never changes
) -> bytes:
    """Return one v2 batch of ``records`` at consecutive offsets from ``base_offset``. Timestamps are >= 0; -1: none.

    ``level`` None: the default of ``codec``. Keys and values are ``bytes`` or a contiguous buffer of single bytes
    (``bytearray``, ``memoryview``, an array of uint8). Other buffers are refused: an array of integers has no byte
    order that all readers know. With LogAppendTime the batch reports ``append_time_ms`` for all records; the deltas
    keep the given timestamps, as a broker leaves them. Raises ``InvalidRecordError`` for no records or a bad one (with
    its index), ``InvalidTimestampError``, ``RecordTooLargeError`` beyond 2^31-1 bytes or, with a codec, beyond
    ``MAX_DECOMPRESSED_BYTES``, and ``ConfigError`` for a level that the codec does not have.
    """
    if not records:
        raise InvalidRecordError("a batch needs at least one record")
    if timestamp_type and append_time_ms < 0:
        raise InvalidTimestampError(f"append_time_ms={append_time_ms} is not a time, which LogAppendTime needs")
    attributes = LOG_APPEND_TIME_BIT if timestamp_type else 0
    attributes |= (TRANSACTIONAL_BIT if producer.transactional else 0) | (CONTROL_BIT if producer.control else 0)
    if not codec:
        form = _form(attributes, MAX_BATCH_BYTES)
        whole = kernels.encode_batch(records, form, -1, append_time_ms, base_offset, leader_epoch, producer[:3])
        if whole is not None:
            return bytes(whole[0])
    try:
        base_timestamp = records[0][2]
        if base_timestamp < -1:  # the encoder looks at those that differ from the first
            raise InvalidTimestampError(f"timestamp {base_timestamp} is negative")
        data, max_timestamp = kernels.encode_records(records, base_timestamp)
        if timestamp_type:
            max_timestamp = append_time_ms
        if codec:
            attributes |= int(codec)
            data = compress(codec, _readable(data), level)
        count = len(records)
        checked = _CHECKED.pack(attributes, count - 1, base_timestamp, max_timestamp, *producer[:3], count)
    except (
        TypeError,
        ValueError,
        AttributeError,
        BufferError,
        struct.error,
        OverflowError,
        InvalidTimestampError,
    ) as e:
        raise _blame(records, e) from e
    return _assemble(base_offset, leader_epoch, checked, data)


@cache
def _form(attributes: int, most_bytes: int) -> BatchForm:
    """Return the encoder's settings for records that were checked before: any timestamp, no key needed."""
    return BatchForm(False, most_bytes, attributes, False, False, before_ms=MAX_LONG, after_ms=MAX_LONG)


def encode_marker(
    kind: ControlType,
    coordinator_epoch: int,
    timestamp: int,
    *,
    producer_id: int,
    producer_epoch: int,
    base_offset: int = 0,
    leader_epoch: int = -1,
) -> bytes:
    """Return the batch of an ABORT or COMMIT marker, which ends the transaction of a producer."""
    return encode_batch(
        [marker(kind, coordinator_epoch, timestamp)],
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        producer=BatchProducer(producer_id, producer_epoch, transactional=True, control=True),
    )


def _readable(data: Buffer) -> Buffer:
    """Return ``data`` for compression. Raises RecordTooLargeError if readers would refuse to decompress it."""
    if len(data) > MAX_DECOMPRESSED_BYTES:
        raise RecordTooLargeError(
            f"a compressed batch has {len(data)} bytes of records, and readers decompress at most "
            f"{MAX_DECOMPRESSED_BYTES}",
            hint="append fewer records at once, or without compression",
        )
    return data


def _assemble(base_offset: int, leader_epoch: int, checked: bytes, data: Buffer) -> bytes:
    size = HEADER_BYTES + len(data)
    if size > MAX_BATCH_BYTES:
        raise RecordTooLargeError(f"the batch has {size} bytes, and the format allows at most {MAX_BATCH_BYTES}")
    crc = crc32c(data, crc32c(checked))
    return b"".join((_UNCHECKED.pack(base_offset, size - LOG_OVERHEAD_BYTES, leader_epoch, 2, crc), checked, data))


def _not_bytes(what: str, field: object, index: int) -> InvalidRecordError | None:
    """Return the error for a ``field`` that cannot be stored as bytes, or None if it can."""
    try:
        if field is not None:
            as_bytes(field)
    except (TypeError, ValueError, BufferError):
        hint = "pass its bytes, for an array in the byte order that readers expect: array.tobytes()"
        return InvalidRecordError(f"{what} is {type(field).__name__}, not bytes", index=index, hint=hint)
    return None


def _blame(records: Sequence[Any], cause: Exception) -> InvalidRecordError:
    """Return the error for ``records``, which could not be encoded. It names the first bad record and the reason."""
    for i, record in enumerate(records):
        if not isinstance(record, tuple) or len(record) != 4:
            return InvalidRecordError(
                f"record {i} is {type(record).__name__}, not (value, key, timestamp, headers)", index=i
            )
        value, key, timestamp, headers = record
        for what, field in (("value", value), ("key", key)):
            if (refusal := _not_bytes(f"record {i}: {what}", field, i)) is not None:
                return refusal
        if not isinstance(timestamp, int) or not -1 <= timestamp < 2**63:
            return InvalidTimestampError(f"record {i}: {timestamp!r} is not a timestamp in milliseconds", index=i)
        for header in headers or ():
            if not isinstance(header, (tuple, list)) or len(header) != 2:
                return InvalidRecordError(f"record {i}: header {header!r} is not a (name, value) pair", index=i)
            if not isinstance(header[0], str):
                return InvalidRecordError(
                    f"record {i}: name of header {header[0]!r} is {type(header[0]).__name__}, not str", index=i
                )
            try:
                header[0].encode()
            except UnicodeEncodeError:
                return InvalidRecordError(f"record {i}: name of header {header[0]!r} is not valid Unicode", index=i)
            if (refusal := _not_bytes(f"record {i}: value of header {header[0]!r}", header[1], i)) is not None:
                return refusal
    return InvalidRecordError(f"the batch of {len(records)} records cannot be encoded: {cause}")


def recoded_batch(header: BatchHeader, batch: Buffer, codec: Codec, level: int | None = None) -> bytes:
    """Return a verified v2 batch in another codec: same record bytes, same header except for the codec, size and CRC.

    Records are not decoded. ``level`` None: the default of ``codec``. Raises ``CorruptionError`` if decompression
    fails, ``ConfigError`` for a level that ``codec`` does not have.
    """
    data = decompress(header.codec, memoryview(batch)[HEADER_BYTES:])
    checked = _CHECKED.pack(
        header.attributes & ~CODEC_MASK | int(codec),
        header.last_offset_delta,
        header.base_timestamp,
        header.max_timestamp,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        header.records_count,
    )
    return _assemble(header.base_offset, header.leader_epoch, checked, compress(codec, data, level))


def empty_batch(base_offset: int, end_offset: int, leader_epoch: int) -> bytes:
    """Return a 61-byte batch without records or producer. Compaction writes it to cover offsets that it emptied.

    The batch covers the offsets from ``base_offset`` to ``end_offset`` (exclusive).
    """
    checked = _CHECKED.pack(0, end_offset - base_offset - 1, -1, -1, -1, -1, -1, 0)
    return _assemble(base_offset, leader_epoch, checked, b"")


def rebuild_batch(
    header: BatchHeader,
    records: Sequence[Record],
    *,
    codec: Codec | None = None,
    delete_horizon_ms: int | None = None,
) -> bytes:
    """Return the batch of ``header`` with only ``records``, a subset of its own at unchanged offsets, for compaction.

    Keeps offsets, last offset, epochs, producer fields and type bits. ``delete_horizon_ms`` sets bit 6 and becomes the
    base of the timestamp deltas, so that decoded timestamps do not change. None keeps a horizon of the header.
    Without records the result is Kafka's empty batch: 61 bytes, base timestamp -1, no codec, no horizon.
    ``codec`` None keeps the batch's own. Raises RecordTooLargeError if readers would refuse the batch.
    """
    if not records:
        return rebuild_encoded(header, b"", 0, base_timestamp=-1, max_timestamp=-1)
    horizon = header.delete_horizon_ms if delete_horizon_ms is None else delete_horizon_ms
    base_timestamp = records[0].timestamp if horizon is None else horizon
    data = b"".join(
        kernels.encode_record_at(r.offset - header.base_offset, r.timestamp - base_timestamp, r.key, r.value, r.headers)
        for r in records
    )
    return rebuild_encoded(
        header,
        data,
        len(records),
        base_timestamp=base_timestamp,
        max_timestamp=max(r.timestamp for r in records),
        codec=codec,
        has_horizon=horizon is not None,
    )


def rebuild_encoded(
    header: BatchHeader,
    data: bytes,
    count: int,
    *,
    base_timestamp: int,
    max_timestamp: int,
    codec: Codec | None = None,
    has_horizon: bool = False,
) -> bytes:
    """Return the batch of ``header`` with other records: ``data``, which is ``count`` encoded records. For compaction.

    Keeps offsets, epochs, producer fields and type bits. ``base_timestamp``: base of the timestamp deltas in ``data``;
    with ``has_horizon`` also the delete horizon. ``max_timestamp``: largest timestamp of the records. ``codec`` None
    keeps the batch's own. ``count`` 0: a batch without records. Raises RecordTooLargeError if readers would refuse it.
    """
    attributes = header.attributes & (LOG_APPEND_TIME_BIT | TRANSACTIONAL_BIT | CONTROL_BIT)
    if count:
        attributes |= DELETE_HORIZON_BIT if has_horizon else 0
        codec = header.codec if codec is None else codec
        if codec:
            attributes |= int(codec)
            data = compress(codec, _readable(data))
    if not count or attributes & LOG_APPEND_TIME_BIT:
        max_timestamp = header.max_timestamp
    checked = _CHECKED.pack(
        attributes,
        header.last_offset_delta,
        base_timestamp,
        max_timestamp,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        count,
    )
    return _assemble(header.base_offset, header.leader_epoch, checked, data)
