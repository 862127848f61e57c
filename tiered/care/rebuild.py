"""``repair rebuild-catalog``: a root made anew from ``hist/`` and the objects.

::

    newest good copy: hist/, snap/ ──┐
    decisions of sinks: txn/ ────────┼──> plan.rebuild ──> plan, for people ──> the root copied aside ──> PUT root (CAS)
    LIST of s/ and p/  ──────────────┤
    heads of the .idx  ──────────────┘

The new root takes both roles from whoever had them, under claims that nobody has used, and belongs to no volume: a disk
that wrote the partition before is refused until ``repair rejoin``. Its version is far above every one that was seen, so
that pins and snapshots of the lost catalog hold what they held. A root that is whole and names pages that are lost goes
on from itself: what these named is looked for among the objects, and adds up to what they held. A whole root that is
older than what ``remote.traces`` proves counts as lost, too: the new one goes on from it or from a newer copy, and is
refused where it would let go of records that were appended under the older root. Nothing is deleted.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple
from uuid import UUID

from tiered.care.bare import gaps_of, told_by_batches
from tiered.care.decided import SinceCopy, since_copy
from tiered.care.misplaced import misplaced_words
from tiered.care.segment_objects import aborts_before, bundle_of, harmful_loss, keeps_before, producers_at_end
from tiered.care.staged_page import staged_rows
from tiered.care.undone import Undone, undone_steps
from tiered.errors import ConfigError, CorruptionError, UnknownTopicError
from tiered.format.bundle import HEAD_BYTES, MAX_BUNDLE_BYTES, SectionKind, decode_bundle, decode_bundle_head
from tiered.format.crc import crc32c
from tiered.format.keys import (
    FLAG_ABORTED_TXNS,
    FLAG_MAINTAINER,
    MAX_INT32,
    MAX_INT64,
    Role,
    SegmentName,
    aside_key,
    hist_key,
    hist_prefix,
    index_key,
    join_uid,
    log_name,
    parse_hist_key,
    parse_page_key,
    parse_segment_key,
    parse_staged_key,
    partition_dir,
    partition_prefix,
    root_key,
    segment_key,
    split_uid,
)
from tiered.format.root import Root, decode_root
from tiered.model import EpochEntry, Row, TopicPartition
from tiered.plan.commit import Stamp, create_root
from tiered.plan.invariants import check_root
from tiered.plan.pages import spill
from tiered.plan.rebuild import VERSION_STEP, Objects, choose_rows, followers, rebuilt
from tiered.plan.side_files import hole_flaw
from tiered.remote.pages import store_pages
from tiered.remote.past import list_snapshots, survey_snapshots
from tiered.remote.rewrite import hole
from tiered.remote.root_view import RootView, root_get, two_names
from tiered.remote.roots import root_put
from tiered.remote.settle import COMMIT_DEADLINE_MS, deadline_after, settle
from tiered.remote.snapshot import Snapshot
from tiered.remote.sweep import drop_named
from tiered.remote.topics import load_topic
from tiered.remote.torn import Torn, find_torn
from tiered.remote.traces import find_traces
from tiered.store.base import ABSENT, Get, Head, Match, NewId, Now, Object, Put, PutStatus, Steps, Together, list_all

HEADS_TOGETHER = 64
"""Bundles whose heads are asked for in one group."""
ADVICE = "nothing was changed; `tiered repair advice` says how a kept root is put back"


@dataclass(frozen=True, slots=True)
class RebuildPlan:
    """The root that would be written. ``copy_version``: of the copy that it goes on from, in ``hist/`` or a snapshot,
    0 without one; of the root itself where only pages of it are lost, ``torn_pages`` of them, or where it is an older
    one, whose copies are older still. ``older``: what proves that the root which lies there is an older one.
    ``unread``: how many copies are newer and cannot be read. ``batches``: of sinks, which only their decisions tell;
    ``unproven``: offsets of records of theirs that may have had others of these, (0, 0) for none.

    ``found``: rows that the copy did not name. ``unused``: keys of segments that the new root does not name; they stay.
    ``bare``: keys of a ``.log`` whose bundle is gone or wrong, or that has another size than its row tells: the root
    names it where the copy, its bundle or its batches tell its row, and not where it lies behind the end, as an upload
    that never ended. ``gone``: offsets at the start, from that
    of the copy or, without one, from 0 on, that no object has, (0, 0) for none: a trim took them, or they are lost.
    ``undone``: erasures whose records may be there again.
    ``damaged`` is what lies there now, None if the root is absent; ``etag`` is its. ``lost``: offsets that are in no
    object, a hole each.
    """

    tp: TopicPartition
    root: Root
    copy_version: int
    found: int
    unused: tuple[str, ...]
    damaged: bytes | None
    etag: str
    lost: tuple[tuple[int, int], ...] = ()
    torn_pages: int = 0
    bare: tuple[str, ...] = ()
    gone: tuple[int, int] = (0, 0)
    older: str = ""
    unread: int = 0
    batches: int = 0
    unproven: tuple[int, int] = (0, 0)
    undone: tuple[Undone, ...] = ()


class _There(NamedTuple):
    """What lies under the root's key: its bytes and ETag; ``root`` if it is whole, ``torn`` where it has lost pages,
    ``older`` where something proves a newer one. ``version``: the newest that is proven."""

    data: bytes | None = None
    etag: str = ""
    root: Root | None = None
    torn: Torn | None = None
    older: str = ""
    version: int = 0


class _Unnamed(NamedTuple):
    """Segments that a copy does not name. ``rows``: those of which a bundle tells and a ``.log`` is there; ``untold``:
    by key of the ``.log`` those whose bundle is lost; ``gone``: those whose bundle alone is there."""

    rows: list[Row]
    untold: dict[str, SegmentName]
    gone: list[Row]


class Listed(NamedTuple):
    """The objects of a partition: sizes by key, and the newest epoch of each role that made one."""

    sizes: dict[str, int]
    epochs: dict[Role, int]


def plan_rebuild_steps(
    tp: TopicPartition, owner: str, *, accept_loss: bool = False, accept_order: bool = False
) -> Steps[RebuildPlan]:
    """Reads only. Raises UnknownTopicError, ConfigError (the root is whole), CorruptionError (it cannot be told).

    ``accept_loss``: offsets that are in no object become holes, up to the end that a copy, or a sink's decision, knew;
    CorruptionError where that would change what is shown of other offsets. ``accept_order``: what sinks decided, and
    nothing tells in which order it was committed, comes in the order of the decisions.
    """
    topic_id = yield from topic_id_of(tp)
    key_of = partial(segment_key, topic_id, tp.partition)
    there = yield from _need_broken(tp, topic_id)
    listed = yield from list_objects(topic_id, tp.partition)
    torn, copy, known, unread = yield from _gone_on_from(tp, topic_id, there)
    # Of the newest root what is wrong with its objects is for other verbs; of another one they may be collected.
    newest = torn is not None and not there.older
    others, untold, gone = yield from _unnamed(copy, topic_id, tp.partition, listed, torn, older=bool(there.older))
    kept, named, since = copy, known, SinceCopy(copy)
    if not newest:  # since the newest root nobody has committed
        older = copy is not None and copy is there.root
        since = yield from since_copy(tp, topic_id, copy, torn, listed.sizes, older=older, accept_order=accept_order)
        copy, known = since.root, [*named, *since.rows]
        _need_uncut(tp, topic_id, since, others)
    present = [row for row in known if newest or not row.size or key_of(row) in listed.sizes]
    known_end = copy.next_offset if torn is None and copy is not None else 0
    is_whole = partial(is_there, topic_id, tp.partition, sizes=listed.sizes)
    others, gone = _candidates(others, gone, present, copy, is_whole, newest=newest)
    chosen = choose_rows(present, known_end, others, key_of, gaps=True)
    told, unproven = yield from told_by_batches(tp, topic_id, gaps_of(chosen, copy), untold, listed.sizes)
    chosen = sorted([*chosen, *told])
    bare = _need_told(tp, chosen, untold, unproven)
    if not newest:
        _need_whole_rewrites(tp, topic_id, chosen, untold, gone, listed.sizes)
    others += told
    if torn is not None and not torn.is_filled_by(chosen):
        others += yield from _need_staged(tp, torn, chosen, listed)
    rows = choose_rows(present, known_end, others, key_of, gaps=accept_loss)
    lost: list[tuple[int, int]] = []
    beyond = [] if newest else _beyond(rows, gone)
    if accept_loss:
        rows, lost = yield from _with_holes(rows, copy, beyond)
        known += beyond
        yield from _need_harmless(tp, topic_id, rows, lost, known, copy=kept if there.root is None else None)
    if torn is not None and newest and not lost:
        torn.need_same(tp, rows, {join_uid(row.id_hi, row.id_lo) for row in told})
    yield from _need_end(tp, topic_id, rows, copy, beyond)
    if not accept_loss:
        yield from _need_all_of_older(there, rows, key_of)
    root = yield from _made(tp, topic_id, copy, rows, listed, seen=max(there.version, since.seen), owner=owner)
    if told or not newest:
        bare += [key_of(row) for row in rows if row.size and not is_whole(row)]
    began = copy.start_offset if copy is not None else 0
    return RebuildPlan(
        tp,
        root,
        kept.version if kept else 0,
        len(set(rows) - set(named)),
        unused_keys(rows, listed),
        there.data,
        there.etag,
        tuple(lost),
        0 if torn is None else len(torn.lost),
        tuple(bare),
        (began, rows[0].base) if began < rows[0].base else (0, 0),
        there.older,
        unread,
        since.batches,
        since.unproven,
        () if newest else (yield from _undone(tp, topic_id, rows, named, kept)),
    )


def _undone(
    tp: TopicPartition, topic_id: UUID, rows: Sequence[Row], named: Sequence[Row], kept: Root | None
) -> Steps[tuple[Undone, ...]]:
    """Erasures whose records are in ``rows``; ``named``: by ``kept``."""
    since_ms = kept.commit.ts_ms if kept is not None else 0
    return (yield from undone_steps(topic_id, tp.partition, rows, named, since_ms))


def _made(
    tp: TopicPartition,
    topic_id: UUID,
    copy: Root | None,
    rows: Sequence[Row],
    listed: Listed,
    *,
    seen: int,
    owner: str,
) -> Steps[Root]:
    """The root of ``rows``, behind all versions that were ``seen``."""
    epochs = yield from epochs_told(topic_id, tp.partition, rows, copy)
    stamp = Stamp((yield NewId()), (yield Now()).now_ms, Role.MAINTAINER, 0, owner)
    first = copy or create_root(topic_id, tp.partition, tp.topic, stamp)
    versions = [taken.root.version for taken in (yield from list_snapshots(view_of(tp, topic_id)))]
    newest = max(first.version, seen, *versions)
    root = rebuilt(first, Objects(tuple(rows), epochs, listed.epochs), newest + VERSION_STEP, stamp)
    need_sound(root)
    return root


def _need_uncut(tp: TopicPartition, topic_id: UUID, since: SinceCopy, others: Sequence[Row]) -> None:
    """Checks the rewrites (compacted or merged segments) against the batches that sinks staged.

    Raises CorruptionError in two cases. A rewrite covers offsets of which nothing tells in which order sinks committed
    them: it may hold other batches than those that would get these offsets now. Or a rewrite begins or ends inside a
    staged segment: then that segment had other offsets when the rewrite was made.
    """
    start, end = since.unproven
    for rewrite in [row for row in others if row.flags & FLAG_MAINTAINER]:
        if rewrite.base < end and start < rewrite.next:
            raise CorruptionError(
                f"{tp}: nothing tells in which order sinks committed offsets {start} to {end}, and a rewrite has "
                f"{rewrite.base} to {rewrite.next}: which of their batches it holds is not known",
                path_or_key=segment_key(topic_id, tp.partition, rewrite),
                offset=rewrite.base,
                hint=ADVICE,
            )
        for row in since.rows:
            apart = rewrite.next <= row.base or row.next <= rewrite.base
            if not apart and not (rewrite.base <= row.base and row.next <= rewrite.next):
                raise CorruptionError(
                    f"{tp}: a rewrite has offsets {rewrite.base} to {rewrite.next}, and by the decisions of sinks a "
                    f"segment of theirs has {row.base} to {row.next}: one of the two is of another history",
                    path_or_key=segment_key(topic_id, tp.partition, rewrite),
                    hint=ADVICE,
                )


def _beyond(rows: Sequence[Row], gone: Sequence[Row]) -> list[Row]:
    """Of what is ``gone``, uploads of the claim that came last, behind the end of ``rows``, in order: a bundle comes
    after its ``.log``, which was there. Older claims had ended where the last one began."""
    writers = [row for row in (*rows, *gone) if row.size and not row.flags & FLAG_MAINTAINER]
    last = max((row.claim_epoch for row in writers), default=0)
    end = rows[-1].next if rows else 0
    return sorted(
        row for row in gone if row.claim_epoch == last and row.base >= end and not row.flags & FLAG_MAINTAINER
    )


def _need_end(
    tp: TopicPartition, topic_id: UUID, rows: Sequence[Row], copy: Root | None, beyond: Sequence[Row]
) -> Steps[None]:
    """Raises CorruptionError where ``rows`` end before the log did, and says where more of it lies by mistake."""
    if rows and beyond and rows[-1].next < beyond[-1].next:
        keys = [segment_key(topic_id, tp.partition, row) for row in beyond]
        where = misplaced_words(topic_id, tp.partition, (yield from list_all("")))
        raise CorruptionError(
            f"{tp}: the objects end at offset {rows[-1].next}, and the .idx beside {keys[-1]}, which is gone, tells of "
            f"offsets up to {beyond[-1].next}",
            path_or_key=keys[0],
            offset=rows[-1].next,
            hint=(f"{where}; else " if where else "")
            + f"nothing was changed; put {', '.join(keys)} back from a version "
            "or a backup of the bucket; --accept-loss makes a hole of what is missing",
        )
    if not rows or (copy is not None and rows[-1].next < copy.next_offset):
        end = rows[-1].next if rows else 0
        where = misplaced_words(topic_id, tp.partition, (yield from list_all("")))
        raise CorruptionError(
            f"{tp}: the objects end at offset {end}, and nothing tells that the log did",
            path_or_key=root_key(topic_id, tp.partition),
            hint=(f"{where}; else " if where else "") + ADVICE + _without_end(tp, copy, rows),
        )


def _without_end(tp: TopicPartition, copy: Root | None, rows: Sequence[Row]) -> str:
    """What is left where the objects do not reach as far as the log did, or there are none."""
    if copy is not None:
        return "; --accept-loss makes a hole of what is missing"
    if rows:
        return ""
    return (
        f"; if nobody kept it, a log directory that holds records of it reads them (`tiered cat {tp.topic}:"
        f"{tp.partition} --log-dir DIR`), other partitions are read as before, and only a new topic takes more"
    )


def need_sound(root: Root) -> None:
    """Raises CorruptionError for a root that nobody could read: one that breaks an invariant, or comes after a version
    or a claim that only a name which was put there by hand can tell of."""
    beyond = [f"version {root.version - VERSION_STEP}"] if root.version > MAX_INT64 else []
    late = [(role, state.epoch) for role, state in root.roles.items() if state.epoch > MAX_INT32]
    beyond += [f"claim {epoch - 1} of role {role}" for role, epoch in late]
    if beyond:
        raise CorruptionError(
            f"{root.topic}-{root.partition}: {beyond[0]} is told of, and nothing can come after it: no root had it",
            path_or_key=root.key,
            hint="nothing was changed; an object was put under such a name by hand, which `tiered check` tells: move "
            "it elsewhere, and plan this anew",
        )
    for violation in check_root(root):
        raise CorruptionError(f"{root.topic}-{root.partition}: {violation}", path_or_key=root.key, hint=ADVICE)


def _gone_on_from(
    tp: TopicPartition, topic_id: UUID, there: _There
) -> Steps[tuple[Torn | None, Root | None, list[Row], int]]:
    """What a new root goes on from: pages that can be read of the root that lies there, or the newest copy; its rows.

    Of an older root that is whole: itself, unless a copy is newer. Last how many newer copies cannot be read.
    """
    root, torn, unread = there.root, there.torn, 0
    if root is None or there.older:
        copy, known, unread = yield from _newest_copy(tp, topic_id)
        if root is None or (copy is not None and copy.version > root.version):
            return None, copy, known, unread
    if torn is not None:
        return torn, torn.root, list(torn.rows), unread
    return None, root, (yield from rows_of(Snapshot.of(root), 0)), unread


def _need_all_of_older(there: _There, rows: Sequence[Row], key_of: Callable[[Row], str]) -> Steps[None]:
    """Raises CorruptionError if an older root that was put back names what ``rows`` do not hold: somebody has appended
    under it, and the log has two ends."""
    if not there.older or there.root is None:
        return
    named = {(row.id_hi, row.id_lo, row.base) for row in rows}  # the key of a sink's segment tells no base
    rewrites = [row for row in rows if row.flags & FLAG_MAINTAINER]
    held = there.torn.rows if there.torn is not None else (yield from rows_of(Snapshot.of(there.root), 0))
    for row in held:
        passed = not row.size or (row.id_hi, row.id_lo, row.base) in named or row.next <= rows[0].base
        if not passed and not any(new.base <= row.base and row.next <= new.next for new in rewrites):
            raise CorruptionError(
                f"{there.root.where}: {there.older}; and it names {key_of(row)}, with offsets {row.base} to "
                f"{row.next}, which the newer catalog has otherwise: it was appended since the root was put back",
                path_or_key=key_of(row),
                offset=row.base,
                hint="nothing was changed; copy what the older root names elsewhere (`tiered restore --as-of now --to "
                "DIR`), then --accept-loss goes on without it",
            )


def _need_told(
    tp: TopicPartition, rows: Sequence[Row], untold: Mapping[str, SegmentName], unproven: Mapping[str, str]
) -> list[str]:
    """Checks each ``.log`` whose index bundle is lost (``untold``), because nothing tells the row that it belongs to.

    Raises CorruptionError if no row of the new root has the offset at which it begins: the root would not name it, and
    the next sweep would delete it. Returns the keys of those that begin behind the last row. They are uploads that
    never ended, or what is left of one that did.
    """
    behind: list[str] = []
    for key, name in sorted(untold.items(), key=lambda each: each[1].base):
        if any(row.size and row.base <= name.base < row.next for row in rows):
            continue
        if rows and name.base >= rows[-1].next:
            behind.append(key)
            continue
        why = unproven.get(key, "no segment follows it")
        raise CorruptionError(
            f"{tp}: {key} is there, from offset {name.base} on, and its .idx is gone or wrong: nothing tells its row; "
            f"its batches do not prove it: {why}",
            path_or_key=key,
            offset=name.base,
            hint="nothing was changed; put the .idx back from a version or a backup of the bucket. What the .log holds "
            f"is read without: copy it to {partition_dir(tp)}/{log_name(name.base)} in an empty folder DIR, and "
            f"`tiered cat {tp.topic}:{tp.partition} --log-dir DIR`. Only to give the segment up: delete it here then, "
            "and plan this anew, which names the offsets that are missing",
        )
    return behind


def _candidates(
    others: list[Row],
    gone: list[Row],
    present: Sequence[Row],
    copy: Root | None,
    is_whole: Callable[[Row], bool],
    *,
    newest: bool,
) -> tuple[list[Row], list[Row]]:
    """Of ``others`` those that the new root may name, and with ``gone`` those that have lost one of two objects.

    Rewrites one of whose objects was cut, or is longer, have lost it where whole segments have the offsets, too: what
    they were made of, or what has replaced them.
    """
    if newest:
        if copy is not None:
            others = [*(row for row in others if row.base < copy.next_offset), *followers(others, copy.next_offset)]
        return others, gone
    whole = [row for row in (*others, *present) if row.size and is_whole(row)]
    halves = [
        row
        for row in others
        if row.flags & FLAG_MAINTAINER
        and not is_whole(row)
        and any(other.base < row.next and row.base < other.next for other in whole)
    ]
    return [row for row in others if row not in halves], gone + halves


def _need_whole_rewrites(  # noqa: PLR0917 - what there is of a partition
    tp: TopicPartition,
    topic_id: UUID,
    rows: Sequence[Row],
    untold: Mapping[str, SegmentName],
    gone: Sequence[Row],
    sizes: Mapping[str, int],
) -> None:
    """Checks each rewrite that has lost one of its two objects: the bundle (``untold``) or one of both (``gone``).

    Raises CorruptionError if it may have taken the place of ``rows``: those would bring back what an erasure or a
    compaction took out, and the next sweep would delete what is left of it. A rewrite of a newer claim was made of what
    it left, if it was committed at all.
    """
    halves = [
        (key, ".idx", name.uid, name.epoch, name.base, name.base + 1)
        for key, name in untold.items()
        if name.role is Role.MAINTAINER
    ]
    for row in gone:
        if row.flags & FLAG_MAINTAINER:
            log, index = segment_key(topic_id, tp.partition, row), index_key(topic_id, tp.partition, row)
            key, half = (log, ".idx") if sizes.get(log) == row.size else (index, ".log")
            halves.append((key, half, join_uid(row.id_hi, row.id_lo), row.claim_epoch, row.base, row.next))
    for key, half, uid, epoch, start, end in sorted(halves, key=lambda each: each[4]):
        for row in rows:
            apart = not row.size or row.next <= start or end <= row.base or join_uid(row.id_hi, row.id_lo) == uid
            if apart or (row.flags & FLAG_MAINTAINER and row.claim_epoch > epoch):
                continue
            raise CorruptionError(
                f"{tp}: {key} is there, of a rewrite from offset {start} on, and its {half} is gone or wrong: nothing "
                f"tells whether it had taken the place of {segment_key(topic_id, tp.partition, row)}; if it had, what "
                f"an erasure or a compaction took out would be there again",
                path_or_key=key,
                offset=start,
                hint=f"nothing was changed; put the {half} back from a version or a backup of the bucket. Only if that "
                "may be there again: delete what is left of the rewrite, plan this anew, and erase again what had been "
                "erased",
            )


def _need_staged(tp: TopicPartition, torn: Torn, rows: list[Row], listed: Listed) -> Steps[list[Row]]:
    """What sinks staged of the offsets that ``rows`` leave out, where that is proven. Else raises CorruptionError if a
    hole in a page that is lost may lie over what a sink staged, and is still there."""
    found = yield from staged_rows(tp, torn, rows)
    if found:
        return found
    named = yield from torn.named()
    keys = [key for key in listed.sizes if (parsed := parse_staged_key(key)) is not None and parsed.uid not in named]
    if keys:
        raise CorruptionError(
            f"{tp}: {len(keys)} objects of sinks are there, the first {keys[0]}, which a page that is lost may have "
            f"named, and no order of them proves to be the page's: a hole would let go of them",
            path_or_key=keys[0],
            hint="nothing was changed; put the page back from a version or a backup of the bucket",
        )
    return []


def _with_holes(
    rows: list[Row], copy: Root | None, beyond: Sequence[Row]
) -> Steps[tuple[list[Row], list[tuple[int, int]]]]:
    """``rows`` with holes between them, and before and behind them as far as ``copy``, or what is ``beyond``, went."""
    start = copy.start_offset if copy is not None else rows[0].base if rows else 0
    ends = [row.next for row in (*rows, *beyond)]
    end = max(copy.next_offset if copy is not None else 0, max(ends, default=0))
    whole, lost, epoch = list[Row](), list[tuple[int, int]](), -1
    at = min(start, rows[0].base) if rows else start
    for row in (*rows, None):
        base = end if row is None else row.base
        if at < base:
            lost.append((at, base))
            whole.append(hole(at, base, (yield NewId()), 1, epoch))
        if row is not None:
            whole.append(row)
            at, epoch = row.next, row.leader_epoch
    return whole, lost


def _need_harmless(
    tp: TopicPartition,
    topic_id: UUID,
    rows: list[Row],
    lost: list[tuple[int, int]],
    known: list[Row],
    *,
    copy: Root | None,
) -> Steps[None]:
    """Raises CorruptionError where a hole would change what is shown of the offsets that stay. ``known``: the copy's
    rows; ``copy``: it, where no root lies there that can be read."""
    for start, end in lost:
        gone = [row for row in known if row.size and row.base < end and row.next > start]
        older = [row for row in rows if row.size and row.next <= start]
        before = (yield from producers_at_end(tp, topic_id, older[-1])) if older else ()
        told = bool(gone) and gone[-1].next == end
        after = (yield from producers_at_end(tp, topic_id, gone[-1])) if told else None
        aborted = False
        for row in gone:
            aborted |= aborts_before(start, row, (yield from bundle_of(tp, topic_id, row)))
        last = not any(row.size and row.base >= end for row in rows)
        why = hole_flaw(before, after, aborted=aborted, last=last)
        if why is not None:
            key = segment_key(topic_id, tp.partition, gone[0]) if gone else root_key(topic_id, tp.partition)
            way = yield from _way_out(tp, copy, lost[0][0])
            raise harmful_loss(tp, key, start, end, why, way=way)


def _way_out(tp: TopicPartition, copy: Root | None, offset: int) -> Steps[str]:
    """What keeps what lies before ``offset``, although nobody restores anything without a root: a copy below ``hist/``
    takes its place. ``""`` without one; of a root that has lost pages those of what lies before may be lost, too."""
    key = hist_key(copy.topic_id, copy.partition, copy.version) if copy is not None else ""
    if copy is None or not isinstance((yield Head(key)), Object):
        return ""
    return f"or copy {key} to {copy.key}: then {keeps_before(tp, offset, as_of='now')}"


def unused_keys(rows: Sequence[Row], listed: Listed) -> tuple[str, ...]:
    """Keys of segments that ``rows`` do not name."""
    named = {join_uid(row.id_hi, row.id_lo) for row in rows}
    return tuple([key for key in listed.sizes if (parsed := parse_segment_key(key)) and parsed.name.uid not in named])


def topic_id_of(tp: TopicPartition) -> Steps[UUID]:
    """The id that the registry gives the topic. Raises UnknownTopicError."""
    entry = yield from load_topic(tp.topic)
    if entry is None or tp.partition >= entry.partitions:
        raise UnknownTopicError(f"there is no partition {tp} in the registry", hint="`tiered topics list` names them")
    return entry.topic_id


def rows_of(pinned: Snapshot, at: int) -> Steps[list[Row]]:
    """All rows from the one that holds offset ``at`` on."""
    rows: list[Row] = []
    while len(piece := (yield from pinned.piece(at))):
        rows += list(piece)
        at = piece.end_offset
    return rows


def rebuild_steps(plan: RebuildPlan) -> Steps[None]:
    """Carries a plan out, by compare-and-swap. Raises ConfigError if the root is not what the plan saw, CommitUnknown
    (a new plan tells), RemoteUnavailableError."""
    deadline = yield from deadline_after(COMMIT_DEADLINE_MS)
    if plan.damaged is not None:
        key = aside_key(plan.root.topic_id, plan.root.partition, (yield NewId()))
        yield from settle(Put(key, plan.damaged, ABSENT, crc32c(plan.damaged)), deadline, f"{plan.tp}, a copy")
    commit = plan.root.commit
    stamp = Stamp(commit.id, commit.ts_ms, Role.MAINTAINER, commit.epoch, commit.owner)
    root = yield from store_pages(spill(plan.root, stamp), deadline)
    put = root_put(root, ABSENT if plan.damaged is None else Match(plan.etag))
    settled = yield from settle(put, deadline, f"{plan.tp}, rebuild")
    if settled.status is PutStatus.LANDED:
        return
    got = yield root_get(root.key)  # lost, perhaps to an attempt of our own
    if isinstance(got, Object) and got.data == put.body:
        return
    raise ConfigError(f"{plan.tp}: its root is another one by now; nothing was replaced", hint="plan again")


def _need_broken(tp: TopicPartition, topic_id: UUID) -> Steps[_There]:
    """What lies there. Raises ConfigError if it is whole with its pages, and nothing tells of a newer one."""
    key = root_key(topic_id, tp.partition)
    got = yield root_get(key)
    if not isinstance(got, Object):
        return _There()
    root = believed(got.data, key, topic_id, tp)
    if root is None:
        return _There(bytes(got.data), got.etag)
    traces = yield from find_traces(root)
    got = yield root_get(key)  # what was committed while the traces were listed is no trace of a newer one
    root = believed(got.data, key, topic_id, tp) if isinstance(got, Object) else None
    if root is None or not isinstance(got, Object):
        raise ConfigError(f"{tp}: its root is another one by now; nothing was replaced", hint="plan again")
    older = traces.older(root)
    torn = yield from find_torn(root)
    if older or torn is not None:
        return _There(bytes(got.data), got.etag, root, torn, older, max(root.version, traces.version))
    raise ConfigError(f"{root.where} can be read: there is nothing to rebuild", hint="`tiered check` looks at the rest")


def believed(data: bytes, key: str, topic_id: UUID, tp: TopicPartition) -> Root | None:
    """A root that can be believed. Raises ConfigError for one of a newer release: it is whole, as far as is known."""
    try:
        root = decode_root(data, key=key)
    except CorruptionError:
        return None
    if (root.topic_id, root.partition) == (topic_id, tp.partition) and root.topic != tp.topic:
        raise two_names(root, tp.topic)
    return None if (root.topic_id, root.partition) != (topic_id, tp.partition) or check_root(root) else root


def _keys(prefix: str) -> Steps[dict[str, int]]:
    return {entry.key: entry.size for entry in (yield from list_all(prefix))}


def list_objects(topic_id: UUID, partition: int) -> Steps[Listed]:
    """What lies below the prefix of a partition: sizes of its segments' objects, and the newest epoch of each role."""
    prefix = partition_prefix(topic_id, partition)
    sizes = yield from _keys(prefix + "s/")
    epochs = dict.fromkeys(Role, 0)
    for key in (*sizes, *(yield from _keys(prefix + "p/"))):
        parsed = parse_segment_key(key) or parse_page_key(key)
        if parsed is not None:
            epochs[parsed.name.role] = max(epochs[parsed.name.role], parsed.name.epoch)
    return Listed(sizes, epochs)


def _newest_copy(tp: TopicPartition, topic_id: UUID) -> Steps[tuple[Root | None, list[Row], int]]:
    """The newest copy that is whole with all its pages, below ``hist/`` or a snapshot, its rows, and how many newer
    copies cannot be read."""
    unread = 0
    taken, _ = yield from survey_snapshots(view_of(tp, topic_id))
    snapshots = {each.version: each.root for each in taken}
    keys = yield from _keys(hist_prefix(topic_id, tp.partition))
    versions = {version: key for key in keys if (version := parse_hist_key(key)) is not None}
    for version in sorted({*versions, *snapshots}, reverse=True):
        root = snapshots.get(version)
        if root is None:
            got = yield root_get(versions[version])
            root = believed(got.data, versions[version], topic_id, tp) if isinstance(got, Object) else None
        if root is None or root.version != version:
            unread += 1
            continue
        try:
            return root, (yield from rows_of(Snapshot.of(root), 0)), unread
        except CorruptionError:
            unread += 1  # a page was collected since, or is lost: an older copy may be whole
    return None, [], unread


def is_there(topic_id: UUID, partition: int, row: Row, sizes: Mapping[str, int]) -> bool:
    """Whether both objects of a row were listed with the sizes that it tells."""
    log, index = segment_key(topic_id, partition, row), index_key(topic_id, partition, row)
    return sizes.get(log) == row.size and sizes.get(index) == row.idx_len


def _unnamed(
    copy: Root | None, topic_id: UUID, partition: int, listed: Listed, torn: Torn | None, *, older: bool
) -> Steps[_Unnamed]:
    """Segments in the bucket that the copy of the root does not name, although the lost root may have named them.

    A bundle tells the row of a ``.log`` that is there, although one of the two has another size than it says: of
    uploads of the same bytes the one that is whole counts. ``torn`` is a root of which a part is lost: then what that
    part may have named counts, too.

    If the torn root is the newest (not ``older``), a rewrite that it does not name was still under way, and does not
    count. If two names have one id, because somebody copied objects by hand, the one counts that its bundle fits.
    """
    names: dict[str, list[SegmentName]] = {}
    for key in listed.sizes:
        parsed = parse_segment_key(key)
        if parsed is not None and parsed.name not in names.setdefault(parsed.name.uid, []):
            names[parsed.name.uid].append(parsed.name)
    if torn is not None:
        end = torn.root.next_offset
        for uid in (yield from torn.named()):
            names.pop(uid, None)
        every = [
            name
            for name in itertools.chain.from_iterable(names.values())
            if torn.covers(name.base) or (_goes_on(torn.root, name) and (older or name.base >= end))
        ]
    else:
        if copy is not None:
            yield from drop_named(Snapshot.of(copy), names)
        every = [name for same in names.values() for name in same if copy is None or _goes_on(copy, name)]
    start = copy.start_offset if copy is not None else 0
    rows, unsound, gone = list[Row](), list[Row](), list[Row]()
    untold: dict[str, SegmentName] = {}
    for at in range(0, len(every), HEADS_TOGETHER):
        group = every[at : at + HEADS_TOGETHER]
        keys = [index_key(topic_id, partition, name) for name in group]
        answers = yield Together(tuple([Get(key, 0, HEAD_BYTES) for key in keys]))
        for name, key, got in zip(group, keys, answers, strict=True):
            row = _row(name, key, got, topic_id, partition)
            if row is None and key in listed.sizes:
                row = _row(name, key, (yield from _again(key)), topic_id, partition)
            log = segment_key(topic_id, partition, name)
            if row is not None and log not in listed.sizes:
                gone.append(row)
            elif row is not None:
                (rows if is_there(topic_id, partition, row, listed.sizes) else unsound).append(row)
            elif log in listed.sizes and (name.base >= start or name.role is Role.MAINTAINER):
                untold[log] = (
                    name  # an upload below the start was trimmed; a rewrite may begin there and reach above it
                )
    sound = {(row.base, row.next, row.size, row.crc) for row in rows}
    rows += [row for row in unsound if (row.base, row.next, row.size, row.crc) not in sound]
    return _Unnamed([row for row in rows if row.next > start], untold, [row for row in gone if row.next > start])


def _again(key: str) -> Steps[Object]:
    """The head of a bundle that was listed, once more: one bad answer does not make its row go on without it."""
    got = yield Get(key, 0, HEAD_BYTES)
    if not isinstance(got, Object):
        raise ConfigError(f"{key} was listed and is gone by now; nothing was replaced", hint="plan again")
    return got


def _goes_on(copy: Root, name: SegmentName) -> bool:
    """Whether a segment may have been committed after ``copy``: an epoch that had ended by then commits no more."""
    return name.epoch >= copy.roles[name.role.value].epoch


def _row(name: SegmentName, key: str, got: object, topic_id: UUID, partition: int) -> Row | None:
    """What the descriptor tells; None for one that is not of this segment."""
    if not isinstance(got, Object):
        return None
    try:
        head = decode_bundle_head(got.data, key=key)
    except CorruptionError:
        return None
    told = head.descriptor
    if (told.topic_id, told.partition, told.base_offset, head.claim_epoch) != (
        topic_id,
        partition,
        name.base,
        name.epoch,
    ):
        return None
    flags = FLAG_ABORTED_TXNS if head.section(SectionKind.TXN_INDEX) is not None else 0
    return Row(
        told.base_offset,
        told.end_offset,
        told.min_timestamp,
        told.max_timestamp,
        told.size_bytes,
        told.crc32c,
        *split_uid(name.uid),
        head.size_bytes,
        name.epoch,
        told.records,
        flags | (FLAG_MAINTAINER if name.role is Role.MAINTAINER else 0),
        told.leader_epoch,
        appended_ms=told.appended_ms,
    )


def epochs_told(
    topic_id: UUID, partition: int, rows: Sequence[Row], copy: Root | None
) -> Steps[tuple[EpochEntry, ...]]:
    """Leader epochs up to the end of the newest segment, as its bundle has them. Up to its end ``copy`` tells them: a
    bundle that is lost there is made anew, under the new root, and with it who wrote at the end."""
    held = [row for row in rows if row.size]
    while held and (copy is None or held[-1].next > copy.next_offset):
        row = held.pop()
        key = index_key(topic_id, partition, row)
        got = yield Get(key, max_bytes=MAX_BUNDLE_BYTES)
        if not isinstance(got, Object):
            raise CorruptionError(f"{key} is gone", path_or_key=key, hint=ADVICE)
        try:
            return decode_bundle(got.data, key=key).indexes.leader_epochs
        except CorruptionError as damage:
            if not held or held[-1].leader_epoch != row.leader_epoch:  # else the segment before it tells the same
                damage.hint = f"it alone tells the leader epochs at the end of the log; {ADVICE}"
                raise
    return ()


def view_of(tp: TopicPartition, topic_id: UUID) -> RootView:
    """What reads and believes roots of the partition."""
    return RootView(topic_id, tp.partition, tp.topic)
