"""Encoded batches of producers and coordinators on their way into the log, where they get their offsets.

A producer's batch stays byte for byte what was sent where Kafka leaves it so: same codec, offsets
0, 1, 2, ...; then only these fields of its header change, and the CRC with the last two of them::

     0  base_offset    i64   given under the lock        21  attributes     i16   bit 3: timestamp type
    12  leader_epoch   i32   given under the lock        35  max_timestamp  i64
    17  crc            u32   of bytes 21 to the end

Anything else is decoded and encoded again. Format v0 and v1 becomes v2.

Kafka's rule: docs/kafka-semantics.md#append-validation.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Sequence

from tiered.errors import CorruptionError, InvalidRecordError, InvalidTimestampError, RecordTooLargeError
from tiered.format.batch import (
    HEADER_BYTES,
    BatchHeader,
    BatchProducer,
    decode_records,
    encode_batch,
    least_timestamp,
    read_header,
    verify_batch,
)
from tiered.format.batch_scanner import BatchWalk, corrupt_at, hop
from tiered.format.codecs import Codec, has_linked_blocks
from tiered.format.header import KNOWN_BITS, LOG_APPEND_TIME_BIT
from tiered.format.kernels import Record, crc32c
from tiered.local.partition.validation import RecordRules
from tiered.local.segment.active import BatchFacts
from tiered.model import NewRecord, TimestampType

MAX_BATCH_RECORDS = 1 << 20
"""Records of one batch that is appended; all of them are in memory at once, and seven bytes hold one.

Above what Kafka's clients put into a batch (librdkafka: a million). What a leader sent, or a broker has written, is
taken and read whatever its number: that is read record by record.
"""

_V2 = 2
_CRC_AT, _ATTRIBUTES_AT, _MAX_TIMESTAMP_AT = 17, 21, 35

Piece = tuple[bytes, BatchHeader]


def stored_batches(rules: RecordRules, data: bytes, now_ms: int) -> list[tuple[bytes, BatchFacts]]:
    """Return a producer's batches as they will be stored, without offsets. ``last_offset`` is relative to its batch.

    Raises InvalidRecordError, InvalidTimestampError or RecordTooLargeError with the record's index in the call.
    """
    settled: list[tuple[bytes, BatchFacts]] = []
    index = 0
    for legacy, group in itertools.groupby(split(data), key=lambda piece: piece[1].magic < 2):
        if legacy:
            settled.append(_upgraded(rules, list(group), now_ms, index))
            index += settled[-1][1].records
        else:
            for piece, header in group:
                settled.append(_settled(rules, piece, header, now_ms, index))
                index += header.last_offset_delta + 1
    return settled


def split(data: bytes) -> list[Piece]:
    """Return the batches in ``data``. Raises InvalidRecordError unless it holds whole, intact batches, at least one."""
    batches: list[Piece] = []
    try:
        for position, header in hop(lambda at: read_header(data, at, limit=len(data) - at), 0, len(data)):
            piece = bytes(data[position : position + header.size_bytes])
            batches.append((piece, verify_batch(piece)))
    except CorruptionError as error:
        position = sum(len(piece) for piece, _ in batches)
        raise InvalidRecordError(
            f"batch {len(batches)} at byte {position} cannot be appended: {error.message}",
            index=len(batches),
            hint="append_batches takes whole v2 batches, one after the other; append takes records",
        ) from error
    if not batches:
        raise InvalidRecordError("there is no batch to append", hint="append_batches takes whole v2 batches")
    return batches


def _settled(
    rules: RecordRules, buffer: bytes, header: BatchHeader, now_ms: int, first_index: int
) -> tuple[bytes, BatchFacts]:
    _check_batch(rules, buffer, header, first_index)
    create_time = bytearray(buffer)  # with the timestamps as sent, also where the log's time hides them
    attributes = header.attributes & ~LOG_APPEND_TIME_BIT
    struct.pack_into(">h", create_time, _ATTRIBUTES_AT, attributes)
    records = _records(create_time, header, first_index)
    count = len(records)
    if not records or count != header.last_offset_delta + 1:
        raise InvalidRecordError(
            f"a batch of {count} records spans {header.last_offset_delta + 1} offsets", index=first_index
        )
    stamped = header.timestamp_type is TimestampType.LOG_APPEND_TIME
    if stamped:  # Kafka looks at the one time that such a batch tells; what is stored are the times of its records
        told = [records[0]._replace(timestamp=header.max_timestamp)]
        rules.check_records(told, now_ms, first_index, refuse_missing_time=True)
    least, greatest = rules.check_records(records, now_ms, first_index, refuse_missing_time=stamped)
    if rules.timestamp_type:
        attributes |= LOG_APPEND_TIME_BIT
        least = greatest = now_ms
    in_order = all(r.offset == header.base_offset + i for i, r in enumerate(records))
    if in_order and (rules.keeps_codec or header.codec == rules.codec):
        data = _patched(buffer, header, attributes, greatest)
    else:
        data = _encoded(rules, records, now_ms, header.codec, header)
        rules.check_size(len(data), [NewRecord(r.value, r.key) for r in records])
    return data, BatchFacts(len(data), count - 1, count, least, greatest)


def _records(buffer: bytes | bytearray, header: BatchHeader, index: int) -> list[Record]:
    """Return the records of a producer's batch. Raises InvalidRecordError if Kafka's consumers could not read it."""
    try:
        if header.codec is Codec.LZ4 and header.magic == _V2 and has_linked_blocks(memoryview(buffer)[HEADER_BYTES:]):
            raise CorruptionError("lz4 data has linked blocks, which Kafka's consumers do not read")
        return list(decode_records(buffer))
    except CorruptionError as error:
        raise InvalidRecordError(
            f"the batch of record {index} cannot be appended: {error.message}", index=index, hint=error.hint
        ) from error


def _check_batch(rules: RecordRules, buffer: bytes, header: BatchHeader, index: int) -> None:
    if len(buffer) > rules.max_bytes:
        raise RecordTooLargeError(
            f"a batch of {len(buffer)} bytes is larger than {rules.limit_name}, {rules.max_bytes}", index=index
        )
    if header.records_count > MAX_BATCH_RECORDS:
        raise RecordTooLargeError(
            f"a batch of {header.records_count} records has more than {MAX_BATCH_RECORDS}",
            index=index,
            hint="send smaller batches: lower batch.size or batch.num.messages of the producer",
        )
    if header.is_control:
        raise InvalidRecordError("control batches are not appended from outside", index=index)
    if header.producer_id >= 0 and header.base_sequence < 0:
        raise InvalidRecordError(f"a batch of producer {header.producer_id} has no sequence", index=index)
    if header.timestamp_type is TimestampType.LOG_APPEND_TIME and rules.timestamp_type:
        raise InvalidTimestampError("the batch is already stamped LogAppendTime", index=index)


def _patched(buffer: bytes, header: BatchHeader, attributes: int, max_timestamp: int) -> bytes:
    if (attributes, max_timestamp) == (header.attributes, header.max_timestamp):
        return buffer
    patched = bytearray(buffer)
    struct.pack_into(">h", patched, _ATTRIBUTES_AT, attributes & KNOWN_BITS)
    struct.pack_into(">q", patched, _MAX_TIMESTAMP_AT, max_timestamp)
    struct.pack_into(">I", patched, _CRC_AT, crc32c(memoryview(patched)[_ATTRIBUTES_AT:]))
    return bytes(patched)


def _encoded(rules: RecordRules, records: Sequence[Record], now_ms: int, codec: Codec, header: BatchHeader) -> bytes:
    return encode_batch(
        [NewRecord(r.value, r.key, r.timestamp, r.headers) for r in records],
        codec=codec if rules.keeps_codec else rules.codec,
        level=None if rules.keeps_codec else rules.level,
        timestamp_type=rules.timestamp_type,
        append_time_ms=now_ms if rules.timestamp_type else -1,
        producer=BatchProducer(
            header.producer_id, header.producer_epoch, header.base_sequence, transactional=header.is_transactional
        ),
    )


def _upgraded(rules: RecordRules, pieces: list[Piece], now_ms: int, first_index: int) -> tuple[bytes, BatchFacts]:
    """Return messages of format v0 or v1 as one v2 batch."""
    records = [record for piece, header in pieces for record in _records(piece, header, first_index)]
    least, greatest = rules.check_records(records, now_ms, first_index)
    if rules.timestamp_type:
        least = greatest = now_ms
    codec = next((header.codec for _, header in reversed(pieces) if header.codec), Codec.NONE)
    header = pieces[0][1]._replace(producer_id=-1, producer_epoch=-1, base_sequence=-1, attributes=0)
    data = _encoded(rules, records, now_ms, codec, header)
    rules.check_size(len(data), [NewRecord(r.value, r.key) for r in records])
    return data, BatchFacts(len(data), len(records) - 1, len(records), least, greatest)


def coordinator_batch(rules: RecordRules, data: bytes, now_ms: int) -> tuple[bytes, BatchFacts]:
    """Return the single batch of a coordinator as it will be stored. ``last_offset`` is relative to its base.

    With LogAppendTime its timestamp is set; all other bytes stay. Raises InvalidRecordError, CorruptionError.
    """
    pieces = [bytes(piece) for _, piece in BatchWalk(corrupt_at).whole(memoryview(data))]
    header = verify_batch(pieces[0]) if len(pieces) == 1 else None
    if header is None or header.producer_id < 0:
        raise InvalidRecordError("a coordinator appends one batch of a producer at a time")
    batch, least, greatest = pieces[0], least_timestamp(header, pieces[0]), header.max_timestamp
    if rules.timestamp_type:
        batch = _patched(batch, header, header.attributes | LOG_APPEND_TIME_BIT, now_ms)
        least = greatest = now_ms
    return batch, BatchFacts(len(batch), header.last_offset_delta, header.records_count, least, greatest)
