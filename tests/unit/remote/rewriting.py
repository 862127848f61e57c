"""A partition of the bucket that is merged and compacted without a commit: the root is put by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.unit.remote.building import TRUSTED, RemoteLog
from tiered.config import TopicConfig
from tiered.format.bundle import Bundle, decode_bundle
from tiered.format.keys import Role
from tiered.format.root import Cleaned
from tiered.format.rows import Rows
from tiered.model import Row, SealedSegment, TopicPartition
from tiered.plan.batch_filter import CleaningReport
from tiered.plan.cleaning import cleaning_candidate
from tiered.plan.maintenance import READ_AHEAD_BYTES, CompactionPlanner
from tiered.remote.cache import ByteCache
from tiered.remote.catalog import Catalog
from tiered.remote.compact import Compaction
from tiered.remote.lookup import SegmentLookup
from tiered.remote.merge import merge_rows
from tiered.remote.rewrite import Workshop
from tiered.remote.snapshot import Snapshot
from tiered.remote.upload import upload_segment
from tiered.store.base import Get, Object, Steps
from tiered.store.driver import drive
from tiered.store.puts import PART_BYTES


@dataclass
class Rewriter:
    """What a maintainer does to ``log``. ``cleaned`` is the clean end."""

    log: RemoteLog
    config: TopicConfig = field(default_factory=lambda: TopicConfig(cleanup_policy="compact"))
    part_bytes: int = PART_BYTES
    ahead_bytes: int = READ_AHEAD_BYTES
    cleaned: int | None = None

    @property
    def tp(self) -> TopicPartition:
        return TopicPartition(self.log.topic, self.log.partition)

    @property
    def rows(self) -> list[Row]:
        root = self.log.root
        return list(root.rows) if root is not None else []

    def shop(self) -> Workshop:
        root = self.log.root
        if root is not None and not root.roles[Role.MAINTAINER.value].epoch:
            catalog = Catalog(self.log.topic_id, self.log.partition, self.log.topic)
            drive(self.log.store, catalog.claim(Role.MAINTAINER, "test"), clock=self.log.clock, ids=self.log.ids)
        return Workshop(
            tp=self.tp,
            topic_id=self.log.topic_id,
            lookup=SegmentLookup(self.tp, self.log.topic_id, ByteCache()),
            capabilities=TRUSTED,
            claim_epoch=1,
            index_interval_bytes=self.config.index_interval_bytes,
            part_bytes=self.part_bytes,
            ahead_bytes=self.ahead_bytes,
        )

    def upload(self, segments: Sequence[SealedSegment]) -> None:
        """Sealed segments of a disk, behind what is there."""
        new = [
            drive(
                self.log.store,
                upload_segment(
                    segment,
                    topic_id=self.log.topic_id,
                    partition=self.log.partition,
                    claim_epoch=1,
                    capabilities=TRUSTED,
                ),
                clock=self.log.clock,
                ids=self.log.ids,
            )
            for segment in segments
        ]
        if new:
            self.log.put_root(Rows.from_rows([*self.rows, *new]), next_offset=new[-1].next)

    def merge(self, rows: Sequence[Row]) -> Row:
        merged = drive(self.log.store, merge_rows(self.shop(), rows), clock=self.log.clock, ids=self.log.ids)
        self.put(rows, merged)
        return merged

    def put(self, old: Sequence[Row], new: Row) -> None:
        """``new`` in the place of ``old``, which are neighbours."""
        rows = self.rows
        at = rows.index(old[0])
        assert rows[at : at + len(old)] == list(old)
        self.log.put_root(Rows.from_rows([*rows[:at], new, *rows[at + len(old) :]]))

    def compact(self, now_ms: int, *, memory_bytes: int = 1 << 20) -> CleaningReport | None:
        """One round; None: nothing is dirty."""
        root = self.log.root
        assert root is not None
        snapshot, shop = Snapshot.of(root), self.shop()
        planner = CompactionPlanner(self.config)
        planner.add(root.rows)
        stable = drive(self.log.store, shop.lookup.last_stable_offset(snapshot))
        state = planner.state(self.tp, root.start_offset, self.cleaned, stable, root.next_offset)
        candidate = cleaning_candidate(state, now_ms)
        assert candidate is not None
        if not candidate.cleanable_bytes:
            return None
        round_ = Compaction(shop, snapshot, state, candidate, now_ms=now_ms, memory_bytes=memory_bytes)

        def commit(old: Sequence[Row], new: Row, cleaned: Cleaned | None) -> Steps[None]:
            yield from ()
            self.put(old, new)
            self.cleaned = self.cleaned if cleaned is None else cleaned.end_offset

        report = drive(self.log.store, round_.run(commit), clock=self.log.clock, ids=self.log.ids)
        assert self.cleaned == report.end_offset
        return report

    def data(self, row: Row) -> bytes:
        found = self.log.store.execute(Get(self.log.log_key(row)))
        return found.data if isinstance(found, Object) else b""

    def bundle(self, row: Row) -> Bundle:
        found = self.log.store.execute(Get(self.log.idx_key(row)))
        assert isinstance(found, Object)
        return decode_bundle(found.data)
