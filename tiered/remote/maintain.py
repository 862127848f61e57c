"""Maintenance of one partition, from the bucket alone: what is to be done (``plan.maintenance``), and doing it.

Steps, in the role ``m``: its claim fences older maintainers and leaves the writer alone, which goes on appending. A
plan costs the root, pieces of rows, and one HEAD for a row whose time is wrong; an action ends in one root PUT, or
changes nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from uuid import UUID

from tiered.config import TopicConfig
from tiered.errors import CorruptionError, NotFoundError, OffsetOutOfRangeError
from tiered.format.keys import Role
from tiered.format.root import STATE_DELETING, Cleaned
from tiered.model import Row, TopicPartition
from tiered.plan.cleaning import LogState, cleaning_candidate
from tiered.plan.known import NOTHING_KNOWN, Known
from tiered.plan.maintenance import (
    MAX_COMPACTED_ROWS,
    MAX_DELETE_KEYS,
    Action,
    CompactionPlanner,
    Kind,
    MergePlanner,
    PartitionPlan,
    collection_action,
    compaction_action,
    retention_action,
)
from tiered.plan.offset_map import DEDUPE_BUFFER_BYTES
from tiered.plan.retention import RemoteExpiry, plan_remote_expiry
from tiered.plan.rewrite import ReplaceIntent
from tiered.remote.cache import ByteCache
from tiered.remote.catalog import Catalog
from tiered.remote.collect import Collected, Collector
from tiered.remote.compact import Compaction
from tiered.remote.deletion import destroy
from tiered.remote.fetch import SegmentGone
from tiered.remote.lookup import SegmentLookup
from tiered.remote.merge import merge_rows
from tiered.remote.rewrite import Spend, Workshop, spend_nothing
from tiered.remote.snapshot import Snapshot
from tiered.remote.sweep import Swept, need_newest, sweep
from tiered.store.base import Capabilities, Head, Now, Object, Steps
from tiered.times import format_time

MAX_ROUNDS = 1000
"""Rounds of one compaction."""

ALL_GOES = (
    "the newest segment leaves the catalog, too; its objects stay until something is appended behind them: they alone "
    "tell who wrote, by which a retry of an idempotent producer is known"
)
"""Said of a start offset at the end."""

ALL_GOES_UNKNOWN = (
    "the newest segment leaves the catalog in a page, and nothing there tells afterwards who wrote: a machine without "
    "this log's disk would take a retry of an idempotent producer for new; append something first to keep it known"
)
"""Said of it where the newest row does not stand in the root itself."""


@dataclass(frozen=True, slots=True)
class Done:
    """What one action did. ``note``: why it was not what was planned."""

    action: Action
    bytes_read: int = 0
    bytes_written: int = 0
    note: str = ""
    collected: Collected | None = None


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
        if snapshot.root.state == STATE_DELETING:
            return self._destruction(snapshot, kinds, now_ms)
        actions: list[Action] = []
        notes: list[str] = []
        start = snapshot.start_offset
        if Kind.RETENTION in kinds or begin_at is not None:
            expiry = yield from self._expiry(snapshot, now_ms, max(start, begin_at or 0))
            trim = retention_action(expiry, start, config=self._config, now_ms=now_ms)
            start = expiry.start_offset
            actions += [trim] if trim else []
            if trim and trim.end == snapshot.next_offset:
                notes.append(ALL_GOES if len(snapshot.root.rows) else ALL_GOES_UNKNOWN)
        actions += yield from self._rewrites(snapshot, kinds, start, now_ms, notes)
        if Kind.COLLECT in kinds:
            collect = collection_action(snapshot.root, config=self._config, now_ms=now_ms)
            actions += [collect] if collect else []
        return PartitionPlan(self._tp, snapshot.version, tuple(actions), tuple(notes))

    def run(
        self,
        action: Action,
        capabilities: Capabilities,
        *,
        spend: Spend = spend_nothing,
        memory_bytes: int = DEDUPE_BUFFER_BYTES,
    ) -> Steps[Done]:
        """Carries one action of a plan out, on whatever the newest root is by now.

        What others have changed meanwhile is left as it is, and said. Raises FencedError if another maintainer has
        claimed the partition: what was written is an orphan of a dead epoch then. ``memory_bytes``: of the map of keys.
        """
        root = self._catalog.root
        if root is not None and root.state == STATE_DELETING:  # nobody may claim it, and nobody needs to
            collected = yield from destroy(root, self._config.gc_grace_ms)
            note = f"the topic is being deleted: {collected.pins} pins or snapshots hold it" if collected.held else ""
            return Done(action, note=note, collected=collected)
        yield from self._claimed()
        if action.kind is Kind.RETENTION:
            yield from self._catalog.trim(action.end, reason=action.reason)
            return Done(action)
        if action.kind is Kind.COLLECT:
            collected = yield from Collector(self._catalog, self._config.gc_grace_ms).run()
            return Done(action, note=collected.note, collected=collected)
        shop = Workshop(
            tp=self._tp,
            topic_id=self._catalog.topic_id,
            lookup=self._lookup,
            capabilities=capabilities,
            claim_epoch=self._catalog.claim_epoch,
            index_interval_bytes=self._config.index_interval_bytes,
            spend=spend,
        )
        try:
            if action.kind is Kind.MERGE:
                merged = yield from merge_rows(shop, action.rows)
                yield from self._replace(action, action.rows, merged, None)
                return Done(action, action.bytes_read, merged.size + merged.idx_len)
            return (yield from self._compact(action, shop, memory_bytes))
        except SegmentGone as gone:
            yield from self._need_superseded(gone)
        except NotFoundError as gone:
            if gone.__class__ is not NotFoundError:
                raise
        return Done(action, note="others have changed it meanwhile: a later plan has what is left")

    def sweep(self, *, delete: bool) -> Steps[Swept]:
        """Orphans of dead epochs. With ``delete`` they go; this claim ends the epochs of older maintainers first.

        None of a topic that is being deleted, nor of one that is gone: nobody may claim it, a claim would make its
        root anew, and all that it has goes with it.
        """
        yield from self.need_newest()
        root = self._catalog.root
        if root is None or root.state == STATE_DELETING:
            return Swept()
        if delete:
            yield from self._claimed()
        return (yield from sweep(self._catalog, delete=delete))

    def _destruction(self, snapshot: Snapshot, kinds: Collection[Kind], now_ms: int) -> PartitionPlan:
        """Of a topic that was deleted everything goes at once, or nothing yet."""
        frees_at_ms = snapshot.root.commit.ts_ms + self._config.gc_grace_ms
        note = f"the topic was deleted, its objects go from {format_time(frees_at_ms)}"
        if Kind.COLLECT not in kinds or now_ms < frees_at_ms:
            return PartitionPlan(self._tp, snapshot.version, (), (note,))
        action = Action(
            Kind.COLLECT,
            snapshot.start_offset,
            snapshot.next_offset,
            "the topic was deleted",
            rows_in=snapshot.segments,
            requests=4 + 2 * snapshot.segments // MAX_DELETE_KEYS,
            garbage_objects=2 * snapshot.segments,
            garbage_bytes=snapshot.size_bytes,
            frees_at_ms=frees_at_ms,
        )
        return PartitionPlan(self._tp, snapshot.version, (action,), ())

    def need_newest(self) -> Steps[None]:
        """Before the first action of a run that sweeps. Raises CorruptionError under an older root."""
        yield from need_newest(self._catalog)

    def _claimed(self) -> Steps[None]:
        if not self._catalog.claim_epoch:
            yield from self._catalog.claim(Role.MAINTAINER, self._owner)

    def _replace(self, action: Action, old: Sequence[Row], new: Row, cleaned: Cleaned | None) -> Steps[None]:
        intent = ReplaceIntent(tuple(old), (new,), cleaned)
        yield from self._catalog.commit(intent, reason=f"{action.kind}, {action.reason}")

    def _compact(self, action: Action, shop: Workshop, memory_bytes: int) -> Steps[Done]:
        """Rounds until nothing is dirty: more than one where the keys do not fit into the map."""
        read = written = 0
        now_ms = (yield Now()).now_ms
        for _ in range(MAX_ROUNDS):
            snapshot = yield from self._catalog.pin()
            if snapshot is None:
                break
            planner = CompactionPlanner(self._config)
            at = snapshot.start_offset
            while len(rows := (yield from snapshot.piece(at))):
                planner.add(rows)
                at = rows.end_offset
            stable = yield from self._lookup.last_stable_offset(snapshot)
            state = self._state(snapshot, planner, snapshot.start_offset, stable)
            candidate = cleaning_candidate(state, now_ms)
            if candidate is None or not candidate.cleanable_bytes:
                break
            work = Compaction(shop, snapshot, state, candidate, now_ms=now_ms, memory_bytes=memory_bytes)
            report = yield from work.run(partial(self._replace, action))
            read, written = read + report.bytes_read, written + report.bytes_written
            if not report.groups:
                break
        return Done(action, read, written)

    def _need_superseded(self, gone: SegmentGone) -> Steps[None]:
        """An object that a root named may be gone if the newest root does not name it. Raises CorruptionError."""
        snapshot = yield from self._catalog.pin()
        held = (yield from snapshot.at(gone.row.base)) if snapshot is not None else None
        if snapshot is not None and held == gone.row:
            raise CorruptionError(
                f"{self._tp}: {gone.key} is gone and version {snapshot.version} of the catalog still names it (offsets "
                f"{gone.row.base} to {gone.row.next})",
                path_or_key=gone.key,
                position=0,
                offset=gone.row.base,
                hint="look for a lifecycle rule or a person that deletes objects of this prefix; nothing was replaced",
            )

    def _expiry(self, snapshot: Snapshot, now_ms: int, start: int) -> Steps[RemoteExpiry]:
        """The rows are asked for only as far as they go. All sizes are of one root's rows, which do not overlap."""
        at, whole = snapshot.start_offset, snapshot.size_bytes
        segments = size = 0
        reasons: list[str] = []
        stored: dict[int, int] = {}
        while len(rows := (yield from snapshot.piece(at))):
            found = plan_remote_expiry(
                rows,
                config=self._config,
                now_ms=now_ms,
                start_offset=start,
                size_bytes=whole,
                stored_ms=stored,
                next_offset=snapshot.next_offset,
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
        if compaction_action(self._state(snapshot, planner, start, end), now_ms) is None:
            return None
        try:
            stable = yield from self._lookup.last_stable_offset(snapshot)
        except SegmentGone as error:  # collected since by another maintainer: a later plan sees what took its place
            yield from self._need_superseded(error)
            return None
        return compaction_action(self._state(snapshot, planner, start, stable), now_ms)

    def _state(self, snapshot: Snapshot, planner: CompactionPlanner, start: int, stable: int) -> LogState:
        cleaned = max((entry.end_offset for entry in snapshot.root.cleaned), default=None)
        return planner.state(self._tp, start, cleaned, stable, snapshot.next_offset)
