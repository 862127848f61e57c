"""Maintenance of one partition, from the bucket alone: what is to be done (``plan.maintenance``), and doing it.

Steps, in the role ``m``: its claim fences older maintainers and leaves the writer alone, which goes on appending. A
plan costs the root, pieces of rows, and one HEAD for a row whose time is wrong; an action ends in one root PUT, or
changes nothing.
"""

from __future__ import annotations

from collections.abc import Collection
from uuid import UUID

from tiered.config import TopicConfig
from tiered.errors import OffsetOutOfRangeError
from tiered.format.keys import Role
from tiered.model import TopicPartition
from tiered.plan.known import NOTHING_KNOWN, Known
from tiered.plan.maintenance import (
    MAX_COMPACTED_ROWS,
    Action,
    CompactionPlanner,
    Kind,
    MergePlanner,
    PartitionPlan,
    collection_action,
    compaction_action,
    retention_action,
)
from tiered.plan.retention import RemoteExpiry, plan_remote_expiry
from tiered.remote.cache import ByteCache
from tiered.remote.catalog import Catalog
from tiered.remote.lookup import SegmentLookup
from tiered.remote.snapshot import Snapshot
from tiered.store.base import Head, Now, Object, Steps


class Maintainer:
    """One partition. ``config`` is the topic's, as the registry has it; ``begin_at`` an operator's start offset."""

    def __init__(
        self, tp: TopicPartition, topic_id: UUID, config: TopicConfig, *, owner: str, known: Known = NOTHING_KNOWN
    ) -> None:
        self._tp = tp
        self._config = config
        self._owner = owner
        self._catalog = Catalog(topic_id, tp.partition, tp.topic, known=known)
        self._lookup = SegmentLookup(tp, topic_id, ByteCache())

    def plan(self, kinds: Collection[Kind], *, begin_at: int | None = None) -> Steps[PartitionPlan | None]:
        """What is to be done now; None for a partition without a catalog. Raises OffsetOutOfRangeError."""
        snapshot = yield from self._catalog.pin()
        if snapshot is None:
            return None
        if begin_at is not None and begin_at > snapshot.next_offset:
            raise OffsetOutOfRangeError(
                f"{self._tp} ends at offset {snapshot.next_offset} in the bucket, it cannot begin at {begin_at}",
                requested=begin_at,
                earliest=snapshot.start_offset,
                latest=snapshot.next_offset,
            )
        now_ms = (yield Now()).now_ms
        actions: list[Action] = []
        notes: list[str] = []
        start = snapshot.start_offset
        if Kind.RETENTION in kinds or begin_at is not None:
            expiry = yield from self._expiry(snapshot, now_ms, max(start, begin_at or 0))
            trim = retention_action(expiry, start, config=self._config, now_ms=now_ms)
            start = expiry.start_offset
            actions += [trim] if trim else []
        actions += yield from self._rewrites(snapshot, kinds, start, now_ms, notes)
        if Kind.COLLECT in kinds:
            collect = collection_action(snapshot.root.trash, config=self._config, now_ms=now_ms)
            actions += [collect] if collect else []
        return PartitionPlan(self._tp, snapshot.version, tuple(actions), tuple(notes))

    def run(self, action: Action) -> Steps[None]:
        """Carries one action of a plan out, on whatever the newest root is by now."""
        yield from self._claimed()
        yield from self._catalog.trim(action.end)

    def _claimed(self) -> Steps[None]:
        if not self._catalog.claim_epoch:
            yield from self._catalog.claim(Role.MAINTAINER, self._owner)

    def _expiry(self, snapshot: Snapshot, now_ms: int, start: int) -> Steps[RemoteExpiry]:
        """The rows are asked for only as far as they go. All sizes are of one root's rows, which do not overlap."""
        at, whole = snapshot.start_offset, snapshot.size_bytes
        segments = size = 0
        reasons: list[str] = []
        stored: dict[int, int] = {}
        while len(rows := (yield from snapshot.piece(at))):
            found = plan_remote_expiry(
                rows, config=self._config, now_ms=now_ms, start_offset=start, size_bytes=whole, stored_ms=stored
            )
            if found.pinned is not None:
                head = yield Head(self._lookup.log_key(found.pinned))
                stored[found.pinned.base] = head.last_modified_ms if isinstance(head, Object) else now_ms
                continue
            segments, size, start = segments + found.segments, size + found.size_bytes, found.start_offset
            reasons += [reason for reason in found.reasons if reason not in reasons]
            if found.segments < len(rows):
                break
            at, whole = rows.end_offset, whole - found.size_bytes
        return RemoteExpiry(start, segments, size, tuple(reasons))

    def _rewrites(
        self, snapshot: Snapshot, kinds: Collection[Kind], start: int, now_ms: int, notes: list[str]
    ) -> Steps[list[Action]]:
        """Compaction, or else merges: what is compacted comes out in large segments by itself."""
        merges = MergePlanner(self._config, now_ms) if Kind.MERGE in kinds else None
        compaction = CompactionPlanner(self._config) if Kind.COMPACT in kinds and self._config.compacted else None
        at = start
        while (merges or compaction) and len(rows := (yield from snapshot.piece(at))):
            if merges is not None:
                merges.add(rows)
            if compaction is not None:
                compaction.add(rows)
            at = rows.end_offset
        due = None
        if compaction is not None:
            if compaction.too_many:
                notes.append(f"only the first {MAX_COMPACTED_ROWS} rows are looked at: more are for several machines")
            due = yield from self._compaction(snapshot, compaction, start, now_ms)
        if due is not None:
            return [due]
        return merges.finish() if merges is not None else []

    def _compaction(
        self, snapshot: Snapshot, planner: CompactionPlanner, start: int, now_ms: int
    ) -> Steps[Action | None]:
        """The stable offset costs a request: it is asked for only where a round is due without it."""
        end = snapshot.next_offset
        if compaction_action(planner.state(self._tp, start, None, end, end), now_ms) is None:
            return None
        stable = yield from self._lookup.last_stable_offset(snapshot)
        return compaction_action(planner.state(self._tp, start, None, stable, end), now_ms)
