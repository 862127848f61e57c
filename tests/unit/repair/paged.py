"""A place whose bundles describe their segments."""

from __future__ import annotations

from tests.unit.catalog.script import TOPIC_ID
from tests.unit.paged.collecting import Place
from tiered.format.bundle import encode_bundle
from tiered.format.keys import index_key, segment_key, topic_key
from tiered.format.producer_snapshot import ProducerEntry, encode_snapshot
from tiered.model import Row, SealedIndexes, SegmentDescriptor, TopicPartition
from tiered.remote.topics import TopicEntry, encode_topic

TP = TopicPartition("flights", 0)


def producers_of(end: int) -> bytes:
    """Who has written up to ``end``."""
    return encode_snapshot([ProducerEntry(7, 0, end - 1, end - 1, 0, 1000)])


class Bucket(Place):
    """A place whose bundles describe their segments."""

    def __init__(self) -> None:
        super().__init__()
        self.put(topic_key("flights"), encode_topic(TopicEntry("flights", TOPIC_ID, 1, {}, roots=True)))

    def objects(self, row: Row) -> Row:
        lineage = tuple(entry for entry in self.root.lineage if entry.start_offset < row.next)
        row = row._replace(leader_epoch=lineage[-1].epoch, crc=row.id_lo & 0xFFFF)
        told = SegmentDescriptor(
            TOPIC_ID, 0, row.base, row.next, row.min_ts, row.max_ts, row.records, row.size, row.crc, row.leader_epoch
        )
        indexes = SealedIndexes(b"", b"", producer_snapshot=producers_of(row.next), leader_epochs=lineage)
        bundle = encode_bundle(told, indexes, row.claim_epoch)
        row = row._replace(idx_len=len(bundle))
        self.put(segment_key(TOPIC_ID, 0, row), b"x" * row.size)
        self.put(index_key(TOPIC_ID, 0, row), bundle)
        return row
