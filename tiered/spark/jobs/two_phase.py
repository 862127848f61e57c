"""Compaction of one log that is too large for a task, on the driver: a round in parts, from plan to last commit.

::

    plan ──> phase 1 and the shuffle ──> claim ──> waves: phase 2 of some parts, then a ``replace`` for each group
                                                     the last of them notes the clean end

Groups are committed in the order of their offsets, so that a tombstone is removed after all that it hides. After the
death of a driver the next one plans a new round: phase 1 is repeated, committed groups stay.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tiered.config import MAX_LONG
from tiered.errors import NotFoundError
from tiered.format.keys import Role
from tiered.format.root import CompactedRange
from tiered.model import Row, TopicPartition
from tiered.plan.catalog_edit import ReplaceIntent
from tiered.plan.maintenance import MaintenanceKind
from tiered.plan.offset_map import OffsetMap, TxnsBefore
from tiered.plan.survivors import txns_before
from tiered.remote.catalog import Catalog
from tiered.remote.catalog_view import CatalogView
from tiered.remote.claim import owner_of
from tiered.remote.compact_parts import CompactionPart, RowGroup, inputs_of
from tiered.remote.stale_root_check import require_newest_root
from tiered.spark.jobs.rounds import PlannedRound, compacted_entry, rewrite
from tiered.spark.jobs.run import JobRunner, Receipt, Task
from tiered.spark.jobs.shuffle import Shuffled, bitmap_of, note_of
from tiered.store.base import Store
from tiered.store.driver import drive

WAVE_PARTS = 256
"""Parts that are rewritten before their groups are committed: the most that the death of a driver loses."""

MAX_ROUNDS = 8
"""Most rounds of one run over one log. A round ends early if others change its rows."""


@dataclass(slots=True)
class RoundResult:
    """Counts of one round."""

    groups: int = 0
    pairs: int = 0
    survivors: int = 0
    bytes_read: int = 0
    bytes_written: int = 0


def compact(
    runner: JobRunner, tp: TopicPartition, why: str, *, part_bytes: int, memory_bytes: int
) -> tuple[list[dict[str, Any]], str]:
    """Compact one log. Return what was done, and a note if others have changed the log in every round."""
    most_keys = OffsetMap(memory_bytes).capacity
    for _ in range(MAX_ROUNDS):
        try:
            planned = PlannedRound.plan(runner.store, tp, part_bytes=part_bytes, most_keys=most_keys)
            return ([] if planned is None else [_round(runner, planned, why)]), ""
        except NotFoundError as changed:
            if changed.__class__ is not NotFoundError:
                raise
    return [], f"others changed it during {MAX_ROUNDS} rounds: the next run does the rest"


def _round(runner: JobRunner, planned: PlannedRound, why: str) -> dict[str, Any]:
    """Run one round. Raises FencedError, NotFoundError if others changed its rows."""
    name = f"{planned.round.topic}-{planned.round.partition}"
    with Shuffled(runner, planned) as shuffled:
        notes = shuffled.notes(f"{name}: the newest record of each key")
        done = Rewriting(runner, planned, shuffled, notes, why).carry_out()
    rows = sum(group.rows for part in planned.parts for group in part.groups)
    bounds = {"start": planned.round.start, "end": planned.round.first_uncleanable}
    return {"kind": MaintenanceKind.COMPACT.value, **bounds, "note": "", "rows_in": rows, **dataclasses.asdict(done)}


def rewrite_part_of(store: Store, task: Task, live: bytes) -> Receipt:
    """Run phase 2 of one part, in a worker.

    If Spark lost the bitmap, it was computed again, perhaps from a newer catalog. Its note reports that.
    """
    note = note_of(live)
    if "effects" not in note:  # the part was not read to its end: records without a bit may be live
        return {"changed": note.get("changed", f"part {task['part']} was not read to its end")}
    return rewrite(store, task, bitmap_of(live))


class Rewriting:
    """Phase 2 of a round, and its commits, under a claim of its own. ``notes``: of phase 1, one per part."""

    def __init__(
        self, runner: JobRunner, planned: PlannedRound, shuffled: Shuffled, notes: Sequence[dict[str, Any]], why: str
    ) -> None:
        self._runner = runner
        self._planned = planned
        self._shuffled = shuffled
        self._why = why
        groups = [group for part in planned.parts for group in part.groups]
        effects = [effect for note in notes for effect in note["effects"]]
        self._before = dict(zip(groups, txns_before([group.start for group in groups], effects), strict=True))
        entry = compacted_entry(runner.store, planned.round.topic)
        self._catalog = Catalog(entry.topic_id, planned.round.partition, entry.name, known=entry.known)
        drive(
            runner.store, require_newest_root(self._catalog, must_list=False)
        )  # a commit to an older root would hide its age
        self._epoch = drive(runner.store, self._catalog.claim(Role.MAINTAINER, owner_of("tiered spark maintain"))).epoch
        self._waiting: tuple[list[Row], Row] | None = None  # not committed yet, because the last one has the clean end
        self._done = RoundResult(
            pairs=sum(note["pairs"] for note in notes), survivors=sum(n["survivors"] for n in notes)
        )

    def carry_out(self) -> RoundResult:
        """Do all waves. Raises FencedError, NotFoundError if others changed the round's rows."""
        round_, parts = self._planned.round, self._planned.parts
        for first in range(0, len(parts), WAVE_PARTS):
            self._wave(range(first, min(first + WAVE_PARTS, len(parts))))
        horizon_ms = min(round_.now_ms + round_.delete_retention_ms, MAX_LONG)
        if self._waiting is None and not self._is_clean():
            self._last_group_again()
        if self._waiting is not None:
            self._commit(*self._waiting, CompactedRange(round_.first_uncleanable, horizon_ms))
        return self._done

    def _wave(self, numbers: Sequence[int]) -> None:
        """Do phase 2 of some parts, then commit their groups, except the last one."""
        snapshot = self._pinned()
        wanted, tasks, inputs = list[int](), list[Task](), list[list[list[Row]]]()
        for number in numbers:
            part = self._planned.parts[number]
            left = [(group, rows) for group in part.groups if (rows := self._inputs(snapshot, group))]
            if left:
                wanted.append(number)
                tasks.append(self._task(number, part, [group for group, _ in left], always=False))
                inputs.append([rows for _, rows in left])
        self._rewrite(wanted, tasks, inputs)

    def _last_group_again(self) -> None:
        """Rewrite one group that stays as it is, because only a ``replace`` can note the clean end."""
        number, part = len(self._planned.parts) - 1, self._planned.parts[-1]
        rows = self._inputs(self._pinned(), part.groups[-1])
        if rows:
            self._rewrite([number], [self._task(number, part, [part.groups[-1]], always=True)], [[rows]])

    def _task(self, number: int, part: CompactionPart, groups: Sequence[RowGroup], *, always: bool) -> Task:
        listed = [(dataclasses.astuple(group), *_listed(self._before[group])) for group in groups]
        return {
            "round": dataclasses.asdict(self._planned.round),
            "part": number,
            "start": part.start,
            "end": part.end,
            "epoch": self._epoch,
            "groups": listed,
            "always": always,
        }

    def _rewrite(self, numbers: Sequence[int], tasks: Sequence[Task], inputs: Sequence[list[list[Row]]]) -> None:
        """Run tasks under this claim, and commit. Raises NotFoundError if a worker found other rows."""
        if not tasks:
            return
        title = f"{self._planned.round.topic}-{self._planned.round.partition}: rewriting"
        receipts = self._shuffled.rewrite(title, rewrite_part_of, numbers, tasks)
        changed = next((receipt["changed"] for receipt in receipts if "changed" in receipt), None)
        if changed is not None:
            raise NotFoundError(changed, hint="plan again")
        for each, receipt in zip(inputs, receipts, strict=True):
            for rows, made in zip(each, receipt["rows"], strict=True):
                self._done.bytes_read += sum(row.size for row in rows)
                if made is not None:
                    self._keep(rows, Row(*made))

    def _inputs(self, snapshot: CatalogView, group: RowGroup) -> list[Row]:
        """Return the rows that a group is to replace, none if a trim took them. Raises NotFoundError."""
        return drive(self._runner.store, inputs_of(snapshot, group))

    def _keep(self, rows: Sequence[Row], row: Row) -> None:
        """Keep a group that was written, and commit the one before it."""
        if self._waiting is not None:
            self._commit(*self._waiting, None)
        self._done.groups += 1
        self._done.bytes_written += row.size
        self._waiting = [old for old in rows if old.base >= row.base], row  # a trim came in between

    def _commit(self, old: Sequence[Row], row: Row, cleaned: CompactedRange | None) -> None:
        intent = ReplaceIntent(tuple(old), (row,), cleaned)
        try:
            drive(self._runner.store, self._catalog.commit(intent, reason=f"{MaintenanceKind.COMPACT}, {self._why}"))
        except NotFoundError as gone:
            root = self._catalog.root
            if gone.__class__ is not NotFoundError or root is None or root.start_offset < row.next:
                raise  # otherwise a trim has removed the group, and all before it

    def _is_clean(self) -> bool:
        root = self._pinned().root
        return any(entry.end_offset >= self._planned.round.first_uncleanable for entry in root.cleaned)

    def _pinned(self) -> CatalogView:
        snapshot = drive(self._runner.store, self._catalog.pin())
        if snapshot is None:
            raise NotFoundError(f"{self._planned.round.topic} has no catalog any more", hint="plan again")
        return snapshot


def _listed(before: TxnsBefore) -> tuple[list[int], list[int]]:
    return list(before.committed), list(before.aborted)  # type: ignore[call-overload]  # tuples, as txns_before gives
