"""The two objects of a row as a repair sees them: what is wrong with them, where their bytes lie instead, what is lost,
and what new objects become of what is left.

A ``.log`` that lies under the name of another segment, of this partition or of any other below the prefix, as where
two changed places, is read there: its size and checksum are those of the row. One that was merged is read where it was
merged of, until that is collected.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from uuid import UUID

from tiered.care.batch_walk import BatchWalk, Loss, Take, take_nothing
from tiered.care.misplaced import copy_command, misplaced_log
from tiered.config import MAX_LONG
from tiered.errors import ConfigError, CorruptionError, NewerFormatError
from tiered.format.batch import BatchHeader, empty_batch, least_timestamp, read_header, rebased
from tiered.format.bundle import HEAD_BYTES, MAX_BUNDLE_BYTES, Bundle, decode_bundle, decode_bundle_head
from tiered.format.keys import (
    FLAG_ABORTED_TXNS,
    FLAG_HOLE,
    FLAG_MAINTAINER,
    FLAG_STAGED,
    Role,
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
from tiered.plan.producer import read_producer
from tiered.plan.producer_state import Snapshot as Producers
from tiered.plan.side_files import (
    NO_PRODUCERS,
    Follower,
    hole_flaw,
    judge_snapshot,
    judge_txn_index,
    producers_flaw,
    txns_flaw,
)
from tiered.remote.rewrite import SegmentOutput, Workshop
from tiered.remote.snapshot import Snapshot
from tiered.store.base import Get, Head, ListEntry, NewId, Object, Steps, list_all

MAX_CHAINS = 64
"""Ways to put a merged segment together of older ones, of those that are read."""
MAX_LINKS = 100_000
"""Segments that are tried at some place of such a way."""


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


class Listing:
    """What lies below a store's prefix, for one plan: the partition and all the rest are each listed once, when they
    are first asked for. ``url``: the store's, for commands that a hint names; without it there are none."""

    def __init__(self, topic_id: UUID, partition: int, url: str = "") -> None:
        self.url = url
        self._prefix = partition_prefix(topic_id, partition)
        self._own: Sequence[ListEntry] | None = None
        self._others: Sequence[ListEntry] | None = None

    def own(self) -> Steps[Sequence[ListEntry]]:
        """Of the partition."""
        if self._own is None:
            self._own = yield from list_all(self._prefix)
        return self._own

    def others(self) -> Steps[Sequence[ListEntry]]:
        """Of everybody else."""
        if self._others is None:
            listed = yield from list_all("")
            self._others = [entry for entry in listed if not entry.key.startswith(self._prefix)]
        return self._others


@dataclass(frozen=True, slots=True)
class SegmentObjects:
    """The two objects of a row; ``body``: where its ``.log`` lies, if that is the name of another segment. ``before``:
    what the same plan does with older rows; ``listing``: the one of that plan."""

    tp: TopicPartition
    topic_id: UUID
    row: Row
    body: str = ""
    before: tuple[RowPlan, ...] = ()
    pieces: tuple[tuple[str, int], ...] = ()
    listing: Listing | None = None

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

    def plan(self, pinned: Snapshot, *, named: bool, drop: bool, accept_loss: bool = False) -> Steps[RowPlan | None]:
        """None if nothing is wrong as far as one looks: the bytes of the ``.log`` are read where something is.

        With ``drop`` a plan that loses nothing is for the one without: the bytes lie under another name.
        """
        row = self.row
        head = yield Head(self.log_key)
        bundle, flaw = yield from self.bundle()
        size = head.size if isinstance(head, Object) else 0
        problem = "the .log is gone" if not isinstance(head, Object) else ""
        if problem and (other := (yield from self._elsewhere())) is not None:
            key = segment_key(self.topic_id, self.tp.partition, other)
            return RowPlan(row, other, f"{problem}; {key} has its bytes", (), other.size, ())
        if isinstance(head, Object) and size != row.size:
            problem = f"the .log has {size} bytes, the catalog says {row.size}"
        elif isinstance(head, Object) and head.crc32c not in (None, row.crc):
            problem = f"the .log has CRC32C {head.crc32c:#010x}, the catalog says {row.crc:#010x}"
        if not (problem or flaw or named):
            return None
        lost = yield from self.walk(size, bundle, take_nothing)
        if lost and (body := (yield from self._body(bundle))):  # what can be read here may be another segment's
            why = f"{problem or lost[0].why}; {body} has its bytes"
            return RowPlan(row, row, why, (), row.size, (self.log_key,) if size else (), body)
        if lost and (pieces := (yield from self._merged_of())):
            why = f"{problem or lost[0].why}; the {len(pieces)} segments that it was merged of are there"
            return RowPlan(row, row, why, (), row.size, (self.log_key,) if size else (), pieces=pieces)
        if drop and not lost:
            if not named:
                return None  # the row or the bundle is wrong, not what they are about
            raise ConfigError(f"{self.tp}: {self.log_key} is whole", hint="`tiered repair index` writes its row anew")
        copy, same = (yield from self._misplaced()) if lost else ("", "")
        if lost and not drop:
            raise self._unreadable(lost[0], copy, same)
        if copy and not accept_loss:
            raise self._not_given_up(lost, copy, same)
        if lost:
            problem = "; ".join(filter(None, (problem, copy and f"{copy} has its {same}")))
            yield from self._need_harmless(pinned, bundle, size, lost)
        aside = [self.log_key] if lost and size else []
        if flaw and "gone" not in flaw:
            aside.append(index_key(self.topic_id, self.tp.partition, row))
        return RowPlan(row, row, problem or flaw or "as was asked", tuple(lost), size, tuple(aside))

    def _unreadable(self, loss: Loss, copy: str, same: str) -> CorruptionError:
        """That there is a loss; ``copy`` and ``same``: what :meth:`_misplaced` gives."""
        segment = f"{self.tp.topic}:{self.tp.partition} {self.row.base}"
        where = f"{copy} has its {same}: if it was moved there by mistake, {self._copied(copy)}; else " if copy else ""
        return CorruptionError(
            f"{self.tp}: {self.log_key}: offsets {loss.start} to {loss.end} cannot be read: {loss.why}",
            path_or_key=self.log_key,
            offset=loss.start,
            hint=f"{where}put the object back: from a log directory that still holds it (`tiered repair put-back "
            f"{segment} --log-dir DIR`), from a version or a backup of the bucket; `tiered repair drop-segment "
            f"{segment}` keeps what can be read and gives up the rest",
        )

    def _not_given_up(self, lost: Sequence[Loss], copy: str, same: str) -> ConfigError:
        """That a copy lies elsewhere, which may hold what would be given up."""
        return ConfigError(
            f"{self.tp}: {self.log_key}: offsets {lost[0].start} to {lost[-1].end} cannot be read: {lost[0].why}; "
            f"{copy} has its {same}: nothing was given up",
            hint=f"if it was moved there by mistake, {self._copied(copy)}, then run `tiered check`; else --accept-loss "
            f"gives up all the same what cannot be read",
        )

    def _copied(self, key: str) -> str:
        command = copy_command(self._listing().url, key, self.log_key)
        return f"copy it to {self.log_key}{f' (`{command}`)' if command else ''}"

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
            # Of a segment that is damaged nothing can be restored, not even what lies before the damage.
            first = min((plan.row.base for plan in self.before if plan.lost), default=row.base)
            way = keeps_before(self.tp, first)
            raise harmful_loss(self.tp, self.log_key, lost[0].start, lost[-1].end, why, way=way)

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
        for entry in (yield from self._listing().own()):
            parsed = parse_segment_key(entry.key)
            if parsed is None or parsed.suffix != "log" or (parsed.name.base, entry.size) != (row.base, row.size):
                continue
            high, low = split_uid(parsed.name.uid)
            flags = FLAG_MAINTAINER if parsed.name.role is Role.MAINTAINER else 0
            other = row._replace(id_hi=high, id_lo=low, claim_epoch=parsed.name.epoch, flags=flags)
            if (yield from BatchWalk(self.tp, entry.key, other, row.size, None).is_right()):
                return other
        return None

    def _body(self, bundle: Bundle | None) -> Steps[str]:
        """The key under which the bytes of this ``.log`` lie, where that is not its own; ``""`` if there is none.

        Its partition is looked through first, then all below the prefix: two that changed places may be of two
        partitions, and after the repair of one of them the other's bytes lie below ``aside/``, too.
        """
        listing = self._listing()
        for listed in (listing.own, listing.others):
            for entry in (yield from listed()):
                known = entry.key == self.log_key
                if entry.size == self.row.size and not known and (yield from self._is_at(entry.key, bundle)):
                    return entry.key
        return ""

    def _is_at(self, key: str, bundle: Bundle | None) -> Steps[bool]:
        """Whether an object of any partition has all the bytes of this ``.log``, each batch in its place."""
        head = (yield Head(key)) if parse_partition_key(key) is not None else None
        right = {None, self.row.crc} | (set() if bundle is None else {bundle.descriptor.crc32c})
        if not isinstance(head, Object) or head.crc32c not in right:
            return False
        found = SegmentObjects(self.tp, self.topic_id, self.row, key)
        return not (yield from found.walk(head.size, bundle, take_nothing))

    def _merged_of(self) -> Steps[tuple[tuple[str, int], ...]]:
        """Older segments that hold, one behind the other, the bytes that the row tells: a merge changes no batch, and
        what it took the place of waits for its collection. None where there are none."""
        row = self.row
        if not row.flags & FLAG_MAINTAINER:
            return ()
        found: list[tuple[int, int, str, int]] = []
        for entry in (yield from self._listing().own()):
            parsed = parse_segment_key(entry.key)
            inside = parsed is not None and parsed.suffix == "log" and row.base <= parsed.name.base < row.next
            if parsed is None or not inside or entry.key == self.log_key or entry.size > row.size:
                continue
            got = yield Get(index_key(self.topic_id, self.tp.partition, parsed.name), 0, HEAD_BYTES)
            end = _end_told(got, parsed.name.base)
            if end <= row.next and entry.size:
                found.append((parsed.name.base, end, entry.key, entry.size))
        for pieces in itertools.islice(_chains(sorted(found), row.base, row.size), MAX_CHAINS):
            if (yield from BatchWalk(self.tp, self.log_key, row, row.size, None, pieces=pieces).is_right()):
                return pieces
        return ()

    def _misplaced(self) -> Steps[tuple[str, str]]:
        """The key of an object of the name, size and checksum of the ``.log``, and which of these it is known by; two
        times ``""`` if there is none."""
        listing = self._listing()
        listed = [*(yield from listing.own()), *(yield from listing.others())]
        for key in misplaced_log(self.log_key, self.row.size, listed):
            head = yield Head(key)
            if isinstance(head, Object) and head.crc32c in (None, self.row.crc):
                return key, "name and size" if head.crc32c is None else "name, size and checksum"
        return "", ""

    def _listing(self) -> Listing:
        return self.listing or Listing(self.topic_id, self.tp.partition)

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
        walk = BatchWalk(self.tp, self.log_key, self.own, size, bundle, pieces=self.pieces)
        if not (yield from walk.is_right()):
            lost = yield from walk.run(take_nothing)
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
            f"{keeps_before(self.tp, self.row.base)}",
        )

    def _follower(self, pinned: Snapshot) -> Steps[Follower]:
        """With the producers of the segment before this one."""
        before = yield from pinned.at(self.row.base - 1) if self.row.base else _none()
        if before is None or before.flags & FLAG_HOLE:
            return Follower(whole=self.row.base == 0)
        bundle, _ = yield from SegmentObjects(self.tp, self.topic_id, before).bundle()
        if bundle is None:
            return Follower(whole=False)
        data = bundle.indexes.producer_snapshot or NO_PRODUCERS
        return Follower(Producers(self.row.base, tuple(decode_snapshot(data))), whole=True)


def aborts_before(offset: int, row: Row, bundle: Bundle | None) -> bool:
    """Whether the segment tells of records before ``offset`` that they were aborted, or may: its own go with it."""
    told = bundle.indexes.txn_index if bundle is not None else b""
    if not told:
        return bool(row.flags & FLAG_ABORTED_TXNS)
    try:
        return any(txn.first_offset < offset for txn in decode_txns(told, row.base))
    except CorruptionError:
        return True


def harmful_loss(tp: TopicPartition, key: str, start: int, end: int, why: str, *, way: str) -> CorruptionError:
    """The refusal to give up offsets ``start`` to ``end``, most of all those in ``key``. ``way``: what keeps all that
    lies before what cannot be read, as :func:`keeps_before` says it; ``""`` for nothing."""
    return CorruptionError(
        f"{tp}: to give up offsets {start} to {end} ({key}) would change what is shown of others: {why}",
        path_or_key=key,
        offset=start,
        hint="put the object back from a version or a backup of the bucket" + (f"; {way}" if way else ""),
    )


def keeps_before(tp: TopicPartition, offset: int, *, as_of: str = "") -> str:
    """The command that keeps what lies before a border between segments, in words; ``as_of``: of which root."""
    options = f"--to DIR{f' --as-of {as_of}' if as_of else ''} --until-offset {offset} --name NEW"
    return f"`tiered restore {tp.topic}:{tp.partition} {options}` keeps what lies before offset {offset}"


def producers_at_end(tp: TopicPartition, topic_id: UUID, row: Row) -> Steps[tuple[ProducerEntry, ...] | None]:
    """Of a segment, as its bundle has them; None if that is gone, damaged or another segment's."""
    if row.flags & FLAG_STAGED:
        return ()
    return _producers((yield from bundle_of(tp, topic_id, row)))


def bundle_of(tp: TopicPartition, topic_id: UUID, row: Row) -> Steps[Bundle | None]:
    """The index bundle of a segment; None if it is gone, damaged or another segment's."""
    bundle, _ = yield from SegmentObjects(tp, topic_id, row).bundle()
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
