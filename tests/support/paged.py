"""A bucket whose catalog lies in pages of a few rows, and whose bundles describe their segments."""

from __future__ import annotations

from tests.unit.remote.catalog.script import TOPIC_ID
from tests.unit.remote.paged.collecting import Place
from tiered.format.bundle import encode_bundle
from tiered.format.keys import index_key, segment_key, topic_key
from tiered.format.producer_snapshot import ProducerEntry, encode_snapshot
from tiered.model import Row, SealedIndexes, SegmentDescriptor, TopicPartition
from tiered.remote.catalog_view import CatalogView
from tiered.remote.topics import TopicEntry, encode_topic, load_topic
from tiered.repair.plan import Ground, RepairAction, RepairOptions, Workbench
from tiered.repair.roots import plan_root
from tiered.store.base import Delete

TP = TopicPartition("flights", 0)


def producers_of(end: int) -> bytes:
    """Who has written up to ``end``."""
    return encode_snapshot([ProducerEntry(7, 0, end - 1, end - 1, 0, 1000)])


class Paged(Place):
    """A catalog with tiny pages. Its bundles describe their segments."""

    def __init__(self) -> None:
        super().__init__()
        self.put(topic_key("flights"), encode_topic(TopicEntry("flights", TOPIC_ID, 1, {})))

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

    def plan_root(self, to_version: int | None = None) -> tuple[list[RepairAction], CatalogView | None]:
        entry = self.world.run(load_topic("flights"))
        assert entry is not None
        return self.world.run(plan_root(Ground(TP, entry, RepairOptions(to_version=to_version), None)))

    def repair(self, to_version: int | None = None) -> list[RepairAction]:
        actions, _ = self.plan_root(to_version)
        for action in actions:
            assert action.act is not None
            self.world.run(action.act(Workbench(None, "test")))
        return actions

    def pages(self) -> list[str]:
        root = self.root
        return [root.page_key(pointer) for pointer in (*root.inner, *root.leaves)]

    def lose_pages(self, *keys: str) -> None:
        self.store.execute(Delete(keys))

    def seen(self) -> list[Row]:
        self.maintainer = self.desk("other")  # one that has no page in its cache
        return self.rows()
