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
from functools import partial

from tiered.check.segment_check import ObjectVerdict, judge_index, judge_log, judge_segment, read_index
from tiered.erase.notes import undone_steps
from tiered.errors import ConfigError, CorruptionError, TieredError, UnknownTopicError
from tiered.format.bundle import MAX_BUNDLE_BYTES
from tiered.format.keys import FLAG_HOLE, FLAG_MAINTAINER, FLAG_STAGED, aside_key, segment_key
from tiered.local.directory.read_only_log import LogView
from tiered.model import Row, SealedSegment
from tiered.plan.catalog_edit import ReplaceIntent
from tiered.remote.catalog_view import CatalogView
from tiered.remote.upload import INDEX_TAGS, SEGMENT_TAGS
from tiered.repair.plan import Act, Ground, RepairAction, Workbench
from tiered.repair.salvage import DamagedRow, Ranges, plan_remains, write_remains
from tiered.repair.versions import RepairSource, Stored, find_whole_version, keep_copy, put_action, put_source, restored
from tiered.store.base import NewId, Steps
from tiered.store.steps import blocking


def plan_segments(ground: Ground, pinned: CatalogView) -> Steps[list[RepairAction]]:
    """Return the actions for the damaged segments among those that the catalog ``pinned`` names. Changes nothing."""
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
    log, index = yield from judge_segment(topic_id, tp, row)
    actions: list[RepairAction] = []
    if log.problem:
        right = yield from _right_log(ground, row, log)
        if right is None:
            instead = yield from _replaced_log(ground, pinned, row, log, index, known=known)
            return [instead], instead.act is not None or not index.problem
        actions.append(right)
    if index.problem:
        only_entries = (
            index.bundle is not None
        )  # its producers are right, and a version fits the row as well as it does
        action = None if only_entries else (yield from _restored_index(ground, row, index))
        actions.append(action or _rebuilt_index(ground, row, index, known=known or only_entries))
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
    if not run or (yield from RepairSource(log.key, row.size, run=run).copy(len)) != row.crc:
        return None
    remedy = f"put offsets {row.base} to {row.next} back from {ground.options.from_dir or ground.options.log_dir}"
    return RepairAction(ground.tp, log.key, log.problem, remedy, act=partial(_put_local, ground, row, stored))


def find_run(ground: Ground, view: LogView | None, row: Row) -> tuple[SealedSegment, ...]:
    """Return the consecutive local segments that cover exactly the offsets of ``row``. Empty if there are none.

    Raises CorruptionError if the directory ``from_dir`` has another topic of that name.
    """
    if view is None:
        return ()
    try:
        return _find_run(ground, view, row)
    except TieredError:
        if ground.options.from_dir is not None:
            raise
        return ()  # a directory that is repaired, too, may be damaged itself, or belong to another bucket


def _find_run(ground: Ground, view: LogView, row: Row) -> tuple[SealedSegment, ...]:
    info = view.topics().get(ground.tp.topic)
    if info is not None and info.topic_id != ground.entry.topic_id:
        raise CorruptionError(
            f"topic {ground.tp.topic} has id {info.topic_id} in {view.directory}, but "
            f"{ground.entry.topic_id} in the bucket",
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


def _run_again(ground: Ground, row: Row, bench: Workbench) -> Steps[RepairSource]:
    view = yield from bench.view()
    run = yield from blocking(partial(find_run, ground, view, row))
    if not run:
        raise _changed(ground, f"{bench.source} does not have offsets {row.base} to {row.next}")
    return RepairSource(segment_key(ground.entry.topic_id, ground.tp.partition, row), row.size, run=run)


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
    """Return the action that makes an index from the ``.log``.

    ``known``: an earlier segment names the producers at its start. Otherwise it has no remedy without ``accept_loss``.
    """
    if not known and not row.flags & FLAG_STAGED and not ground.options.accept_loss:
        remedy = f"no segment before it names its producers: `{ground.command} --accept-loss` goes on without them"
        return RepairAction(ground.tp, index.key, index.problem, remedy)
    act = _replace(ground, row, _damaged(index), (), "repaired")
    return RepairAction(ground.tp, index.key, index.problem, "make the index from the .log, as a new segment", act=act)


def plan_hole(ground: Ground, pinned: CatalogView, row: Row) -> Steps[list[RepairAction]]:
    """Return the action for ``row``, a range of offsets without records in a new root.

    It writes markers there that end each transaction which may have ended in this range.
    """
    key = segment_key(ground.entry.topic_id, ground.tp.partition, row)
    nothing = ObjectVerdict(key, "no object holds these offsets")
    return [(yield from _lost(ground, pinned, row, nothing, nothing, known=True))]


def _replaced_log(
    ground: Ground, pinned: CatalogView, row: Row, log: ObjectVerdict, index: ObjectVerdict, *, known: bool
) -> Steps[RepairAction]:
    """Return the action for a ``.log`` whose bytes no copy holds. It writes a new segment in its place.

    It is made from local segments if the old one was merged or compacted, otherwise from its whole batches.
    ``known``: an earlier segment names the producers at its start.
    """
    run = (yield from blocking(partial(find_run, ground, ground.view, row))) if row.flags & FLAG_MAINTAINER else ()
    one = DamagedRow(ground.entry.topic_id, ground.tp, row, RepairSource(log.key, row.size, run=run))
    if not run or (yield from plan_remains(one, pinned, accepted=False))[0]:
        return (yield from _lost(ground, pinned, row, log, index, known=known))
    undone = yield from undone_steps(ground.entry.topic_id, ground.tp.partition, [row], 0)
    again = f"run `tiered erase {ground.tp.topic}:{ground.tp.partition}` again"
    sentences = tuple([each.sentence(ground.tp, ground.entry.topic_id, again) for each in undone])
    remedy = f"write the local segments of offsets {row.base} to {row.next} as a new segment"
    act = _replace(ground, row, _damaged(log, index), (), "repaired from a log directory", from_run=True)
    return RepairAction(ground.tp, log.key, log.problem, remedy, undone=sentences, act=act)


def _lost(
    ground: Ground, pinned: CatalogView, row: Row, log: ObjectVerdict, index: ObjectVerdict, *, known: bool
) -> Steps[RepairAction]:
    """Return the action that writes a new segment from the whole batches of a damaged one.

    If offsets are lost, the action has no remedy without ``accept_loss``. ``known``: an earlier segment names the
    producers at its start.
    """
    one = DamagedRow(ground.entry.topic_id, ground.tp, row, RepairSource(log.key, log.size), index.bundle)
    lost, notes = yield from plan_remains(one, pinned, accepted=ground.options.accept_loss)
    words = ", ".join([f"{start} to {end}" for start, end in lost])
    # mutant hole-needs-an-accepted-loss
    if lost and not ground.options.accept_loss:
        remedy = (
            f"no copy in the bucket holds offsets {words}: `{ground.command} --from-dir DIR` takes them from a disk, "
            f"`{ground.command} --accept-loss` makes a hole of them"
        )
        if row.flags & FLAG_MAINTAINER:
            remedy += "; within the grace `--to-version` goes back before the rewrite that made this segment"
        return RepairAction(ground.tp, log.key, log.problem, remedy, lost=lost)
    if lost and not known and index.bundle is None and not one.staged:
        notes = (*notes, f"no segment before offset {row.base} names its producers: they are unknown")
    remedy, reason = f"keep the batches that are whole, and make a hole of offsets {words}", f"lost offsets {words}"
    if not lost:  # the batches are whole, and the row or the bundle is not about them
        remedy, reason = "write its batches as a new segment", "repaired"
    act = _replace(ground, row, _damaged(log, index), lost, reason)
    return RepairAction(ground.tp, log.key, log.problem, remedy, lost=lost, notes=notes, act=act)


def _damaged(*judged: ObjectVerdict) -> tuple[str, ...]:
    """Return the keys of damaged objects that are there."""
    return tuple([each.key for each in judged if each.etag and each.problem])


def _replace(
    ground: Ground, row: Row, aside: Sequence[str], lost: Ranges, reason: str, *, from_run: bool = False
) -> Act:
    """Return the act that writes a new segment and commits it in place of a row.

    ``aside``: keys of damaged objects, which are copied first. ``lost``: the planned ranges of lost offsets.
    ``reason``: that of the commit. ``from_run``: take the batches from segments of the log directory.
    """
    topic_id, tp = ground.entry.topic_id, ground.tp

    def act(bench: Workbench) -> Steps[None]:
        desk = yield from bench.desk(tp, ground.entry)
        pinned = yield from desk.catalog.pin()
        if pinned is None or (yield from pinned.at(row.base)) != row:
            raise _changed(ground, f"offset {row.base} is in another segment")
        for key in aside:
            yield from keep_copy(key, aside_key(topic_id, tp.partition, (yield NewId())))
        log = yield from judge_log(topic_id, tp, row, read_data=False)
        index = yield from judge_index(topic_id, tp, row)
        source = (yield from _run_again(ground, row, bench)) if from_run else RepairSource(log.key, log.size)
        new = yield from write_remains(DamagedRow(topic_id, tp, row, source, index.bundle), desk.context, pinned, lost)
        yield from desk.catalog.commit(ReplaceIntent((row,), (new,)), reason=reason)

    return act


def _changed(ground: Ground, what: str) -> ConfigError:
    return ConfigError(
        f"{ground.tp}: {what} now, unlike when the repair was planned; nothing was replaced",
        hint="run `tiered repair` again",
    )
