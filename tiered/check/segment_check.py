"""Check of segments in the bucket: the two objects of each row, the index bundle, and on request every byte.

One HEAD and one GET of the index bundle for each segment. The producers are followed from one segment to the next.
``judge_log`` and ``judge_index`` compare the objects of one row for ``repair``.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple
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
from tiered.errors import ConfigError, CorruptionError, NewerFormatError, RemotePermissionError
from tiered.format.bundle import HEAD_BYTES, MAX_BUNDLE_BYTES, Bundle, decode_bundle
from tiered.format.kernels import crc32c
from tiered.format.keys import (
    FLAG_ABORTED_TXNS,
    FLAG_HOLE,
    FLAG_MAINTAINER,
    FLAG_STAGED,
    index_key,
    is_staged_by,
    join_uid,
    segment_key,
)
from tiered.format.producer_snapshot import decode_snapshot
from tiered.format.segment_indexes import OffsetIndex, TimeIndex
from tiered.model import Row, TopicPartition
from tiered.plan.maintenance import READ_BYTES
from tiered.plan.retention import has_wrong_times, times_of, wrong_times_text
from tiered.plan.side_files import NO_PRODUCERS
from tiered.plan.visibility import open_firsts
from tiered.remote.catalog_view import CatalogView
from tiered.remote.topics import TopicEntry
from tiered.store.base import Begin, Blocking, Get, Head, Object, Steps, StoreRequest, Take

MAX_CHECKED_BUNDLE_BYTES = 64 * 1024 * 1024
"""Largest index bundle that is decoded; 8 of them may be in memory."""

MAX_FOLLOWED = 64
"""Segments read before a part of a partition, to find the transactions that are open at its beginning."""

Reporter = Callable[[Iterable[Finding | Passed]], Steps[None]]

ENTRY_CODES = ("offset_index", "time_index")
"""Codes of findings about entries in the indexes of a segment."""


@dataclass(slots=True)
class RemoteFacts:
    """Totals of a bucket's check over all partitions. ``unchecked``: objects without a checksum in the store.

    ``archived``: number of archived segments by storage class.
    """

    segments: int = 0
    size_bytes: int = 0
    unchecked: int = 0
    data_bytes_read: int = 0
    archived: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class Reading:
    """Choice of the segments whose every byte is read. Size, checksum and indexes are always checked.

    ``data`` False: none. ``subset`` (n, m): the n-th of m parts, from 1, chosen by object names; each segment is in
    exactly one.
    """

    data: bool = False
    subset: tuple[int, int] | None = None

    def chooses(self, row: Row) -> bool:
        """Return True if every byte of the segment is to be read."""
        return self.data and (self.subset is None or _number(row) % self.subset[1] == self.subset[0] - 1)


def _number(row: Row) -> int:
    """Return 64 random bits of the object's name. In the name of a sink's object they are spread over both halves."""
    uid = join_uid(row.id_hi, row.id_lo)
    number = int(uid[16:], 16)
    return number ^ int(uid[:16], 16) if row.flags & FLAG_STAGED else number


class SegmentCheck:
    """Check of the segments of one partition, in ascending order. ``newest``: steps that read the root again."""

    def __init__(
        self,
        tp: TopicPartition,
        entry: TopicEntry,
        facts: RemoteFacts,
        local: PartitionFacts | None,
        reporter: Reporter,
        *,
        newest: Callable[[], Steps[CatalogView | None]],
    ) -> None:
        self._tp, self._topic_id, self._config = tp, entry.topic_id, entry.known_settings
        self._facts, self._local, self._report, self._newest = facts, local, reporter, newest
        self._beside = SideFileCheck()
        self._last_base = -1

    def start_segment(self, pinned: CatalogView) -> Steps[None]:
        """Begin the check of a catalog: remember its last segment.

        A wrong producer snapshot is an error only there, and elsewhere a warning.
        """
        self._last_base = -1
        with contextlib.suppress(CorruptionError):
            last = yield from pinned.last()
            self._last_base = last.base if last is not None else -1

    def follow_up_to(self, pinned: CatalogView, start: int) -> Steps[None]:
        """Rebuild the producer state at ``start`` from earlier segments, which another part checks.

        Read the segments after the nearest one at whose end no transaction is open. These are at least one, and at most
        :data:`MAX_FOLLOWED`. Findings about them are dropped, because their own check reports them.
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

    def rows(self, rows: list[Row], reading: Reading) -> Steps[None]:
        """Check the segments of some rows. Their objects are requested concurrently.

        ``reading``: the segments of which every byte is read.
        """
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
            yield from self._report([passed, *findings.about(*self._tp)])

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
        """Add a warning about an archived object. Its segment is counted once, even if both objects are archived.

        ``what``: the object, for the message. ``kind``: its storage class.
        """
        if all(found.code != "archived" for found in findings.items):
            self._facts.archived[kind] += 1
        message = f"{what} is archived ({kind}), no reader gets it; restore it (aws s3api restore-object) and take "
        findings.add(Severity.WARNING, "archived", f"{message}this prefix out of the lifecycle rule", offset=row.base)

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
        self._beside.start_segment(row.base)
        # Rewritten segments have holes by design; a writer's may be of a topic that is compacted on disk.
        expected, indexes = Expectations(decode=True), bundle.indexes if bundle is not None else None
        look = LogInspection(
            row.size, _origin(row), findings, expected, indexes=indexes, follower=self._beside.follower
        )
        try:
            yield from fetch_log(self._tp, key, row, look.feed, emits_progress=False)
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
        for number, found in enumerate(findings.items[first:], start=first):
            if found.code in ENTRY_CODES:
                at = f"{index_key(self._topic_id, self._tp.partition, row)}: {found.message}"
                findings.items[number] = replace(found, message=at)
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
                f"{key}: the transaction index differs from the log: {txns.flaw}; read_committed is wrong for "
                "readers of this bucket. The .log is whole: `tiered restore` rebuilds the index on a disk",
                offset=row.base,
            )
        if producers.flaw is not None:
            is_last = row.base == self._last_base
            findings.add(
                Severity.ERROR if is_last and producers.proven else Severity.WARNING,
                "producer_snapshot_lost",
                f"{key}: the producer snapshot differs from the log: {producers.flaw}; "
                + (
                    "read_committed may show what is undecided, and who continues the log forgets its producers. "
                    if is_last
                    else "later segments have theirs. "
                )
                + "The .log is whole: `tiered restore` rebuilds the snapshot on a disk",
                offset=row.base,
            )

    def _gone(self, row: Row, message: str, findings: Findings) -> Steps[None]:
        """Report a missing object. It is damage if the newest root still names it or cannot be read.

        Otherwise a later commit removed the row, and the object was deleted rightly.
        """
        pinned = yield from self._newest()
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


def bundle_flaws(topic_id: UUID, partition: int, row: Row, bundle: Bundle) -> Iterator[str]:
    """Yield a sentence for each field in which an index bundle differs from its row."""
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
    """Add ``base`` to the offsets of findings in a staged segment. Their messages name the stored offsets.

    ``first``: index of the first finding of this segment.
    """
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


def ask_all(requests: Iterable[StoreRequest]) -> Steps[list[object]]:
    """Send all requests concurrently.

    Return the outcome of each, or its error if the object is unreadable or archived.
    """
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


# -- one row -----------------------------------------------------------------------------------------------------------


class ObjectVerdict(NamedTuple):
    """Result of the check of one object. ``problem``: ``""`` if it is right. ``etag``, ``size``: of the stored object.

    ``bundle``: the decoded index bundle, None for a ``.log`` and for a damaged one.
    """

    key: str
    problem: str
    etag: str = ""
    size: int = 0
    bundle: Bundle | None = None


def own_row(row: Row) -> Row:
    """Return the row with offsets as in its objects. A segment that a sink staged begins at 0 there."""
    return row._replace(base=0, next=row.next - row.base) if row.flags & FLAG_STAGED else row


def judge_segment(topic_id: UUID, tp: TopicPartition, row: Row) -> Steps[tuple[ObjectVerdict, ObjectVerdict]]:
    """Read both objects of a row, and return the verdicts about the ``.log`` and the ``.idx``.

    Entries of the offset and time index are compared with the batches of a right ``.log``.
    """
    index, findings = (yield from judge_index(topic_id, tp, row)), Findings("")
    indexes = None if index.bundle is None else index.bundle.indexes
    look = LogInspection(row.size, _origin(row), findings, indexes=indexes)
    log = yield from judge_log(topic_id, tp, row, read_data=True, take=look.feed)
    if not log.problem:
        look.end()
        wrong = [found.message for found in findings.items if found.code in ENTRY_CODES]
        index = index._replace(problem=index.problem or "; ".join(wrong[:1]))
    return log, index


def judge_log(
    topic_id: UUID, tp: TopicPartition, row: Row, *, read_data: bool, take: Callable[[bytes], object] | None = None
) -> Steps[ObjectVerdict]:
    """Compare a ``.log`` object with size and checksum in its row. Return the verdict.

    ``read_data``: compute the checksum from all its bytes, and call ``take`` with each piece. False: only if the store
    has no checksum.
    """
    key = segment_key(topic_id, tp.partition, row)
    head = yield Head(key)
    if not isinstance(head, Object):
        return ObjectVerdict(key, "the .log is missing")
    problem = ""
    if head.size != row.size:
        problem = f"the .log has {head.size} bytes, the catalog says {row.size}"
    elif head.crc32c not in (None, row.crc):
        problem = f"the .log has CRC32C {head.crc32c:#010x}, the catalog says {row.crc:#010x}"
    elif (read_data or head.crc32c is None) and (yield from object_crc32c(key, row.size, take=take)) != row.crc:
        problem = f"the bytes of the .log do not have CRC32C {row.crc:#010x}, which the catalog says"
    return ObjectVerdict(key, problem, head.etag, head.size)


def judge_index(topic_id: UUID, tp: TopicPartition, row: Row) -> Steps[ObjectVerdict]:
    """Read an index bundle and compare it with its row. Return the verdict.

    Raises NewerFormatError for a bundle of a newer release, which may be right.
    """
    key = index_key(topic_id, tp.partition, row)
    got = yield Get(key, 0, MAX_BUNDLE_BYTES)
    if not isinstance(got, Object):
        return ObjectVerdict(key, "the .idx is missing")
    bundle, problem = read_index(bytes(got.data), topic_id, tp, row, key)
    return ObjectVerdict(key, problem, got.etag, got.size, bundle)


def read_index(data: bytes, topic_id: UUID, tp: TopicPartition, row: Row, key: str) -> tuple[Bundle | None, str]:
    """Decode the index bundle in ``data`` and compare it with its row. Return (bundle, ``""``) or (None, the problem).

    Raises NewerFormatError for a bundle of a newer release, which may be right.
    """
    own = own_row(row)
    try:
        bundle = decode_bundle(data, key=key)
        offsets = OffsetIndex.from_bytes(bundle.indexes.offset_index, own.base)
        times = TimeIndex.from_bytes(bundle.indexes.time_index, own.base)
    except NewerFormatError:
        raise
    except CorruptionError as damage:
        return None, f"the .idx cannot be read: {damage.message}"
    if len(data) != row.idx_len or any(bundle_flaws(topic_id, tp.partition, row, bundle)):
        return None, "the .idx describes other bytes than the catalog"
    if not offsets.is_sane(own.size) or not times.is_sane(own.next):
        return None, "the indexes in the .idx do not rise"
    return bundle, ""


def object_crc32c(key: str, size: int, version: str = "", take: Callable[[bytes], object] | None = None) -> Steps[int]:
    """Read the first ``size`` bytes of an object and return their CRC32C; -1 if it is shorter.

    ``take``: called with each piece, if not None. ``version``: version id of the object, ``""`` for the current one.
    """
    crc = at = 0
    while at < size:
        got = yield Get(key, at, min(at + READ_BYTES, size), version=version)
        if not isinstance(got, Object) or not got.data:
            return -1
        if take is not None:
            yield Blocking(partial(take, got.data))
        crc, at = crc32c(got.data, crc), at + len(got.data)
    return crc
