"""Orphans, which no root ever named and none can name any more, and strays, which lie below no topic.

A key contains role and claim epoch. An epoch that a newer claim has ended never commits again, and no epoch adopts
another's uploads. So an object of a dead epoch is an orphan unless the newest root names it, in its rows, pages or
trash, or in what these name. Keys are listed before the root is read: what came between is younger.

A page that cannot be read ends the sweep, because its contents are unknown. While a reader has a pin nothing is
deleted: its root may have been put back, and may name objects that the newest does not.

A stray lies below a topic id that no registry entry names, and that none can ever name again.

::

    keys of the bucket, listed first ── entries, read after the listing ── a topic id without an entry
        ├─ each partition with an audit line `destroyed`        a topic id is never reused: deleted
        └─ anything else                                        the entry may be lost or late: all of it stays

A process that stalls during a topic's destruction leaves the first kind. Nothing is deleted before it is a day old.
Listing the bucket costs about one LIST a partition.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar
from uuid import UUID

from tiered.errors import CorruptionError
from tiered.format.keys import (
    PageName,
    SegmentName,
    join_uid,
    parse_page_key,
    parse_segment_key,
    partition_prefix,
    root_key,
    staged_prefix,
)
from tiered.format.page import PageKind, Pointers
from tiered.format.root import Root
from tiered.format.rows import Rows, Trash
from tiered.model import TRASH_LIST, TRASH_OBJECT, TRASH_PAGE, TrashEntry
from tiered.plan.maintenance import MAX_DELETE_KEYS, ORPHAN_MS
from tiered.remote.catalog import Catalog
from tiered.remote.catalog_view import CatalogView, PageCache, PageGone, read_pages
from tiered.remote.gc.audit import note_destroyed, was_destroyed, write_line
from tiered.remote.gc.garbage import delete_all, page_key_of, trash_page
from tiered.remote.gc.sink_orphans import dead_of, delete_staged, staged_objects
from tiered.remote.pins import drop_stale, read_pins, snapshot_hint
from tiered.remote.root_view import RootView
from tiered.remote.roots import list_partitions
from tiered.remote.snapshots import KeptRoot, list_snapshots, still_exists
from tiered.remote.topics import list_topics
from tiered.store.base import ListEntry, Steps
from tiered.store.steps import Listing

MAX_CANDIDATES = 100_000
"""Keys that are compared with the catalog at a time: the catalog is read once for so many."""

T = TypeVar("T")


@dataclass(slots=True)
class Swept:
    """Result of a sweep for orphans. ``orphans``: the first ``MAX_DELETE_KEYS`` keys of them.

    ``count``, ``size_bytes``: totals of all orphans. ``readers``: number of pins because of which none was deleted.
    ``announced``: the audit line of the sweep is stored.
    """

    orphans: list[str] = field(default_factory=list)
    count: int = 0
    size_bytes: int = 0
    readers: int = 0
    announced: bool = False

    def add(self, dead: Sequence[ListEntry]) -> None:
        """Add orphans to the list and the totals."""
        self.count += len(dead)
        self.size_bytes += sum(entry.size for entry in dead)
        self.orphans += [entry.key for entry in dead][: MAX_DELETE_KEYS - len(self.orphans)]


def sweep(catalog: Catalog, *, delete: bool, grace_ms: int = ORPHAN_MS) -> Steps[Swept]:
    """Find orphans of one partition. With ``delete``, delete them.

    An object counts after a day, a staged object of a sink after ``grace_ms``: until then its commit may come.

    ``delete`` also deletes expired pins and unfinished snapshots. While a reader has a pin, no orphan is deleted.
    Raises CorruptionError for an unreadable page, pin, snapshot or decision. Raises RemotePermissionError or
    RemoteUnavailableError if no audit line can be stored.
    """
    found = Swept()
    for folder in ("s/", "p/"):
        listing = Listing(partition_prefix(catalog.topic_id, catalog.partition) + folder)
        while listing.more:
            candidates = yield from _candidates(listing)
            root = yield from catalog.load()  # after the listing, so that it names all that was listed and committed
            if root is None:
                return found
            _drop_young_epochs(root, candidates)
            if candidates:
                # mutant orphan-is-not-named
                yield from drop_named(CatalogView.from_root(root), candidates)
                for taken in (yield from list_snapshots(catalog)):  # they may be of a lost catalog before this one
                    yield from drop_kept(catalog, taken, candidates)
            dead = [entry for _, entries in candidates.values() for entry in entries]
            found.add(dead)
            if delete and dead:
                found.readers = (yield from read_pins(root)).readers
            if delete and dead and not found.readers:
                yield from _announce(root, found, orphans=len(dead), size_bytes=sum(entry.size for entry in dead))
                yield from delete_all([entry.key for entry in dead])
    yield from _sweep_staged(catalog, found, grace_ms, delete=delete)
    if delete and catalog.root is not None:
        yield from _drop_unheld(catalog.root, found)
    if delete and not found.readers and found.count and catalog.root is not None:
        yield from write_line(catalog.root, {"orphans": found.count, "size_bytes": found.size_bytes})
    return found


def _drop_unheld(root: Root, found: Swept) -> Steps[None]:
    """Delete expired pins, and snapshots that were never completed."""
    pins = yield from read_pins(root)
    yield from drop_stale(pins)
    if pins.expired:
        yield from _announce(root, found, orphans=0, pins=len(pins.expired))
        yield from delete_all(pins.expired)


def _announce(root: Root, found: Swept, **counts: int) -> Steps[None]:
    """Store an audit line with ``counts`` before the first deletion of a sweep, once. A killed sweep leaves it."""
    if not found.announced:
        yield from write_line(root, {"begun": True, **counts}, must=True)
        found.announced = True


def _sweep_staged(catalog: Catalog, found: Swept, grace_ms: int, *, delete: bool) -> Steps[None]:
    """Find, and with ``delete`` delete, staged objects of sinks that can never be committed. Adds them to ``found``.

    ``grace_ms``: how long staged objects wait for their commit.
    """
    listing = Listing(staged_prefix(catalog.topic_id, catalog.partition))
    while listing.more:
        listed = yield from staged_objects(listing, MAX_CANDIDATES, grace_ms)
        root = yield from catalog.load()
        if root is None or not listed:
            continue
        # mutant staged-is-not-named
        yield from drop_named(CatalogView.from_root(root), listed)
        for taken in (yield from list_snapshots(catalog)):
            yield from drop_kept(catalog, taken, listed)
        if delete and listed:
            pins = yield from read_pins(root)
            found.readers = pins.readers
        delete = delete and not found.readers
        dead = yield from dead_of(root, listed, abort=delete)
        found.add(dead)
        if delete and dead:
            yield from _announce(root, found, orphans=len(dead), size_bytes=sum(entry.size for entry in dead))
            yield from delete_staged(dead)


_Name = SegmentName | PageName
_Candidates = dict[str, tuple[_Name, list[ListEntry]]]


def _candidates(listing: Listing) -> Steps[_Candidates]:
    """Return listed objects that are at least a day old, by uid, as (name, entries). Skips foreign and staged objects.

    Reads pages of ``listing`` until there are ``MAX_CANDIDATES`` uids.
    """
    candidates: _Candidates = {}
    while listing.more and len(candidates) < MAX_CANDIDATES:
        for entry in (yield from listing.page()):
            parsed = parse_segment_key(entry.key) or parse_page_key(entry.key)
            if parsed is not None and listing.age_ms(entry) >= ORPHAN_MS:
                candidates.setdefault(parsed.name.uid, (parsed.name, []))[1].append(entry)
    return candidates


def _drop_young_epochs(root: Root, candidates: _Candidates) -> None:
    """Drop candidates of an epoch that no newer claim has ended: it may still commit them."""
    for uid, (name, _) in list(candidates.items()):
        # mutant orphan-epoch-is-dead
        if name.epoch >= root.roles[name.role.value].epoch:
            del candidates[uid]


def drop_named(pinned: CatalogView, candidates: dict[str, T]) -> Steps[None]:
    """Remove from ``candidates`` (by uid) the objects that a catalog names in its root, pages and trash.

    Raises CorruptionError for an unreadable page, because its contents are unknown.
    """
    root, cache = pinned.root, PageCache()
    at = pinned.start_offset
    while len(rows := (yield from pinned.piece(at))):
        _drop(candidates, rows)
        at = rows.end_offset
    _drop(candidates, root.inner)
    # mutant orphan-is-no-leaf
    _drop(candidates, root.leaves)
    for pointer in root.inner:
        (children,) = yield from read_pages(root, PageKind.INNER, (pointer,), cache)
        _drop(candidates, children)
    for entry in root.trash:
        # mutant orphan-is-not-garbage
        yield from _drop_trash(root, entry, candidates)


def drop_kept(view: RootView, taken: KeptRoot, candidates: dict[str, T]) -> Steps[None]:
    """Remove from ``candidates`` (by uid) the objects that a snapshot names. Raises CorruptionError for an unreadable
    page.

    A missing page is no error in two cases: the snapshot is unfinished, so that garbage collection may have deleted the
    page, or the snapshot was deleted since it was listed.
    """
    try:
        yield from drop_named(CatalogView.from_root(taken.root), candidates)
    except CorruptionError as damage:
        free = isinstance(damage, PageGone) and (taken.begun or not (yield from still_exists(view, taken)))
        if not free:
            name = taken.source.removeprefix("snapshot ")
            damage.hint = snapshot_hint(taken.root.topic, taken.root.partition, name)
            raise


def _drop(candidates: dict[str, T], named: Rows | Pointers | Trash) -> None:
    for high, low in zip(named.columns["id_hi"].tolist(), named.columns["id_lo"].tolist(), strict=True):
        candidates.pop(join_uid(high, low), None)


def _drop_trash(root: Root, entry: TrashEntry, candidates: dict[str, T]) -> Steps[None]:
    """Remove from ``candidates`` the object of a trash entry. If it is a page, also remove all objects that it names.

    They wait for the end of their grace period.
    """
    candidates.pop(join_uid(entry.id_hi, entry.id_lo), None)
    if entry.what in (TRASH_OBJECT, TRASH_PAGE):
        return
    kinds = [PageKind.TRASH] if entry.what == TRASH_LIST else [PageKind.LEAF, PageKind.INNER]
    content = yield from trash_page(page_key_of(root, entry), kinds)
    if content is None:
        return
    _drop(candidates, content)
    if isinstance(content, Trash):
        for one in content:
            yield from _drop_trash(root, one, candidates)
    elif isinstance(content, Pointers):
        for pointer in content:
            rows = yield from trash_page(root.page_key(pointer), [PageKind.LEAF])
            if rows is not None:
                _drop(candidates, rows)


def sweep_strays(*, delete: bool) -> Steps[Swept]:
    """Find the strays of the whole bucket that are at least a day old. ``delete``: delete them.

    Strays are leftovers of destroyed partitions. Raises CorruptionError for an unreadable registry entry: its topic is
    unknown then, and nothing is deleted. Raises RemotePermissionError if the role may not list the bucket or the audit
    lines.
    """
    listed = yield from list_partitions()
    named = {entry.topic_id for entry in (yield from list_topics())}
    found = Swept()
    for topic_id, partition in sorted(listed, key=lambda owner: (owner[0].hex, owner[1])):
        if topic_id not in named and (yield from was_destroyed(topic_id, partition)):
            yield from _sweep_destroyed(topic_id, partition, found, delete=delete)
    return found


def _sweep_destroyed(topic_id: UUID, partition: int, found: Swept, *, delete: bool) -> Steps[None]:
    """Find, and with ``delete`` delete, day-old objects of a destroyed partition, its root last. Adds to ``found``."""
    last = root_key(topic_id, partition)
    noted = rooted = False
    listing = Listing(partition_prefix(topic_id, partition))
    while listing.more:
        old = [entry for entry in (yield from listing.page()) if listing.age_ms(entry) >= ORPHAN_MS]
        rooted = rooted or any(entry.key == last for entry in old)
        found.add(old)
        if delete and old and not noted:
            yield from note_destroyed(topic_id, partition, {"strays": len(old)})
            noted = True
        if delete:
            yield from delete_all([entry.key for entry in old if entry.key != last])
    if delete and rooted:
        yield from delete_all([last])  # the root last, as in ``destroy``
