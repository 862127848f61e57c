"""Runs of sealed segments of a log directory that hold the offsets of a row."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from tiered.care.inspection import BatchFeed, batches
from tiered.care.put_back import JoinedSource, find_bytes
from tiered.errors import CorruptionError, TieredError, UnknownTopicError
from tiered.format.batch import least_timestamp, verify_batch
from tiered.format.keys import FLAG_MAINTAINER
from tiered.format.txn_index import decode_txns, encode_txns
from tiered.local.directory.view import LogView
from tiered.model import ByteSource, EpochEntry, Row, SealedIndexes, TopicPartition
from tiered.plan.maintenance import READ_BYTES
from tiered.remote.rewrite import SegmentOutput, Workshop
from tiered.remote.topics import TopicEntry
from tiered.store.base import Blocking, NewId, Steps


def held_bytes(view: LogView, tp: TopicPartition, entry: TopicEntry, row: Row) -> Steps[ByteSource | None]:
    """Return the bytes that a row was uploaded with, None if the directory does not hold them."""
    source: ByteSource | None = yield Blocking(partial(find_bytes, view, tp, entry, row))
    return source


class LocalRun(NamedTuple):
    """Sealed segments over exactly the offsets of a row: their bytes, and their indexes."""

    source: JoinedSource
    indexes: tuple[SealedIndexes, ...]
    base: int


def find_run(
    view: LogView, tp: TopicPartition, entry: TopicEntry, row: Row, lineage: Sequence[EpochEntry]
) -> Steps[LocalRun | None]:
    """Return the run of local segments that may replace a merged or compacted row, None without one.

    Each batch is read: its leader epoch must be the one that the catalog's lineage gives its offset. A disk that
    diverged from the log has other records there.
    """
    run: LocalRun | None = yield Blocking(partial(_find, view, tp, entry, row, lineage))
    return run


def _find(
    view: LogView, tp: TopicPartition, entry: TopicEntry, row: Row, lineage: Sequence[EpochEntry]
) -> LocalRun | None:
    info = view.topics().get(tp.topic)
    if not row.flags & FLAG_MAINTAINER or info is None or info.topic_id != entry.topic_id:
        return None
    try:
        segments = view.partition(tp).sealed_segments(row.base)
    except UnknownTopicError:
        return None
    inside = [each for each in segments if row.base <= each.base_offset and each.end_offset <= row.next]
    borders = [row.base, *(each.end_offset for each in inside)]
    if not inside or borders[-1] != row.next or [each.base_offset for each in inside] != borders[:-1]:
        return None
    source = JoinedSource([each.open_log() for each in inside])
    try:
        if _is_of(source, lineage):
            return LocalRun(source, tuple([each.indexes() for each in inside]), row.base)
    except TieredError:
        pass  # damaged on the disk, too
    source.close()
    return None


def _is_of(source: JoinedSource, lineage: Sequence[EpochEntry]) -> bool:
    """Return whether all bytes are batches whose leader epochs are those of the lineage."""
    end = 0
    for position, batch in batches(source):
        header = verify_batch(batch)
        epoch = next((each.epoch for each in reversed(lineage) if each.start_offset <= header.base_offset), None)
        if epoch is not None and header.leader_epoch != epoch:
            return False
        end = position + len(batch)
    return end == source.size


def write_run(shop: Workshop, run: LocalRun, row: Row) -> Steps[Row]:
    """Write a new segment of the batches of a run. Its indexes are those of the local segments, one after the other."""
    output = SegmentOutput(shop, [row], (yield NewId()))
    feed = BatchFeed(run.source.size)
    for at in range(0, run.source.size, READ_BYTES):
        data: bytes = yield Blocking(partial(run.source.read_at, at, min(READ_BYTES, run.source.size - at)))
        for _, batch in feed.feed(data):
            header = verify_batch(batch)
            output.stats.count(header.records_count, least_timestamp(header, batch), header.max_timestamp)
            yield from output.append(bytes(batch), header)
    if output.written[0] != run.source.size:
        yield from output.abandon()
        raise CorruptionError(f"{shop.tp}: the local segments from offset {row.base} on changed", hint="plan again")
    txns = list(itertools.chain.from_iterable([decode_txns(each.txn_index) for each in run.indexes]))
    epochs = tuple([each for each in shop.lineage if each.start_offset < row.next])
    return (yield from output.finish(encode_txns(txns), run.indexes[-1].producer_snapshot, epochs))
