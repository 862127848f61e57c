"""Runs of sealed segments of a log directory that hold the offsets of a row."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from tiered.checking.inspection import BatchFeed, batches
from tiered.errors import CorruptionError, TieredError, UnknownTopicError
from tiered.format.batch import verify_batch
from tiered.format.crc import crc32c
from tiered.format.keys import FLAG_MAINTAINER
from tiered.format.txn_index import decode_txns, encode_txns
from tiered.local.directory.view import LogView
from tiered.model import ByteSource, EpochEntry, Row, SealedIndexes, TopicPartition
from tiered.plan.maintenance import READ_BYTES
from tiered.remote.rewrite import SegmentOutput, Workshop
from tiered.remote.topics import TopicEntry
from tiered.store.base import Blocking, NewId, Steps, blocking


class JoinedSource:
    """Byte sources one after the other, as one. Thread-safe as they are."""

    def __init__(self, sources: Sequence[ByteSource]) -> None:
        self._sources = tuple(sources)
        self.size = sum(source.size for source in sources)

    def read_at(self, position: int, length: int) -> bytes:
        """Return exactly ``length`` bytes. Raises CorruptionError if there are fewer."""
        pieces: list[bytes] = []
        start, end = position, position + length
        for source in self._sources:
            if start < min(source.size, end):
                stop = min(source.size, end)
                pieces.append(source.read_at(start, stop - start))
                start = stop
            start, end = max(0, start - source.size), end - source.size
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        if len(data) != length:
            raise CorruptionError(
                f"{length} bytes at byte {position} are not there: {self.size} are", position=position
            )
        return data

    def close(self) -> None:
        """Close all of them."""
        for source in self._sources:
            source.close()


class LocalRun(NamedTuple):
    """Sealed segments over exactly the offsets of a row.

    ``same``: the row was uploaded with these bytes; else ``indexes`` are those of the segments.
    """

    source: JoinedSource
    indexes: tuple[SealedIndexes, ...]
    same: bool


def find_run(
    view: LogView, tp: TopicPartition, entry: TopicEntry, row: Row, lineage: Sequence[EpochEntry]
) -> Steps[LocalRun | None]:
    """Return the run of local segments that holds the bytes of a row, or that may replace a rewritten one, else None.

    Other bytes count for a merged or compacted row alone. Each batch of them is read: its leader epoch must be the one
    that the catalog's lineage gives its offset. A disk that diverged from the log has other records there.
    Raises CorruptionError if the directory holds another topic of that name.
    """
    return blocking(partial(_find, view, tp, entry, row, lineage))


def _find(
    view: LogView, tp: TopicPartition, entry: TopicEntry, row: Row, lineage: Sequence[EpochEntry]
) -> LocalRun | None:
    info = view.topics().get(tp.topic)
    if info is not None and info.topic_id != entry.topic_id:
        raise CorruptionError(
            f"{view.directory} holds topic {tp.topic} under the topic id {info.topic_id}, the bucket under "
            f"{entry.topic_id}",
            path_or_key=str(view.directory),
            hint="name the directory that wrote this topic",
        )
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
        same = source.size == row.size and _sum(source) == row.crc
        if same or (row.flags & FLAG_MAINTAINER and _is_of(source, lineage)):
            return LocalRun(source, () if same else tuple([each.indexes() for each in inside]), same)
    except TieredError:
        pass  # damaged on the disk, too
    source.close()
    return None


def _sum(source: ByteSource) -> int:
    crc = 0
    for at in range(0, source.size, READ_BYTES):
        crc = crc32c(source.read_at(at, min(READ_BYTES, source.size - at)), crc)
    return crc


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
            yield from output.keep(header, batch)
    if output.written[0] != run.source.size:
        yield from output.abandon()
        raise CorruptionError(f"{shop.tp}: the local segments from offset {row.base} on changed", hint="plan again")
    txns = list(itertools.chain.from_iterable([decode_txns(each.txn_index) for each in run.indexes]))
    epochs = tuple([each for each in shop.lineage if each.start_offset < row.next])
    return (yield from output.finish(encode_txns(txns), run.indexes[-1].producer_snapshot, epochs))
