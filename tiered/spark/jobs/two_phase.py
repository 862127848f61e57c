"""Compaction of one log that no task can hold, on the driver: a round in parts, from its plan to its last commit.

::

    plan ──> phase 1 and the shuffle ──> claim ──> waves: phase 2 of some parts, then a ``replace`` for each group
                                                     the last of them notes the clean end

Groups are committed in the order of their offsets: a tombstone goes after all that it hides. A run that is killed loses
the wave under way: its outputs lie under a claim that is over, the next run makes them anew under its own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tiered.config import MAX_LONG
from tiered.errors import CorruptionError, NotFoundError, TieredError
from tiered.format.keys import Role
from tiered.format.root import Cleaned
from tiered.model import Row
from tiered.plan.maintenance import Kind
from tiered.plan.offset_map import OffsetMap, TxnsBefore
from tiered.plan.rewrite import ReplaceIntent
from tiered.plan.survivors import txns_before
from tiered.remote.catalog import Catalog
from tiered.remote.compact_parts import Group, Part, inputs_of, plan_round
from tiered.remote.snapshot import Snapshot
from tiered.remote.traces import need_newest
from tiered.spark.jobs.job import Run
from tiered.spark.jobs.plan import Receipt, Task
from tiered.spark.jobs.rounds import (
    CHANGED,
    KEYS,
    SURVIVORS,
    KeptRound,
    bench_of,
    compacted_entry,
    entry_of,
    keep_facts,
    part_as_json,
)
from tiered.spark.jobs.shuffle import shuffle
from tiered.spark.jobs.upkeep import owner_here
from tiered.store.driver import drive

WAVE_PARTS = 256
"""Parts that are rewritten before their groups are committed: what a driver that is killed loses."""

MAX_ROUNDS = 8
"""Rounds of one job over one log, of which all but the last met other rows than those that they were planned over."""


@dataclass(slots=True)
class Done:
    """What a round came to."""

    groups: int = 0
    pairs: int = 0
    survivors: int = 0
    bytes_read: int = 0
    bytes_written: int = 0


@dataclass(slots=True)
class _Waiting:
    """A group that was written last: its commit waits for the next one, since the last of all notes the clean end."""

    wave: int
    old: Sequence[Row]
    row: Row


class TwoPhase:
    """One log, number ``at`` of those of the job that are done so; ``due``: what its plan says of it."""

    def __init__(self, run: Run, at: int, due: Mapping[str, Any]) -> None:
        self._run = run
        self._at = at
        self._due = due
        self._name = f"{due['topic']}-{due['partition']}"

    def carry_out(self) -> dict[str, Any]:
        """What was done, as the receipt tells it. Raises what keeps it from its end; it can be gone on with then."""
        folder = self._run.folder
        done = folder.read(f"log-{self._at}")
        for number in range(MAX_ROUNDS):
            if done is not None:
                break
            name = f"round-{self._at}-{number}"
            if folder.read(f"{name}-{CHANGED}") is None:
                done = self._round(name)
        if done is None:
            return {**self._told([]), "note": f"others changed it during {MAX_ROUNDS} rounds: a later job has the rest"}
        return folder.keep(f"log-{self._at}", done)

    def _told(self, actions: list[dict[str, Any]]) -> dict[str, Any]:
        return {"topic": self._due["topic"], "partition": self._due["partition"], "actions": actions}

    def _round(self, name: str) -> dict[str, Any] | None:
        """None if others changed what it was planned over."""
        arguments, folder = self._run.plan.arguments, self._run.folder
        fields = self._run.once(name, lambda: self._plan(arguments["task_bytes"]))
        if fields["round"] is None:
            return self._told([])
        kept = KeptRound.of_json(name, fields)
        keep_facts(folder, kept, OffsetMap(arguments["memory_bytes"]).capacity)
        try:
            done = Rewriting(self._run, kept, self._survivors(kept), self._due["why"]).carry_out()
        except NotFoundError as changed:
            if changed.__class__ is not NotFoundError:
                raise
            folder.keep(f"{name}-{CHANGED}", {"message": changed.message})
            return None
        action = {"start": kept.round.start, "end": kept.round.first_uncleanable, "note": ""}
        rows = sum(group.rows for part in kept.parts for group in part.groups)
        return self._told([{**action, "rows_in": rows, **dataclasses.asdict(done)}])

    def _plan(self, part_bytes: int) -> dict[str, Any]:
        store = self._run.store
        bench = bench_of(store, entry_of(store, self._due["topic"]), self._due["partition"])
        planned = drive(store, plan_round(bench.view, bench.config, bench.shop, part_bytes=part_bytes))
        if planned is None:
            return {"round": None, "parts": []}
        return {"round": dataclasses.asdict(planned[0]), "parts": [part_as_json(part) for part in planned[1]]}

    def _survivors(self, kept: KeptRound) -> list[Receipt]:
        """Phase 1, unless it was done: bitmaps of all parts are there, and what was found beside the keys is given."""
        folder = self._run.folder
        if folder.read(f"{kept.name}-{SURVIVORS}") is None:
            title = f"{self._name}: the newest record of each key"
            try:
                self._run.spark(title, lambda: shuffle(self._run.session(), self._run.words, kept))
            except TieredError as error:
                changed = folder.read(f"{kept.name}-{CHANGED}")
                if changed is not None:
                    raise NotFoundError(changed["message"], hint="plan again") from error
                raise
        found = folder.task_receipts(f"{kept.name}-{KEYS}", range(len(kept.parts)))
        survivors = folder.read(f"{kept.name}-{SURVIVORS}")
        if survivors is None or len(found) < len(kept.parts):
            raise CorruptionError(
                f"{self._name}: phase 1 tells of {len(found)} of {len(kept.parts)} parts: nothing was replaced",
                path_or_key=folder.key(f"{kept.name}-{SURVIVORS}.json"),
                position=0,
                hint="begin the job under another id: --job NAME",
            )
        return [found[number] for number in range(len(kept.parts))]


class Rewriting:
    """Phase 2 of a round, and its commits, under a claim of its own. ``found``: what phase 1 told of each part."""

    def __init__(self, run: Run, kept: KeptRound, found: Sequence[Receipt], why: str) -> None:
        self._run = run
        self._kept = kept
        self._why = why
        groups = [group for part in kept.parts for group in part.groups]
        effects = [effect for receipt in found for effect in receipt["effects"]]
        self._before = dict(zip(groups, txns_before([group.start for group in groups], effects), strict=True))
        entry = compacted_entry(run.store, kept.round)
        self._catalog = Catalog(entry.topic_id, kept.round.partition, entry.name, known=entry.known)
        drive(run.store, need_newest(self._catalog, all_traces=False))  # what is committed to an older root hides it
        self._epoch = drive(run.store, self._catalog.claim(Role.MAINTAINER, owner_here("compact"))).epoch
        self._waiting: _Waiting | None = None
        self._unmarked: dict[int, dict[str, int]] = {}
        counts = (run.folder.read(f"{kept.name}-{SURVIVORS}") or {"counts": []})["counts"]
        self._done = Done(pairs=sum(receipt["pairs"] for receipt in found), survivors=sum(counts))

    def carry_out(self) -> Done:
        """All waves. Raises NotFoundError if others changed what the round was planned over, FencedError."""
        round_ = self._kept.round
        for wave in range(-(-len(self._kept.parts) // WAVE_PARTS)):
            marked = self._run.folder.read(f"{self._kept.name}-wave-{wave}")
            if marked is None:
                self._wave(wave)
                self._mark()
            else:
                self._count(marked)
        horizon_ms = min(round_.now_ms + round_.delete_retention_ms, MAX_LONG)
        cleaned = Cleaned(round_.first_uncleanable, horizon_ms)
        if self._waiting is None and not self._is_clean():
            self._last_group_again()
        if self._waiting is not None:
            self._commit(self._waiting, cleaned)
            self._waiting = None
        self._mark()
        return self._done

    def _wave(self, wave: int) -> None:
        """Phase 2 of its parts, then the commits of their groups, but for the last."""
        snapshot = self._pinned()
        count = self._unmarked[wave] = {"groups": 0, "bytes_read": 0, "bytes_written": 0}
        first, tasks, inputs = wave * WAVE_PARTS, list[Task](), list[list[tuple[Group, list[Row]]]]()
        for number, part in enumerate(self._kept.parts[first : first + WAVE_PARTS], first):
            left = [(group, rows) for group in part.groups if (rows := self._inputs(snapshot, wave, group))]
            if left:
                tasks.append(self._task(number, part, [group for group, _ in left]))
                inputs.append(left)
        for each, receipt in zip(inputs, self._rewritten(f"wave-{wave}", tasks), strict=True):
            for (_, rows), made in zip(each, receipt["rows"], strict=True):
                count["bytes_read"] += sum(row.size for row in rows)
                if made is not None:
                    self._take(wave, rows, Row(*made))

    def _last_group_again(self) -> None:
        """Nothing was written: only a ``replace`` can note the clean end."""
        part = self._kept.parts[-1]
        rows = drive(self._run.store, inputs_of(self._pinned(), part.groups[-1]))
        if not rows:
            return
        task = {**self._task(len(self._kept.parts) - 1, part, [part.groups[-1]]), "always": True}
        wave = -1
        self._unmarked[wave] = {"groups": 0, "bytes_read": sum(row.size for row in rows), "bytes_written": 0}
        (receipt,) = self._rewritten("last", [task])
        if receipt["rows"][0] is not None:
            self._take(wave, rows, Row(*receipt["rows"][0]))

    def _task(self, number: int, part: Part, groups: Sequence[Group]) -> Task:
        told = [(dataclasses.astuple(group), *_listed(self._before[group])) for group in groups]
        size = sum(part.size_bytes * (group.end - group.start) // (part.end - part.start) for group in groups)
        return {
            "job": self._run.job_id,
            "round": self._kept.name,
            "part": number,
            "start": part.start,
            "end": part.end,
            "epoch": self._epoch,
            "groups": told,
            "always": False,
            "size_bytes": size,
        }

    def _rewritten(self, what: str, tasks: Sequence[Task]) -> list[Receipt]:
        """Receipts of tasks under this claim. Raises NotFoundError where a worker found other rows."""
        if not tasks:
            return []
        title = f"{self._kept.round.topic}-{self._kept.round.partition}: rewriting"
        receipts = self._run.tasks(title, tasks, phase=f"{self._kept.name}-{what}-{self._epoch}")
        for receipt in receipts:
            if "changed" in receipt:
                raise NotFoundError(receipt["changed"], hint="plan again")
        return receipts

    def _inputs(self, snapshot: Snapshot, wave: int, group: Group) -> list[Row]:
        """The rows that a group is to replace; none if a trim took them, or an earlier run has replaced them."""
        try:
            return drive(self._run.store, inputs_of(snapshot, group))
        except NotFoundError:
            row = drive(self._run.store, snapshot.at(max(group.start, snapshot.start_offset)))
            if row is None or row.next != group.end or row not in self._made(wave, row.claim_epoch):
                raise
            return []

    def _made(self, wave: int, epoch: int) -> list[Row]:
        """Rows that an earlier run of this job has made in a wave, under claim ``epoch``."""
        folder, phase = self._run.folder, f"{self._kept.name}-wave-{wave}-{epoch}"
        receipts = folder.task_receipts(phase, folder.done(phase))
        return [Row(*row) for receipt in receipts.values() for row in receipt.get("rows", ()) if row is not None]

    def _take(self, wave: int, rows: Sequence[Row], row: Row) -> None:
        """The next group that was written: the one before it is committed."""
        if self._waiting is not None:
            self._commit(self._waiting, None)
        count = self._unmarked[wave]
        count["groups"] += 1
        count["bytes_written"] += row.size
        self._waiting = _Waiting(wave, [old for old in rows if old.base >= row.base], row)  # a trim came in between

    def _commit(self, group: _Waiting, cleaned: Cleaned | None) -> None:
        intent = ReplaceIntent(tuple(group.old), (group.row,), cleaned)
        try:
            drive(self._run.store, self._catalog.commit(intent, reason=f"{Kind.COMPACT}, {self._why}"))
        except NotFoundError as gone:
            root = self._catalog.root
            if gone.__class__ is not NotFoundError or root is None or root.start_offset < group.row.next:
                raise  # else a trim has taken it, and all before it

    def _mark(self) -> None:
        """Waves whose groups are all committed are not looked at again."""
        for wave in sorted(self._unmarked):
            if self._waiting is not None and wave >= self._waiting.wave:
                break
            done = self._unmarked.pop(wave)
            self._count(self._run.folder.keep(f"{self._kept.name}-wave-{wave}", done) if wave >= 0 else done)

    def _count(self, marked: Mapping[str, int]) -> None:
        self._done.groups += marked["groups"]
        self._done.bytes_read += marked["bytes_read"]
        self._done.bytes_written += marked["bytes_written"]

    def _is_clean(self) -> bool:
        root = self._pinned().root
        return any(entry.end_offset >= self._kept.round.first_uncleanable for entry in root.cleaned)

    def _pinned(self) -> Snapshot:
        snapshot = drive(self._run.store, self._catalog.pin())
        if snapshot is None:
            raise NotFoundError(f"{self._kept.round.topic} has no catalog any more", hint="plan again")
        return snapshot


def _listed(before: TxnsBefore) -> tuple[list[int], list[int]]:
    """Its producers."""
    return list(before.committed), list(before.aborted)  # type: ignore[call-overload]  # tuples, as txns_before gives
