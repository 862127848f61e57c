"""Plans the repair of the segments of one partition, whose root is whole.

================================  =====================================================================
wrong                             remedy, the first that is possible
================================  =====================================================================
a ``.log``                        a version of it with the row's size and CRC32C; the same bytes in the
                                  log directory; for a merged or compacted row a local run over the same
                                  offsets, as a new segment; with ``accept_loss`` a hole
an ``.idx`` whose ``.log`` is     a version of it that fits the row; a new segment with an index made
whole                             from the ``.log``
================================  =====================================================================
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from tiered.erasing.undone import undone_steps
from tiered.errors import ConfigError
from tiered.format.bundle import MAX_BUNDLE_BYTES
from tiered.format.crc import crc32c
from tiered.format.keys import FLAG_HOLE, FLAG_MAINTAINER, FLAG_STAGED, aside_key, segment_key
from tiered.local.directory.view import LogView
from tiered.model import Row, TopicPartition
from tiered.plan.rewrite import ReplaceIntent
from tiered.remote.snapshot import Snapshot
from tiered.remote.topics import TopicEntry
from tiered.remote.upload import INDEX_TAGS, SEGMENT_TAGS
from tiered.repair.aside import keep_copy
from tiered.repair.batch_walk import Loss
from tiered.repair.bench import Desk, Workbench
from tiered.repair.judge import Judged, judge_index, judge_log, read_index
from tiered.repair.local_run import find_run, held_bytes, write_run
from tiered.repair.plan import Act, Action, RepairOptions
from tiered.repair.salvage import Remains, plan_markers, walk, write_remains
from tiered.repair.versions import Stored, find_version, find_whole_version, put_back, put_version
from tiered.store.base import Get, NewId, Object, Steps


@dataclass(frozen=True, slots=True)
class Ground:
    """One partition of one repair. ``view``: the log directory that the operator named, if any."""

    tp: TopicPartition
    entry: TopicEntry
    options: RepairOptions
    view: LogView | None

    @property
    def command(self) -> str:
        """Return the command that repairs this partition."""
        return f"tiered repair {self.tp.topic}:{self.tp.partition}"

    def action(self, where: str, problem: str, remedy: str, act: Act | None) -> Action:
        """Return an action that loses nothing."""
        return Action(self.tp, where, problem, remedy, act=act)


def plan_segments(ground: Ground, pinned: Snapshot) -> Steps[list[Action]]:
    """Return the actions for all segments that the catalog names. Reads only."""
    actions: list[Action] = []
    at, known = pinned.start_offset, pinned.start_offset == 0
    while len(piece := (yield from pinned.piece(at))):
        for row in piece:
            if row.flags & FLAG_HOLE:
                continue
            found, known = yield from _plan_row(ground, pinned, row, known=known)
            actions += found
        at = piece.end_offset
    return actions


def _plan_row(ground: Ground, pinned: Snapshot, row: Row, *, known: bool) -> Steps[tuple[list[Action], bool]]:
    """Return the actions for one row. ``known``: the bundle before it names the producers where it begins, or will
    after the actions before; the second value says so of its end."""
    topic_id, tp = ground.entry.topic_id, ground.tp
    log = yield from judge_log(topic_id, tp, row, read_data=ground.options.read_data)
    index = yield from judge_index(topic_id, tp, row)
    if not log.problem and not index.problem:
        return [], True
    actions: list[Action] = []
    if log.problem:
        action = yield from _restored_log(ground, row, log)
        if action is None:
            action = yield from _replaced_by_run(ground, pinned, row, log, index)
            if action is None:
                action = yield from _lost(ground, pinned, row, log, index, known=known)
            return [action], action.act is not None or not index.problem
        actions.append(action)
    if index.problem:
        action = yield from _restored_index(ground, row, index)
        action = action or _rebuilt_index(ground, row, log, index, known=known)
        actions.append(action)
    return actions, not index.problem or actions[-1].act is not None


def _stored(ground: Ground, each: Judged, size: int, crc: int) -> Stored:
    return Stored(ground.entry.topic_id, ground.tp.partition, each.key, size, crc, each.etag)


# -- the bytes come back ---------------------------------------------------------------------------------------------


def _restored_log(ground: Ground, row: Row, log: Judged) -> Steps[Action | None]:
    """Return the action that puts the bytes of the row back under its key, None if no copy of them is found."""
    stored = _stored(ground, log, row.size, row.crc)
    version = yield from find_whole_version(log.key, row.size, row.crc)
    if version:
        act: Act = partial(_put_version, stored, version, SEGMENT_TAGS)
        return ground.action(log.key, log.problem, f"put version {version} back", act)
    source = (yield from held_bytes(ground.view, ground.tp, ground.entry, row)) if ground.view is not None else None
    if source is None or ground.view is None:
        return None
    source.close()
    remedy = f"put offsets {row.base} to {row.next} back from {ground.view.directory}"
    return ground.action(log.key, log.problem, remedy, partial(_put_local, ground, row, stored))


def _put_version(stored: Stored, version: str, tags: tuple[tuple[str, str], ...], _: Workbench) -> Steps[None]:
    yield from put_version(stored, version, tags)


def _put_local(ground: Ground, row: Row, stored: Stored, bench: Workbench) -> Steps[None]:
    view = yield from bench.view()
    source = None if view is None else (yield from held_bytes(view, ground.tp, ground.entry, row))
    if source is None:
        raise _changed(ground, f"{bench.from_dir} does not hold offsets {row.base} to {row.next}")
    try:
        yield from put_back(stored, source, SEGMENT_TAGS)
    finally:
        source.close()


def _restored_index(ground: Ground, row: Row, index: Judged) -> Steps[Action | None]:
    """Return the action that puts a version of the ``.idx`` back, None if none fits the row."""

    def fits(data: bytes) -> bool:
        return not read_index(data, ground.entry.topic_id, ground.tp, row, index.key)[1]

    version = yield from find_version(index.key, fits, MAX_BUNDLE_BYTES)
    if not version:
        return None
    got = yield Get(index.key, max_bytes=MAX_BUNDLE_BYTES, version=version)
    if not isinstance(got, Object):
        return None
    stored = _stored(ground, index, len(got.data), crc32c(got.data))
    return ground.action(
        index.key, index.problem, f"put version {version} back", partial(_put_version, stored, version, INDEX_TAGS)
    )


# -- a new segment takes the place of the row ------------------------------------------------------------------------


def _rebuilt_index(ground: Ground, row: Row, log: Judged, index: Judged, *, known: bool) -> Action:
    """Return the action that makes an index from the ``.log``."""
    remedy = "make the index from the .log, as a new segment"
    if not known and not row.flags & FLAG_STAGED and not ground.options.accept_loss:
        remedy = f"no segment before it names its producers: `{ground.command} --accept-loss` goes on without them"
        return ground.action(index.key, index.problem, remedy, None)
    act = partial(_write_remains, ground, row, (), (index.key,) if index.etag else ())
    return ground.action(index.key, index.problem, remedy, act)


def _lost(ground: Ground, pinned: Snapshot, row: Row, log: Judged, index: Judged, *, known: bool) -> Steps[Action]:
    """Return the action for offsets that no copy holds: a hole, if the operator accepts the loss."""
    one = Remains(ground.entry.topic_id, ground.tp, row, log.key, log.size, index.bundle)
    lost = yield from walk(one)
    ranges = tuple([(loss.start, loss.end) for loss in lost])
    if not lost:  # the batches are whole, and the row or the bundle is not about them
        act = partial(_write_remains, ground, row, (), (log.key,))
        return ground.action(log.key, log.problem, "write its batches as a new segment", act)
    words = ", ".join([f"{start} to {end}" for start, end in ranges])
    # mutant hole-needs-an-accepted-loss
    if not ground.options.accept_loss:
        remedy = f"no copy holds offsets {words}: `{ground.command} --accept-loss` makes a hole of them"
        if row.flags & FLAG_MAINTAINER:
            remedy += "; within the grace `--to-version` goes back before the rewrite that made this segment"
        return Action(ground.tp, log.key, log.problem, remedy, lost=ranges)
    notes = [
        f"the transaction of producer {producer_id} from offset {first} on counts as aborted"
        for producer_id, first in (yield from plan_markers(one, pinned, lost))
    ]
    if not known and index.bundle is None and not one.staged:
        notes.append(f"no segment before offset {row.base} names its producers: they are unknown")
    aside = [each.key for each in (log, index) if each.etag and each.problem]
    act = partial(_write_remains, ground, row, tuple(lost), tuple(aside))
    remedy = f"keep the batches that are whole, and make a hole of offsets {words}"
    return Action(ground.tp, log.key, log.problem, remedy, lost=ranges, notes=tuple(notes), act=act)


def abort_at_hole(ground: Ground, pinned: Snapshot, row: Row) -> Steps[list[Action]]:
    """Return the action that aborts the transactions which are open where a hole of a new root begins, if any are."""
    lost = (Loss(row.base, row.next, "the .log is missing"),)
    one = Remains(
        ground.entry.topic_id, ground.tp, row, segment_key(ground.entry.topic_id, ground.tp.partition, row), 0, None
    )
    aborted = yield from plan_markers(one, pinned, lost)
    if not aborted:
        return []
    notes = [
        f"the transaction of producer {number} from offset {first} on counts as aborted" for number, first in aborted
    ]
    act = partial(_write_remains, ground, row, lost, ())
    return [
        Action(
            ground.tp,
            one.log_key,
            "a hole may hold the end of transactions",
            "write their markers",
            (),
            (),
            tuple(notes),
            act,
        )
    ]


def _write_remains(
    ground: Ground, row: Row, lost: Sequence[Loss], aside: Sequence[str], bench: Workbench
) -> Steps[None]:
    desk = yield from bench.desk(ground.tp, ground.entry)
    pinned = yield from _pinned(ground, desk, row)
    topic_id = ground.entry.topic_id
    log = yield from judge_log(topic_id, ground.tp, row, read_data=False)
    index = yield from judge_index(topic_id, ground.tp, row)
    one = Remains(topic_id, ground.tp, row, log.key, log.size, index.bundle)
    yield from _keep(ground, aside)
    new = yield from write_remains(one, desk.shop, pinned, lost)
    reason = "repaired"
    if lost:
        reason = "lost offsets " + ", ".join([f"{loss.start} to {loss.end}" for loss in lost])
    yield from desk.catalog.commit(ReplaceIntent((row,), (new,)), reason=reason)


def _replaced_by_run(ground: Ground, pinned: Snapshot, row: Row, log: Judged, index: Judged) -> Steps[Action | None]:
    """Return the action that replaces a merged or compacted row by a run of the log directory, None without one."""
    if ground.view is None:
        return None
    run = yield from find_run(ground.view, ground.tp, ground.entry, row, pinned.root.lineage)
    if run is None:
        return None
    run.source.close()
    undone = yield from undone_steps(ground.entry.topic_id, ground.tp.partition, [row], [row], 0)
    again = f"run `tiered erase {ground.tp.topic}:{ground.tp.partition}` again"
    aside = tuple([each.key for each in (log, index) if each.etag and each.problem])
    remedy = f"write the local segments of offsets {row.base} to {row.next} as a new segment"
    return Action(
        ground.tp,
        log.key,
        log.problem,
        remedy,
        undone=tuple([each.sentence(ground.tp, ground.entry.topic_id, again) for each in undone]),
        act=partial(_write_run, ground, row, aside),
    )


def _write_run(ground: Ground, row: Row, aside: Sequence[str], bench: Workbench) -> Steps[None]:
    desk = yield from bench.desk(ground.tp, ground.entry)
    pinned = yield from _pinned(ground, desk, row)
    view = yield from bench.view()
    run = None
    if view is not None:
        run = yield from find_run(view, ground.tp, ground.entry, row, pinned.root.lineage)
    if run is None:
        raise _changed(ground, f"{bench.from_dir} does not hold offsets {row.base} to {row.next}")
    try:
        yield from _keep(ground, aside)
        new = yield from write_run(desk.shop, run, row)
    finally:
        run.source.close()
    yield from desk.catalog.commit(ReplaceIntent((row,), (new,)), reason=f"repaired from {bench.from_dir}")


def _pinned(ground: Ground, desk: Desk, row: Row) -> Steps[Snapshot]:
    """Return the newest catalog. Raises ConfigError if it does not name the row any more."""
    pinned = yield from desk.pinned()
    if (yield from pinned.at(row.base)) != row:
        raise _changed(ground, f"offset {row.base} is in another segment")
    return pinned


def _keep(ground: Ground, keys: Sequence[str]) -> Steps[None]:
    """Copy what a repair replaces below ``aside/``."""
    for key in keys:
        yield from keep_copy(key, aside_key(ground.entry.topic_id, ground.tp.partition, (yield NewId())))


def _changed(ground: Ground, what: str) -> ConfigError:
    return ConfigError(f"{ground.tp}: {what} by now; nothing of it was replaced", hint="plan the repair again")
