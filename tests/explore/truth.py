"""What must be true of the store after every step, and of what processes were told."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from tests.explore.bucket import Objects, Stored
from tests.explore.machine import TOPIC_ID
from tests.explore.process import REMEMBERED, Report
from tests.sim.tiers.truth import values_of
from tiered.errors import CorruptionError
from tiered.format.keys import (
    FLAG_HOLE,
    Role,
    index_key,
    join_uid,
    parse_page_key,
    parse_segment_key,
    partition_prefix,
    root_key,
    segment_key,
    snap_key,
)
from tiered.format.page import PageKind, Pointer, Pointers, decode_page, verified_page
from tiered.format.root import DROPPED_BYTES, Root
from tiered.format.rows import Rows, Trash
from tiered.model import TRASH_LIST, TRASH_OBJECT, TRASH_PAGE, TRASH_ROWS, Row, TrashEntry
from tiered.plan.invariants import check_root
from tiered.remote.gc.garbage import _object_keys, page_key_of

ROOT_KEY = root_key(TOPIC_ID, 0)
PREFIX = partition_prefix(TOPIC_ID, 0)


class Violated(AssertionError):
    """An invariant of the protocol does not hold."""


@dataclass(frozen=True)
class Memory:
    """What is remembered of a run beside the state of its store. ``ever``: uids that a root has named.

    ``failed``: those whose commit was told to have failed. ``kept``: snapshots that were told to be made.
    ``again``: keys that a delayed PUT has made anew after they were deleted.
    """

    ever: frozenset[str] = frozenset()
    failed: frozenset[str] = frozenset()
    kept: frozenset[str] = frozenset()
    again: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Catalog:
    """A root with its pages: ``named`` are the keys that it must find, ``trash`` those on their way out, by version."""

    root: Root
    rows: tuple[Row, ...]
    named: frozenset[str]
    uids: frozenset[str] = field(repr=False)
    trash: dict[str, int] = field(repr=False, hash=False, compare=False)

    @property
    def likeness(self) -> Any:
        """All of it but random ids and names."""
        root = self.root
        rows = tuple([(row.base, row.next, row.flags, row.claim_epoch) for row in self.rows])
        pages = tuple([(kind, each.base, each.next) for kind in ("inner", "leaves") for each in getattr(root, kind)])
        trash = tuple([(each.base, each.kind, each.epoch, each.removed_version) for each in root.trash])
        roles = tuple([(name, each.epoch, each.volume) for name, each in root.roles.items()])
        return root.version, root.state, root.start_offset, root.next_offset, root.gc_floor, roles, rows, pages, trash


def catalog_of(objects: Objects) -> Catalog:
    """The catalog that stands in the store. Raises Violated if it names a page that is not there."""
    stored = objects.held.get(ROOT_KEY)
    if stored is None:
        raise Violated("there is no root")
    return _catalogs.get(stored.etag) or _catalogs.setdefault(stored.etag, read_catalog(objects, stored))


_catalogs: dict[str, Catalog] = {}


def read_catalog(objects: Objects, stored: Stored) -> Catalog:
    root = REMEMBERED.decode_root(stored.data, key=ROOT_KEY)
    keys: set[str] = set()
    rows: list[Row] = []
    for pointer in _leaves(objects, root, keys):
        rows += _page(objects, root, pointer, PageKind.LEAF, keys)  # type: ignore[arg-type]
    rows = [row for row in [*rows, *root.rows] if row.next > root.start_offset]
    for row in rows:
        keys |= keys_of(row)
    trash: dict[str, int] = {}
    for entry in root.trash:
        for key in _expanded(objects, root, entry):
            trash.setdefault(key, entry.removed_version)
    return Catalog(root, tuple(rows), frozenset(keys), frozenset(_uid(row) for row in rows), trash)


def keys_of(row: Row) -> set[str]:
    return {segment_key(TOPIC_ID, 0, row), index_key(TOPIC_ID, 0, row)} if row.size else set()


def _uid(row: Row) -> str:
    return join_uid(row.id_hi, row.id_lo)


def _leaves(objects: Objects, root: Root, keys: set[str]) -> Iterable[Pointer]:
    for top in root.inner:
        children = _page(objects, root, top, PageKind.INNER, keys)
        assert isinstance(children, Pointers)
        yield from (each for each in children if each.next > root.start_offset)
    yield from root.leaves


def _page(objects: Objects, root: Root, pointer: Pointer, kind: PageKind, keys: set[str]) -> Rows | Pointers:
    key = root.page_key(pointer)
    keys.add(key)
    if key not in objects.held:
        raise Violated(f"version {root.version} names the page {key}, which is not there")
    return verified_page(objects.held[key].data, pointer, key=key, kind=kind)


def _expanded(objects: Objects, root: Root, entry: TrashEntry) -> Iterable[str]:
    """The keys that an entry of the trash stands for, as far as its pages are there."""
    if entry.what == TRASH_OBJECT:
        yield from _object_keys(root, entry)
        return
    key = page_key_of(root, entry)
    if entry.what != TRASH_ROWS:
        yield key
    if entry.what == TRASH_PAGE or key not in objects.held:
        return
    data = objects.held[key].data
    if entry.what == TRASH_LIST:
        content = decode_page(data, key=key, kind=PageKind.TRASH)
        assert isinstance(content, Trash)
        for one in content:
            yield from _expanded(objects, root, one)
        return
    for kind in (PageKind.LEAF, PageKind.INNER):
        try:
            content = decode_page(data, key=key, kind=kind)
        except CorruptionError:  # the other kind
            continue
        if isinstance(content, Pointers):
            for pointer in content:
                leaf = root.page_key(pointer)
                yield leaf
                if leaf in objects.held:
                    rows = decode_page(objects.held[leaf].data, key=leaf, kind=PageKind.LEAF)
                    yield from (each for row in rows for each in keys_of(row))  # type: ignore[arg-type]
            return
        for row in content:
            if entry.what != TRASH_ROWS or entry.base < row.next <= entry.end:  # type: ignore[union-attr]
                yield from keys_of(row)  # type: ignore[arg-type]


@lru_cache(maxsize=100_000)
def _values(data: bytes) -> tuple[tuple[int, bytes], ...]:
    return tuple(sorted(values_of(data).items()))


def content(objects: Objects, catalog: Catalog) -> dict[int, bytes]:
    """What the log holds, by offset. Raises Violated for what is not there or does not fit."""
    found: dict[int, bytes] = {}
    for row in catalog.rows:
        key = segment_key(TOPIC_ID, 0, row)
        if row.flags & FLAG_HOLE:
            continue
        if key not in objects.held:
            raise Violated(f"version {catalog.root.version} names {key}, which is not there")
        held = dict(_values(objects.held[key].data))
        if sorted(held) != list(range(row.base, row.next)):
            raise Violated(f"{key} holds offsets {sorted(held)}, its row says {row.base} to {row.next}")
        found |= held
    return found


# -- one step of the store ---------------------------------------------------------------------------------------------


def changed(before: Objects, after: Objects, memory: Memory, *, delayed: bool) -> Memory:
    """Holds a change of the store against the rules. Raises Violated."""
    was, now = catalog_of(before), catalog_of(after)
    if was.root is not now.root:
        memory = _committed(before, after, was, now, memory)
    missing = now.named - after.held.keys()
    if missing:
        raise Violated(f"version {now.root.version} names {sorted(missing)[0]}, which is not there")
    _deleted(before.held.keys() - after.held.keys(), now, memory)
    for name in memory.kept:
        _need_kept(after, name)
    new = after.held.keys() - before.held.keys()
    again = {key for key in new if delayed and (key in now.trash or _uid_of(key) in memory.ever - now.uids)}
    return replace(memory, again=memory.again | again) if again else memory


def _committed(before: Objects, after: Objects, was: Catalog, now: Catalog, memory: Memory) -> Memory:
    old, new = was.root, now.root
    if new.version != old.version + 1 or new.prev_commit_id != old.commit.id:
        raise Violated(f"version {new.version} of {new.prev_commit_id} follows version {old.version} {old.commit.id}")
    if violations := check_root(new, old):
        raise Violated("; ".join(map(str, violations)))
    ops, role = new.commit.op.split(","), new.commit.role
    expected = old.roles[role].epoch + ("claim" in ops)
    if new.commit.epoch != expected:
        raise Violated(f"epoch {new.commit.epoch} of role {role} commits {ops}, epoch {expected} may")
    if new.start_offset < old.start_offset or new.next_offset < old.next_offset or new.gc_floor < old.gc_floor:
        raise Violated(f"{old.start_offset}..{old.next_offset} becomes {new.start_offset}..{new.next_offset}")
    if new.start_offset > old.start_offset and "trim" not in ops:
        raise Violated(f"{ops} moves the start from {old.start_offset} to {new.start_offset}")
    left = was.uids - now.uids
    if left and not {"trim", "replace"} & set(ops):
        raise Violated(f"{ops} takes {sorted(left)} out")
    _same_content(before, after, was, now)
    for row in was.rows:
        if _uid(row) in left:
            for key in keys_of(row) - now.trash.keys():
                raise Violated(f"{key} left the catalog and is not in the trash")
    for key in was.trash.keys() - now.trash.keys():
        if key in after.held and key not in memory.again:
            raise Violated(f"{ops} strikes {key} out of the trash, and it is still there")
    if bad := memory.failed & now.uids:
        raise Violated(f"{sorted(bad)[0]} was told to have failed, and version {new.version} names it")
    return memory if now.uids <= memory.ever else replace(memory, ever=memory.ever | now.uids)


def _same_content(before: Objects, after: Objects, was: Catalog, now: Catalog) -> None:
    if was.rows == now.rows:
        return
    old, new = content(before, was), content(after, now)
    for offset in range(now.root.start_offset, was.root.next_offset):
        if old.get(offset) != new.get(offset):
            raise Violated(f"offset {offset} held {old.get(offset)!r} and holds {new.get(offset)!r}")


def _deleted(gone: Iterable[str], now: Catalog, memory: Memory) -> None:
    """What a root has named goes only once the floor has passed the version in which it left."""
    for key in gone:
        if parse_segment_key(key) is None and parse_page_key(key) is None:
            continue
        removed = now.trash.get(key)
        if removed is not None and removed > now.root.gc_floor:
            raise Violated(f"{key} left in version {removed} and was deleted, the floor is {now.root.gc_floor}")


def _uid_of(key: str) -> str:
    parsed = parse_segment_key(key)
    return parsed.name.uid if parsed is not None else ""


def _need_kept(objects: Objects, name: str) -> None:
    stored = objects.held.get(snap_key(TOPIC_ID, 0, name))
    if stored is None or len(stored.data) == DROPPED_BYTES:
        raise Violated(f"snapshot {name} was made and is gone")
    kept = _catalogs.get(stored.etag) or read_catalog(objects, stored)
    if missing := kept.named - objects.held.keys():
        raise Violated(f"snapshot {name} of version {kept.root.version} names {sorted(missing)[0]}, which was deleted")


# -- what processes were told ------------------------------------------------------------------------------------------


def told(report: Report, objects: Objects, memory: Memory) -> Memory:
    """Holds a report against the store as it is when it is made. Raises Violated."""
    catalog = catalog_of(objects)
    root = catalog.root
    match report.kind, report.what:
        case "claimed", (role, epoch):
            if root.roles[Role(role).value].epoch < epoch:
                raise Violated(f"claim {epoch} of role {role} was granted, the root knows {root.roles[role].epoch}")
        case "acked", (held,):
            found = content(objects, catalog)
            for offset, value in held:
                if offset >= root.start_offset and found.get(offset) != value:
                    raise Violated(f"{value!r} was acknowledged at {offset}, {found.get(offset)!r} is there")
                if offset >= root.next_offset:
                    raise Violated(f"{offset} was acknowledged, the log ends at {root.next_offset}")
        case "failed", (uids,):
            if named := frozenset(uids) & memory.ever:
                raise Violated(f"{sorted(named)[0]} was told to have failed, and a root named it")
            return replace(memory, failed=memory.failed | frozenset(uids))
        case "replaced", (uids,):
            if not frozenset(uids) & memory.ever:
                raise Violated(f"a replacement by {uids} was told to have succeeded, and no root named it")
        case "trimmed", (offset,):
            if root.start_offset < offset:
                raise Violated(f"a trim to {offset} was told to have succeeded, the log begins at {root.start_offset}")
        case "kept", (name,):
            _need_kept(objects, name)
            return replace(memory, kept=memory.kept | {name})
        case "dropped", (name,):
            return replace(memory, kept=memory.kept - {name})
        case "read", (start, end, found):
            if [offset for offset, _ in found] != list(range(start, end)):
                raise Violated(f"a reader of {start}..{end} got offsets {[offset for offset, _ in found]}")
            held = content(objects, catalog)
            for offset, value in found:
                if held.get(offset, value) != value:
                    raise Violated(f"a reader got {value!r} at {offset}, {held[offset]!r} was committed")
        case "orphaned", (key,):
            name = getattr(parse_segment_key(key) or parse_page_key(key), "name", None)
            if name is None or root.roles[name.role.value].epoch <= name.epoch:
                raise Violated(f"{key} was uploaded, is gone, and no newer claim has ended its epoch")
        case "broken", (why,):
            raise Violated(f"an operation that nothing but others' requests disturbed ended with {why}")
    return memory
