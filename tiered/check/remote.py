"""Check of one partition of the bucket: root, rows, objects and bundles. Changes nothing of it.

One HEAD and one GET of the index bundle for each segment. With ``read_data`` the whole ``.log`` is read under a pin: a
collection beside it deletes nothing that is still to be read. A role that may not pin reads without. Objects that no
root names are listed only on request. The listing comes before the root, so that commits in between make no orphan.
"""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from uuid import UUID

from tiered.check.findings import NEWER_RELEASE, Finding, Findings, Passed, Severity
from tiered.check.inspection import (
    Expectations,
    LogInspection,
    ObjectGone,
    SideFileCheck,
    compare_descriptor,
    fetch_log,
    inspect_other_indexes,
)
from tiered.check.local import PartitionFacts
from tiered.config import MAX_LONG
from tiered.errors import ConfigError, CorruptionError, RemotePermissionError, TieredError
from tiered.format.bundle import HEAD_BYTES, Bundle, decode_bundle
from tiered.format.keys import (
    FLAG_ABORTED_TXNS,
    FLAG_HOLE,
    FLAG_MAINTAINER,
    FLAG_STAGED,
    index_key,
    is_staged_by,
    join_uid,
    parse_segment_key,
    partition_prefix,
    root_key,
    segment_key,
    segment_uid,
)
from tiered.format.offset_index import OffsetIndex
from tiered.format.producer_snapshot import decode_snapshot
from tiered.format.root import STATE_DELETING, Root, decode_root
from tiered.format.rows import NO_ROWS, Rows
from tiered.format.time_index import TimeIndex
from tiered.model import Row, TopicPartition
from tiered.plan.invariants import check_root
from tiered.plan.retention import has_wrong_times, times_of, wrong_times_text
from tiered.plan.root_lower_bounds import NOTHING_KNOWN
from tiered.plan.side_files import NO_PRODUCERS
from tiered.plan.sink_commit import passed_batch
from tiered.plan.visibility import open_firsts
from tiered.remote.catalog_view import CatalogView
from tiered.remote.gc.orphans import drop_named
from tiered.remote.pins import Pin
from tiered.remote.root_view import root_get, two_names
from tiered.remote.stale_root_check import find_newest_copy, left_without_root
from tiered.remote.topics import TopicEntry
from tiered.store.base import Begin, Get, Head, Missing, Object, Steps, StoreRequest, Take, list_all

ROWS_TOGETHER = 8
"""Segments whose objects are requested at once; their bundles are in memory at the same time."""

MAX_CHECKED_BUNDLE_BYTES = 64 * 1024 * 1024
"""Largest index bundle that is decoded; 8 of them may be in memory."""

MAX_ORPHANS = 10_000
"""Limit of listed unreferenced objects of one partition; more are counted."""

MAX_FOLLOWED = 64
"""Segments read before a part of a partition, to find the transactions that are open at its beginning."""

LOGGER = logging.getLogger("tiered.check")

Tell = Callable[[Iterable[Finding | Passed]], Steps[None]]


@dataclass(slots=True)
class RemoteFacts:
    """Totals over all partitions."""

    segments: int = 0
    size_bytes: int = 0
    unchecked: int = 0
    data_bytes_read: int = 0
    may_pin: bool = True
    archived: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class Reading:
    """Choice of the bytes to read of each segment beside its size, its checksum and its indexes.

    ``subset`` (n, m): the n-th of m parts of all segments, counted from 1, by their names: each is in exactly one.
    ``pin``: data is read under a pin, where one may be made.
    """

    data: bool = False
    subset: tuple[int, int] | None = None
    pin: bool = True

    def chooses(self, row: Row) -> bool:
        """Return True if every byte of the segment is to be read."""
        return self.data and (self.subset is None or _number(row) % self.subset[1] == self.subset[0] - 1)


def _number(row: Row) -> int:
    """Return 64 random bits of the object's name. Of a sink's object each half of the name has some of them."""
    uid = join_uid(row.id_hi, row.id_lo)
    number = int(uid[16:], 16)
    return number ^ int(uid[:16], 16) if row.flags & FLAG_STAGED else number


class RemoteCheck:
    """Check of one partition of the bucket. The last argument takes findings and progress."""

    def __init__(
        self, tp: TopicPartition, entry: TopicEntry, facts: RemoteFacts, local: PartitionFacts | None, tell: Tell
    ) -> None:
        self._tp, self._topic_id = tp, entry.topic_id
        self._facts, self._local, self._tell = facts, local, tell
        self._known = entry.known_with(local.known if local is not None else NOTHING_KNOWN)
        self._state, self._config = entry.state, entry.known_settings
        self._key = root_key(entry.topic_id, tp.partition)
        self._beside = SideFileCheck()

    def run(self, reading: Reading) -> Steps[None]:
        """Check the partition and report all findings. Raises the errors of a store that does not answer."""
        pinned = yield from self.catalog()
        if pinned is not None:
            yield from self._check_under_pin(pinned, reading, 0, MAX_LONG)

    def check_part(self, reading: Reading, start: int, end: int, *, with_root: bool) -> Steps[None]:
        """Check the segments whose base is in ``start`` to ``end`` (exclusive), under a pin of their own.

        Findings about the root are reported only ``with_root``: one of all parts does so.
        """
        pinned = yield from self.catalog(told=with_root)
        if pinned is not None:
            yield from self._check_under_pin(pinned, reading, start, end)

    def _check_under_pin(self, pinned: CatalogView, reading: Reading, start: int, end: int) -> Steps[None]:
        if not (reading.data and reading.pin and self._facts.may_pin and pinned.segments):
            yield from self.segments(pinned, start, end, reading)
            return
        pin = Pin(self._tp.topic, self._topic_id, self._tp.partition, set())
        try:
            held = yield from self._hold(pin, pinned)
            yield from self.segments(held or pinned, start, end, reading, pin if held is not None else None)
        except (TieredError, ObjectGone):
            yield from pin.drop()
            raise
        yield from pin.drop()

    def _hold(self, pin: Pin, pinned: CatalogView) -> Steps[CatalogView | None]:
        """Return the catalog under the pin. None without one: vanished objects are then sought in the newest root."""
        try:
            return (yield from pin.hold(pinned, partial(self._pin, Findings(self._key))))
        except TieredError as error:
            self._facts.may_pin = not isinstance(error, RemotePermissionError)  # asked once, not for each partition
            what = f"read without a pin: {error.message}; what a collection takes meanwhile is told as removed"
            found = Findings(self._key)
            found.add(Severity.INFO, "not_pinned", what)
            LOGGER.warning("%s is %s (--no-pin asks for none)", self._tp, what)
            yield from self._tell(found.about(*self._tp))
            return None

    def catalog(self, *, told: bool = True) -> Steps[CatalogView | None]:
        """Return the catalog, None if it is unusable. Report findings about the root, unless the caller opts out."""
        catalog = Findings(self._key)
        pinned = yield from self._pin(catalog)
        if pinned is not None:
            self._compare_positions(pinned.root, catalog)
            if self._state == STATE_DELETING != pinned.root.state:
                catalog.add(
                    Severity.WARNING,
                    "deletion",
                    f"the registry entry says that the topic is being deleted, and this root is {pinned.root.state}: "
                    f"readers refuse it, and the next maintainer goes on with the deletion. If that is wrong, put a "
                    f"version of topics/{self._tp.topic} back",
                )
            if told:
                yield from self._need_newest(pinned.root, catalog)
        if told:
            yield from self._tell(catalog.about(*self._tp))
        return pinned

    @property
    def _repair(self) -> str:
        """Return the command that shows how the partition is repaired."""
        return f"tiered repair {self._tp.topic}:{self._tp.partition} --dry-run"

    def _need_newest(self, root: Root, catalog: Findings) -> Steps[None]:
        """Report a newer root that ``hist/`` proves: segments that only it named would look like orphans."""
        try:
            newest = yield from find_newest_copy(root)
        except RemotePermissionError as refused:
            catalog.add(Severity.INFO, "not_listed", f"copies of newer roots are not looked for: {refused.message}")
            return
        if not newest.contradicts(root):
            return
        pinned = yield from self._pin(Findings(self._key))  # later commits leave copies, too
        if pinned is not None and (older := newest.contradicts(pinned.root)):
            catalog.error("went_back", f"an older root was put back: {older}; see `{self._repair}`")

    def segments(
        self, pinned: CatalogView, start: int, end: int, reading: Reading, pin: Pin | None = None
    ) -> Steps[None]:
        """Report on the segments whose base is in ``start`` to ``end`` (exclusive). Renew ``pin``."""
        try:
            last = yield from pinned.last()
            self._last_base = last.base if last is not None else -1
        except CorruptionError:
            self._last_base = -1  # reported below, when the rows get there
        if reading.data:
            yield from self._follow_up_to(pinned, start)
        at = start
        while at < end and len(rows := (yield from self._piece(pinned, at))):
            held = [row for row in rows if start <= row.base < end]
            for first in range(0, len(held), ROWS_TOGETHER):
                if pin is not None:
                    yield from pin.keep()
                yield from self._rows(held[first : first + ROWS_TOGETHER], reading)
            at = rows.end_offset

    def _follow_up_to(self, pinned: CatalogView, start: int) -> Steps[None]:
        """Rebuild the producers' state before ``start``, as if all earlier segments had been checked.

        The search begins at a segment after whose end no transaction is open, and follows at least one whole segment
        from there. A wrong snapshot is reported by the check of its own segment, and must not make this one look wrong.
        """
        before: list[tuple[Row, Bundle | None]] = []
        at = start
        while at > pinned.start_offset and len(before) < MAX_FOLLOWED:
            try:
                row = yield from pinned.at(at - 1)
            except CorruptionError:
                return  # the check of the rows in that page reports it
            if row is None or row.flags & FLAG_HOLE:
                break
            bundle = yield from self._silent_bundle(row)
            before.append((row, bundle))
            at = row.base
            if len(before) > 1 and _nothing_open(bundle):
                break
        if not before:
            return
        row, bundle = before.pop()
        if row.base > pinned.start_offset:
            self._beside.skip(_snapshot(bundle), row.next)
        else:
            before.append((row, bundle))
        read_bytes = self._facts.data_bytes_read
        for row, bundle in reversed(before):
            yield from self._data(row, bundle, Findings(""))
        self._facts.data_bytes_read = read_bytes

    def _silent_bundle(self, row: Row) -> Steps[Bundle | None]:
        most_bytes = min(max(row.idx_len, HEAD_BYTES), MAX_CHECKED_BUNDLE_BYTES)
        (found,) = yield from ask_all([Get(index_key(self._topic_id, self._tp.partition, row), 0, most_bytes)])
        if isinstance(found, RemotePermissionError):  # archived: counted where its segment is looked at
            return None
        return (yield from self._bundle(row, found, Findings("")))

    def _piece(self, pinned: CatalogView, at: int) -> Steps[Rows]:
        """Return rows of the catalog; none after a lost or damaged page, which is reported."""
        try:
            return (yield from pinned.piece(at))
        except CorruptionError as damage:
            found = Findings(damage.path_or_key)
            what = f"{damage.message}; what offsets from {max(damage.offset, at)} on are in is not known without it"
            what += f"; see `{self._repair}`"
            found.error("page", what, position=damage.position, offset=damage.offset)
            yield from self._tell(found.about(*self._tp))
            return NO_ROWS

    def orphans(self) -> Steps[None]:
        """List segments that neither the catalog names nor its trash, pages and all. Never report an error."""
        listed = yield from self._listing()
        pinned = yield from self._pin(Findings(self._key))
        found = Findings(partition_prefix(self._topic_id, self._tp.partition), limit=MAX_ORPHANS)
        unnamed = {uid: key for key, _ in listed if (uid := segment_uid(key))}
        if pinned is not None:
            try:
                yield from drop_named(pinned, unnamed)
            except CorruptionError as damage:
                what = f"{damage.message}; which objects no catalog names is not known without it"
                found.add(Severity.WARNING, "orphans_unknown", what, offset=damage.offset)
                yield from self._tell(found.about(*self._tp))
                return
        for key, size_bytes in listed:
            parsed, uid = parse_segment_key(key), segment_uid(key)
            code, what = "uncommitted", "not committed: under way, or left by a crash"
            if not uid:
                code, what = "foreign_object", "is not named as ours"
            elif uid not in unnamed:
                continue
            elif pinned is None:  # without a root nothing of it may be deleted
                code, what = "orphan", "there is no root to name it"
            elif parsed is None:
                if (batch := passed_batch(pinned.root, uid)) is not None:
                    code, what = "orphan", f"staged by an attempt at batch {batch[1]} of {batch[0]}, which is committed"
            elif parsed.name.epoch < pinned.root.roles[parsed.name.role.value].epoch:
                code, what = "orphan", "an orphan of a dead epoch"
            found.add(Severity.INFO, code, f"{key} ({size_bytes} bytes): {what}")
        yield from self._tell(found.about(*self._tp))

    def _pin(self, catalog: Findings) -> Steps[CatalogView | None]:
        try:
            found = yield root_get(self._key)
        except CorruptionError as damage:
            catalog.error("root", damage.message, position=damage.position)
            return None
        if isinstance(found, Missing):
            why = self._known.absent() or (yield from self._left_without_root(catalog))
            if why:
                catalog.error("root_missing", f"the root is gone; {why}; see `{self._repair}`")
            else:
                catalog.add(Severity.INFO, "no_root", "nothing was ever uploaded of this partition")
            return None
        try:
            root = decode_root(found.data, key=self._key)
        except CorruptionError as damage:
            catalog.error("root", damage.message, position=damage.position)
            return None
        except ConfigError as newer:
            catalog.error(NEWER_RELEASE, newer.message)
            return None
        if (root.topic_id, root.partition) != (self._topic_id, self._tp.partition):
            catalog.error("root", f"the root belongs to {root.where}")
            return None
        if root.topic != self._tp.topic:
            told = two_names(root, self._tp.topic)
            catalog.error("two_names", f"{told.message}; {told.hint}")
            return None
        for violation in check_root(root):
            catalog.error("invariant", str(violation))
        return CatalogView.from_root(root)

    def _left_without_root(self, catalog: Findings) -> Steps[str]:
        """Return a sentence that proves an earlier root, ``""`` without a proof."""
        try:
            key = yield from left_without_root(self._topic_id, self._tp.partition)
        except RemotePermissionError as refused:
            catalog.add(Severity.INFO, "not_listed", f"what is left of a root is not looked for: {refused.message}")
            return ""
        return f"{key} is there, and comes after it" if key else ""

    def _compare_positions(self, root: Root, catalog: Findings) -> None:
        local = self._local
        if local is None:
            return
        for older in self._known.contradictions(root):
            catalog.error("went_back", f"{older}; see `{self._repair}`")
        if local.segments and local.start_offset > root.next_offset:
            catalog.error(
                "tier_gap",
                f"offsets {root.next_offset} to {local.start_offset} are in neither tier",
                offset=root.next_offset,
            )
        if local.topic_id is not None and local.topic_id != self._topic_id:
            catalog.error("topic_id", f"the topic is {local.topic_id} on this disk, {self._topic_id} in the bucket")

    def _rows(self, rows: list[Row], reading: Reading) -> Steps[None]:
        held = [row for row in rows if not row.flags & FLAG_HOLE]
        requests: list[StoreRequest] = []
        for row in held:
            # Read the bundle's bytes by the row, and enough to reveal a wrong row or object.
            most_bytes = min(max(row.idx_len, HEAD_BYTES), MAX_CHECKED_BUNDLE_BYTES)
            requests.append(Head(segment_key(self._topic_id, self._tp.partition, row)))
            requests.append(Get(index_key(self._topic_id, self._tp.partition, row), 0, most_bytes))
        outcomes = iter((yield from ask_all(requests)))
        for row in held:
            self._facts.segments += 1
            self._facts.size_bytes += row.size
            findings = Findings(segment_key(self._topic_id, self._tp.partition, row))
            intact = yield from self._log_object(row, next(outcomes), findings)
            bundle = yield from self._bundle(row, next(outcomes), findings)
            if intact and reading.chooses(row):
                yield from self._data(row, bundle, findings)
            else:
                self._beside.skip(_snapshot(bundle), row.next)
            self._compare_local(row, findings)
            if has_wrong_times(row, self._config):
                findings.add(Severity.WARNING, "timestamps_not_used", wrong_times_text(*times_of(row)), offset=row.base)
            passed = Passed(row.size if reading.chooses(row) else 0, str(self._tp))
            yield from self._tell([passed, *findings.about(*self._tp)])

    def _log_object(self, row: Row, found: object, findings: Findings) -> Steps[bool]:
        if isinstance(found, CorruptionError):
            findings.error("object", found.message, position=found.position, offset=row.base)
            return False
        if not isinstance(found, Object):
            yield from self._gone(row, f"the object is gone; it holds offsets {row.base} to {row.next}", findings)
            return False
        if found.size != row.size:
            findings.error(
                "object_size", f"the object has {found.size} bytes, the catalog says {row.size}", offset=row.base
            )
            return False
        if found.archived:
            self._note_archived(row, "the object", found.archived, findings)
        if found.crc32c is None:
            self._facts.unchecked += 1
        elif found.crc32c != row.crc:
            findings.error(
                "object_checksum",
                f"the object's CRC32C is {found.crc32c:#010x}, the catalog says {row.crc:#010x}",
                offset=row.base,
            )
        return not found.archived

    def _bundle(self, row: Row, found: object, findings: Findings) -> Steps[Bundle | None]:
        key = index_key(self._topic_id, self._tp.partition, row)
        if isinstance(found, CorruptionError):
            findings.error("index_bundle", f"{key}: {found.message}", position=found.position, offset=row.base)
            return None
        if isinstance(found, RemotePermissionError):
            about = yield Head(key)  # the refusal does not name the storage class
            kind = (about.archived if isinstance(about, Object) else "") or "GLACIER"
            self._note_archived(row, f"the index bundle {key}", kind, findings)
            return None
        if not isinstance(found, Object):
            yield from self._gone(row, f"the index bundle {key} is gone; the .log can rebuild it", findings)
            return None
        if found.size != row.idx_len:
            findings.error(
                "index_size", f"{key} has {found.size} bytes, the catalog says {row.idx_len}", offset=row.base
            )
        if len(found.data) != found.size:
            if row.idx_len > MAX_CHECKED_BUNDLE_BYTES:
                message = f"{key} has {found.size} bytes, {MAX_CHECKED_BUNDLE_BYTES} are the most that is looked into"
                findings.add(Severity.WARNING, "index_bundle", message, offset=row.base)
            return None
        try:
            bundle = decode_bundle(found.data, key=key)
        except CorruptionError as damage:
            findings.error("index_bundle", f"{key}: {damage.message}", position=damage.position, offset=row.base)
            return None
        except ConfigError as newer:
            findings.error(NEWER_RELEASE, f"{key}: {newer.message}", offset=row.base)
            return None
        self._compare_bundle(row, bundle, findings)
        return bundle

    def _note_archived(self, row: Row, what: str, kind: str, findings: Findings) -> None:
        """Count the segment once, whichever of its objects is archived."""
        if all(found.code != "archived" for found in findings.items):
            self._facts.archived[kind] += 1
        findings.add(
            Severity.WARNING,
            "archived",
            f"{what} is archived ({kind}), no reader gets it; restore it (aws s3api restore-object) "
            "and take this prefix out of the lifecycle rule",
            offset=row.base,
        )

    def _compare_bundle(self, row: Row, bundle: Bundle, findings: Findings) -> None:
        for flaw in bundle_flaws(self._topic_id, self._tp.partition, row, bundle):
            findings.error("descriptor", flaw, offset=row.base)
        inspect_other_indexes(bundle.indexes, row.base, findings)
        try:
            offsets = OffsetIndex.from_bytes(bundle.indexes.offset_index, row.base)
            times = TimeIndex.from_bytes(bundle.indexes.time_index, row.base)
        except CorruptionError as damage:
            findings.error("index_bundle", damage.message, position=damage.position)
            return
        if not offsets.is_sane(row.size) or not times.is_sane(row.next):
            findings.error("index_bundle", "entries of the bundle's indexes are out of order or beyond the segment")

    def _data(self, row: Row, bundle: Bundle | None, findings: Findings) -> Steps[None]:
        key, first = segment_key(self._topic_id, self._tp.partition, row), len(findings.items)
        self._beside.begin(row.base)
        # Rewritten segments have holes by design; a writer's may be of a topic that is compacted on disk.
        expected, indexes = Expectations(decode=True), bundle.indexes if bundle is not None else None
        look = LogInspection(
            row.size, _origin(row), findings, expected, indexes=indexes, follower=self._beside.follower
        )
        try:
            yield from fetch_log(self._tp, key, row, look.feed, told=False)
        except CorruptionError as damage:
            if isinstance(damage, ObjectGone):
                yield from self._gone(row, f"the object {key} is gone", findings)
            else:
                findings.error("object", damage.message, position=damage.position, offset=row.base)
            self._beside.skip(_snapshot(bundle), row.next)
            return
        scan = look.end()
        if bundle is not None and scan.crc32c == row.crc:
            compare_descriptor(scan, bundle.descriptor, findings)
        _place(findings, first, row.base - _origin(row))
        self._facts.data_bytes_read += scan.size_bytes
        if scan.crc32c != row.crc:
            findings.error(
                "object_checksum",
                f"the bytes have CRC32C {scan.crc32c:#010x}, the catalog says {row.crc:#010x}",
                offset=row.base,
            )
        elif bundle is not None:
            self._compare_side_files(row, bundle, findings)
            return
        self._beside.skip(_snapshot(bundle), row.next)

    def _compare_side_files(self, row: Row, bundle: Bundle, findings: Findings) -> None:
        """Compare transactions and producers in the bundle with the markers in a ``.log`` that is whole."""
        if row.flags & FLAG_STAGED:
            self._beside.skip(NO_PRODUCERS, row.next)
            return
        key = index_key(self._topic_id, self._tp.partition, row)
        txns, producers = self._beside.compare(row.base, row.next, bundle.indexes.txn_index, _snapshot(bundle))
        if txns.flaw is not None:
            severity = Severity.ERROR if txns.proven else Severity.WARNING
            findings.add(
                severity,
                "txn_index_lost",
                f"{key}: the transaction index is not what the log tells: {txns.flaw}; read_committed is wrong for "
                "readers of this bucket. The .log is whole: `tiered restore` writes the index anew, on a disk",
                offset=row.base,
            )
        if producers.flaw is not None:
            is_last = row.base == self._last_base
            findings.add(
                Severity.ERROR if is_last and producers.proven else Severity.WARNING,
                "producer_snapshot_lost",
                f"{key}: the producer snapshot is not what the log tells: {producers.flaw}; "
                + (
                    "read_committed may show what is undecided, and who continues the log forgets its producers. "
                    if is_last
                    else "later segments have theirs. "
                )
                + "The .log is whole: `tiered restore` writes the snapshot anew, on a disk",
                offset=row.base,
            )

    def _gone(self, row: Row, message: str, findings: Findings) -> Steps[None]:
        """Report a missing object. It is damage if the newest root names it: retention may have deleted it."""
        pinned = yield from self._pin(Findings(self._key))
        now = (yield from pinned.at(row.base)) if pinned is not None else None
        if pinned is not None and (now is None or (now.id_hi, now.id_lo) != (row.id_hi, row.id_lo)):
            findings.add(Severity.INFO, "removed_meanwhile", f"{message}: the newest root names it no more")
        else:
            findings.error("object_missing", message, offset=row.base)

    def _compare_local(self, row: Row, findings: Findings) -> None:
        """Report different bytes where both tiers hold a segment that the writer uploaded."""
        if self._local is None or row.flags & (FLAG_MAINTAINER | FLAG_STAGED):
            return
        facts = self._local.segments.get(row.base)
        if facts is None or not facts.sealed or self._local.topic_id not in (None, self._topic_id):
            return
        if not facts.size_bytes and row.base == self._local.end_offset:
            return  # another volume went on where this disk ends: its empty active segment says nothing else
        if (facts.size_bytes, facts.crc32c) != (row.size, row.crc):
            findings.error(
                "tiers_differ",
                f"this disk has {facts.size_bytes} bytes with CRC32C {facts.crc32c:#010x}, "
                f"the bucket {row.size} with {row.crc:#010x}",
                offset=row.base,
            )

    def _listing(self) -> Steps[list[tuple[str, int]]]:
        listed = yield from list_all(partition_prefix(self._topic_id, self._tp.partition) + "s/")
        return [(entry.key, entry.size) for entry in listed]


def bundle_flaws(topic_id: UUID, partition: int, row: Row, bundle: Bundle) -> Iterator[str]:
    """Return a sentence for each field in which a bundle differs from its row."""
    noted, staged = bundle.descriptor, bool(row.flags & FLAG_STAGED)
    base = _origin(row)  # a sink knows neither the place nor the epochs of what it stages
    pairs = (
        ("topic id", noted.topic_id, topic_id),
        ("partition", noted.partition, partition),
        ("base offset", noted.base_offset, base),
        ("end offset", noted.end_offset, base + row.next - row.base),
        ("smallest timestamp", noted.min_timestamp, row.min_ts),
        ("largest timestamp", noted.max_timestamp, row.max_ts),
        ("records", noted.records, row.records),
        ("size", noted.size_bytes, row.size),
        ("CRC32C", noted.crc32c, row.crc),
        ("leader epoch", noted.leader_epoch, noted.leader_epoch if staged else row.leader_epoch),
        ("claim epoch", bundle.claim_epoch, 0 if staged else row.claim_epoch),
        ("aborted transactions", bool(bundle.indexes.txn_index), bool(row.flags & FLAG_ABORTED_TXNS)),
        ("transaction", bundle.txn, bundle.txn if is_staged_by(row, bundle.txn) else ""),
    )
    for what, in_bundle, in_row in pairs:
        if in_bundle != in_row:
            yield f"the {what} is {in_bundle} in the bundle, {in_row} in the catalog"


def _origin(row: Row) -> int:
    """Return the first offset in the bytes of a segment."""
    return 0 if row.flags & FLAG_STAGED else row.base


def _place(findings: Findings, first: int, base: int) -> None:
    """Shift findings in a staged segment, from ``first`` on, by ``base``; messages name the stored offsets."""
    for number, found in enumerate(findings.items[first:] if base else (), start=first):
        if found.offset >= 0:
            what = f"{found.message} (in the offsets of the object, which begin at 0 and not at {base})"
            findings.items[number] = replace(found, offset=found.offset + base, message=what)


def _snapshot(bundle: Bundle | None) -> bytes | None:
    return (bundle.indexes.producer_snapshot or None) if bundle is not None else None


def _nothing_open(bundle: Bundle | None) -> bool:
    try:
        return bundle is not None and not open_firsts(decode_snapshot(_snapshot(bundle) or NO_PRODUCERS))
    except CorruptionError:
        return False


def size_steps(tps: Iterable[tuple[UUID, int]], parts: int) -> Steps[int]:
    """Return the bytes of the segments of these partitions by their roots, divided by ``parts``: for a progress bar."""
    total, keys = 0, [root_key(topic_id, partition) for topic_id, partition in tps]
    for start in range(0, len(keys), ROWS_TOGETHER):
        some = keys[start : start + ROWS_TOGETHER]
        for key, found in zip(some, (yield from ask_all(map(root_get, some))), strict=True):
            if isinstance(found, Object):
                with contextlib.suppress(TieredError):  # reported when its turn comes
                    total += CatalogView.from_root(decode_root(found.data, key=key)).size_bytes // parts
    return total


def ask_all(requests: Iterable[StoreRequest]) -> Steps[list[object]]:
    """Return each outcome, or the error for an object that is unreadable or archived."""
    tickets = []
    for request in requests:
        ticket = yield Begin(request)
        tickets.append(ticket)
    outcomes: list[object] = []
    for ticket in tickets:
        try:
            outcomes.append((yield Take(ticket)))
        except CorruptionError as damage:
            outcomes.append(damage)
        except RemotePermissionError as refused:
            if not refused.is_archived:
                raise
            outcomes.append(refused)
    return outcomes
