"""Plan of the maintenance of a partition's objects: retention, merging, compaction, collection. Pure.

::

    rows of a snapshot, a piece at a time ──┐
    settings of the topic, a time ──────────┼──> actions, each with its reason and its price ──> one root PUT each
    trash of its root, producers ───────────┘

Nothing here knows a store: the executor of an action reads the newest root again, and applies its intent to that root.
Sizes are those of the rows of one root: segments that are being uploaded, or only on a disk, do not count.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from tiered.config import MAX_LONG, TopicConfig
from tiered.format.keys import FLAG_ABORTED_TXNS
from tiered.format.root import Root
from tiered.format.rows import Trash
from tiered.format.segment_indexes import OFFSET_ENTRY_BYTES, TIME_ENTRY_BYTES
from tiered.model import TRASH_OBJECT, Row, TopicPartition, TrashEntry
from tiered.plan.cleaning import CandidateScan, CleaningCandidate, LogState, SegmentState
from tiered.plan.retention import RemoteExpiry, has_wrong_times, row_age_from_ms, times_of, wrong_times_text
from tiered.plan.roll import MAX_RELATIVE_OFFSET

MERGE_LEAST_ROWS = 4
"""Least number of small neighbours that are merged."""

MAX_MERGES = 1000
"""Limit of merges in one plan; a later plan has the others."""

MAX_GROUP_ROWS = 4096
"""Limit of rows that become one, however small they are: below the limit of one intent."""

MAX_MERGED_ROWS = 100_000
"""Limit of rows in all merges of one plan, which it keeps in memory; a later plan has the others."""

NAMED_SEGMENTS = 3
"""Limit of segments with wrong timestamps that a plan names one by one."""

MAX_DELETE_KEYS = 1000
"""Keys of one DELETE request."""

READ_BYTES = 8 * 1024 * 1024
"""Bytes of one GET of a segment that is rewritten."""

READ_AHEAD_BYTES = 16 * 1024 * 1024
"""Bytes read ahead of a rewrite. With one piece in use and two parts being uploaded it stays below 64 MiB."""

PART_BYTES = 16 * 1024 * 1024
"""Bytes of one uploaded part; a smaller object goes in one PUT."""

REWRITE_BYTES = READ_BYTES + READ_AHEAD_BYTES + 2 * PART_BYTES
"""Memory of a merge or a compaction, besides the indexes of one segment and a map of keys."""

MIN_MAP_BYTES = 8 * 1024 * 1024
"""Size of a compaction's map if its budget is small; it then needs more rounds."""


class MaintenanceKind(enum.StrEnum):
    """Kinds of maintenance. The values are the arguments of ``tiered maintain --only``."""

    RETENTION = "retention"
    MERGE = "merge"
    COMPACT = "compact"
    COLLECT = "collect"
    REENCODE = "reencode"


ROUTINE: Final = (MaintenanceKind.RETENTION, MaintenanceKind.MERGE, MaintenanceKind.COMPACT, MaintenanceKind.COLLECT)
"""Kinds that run unless kinds are named. ``reencode`` is not among them, as it reads everything each time."""


@dataclass(frozen=True, slots=True)
class MaintenanceAction:
    """One planned change to offsets ``start`` to ``end`` (exclusive), and its cost. -1: unknown until it has run.

    ``rows_out``, ``bytes_written`` and ``requests`` are upper bounds: only the compaction itself finds the records to
    remove. A reencode may write more than it reads. Bytes are those of ``.log`` objects; pages of the catalog are not
    counted. ``garbage_bytes`` in ``garbage_objects`` objects can be deleted at ``frees_at_ms`` or later. ``rows``:
    inputs of a merge. ``records``: number of records that a compaction or a reencode reads.
    """

    kind: MaintenanceKind
    start: int
    end: int
    reason: str
    rows_in: int = 0
    rows_out: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    requests: int = 0
    garbage_objects: int = 0
    garbage_bytes: int = 0
    frees_at_ms: int = -1
    rows: tuple[Row, ...] = ()
    records: int = 0


@dataclass(frozen=True, slots=True)
class MaintenancePlan:
    """Maintenance of one partition, planned from ``version`` of its root.

    ``notes``: sentences for the operator, such as about segments with unusable timestamps. ``merge_due_ms``: time of
    the first merge that still waits for ``merge.idle.ms``; -1: none.
    """

    tp: TopicPartition
    version: int
    actions: tuple[MaintenanceAction, ...] = ()
    notes: tuple[str, ...] = ()
    merge_due_ms: int = -1


class RowPlanner(Protocol):
    """Planner to which the rows of a catalog are added in several calls."""

    def add(self, rows: Iterable[Row]) -> None:
        """Add the rows that follow those of earlier calls."""


# -- retention -------------------------------------------------------------------------------------------------------


def retention_action(
    expiry: RemoteExpiry, start_offset: int, *, config: TopicConfig, now_ms: int
) -> MaintenanceAction | None:
    """Return the action that raises the log start from ``start_offset`` to that of ``expiry``; None if it is no rise.

    ``expiry``: the planned new start, and the number and size of the segments that expire.
    """
    if expiry.start_offset <= start_offset:
        return None
    return MaintenanceAction(
        MaintenanceKind.RETENTION,
        start_offset,
        expiry.start_offset,
        ", ".join(expiry.reasons) or "start offset",
        rows_in=expiry.segments,
        requests=1,
        garbage_objects=2 * expiry.segments,
        garbage_bytes=expiry.size_bytes,
        frees_at_ms=now_ms + config.gc_grace_ms,
    )


class WrongTimes:
    """Collector of notes about segments with unusable timestamps. Rows are added in offset order."""

    def __init__(self, config: TopicConfig) -> None:
        self._config = config
        self._named: list[Row] = []
        self._count = self._end = 0

    def add(self, rows: Iterable[Row]) -> None:
        """Add rows. Rows at offsets of earlier calls are ignored."""
        for row in rows:
            if row.next <= self._end:
                continue
            self._end = row.next
            if has_wrong_times(row, self._config):
                self._count += 1
                if len(self._named) < NAMED_SEGMENTS:
                    self._named.append(row)

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences: one for each of the first :data:`NAMED_SEGMENTS` segments, and one with the number of others."""
        more = self._count - len(self._named)
        rest = (f"the timestamps of {more} more segments are not used either",) if more else ()
        return (*[wrong_times_text(*times_of(row)) for row in self._named], *rest)


# -- merging ---------------------------------------------------------------------------------------------------------


class MergePlanner:
    """Planner of merges of adjacent small rows, which are added in offset order.

    A row is merged ``merge.idle.ms`` after its newest record: until then its uploader may still read it back.
    ``due_ms``: time from which enough neighbours may be merged that must not be yet; -1: there are none.
    """

    def __init__(self, config: TopicConfig, now_ms: int) -> None:
        self._small = config.merged_below_bytes
        self._most = config.merged_up_to_bytes
        self._config = config
        self._now_ms = now_ms
        self._group: list[Row] = []
        self._bytes = 0
        self._found: list[MaintenanceAction] = []
        self._rows = 0
        self.due_ms = -1
        self._neighbours, self._due_ms = 0, -1

    def add(self, rows: Iterable[Row]) -> None:
        """Add the rows that follow those of earlier calls."""
        for row in rows:
            rests_from_ms = row_age_from_ms(row, self._config) + self._config.merge_idle_ms
            self._note_due(row, rests_from_ms)
            if row.size >= self._small or row.size > self._most or rests_from_ms > self._now_ms:
                self._end_group()
                continue
            group = self._group
            if group and (
                self._bytes + row.size > self._most
                or row.next - 1 - group[0].base > MAX_RELATIVE_OFFSET
                or len(group) == MAX_GROUP_ROWS
            ):
                self._end_group()
            self._group.append(row)
            self._bytes += row.size

    def _note_due(self, row: Row, rests_from_ms: int) -> None:
        """Count neighbours below the limit, those that rest included, and note when the first of them are due."""
        if row.size >= self._small or row.size > self._most:
            self._neighbours, self._due_ms = 0, -1
            return
        self._neighbours += bool(row.size)
        self._due_ms = max(self._due_ms, rests_from_ms)
        if self._neighbours >= MERGE_LEAST_ROWS and self._due_ms > self._now_ms and self.due_ms < 0:
            self.due_ms = self._due_ms

    def finish(self) -> list[MaintenanceAction]:
        """Return the merges in offset order. Call it once, after the last row.

        There are at most :data:`MAX_MERGES`, and none begins after :data:`MAX_MERGED_ROWS` rows; a later plan has more.
        """
        self._end_group()
        return self._found[:MAX_MERGES]

    def _end_group(self) -> None:
        """End the group and plan its merges. The next row begins another group."""
        group, self._group, self._bytes = self._group, [], 0
        for part in _worth_it(group):
            if len(self._found) < MAX_MERGES and self._rows < MAX_MERGED_ROWS:
                self._found.append(self._action(part))
                self._rows += len(part)

    def _action(self, group: Sequence[Row]) -> MaintenanceAction:
        size = sum(row.size for row in group)
        held = [row for row in group if row.size]
        bundles = [row for row in held if row is held[-1] or row.flags & FLAG_ABORTED_TXNS]
        puts = 1 if size <= PART_BYTES else 2 - (-size // PART_BYTES)
        return MaintenanceAction(
            MaintenanceKind.MERGE,
            group[0].base,
            group[-1].next,
            f"{len(group)} neighbours below {self._small} bytes",
            rows_in=len(group),
            rows_out=1,
            bytes_read=size,
            bytes_written=size,
            requests=sum(-(-row.size // READ_BYTES) for row in held) + len(bundles) + puts + 3,
            garbage_objects=2 * len(held),
            garbage_bytes=size,
            frees_at_ms=self._now_ms + self._config.gc_grace_ms,
            rows=tuple(group),
        )


def _worth_it(group: Sequence[Row]) -> list[Sequence[Row]]:
    """Return the groups to merge: ``group``, or its two parts around a row that is larger than all others together.

    Otherwise a large row would be rewritten for every few small ones that follow it. Groups with fewer than
    :data:`MERGE_LEAST_ROWS` segments are left out.
    """
    if sum(1 for row in group if row.size) < MERGE_LEAST_ROWS:
        return []
    largest = max(range(len(group)), key=lambda at: group[at].size)
    if 2 * group[largest].size > sum(row.size for row in group):
        return _worth_it(group[:largest]) + _worth_it(group[largest + 1 :])
    return [group]


# -- compaction ------------------------------------------------------------------------------------------------------


class CompactionPlanner:
    """Planner of the compaction of one partition, whose rows are added in offset order. One row is in memory.

    ``bounds``: state of the partition without segments. Every row counts as sealed: there is no active segment.
    """

    def __init__(self, bounds: LogState, now_ms: int) -> None:
        self._config = bounds.config
        self._now_ms = now_ms
        self._scan = CandidateScan(bounds, now_ms)
        self._start: int | None = None
        self._first_dirty = self._scan.candidate.first_dirty
        self._rows = self._held = self._bytes = self._gets = self._records = 0

    def add(self, rows: Iterable[Row]) -> None:
        """Add the rows that follow those of earlier calls."""
        for row in rows:
            self._start = row.base if self._start is None else self._start
            self._count(self._scan.add(segment_state(row, self._config)))

    def candidate(self) -> CleaningCandidate:
        """Return the range to clean. Call it once, after the last row."""
        self._count(self._scan.end())
        return self._scan.candidate

    def _count(self, read: SegmentState | None) -> None:
        """Add a segment that a cleaning reads to the totals. A dirty segment is read twice. None adds nothing."""
        if read is None:
            return
        self._rows += 1
        self._held += read.size_bytes > 0
        self._bytes += read.size_bytes
        self._records += read.records
        self._gets += -(-read.size_bytes // READ_BYTES) * (1 + (read.end_offset > self._first_dirty))

    def action(self) -> MaintenanceAction | None:
        """Return the compaction to run. Call it once, after the last row.

        None: the topic is not compacted, the log is not dirty enough, or has no rows.
        """
        candidate = self.candidate()
        due = self._config.compacted and candidate.eligible and candidate.cleanable_bytes > 0
        if self._start is None or not due:
            return None
        reason = (
            f"max.compaction.lag.ms is over for {candidate.delay_ms} ms"
            if candidate.forced
            else f"{candidate.ratio:.0%} are dirty, {candidate.min_ratio:.0%} may be"
        )
        return MaintenanceAction(
            MaintenanceKind.COMPACT,
            self._start,
            candidate.first_uncleanable,
            reason,
            rows_in=self._rows,
            rows_out=self._rows,
            bytes_read=self._bytes + candidate.cleanable_bytes,
            bytes_written=self._bytes,
            requests=self._gets + 4 * self._held,
            garbage_objects=2 * self._held,
            garbage_bytes=self._bytes,
            frees_at_ms=self._now_ms + self._config.gc_grace_ms,
            records=self._records,
        )


def segment_state(row: Row, config: TopicConfig) -> SegmentState:
    """Return the state of a row's segment, from the row alone. Index sizes are upper bounds.

    The smallest timestamp replaces that of the first batch, so ``max.compaction.lag.ms`` is reached no later. If the
    timestamps are wrong, the append time replaces it. A row with records but without any time counts as just written
    for ``min.compaction.lag.ms``. A row without records has no age.
    """
    entries = row.size // (config.index_interval_bytes + 1)
    modified_ms = row.appended_ms if row.records else -1
    if row.records and max(row.max_ts, row.appended_ms) < 0:
        modified_ms = MAX_LONG
    return SegmentState(
        base_offset=row.base,
        end_offset=row.next,
        size_bytes=row.size,
        max_timestamp=row.max_ts,
        first_batch_timestamp=row.appended_ms if has_wrong_times(row, config) else row.min_ts,
        offset_index_bytes=entries * OFFSET_ENTRY_BYTES,
        time_index_bytes=(entries + 1) * TIME_ENTRY_BYTES,
        modified_ms=modified_ms,
        records=row.records,
    )


# -- another codec ---------------------------------------------------------------------------------------------------


class ReencodePlanner:
    """Planner of a rewrite to another codec or format. Rows are added in offset order.

    Rows do not record the codec of their batches: the rewrite itself finds the segments that need it.
    """

    def __init__(self, config: TopicConfig, now_ms: int) -> None:
        self._config = config
        self._now_ms = now_ms
        self._start = self._end = -1
        self._held = self._bytes = self._records = self._requests = 0

    def add(self, rows: Iterable[Row]) -> None:
        """Add the rows that follow those of earlier calls."""
        for row in rows:
            self._start = row.base if self._start < 0 else self._start
            self._end = row.next
            if row.size:
                puts = 1 if row.size <= PART_BYTES else 2 - (-row.size // PART_BYTES)
                self._held += 1
                self._bytes += row.size
                self._records += row.records
                # a look at its beginning; itself; its bundle; both objects, the root and the copy of the previous root
                self._requests += 1 - (-row.size // READ_BYTES) + 1 + (row.flags & FLAG_ABORTED_TXNS > 0) + puts + 3

    def action(self) -> MaintenanceAction | None:
        """Return the rewrite, with the upper bound of its cost. None without segments. Call it after the last row."""
        if not self._held:
            return None
        wanted = self._config.compression_type
        return MaintenanceAction(
            MaintenanceKind.REENCODE,
            self._start,
            self._end,
            "message formats 0 and 1" if wanted == "producer" else f"message formats 0 and 1, codecs but {wanted}",
            rows_in=self._held,
            rows_out=self._held,
            bytes_read=self._bytes,
            bytes_written=self._bytes,
            requests=self._requests,
            garbage_objects=2 * self._held,
            garbage_bytes=self._bytes,
            frees_at_ms=self._now_ms + self._config.gc_grace_ms,
            records=self._records,
        )


# -- collection ------------------------------------------------------------------------------------------------------

PIN_MS = 6 * 3_600_000
"""Time after which a pin that was not renewed protects nothing."""

ORPHAN_MS = 24 * 3_600_000
"""Age below which an object that no root names is not deleted, whatever its epoch."""


def newest_trimmed(root: Root) -> TrashEntry | None:
    """Return the trash entry of the newest segment of a log that was trimmed to its end; otherwise None.

    Only the index bundle of this segment has the producers, so the entry stays in the trash until the next append.
    """
    if root.start_offset < root.next_offset:
        return None
    objects = [entry for entry in root.trash if entry.what == TRASH_OBJECT]
    return max(objects, key=lambda entry: (entry.removed_version, entry.base), default=None)


def collectable(root: Root, *, limit: int, now_ms: int, grace_ms: int) -> Trash:
    """Return the trash entries whose objects may be deleted: removed at or below version ``limit``, and not recently.

    ``limit``: the root's ``gc_floor``, or the lowest version that a reader has pinned. ``grace_ms``: least time since
    the removal. If the log was trimmed to its end, the entry of its newest segment is left out, because that segment's
    index bundle has the producers.
    """
    columns = root.trash.columns
    due = columns["removed_version"] <= limit
    if grace_ms:  # without a grace no clock decides: a commit may be dated ahead
        # mutant garbage-waits-for-grace
        due &= columns["removed_ms"] <= now_ms - grace_ms
    kept = newest_trimmed(root)
    if kept is not None:
        due &= (columns["id_hi"] != kept.id_hi) | (columns["id_lo"] != kept.id_lo)
    return root.trash.where(due)


def collection_action(root: Root, *, config: TopicConfig, now_ms: int) -> MaintenanceAction | None:
    """Return the collection of the garbage in ``root`` that is due; None without any. Pins may protect a part of it."""
    due = collectable(root, limit=root.version, now_ms=now_ms, grace_ms=config.gc_grace_ms)
    if not len(due):
        return None
    objects = int((due.kinds == TRASH_OBJECT).sum())
    pages = len(due) - objects
    beside = f" and what {pages} pages name" if pages else ""
    return MaintenanceAction(
        MaintenanceKind.COLLECT,
        int(due.columns["base"].min()),
        int(due.columns["base"].max()),
        f"out of the catalog for gc.grace.ms ({config.gc_grace_ms}){beside}",
        rows_in=len(due),
        requests=5 + 2 * pages - (-2 * objects // MAX_DELETE_KEYS),
        garbage_objects=2 * objects,
        garbage_bytes=-1,
        frees_at_ms=now_ms,
    )
