"""What we make of odd batches, beside what Kafka makes of them; and the differences that we mean."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tests.golden.foreign import NOW, TOPICS, Answer, OddBatch, Sent, shown
from tiered.config import LogConfig, TopicConfig
from tiered.errors import (
    CorruptionError,
    InvalidRecordError,
    InvalidTimestampError,
    ProducerFencedError,
    RecordTooLargeError,
)
from tiered.format.batch import BatchHeader, decode_records, read_header, verify_batch
from tiered.format.codecs import Codec, has_linked_blocks
from tiered.format.header import _HEADER, HEADER_BYTES
from tiered.format.kernels import Record
from tiered.local.directory.log_directory import LocalLog
from tiered.model import HeaderName, TopicPartition
from tiered.testing.clock import FakeClock

LATER = NOW + 3 * 365 * 24 * 3_600_000
"""The log's clock, as that of a broker, is years behind the times in the batches."""

OLD_FORMATS = "v0 and v1, which a broker of today does not take, become v2"
ANOTHER_ERROR = "refused with another error"

WRONG_FRAMES = (
    *("wrong header CRC of a second member", "reserved flags", "end mark with the top bit"),
    *("wrong content size", "huge content size", "wrong content checksum"),
)
ODD_FRAMES = ("dictionary flag", "an empty compressed block")

INVALID_RECORD, INVALID_TIMESTAMP, CORRUPT_MESSAGE, OWN_ERROR, INVALID_PRODUCER_EPOCH = 87, 32, 2, -1, 47


class Difference(NamedTuple):
    """``why`` is empty for one that nobody means."""

    name: str
    why: str
    theirs: Any
    ours: Any


def records_of(batch: bytes) -> tuple[BatchHeader, list[Record]]:
    """As a reader decodes it. Raises CorruptionError."""
    return verify_batch(batch), list(decode_records(batch))


def raw_header(batch: bytes) -> BatchHeader:
    """The header of a v2 batch, whatever it says."""
    return BatchHeader._make(_HEADER.unpack_from(batch))


# --- reading ----------------------------------------------------------------------------------------------------


def reading(answers: Iterable[Answer]) -> Iterator[Difference]:
    """Where Kafka's consumer and we read different things."""
    for batch, theirs, _ in answers:
        try:
            ours: list[Any] | None = shown(*records_of(batch.data))
        except CorruptionError:
            ours = None
        if ours != theirs:
            yield Difference(batch.name, _why_framed(batch) or _why_read(batch.data, theirs, ours), theirs, ours)


def _why_framed(batch: OddBatch) -> str:
    if batch.name.endswith(WRONG_FRAMES):
        return "a frame with a wrong size, checksum or flag is damage"
    return "what the library reads of an odd lz4 frame is read" if batch.name.endswith(ODD_FRAMES) else ""


def _why_read(batch: bytes, theirs: list[Any] | None, ours: list[Any] | None) -> str:
    if batch[16] < 2:
        below_zero = theirs is not None and any(record[0] < 0 for record in theirs)
        return "an offset below zero is damage" if below_zero and ours is None else ""
    header = raw_header(batch)
    last = header.base_offset + header.last_offset_delta
    if ours is None and (header.base_offset < 0 or header.last_offset_delta < 0 or last >= 2**63 - 1):
        return "an offset outside of 0 to 2^63-1 is damage"
    if ours is None and header.records_count > header.last_offset_delta + 1:
        return "more records than offsets are damage"
    if theirs is None and header.attributes & 7 == Codec.LZ4 and has_linked_blocks(batch[HEADER_BYTES:]):
        return "linked lz4 blocks are read"
    if theirs is None and ours == [] and header.records_count == 0:
        return "no compressed data is needed for no records"
    return ""


# --- appending --------------------------------------------------------------------------------------------------


def appending(directory: Path, answers: Iterable[Answer]) -> Iterator[Difference]:
    """Where a broker and :meth:`append_batches` take or store different things; everything in one log in turn."""
    clock = FakeClock(LATER)
    answers = list(answers)
    config = LogConfig(disk_reserve_bytes=0)
    with LocalLog.open(directory, clock=clock, config=config) as log:
        for topic, settings in TOPICS.items():
            log.create_topic(topic, 1, TopicConfig.from_properties(settings))
            partition = log.partition(TopicPartition(topic, 0))
            for answer in answers:
                sent = answer.sent[topic]
                clock.set_ms(sent.time if sent.time >= 0 else LATER)
                try:
                    done = partition.append_batches(answer.batch.data)
                except (InvalidRecordError, ProducerFencedError) as error:
                    ours: Any = type(error)
                else:
                    ours = b"".join(map(bytes, partition.read_batches(done.offset)))
                theirs = sent.code or sent.stored
                if not _same(theirs, ours):
                    why = _why_framed(answer.batch) or _why_sent(answer, sent, ours)
                    yield Difference(f"{topic}: {answer.batch.name}", why, theirs, ours)


def _same(theirs: int | bytes | None, ours: Any) -> bool:
    if isinstance(theirs, bytes) and isinstance(ours, bytes):
        return _without_place(theirs) == _without_place(ours)
    codes = {
        InvalidRecordError: (INVALID_RECORD, CORRUPT_MESSAGE, OWN_ERROR),
        RecordTooLargeError: (INVALID_RECORD, CORRUPT_MESSAGE, OWN_ERROR),  # a count that the bytes cannot hold
        InvalidTimestampError: (INVALID_TIMESTAMP, OWN_ERROR),
        ProducerFencedError: (INVALID_PRODUCER_EPOCH,),
    }
    return not isinstance(ours, bytes) and theirs in codes[ours]


def _without_place(batch: bytes) -> bytes:
    """Without base offset and leader epoch."""
    return batch[8:12] + batch[16:]


def _why_sent(answer: Answer, sent: Sent, ours: Any) -> str:
    batch = answer.batch.data
    if batch[16] < 2:
        return OLD_FORMATS if isinstance(ours, bytes) else ANOTHER_ERROR
    if isinstance(ours, bytes):
        return _why_stored(batch, sent.stored, ours) if sent.stored is not None else _why_taken(batch, sent.code)
    header = raw_header(batch)
    if sent.code:
        return ANOTHER_ERROR
    if answer.reads is None:
        return "what no consumer can read is refused"
    if any(record[1] < -1 for record in answer.reads):
        return "a time below -1 is refused"
    return "a producer without an epoch is refused" if header.producer_id >= 0 > header.producer_epoch else ""


def _why_taken(batch: bytes, code: int) -> str:
    header = read_header(batch)
    if header.base_offset:
        return "batches of another log are taken: offsets are given anew"
    if code != OWN_ERROR:
        return ""
    if not _in_order(header, list(decode_records(batch))):
        return "inner offsets are given anew where Kafka fails"
    return "a producer id below zero is none, also where Kafka fails" if header.producer_id < 0 else ""


def _why_stored(batch: bytes, theirs: bytes, ours: bytes) -> str:
    header = read_header(batch)
    sent, stored, mine = (list(decode_records(one)) for one in (batch, theirs, ours))
    if not _in_order(header, sent):
        same = [record[2:] for record in mine] == [record[2:] for record in sent]
        return "inner offsets are given anew" if same else ""
    if [record[1:] for record in mine] != [record[1:] for record in stored]:
        return ""
    if any(type(name) is HeaderName for record in sent for name, _ in record.headers):
        kept = [raw_names(record) for record in mine] == [raw_names(record) for record in sent]
        return "the bytes of names stay" if kept else ""
    return "the greatest time is that of the records" if header.timestamp_type else ""


def _in_order(header: BatchHeader, records: list[Record]) -> bool:
    return [record.offset - header.base_offset for record in records] == list(range(len(records)))


def raw_names(record: Record) -> list[bytes]:
    return [name.raw if isinstance(name, HeaderName) else name.encode() for name, _ in record.headers]
