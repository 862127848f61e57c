"""Batches in a log as a broker has them there: with offsets and leader epochs of their own, gaps, and old formats."""

from __future__ import annotations

from tiered.format.batch import BatchHeader, decode_records, least_timestamp, verify_batch
from tiered.format.batch_scanner import BatchWalk, corrupt_at
from tiered.format.codecs import Codec
from tiered.local.partition.partition import PartitionLog
from tiered.local.partition.writer import PartitionWriter
from tiered.model import RecordMetadata
from tiered.plan.producer import Origin, read_producer
from tiered.plan.producer_state import Duplicate


def append_given(partition: PartitionLog, data: bytes) -> RecordMetadata:
    """Append whole batches, byte for byte, at the offsets that they have."""
    writer = partition.to_write()
    for _, piece in BatchWalk(corrupt_at).whole(memoryview(data)):
        header = verify_batch(piece)
        with writer.shared.lock:
            rolled = _store(writer, header, bytes(piece))
        writer.appender.settle_append(rolled)
    return RecordMetadata(*partition.tp, header.base_offset, header.max_timestamp, header.next_offset)


def _store(writer: PartitionWriter, header: BatchHeader, piece: bytes) -> bool:
    shared, segments = writer.shared, writer.segments
    first = header.base_offset
    if header.magic < 2 and header.codec is not Codec.NONE:  # a wrapper says only where it ends
        first = next(iter(decode_records(piece))).offset
    assert first >= segments.end, f"{writer.tp} ends at {segments.end}, the batch begins at {first}"
    batch = read_producer(header, piece)
    answer = writer.producers.prepare([] if batch is None else [batch], Origin.COORDINATOR)
    assert not isinstance(answer, Duplicate)
    if first > segments.end:
        segments.mark_sparse()
        segments.end = first
    if header.magic >= 2 and header.leader_epoch >= 0:
        shared.leadership.epochs.assign(header.leader_epoch, first)
        shared.leadership.epoch = header.leader_epoch
    least = least_timestamp(header, piece)
    facts = ((len(piece), header.last_offset, header.records_count, least, header.max_timestamp),)
    now_ms = shared.around.clock.now_ms()
    return writer.appender.store(piece, facts, header.max_timestamp, header.next_offset, now_ms, answer=answer)


def move_start(partition: PartitionLog, offset: int) -> int:
    """Let the log start at ``offset``, as a broker does where a consumer deletes records. Return the start."""
    writer = partition.to_write()
    with writer.shared.lock:
        if offset > writer.log_start:
            writer.retention._raise_log_start(offset)
        return writer.log_start


def start_over(partition: PartitionLog, offset: int, log_start: int | None = None) -> None:
    """Forget all records. The log begins at ``offset``, as that of a broker which fetches its replica again."""
    cut = partition.to_write().truncation
    with cut._flusher.lock, cut._lock:
        cut._restart(offset, offset if log_start is None else log_start)
        cut._leadership.unassigned = True
    cut._around.sealed()
