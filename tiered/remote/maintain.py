"""Maintenance of one partition, from the bucket alone: planning (``plan.maintenance``) and carrying out.

Steps, in the role ``m``. Its claim fences older maintainers and leaves the writer alone, which goes on appending. A
plan costs the root and pieces of rows. An action ends in one root PUT, or changes nothing. If this machine's clock is
far from the store's, the store's counts.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from uuid import UUID

from tiered.config import TopicConfig
from tiered.errors import CorruptionError, NotFoundError, OffsetOutOfRangeError
from tiered.format.keys import Role
from tiered.format.root import STATE_DELETING, CompactedRange
from tiered.model import Row, TopicPartition
from tiered.plan.catalog_edit import ReplaceIntent
from tiered.plan.maintenance import (
    MAX_DELETE_KEYS,
    CompactionPlanner,
    MaintenanceAction,
    MaintenanceKind,
    MaintenancePlan,
    MergePlanner,
    ReencodePlanner,
    RowPlanner,
    WrongTimes,
    collection_action,
    retention_action,
)
from tiered.plan.offset_map import DEDUPE_BUFFER_BYTES
from tiered.plan.retention import RemoteExpiry, plan_remote_expiry
from tiered.plan.root_lower_bounds import NOTHING_KNOWN, RootLowerBounds
from tiered.remote.catalog import Catalog
from tiered.remote.catalog_view import CatalogView, PageGone
from tiered.remote.compact import Compaction, compaction_planner, feed, raise_if_still_named
from tiered.remote.fetch import ByteCache, SegmentGone
from tiered.remote.gc.deletion import destroy
from tiered.remote.gc.garbage import Collected, Collector
from tiered.remote.gc.orphans import Swept, sweep
from tiered.remote.lookup import SegmentLookup
from tiered.remote.pins import Pins, read_pins
from tiered.remote.root_history import require_newest_root
from tiered.remote.segment_rewriter import (
    Encoding,
    RewriteContext,
    Spend,
    TooLarge,
    merge_rows,
    reencode_row,
    spend_nothing,
)
from tiered.store.base import Capabilities, Steps
from tiered.times import format_time

PLAN_LOOKS = 3
"""Most roots that a plan reads before a missing page counts as damage."""
MAX_ROUNDS = 1000
"""Most rounds of one compaction."""

ALL_GOES = (
    "the newest segment leaves the catalog, too; its objects stay until something is appended after them: only they "
    "have the producers, by which a retry of an idempotent producer is detected"
)
"""Note for a start offset at the end of the log."""


@dataclass(frozen=True, slots=True)
class ActionResult:
    """Result of one maintenance action. ``note``: why the result differs from the plan, empty if it does not.

    ``collected``: result of a garbage collection, None for other actions.
    """

    action: MaintenanceAction
    bytes_read: int = 0
    bytes_written: int = 0
    note: str = ""
    collected: Collected | None = None


class Maintainer:
    """Planner and executor of the maintenance of one partition, from the bucket alone.

    ``config``: the topic's settings in the registry. ``owner``: name of this process in its claim. ``known``: lower
    bounds of the root's version and offsets: an older root is refused.
    """

    def __init__(
        self,
        tp: TopicPartition,
        topic_id: UUID,
        config: TopicConfig,
        *,
        owner: str,
        known: RootLowerBounds = NOTHING_KNOWN,
    ) -> None:
        self._tp = tp
        self._config = config
        self._owner = owner
        self._catalog = Catalog(topic_id, tp.partition, tp.topic, known=known)
        self._lookup = SegmentLookup(tp, topic_id, ByteCache())

    def plan(self, kinds: Collection[MaintenanceKind], *, begin_at: int | None = None) -> Steps[MaintenancePlan | None]:
        """Return the plan of the actions of ``kinds`` that are due now; None for a partition without a catalog.

        ``begin_at``: start offset to which an operator wants to trim; a trim is then planned for any ``kinds``. Raises
        OffsetOutOfRangeError if it is beyond the end, CorruptionError for a damaged catalog or index.
        """
        seen, looks = -1, 0
        while True:
            snapshot = yield from self._catalog.pin()
            if snapshot is None:
                return None
            try:
                return (yield from self._planned(snapshot, kinds, begin_at))
            except PageGone:  # if others have replaced the root meanwhile, its pages may be collected
                looks += 1
                if snapshot.version == seen or looks == PLAN_LOOKS:
                    raise
                seen = snapshot.version

    def _planned(
        self, snapshot: CatalogView, kinds: Collection[MaintenanceKind], begin_at: int | None
    ) -> Steps[MaintenancePlan | None]:
        if begin_at is not None and begin_at > snapshot.next_offset:
            raise OffsetOutOfRangeError(
                f"{self._tp} cannot be trimmed up to offset {begin_at}: in the bucket it ends at offset "
                f"{snapshot.next_offset}",
                hint=f"pass --start-offset with at most {snapshot.next_offset}",
                requested=begin_at,
                earliest=snapshot.start_offset,
                latest=snapshot.next_offset,
            )
        now_ms = yield from self._catalog.now_ms()
        if snapshot.root.state == STATE_DELETING:
            return self._destruction(snapshot, kinds, now_ms)
        actions: list[MaintenanceAction] = []
        notes: list[str] = []
        wrong = WrongTimes(self._config)
        start = snapshot.start_offset
        if MaintenanceKind.RETENTION in kinds or begin_at is not None:
            expiry = yield from self._expiry(snapshot, now_ms, max(start, begin_at or 0), wrong)
            trim = retention_action(expiry, start, config=self._config, now_ms=now_ms)
            start = expiry.start_offset
            actions += [trim] if trim else []
            if trim and trim.end == snapshot.next_offset:
                notes.append(ALL_GOES)
        merges = MergePlanner(self._config, now_ms) if MaintenanceKind.MERGE in kinds else None
        actions += yield from self._rewrites(snapshot, kinds, start, now_ms, merges, wrong)
        if MaintenanceKind.COLLECT in kinds:
            collect = collection_action(snapshot.root, config=self._config, now_ms=now_ms)
            actions += [collect] if collect else []
        due_ms = -1 if merges is None else merges.due_ms
        return MaintenancePlan(self._tp, snapshot.version, tuple(actions), (*notes, *wrong.notes), due_ms)

    def run(
        self,
        action: MaintenanceAction,
        capabilities: Capabilities,
        *,
        spend: Spend = spend_nothing,
        memory_bytes: int = DEDUPE_BUFFER_BYTES,
    ) -> Steps[ActionResult]:
        """Carry out one action of a plan, on the newest root, and return its result.

        For a topic that is being deleted, any action deletes its objects once the grace period is over. Segments that
        others changed since the plan stay as they are; the result's ``note`` says so if the action stops there.
        ``capabilities``: result of the store's probe. ``memory_bytes``: memory for the map of keys. ``spend``: called
        with the size of each read; it may raise. Raises FencedError if another maintainer has claimed the partition:
        the new objects are then orphans. Raises CorruptionError for damage.
        """
        root = self._catalog.root
        if root is not None and root.state == STATE_DELETING:  # needs no claim, and none is allowed
            collected = yield from destroy(root, self._config.gc_grace_ms)
            note = f"the topic is being deleted: it has {collected.pins} pins or snapshots" if collected.held else ""
            return ActionResult(action, note=note, collected=collected)
        if action.kind is MaintenanceKind.COLLECT:
            held = yield from Collector(self._catalog, self._config.gc_grace_ms).held()
            if held is not None:
                return ActionResult(action, note=held.note, collected=held)
        yield from self._claimed()
        if action.kind is MaintenanceKind.RETENTION:
            yield from self._catalog.trim(action.end, reason=action.reason)
            return ActionResult(action)
        if action.kind is MaintenanceKind.COLLECT:
            collected = yield from Collector(self._catalog, self._config.gc_grace_ms).run()
            return ActionResult(action, note=collected.note, collected=collected)
        context = RewriteContext(
            tp=self._tp,
            topic_id=self._catalog.topic_id,
            lookup=self._lookup,
            capabilities=capabilities,
            claim_epoch=self._catalog.claim_epoch,
            index_interval_bytes=self._config.index_interval_bytes,
            lineage=root.lineage if (root := self._catalog.root) is not None else (),
            spend=spend,
        )
        try:
            if action.kind is MaintenanceKind.MERGE:
                merged = yield from merge_rows(context, action.rows)
                yield from self._replace(action, action.rows, merged, None)
                return ActionResult(action, action.bytes_read, merged.size + merged.idx_len)
            if action.kind is MaintenanceKind.REENCODE:
                return (yield from self._reencode(action, context))
            return (yield from self._compact(action, context, memory_bytes))
        except SegmentGone as gone:
            yield from raise_if_still_named(self._tp, self._catalog, gone)
        except NotFoundError as gone:
            if gone.__class__ is not NotFoundError:
                raise
        except CorruptionError:  # a new claim may have swept what this one stored: FencedError goes first
            yield from self._catalog.confirm()
            raise
        return ActionResult(action, note="another process changed these segments meanwhile; plan again for the others")

    def sweep(self, *, delete: bool) -> Steps[Swept]:
        """Find the partition's orphans. With ``delete``, claim the maintainer role first, then delete the orphans.

        The claim ends older epochs, whose objects then count as orphans. Returns an empty result for a topic that is
        deleted or being deleted. Raises CorruptionError if the root is an older one that was put back.
        """
        yield from self.require_newest_root()
        root = self._catalog.root
        if root is None or root.state == STATE_DELETING:
            return Swept()
        if delete:
            yield from self._claimed()
        return (yield from sweep(self._catalog, delete=delete, grace_ms=self._config.gc_grace_ms))

    def pins(self) -> Steps[Pins | None]:
        """Return the pins and snapshots of the partition. None without a root, or before :meth:`plan`.

        Raises CorruptionError for an unreadable pin or snapshot, RemotePermissionError if the role may not list them.
        """
        root = self._catalog.root
        return None if root is None else (yield from read_pins(root))

    def _destruction(self, snapshot: CatalogView, kinds: Collection[MaintenanceKind], now_ms: int) -> MaintenancePlan:
        """Return the plan for a deleted topic: one deletion of all objects.

        There is no action during the grace period, or if ``kinds`` lacks COLLECT.
        """
        frees_at_ms = snapshot.root.commit.ts_ms + self._config.gc_grace_ms
        note = f"the topic was deleted; its objects are deleted from {format_time(frees_at_ms)} on"
        waits = self._config.gc_grace_ms and now_ms < frees_at_ms  # without a grace no clock decides
        if MaintenanceKind.COLLECT not in kinds or waits:
            return MaintenancePlan(self._tp, snapshot.version, (), (note,))
        action = MaintenanceAction(
            MaintenanceKind.COLLECT,
            snapshot.start_offset,
            snapshot.next_offset,
            "the topic was deleted",
            rows_in=snapshot.segments,
            requests=4 + 2 * snapshot.segments // MAX_DELETE_KEYS,
            garbage_objects=2 * snapshot.segments,
            garbage_bytes=snapshot.size_bytes,
            frees_at_ms=frees_at_ms,
        )
        return MaintenancePlan(self._tp, snapshot.version, (action,), ())

    @property
    def version(self) -> int:
        """Version of the root as last read or written; -1 before :meth:`plan`."""
        return self._catalog.root.version if self._catalog.root is not None else -1

    def require_newest_root(self, *, sweeps: bool = True) -> Steps[None]:
        """Raise CorruptionError if the root is an older one that was put back. Call this before a run's first action.

        ``sweeps``: if the role may not list ``hist/``, True raises RemotePermissionError, False skips the check.
        """
        yield from require_newest_root(self._catalog, must_list=sweeps)

    def _claimed(self) -> Steps[None]:
        if not self._catalog.claim_epoch:
            yield from self._catalog.claim(Role.MAINTAINER, self._owner)

    def _replace(
        self, action: MaintenanceAction, old: Sequence[Row], new: Row, cleaned: CompactedRange | None
    ) -> Steps[None]:
        intent = ReplaceIntent(tuple(old), (new,), cleaned)
        yield from self._catalog.commit(intent, reason=f"{action.kind}, {action.reason}")

    def _compact(self, action: MaintenanceAction, context: RewriteContext, memory_bytes: int) -> Steps[ActionResult]:
        """Compact in rounds until nothing is dirty: several if the keys do not fit into ``memory_bytes``."""
        read = written = 0
        now_ms = yield from self._catalog.now_ms()
        for _ in range(MAX_ROUNDS):
            snapshot = yield from self._catalog.pin()
            if snapshot is None:
                break
            stable = yield from self._lookup.last_stable_offset(snapshot)
            planner = self._planner(snapshot, snapshot.start_offset, stable, now_ms)
            yield from feed(snapshot, snapshot.start_offset, [planner])
            candidate = planner.candidate()
            if not candidate.cleanable_bytes:
                break
            work = Compaction(context, snapshot, self._config, candidate, now_ms=now_ms, memory_bytes=memory_bytes)
            report = yield from work.run(partial(self._replace, action))
            read, written = read + report.bytes_read, written + report.bytes_written
            if not report.groups:
                break
        return ActionResult(action, read, written)

    def _reencode(self, action: MaintenanceAction, context: RewriteContext) -> Steps[ActionResult]:
        """Rewrite one segment after the other, each with its own commit.

        Skips segments that are trimmed or replaced meanwhile, or would become too large.
        """
        encoding = Encoding.from_config(self._config)
        at, read, written, too_large, changed = action.start, 0, 0, 0, 0
        while at < action.end and changed < MAX_ROUNDS:
            snapshot = yield from self._catalog.pin()
            if snapshot is None or not len(rows := (yield from snapshot.piece(max(at, snapshot.start_offset)))):
                break
            for row in rows:
                if row.base >= action.end:
                    break
                try:
                    made = (yield from reencode_row(context, row, encoding)) if row.size else None
                    if made is not None:
                        yield from self._replace(action, [row], made, None)
                        written += made.size + made.idx_len
                except TooLarge:
                    too_large += 1
                except SegmentGone as lost:
                    yield from raise_if_still_named(self._tp, self._catalog, lost)
                    changed += 1
                    break
                except NotFoundError as gone:
                    if gone.__class__ is not NotFoundError:
                        raise
                    changed += 1
                    break
                at, read = row.next, read + row.size
        note = f"segments not re-encoded, because the result would exceed the size limit: {too_large}"
        return ActionResult(action, read, written, note=note if too_large else "")

    def _expiry(self, snapshot: CatalogView, now_ms: int, start: int, wrong: WrongTimes) -> Steps[RemoteExpiry]:
        """Return the expiry by retention. Rows below offset ``start`` expire in any case.

        Reads rows only up to the first that stays. ``wrong`` counts those with impossible times.
        """
        at, whole = snapshot.start_offset, snapshot.size_bytes
        segments = size = 0
        reasons: list[str] = []
        while len(rows := (yield from snapshot.piece(at))):
            wrong.add(rows)
            found = plan_remote_expiry(
                rows,
                config=self._config,
                now_ms=now_ms,
                start_offset=start,
                size_bytes=whole,
                next_offset=snapshot.next_offset,
            )
            segments, size, start = segments + found.segments, size + found.size_bytes, found.start_offset
            reasons += [reason for reason in found.reasons if reason not in reasons]
            if found.segments < len(rows):
                break
            at, whole = rows.end_offset, whole - found.size_bytes
        return RemoteExpiry(start, segments, size, tuple(reasons))

    def _rewrites(  # noqa: PLR0917 - private, one step of a plan
        self,
        snapshot: CatalogView,
        kinds: Collection[MaintenanceKind],
        start: int,
        now_ms: int,
        merges: MergePlanner | None,
        wrong: WrongTimes,
    ) -> Steps[list[MaintenanceAction]]:
        """Return the due rewrites: a compaction, or merges if no compaction is due. Then a re-encoding.

        A compaction makes large segments itself, so it replaces the merges.
        """
        compaction = None
        if MaintenanceKind.COMPACT in kinds and self._config.compacted:
            compaction = self._planner(snapshot, start, snapshot.next_offset, now_ms)
        reencode = ReencodePlanner(self._config, now_ms) if MaintenanceKind.REENCODE in kinds else None
        planners: list[RowPlanner] = [each for each in (merges, compaction, reencode) if each is not None]
        yield from feed(snapshot, start, [*planners, wrong] if planners else [])
        last = [due] if reencode is not None and (due := reencode.action()) is not None else []
        due = None if compaction is None else compaction.action()
        if due is not None:
            due = yield from self._stable(snapshot, start, now_ms, due)
        if due is not None:
            return [due, *last]
        return [*(merges.finish() if merges is not None else []), *last]

    def _stable(
        self, snapshot: CatalogView, start: int, now_ms: int, due: MaintenanceAction
    ) -> Steps[MaintenanceAction | None]:
        """Return the compaction ``due``, planned again below the oldest open transaction. None: nothing is left of it.

        Called only for a due compaction, because the last stable offset costs a request.
        """
        try:
            stable = yield from self._lookup.last_stable_offset(snapshot)
        except SegmentGone as error:  # collected since by another maintainer: a later plan sees its replacement
            yield from raise_if_still_named(self._tp, self._catalog, error)
            return None
        if stable == snapshot.next_offset:
            return due
        planner = self._planner(snapshot, start, stable, now_ms)
        yield from feed(snapshot, start, [planner])
        return planner.action()

    def _planner(self, snapshot: CatalogView, start: int, stable: int, now_ms: int) -> CompactionPlanner:
        return compaction_planner(self._tp, self._config, snapshot, start=start, stable=stable, now_ms=now_ms)
