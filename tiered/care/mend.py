"""``repair index`` and ``repair drop-segment``: segments that are not what the catalog names, written anew.

::

    row ── HEAD, .log, .idx ── what is wrong ── plan ──> batches that are whole ──> new .log and .idx ── replace ── root

A ``.log`` that lies under the name of another segment, of this partition or of any other below the prefix, as where
two changed places, is read there: its size and checksum are those of the row. One that was merged is read where it was
merged of, until that is collected. An object is never written twice: what is mended gets new names, under a claim of
the role ``m``. The batches are the old ones, byte for byte; everything beside them follows from them.
``index`` loses nothing, or refuses. ``drop-segment`` gives up the batches that cannot be read, by name, and leaves a
hole where none can; at the end of the log, where only the last segment tells the producers, an empty batch with their
snapshot. It refuses where the marker of older records would go with them, or nothing tells the producers: that
changes what is shown of other offsets. Objects that are replaced are copied below ``aside/`` before the catalog lets
go of them; nothing ever deletes those copies but the topic's deletion.
"""

from __future__ import annotations

import bisect
import itertools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from uuid import UUID

from tiered.care.inspection import BatchFeed
from tiered.config import MAX_LONG
from tiered.errors import ConfigError, CorruptionError, NewerFormatError, NotFoundError, UnknownTopicError
from tiered.format.batch import (
    BatchHeader,
    decode_records,
    empty_batch,
    least_timestamp,
    read_header,
    rebased,
    verify_batch,
)
from tiered.format.bundle import HEAD_BYTES, MAX_BUNDLE_BYTES, Bundle, decode_bundle, decode_bundle_head
from tiered.format.crc import crc32c
from tiered.format.keys import (
    FLAG_ABORTED_TXNS,
    FLAG_HOLE,
    FLAG_MAINTAINER,
    FLAG_STAGED,
    Role,
    aside_key,
    index_key,
    is_staged_by,
    parse_partition_key,
    parse_segment_key,
    partition_prefix,
    segment_key,
    split_uid,
)
from tiered.format.offset_index import OffsetIndex
from tiered.format.producer_snapshot import ProducerEntry, decode_snapshot
from tiered.format.time_index import TimeIndex
from tiered.format.txn_index import decode_txns
from tiered.model import Row, TopicPartition
from tiered.plan.maintenance import READ_BYTES
from tiered.plan.producer import read_producer
from tiered.plan.producer_state import Snapshot as Producers
from tiered.plan.rewrite import ReplaceIntent
from tiered.plan.side_files import (
    NO_PRODUCERS,
    Follower,
    hole_flaw,
    judge_snapshot,
    judge_txn_index,
    producers_flaw,
    txns_flaw,
)
from tiered.remote.cache import ByteCache
from tiered.remote.catalog import Catalog
from tiered.remote.lookup import SegmentLookup
from tiered.remote.rewrite import SegmentOutput, Workshop
from tiered.remote.snapshot import Snapshot
from tiered.remote.topics import TopicEntry, load_topic
from tiered.store.base import Get, Head, NewId, Object, Steps, list_all
from tiered.store.probe import check_capabilities, probe
from tiered.store.puts import ObjectWriter

Take = Callable[[BatchHeader, memoryview], Steps[None]]

MAX_CHAINS = 64
"""Ways to put a merged segment together of older ones, of those that are read."""
MAX_LINKS = 100_000
"""Segments that are tried at some place of such a way."""


@dataclass(frozen=True, slots=True)
class Loss:
    """Offsets ``start`` to ``end`` that are given up, and why."""

    start: int
    end: int
    why: str


@dataclass(frozen=True, slots=True)
class RowPlan:
    """One segment. ``problem``: what is wrong; ``lost``: what no object holds any more, as far as can be read.

    ``row`` is the catalog's, ``source`` the objects that are read: others where those it names are gone, and the same
    bytes lie under another name. ``size`` is that of the ``.log``, 0 without one; ``aside``: keys that are kept.
    ``body``: the key of another segment under which its ``.log`` lies, ``""`` if it does not. ``pieces``: keys and
    sizes of the segments that it was merged of, where these hold its bytes.
    """

    row: Row
    source: Row
    problem: str
    lost: tuple[Loss, ...]
    size: int
    aside: tuple[str, ...]
    body: str = ""
    pieces: tuple[tuple[str, int], ...] = ()

    @property
    def is_hole(self) -> bool:
        """Whether nothing is left of it."""
        return bool(self.lost) and (self.lost[0].start, self.lost[0].end) == (self.row.base, self.row.next)


@dataclass(frozen=True, slots=True)
class MendPlan:
    """What would be written anew. ``rows`` in order; ``version`` of the catalog that was looked at."""

    tp: TopicPartition
    entry: TopicEntry
    version: int
    rows: tuple[RowPlan, ...]

    @property
    def lost(self) -> tuple[Loss, ...]:
        """All that is given up."""
        return tuple(loss for row in self.rows for loss in row.lost)


@dataclass(frozen=True, slots=True)
class ChosenRows:
    """Segments of one catalog, in order."""

    entry: TopicEntry
    pinned: Snapshot
    rows: tuple[Row, ...]


def choose_rows(tp: TopicPartition, offsets: Sequence[int]) -> Steps[ChosenRows]:
    """The segments that hold ``offsets``; without any, all. Raises UnknownTopicError, NotFoundError, ConfigError."""
    entry = yield from load_topic(tp.topic)
    if entry is None or tp.partition >= entry.partitions:
        raise UnknownTopicError(f"there is no partition {tp} in the registry", hint="`tiered topics list` names them")
    pinned = yield from Catalog(entry.topic_id, tp.partition, tp.topic, known=entry.known).pin()
    if pinned is None:
        raise NotFoundError(f"{tp} has no catalog yet", hint="nothing was uploaded")
    rows: list[Row] = []
    for offset in offsets:
        row = yield from pinned.at(offset)
        if row is None or row.flags & FLAG_HOLE:
            raise ConfigError(f"{tp}: offset {offset} is in no segment", hint="`tiered segments` shows them")
        rows += [] if row in rows else [row]
    at = pinned.start_offset
    while not offsets and len(piece := (yield from pinned.piece(at))):
        rows += [row for row in piece if not row.flags & FLAG_HOLE]
        at = piece.end_offset
    return ChosenRows(entry, pinned, tuple(sorted(rows)))


def plan_mend_steps(tp: TopicPartition, offsets: Sequence[int], *, drop: bool) -> Steps[MendPlan]:
    """Reads only. ``offsets`` name segments; without any, all that are not what the catalog names are meant.

    ``drop`` False: a segment that would lose something is CorruptionError; True: one whose loss would change what is
    shown of other offsets. Raises UnknownTopicError, NotFoundError (no catalog), ConfigError: an offset is in no
    segment, or nothing is wrong.
    """
    chosen = yield from choose_rows(tp, offsets)
    entry, pinned = chosen.entry, chosen.pinned
    found: list[RowPlan] = []
    for row in chosen.rows:
        one = _Object(tp, entry.topic_id, row, before=tuple(found))
        plan = yield from one.plan(pinned, named=bool(offsets), drop=drop)
        found += [plan] if plan is not None else []
    if not found:
        what = "objects" if drop else "indexes"
        raise ConfigError(
            f"{tp}: the {what} are those that the catalog names: there is nothing to repair",
            hint="`tiered check --read-data` names the offset of what is wrong inside them: name it here, too"
            + ("; what only lies under another name `tiered repair index` writes anew" if drop else ""),
        )
    return MendPlan(tp, entry, pinned.version, tuple(found))


def mend_steps(plan: MendPlan, owner: str) -> Steps[int]:
    """Carries a plan out, segment by segment: what was committed stays so if a later one fails. Gives the new version.

    Raises FencedError (another maintainer), ConfigError if the catalog holds another segment there by now.
    """
    capabilities = yield from probe()
    check_capabilities(capabilities, "the store")
    tp, entry = plan.tp, plan.entry
    catalog = Catalog(entry.topic_id, tp.partition, tp.topic, known=entry.known)
    yield from catalog.claim(Role.MAINTAINER, owner)
    shop = Workshop(
        tp=tp,
        topic_id=entry.topic_id,
        lookup=SegmentLookup(tp, entry.topic_id, ByteCache()),
        capabilities=capabilities,
        claim_epoch=catalog.claim_epoch,
        index_interval_bytes=entry.settings.index_interval_bytes,
        lineage=root.lineage if (root := catalog.root) is not None else (),
    )
    version = 0
    for each in plan.rows:
        pinned = yield from catalog.pin()
        if pinned is None or (yield from pinned.at(each.row.base)) != each.row:
            raise ConfigError(f"{tp}: offset {each.row.base} is in another segment by now", hint="plan again")
        for key in each.aside:
            yield from keep_copy(key, aside_key(entry.topic_id, tp.partition, (yield NewId())))
        one = _Object(tp, entry.topic_id, each.source, each.body, pieces=each.pieces)
        new = yield from one.written(shop, pinned, each)
        root = yield from catalog.commit(ReplaceIntent((each.row,), (new,)), reason=_reason(each))
        version = root.version
    return version


def _reason(each: RowPlan) -> str:
    lost = ", ".join(f"{loss.start} to {loss.end}" for loss in each.lost)
    return f"{each.problem}; offsets {lost} are lost" if lost else each.problem


def keep_copy(key: str, to: str) -> Steps[bool]:
    """An object as it is, under another name; False if it has gone by now.

    Raises CorruptionError if the copy would not be all of it: what it is copied for must not be replaced then.
    """
    head = yield Head(key)
    if not isinstance(head, Object):
        return False
    output = ObjectWriter(to)
    for at in range(0, head.size, READ_BYTES):
        got = yield Get(key, at, min(at + READ_BYTES, head.size))
        if isinstance(got, Object) and got.etag == head.etag:
            yield from output.write(got.data)
    differs = head.crc32c not in (None, output.crc32c)  # or its bytes have rotted below the store's checksum of them
    if output.size != head.size or (differs and (yield from _sum_again(key, head)) != output.crc32c):
        yield from output.abort()
        raise CorruptionError(
            f"{key} has {head.size} bytes, {output.size} of them could be copied as they are: nothing was replaced",
            path_or_key=key,
            position=output.size,
            hint="try again; if it stays so, somebody else writes this key",
        )
    yield from output.finish()
    copy = yield Head(to)
    if not isinstance(copy, Object) or copy.size != head.size:
        raise CorruptionError(
            f"{to}, the copy of {key}, is not there with its {head.size} bytes: nothing was replaced",
            path_or_key=to,
            position=0,
            hint="try again",
        )
    return True


def _sum_again(key: str, head: Object) -> Steps[int | None]:
    """The checksum of the bytes that a store gives for an object, None if it is another one by now."""
    crc = 0
    for at in range(0, head.size, READ_BYTES):
        got = yield Get(key, at, min(at + READ_BYTES, head.size))
        if not isinstance(got, Object) or got.etag != head.etag:
            return None
        crc = crc32c(got.data, crc)
    return crc


@dataclass(frozen=True, slots=True)
class _Object:
    """The two objects of a row; ``body``: where its ``.log`` lies, if that is the name of another segment. ``before``:
    what the same plan does with older rows."""

    tp: TopicPartition
    topic_id: UUID
    row: Row
    body: str = ""
    before: tuple[RowPlan, ...] = ()
    pieces: tuple[tuple[str, int], ...] = ()

    @property
    def log_key(self) -> str:
        return self.body or segment_key(self.topic_id, self.tp.partition, self.row)

    @property
    def staged(self) -> bool:
        """A sink staged it: its batches and its bundle begin at offset 0, know no epochs, and no producers."""
        return bool(self.row.flags & FLAG_STAGED)

    @property
    def own(self) -> Row:
        """The row with the offsets that its objects have."""
        row = self.row
        return row._replace(base=0, next=row.next - row.base) if self.staged else row

    def plan(self, pinned: Snapshot, *, named: bool, drop: bool) -> Steps[RowPlan | None]:
        """None if nothing is wrong as far as one looks: the bytes of the ``.log`` are read where something is."""
        row = self.row
        head = yield Head(self.log_key)
        bundle, flaw = yield from self.bundle()
        size = head.size if isinstance(head, Object) else 0
        problem = "the .log is gone" if not isinstance(head, Object) else ""
        if problem and (other := (yield from self._elsewhere())) is not None:
            if drop:
                return None
            key = segment_key(self.topic_id, self.tp.partition, other)
            return RowPlan(row, other, f"{problem}; {key} has its bytes", (), other.size, ())
        if isinstance(head, Object) and size != row.size:
            problem = f"the .log has {size} bytes, the catalog says {row.size}"
        elif isinstance(head, Object) and head.crc32c not in (None, row.crc):
            problem = f"the .log has CRC32C {head.crc32c:#010x}, the catalog says {row.crc:#010x}"
        if not (problem or flaw or named):
            return None
        lost = yield from self.walk(size, bundle, _take_nothing)
        if lost and (lost[0].start, lost[-1].end) == (row.base, row.next) and (body := (yield from self._body(bundle))):
            if drop:
                return None
            why = f"{problem or lost[0].why}; {body} has its bytes"
            return RowPlan(row, row, why, (), row.size, (self.log_key,) if size else (), body)
        if lost and (pieces := (yield from self._merged_of())):
            if drop:
                return None
            why = f"{problem or lost[0].why}; the {len(pieces)} segments that it was merged of are there"
            return RowPlan(row, row, why, (), row.size, (self.log_key,) if size else (), pieces=pieces)
        if drop and not lost:
            if not named:
                return None  # the row or the bundle is wrong, not what they are about
            raise ConfigError(f"{self.tp}: {self.log_key} is whole", hint="`tiered repair index` writes its row anew")
        if lost and not drop:
            raise CorruptionError(
                f"{self.tp}: {self.log_key}: offsets {lost[0].start} to {lost[0].end} cannot be read: {lost[0].why}",
                path_or_key=self.log_key,
                offset=lost[0].start,
                hint=f"put the object back: from a log directory that still holds it (`tiered repair put-back "
                f"{self.tp.topic}:{self.tp.partition} {row.base} --log-dir DIR`), from a version or a backup of the "
                f"bucket; `tiered repair drop-segment {self.tp.topic}:{self.tp.partition} {row.base}` keeps what can "
                f"be read and gives up the rest",
            )
        if lost:
            yield from self._need_harmless(pinned, bundle, size, lost)
        aside = [self.log_key] if lost and size else []
        if flaw and "gone" not in flaw:
            aside.append(index_key(self.topic_id, self.tp.partition, row))
        return RowPlan(row, row, problem or flaw or "as was asked", tuple(lost), size, tuple(aside))

    def _need_harmless(self, pinned: Snapshot, bundle: Bundle | None, size: int, lost: list[Loss]) -> Steps[None]:
        """Raises CorruptionError where the loss would change what is shown of the offsets that stay."""
        row = self.row
        if (lost[0].start, lost[0].end) == (row.base, row.next):
            before = yield from self._producers_before(pinned)
            aborted, after = aborts_before(row.base, row, bundle), () if self.staged else _producers(bundle)
            keeps = after is not None  # an empty batch does
            last = not keeps and (yield from self._is_last(pinned))
            why = hole_flaw(before, after, aborted=aborted, last=last)
        else:
            why = yield from self._partial_flaw(pinned, bundle, size)
        if why is not None:
            first = min((loss.start for plan in self.before for loss in plan.lost), default=lost[0].start)
            raise harmful_loss(self.tp, self.log_key, lost[0].start, lost[-1].end, why, whole_until=first)

    def _is_last(self, pinned: Snapshot) -> Steps[bool]:
        """Whether no segment behind it has objects: its bundle alone tells the producers at the end of the log."""
        behind = yield from pinned.at(self.row.next)
        while behind is not None and behind.flags & FLAG_HOLE:
            behind = yield from pinned.at(behind.next)
        return behind is None

    def _partial_flaw(self, pinned: Snapshot, bundle: Bundle | None, size: int) -> Steps[str | None]:
        """Why the batches that are whole cannot stand beside the old bundle: a marker is lost, or may be."""
        if self.staged:
            return None
        if bundle is None:
            return "its index bundle is gone or wrong, and nothing else tells its producers and transactions"
        if (yield from self._producers_before(pinned)) is None:
            return "nothing tells which transactions were open before it; `tiered repair index` may mend that first"
        follower = yield from self._follower(pinned)

        def take(header: BatchHeader, batch: memoryview) -> Steps[None]:
            yield from ()
            follower.see(read_producer(header, batch))

        yield from self.walk(size, bundle, take)
        followed, old = follower.end_segment(), bundle.indexes
        try:
            flaw = txns_flaw(decode_txns(old.txn_index, self.row.base), followed)
            return flaw or producers_flaw(decode_snapshot(old.producer_snapshot or NO_PRODUCERS), followed)
        except CorruptionError as damage:
            return damage.message

    def _producers_before(self, pinned: Snapshot) -> Steps[tuple[ProducerEntry, ...] | None]:
        """At the start of the segment, or of the holes before it, which are there or to be made of what is given up,
        too; none at the start of the log, None if unknown."""
        holes = {plan.row for plan in self.before if plan.is_hole}
        before = yield from pinned.at(self.row.base - 1) if self.row.base else _none()
        while before is not None and (before.flags & FLAG_HOLE or before in holes):
            before = yield from pinned.at(before.base - 1) if before.base else _none()
        return () if before is None else (yield from producers_at_end(self.tp, self.topic_id, before))

    def _elsewhere(self) -> Steps[Row | None]:
        """The same segment under another name: an upload that nobody named, or whose name the row has wrong."""
        row = self.row
        if self.staged:
            return None
        listed = yield from list_all(partition_prefix(self.topic_id, self.tp.partition) + "s/")
        for entry in listed:
            parsed = parse_segment_key(entry.key)
            if parsed is None or parsed.suffix != "log" or (parsed.name.base, entry.size) != (row.base, row.size):
                continue
            high, low = split_uid(parsed.name.uid)
            flags = FLAG_MAINTAINER if parsed.name.role is Role.MAINTAINER else 0
            other = row._replace(id_hi=high, id_lo=low, claim_epoch=parsed.name.epoch, flags=flags)
            if (yield from _Walk(self.tp, entry.key, other, row.size, None).is_right()):
                return other
        return None

    def _body(self, bundle: Bundle | None) -> Steps[str]:
        """The key under which the bytes of this ``.log`` lie, where that is not its own; ``""`` if there is none.

        Its partition is looked through first, then all below the prefix: two that changed places may be of two
        partitions, and after the repair of one of them the other's bytes lie below ``aside/``, too.
        """
        own = partition_prefix(self.topic_id, self.tp.partition)
        for prefix in (own, ""):
            for entry in (yield from list_all(prefix)):
                known = entry.key == self.log_key or (not prefix and entry.key.startswith(own))
                if entry.size == self.row.size and not known and (yield from self._is_at(entry.key, bundle)):
                    return entry.key
        return ""

    def _is_at(self, key: str, bundle: Bundle | None) -> Steps[bool]:
        """Whether an object of any partition has all the bytes of this ``.log``, each batch in its place."""
        head = (yield Head(key)) if parse_partition_key(key) is not None else None
        right = {None, self.row.crc} | (set() if bundle is None else {bundle.descriptor.crc32c})
        if not isinstance(head, Object) or head.crc32c not in right:
            return False
        found = _Object(self.tp, self.topic_id, self.row, key)
        return not (yield from found.walk(head.size, bundle, _take_nothing))

    def _merged_of(self) -> Steps[tuple[tuple[str, int], ...]]:
        """Older segments that hold, one behind the other, the bytes that the row tells: a merge changes no batch, and
        what it took the place of waits for its collection. None where there are none."""
        row = self.row
        if not row.flags & FLAG_MAINTAINER:
            return ()
        listed = yield from list_all(partition_prefix(self.topic_id, self.tp.partition) + "s/")
        found: list[tuple[int, int, str, int]] = []
        for entry in listed:
            parsed = parse_segment_key(entry.key)
            inside = parsed is not None and parsed.suffix == "log" and row.base <= parsed.name.base < row.next
            if parsed is None or not inside or entry.key == self.log_key or entry.size > row.size:
                continue
            got = yield Get(index_key(self.topic_id, self.tp.partition, parsed.name), 0, HEAD_BYTES)
            end = _end_told(got, parsed.name.base)
            if end <= row.next and entry.size:
                found.append((parsed.name.base, end, entry.key, entry.size))
        for pieces in itertools.islice(_chains(sorted(found), row.base, row.size), MAX_CHAINS):
            if (yield from _Walk(self.tp, self.log_key, row, row.size, None, pieces=pieces).is_right()):
                return pieces
        return ()

    def bundle(self) -> Steps[tuple[Bundle | None, str]]:
        """The bundle if it is of this segment; and what is wrong with it, or with what the row says of it."""
        row, key = self.own, index_key(self.topic_id, self.tp.partition, self.row)
        got = yield Get(key, 0, MAX_BUNDLE_BYTES)
        if not isinstance(got, Object):
            return None, "the index bundle is gone"
        try:
            bundle = decode_bundle(got.data, key=key)
        except NewerFormatError:
            raise
        except CorruptionError as damage:
            return None, f"the index bundle cannot be read: {damage.message}"
        told = bundle.descriptor
        whose = (told.topic_id, told.partition, told.base_offset, told.end_offset, bundle.claim_epoch)
        epoch = 0 if self.staged else row.claim_epoch
        is_ours = not self.staged or is_staged_by(row, bundle.txn)
        if whose != (self.topic_id, self.tp.partition, row.base, row.next, epoch) or not is_ours:
            return None, "the index bundle is that of another segment"
        if self.staged and (told.size_bytes, told.crc32c) != (row.size, row.crc):
            return None, "the index bundle is that of another segment"  # of the same stream and as many offsets
        what = (told.min_timestamp, told.max_timestamp, told.records, told.size_bytes, told.crc32c)
        differs = not self.staged and told.leader_epoch != row.leader_epoch
        differs |= bool(bundle.indexes.txn_index) != bool(row.flags & FLAG_ABORTED_TXNS)
        if (*what, got.size) != (*row[2:4], row.records, row.size, row.crc, row.idx_len) or differs:
            return bundle, "the catalog and the index bundle describe different bytes"
        try:
            offsets = OffsetIndex.from_bytes(bundle.indexes.offset_index, row.base)
            times = TimeIndex.from_bytes(bundle.indexes.time_index, row.base)
        except CorruptionError as damage:
            return None, f"the index bundle cannot be read: {damage.message}"
        if not offsets.is_sane(row.size) or not times.is_sane(row.next):
            return None, "the indexes of the bundle do not rise"
        return bundle, ""

    def walk(self, size: int, bundle: Bundle | None, take: Take) -> Steps[list[Loss]]:
        """Hands the batches that are whole to ``take``, in order, at the offsets that the catalog gives them; gives the
        ranges between them that are lost.

        An object of right batches whose checksum is not the catalog's is another segment's: all of it is lost. So is
        one that is longer, and one that is cut where the offset index says other things of what is left. Staged
        batches tell not even their place: only where they are in their whole length, what is whole of them counts.
        """
        if not size:
            return [Loss(self.row.base, self.row.next, "the .log is gone")]
        walk = _Walk(self.tp, self.log_key, self.own, size, bundle, pieces=self.pieces)
        if not (yield from walk.is_right()):
            lost = yield from walk.run(_take_nothing)
            if not lost or size > self.row.size or (size < self.row.size and (self.staged or walk.strange)):
                return [Loss(self.row.base, self.row.next, "the .log is another one than the catalog names")]
        if not self.staged:
            return (yield from walk.run(take))
        base = self.row.base

        def moved(header: BatchHeader, batch: memoryview) -> Steps[None]:
            yield from take(*rebased(batch, header, base, self.row.leader_epoch))

        lost = yield from walk.run(moved)
        return [Loss(base + loss.start, base + loss.end, loss.why) for loss in lost]

    def written(self, shop: Workshop, pinned: Snapshot, plan: RowPlan) -> Steps[Row]:
        """New objects of what is left. Raises CorruptionError if that is another thing than was planned."""
        bundle, _ = yield from self.bundle()
        head = yield Head(self.log_key)
        there = head.size if isinstance(head, Object) else 0
        if (size := sum(each for _, each in self.pieces) or there) != plan.size:
            raise self._another(f"it has {size} bytes now, {plan.size} were planned with")
        follower = yield from self._follower(pinned)
        output = SegmentOutput(shop, [self.row], (yield NewId()))

        def take(header: BatchHeader, batch: memoryview) -> Steps[None]:
            follower.see(read_producer(header, batch))
            output.stats.count(header.records_count, least_timestamp(header, batch), header.max_timestamp)
            yield from output.append(bytes(batch), header)

        lost = yield from self.walk(plan.size, bundle, take)
        old, kept = bundle.indexes if bundle is not None else None, output.written[0]
        if tuple(lost) != plan.lost or (lost and kept and old is None and not self.staged):
            yield from output.abandon()
            raise self._another(str(lost))
        if not kept and _producers(bundle) and (yield from self._is_last(pinned)):
            empty = empty_batch(self.row.base, self.row.next, self.row.leader_epoch)
            yield from take(read_header(empty), memoryview(empty))
        epochs = tuple(epoch for epoch in pinned.root.lineage if epoch.start_offset < self.row.next)
        if self.staged and kept:
            return (yield from output.finish(b"", NO_PRODUCERS, epochs))
        followed = follower.end_segment()
        if old is not None and lost:  # the plan has seen that what is left agrees; the lost batches only it knows
            txn_index = old.txn_index if kept else b""  # it speaks of markers that are gone
            return (yield from output.finish(txn_index, old.producer_snapshot, epochs))
        txns = judge_txn_index(old.txn_index if old else b"", self.row.base, followed)
        snapshot = (old.producer_snapshot or None) if old else None
        producers = judge_snapshot(snapshot, followed, expected=bundle is None)
        if kept and not (txns.known and producers.known):
            yield from output.abandon()
            raise self._unknown_beginning(txns_known=txns.known)
        return (yield from output.finish(txns.data, producers.data, epochs))

    def _another(self, what: str) -> CorruptionError:
        return CorruptionError(
            f"{self.tp}: {self.log_key} does not read as it was planned: {what}",
            path_or_key=self.log_key,
            offset=self.row.base,
            hint="plan again",
        )

    def _unknown_beginning(self, *, txns_known: bool) -> CorruptionError:
        what = "holds ABORT markers of transactions whose beginning is not in the bucket"
        if txns_known:
            what = f"does not tell the producers and open transactions at offset {self.row.next}: nothing tells those "
            what += f"at offset {self.row.base}"
        return CorruptionError(
            f"{self.tp}: {self.log_key} {what}",
            path_or_key=self.log_key,
            offset=self.row.base,
            hint="mend the segments before it first; put its .idx back from a version or a backup of the bucket; "
            f"{_keeps_before(self.tp, self.row.base)}",
        )

    def _follower(self, pinned: Snapshot) -> Steps[Follower]:
        """With the producers of the segment before this one."""
        before = yield from pinned.at(self.row.base - 1) if self.row.base else _none()
        if before is None or before.flags & FLAG_HOLE:
            return Follower(whole=self.row.base == 0)
        bundle, _ = yield from _Object(self.tp, self.topic_id, before).bundle()
        if bundle is None:
            return Follower(whole=False)
        data = bundle.indexes.producer_snapshot or NO_PRODUCERS
        return Follower(Producers(self.row.base, tuple(decode_snapshot(data))), whole=True)


def reads_right(tp: TopicPartition, key: str, row: Row) -> Steps[bool]:
    """Whether an object holds the bytes of ``row``. All of it is read. Raises CorruptionError if it is too short."""
    return (yield from _Walk(tp, key, row, row.size, None).is_right())


def aborts_before(offset: int, row: Row, bundle: Bundle | None) -> bool:
    """Whether the segment tells of records before ``offset`` that they were aborted, or may: its own go with it."""
    told = bundle.indexes.txn_index if bundle is not None else b""
    if not told:
        return bool(row.flags & FLAG_ABORTED_TXNS)
    try:
        return any(txn.first_offset < offset for txn in decode_txns(told, row.base))
    except CorruptionError:
        return True


def harmful_loss(
    tp: TopicPartition, key: str, start: int, end: int, why: str, *, whole_until: int | None = None
) -> CorruptionError:
    """The refusal to give up offsets ``start`` to ``end``, most of all those in ``key``. ``whole_until``: the first
    offset that cannot be read, where that lies before."""
    return CorruptionError(
        f"{tp}: to give up offsets {start} to {end} ({key}) would change what is shown of others: {why}",
        path_or_key=key,
        offset=start,
        hint="put the object back from a version or a backup of the bucket; "
        + _keeps_before(tp, start if whole_until is None else whole_until),
    )


def _keeps_before(tp: TopicPartition, offset: int) -> str:
    command = f"tiered restore {tp.topic}:{tp.partition} --to DIR --until-offset {offset} --name NEW"
    return f"`{command}` keeps what lies before offset {offset}"


def producers_at_end(tp: TopicPartition, topic_id: UUID, row: Row) -> Steps[tuple[ProducerEntry, ...] | None]:
    """Of a segment, as its bundle has them; None if that is gone, damaged or another segment's."""
    if row.flags & FLAG_STAGED:
        return ()
    return _producers((yield from bundle_of(tp, topic_id, row)))


def bundle_of(tp: TopicPartition, topic_id: UUID, row: Row) -> Steps[Bundle | None]:
    """The index bundle of a segment; None if it is gone, damaged or another segment's."""
    bundle, _ = yield from _Object(tp, topic_id, row).bundle()
    return bundle


def _producers(bundle: Bundle | None) -> tuple[ProducerEntry, ...] | None:
    try:
        return None if bundle is None else tuple(decode_snapshot(bundle.indexes.producer_snapshot or NO_PRODUCERS))
    except CorruptionError:
        return None


def _end_told(got: object, base: int) -> int:
    """The end that the head of a bundle tells of a segment; beyond every one if it tells none."""
    try:
        told = decode_bundle_head(got.data, key="").descriptor if isinstance(got, Object) else None
    except CorruptionError:
        told = None
    return told.end_offset if told is not None and told.base_offset == base else MAX_LONG


def _chains(found: Sequence[tuple[int, int, str, int]], at: int, left: int) -> Iterator[tuple[tuple[str, int], ...]]:
    """Keys and sizes of segments, side by side but for what compaction has emptied, that have ``left`` bytes in all.
    ``found``: base, end, key and size of each, in order. Of very many ways some are left out."""
    bases = [base for base, *_ in found]
    waiting: list[tuple[tuple[tuple[str, int], ...], int, int]] = [((), at, left)]
    for _ in range(MAX_LINKS):
        if not waiting:
            return
        pieces, at, left = waiting.pop()
        if not left:
            yield pieces
            continue
        begins = bisect.bisect_left(bases, at)
        first = bases[begins] if begins < len(bases) else -1
        for base, end, key, size in found[begins : bisect.bisect_right(bases, first)]:
            if size <= left and end > base:
                waiting.append(((*pieces, (key, size)), end, left - size))


def _none() -> Steps[None]:
    return None
    yield


def _take_nothing(_: BatchHeader, __: memoryview) -> Steps[None]:
    return None
    yield


class _Walk:
    """The batches of one ``.log``, some of which may be damaged. Goes on behind damage where the offset index says."""

    def __init__(
        self,
        tp: TopicPartition,
        key: str,
        row: Row,
        size: int,
        bundle: Bundle | None,
        *,
        pieces: Sequence[tuple[str, int]] = (),
    ) -> None:
        self._tp, self._key, self._row, self._size = tp, key, row, size
        self._pieces = pieces or ((key, size),)
        self._places: list[int] = []
        self._offsets: dict[int, int] = {}
        self.strange = False
        self._right = {(row.size, row.crc)}
        if bundle is not None:
            told = bundle.descriptor
            self._right.add((told.size_bytes, told.crc32c))  # object and bundle that agree are right, the row is not
            index = OffsetIndex.from_bytes(bundle.indexes.offset_index, row.base)
            self._places = [position for _, position in index.entries]
            self._offsets = {position: offset for offset, position in index.entries}

    def is_right(self) -> Steps[bool]:
        """Whether the bytes are those of the catalog, or of the bundle; bytes behind them are left out."""
        crc, at = 0, 0
        for end in sorted(size for size, _ in self._right if size <= self._size):
            while at < end:
                data = yield from self._bytes(at, end)
                crc, at = crc32c(data, crc), at + len(data)
            if (end, crc) in self._right:
                self._size = end
                return True
        return False

    def _bytes(self, at: int, end: int) -> Steps[bytes]:
        ends = list(itertools.accumulate(size for _, size in self._pieces))
        number = bisect.bisect_right(ends, at)
        (key, size), start = self._pieces[number], ends[number] - self._pieces[number][1]
        got = yield Get(key, at - start, min(at - start + READ_BYTES, end - start, size))
        if not isinstance(got, Object) or not got.data:
            raise CorruptionError(
                f"{self._tp}: {key} ends at byte {at - start} by now",
                path_or_key=key,
                position=at,
                hint="plan again",
            )
        return got.data

    def run(self, take: Take) -> Steps[list[Loss]]:
        """Batch by batch; gives what is lost between them."""
        self._lost: list[Loss] = []
        self.strange = False  # whether the offset index tells other things of batches that are whole
        self._expected, self._why, self._epoch = self._row.base, "", -1
        start = 0
        while start < self._size:
            try:
                yield from self._from(start, take)
                break
            except CorruptionError as damage:
                self._why = self._why or damage.message
                reached = start + max(damage.position, 0)
                start = next((place for place in self._places if place > reached), self._size)
        if self._expected < self._row.next and (self._why or self._size < self._row.size):
            why = self._why or f"the object ends at byte {self._size}"
            self._lost.append(Loss(self._expected, self._row.next, why))
        return self._lost

    def _from(self, start: int, take: Take) -> Steps[None]:
        feed, at, end = BatchFeed(self._size - start), start, start
        while at < self._size and not feed.done:
            data = yield from self._bytes(at, self._size)
            at += len(data)
            for position, batch in feed.feed(data):
                end = start + position + len(batch)
                yield from self._batch(start + position, batch, take)
        if end < self._size and not self._why and self._expected < self._row.next:
            self._why = "a batch is cut off"  # compaction takes the last offsets of a segment, too: that is no loss

    def _batch(self, position: int, batch: memoryview, take: Take) -> Steps[None]:
        try:
            header = verify_batch(batch)
            deque(decode_records(batch), maxlen=0)  # a right CRC only says that the bytes are those written
        except CorruptionError as damage:
            self._why = self._why or f"byte {position}: {damage.message}"
            return
        inside = self._expected <= header.base_offset and header.next_offset <= self._row.next
        if not inside or not self._epoch <= header.leader_epoch <= self._row.leader_epoch:
            self._why = self._why or f"byte {position}: a batch of offset {header.base_offset} cannot stand there"
            return
        if not self._is_indexed(position, len(batch), header):
            self.strange = True
        if self._why:
            self._lost.append(Loss(self._expected, header.base_offset, self._why))
            self._why = ""
        self._expected, self._epoch = header.next_offset, header.leader_epoch
        yield from take(header, batch)

    def _is_indexed(self, position: int, size_bytes: int, header: BatchHeader) -> bool:
        """Whether the offset index can be of a log with this batch. A broker's entry is of all that was appended with
        the batch."""
        behind = bisect.bisect_right(self._places, position)
        if behind < len(self._places) and self._places[behind] < position + size_bytes:
            return False
        return self._offsets.get(position, header.last_offset) >= header.last_offset
