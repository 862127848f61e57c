"""Copies of a partition's root that a bucket keeps, the segments that no copy names, and the rows of lost pages.

::

    page ── a version of it that its pointer proves ──────────────────────────> put back under its key
         └─ rows of a copy of the root, or of bundles, that add up to its sums ─> a new root that names them itself
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

from tiered.errors import CorruptionError
from tiered.format.bundle import HEAD_BYTES, BundleHead, SectionKind, decode_bundle_head
from tiered.format.keys import (
    Role,
    SegmentName,
    hist_prefix,
    index_key,
    is_pin_key,
    parse_hist_key,
    parse_page_key,
    parse_segment_key,
    partition_prefix,
    root_key,
    segment_key,
)
from tiered.format.page import MAX_PAGE_BYTES, PageKind, Pointer, Pointers, verified_page
from tiered.format.root import Root, decode_root
from tiered.format.rows import Rows
from tiered.model import Row, TopicPartition
from tiered.plan.invariants import check_page, check_root
from tiered.remote.catalog_view import CatalogView, Content, PageCache, read_pages, rows_inside
from tiered.remote.gc.audit import audited
from tiered.remote.pins import read_pin
from tiered.remote.root_view import RootView, root_get, two_names
from tiered.remote.segment_rewriter import hole
from tiered.remote.snapshots import survey_snapshots
from tiered.remote.upload import row_of
from tiered.repair.plan import Ground, RepairAction
from tiered.repair.versions import Stored, restored
from tiered.store.base import Get, Head, NewId, Object, Steps, Together
from tiered.store.steps import list_all, list_versions

VERSIONS_READ = 64
"""Newest versions of the root object that are read."""
HEADS_TOGETHER = 64
"""Bundles whose heads are requested in one group."""


CACHE_BYTES = 1 << 30
"""Limit of the pages of one catalog in memory while it is repaired."""
MAX_CHAINS = 10_000
"""Segments that are tried in one place of a lost page."""


class Copies(NamedTuple):
    """Copies of a root by version, newest first, each with the place where it was found.

    ``seen``: the newest version whose existence anything in the bucket proves. ``forked``: two different roots of
    the newest version or of the current one, otherwise None.
    """

    roots: dict[int, tuple[Root, str]]
    seen: int
    forked: tuple[Root, Root] | None


class PartitionObjects(NamedTuple):
    """Objects of a partition. ``sizes``: size by key of its segments. ``epochs``: each role's newest in any key."""

    sizes: dict[str, int]
    epochs: dict[Role, int]

    def holds(self, topic_id: UUID, partition: int, row: Row) -> bool:
        """Return True if both objects of a row were listed with the row's sizes, or if it has no objects."""
        log, index = segment_key(topic_id, partition, row), index_key(topic_id, partition, row)
        return not row.size or (self.sizes.get(log) == row.size and self.sizes.get(index) == row.idx_len)

    def has_any(self, topic_id: UUID, partition: int, row: Row) -> bool:
        """Return True if at least one object of a row was listed, of any size."""
        return any(key(topic_id, partition, row) in self.sizes for key in (segment_key, index_key))


def decode_matching_root(data: bytes, key: str, topic_id: UUID, tp: TopicPartition) -> Root | None:
    """Return the root in ``data`` if it is undamaged and of this partition, otherwise None.

    Raises ConfigError for a root of a newer release, CorruptionError for a root of another topic with the same id.
    """
    try:
        root = decode_root(data, key=key)
    except CorruptionError:
        return None
    if (root.topic_id, root.partition) != (topic_id, tp.partition) or check_root(root):
        return None
    if root.topic != tp.topic:
        raise two_names(root, tp.topic)
    return root


def rows_of(root: Root, at: int = 0) -> Steps[list[Row]]:
    """Return all rows of a root from offset ``at`` on. Raises CorruptionError if a page is missing or damaged."""
    rows: list[Row] = []
    pinned = CatalogView.from_root(root)
    while len(piece := (yield from pinned.piece(at))):
        rows += list(piece)
        at = piece.end_offset
    return rows


def find_copies(topic_id: UUID, tp: TopicPartition, now: Root | None) -> Steps[Copies]:
    """Find the copies of a partition's root in ``hist/``, in snapshots, and among the older versions of its object.

    ``now``: the current root, None if it is missing or damaged. Raises ConfigError for a copy of a newer release, and
    CorruptionError for one of another topic with the same id.
    """
    listed = {version: entry.key for entry in (yield from list_all(hist_prefix(topic_id, tp.partition)))
              if (version := parse_hist_key(entry.key)) is not None}  # fmt: skip
    kept: list[tuple[Root, str]] = [(now, now.key)] if now is not None else []
    for version, key in listed.items():
        got = yield root_get(key)
        root = decode_matching_root(got.data, key, topic_id, tp) if isinstance(got, Object) else None
        kept += [(root, key)] if root is not None and root.version == version else []
    key = root_key(topic_id, tp.partition)
    for each in (yield from list_versions(key))[:VERSIONS_READ]:
        got = yield Get(key, version=each.version)
        root = decode_matching_root(got.data, key, topic_id, tp) if isinstance(got, Object) else None
        kept += [(root, f"version {each.version} of {key}")] if root is not None else []
    taken, _ = yield from survey_snapshots(RootView(topic_id, tp.partition, tp.topic))
    kept += [(each.root, each.source) for each in taken if not each.begun]
    newest = max([root.version for root, _ in kept], default=0)
    # An older fork is settled: a newer root was chosen since.
    counts = {newest, now.version if now is not None else newest}
    found: dict[int, tuple[Root, str]] = {}
    forked: tuple[Root, Root] | None = None
    for root, where in kept:
        other = found.setdefault(root.version, (root, where))[0]
        if other.commit.id != root.commit.id and root.version in counts:
            forked = other, root
    noted = (yield from _noted(topic_id, tp, found[newest][0])) if kept else 0
    return Copies(dict(sorted(found.items(), reverse=True)), max([*listed, newest, noted]), forked)


def _noted(topic_id: UUID, tp: TopicPartition, newest: Root) -> Steps[int]:
    """Return the newest version that a pin or an audit line proves."""
    versions = [(yield from audited(newest))]
    for entry in (yield from list_all(partition_prefix(topic_id, tp.partition) + "pin/")):
        got = (yield Get(entry.key)) if is_pin_key(entry.key) else None
        try:
            versions += [read_pin(got.data, key=entry.key)] if isinstance(got, Object) else []
        except CorruptionError:
            continue  # a damaged pin proves nothing
    return max(versions)


def list_objects(topic_id: UUID, partition: int) -> Steps[PartitionObjects]:
    """List a partition's segments and pages. Return the segments' sizes, and each role's newest epoch in any key."""
    prefix = partition_prefix(topic_id, partition)
    segments = yield from list_all(prefix + "s/")
    epochs = dict.fromkeys(Role, 0)
    for entry in (*segments, *(yield from list_all(prefix + "p/"))):
        parsed = parse_segment_key(entry.key) or parse_page_key(entry.key)
        if parsed is not None:
            epochs[parsed.name.role] = max(epochs[parsed.name.role], parsed.name.epoch)
    return PartitionObjects({entry.key: entry.size for entry in segments}, epochs)


def uploads_after(copy: Root, sizes: Mapping[str, int], *, skip_damaged: bool) -> Steps[list[Row]]:
    """Return rows for the writer's uploads at or after the end of ``copy``, under the copy's claim or a newer one.

    ``sizes``: listed objects, size by key.

    Raises CorruptionError for a listed index that cannot be read: one wrong answer of the store must not end the log
    before its newest records. ``skip_damaged``: skip such an upload instead.
    """

    def late(name: SegmentName) -> bool:
        return name.role is Role.WRITER and name.base >= copy.next_offset and name.epoch >= copy.writer.epoch

    found = yield from _read_heads(copy, sizes, late)
    for name, row in found.items():
        index = index_key(copy.topic_id, copy.partition, name)
        if row is None and index in sizes and not skip_damaged:
            raise CorruptionError(
                f"{copy.where}: the index bundle {index} of an uploaded segment is damaged",
                hint="run the command again; if it stays damaged, --accept-loss ends the log before this upload",
            )
    return _whole(copy, sizes, found)


def described(root: Root, sizes: Mapping[str, int], wanted: Callable[[SegmentName], bool]) -> Steps[list[Row]]:
    """Return rows for the segments that ``wanted`` selects and both of whose objects exist, made from their bundles.

    ``sizes``: listed objects, size by key.
    """
    return _whole(root, sizes, (yield from _read_heads(root, sizes, wanted)))


def _whole(root: Root, sizes: Mapping[str, int], found: Mapping[SegmentName, Row | None]) -> list[Row]:
    logs = [(segment_key(root.topic_id, root.partition, name), row) for name, row in found.items()]
    return sorted([row for log, row in logs if row is not None and sizes.get(log) == row.size])


def _read_heads(
    root: Root, sizes: Mapping[str, int], wanted: Callable[[SegmentName], bool]
) -> Steps[dict[SegmentName, Row | None]]:
    """Return the row that the bundle of each wanted ``.log`` describes.

    None: the bundle is missing or damaged, or belongs to another segment. ``sizes``: listed objects, size by key.
    """
    parsed = [each for each in map(parse_segment_key, sizes) if each is not None and each.suffix == "log"]
    names = [each.name for each in parsed if wanted(each.name)]
    found: dict[SegmentName, Row | None] = {}
    for at in range(0, len(names), HEADS_TOGETHER):
        group = names[at : at + HEADS_TOGETHER]
        keys = [index_key(root.topic_id, root.partition, name) for name in group]
        answers: Sequence[object] = yield Together(tuple([Get(key, 0, HEAD_BYTES) for key in keys]))
        for name, key, got in zip(group, keys, answers, strict=True):
            found[name] = _row(root, name, key, got)
    return found


def _row(copy: Root, name: SegmentName, key: str, got: object) -> Row | None:
    """Return the row that the head of a bundle describes, None if it is not the bundle of this segment."""
    try:
        head: BundleHead | None = decode_bundle_head(got.data, key=key) if isinstance(got, Object) else None
    except CorruptionError:
        head = None
    if head is None:
        return None
    segment, aborts = head.descriptor, head.section(SectionKind.TXN_INDEX) is not None
    whose = segment.topic_id, segment.partition, segment.base_offset, head.claim_epoch
    if whose != (copy.topic_id, copy.partition, name.base, name.epoch):
        return None
    return row_of(segment, uid=name.uid, role=name.role, claim_epoch=name.epoch, idx_len=head.size_bytes, aborts=aborts)


# -- pages -------------------------------------------------------------------------------------------------------------


class Pages(NamedTuple):
    """Pages of a root. ``cache``: those that were read, or that ``actions`` will restore from an older version.

    ``lost``: pointers of all other pages. ``rows``: rows above the log's start, from the readable pages.
    """

    actions: list[RepairAction]
    cache: PageCache
    lost: list[Pointer]
    rows: list[Row]


def read_all_pages(ground: Ground, root: Root) -> Steps[Pages]:
    """Read each page with rows above the log's start.

    A page that is missing or damaged is looked for among the older versions of its object, which a store with
    versioning keeps. A page without a good version is in ``lost`` of the result.
    """
    found = Pages([], PageCache(CACHE_BYTES), [], [])
    waiting = [(PageKind.INNER, each) for each in root.inner] + [(PageKind.LEAF, each) for each in root.leaves]
    while waiting:
        kind, pointer = waiting.pop(0)
        if pointer.next <= root.start_offset:
            continue
        try:
            content: Content | None = (yield from read_pages(root, kind, (pointer,), found.cache))[0]
        except CorruptionError as damage:
            content = yield from _from_version(ground, root, kind, pointer, damage, found)
        if content is None:
            found.lost.append(pointer)
        elif isinstance(content, Pointers):
            waiting = [*[(PageKind.LEAF, child) for child in content], *waiting]
        else:
            found.rows.extend(row for row in content if row.next > root.start_offset)
    return found


def _from_version(  # noqa: PLR0917 - a page, and its context
    ground: Ground, root: Root, kind: PageKind, pointer: Pointer, damage: CorruptionError, found: Pages
) -> Steps[Content | None]:
    """Return a page from an older version of its object, and add the action that restores it to ``found``.

    Return None if no version is the page of ``pointer``. ``damage``: error of the newest version.
    """
    key = root.page_key(pointer)

    def fits(data: bytes) -> bool:
        try:
            return not list(check_page(root, verified_page(data, pointer, key=key, kind=kind)))
        except CorruptionError:
            return False

    head = yield Head(key)
    stored = Stored(root.topic_id, root.partition, key, 0, 0, head.etag if isinstance(head, Object) else "")
    version = yield from restored(ground.tp, stored, damage.message, fits, MAX_PAGE_BYTES)
    if version is None:
        return None
    action, data = version
    found.actions.append(action)
    content = verified_page(data, pointer, key=key, kind=kind)
    found.cache.put(pointer.identity, content)
    return content


def fill(root: Root, pages: Pages, copies: Copies) -> Steps[list[Row] | None]:
    """Return all rows of a root, including those of its lost pages. None if the rows of a page cannot be proven.

    Rows of a copy, or of bundles, are accepted only if their totals and their hash sum are those of the pointer.
    """
    listed = yield from list_objects(root.topic_id, root.partition)
    rows = [*pages.rows, *rows_inside(root)]
    for pointer in pages.lost:
        if not pointer.size:  # all of its rows were holes
            rows.append(hole(pointer.base, pointer.next, (yield NewId()), 1, pointer.leader_epoch))
            continue
        held = yield from _rows_from_copies(pointer, root, copies)
        if held is None:

            def inside(name: SegmentName, pointer: Pointer = pointer) -> bool:
                return pointer.base <= name.base < pointer.next

            held = _chain((yield from described(root, listed.sizes, inside)), pointer)
        if held is None:
            return None
        rows += [row for row in held if row.next > root.start_offset]
    return sorted(rows)


def _rows_from_copies(pointer: Pointer, root: Root, copies: Copies) -> Steps[list[Row] | None]:
    """Return the rows of a lost page from an older copy of the root. None if no copy has them all."""
    for copy, _ in copies.roots.values():
        if copy.version >= root.version or copy.next_offset < pointer.next:
            continue
        try:
            rows = [row for row in (yield from rows_of(copy, pointer.base)) if pointer.base <= row.base < pointer.next]
        except CorruptionError:
            continue
        if _adds_up(rows, pointer):
            return rows
    return None


def _chain(found: Sequence[Row], pointer: Pointer) -> list[Row] | None:
    """Return segments that cover the range of a page without a gap and match its totals, None if none do."""
    waiting: list[tuple[list[Row], int]] = [([], pointer.base)]
    for _ in range(MAX_CHAINS):
        if not waiting:
            return None
        rows, at = waiting.pop()
        if at == pointer.next and _adds_up(rows, pointer):
            return rows
        waiting += [([*rows, row], row.next) for row in found if row.base == at and row.next <= pointer.next]
    return None


def _adds_up(rows: Sequence[Row], pointer: Pointer) -> bool:
    return bool(rows) and Rows.from_rows(rows).tally == Pointers.from_pointers([pointer]).tally
