"""A partition of the bucket that is merged and compacted without a commit: the root is put by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from tests.unit.remote.building import TRUSTED, RemoteLog
from tiered.config import TopicConfig
from tiered.format.bundle import Bundle, decode_bundle
from tiered.format.keys import Role
from tiered.format.root import CompactedRange
from tiered.format.rows import Rows
from tiered.model import Row, SealedSegment, TopicPartition
from tiered.plan.batch_filter import CleaningReport
from tiered.plan.cleaning import LogState
from tiered.plan.maintenance import READ_AHEAD_BYTES, CompactionPlanner
from tiered.plan.survivors import OFFSET_BITS, Pairs, Survivors, SurvivorsBuilder, code_of, txns_before
from tiered.remote.catalog import Catalog
from tiered.remote.catalog_view import CatalogView
from tiered.remote.compact import Compaction
from tiered.remote.compact_parts import CompactionPart, Round, plan_round, rewrite_part, scan_part
from tiered.remote.fetch import ByteCache
from tiered.remote.lookup import SegmentLookup
from tiered.remote.segment_rewriter import RewriteContext, merge_rows
from tiered.remote.upload import upload_segment
from tiered.store.base import Get, Object, Steps
from tiered.store.driver import Runner, drive
from tiered.store.unique_upload import PART_BYTES


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

    def context(self) -> RewriteContext:
        root = self.log.root
        if root is not None and not root.roles[Role.MAINTAINER.value].epoch:
            catalog = Catalog(self.log.topic_id, self.log.partition, self.log.topic)
            drive(self.log.store, catalog.claim(Role.MAINTAINER, "test"), clock=self.log.clock, ids=self.log.ids)
        return RewriteContext(
            tp=self.tp,
            topic_id=self.log.topic_id,
            lookup=SegmentLookup(self.tp, self.log.topic_id, ByteCache()),
            capabilities=TRUSTED,
            claim_epoch=1,
            index_interval_bytes=self.config.index_interval_bytes,
            lineage=self.log.root.lineage if self.log.root is not None else (),
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
        merged = drive(self.log.store, merge_rows(self.context(), rows), clock=self.log.clock, ids=self.log.ids)
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
        snapshot, context = CatalogView.from_root(root), self.context()
        stable = drive(self.log.store, context.lookup.last_stable_offset(snapshot))
        end = root.next_offset
        bounds = LogState(self.tp, self.config, (), root.start_offset, end, stable, end, self.cleaned)
        planner = CompactionPlanner(bounds, now_ms)
        planner.add(root.rows)
        candidate = planner.candidate()
        if not candidate.cleanable_bytes:
            return None
        round_ = Compaction(context, snapshot, self.config, candidate, now_ms=now_ms, memory_bytes=memory_bytes)

        def commit(old: Sequence[Row], new: Row, cleaned: CompactedRange | None) -> Steps[None]:
            yield from ()
            self.put(old, new)
            self.cleaned = self.cleaned if cleaned is None else cleaned.end_offset

        report = drive(self.log.store, round_.run(commit), clock=self.log.clock, ids=self.log.ids)
        assert self.cleaned == report.end_offset
        return report

    def compact_in_parts(self, *, part_bytes: int, most_keys: int) -> Round | None:
        """One round by the steps of many machines, one after the other, and a dictionary for the shuffle between."""
        root = self.log.root
        assert root is not None
        view, context = Catalog(self.log.topic_id, self.log.partition, self.log.topic), self.context()
        run = Runner(self.log.store, self.log.clock, self.log.ids)
        if self.cleaned is not None and root.cleaned != (CompactedRange(self.cleaned, 0),):
            self.log.put_root(root.rows, cleaned=(CompactedRange(self.cleaned, 0),))
        planned = run.run(plan_round(view, self.config, context, part_bytes=part_bytes))
        if planned is None:
            return None
        round_, parts = planned
        pairs: list[tuple[int, int, int]] = []
        effects: list[dict[str, list[int]]] = []

        def emitted(found: Pairs) -> None:
            assert len(found.codes) <= most_keys + 100
            pairs.extend(zip(found.high.tolist(), found.low.tolist(), found.codes.tolist(), strict=True))

        for number, part in enumerate(parts):
            steps = scan_part(view, context, part, number=number, first_dirty=round_.first_dirty, most_keys=most_keys)
            effects += run.run(steps, take=emitted).effects
        found = bitmaps(round_, parts, pairs)
        groups = [group for part in parts for group in part.groups]
        before = iter(txns_before([group.start for group in groups], effects))
        written: list[tuple[list[Row], Row]] = []
        for part, bitmap in zip(parts, found, strict=True):
            survivors = Survivors(
                bitmap, part.start, part.end, key="bitmap", latest_offset=round_.first_uncleanable - 1
            )
            told = [(group, next(before)) for group in part.groups]
            made = run.run(rewrite_part(view, context, round_, told, survivors, always=False))
            for group, row in zip(part.groups, made, strict=True):
                last = group is groups[-1] and not written
                if last and row is None:
                    told = [told[-1]]
                    (row,) = run.run(rewrite_part(view, context, round_, told, survivors, always=True))
                if row is not None:
                    written.append(([old for old in self.rows if group.start <= old.base < group.end], row))
        for old, new in written:
            self.put(old, new)
        self.cleaned = round_.first_uncleanable
        return round_

    def data(self, row: Row) -> bytes:
        found = self.log.store.execute(Get(self.log.log_key(row)))
        return found.data if isinstance(found, Object) else b""

    def bundle(self, row: Row) -> Bundle:
        found = self.log.store.execute(Get(self.log.idx_key(row)))
        assert isinstance(found, Object)
        return decode_bundle(found.data)


def bitmaps(round_: Round, parts: list[CompactionPart], pairs: list[tuple[int, int, int]]) -> list[bytes]:
    """What the shuffle between the phases makes of all pairs: the survivors of each part."""
    newest: dict[tuple[int, int], int] = {}
    for high, low, code in pairs:
        newest[high, low] = max(code, newest.get((high, low), -1))
    dirty = code_of(round_.first_dirty, [part.start for part in parts])
    codes = sorted(code for high, low, code in pairs if newest[high, low] < dirty or code == newest[high, low])
    found = []
    for number, part in enumerate(parts):
        builder = SurvivorsBuilder(number, part.start, part.end)
        mine = np.array([code for code in codes if code >> OFFSET_BITS == number], dtype=np.int64)
        for at in range(0, len(mine), 3):
            builder.add(mine[at : at + 3])
        found.append(builder.finish())
    return found
