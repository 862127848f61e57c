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

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from tiered.check.judge import ObjectVerdict, judge_index, judge_log, read_index
from tiered.erase.undone import undone_steps
from tiered.errors import ConfigError, CorruptionError, UnknownTopicError
from tiered.format.bundle import MAX_BUNDLE_BYTES
from tiered.format.keys import FLAG_HOLE, FLAG_MAINTAINER, FLAG_STAGED, aside_key, segment_key
from tiered.local.directory.read_only_log import LogView
from tiered.model import Row, SealedSegment, TopicPartition
from tiered.plan.catalog_edit import ReplaceIntent
from tiered.remote.catalog_view import CatalogView
from tiered.remote.fetch import SegmentGone
from tiered.remote.segment_rewriter import Workshop
from tiered.remote.topics import TopicEntry
from tiered.remote.upload import INDEX_TAGS, SEGMENT_TAGS
from tiered.repair.aside import keep_copy
from tiered.repair.bench import Workbench
from tiered.repair.new_segments import (
    aborted_notes,
    follower_at,
    is_of_log,
    write_from_log,
    write_hole,
    write_run,
)
from tiered.repair.plan import Act, RepairAction, RepairOptions
from tiered.repair.versions import Source, Stored, find_whole_version, put_action, put_source, restored
from tiered.store.base import NewId, Steps, blocking

Write = Callable[[Workbench, Workshop, CatalogView], Steps[Row]]
"""Writes the new segment of a row under the maintainer's claim."""


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


def plan_segments(ground: Ground, pinned: CatalogView) -> Steps[list[RepairAction]]:
    """Return the actions for all segments that the catalog names. Reads only."""
    actions: list[RepairAction] = []
    at, known = pinned.start_offset, pinned.start_offset == 0
    while len(piece := (yield from pinned.piece(at))):
        for row in piece:
            if row.flags & FLAG_HOLE:
                continue
            found, known = yield from _plan_row(ground, pinned, row, known=known)
            actions += found
        at = piece.end_offset
    return actions


def _plan_row(ground: Ground, pinned: CatalogView, row: Row, *, known: bool) -> Steps[tuple[list[RepairAction], bool]]:
    """Return the actions for one row, and whether its bundle will name the producers at its end.

    ``known``: the bundle before it names the producers where it begins, or will after the actions before.
    """
    topic_id, tp = ground.entry.topic_id, ground.tp
    log = yield from judge_log(topic_id, tp, row, read_data=True)
    index = yield from judge_index(topic_id, tp, row)
    actions: list[RepairAction] = []
    if log.problem:
        right = yield from _right_log(ground, row, log)
        if right is None:
            instead = yield from _replaced_log(ground, pinned, row, log, index)
            return [instead], instead.act is not None or not index.problem
        actions.append(right)
    if index.problem:
        action = yield from _restored_index(ground, row, index)
        actions.append(action or _rebuilt_index(ground, row, index, known=known))
    return actions, not index.problem or actions[-1].act is not None


def _stored(ground: Ground, each: ObjectVerdict, row: Row) -> Stored:
    return Stored(ground.entry.topic_id, ground.tp.partition, each.key, row.size, row.crc, each.etag)


# -- the bytes come back ---------------------------------------------------------------------------------------------


def _right_log(ground: Ground, row: Row, log: ObjectVerdict) -> Steps[RepairAction | None]:
    """Return the action that puts the right bytes of a ``.log`` under its key, None if they are not found."""
    stored = _stored(ground, log, row)
    version = yield from find_whole_version(log.key, row.size, row.crc)
    if version:
        return put_action(ground.tp, stored, log.problem, version, SEGMENT_TAGS)
    run = yield from blocking(partial(find_run, ground, ground.view, row))
    if not run or (yield from Source(log.key, row.size, run=run).copy(len)) != row.crc:
        return None
    remedy = f"put offsets {row.base} to {row.next} back from {ground.options.from_dir}"
    return RepairAction(ground.tp, log.key, log.problem, remedy, act=partial(_put_local, ground, row, stored))


def find_run(ground: Ground, view: LogView | None, row: Row) -> tuple[SealedSegment, ...]:
    """Return the local segments over exactly the offsets of a row, none without such.

    Raises CorruptionError if the directory holds another topic of that name.
    """
    if view is None:
        return ()
    info = view.topics().get(ground.tp.topic)
    if info is not None and info.topic_id != ground.entry.topic_id:
        raise CorruptionError(
            f"{view.directory} holds topic {ground.tp.topic} under the topic id {info.topic_id}, the bucket under "
            f"{ground.entry.topic_id}",
            path_or_key=str(view.directory),
            hint="name the directory that wrote this topic",
        )
    try:
        segments = view.partition(ground.tp).sealed_segments(row.base)
    except UnknownTopicError:
        return ()
    inside = [each for each in segments if row.base <= each.base_offset and each.end_offset <= row.next]
    borders = [row.base, *(each.end_offset for each in inside)]
    whole = borders[-1] == row.next and [each.base_offset for each in inside] == borders[:-1]
    return tuple(inside) if whole else ()


def _run_again(ground: Ground, row: Row, bench: Workbench) -> Steps[Source]:
    view = yield from bench.view()
    run = yield from blocking(partial(find_run, ground, view, row))
    if not run:
        raise _changed(ground, f"{bench.from_dir} does not hold offsets {row.base} to {row.next}")
    return Source(segment_key(ground.entry.topic_id, ground.tp.partition, row), row.size, run=run)


def _put_local(ground: Ground, row: Row, stored: Stored, bench: Workbench) -> Steps[None]:
    yield from put_source(stored, (yield from _run_again(ground, row, bench)), SEGMENT_TAGS)


def _restored_index(ground: Ground, row: Row, index: ObjectVerdict) -> Steps[RepairAction | None]:
    """Return the action that puts a version of the ``.idx`` back, None if none fits the row."""

    def fits(data: bytes) -> bool:
        return not read_index(data, ground.entry.topic_id, ground.tp, row, index.key)[1]

    stored = _stored(ground, index, row)
    found = yield from restored(ground.tp, stored, index.problem, fits, MAX_BUNDLE_BYTES, INDEX_TAGS)
    return None if found is None else found[0]


# -- a new segment takes the place of the row ------------------------------------------------------------------------


def _rebuilt_index(ground: Ground, row: Row, index: ObjectVerdict, *, known: bool) -> RepairAction:
    """Return the action that makes an index from the ``.log``."""
    if not known and not row.flags & FLAG_STAGED and not ground.options.accept_loss:
        remedy = f"no segment before it names its producers: `{ground.command} --accept-loss` goes on without them"
        return RepairAction(ground.tp, index.key, index.problem, remedy)
    act = _replace(ground, row, (index,), "repaired", lambda _, shop, pinned: write_from_log(shop, pinned, row))
    return RepairAction(ground.tp, index.key, index.problem, "make the index from the .log, as a new segment", act=act)


def plan_hole(ground: Ground, pinned: CatalogView, row: Row) -> Steps[RepairAction]:
    """Return the action that gives a hole of a new root the markers of transactions that may end in it."""
    key = segment_key(ground.entry.topic_id, ground.tp.partition, row)
    return (yield from _hole(ground, pinned, row, ObjectVerdict(key, "no object holds these offsets")))


def _replaced_log(
    ground: Ground, pinned: CatalogView, row: Row, log: ObjectVerdict, index: ObjectVerdict
) -> Steps[RepairAction]:
    """Return the action for a ``.log`` whose bytes no copy holds: local segments for a rewritten one, or a hole."""
    tp, lineage = ground.tp, pinned.root.lineage
    run = (yield from blocking(partial(find_run, ground, ground.view, row))) if row.flags & FLAG_MAINTAINER else ()
    if not run or not (yield from blocking(partial(is_of_log, tp, run, lineage))):
        return (yield from _hole(ground, pinned, row, log, index))
    undone = yield from undone_steps(ground.entry.topic_id, tp.partition, [row], [row], 0)
    again = f"run `tiered erase {tp.topic}:{tp.partition}` again"
    sentences = tuple([each.sentence(tp, ground.entry.topic_id, again) for each in undone])
    remedy = f"write the local segments of offsets {row.base} to {row.next} as a new segment"

    def write(bench: Workbench, shop: Workshop, _: CatalogView) -> Steps[Row]:
        return (yield from write_run(shop, row, (yield from _run_again(ground, row, bench)).run))

    act = _replace(ground, row, (log, index), "repaired from a log directory", write)
    return RepairAction(tp, log.key, log.problem, remedy, undone=sentences, act=act)


def _hole(ground: Ground, pinned: CatalogView, row: Row, *damaged: ObjectVerdict) -> Steps[RepairAction]:
    """Return the action for offsets that no copy holds: a hole, if the operator accepts the loss."""
    log, words = damaged[0], f"offsets {row.base} to {row.next}"
    action = RepairAction(ground.tp, log.key, log.problem, f"make a hole of {words}", lost=((row.base, row.next),))
    # mutant hole-needs-an-accepted-loss
    if not ground.options.accept_loss:
        remedy = f"no copy holds {words}: `{ground.command} --accept-loss` makes a hole of them"
        if row.flags & FLAG_MAINTAINER:
            remedy += "; within the grace `--to-version` goes back before the rewrite that made this segment"
        return replace(action, remedy=remedy)
    notes = aborted_notes((yield from follower_at(pinned, ground.tp, row)))
    act = _replace(ground, row, damaged, f"lost {words}", lambda _, shop, pinned: write_hole(shop, pinned, row))
    return replace(action, notes=notes, act=act)


def _replace(ground: Ground, row: Row, damaged: Sequence[ObjectVerdict], reason: str, write: Write) -> Act:
    """Return the act that commits a new segment in place of a row. It keeps copies of the damaged objects."""
    topic_id, tp = ground.entry.topic_id, ground.tp

    def act(bench: Workbench) -> Steps[None]:
        desk = yield from bench.desk(tp, ground.entry)
        pinned = yield from desk.catalog.pin()
        if pinned is None or (yield from pinned.at(row.base)) != row:
            raise _changed(ground, f"offset {row.base} is in another segment")
        for each in damaged:
            if each.etag and each.problem:
                yield from keep_copy(each.key, aside_key(topic_id, tp.partition, (yield NewId())))
        try:
            new = yield from write(bench, desk.shop, pinned)
        except SegmentGone as gone:
            raise _changed(ground, f"a segment of offset {row.base} is gone") from gone
        yield from desk.catalog.commit(ReplaceIntent((row,), (new,)), reason=reason)

    return act


def _changed(ground: Ground, what: str) -> ConfigError:
    return ConfigError(f"{ground.tp}: {what} by now; nothing of it was replaced", hint="plan the repair again")
