"""A bucket whose root is lost: a place whose bundles describe their segments."""

from __future__ import annotations

from tests.unit.catalog.script import TOPIC_ID
from tests.unit.paged.collecting import Place
from tiered.care.rebuild import RebuildPlan, plan_rebuild_steps
from tiered.format.bundle import encode_bundle
from tiered.format.keys import index_key, partition_prefix, segment_key, topic_key
from tiered.format.producer_snapshot import ProducerEntry, encode_snapshot
from tiered.format.root import Root
from tiered.model import Row, SealedIndexes, SegmentDescriptor, TopicPartition
from tiered.plan.lifecycle import VolumeProof
from tiered.remote.cache import ByteCache
from tiered.remote.lookup import SegmentLookup
from tiered.remote.snapshot import Snapshot
from tiered.remote.topics import TopicEntry, encode_topic
from tiered.store.base import Delete, Get, List, Object, Page

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

    def take_over(self, name: str) -> None:
        """A fresh volume claims: a new leader epoch. What the last one uploaded meanwhile is never committed."""
        self.objects(self.writer.row(self.end, self.end + 7))
        self.writer = self.desk(name)
        self.writer.claim(VolumeProof(name, empty=True, end_offset=0))

    def lose(self, damage: bytes | None = None) -> Root:
        root = self.root
        self.store.execute(Delete((root.key,)))
        if damage is not None:
            self.put(root.key, damage)
        return root

    def data(self, key: str) -> bytes:
        got = self.store.inner.execute(Get(key))
        assert isinstance(got, Object)
        return bytes(got.data)

    def plan(self) -> RebuildPlan:
        return self.world.run(plan_rebuild_steps(TP, "test"))

    def now(self) -> tuple[Root, list[Row]]:
        """As somebody sees it who never saw the one that was lost."""
        self.maintainer = self.desk("other")
        return self.root, self.rows()

    def producers(self) -> bytes:
        """Who wrote, as a fresh volume is told."""
        lookup = SegmentLookup(TP, TOPIC_ID, ByteCache())
        return self.world.run(lookup.producer_snapshot(Snapshot.of(self.root)))

    def without_history(self) -> None:
        page = self.store.execute(List(partition_prefix(TOPIC_ID, 0) + "hist/"))
        assert isinstance(page, Page)
        self.store.execute(Delete(tuple(entry.key for entry in page.entries)))
