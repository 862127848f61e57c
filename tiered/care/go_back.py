"""``repair root``: the catalog of an earlier version again, with what was appended since.

What only the root named that goes back waits in the trash of the new one, for its grace time and for pins, with what
waited before. ``rebuild_steps`` carries the plan out, as that of a root that was lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from uuid import UUID

from tiered.care.rebuild import (
    ADVICE,
    RebuildPlan,
    believed,
    epochs_told,
    is_there,
    list_objects,
    need_sound,
    rows_of,
    topic_id_of,
    unused_keys,
    view_of,
)
from tiered.care.undone import Undone, undone_steps
from tiered.errors import ConfigError, CorruptionError, NotFoundError
from tiered.format.keys import (
    Role,
    hist_prefix,
    join_uid,
    parse_hist_key,
    root_key,
    segment_key,
)
from tiered.format.page import PageKind, Pointers
from tiered.format.root import STATE_OPEN, Root
from tiered.format.rows import NO_TRASH, Rows, Trash
from tiered.format.trash import TRASH_LIST, TRASH_MAINTAINER, TRASH_OBJECT, TRASH_PAGE, TRASH_ROWS, TrashEntry
from tiered.model import Row, TopicPartition
from tiered.plan.commit import Stamp
from tiered.plan.pages import Garbage
from tiered.plan.rebuild import VERSION_STEP, Objects, rebuilt
from tiered.remote.collect import page_key_of, trash_page
from tiered.remote.pages import PageCache, read_pages
from tiered.remote.past import AsOf, Past, list_snapshots, survey_snapshots
from tiered.remote.root_view import root_get
from tiered.remote.snapshot import Snapshot
from tiered.store.base import NewId, Now, Object, Steps, list_all


def plan_return_steps(tp: TopicPartition, version: int, owner: str, *, erasures: bool = True) -> Steps[RebuildPlan]:
    """The catalog of ``version`` again, with what was appended since. Reads only; :func:`rebuild_steps` carries it out.

    Raises UnknownTopicError, NotFoundError (that version was not kept, or what it names was collected), ConfigError (it
    is the newest, or what was appended since does not continue it), CorruptionError (the root, or an object is lost).
    """
    topic_id = yield from topic_id_of(tp)
    now, data, etag = yield from _need_whole(tp, topic_id)
    if now.state != STATE_OPEN:
        raise ConfigError(f"{now.where} is {now.state}: it cannot go back to version {version}")
    if version >= now.version:
        raise ConfigError(
            f"{now.where} cannot go back to version {version}, which is not older",
            hint="name an older version; `tiered snapshot list` and hist/ have them",
        )
    taken = yield from Past(view_of(tp, topic_id), AsOf(version=version)).take()
    then = yield from rows_of(Snapshot.of(taken.root), 0)
    end = taken.root.next_offset
    since = [row for row in (yield from rows_of(Snapshot.of(now), end)) if row.next > end]
    if (since[0].base if since else now.next_offset) != end:
        raise ConfigError(
            f"{tp}: version {version} ends at offset {end}, and what was appended since does not begin there any more",
            hint="a rewrite or a trim went over that offset; name a newer version",
        )
    rows = [*then, *since]
    if not rows:
        raise ConfigError(f"{tp}: version {version} holds nothing", hint="name another version")
    listed = yield from list_objects(topic_id, tp.partition)
    for row in rows:
        if row.size and not is_there(topic_id, tp.partition, row, listed.sizes):
            key = segment_key(topic_id, tp.partition, row)
            raise CorruptionError(
                f"{tp}: {key}, or its .idx, is not what version {version} names", path_or_key=key, hint=ADVICE
            )
    stamp = Stamp((yield NewId()), (yield Now()).now_ms, Role.MAINTAINER, 0, owner)
    told = yield from epochs_told(topic_id, tp.partition, rows, None)
    first = replace(
        taken.root,
        roles=now.roles,
        commit=now.commit,
        txns=now.txns,
        txn_versions=now.txn_versions,
        txns_floor=now.txns_floor,
    )
    versions = [each.version for each in (yield from list_snapshots(view_of(tp, topic_id)))]
    number = max(now.version, *versions) if versions else now.version
    root = rebuilt(first, Objects(tuple(rows), told, listed.epochs), number + VERSION_STEP, stamp)
    named = {join_uid(row.id_hi, row.id_lo) for row in rows}
    trash = yield from left_behind(now, root, stamp, named)
    root = replace(root, gc_floor=now.gc_floor, trash=trash)
    need_sound(root)
    undone = (yield from _undone(now, taken.root, then)) if erasures else ()
    return RebuildPlan(tp, root, version, len(since), unused_keys(rows, listed), data, etag, undone=undone)


def _undone(now: Root, taken: Root, then: Sequence[Row]) -> Steps[tuple[Undone, ...]]:
    """Erasures whose records are in rows of ``taken`` that ``now`` does not name any more."""
    named = {(row.id_hi, row.id_lo) for row in (yield from rows_of(Snapshot.of(now), 0))}
    back = [row for row in then if (row.id_hi, row.id_lo) not in named]
    return (yield from undone_steps(now.topic_id, now.partition, back, back, taken.commit.ts_ms))


def version_with_steps(tp: TopicPartition, lost: Sequence[Row]) -> Steps[int]:
    """The newest version to which :func:`plan_return_steps` goes back and that has other segments in place of all of
    ``lost``; 0 without one. Raises UnknownTopicError."""
    topic_id = yield from topic_id_of(tp)
    kept = {parse_hist_key(each.key) or 0 for each in (yield from list_all(hist_prefix(topic_id, tp.partition)))}
    snapshots, _ = yield from survey_snapshots(view_of(tp, topic_id))
    kept |= {taken.version for taken in snapshots}
    for version in sorted(kept, reverse=True):
        try:
            plan = yield from plan_return_steps(tp, version, "", erasures=False)
        except (ConfigError, CorruptionError, NotFoundError):
            continue
        rows = yield from rows_of(Snapshot.of(plan.root), 0)
        held = {(row.id_hi, row.id_lo): row for row in rows if row.size}
        if not any((row.id_hi, row.id_lo) in held for row in lost) and all(
            any(old.base < row.next and row.base < old.next for old in held.values()) for row in lost
        ):
            return version
    return 0


def left_behind(now: Root, root: Root, stamp: Stamp, named: set[str]) -> Steps[Trash]:
    """Return the trash of ``root``, which replaces ``now``: what ``now`` or its trash names, and ``root`` not.

    ``root`` names no page of ``now``: each goes alone, for rows that it holds live on.
    """
    garbage = Garbage(replace(now, version=root.version - 1, trash=NO_TRASH), stamp)
    cache = PageCache()
    garbage.objects(row for row in (yield from rows_of(Snapshot.of(now), 0)) if not _is_named(row, named))
    for pointer in now.inner:
        (children,) = yield from read_pages(now, PageKind.INNER, (pointer,), cache)
        if isinstance(children, Pointers):
            garbage.pages(children)
    garbage.pages((*now.inner, *now.leaves))
    waiting: list[TrashEntry] = []
    for entry in now.trash:
        waiting += yield from _opened(now, entry, garbage, named)
    version, ts_ms = root.version, root.commit.ts_ms
    moved = [entry._replace(removed_version=version, removed_ms=ts_ms) for entry in waiting]
    # A leaf that a trim cut is there twice, and its rows, if a later trim took the rest of it.
    once = {(entry.id_hi, entry.id_lo): entry for entry in (*moved, *garbage.trash)}
    return Trash.from_entries(list(once.values()))


def _opened(now: Root, entry: TrashEntry, garbage: Garbage, named: set[str]) -> Steps[list[TrashEntry]]:
    """An entry as single pages and objects, without those that are ``named`` again; ``garbage`` gets the rows of pages.

    A page that is gone was collected after all that it names.
    """
    if entry.what == TRASH_OBJECT:
        return [] if _is_named(entry, named) else [entry]
    if entry.what == TRASH_PAGE:
        return [entry]
    kinds = [PageKind.TRASH] if entry.what == TRASH_LIST else [PageKind.LEAF, PageKind.INNER]
    content = yield from trash_page(page_key_of(now, entry), kinds)
    waiting: list[TrashEntry] = []
    if content is None:
        return waiting
    if isinstance(content, Trash):
        for one in content:
            waiting += yield from _opened(now, one, garbage, named)
    elif isinstance(content, Pointers):
        for pointer in content:
            rows = yield from trash_page(now.page_key(pointer), [PageKind.LEAF])
            if isinstance(rows, Rows):
                garbage.objects(row for row in rows if not _is_named(row, named))
                garbage.pages((pointer,))
    else:
        below = entry.what == TRASH_ROWS
        rows = content.where((content.next > entry.base) & (content.next <= entry.end)) if below else content
        garbage.objects(row for row in rows if not _is_named(row, named))
        if below:
            return waiting  # the page itself is another entry, or one of the catalog's
    return [*waiting, entry._replace(kind=TRASH_PAGE | entry.kind & TRASH_MAINTAINER, end=0)]


def _is_named(one: Row | TrashEntry, named: set[str]) -> bool:
    return join_uid(one.id_hi, one.id_lo) in named


def _need_whole(tp: TopicPartition, topic_id: UUID) -> Steps[tuple[Root, bytes, str]]:
    """The root, its bytes and its ETag."""
    key = root_key(topic_id, tp.partition)
    got = yield root_get(key)
    root = believed(got.data, key, topic_id, tp) if isinstance(got, Object) else None
    if root is None or not isinstance(got, Object):
        raise CorruptionError(
            f"{tp}: the root is lost or cannot be read",
            path_or_key=key,
            hint="`tiered repair rebuild-catalog` goes on from the newest copy in hist/",
        )
    return root, bytes(got.data), got.etag
