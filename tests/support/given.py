"""Batches in a log as a broker has them there: with offsets and leader epochs of their own, gaps, and old formats."""

from __future__ import annotations

from tiered.format.batch import BatchHeader, decode_records, least_timestamp, verify_batch
from tiered.format.batch_scanner import BatchWalk, corrupt_at
from tiered.format.codecs import Codec
from tiered.format.kernels import crc32c
from tiered.local.partition.write_log import WriteLog
from tiered.model import RecordMetadata
from tiered.plan.producer import Origin, read_producer


def append_given(partition: WriteLog, data: bytes) -> RecordMetadata:
    """Append whole batches, byte for byte, at the offsets that they have."""
    for _, piece in BatchWalk(corrupt_at).whole(memoryview(data)):
        header = verify_batch(piece)
        with partition.context.lock:
            rolled = _store(partition, header, bytes(piece))
        partition.finish_append(rolled)
    return RecordMetadata(*partition.tp, header.base_offset, header.max_timestamp, header.next_offset)


def _store(partition: WriteLog, header: BatchHeader, piece: bytes) -> bool:
    context, segments = partition.context, partition.segments
    first = header.base_offset
    if header.magic < 2 and header.codec is not Codec.NONE:  # a wrapper says only where it ends
        first = next(iter(decode_records(piece))).offset
    assert first >= segments.end, f"{partition.tp} ends at {segments.end}, the batch begins at {first}"
    batch = read_producer(header, piece)
    batches = [] if batch is None else [batch]
    assert partition.producers.prepare(batches, Origin.COORDINATOR) is None
    if first > segments.end:
        segments.mark_sparse()
        segments.end = first
    if header.magic >= 2 and header.leader_epoch >= 0:
        context.epochs.assign(header.leader_epoch, first)
        context.epoch = header.leader_epoch
    least = least_timestamp(header, piece)
    facts = (len(piece), header.last_offset, header.records_count, least, header.max_timestamp)
    crc = crc32c(piece, segments.active.crc32c)
    producers = batches, [each.base_offset for each in batches]
    return partition.store(piece, facts, crc, context.around.clock.now_ms(), producers=producers)


def move_start(partition: WriteLog, offset: int) -> int:
    """Let the log start at ``offset``, as a broker does where a consumer deletes records. Return the start."""
    with partition.context.lock:
        if offset > partition.log_start:
            partition.maintenance._raise_log_start(offset)
        return partition.log_start


def start_over(partition: WriteLog, offset: int) -> None:
    """Forget all records. The log begins at ``offset``, as that of a broker which fetches its replica again."""
    cut = partition.maintenance
    with cut._durability.lock, cut._context.lock:
        cut._restart(offset)
        cut._context.unassigned = True
    cut._context.around.sealed()
