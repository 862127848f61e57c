"""Garbage collection: deletes objects that no root names any more.

::

    trash of a committed root ── gc_floor ──> pins ──> expand ──> DELETE segments ──> leaves ──> lists ──> gc_done
    LIST of s/ and p/         ── newest root, all pages ──> dead epoch, named nowhere, a day old ──> DELETE

An entry is removed once the floor, its grace time and every pin allow it, and all deletions of the cycle are
acknowledged. A refused key or a crash leaves the entries: deletions repeat.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from tiered.config import MAX_LONG
from tiered.errors import CorruptionError, RemotePermissionError, RemoteUnavailableError
from tiered.format.keys import (
    PageName,
    Role,
    index_key,
    join_uid,
    page_key,
    segment_key,
    trashed_segment,
)
from tiered.format.page import MAX_PAGE_BYTES, Content, PageKind, Pointers, decode_page
from tiered.format.root import Root
from tiered.format.rows import NO_TRASH, Rows, Trash
from tiered.model import TRASH_LIST, TRASH_MAINTAINER, TRASH_OBJECT, TRASH_PAGE, TRASH_ROWS, TrashEntry
from tiered.plan.commit import GcDoneIntent, GcFloorIntent
from tiered.plan.maintenance import MAX_DELETE_KEYS, collectable
from tiered.remote.catalog import Catalog
from tiered.remote.gc.audit import DELETE, write_line
from tiered.remote.pins import drop_stale, read_pins
from tiered.store.base import ACCESS_DENIED, Get, Object, Steps
from tiered.store.steps import delete_keys


@dataclass(frozen=True, slots=True)
class Collected:
    """Result of one collection cycle. ``floor``: objects removed up to this root version could be deleted.

    ``entries``: number of trash entries removed. ``objects``: number of deleted keys. ``pins``: number of pins and
    snapshots. ``held``: number of due entries that they protect. ``audit``: key of the audit line, empty without one.
    """

    floor: int = 0
    entries: int = 0
    objects: int = 0
    pins: int = 0
    held: int = 0
    audit: str = ""

    @property
    def fields(self) -> dict[str, object]:
        """Return the fields of the audit line."""
        return {name: getattr(self, name) for name in ("floor", "entries", "objects", "pins", "held")}

    @property
    def note(self) -> str:
        """Return a text about the objects that stay, and why; empty if none do."""
        return f"{self.held} entries wait for {self.pins} pins" if self.held else ""


def delete_all(keys: Sequence[str]) -> Steps[None]:
    """Delete objects. Raises RemotePermissionError or RemoteUnavailableError if the store refuses to delete one."""
    # mutant delete-before-done
    for key, why in (yield from delete_keys(keys)):
        if ACCESS_DENIED in why:
            raise RemotePermissionError(
                f"{key} was not deleted: {why}",
                operation=DELETE,
                resource=key,
                hint="allow s3:DeleteObject: `tiered iam-policy --role maintainer` prints the policy",
            )
        raise RemoteUnavailableError(f"{key} was not deleted: {why}", hint="run it again")


@dataclass(slots=True)
class _Work:
    """Keys to delete. ``announce`` runs before the first deletion.

    ``leaves``, ``lists``: pages to delete after the objects that they name.
    """

    announce: Callable[[], Steps[object]]
    announced: bool = False
    waiting: list[str] = field(default_factory=list)
    leaves: list[str] = field(default_factory=list)
    lists: list[str] = field(default_factory=list)
    deleted: int = 0

    def add(self, keys: Iterable[str]) -> Steps[None]:
        """Add keys. Send each request that is full."""
        self.waiting += keys
        while len(self.waiting) >= MAX_DELETE_KEYS:
            yield from self._send()

    def flush(self) -> Steps[None]:
        """Send the requests for all keys that wait."""
        while self.waiting:
            yield from self._send()

    def _send(self) -> Steps[None]:
        group, self.waiting = self.waiting[:MAX_DELETE_KEYS], self.waiting[MAX_DELETE_KEYS:]
        if not self.announced:
            yield from self.announce()
            self.announced = True
        yield from delete_all(group)
        self.deleted += len(group)


class Collector:
    """Garbage collector of one partition, whose maintainer role this process has claimed.

    ``grace_ms``: time between the removal of an object from the catalog and its deletion. ``only``: ids, as (high, low)
    halves, of trashed segments to delete without that time. None: all that are due.
    """

    def __init__(self, catalog: Catalog, grace_ms: int, only: frozenset[tuple[int, int]] | None = None) -> None:
        self._catalog = catalog
        self._grace_ms = grace_ms
        self._only = only

    def run(self) -> Steps[Collected]:
        """Run one collection cycle. The result is empty if nothing is due.

        Raises CorruptionError for an unreadable page, pin or snapshot, because its contents are unknown. Raises
        RemotePermissionError if the role may not delete or store audit lines. Raises FencedError if another maintainer
        has claimed the partition. After CommitUnknownError or RemoteUnavailableError a later cycle repeats the
        deletions.
        """
        before = self._catalog.root
        now_ms = yield from self._catalog.now_ms()
        if before is None or not (len(self._due(before, before.version, now_ms)) or self._lists(before)):
            return Collected()
        # mutant floor-before-delete
        root = yield from self._catalog.commit(GcFloorIntent(before.version))
        pins = yield from read_pins(root)  # after the floor is committed: a later pin sees it
        floor = before.version
        free = self._due(root, floor, pins.date_ms)
        # mutant pins-hold-garbage
        due = self._due(root, floor if pins.lowest is None else min(floor, pins.lowest), pins.date_ms)
        begun = {"begun": True, "floor": floor, "entries": len(due), "pins": pins.count, "held": len(free) - len(due)}
        work = _Work(lambda: write_line(root, begun, must=True))
        for entry in due:
            yield from self._segments(root, entry, work)
        yield from self._listed(root, floor if pins.lowest is None else min(floor, pins.lowest), work)
        yield from work.flush()
        for pages in (work.leaves, work.lists, pins.expired):
            yield from work.add(pages)
            yield from work.flush()
        yield from drop_stale(pins)
        if len(due):
            yield from self._catalog.commit(GcDoneIntent(tuple(due)))
        collected = Collected(floor, len(due), work.deleted, pins.count, len(free) - len(due))
        audit = yield from write_line(self._catalog.root or root, collected.fields)
        return replace(collected, audit=audit)

    def held(self) -> Steps[Collected | None]:
        """Return a result with the number of due entries if pins or snapshots protect every one of them.

        None: nothing is due, or a cycle may delete something. Needs no claim and changes nothing. While a snapshot
        protects entries for years, this avoids cycles, each of which would write a version and an audit line.
        """
        root, now_ms = self._catalog.root, (yield from self._catalog.now_ms())
        due = NO_TRASH if root is None else self._due(root, root.version, now_ms)
        if root is None or not len(due) or len(self._due(root, root.gc_floor, now_ms)) < len(due):
            return None
        pins = yield from read_pins(root)
        if pins.lowest is None or pins.expired or pins.stale or len(self._due(root, pins.lowest, pins.date_ms)):
            return None
        return Collected(root.gc_floor, pins=pins.count, held=len(due))

    def _due(self, root: Root, limit: int, now_ms: int) -> Trash:
        if self._only is None:
            return collectable(root, limit=limit, now_ms=now_ms, grace_ms=self._grace_ms)
        due = collectable(root, limit=limit, now_ms=MAX_LONG, grace_ms=0)
        return Trash.from_entries(self._chosen(due))

    def _chosen(self, entries: Iterable[TrashEntry]) -> list[TrashEntry]:
        only = self._only or frozenset()
        # mutant only-erased-objects-skip-grace
        return [entry for entry in entries if entry.what == TRASH_OBJECT and (entry.id_hi, entry.id_lo) in only]

    def _lists(self, root: Root) -> list[TrashEntry]:
        """Return the trash entries of pages that may list one of the ids ``only``; none if ``only`` is not set."""
        return [entry for entry in root.trash if entry.what == TRASH_LIST] if self._only else []

    def _listed(self, root: Root, limit: int, work: _Work) -> Steps[None]:
        """Delete the objects of ``only`` that a trash page lists and that were removed up to root version ``limit``.

        The page keeps its entry, because its other objects have their grace. A later cycle repeats these deletions.
        """
        for entry in self._lists(root):
            content = yield from trash_page(page_key_of(root, entry), [PageKind.TRASH])
            for one in self._chosen(content) if isinstance(content, Trash) else ():
                if one.removed_version <= limit:
                    yield from work.add(_object_keys(root, one))

    def _segments(self, root: Root, entry: TrashEntry, work: _Work) -> Steps[None]:
        """Delete the segments of a trash entry. Its pages wait in ``work`` until all segments are deleted."""
        if entry.what == TRASH_OBJECT:
            yield from work.add(_object_keys(root, entry))
            return
        key = page_key_of(root, entry)
        if entry.what == TRASH_PAGE:
            work.leaves.append(key)
            return
        kinds = [PageKind.TRASH] if entry.what == TRASH_LIST else [PageKind.LEAF, PageKind.INNER]
        content = yield from trash_page(key, kinds)
        if content is None:
            return
        if isinstance(content, Trash):
            for one in content:
                yield from self._segments(root, one, work)
            work.lists.append(key)
        elif isinstance(content, Pointers):
            for pointer in content:
                leaf = root.page_key(pointer)
                rows = yield from trash_page(leaf, [PageKind.LEAF])
                if isinstance(rows, Rows):
                    yield from work.add(_row_keys(root, rows))
                    work.leaves.append(leaf)
            work.lists.append(key)
        elif entry.what == TRASH_ROWS:
            ends = content.columns["next"]
            yield from work.add(_row_keys(root, content.where((ends > entry.base) & (ends <= entry.end))))
        else:
            # mutant page-goes-after-its-segments
            yield from work.add(_row_keys(root, content))
            work.leaves.append(key)


def _object_keys(root: Root, entry: TrashEntry) -> tuple[str, str]:
    name = trashed_segment(entry)
    return segment_key(root.topic_id, root.partition, name), index_key(root.topic_id, root.partition, name)


def _row_keys(root: Root, rows: Rows) -> list[str]:
    return [key(root.topic_id, root.partition, row) for row in rows if row.size for key in (segment_key, index_key)]


def page_key_of(root: Root, entry: TrashEntry) -> str:
    """Return the key of the page in a trash entry, which must not be of kind ``TRASH_OBJECT``."""
    role = Role.MAINTAINER if entry.kind & TRASH_MAINTAINER else Role.WRITER
    name = PageName(role, entry.epoch, join_uid(entry.id_hi, entry.id_lo))
    return page_key(root.topic_id, root.partition, name)


def trash_page(key: str, kinds: Sequence[PageKind]) -> Steps[Content | None]:
    """Return the content of a page in the trash, decoded as one of ``kinds``. None: it is deleted already.

    A page is deleted after all objects that it names. Raises CorruptionError for an unreadable page, with a hint.
    """
    got = yield Get(key, max_bytes=MAX_PAGE_BYTES)
    if not isinstance(got, Object):
        return None
    for kind in kinds[:-1]:
        try:
            return decode_page(got.data, key=key, kind=kind)
        except CorruptionError:
            continue
    try:
        return decode_page(got.data, key=key, kind=kinds[-1])
    except CorruptionError as damage:
        damage.hint = "put the page back from a version or a backup of the bucket"
        if kinds[-1] is PageKind.TRASH:  # nothing but the collector reads it
            damage.hint += (
                "; or delete the one object: `tiered maintain --only collect --orphans` then deletes what it "
                "listed, once the claims of that have ended"
            )
        raise
