"""Erasure of records from one partition. It rewrites segments without the selected records, and proves the result.

::

    plan    read every live segment ──> segments with matching records, holders of old versions
    run     each of these ── batch by batch ──> a new segment over the same offsets ──> note, ``replace``
            repeated with the newest root, until a scan finds no match
    now     delete the old objects without gc.grace.ms; never if a pin or a snapshot needs them
    prove   LIST ──> read every object that was not read yet, live or not ──> ``receipt.json``

A segment is immutable and its id unique, so each object is searched once: by the plan, a later scan or the proof. A
segment with matching records is read again for its rewrite. After a crash, run the erasure again: segments that are
rewritten already hold no matching records. All commits use the maintainer role ``m``.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from tiered.erase.notes import MAX_NOTE_BYTES, decode_note, uid_of, uid_of_key
from tiered.errors import ConfigError, CorruptionError, NotFoundError, TieredError
from tiered.format.batch import BatchHeader, least_timestamp, read_header, verify_batch
from tiered.format.batch_scanner import BatchWalk, corrupt_at
from tiered.format.bundle import MAGIC as BUNDLE_MAGIC
from tiered.format.bundle import SectionKind
from tiered.format.codecs import MAX_DECOMPRESSED_BYTES
from tiered.format.framed_object import MAGIC as CONTAINER_MAGIC
from tiered.format.kernels import crc32c
from tiered.format.keys import (
    Role,
    erasure_note_key,
    erasure_note_prefix,
    erasure_receipt_key,
    join_uid,
    partition_prefix,
    segment_key,
)
from tiered.model import Row, TopicPartition
from tiered.plan.catalog_edit import ReplaceIntent
from tiered.plan.erasure import Selection
from tiered.plan.maintenance import READ_BYTES
from tiered.remote.catalog import Catalog
from tiered.remote.catalog_view import CatalogView
from tiered.remote.conditional_put import (
    COMMIT_DEADLINE_MS,
    Cell,
    NextBody,
    Planned,
    Tagged,
    deadline_after,
    read_cell,
    stored_bytes,
    update,
)
from tiered.remote.fetch import ByteCache, SegmentGone
from tiered.remote.gc.garbage import Collected, Collector
from tiered.remote.gc.orphans import drop_kept, drop_named
from tiered.remote.lookup import SegmentLookup
from tiered.remote.pins import live_pins
from tiered.remote.root_history import require_newest_root
from tiered.remote.segment_rewriter import RewriteContext, Rows, SegmentOutput, Spend, in_turn, spend_nothing
from tiered.remote.snapshots import list_snapshots
from tiered.remote.topics import TopicEntry
from tiered.store.base import INCAPABLE, Capabilities, Get, ListEntry, NewId, Now, Object, Steps
from tiered.store.capabilities import check_capabilities, probe
from tiered.store.steps import list_all
from tiered.store.unique_upload import put_unique

KEYLESS = (BUNDLE_MAGIC, CONTAINER_MAGIC, b"{")
"""First bytes of objects without records: bundles, roots, pages and registry entries."""
MAX_LOOKS = 10
"""Most whole looks at a partition in one run: one finds, one proves; more only if others rewrite it meanwhile."""


@dataclass(frozen=True, slots=True)
class Hit:
    """Segment of the catalog with records to erase. ``records``: their number."""

    row: Row
    records: int


@dataclass(frozen=True, slots=True)
class ErasePlan:
    """Plan of an erasure in one partition, made at ``version`` of its catalog.

    ``end_offset``, ``volume``: end of the catalog, and volume of its writer. ``segments``, ``read_bytes``: number and
    size of the segments read. ``hits``: segments to rewrite. ``looked``: number of matching records by segment uid.
    ``holders``: snapshots and pins that keep older versions readable.
    """

    tp: TopicPartition
    entry: TopicEntry
    version: int
    end_offset: int
    volume: str
    segments: int
    read_bytes: int
    hits: tuple[Hit, ...]
    holders: tuple[str, ...]
    looked: Mapping[str, int] = field(default_factory=dict)

    @property
    def records(self) -> int:
        """Return the number of records to erase."""
        return sum(hit.records for hit in self.hits)

    @property
    def rewritten_bytes(self) -> int:
        """Return the total size of the segments that will be rewritten."""
        return sum(hit.row.size for hit in self.hits)


@dataclass(frozen=True, slots=True)
class LeftoverObject:
    """Object that is not part of the log and has matching records. ``records``: their number, -1 if unreadable.

    ``why``: why it still exists, and how it can be deleted.
    """

    key: str
    records: int
    why: str


@dataclass(frozen=True, slots=True)
class Erased:
    """Result of an erasure in one partition. ``records``: records that this run erased.

    ``version``: that of the catalog after the run.

    ``segments``: notes of the segments that all runs of this erasure rewrote.

    ``left``: objects outside the catalog that have matching records or are unreadable. ``read_objects``: number of
    objects read. ``collected``: result of the immediate deletion of old objects, None without it.
    """

    tp: TopicPartition
    version: int
    records: int
    segments: tuple[dict[str, Any], ...] = ()
    left: tuple[LeftoverObject, ...] = ()
    read_objects: int = 0
    collected: Collected | None = None


def plan_erase_steps(
    tp: TopicPartition, entry: TopicEntry, selection: Selection, spend: Spend = spend_nothing
) -> Steps[ErasePlan | None]:
    """Read each segment that may hold matching records, and return the plan; None for a partition without a catalog.

    ``spend``: called with the number of bytes of each read. Raises CorruptionError for damage, ConfigError if other
    maintainers rewrite the partition again and again.
    """
    return (yield from Eraser(tp, entry, selection, "", spend).plan())


def erase_steps(
    plan: ErasePlan,
    selection: Selection,
    owner: str,
    job_id: str,
    *,
    now: bool = False,
    spend: Spend = spend_nothing,
    capabilities: Capabilities | None = None,
) -> Steps[Erased]:
    """Rewrite segments until a scan of all that the catalog names finds no match. Then search all other objects.

    The other objects are not changed. Those with matching records, and unreadable ones, are in ``left`` of the result.

    ``owner``: name of this program in claims and commits. ``job_id``: id of the erasure, under which its notes are
    stored. ``spend``: called with the number of bytes read.

    ``now``: delete the old objects at once. ``capabilities``: of the store; None probes it. Raises ConfigError if
    others rewrite the partition again and again, or if ``now`` is set and a pin or snapshot needs an old object. Raises
    CorruptionError for a damaged or missing object of the catalog. Raises NotFoundError if the catalog was deleted
    meanwhile. Raises FencedError if another maintainer claimed the role; run it again then.
    """
    return (yield from Eraser(plan.tp, plan.entry, selection, job_id, spend).run(plan, owner, capabilities, now=now))


@dataclass(slots=True)
class Counter:
    """Count of matching records while segments are read. ``looked``: their number by uid of a segment read to its end.

    ``records``: their number in the segment that is being read.
    """

    selection: Selection
    looked: dict[str, int] = field(default_factory=dict)
    segments: int = 0
    read_bytes: int = 0
    records: int = 0

    def add_batch(self, header: BatchHeader, batch: memoryview) -> Steps[bool]:
        yield from ()
        self.records += self.selection.count(header, batch)
        return True

    def ended(self, row: Row) -> None:
        self.segments, self.read_bytes = self.segments + 1, self.read_bytes + row.size
        self.looked[uid_of(row)] = self.records
        self.records = 0


@dataclass(slots=True)
class Eraser:
    """Erasure of one partition. ``replaced``: ids, as (high, low) halves, of replaced segments.

    ``records``: number erased by this object. ``job_id``: id under which notes are stored.
    """

    tp: TopicPartition
    entry: TopicEntry
    selection: Selection
    job_id: str
    spend: Spend = spend_nothing
    catalog: Catalog = field(init=False)
    lookup: SegmentLookup = field(init=False)
    context: RewriteContext = field(init=False)
    counter: Counter = field(init=False)
    replaced: set[tuple[int, int]] = field(default_factory=set)
    records: int = 0

    def __post_init__(self) -> None:
        topic_id, tp = self.entry.topic_id, self.tp
        self.catalog = Catalog(topic_id, tp.partition, tp.topic, known=self.entry.known)
        self.lookup = SegmentLookup(tp, topic_id, ByteCache())
        self.counter = Counter(self.selection)

    # -- looking -----------------------------------------------------------------------------------------------------

    def plan(self) -> Steps[ErasePlan | None]:
        self.start_rewriting(INCAPABLE)
        found = yield from self._find_matches()
        if found is None:
            return None
        pinned, hits = found
        holders = yield from self.holders()
        root, seen = pinned.root, self.counter
        return ErasePlan(
            self.tp,
            self.entry,
            root.version,
            root.next_offset,
            root.writer.volume,
            seen.segments,
            seen.read_bytes,
            hits,
            holders,
            dict(seen.looked),
        )

    def start_rewriting(self, capabilities: Capabilities) -> None:
        """Create the object that reads and writes segments. ``capabilities``: of the store, for writing."""
        self.context = RewriteContext(
            tp=self.tp,
            topic_id=self.entry.topic_id,
            lookup=self.lookup,
            capabilities=capabilities,
            claim_epoch=self.catalog.claim_epoch,
            index_interval_bytes=self.entry.settings.index_interval_bytes,
            lineage=root.lineage if (root := self.catalog.root) is not None else (),
            spend=self.spend,
        )

    def _find_matches(self) -> Steps[tuple[CatalogView, tuple[Hit, ...]] | None]:
        """Return the newest catalog, and its segments with matching records. Reads only unread segments.

        Return None without a catalog. Raises CorruptionError for damage, ConfigError if others rewrote the partition
        during each of ``MAX_LOOKS`` attempts.
        """
        seen = self.counter
        for _ in range(MAX_LOOKS):
            pinned = yield from self.catalog.pin()
            if pinned is None:
                return None
            asked = list[Row]()
            try:
                yield from self.context.read(self._unread(pinned, asked), seen.add_batch, seen.ended)
            except SegmentGone as gone:
                seen.records = 0  # of a segment that was not read to its end
                yield from self.raise_if_still_named(gone)
                continue
            return pinned, tuple(Hit(row, records) for row in asked if (records := seen.looked[uid_of(row)]))
        raise self.too_many_rewrites()

    def _unread(self, pinned: CatalogView, asked: list[Row]) -> Rows:
        """Return a function that returns one unread segment of the catalog per call, None after the last.

        Each call adds to ``asked`` the rows that it passes: unread ones, and those with known matches.
        """
        at, held, looked = pinned.start_offset, list[Row](), self.counter.looked

        def following() -> Steps[Row | None]:
            nonlocal at
            while not held and at < pinned.next_offset:
                piece = yield from pinned.piece(at)
                rows = [row for row in piece if self.selection.may_be_in(row)]
                asked.extend(row for row in rows if looked.get(uid_of(row), 1))
                held.extend(row for row in reversed(rows) if uid_of(row) not in looked)
                at = piece.end_offset
            return held.pop() if held else None

        return following

    def raise_if_still_named(self, gone: SegmentGone) -> Steps[None]:
        """Raise CorruptionError if the newest catalog still names the segment ``gone``. Otherwise it was replaced."""
        pinned = yield from self.catalog.pin()
        if pinned is not None and (yield from pinned.at(gone.row.base)) == gone.row:
            raise CorruptionError(
                f"{self.tp}: the object {gone.key} is gone, and the catalog still names it (offsets "
                f"{gone.row.base} to {gone.row.next})",
                path_or_key=gone.key,
                offset=gone.row.base,
                hint=f"run `tiered check {self.tp.topic}`; finished rewrites stay, nothing else was changed",
            )

    def too_many_rewrites(self) -> ConfigError:
        return ConfigError(
            f"{self.tp}: the erasure gave up, because other maintainers rewrote the partition during each "
            f"of {MAX_LOOKS} attempts",
            hint="stop other maintainers, then run the same command again: it resumes",
        )

    def holders(self) -> Steps[tuple[str, ...]]:
        """Return the names of the snapshots and pins that keep older versions readable."""
        snapshots = yield from list_snapshots(self.catalog)
        pins = yield from live_pins(self.entry.topic_id, self.tp.partition)
        return (*(each.source for each in snapshots), *(f"pin {key}" for key in pins))

    # -- rewriting ---------------------------------------------------------------------------------------------------

    def run(self, plan: ErasePlan, owner: str, capabilities: Capabilities | None, *, now: bool) -> Steps[Erased]:
        if now:
            yield from self.need_free()
        hits: Sequence[Hit] = plan.hits
        self.counter.looked |= plan.looked
        capabilities = capabilities or (yield from probe())
        check_capabilities(capabilities, "the store")
        if hits:
            yield from self.claim(owner)
        self.start_rewriting(capabilities)
        for _ in range(MAX_LOOKS):
            for hit in hits:
                try:
                    yield from self._rewrite(hit.row)
                except CorruptionError:  # a new claim may have swept what this one stored: FencedError goes first
                    yield from self.catalog.confirm()
                    raise
            found = yield from self._find_matches()
            if found is None:
                raise NotFoundError(
                    f"{self.tp}: its catalog was deleted during the erasure",
                    hint="if the topic was deleted, its records go with it: no erasure is needed",
                )
            hits = found[1]
            if hits and not self.catalog.claim_epoch:
                yield from self.claim(owner)
                self.start_rewriting(capabilities)
            if not hits:
                break
        else:
            raise self.too_many_rewrites()
        notes = yield from self.notes()
        self.replaced |= {(note["id_hi"], note["id_lo"]) for note in notes}
        collected = (yield from self.collect(owner)) if now else None
        left = yield from self._prove()
        pinned = yield from self.catalog.pin()
        version = pinned.version if pinned is not None else 0
        read = len(self.counter.looked)
        return Erased(self.tp, version, self.records, tuple(notes), tuple(left), read, collected)

    def claim(self, owner: str) -> Steps[None]:
        """Claim the role ``m`` for ``owner``. Raises CorruptionError if the root is an older one that was put back."""
        yield from require_newest_root(self.catalog, must_list=False)
        yield from self.catalog.claim(Role.MAINTAINER, owner)

    def _rewrite(self, row: Row) -> Steps[None]:
        """Replace one segment in the catalog by a copy without the matching records, if the catalog still has it."""
        made = yield from self.rewritten(row)
        if made is None:
            return
        new, gone = made
        try:
            yield from self.catalog.commit(ReplaceIntent((row,), (new,)), reason=f"erase, job {self.job_id}")
        except NotFoundError as changed:
            if changed.__class__ is not NotFoundError:
                raise
            return  # others have trimmed or rewritten it meanwhile: the next look finds what is left
        self.records += gone

    def rewritten(self, row: Row) -> Steps[tuple[Row, int] | None]:
        """Store a new segment without the matching records, and a note.

        Return its row and the number of records erased. Return None if the catalog no longer has the segment ``row``.
        Raises CorruptionError if the segment is damaged, or is gone but still in the catalog.
        """
        pinned = yield from self.catalog.pin()
        if pinned is None or (yield from pinned.at(row.base)) != row:
            return None
        uid: str = yield NewId()
        output, gone = SegmentOutput(self.context, [row], uid), 0

        def add_batch(header: BatchHeader, batch: memoryview) -> Steps[bool]:
            nonlocal gone
            rest, count = self.selection.rest(header, batch)
            gone += count
            after = header if rest is batch else read_header(rest)
            output.stats.count(after.records_count, least_timestamp(after, rest), after.max_timestamp)
            yield from output.append(rest, after)
            return True

        try:
            yield from self.context.read(in_turn([row]), add_batch)
            txns = yield from self.lookup.section(row, SectionKind.TXN_INDEX)
            producers, epochs = yield from self.context.state_at_end([row])
            new = yield from output.finish(txns, producers, epochs)
        except SegmentGone as superseded:
            yield from output.abandon()
            yield from self.raise_if_still_named(superseded)
            return None
        except TieredError:
            yield from output.abandon()
            raise
        yield from self._note(row, new, gone)  # before the commit, so that no replaced object lacks a note
        return new, gone

    def _note(self, row: Row, new: Row, gone: int) -> Steps[None]:
        """Store the note of a rewritten segment before its commit, so that a later run knows the replaced segment.

        ``row``, ``new``: the segment before and after. ``gone``: number of records erased from it.
        """
        topic_id, partition = self.entry.topic_id, self.tp.partition
        note = {
            "before": segment_key(topic_id, partition, row),
            "after": segment_key(topic_id, partition, new),
            "start_offset": row.base,
            "end_offset": row.next,
            "records": gone,
            "id_hi": row.id_hi,
            "id_lo": row.id_lo,
            "at_ms": (yield Now()).now_ms,
        }
        body = json.dumps(note).encode() + b"\n"
        key = erasure_note_key(topic_id, partition, self.job_id, row.base, join_uid(new.id_hi, new.id_lo))
        yield from put_unique(key, body, crc32c(body))

    def notes(self) -> Steps[list[dict[str, Any]]]:
        """Return the notes of all runs of this erasure, one per replaced object: the later one if there are two."""
        listed = yield from list_all(erasure_note_prefix(self.entry.topic_id, self.tp.partition, self.job_id))
        found: dict[str, dict[str, Any]] = {}
        for entry in listed:
            got = yield Get(entry.key, max_bytes=MAX_NOTE_BYTES)
            if isinstance(got, Object):
                note = decode_note(entry.key, got.data)
                other = found.get(note["before"])
                found[note["before"]] = note if other is None or other["at_ms"] <= note["at_ms"] else other
        return [found[key] for key in sorted(found)]

    # -- deleting at once, proving -----------------------------------------------------------------------------------

    def need_free(self) -> Steps[None]:
        holders = yield from self.holders()
        if holders:
            raise ConfigError(
                f"{self.tp}: the replaced data cannot be deleted now: it is held by {', '.join(holders[:5])}",
                hint="delete the snapshot with `tiered snapshot delete`, wait for the reader, or leave --now out",
            )

    def collect(self, owner: str) -> Steps[Collected]:
        if not self.catalog.claim_epoch:
            yield from self.claim(owner)
        return (yield from Collector(self.catalog, 0, only=frozenset(self.replaced)).run())

    def _prove(self) -> Steps[list[LeftoverObject]]:
        """Return the objects of the partition outside the newest catalog that have matching records.

        Objects that were not searched before are read. One that cannot be read is returned, too.
        """
        others, left, looked = (yield from self.others()), [], self.counter.looked
        for key, (_, why) in others.items():
            uid = uid_of_key(key)
            if uid not in looked:
                looked[uid] = yield from self.count(key)
            if count := looked[uid]:
                # mutant erasure-reports-unnamed
                left.append(LeftoverObject(key, count, why))
        return left

    def others(self) -> Steps[dict[str, tuple[int, str]]]:
        """Return the objects of the partition that the newest catalog does not name, as (size, why it exists) by key.

        They are replaced or unnamed segments, and copies that repairs keep. Return nothing without a catalog.
        """
        prefix = partition_prefix(self.entry.topic_id, self.tp.partition)
        listed = yield from list_all(prefix + "s/")
        aside = yield from list_all(prefix + "aside/")
        pinned = yield from self.catalog.pin()
        if pinned is None:
            return {}
        names: dict[str, ListEntry] = {}
        for entry in listed:
            if entry.key.endswith(".log") and (uid := uid_of_key(entry.key)) != entry.key:
                names[uid] = entry
        yield from self._drop_live(pinned, names)
        unnamed = dict(names)
        yield from drop_named(pinned, unnamed)
        held: dict[str, list[str]] = {}
        for taken in (yield from list_snapshots(self.catalog)):
            others = dict(names)
            yield from drop_kept(self.catalog, taken, others)
            for uid in names.keys() - others.keys():
                held.setdefault(uid, []).append(taken.source)
        kept = "kept by `tiered repair`: delete it when it is not needed; otherwise it stays as long as the topic"
        found = {entry.key: (entry.size, kept) for entry in aside}
        for uid, entry in names.items():
            grace = "it waits for gc.grace.ms: `tiered maintain --only collect` deletes it then"
            why = (
                grace
                if uid not in unnamed
                else "no root names it: `tiered maintain --only collect --orphans` deletes it"
            )
            found[entry.key] = entry.size, f"held by {', '.join(held[uid])}" if uid in held else why
        return found

    def _drop_live(self, pinned: CatalogView, names: dict[str, ListEntry]) -> Steps[None]:
        at = pinned.start_offset
        while len(rows := (yield from pinned.piece(at))):
            for row in rows:
                names.pop(uid_of(row), None)
            at = rows.end_offset

    def count(self, key: str) -> Steps[int]:
        """Return the number of matching records of an object outside the catalog. 0: it is gone. -1: it is unreadable.

        Only the ``.log`` is read, because its bundle may be gone. Bundles, roots and registry entries, which a repair
        may keep, have no records and count 0.
        """
        walk = BatchWalk(corrupt_at, most_bytes=MAX_DECOMPRESSED_BYTES)
        held, at, count = b"", 0, 0
        while True:
            got = yield Get(key, at, at + READ_BYTES)
            if not isinstance(got, Object):
                return 0
            self.spend(len(got.data))
            if not at and bytes(got.data[:4]).startswith(KEYLESS):
                return 0
            data, begin = held + got.data, at - len(held)
            try:
                count += sum(self._records(batch) for _, batch in walk.whole(memoryview(data)))
            except CorruptionError:
                return -1
            held, at = data[walk.position - begin :], at + len(got.data)
            if at >= got.size or not got.data:
                return -1 if held else count

    def _records(self, batch: memoryview) -> int:
        return self.selection.count(verify_batch(batch), batch)


def receipt_steps(
    job_id: str, topic_id: UUID, selection: Selection, erased: Erased, facts: dict[str, Any]
) -> Steps[str]:
    """Write the receipt of one partition. It has only hashes of record keys. A receipt of an earlier run is replaced.

    Args:
        facts: further fields of the receipt: topic, owner, data that stays, records on disks, commands.

    Returns:
        The key of the receipt.

    Raises:
        CommitUnknownError, RemoteUnavailableError: the store did not answer in time.
    """
    key = erasure_receipt_key(topic_id, erased.tp.partition, job_id)
    receipt = {
        "job": job_id,
        "topic_id": topic_id.hex,
        "asked": selection.hashed(topic_id),
        "at_ms": (yield Now()).now_ms,
        **facts,
        "partitions": [as_fields(erased)],
        "proven": not erased.left,
    }
    body = json.dumps(receipt, indent=1).encode() + b"\n"

    def receipt_body(seen: Tagged[bytes | None]) -> Planned[bytes | None]:
        yield from ()
        return NextBody(body, body)

    cell = Cell(key, f"the receipt of {job_id}", read_cell(key, stored_bytes), operator.eq)
    yield from update(cell, receipt_body, (yield from deadline_after(COMMIT_DEADLINE_MS)))
    return key


def as_fields(one: Erased) -> dict[str, Any]:
    """Return the result of a partition as JSON values, for the receipt and for ``--json``."""
    fields: dict[str, Any] = {
        "partition": one.tp.partition,
        "version": one.version,
        "records": sum(note["records"] for note in one.segments),
        "records_now": one.records,
        "segments": [
            {name: note[name] for name in ("before", "after", "start_offset", "end_offset", "records", "at_ms")}
            for note in one.segments
        ],
        "read_objects": one.read_objects,
        "left": [{"key": each.key, "records": each.records, "why": each.why} for each in one.left],
    }
    if one.collected is not None:
        fields["deleted_objects"] = one.collected.objects
    return fields
