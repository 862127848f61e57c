"""Erasure: records of some keys leave every object of a partition, and a look at all of them says so.

::

    plan    every live segment is read ──> those that hold what is meant, who holds old versions of them
    run     each of these ── batch by batch ──> a new segment over the same offsets ──> note, ``replace``
            again from the newest root, until a whole look finds nothing
    now     the old objects are collected without their grace, alone; never under a pin or a snapshot
    prove   LIST ──> every object that nobody has read yet is read, too, named or not ──> ``receipt.json``

A segment never changes, and its id is its own: each object is looked at once, by the plan, a later look or the proof.
One that holds what is meant is read again to be written anew. A run that was cut short is begun again: what was
rewritten holds nothing any more. All of it is in the role ``m``.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast
from uuid import UUID

from tiered.errors import ConfigError, CorruptionError, NotFoundError, TieredError
from tiered.format.batch import BatchHeader, least_timestamp, read_header, verify_batch
from tiered.format.bundle import MAGIC as BUNDLE_MAGIC
from tiered.format.bundle import SectionKind
from tiered.format.container import MAGIC as CONTAINER_MAGIC
from tiered.format.crc import crc32c
from tiered.format.decompression import MAX_DECOMPRESSED_BYTES
from tiered.format.keys import (
    Role,
    erasure_note_key,
    erasure_note_prefix,
    erasure_receipt_key,
    join_uid,
    parse_segment_key,
    parse_staged_key,
    partition_prefix,
    segment_key,
)
from tiered.format.walk import BatchWalk, corrupt_at
from tiered.model import Row, TopicPartition
from tiered.plan.erasure import Selection
from tiered.plan.maintenance import READ_BYTES
from tiered.plan.rewrite import ReplaceIntent
from tiered.remote.cache import ByteCache
from tiered.remote.catalog import Catalog
from tiered.remote.collect import Collected, Collector
from tiered.remote.conditional_put import (
    COMMIT_DEADLINE_MS,
    Cell,
    NextBody,
    Planned,
    Tagged,
    deadline_after,
    look_at,
    stored_bytes,
    update,
)
from tiered.remote.fetch import SegmentGone
from tiered.remote.lookup import SegmentLookup
from tiered.remote.past import list_snapshots
from tiered.remote.pins import live_pins
from tiered.remote.rewrite import Rows, SegmentOutput, Spend, Workshop, in_turn, spend_nothing
from tiered.remote.snapshot import Snapshot
from tiered.remote.stale_root_check import need_newest
from tiered.remote.sweep import drop_kept, drop_named
from tiered.remote.topics import TopicEntry
from tiered.store.base import (
    INCAPABLE,
    Capabilities,
    Get,
    ListEntry,
    NewId,
    Now,
    Object,
    Steps,
    list_all,
)
from tiered.store.probe import check_capabilities, probe
from tiered.store.puts import put_unique

KEYLESS = (BUNDLE_MAGIC, CONTAINER_MAGIC, b"{")
"""How objects begin that hold no records: bundles, roots and pages, entries of the registry."""
MAX_NOTE_BYTES = 64 * 1024
"""Largest note of a segment that was written anew."""

_NOTE_FIELDS = {"before": str, "after": str, "start_offset": int, "end_offset": int, "records": int} | {
    "id_hi": int,
    "id_lo": int,
    "at_ms": int,
}

MAX_LOOKS = 10
"""Whole looks at a partition in one run: one finds, one proves; more only where others rewrite it meanwhile."""


@dataclass(frozen=True, slots=True)
class Hit:
    """A live segment that holds ``records`` of what is meant."""

    row: Row
    records: int


@dataclass(frozen=True, slots=True)
class ErasePlan:
    """One partition at ``version`` of its catalog. ``read_bytes``: of the segments that were read, ``segments`` of
    them; ``looked``: what each of these holds, by its uid; ``holders``: snapshots and pins, by which older versions
    stay readable."""

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
        """How many go."""
        return sum(hit.records for hit in self.hits)

    @property
    def rewritten_bytes(self) -> int:
        """Bytes of the segments that are written anew."""
        return sum(hit.row.size for hit in self.hits)


@dataclass(frozen=True, slots=True)
class Left:
    """An object that holds ``records`` of what is meant and is no part of the log any more; -1: it cannot be told."""

    key: str
    records: int
    why: str


@dataclass(frozen=True, slots=True)
class Erased:
    """What became of one partition. ``segments``: each that was written anew, by all runs of this erasure;
    ``read_objects``: those that were looked at, alive or not."""

    tp: TopicPartition
    version: int
    records: int
    segments: tuple[dict[str, Any], ...] = ()
    left: tuple[Left, ...] = ()
    read_objects: int = 0
    collected: Collected | None = None


def plan_erase_steps(
    tp: TopicPartition, entry: TopicEntry, selection: Selection, spend: Spend = spend_nothing
) -> Steps[ErasePlan | None]:
    """Reads every live segment; changes nothing. None for a partition without a catalog. Raises CorruptionError."""
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
    """Rewrites until a look at all live segments finds nothing, then reads whatever else is in the bucket.

    ``now``: the old objects are deleted at once. ``capabilities``: of the store; None: it is probed.

    Raises ConfigError if a pin or a snapshot holds them then, or others rewrite the partition all the while,
    CorruptionError, FencedError (another maintainer): run it again.
    """
    return (yield from Eraser(plan.tp, plan.entry, selection, job_id, spend).run(plan, owner, capabilities, now=now))


def uid_of(row: Row) -> str:
    """The id of a segment, as it stands in its keys."""
    return join_uid(row.id_hi, row.id_lo)


def uid_of_key(key: str) -> str:
    """The same of an object below ``s/``; the key itself of what is no segment's."""
    parsed, staged = parse_segment_key(key), parse_staged_key(key)
    return parsed.name.uid if parsed is not None else staged.uid if staged is not None else key


def decode_note(key: str, data: bytes | memoryview) -> dict[str, Any]:
    """Return a note of a segment that an erasure wrote anew. Raises CorruptionError if the note is damaged."""
    try:
        note = json.loads(bytes(data))
        if any(not isinstance(note[name], kind) for name, kind in _NOTE_FIELDS.items()):
            raise ValueError("not what an erasure writes")
    except (ValueError, KeyError, TypeError) as damage:
        raise CorruptionError(
            f"{key}, what an erasure notes of a segment, cannot be read: {damage}",
            path_or_key=key,
            hint="delete it, and erase again: the proof reads what no note tells of",
        ) from damage
    return cast("dict[str, Any]", note)


@dataclass(slots=True)
class Counter:
    """What looks at segments find in them, one after the other. ``looked``: the records of each, by its uid."""

    selection: Selection
    looked: dict[str, int] = field(default_factory=dict)
    segments: int = 0
    read_bytes: int = 0
    records: int = 0

    def take(self, header: BatchHeader, batch: memoryview) -> Steps[bool]:
        yield from ()
        self.records += self.selection.count(header, batch)
        return True

    def ended(self, row: Row) -> None:
        self.segments, self.read_bytes = self.segments + 1, self.read_bytes + row.size
        self.looked[uid_of(row)] = self.records
        self.records = 0


@dataclass(slots=True)
class Eraser:
    """One partition. On one machine it is :meth:`run`; ``erase_parts`` calls its pieces where many share the work."""

    tp: TopicPartition
    entry: TopicEntry
    selection: Selection
    job_id: str
    spend: Spend = spend_nothing
    catalog: Catalog = field(init=False)
    lookup: SegmentLookup = field(init=False)
    shop: Workshop = field(init=False)
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
        self.open_shop(INCAPABLE)
        found = yield from self._look()
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

    def open_shop(self, capabilities: Capabilities) -> None:
        """Begin to read and write segments. ``capabilities``: of the store to which something will be written."""
        self.shop = Workshop(
            tp=self.tp,
            topic_id=self.entry.topic_id,
            lookup=self.lookup,
            capabilities=capabilities,
            claim_epoch=self.catalog.claim_epoch,
            index_interval_bytes=self.entry.settings.index_interval_bytes,
            lineage=root.lineage if (root := self.catalog.root) is not None else (),
            spend=self.spend,
        )

    def _look(self) -> Steps[tuple[Snapshot, tuple[Hit, ...]] | None]:
        """Every live segment that holds any of it, in one version of the catalog; reads those that nobody has."""
        seen = self.counter
        for _ in range(MAX_LOOKS):
            pinned = yield from self.catalog.pin()
            if pinned is None:
                return None
            asked = list[Row]()
            try:
                yield from self.shop.read(self._unread(pinned, asked), seen.take, seen.ended)
            except SegmentGone as gone:
                seen.records = 0  # of a segment that was not read to its end
                yield from self.need_superseded(gone)
                continue
            return pinned, tuple(Hit(row, records) for row in asked if (records := seen.looked[uid_of(row)]))
        raise self._restless()

    def _unread(self, pinned: Snapshot, asked: list[Row]) -> Rows:
        """The live segments that nobody has looked at; ``asked`` gets these and those that are known to hold any."""
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

    def need_superseded(self, gone: SegmentGone) -> Steps[None]:
        """Raises CorruptionError if the newest catalog names what is gone."""
        pinned = yield from self.catalog.pin()
        if pinned is not None and (yield from pinned.at(gone.row.base)) == gone.row:
            raise CorruptionError(
                f"{self.tp}: {gone.key} is gone, and the catalog names it (offsets {gone.row.base} to {gone.row.next})",
                path_or_key=gone.key,
                offset=gone.row.base,
                hint="run `tiered check`; what was rewritten stays so, nothing else was changed",
            )

    def _restless(self) -> ConfigError:
        return ConfigError(
            f"{self.tp}: others have rewritten it in each of {MAX_LOOKS} looks",
            hint="end other maintainers for a while, then run the same again: it goes on",
        )

    def holders(self) -> Steps[tuple[str, ...]]:
        """Who holds older versions, by name."""
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
        self.open_shop(capabilities)
        for _ in range(MAX_LOOKS):
            for hit in hits:
                try:
                    yield from self._rewrite(hit.row)
                except CorruptionError:  # it stood still, and what it stored may be swept by who has the claim now
                    yield from self.catalog.confirm()
                    raise
            found = yield from self._look()
            if found is None:
                raise NotFoundError(f"{self.tp} has no catalog any more", hint="was its topic deleted?")
            hits = found[1]
            if hits and not self.catalog.claim_epoch:
                yield from self.claim(owner)
                self.open_shop(capabilities)
            if not hits:
                break
        else:
            raise self._restless()
        notes = yield from self.notes()
        self.replaced |= {(note["id_hi"], note["id_lo"]) for note in notes}
        collected = (yield from self.collect(owner)) if now else None
        left = yield from self._prove()
        pinned = yield from self.catalog.pin()
        version = pinned.version if pinned is not None else 0
        read = len(self.counter.looked)
        return Erased(self.tp, version, self.records, tuple(notes), tuple(left), read, collected)

    def claim(self, owner: str) -> Steps[None]:
        """Takes the role ``m``. Raises CorruptionError under an older root: what an erasure commits would hide that."""
        yield from need_newest(self.catalog, must_list=False)
        yield from self.catalog.claim(Role.MAINTAINER, owner)

    def _rewrite(self, row: Row) -> Steps[None]:
        """One segment without what is meant, in the catalog; nothing if it is no part of it by now."""
        made = yield from self.rewritten(row)
        if made is None:
            return
        new, gone = made
        try:
            yield from self.catalog.commit(ReplaceIntent((row,), (new,)), reason=f"erase, job {self.job_id}")
        except NotFoundError as changed:
            if changed.__class__ is not NotFoundError:
                raise
            return  # others have trimmed or rewritten it meanwhile: the next look tells what is left
        self.records += gone

    def rewritten(self, row: Row) -> Steps[tuple[Row, int] | None]:
        """A segment without what is meant, over the same offsets, stored and noted, and how many records went.

        None if the segment is no part of the catalog by now.
        """
        pinned = yield from self.catalog.pin()
        if pinned is None or (yield from pinned.at(row.base)) != row:
            return None
        uid: str = yield NewId()
        output, gone = SegmentOutput(self.shop, [row], uid), 0

        def take(header: BatchHeader, batch: memoryview) -> Steps[bool]:
            nonlocal gone
            rest, count = self.selection.rest(header, batch)
            gone += count
            after = header if rest is batch else read_header(rest)
            output.stats.count(after.records_count, least_timestamp(after, rest), after.max_timestamp)
            yield from output.append(rest, after)
            return True

        try:
            yield from self.shop.read(in_turn([row]), take)
            txns = yield from self.lookup.section(row, SectionKind.TXN_INDEX)
            producers, epochs = yield from self.shop.beside([row])
            new = yield from output.finish(txns, producers, epochs)
        except SegmentGone as superseded:
            yield from output.abandon()
            yield from self.need_superseded(superseded)
            return None
        except TieredError:
            yield from output.abandon()
            raise
        yield from self._note(row, new, gone)
        return new, gone

    def _note(self, row: Row, new: Row, gone: int) -> Steps[None]:
        """Before the commit: what a run that ends here has replaced, the next one tells."""
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
        """What all runs have replaced: of two notes about one object the later, for the first was never committed."""
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
                f"{self.tp}: what is to be deleted now is held by {', '.join(holders[:5])}",
                hint="`tiered snapshot delete` it, or wait for the reader to end; without --now the grace time goes on",
            )

    def collect(self, owner: str) -> Steps[Collected]:
        if not self.catalog.claim_epoch:
            yield from self.claim(owner)
        return (yield from Collector(self.catalog, 0, only=frozenset(self.replaced)).run())

    def _prove(self) -> Steps[list[Left]]:
        """The objects of the partition that are no live segments and hold any of it. Reads those that nobody has."""
        others, left, looked = (yield from self.others()), [], self.counter.looked
        for key, (_, why) in others.items():
            uid = uid_of_key(key)
            if uid not in looked:
                looked[uid] = yield from self.count(key)
            if count := looked[uid]:
                # mutant erasure-reports-unnamed
                left.append(Left(key, count, why))
        return left

    def others(self) -> Steps[dict[str, tuple[int, str]]]:
        """Segments below the partition that are not alive, and what repairs have kept: size and why, by key. Lists."""
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
        kept = "kept by `tiered repair`: nothing but the topic's deletion takes it, remove it when nobody needs it"
        found = {entry.key: (entry.size, kept) for entry in aside}
        for uid, entry in names.items():
            grace = "it waits for gc.grace.ms: `tiered gc run` deletes it then"
            why = grace if uid not in unnamed else "no root names it: `tiered gc run --orphans` deletes it"
            found[entry.key] = entry.size, f"held by {', '.join(held[uid])}" if uid in held else why
        return found

    def _drop_live(self, pinned: Snapshot, names: dict[str, ListEntry]) -> Steps[None]:
        at = pinned.start_offset
        while len(rows := (yield from pinned.piece(at))):
            for row in rows:
                names.pop(uid_of(row), None)
            at = rows.end_offset

    def count(self, key: str) -> Steps[int]:
        """Records in an object that is no live segment; 0 if it has gone, -1 if it cannot be read.

        Its bytes alone are asked: who names it no more has perhaps lost its bundle, too. What a repair has kept may be
        a bundle, a root or an entry of the registry, which hold no keys.
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
    """Write the receipt of one partition, with keys as hashes alone. A receipt of an earlier run is replaced.

    Args:
        facts: owner, and what was found on disks.

    Returns:
        The key of the receipt.

    Raises:
        CommitUnknown: the store did not answer in time.
    """
    key = erasure_receipt_key(topic_id, erased.tp.partition, job_id)
    receipt = receipt_fields(job_id, topic_id, selection, [erased], {"at_ms": (yield Now()).now_ms, **facts})
    body = json.dumps(receipt, indent=1).encode() + b"\n"

    def receipt_body(seen: Tagged[bytes | None]) -> Planned[bytes | None]:
        yield from ()
        return NextBody(body, body)

    cell = Cell(key, f"the receipt of {job_id}", look_at(key, stored_bytes), operator.eq)
    yield from update(cell, receipt_body, (yield from deadline_after(COMMIT_DEADLINE_MS)))
    return key


def receipt_fields(
    job_id: str, topic_id: UUID, selection: Selection, erased: Sequence[Erased], facts: dict[str, Any]
) -> dict[str, Any]:
    """What a receipt says; ``facts``: ``at_ms`` and more."""
    return {
        "job": job_id,
        "topic_id": topic_id.hex,
        "asked": selection.hashed(topic_id),
        **facts,
        "partitions": [as_fields(one) for one in erased],
        "proven": not any(one.left for one in erased),
    }


def as_fields(one: Erased) -> dict[str, Any]:
    """For the receipt, and for ``--json``."""
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
