"""What a partition keeps beside its newest catalog, as ``check`` sees it: each can be read, and does what it is for.

Of snapshots all that they name must be there, and what only they name must be right: nobody else looks at it. A pin or
a garbage page that cannot be read holds every collection up. Copies below ``hist/`` are there for people who rebuild,
audit lines for people who ask what was deleted: the newest is read, all others with the data. A snapshot that most
partitions of a topic have, and others lost, is told once all were looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeVar
from uuid import UUID

from tiered.checking.inspection import ObjectGone, fetch_log
from tiered.errors import ConfigError, CorruptionError, RemotePermissionError, TieredError
from tiered.findings import MAX_SAME_FINDINGS, NEWER_RELEASE, Finding, Findings, Severity
from tiered.format.bundle import decode_bundle
from tiered.format.crc import crc32c
from tiered.format.keys import (
    FLAG_HOLE,
    gc_audit_prefix,
    index_key,
    parse_gc_audit_key,
    parse_hist_key,
    parse_snap_key,
    partition_prefix,
    segment_key,
    snap_key,
)
from tiered.format.page import PageKind
from tiered.format.rows import Trash
from tiered.format.trash import TRASH_LIST
from tiered.model import Row, TopicPartition
from tiered.remote.audit import MAX_LINE_BYTES, read_line
from tiered.remote.collect import page_key_of, trash_page
from tiered.remote.past import Taken, is_held_still, load_copy, load_snapshot
from tiered.remote.pins import let_go, live_pins, read_pin
from tiered.remote.root_view import RootView
from tiered.remote.snapshot import Snapshot
from tiered.store.base import Get, Head, ListEntry, Object, Outcome, Steps, Together, list_all

T = TypeVar("T")

LINES_AT_ONCE = 16
"""Audit lines that are asked for together."""
NAMED_PARTITIONS = 8
"""That a finding names; of the others it tells how many there are."""
NAMED_OBJECTS = 8
"""As above, of the objects that a snapshot names and that are gone or wrong."""


class _Had(NamedTuple):
    """The snapshots of one partition, when each was put, by name; and when the partition was made."""

    since_ms: Mapping[str, int]
    created_ms: int


class SnapshotNames:
    """Which snapshots the partitions of one topic have: ``snapshot create`` takes them of all that it is told."""

    def __init__(self) -> None:
        self._had: dict[int, _Had] = {}

    def note(self, partition: int, since_ms: Mapping[str, int], created_ms: int) -> None:
        """What was seen below ``snap/`` of a partition whose root was made at ``created_ms``."""
        self._had[partition] = _Had(since_ms, created_ms)

    def missing(self, topic: str, topic_id: UUID) -> Steps[list[Finding]]:
        """A finding for each snapshot that some partitions have, and that others lack which were there by then.

        These are asked once more: it may have been taken since they were looked at, be begun, or leave a note.
        """
        found: list[Finding] = []
        for name in sorted({name for had in self._had.values() for name in had.since_ms}):
            having = [partition for partition, had in self._had.items() if name in had.since_ms]
            until_ms = max(self._had[partition].since_ms[name] for partition in having)
            lacking: list[int] = []
            for partition, had in self._had.items():
                if name not in had.since_ms and had.created_ms <= until_ms:
                    now = yield Head(snap_key(topic_id, partition, name))
                    lacking += [] if isinstance(now, Object) else [partition]
            if lacking:
                findings = Findings(snap_key(topic_id, lacking[0], name))
                severity = Severity.INFO if len(lacking) > len(having) else Severity.WARNING
                findings.add(severity, "snapshot_missing", _missing(topic, name, having, lacking))
                found += findings.about(topic, lacking[0])
        return found


def _missing(topic: str, name: str, having: Sequence[int], lacking: Sequence[int]) -> str:
    return (
        f"snapshot {name} is there of {_partitions(having)} of {topic}, and not of {_partitions(lacking)}, where "
        "nothing says that it was deleted: who reads as of it is refused there, `tiered restore --as-of` makes them "
        "empty. If it was taken of the first alone, all is well. Else put the object back from a version or a backup "
        "of the bucket before the next `tiered gc run`: nothing holds any more what it held"
    )


def _partitions(numbers: Sequence[int]) -> str:
    more = len(numbers) - NAMED_PARTITIONS
    named = ", ".join(map(str, numbers[:NAMED_PARTITIONS])) + (f" and {more:,} more" if more > 0 else "")
    return f"partition{'s' if len(numbers) > 1 else ''} {named}"


class _Flaws:
    """What is wrong with objects that a snapshot names: the first few, and how many there are."""

    def __init__(self) -> None:
        self.named: list[str] = []
        self.count = 0
        self.first: CorruptionError | None = None

    def add(self, flaw: CorruptionError | str) -> None:
        """One more."""
        self.count += 1
        if self.first is None and isinstance(flaw, CorruptionError):
            self.first = flaw
        if self.count <= NAMED_OBJECTS:
            self.named.append(flaw.message if isinstance(flaw, CorruptionError) else flaw)

    def __str__(self) -> str:
        more = self.count - len(self.named)
        return "; ".join(self.named) + (f"; {more:,} more are gone or wrong" if more else "")


class _Judged(NamedTuple):
    """A segment that a snapshot names: what is wrong with its ``.log``, else with its bundle."""

    log: CorruptionError | None = None
    bundle: str = ""


def check_kept(
    tp: TopicPartition, view: RootView, *, read_data: bool, names: SnapshotNames | None = None
) -> Steps[list[Finding]]:
    """What is wrong with snapshots, pins, garbage pages, the newest copy and the newest audit line of a partition; with
    ``read_data`` with all copies and lines. ``names``: is told of the snapshots that there are.

    Lists all but the pages, and the segments where there are any snapshots.
    """
    kept = _Kept(tp, view, read_data, names or SnapshotNames())
    prefix = partition_prefix(view.topic_id, view.partition)
    lines = gc_audit_prefix(view.topic_id, view.partition)
    yield from kept.look("snap/", prefix + "snap/", list_all(prefix + "snap/"), kept.snapshots)
    yield from kept.look("pin/", prefix + "pin/", live_pins(view.topic_id, view.partition), kept.pins)
    yield from kept.look("hist/", prefix + "hist/", _keys(prefix + "hist/"), kept.copies)
    yield from kept.look("jobs/gc/", lines, _keys(lines), kept.lines)
    yield from kept.garbage()
    return kept.found


def _keys(prefix: str) -> Steps[list[str]]:
    return [entry.key for entry in (yield from list_all(prefix))]


class _Kept:
    """One partition. ``found``: what was found so far."""

    def __init__(self, tp: TopicPartition, view: RootView, read_data: bool, names: SnapshotNames) -> None:
        self._tp, self._view, self._read_data, self._names = tp, view, read_data, names
        self._sizes: dict[str, int] | None = None
        self._judged: dict[tuple[int, int], _Judged] = {}  # by the segment's id
        self._newest: Snapshot | None = None
        self.found: list[Finding] = []

    def look(
        self, folder: str, under: str, listing: Steps[list[T]], looks: Callable[[list[T]], Steps[None]]
    ) -> Steps[None]:
        """``looks`` at what there is; where it may not be listed, says that nobody looked."""
        try:
            listed = yield from listing
        except RemotePermissionError as error:
            self.refused(under, folder, error)
        else:
            yield from looks(listed)

    def refused(self, under: str, folder: str, error: RemotePermissionError) -> None:
        """Says that nobody looked."""
        findings = Findings(under)
        findings.add(Severity.INFO, "not_listed", f"{folder} is not looked at: {error.message}")
        self.found += findings.about(*self._tp)

    def snapshots(self, listed: Sequence[ListEntry]) -> Steps[None]:
        """Each can be read, says that it is one, and all that it names is there."""
        found = {name: entry for entry in listed if (name := parse_snap_key(entry.key)) is not None}
        since_ms = {name: entry.last_modified_ms for name, entry in found.items()}
        for name, entry in found.items():
            findings, taken = Findings(entry.key), None
            try:
                taken = yield from load_snapshot(self._view, name)
                if taken is None or taken.begun:
                    del since_ms[name]
                    continue
                logs, bundles = yield from self._look_at_all(taken)
                if (logs.count or bundles.count) and not (yield from self._is_held(taken)):
                    continue  # deleted meanwhile: what it held may be collected
                if logs.first is not None:
                    what = f"snapshot {name}: {logs}; {let_go(*self._tp, name)}"
                    findings.error("snapshot", what, position=logs.first.position, offset=logs.first.offset)
                if bundles.count:
                    findings.add(Severity.WARNING, "snapshot_index", self._wrong_bundles(name, bundles))
            except CorruptionError as damage:
                what = f"snapshot {name}: {damage.message}; {let_go(*self._tp, name)}"
                findings.error("snapshot", what, position=damage.position, offset=damage.offset)
            except ConfigError as newer:
                findings.error(NEWER_RELEASE, newer.message)
            self.found += findings.about(*self._tp)
        newest = yield from self._pinned()
        if newest is not None:
            self._names.note(self._tp.partition, since_ms, newest.root.created_ms)

    def _wrong_bundles(self, name: str, bundles: _Flaws) -> str:
        return (
            f"snapshot {name}: {bundles}; no record is lost by that: the .log is right, and `tiered restore --as-of "
            f"{name}` makes the indexes anew, on a disk. The bucket's stay as they are as long as the snapshot is "
            f"there: {let_go(*self._tp, name)}"
        )

    def pins(self, keys: list[str]) -> Steps[None]:
        """Each can be read: else nothing is collected until it is old enough to count for nothing."""
        for key in keys:
            got = yield Get(key)
            try:
                if isinstance(got, Object):
                    read_pin(got.data, key=key)
            except CorruptionError as damage:
                self._add(key, "pin", damage)

    def copies(self, keys: list[str]) -> Steps[None]:
        """Each can be read, and is of the version that its key tells. No protocol rests on one: a warning for all.

        A rebuild goes on from the newest: that one is looked at without the data, too.
        """
        bad: list[str] = []
        why = ""
        keys = [key for key in keys if parse_hist_key(key) is not None]
        keys = keys if self._read_data else keys[-1:]
        for key in keys:
            try:
                yield from load_copy(self._view, key)
            except (CorruptionError, ConfigError) as damage:
                bad.append(key)
                why = f"{damage.message}; {damage.hint}" if damage.hint else damage.message
        if bad:
            findings = Findings(bad[-1])
            which = f"{len(bad)} of {len(keys)} copies cannot be read, the newest of them"
            what = (
                f"{which if self._read_data else 'the newest copy cannot be read'}: {why}; a lost root is rebuilt from "
                "an older copy then, and no reader sees those versions: put them back from a version or a backup of "
                "the bucket; while the root is whole nothing needs them, and they may go"
            )
            findings.add(Severity.WARNING, "hist", what)
            self.found += findings.about(*self._tp)

    def lines(self, keys: list[str]) -> Steps[None]:
        """Each tells something of this partition. Only its key is what anything rests on: a warning."""
        lines = [key for key in keys if parse_gc_audit_key(key) is not None]
        lines = lines if self._read_data else lines[-1:]
        bad = 0
        for at in range(0, len(lines), LINES_AT_ONCE):
            group = lines[at : at + LINES_AT_ONCE]
            gets = tuple(Get(key, max_bytes=MAX_LINE_BYTES) for key in group)
            for key, got in zip(group, (yield Together(gets, errors=True)), strict=True):
                if isinstance(got, RemotePermissionError):  # a role may list lines, and read none
                    self.refused(key, "jobs/gc/", got)
                    return
                flaw = self._line_flaw(key, got)
                bad += bool(flaw)
                if not flaw or bad > MAX_SAME_FINDINGS:
                    continue
                what = (
                    f"the audit line cannot be read: {flaw}; no record is lost: what that cycle deleted is told by "
                    "nothing else, and its key goes on to prove that this version of the root was there. Leave it "
                    "where it is, or put it back from a version or a backup of the bucket"
                )
                findings = Findings(key)
                findings.add(Severity.WARNING, "audit_line", what)
                if bad == MAX_SAME_FINDINGS:
                    findings.add(Severity.WARNING, "audit_line", "more of the same kind are not listed")
                self.found += findings.about(*self._tp)

    def _line_flaw(self, key: str, got: Outcome | TieredError) -> str:
        """What is wrong with an audit line, ``""`` for nothing. Raises what the store could not do."""
        try:
            if isinstance(got, TieredError):
                raise got
            if isinstance(got, Object):
                read_line(got.data, self._view.topic_id, self._view.partition, key=key)
        except CorruptionError as damage:
            return damage.message
        return ""

    def garbage(self) -> Steps[None]:
        """Each page of garbage can be read: else no collection goes past it."""
        newest = yield from self._pinned()
        waiting = [] if newest is None else list(newest.root.trash)
        while waiting and newest is not None:
            entry = waiting.pop()
            if entry.what != TRASH_LIST:
                continue
            key = page_key_of(newest.root, entry)
            try:
                content = yield from trash_page(key, [PageKind.TRASH])
                waiting += list(content) if isinstance(content, Trash) else []
            except CorruptionError as damage:
                self._add(key, "garbage", damage)

    def _add(self, key: str, code: str, damage: CorruptionError) -> None:
        findings = Findings(key)
        what = f"{damage.message}; {damage.hint}" if damage.hint else damage.message
        findings.error(code, what, position=damage.position)
        self.found += findings.about(*self._tp)

    def _pinned(self) -> Steps[Snapshot | None]:
        """The newest catalog; None without one that can be read, which is told elsewhere."""
        if self._newest is None:
            try:
                self._newest = yield from self._view.pin()
            except TieredError:
                return None
        return self._newest

    def _is_held(self, taken: Taken) -> Steps[bool]:
        """Whether it is still there, also if it cannot be read any more."""
        try:
            return (yield from is_held_still(self._view, taken))
        except CorruptionError:
            return True

    def _look_at_all(self, taken: Taken) -> Steps[tuple[_Flaws, _Flaws]]:
        """The ``.log``s that are gone or wrong, with a page that is lost, behind which nothing is looked at; and the
        index bundles, of segments whose ``.log`` is right."""
        if self._sizes is None:
            segments = yield from list_all(partition_prefix(self._view.topic_id, self._view.partition) + "s/")
            self._sizes = {each.key: each.size for each in segments}
        pinned, logs, bundles = Snapshot.of(taken.root), _Flaws(), _Flaws()
        at = pinned.start_offset
        try:
            while len(rows := (yield from pinned.piece(at))):
                for row in rows:
                    judged = (yield from self._judge(row, self._sizes)) if not row.flags & FLAG_HOLE else _Judged()
                    if judged.log is not None:
                        logs.add(judged.log)
                    if judged.bundle:
                        bundles.add(judged.bundle)
                at = rows.end_offset
        except CorruptionError as lost:
            logs.add(lost)
        return logs, bundles

    def _judge(self, row: Row, sizes: Mapping[str, int]) -> Steps[_Judged]:
        """Of a segment that the newest catalog names its own check looks at all but that it is there."""
        key = segment_key(self._view.topic_id, self._view.partition, row)
        told = _size_flaw(key, row.size, sizes)
        if told:
            return _Judged(_wrong(key, row, told))
        if (yield from _names((yield from self._pinned()), row)):
            return _Judged()
        uid = row.id_hi, row.id_lo
        if uid not in self._judged:
            try:
                yield from self._need_right(key, row)
                self._judged[uid] = _Judged(bundle=(yield from self._index_flaw(row, sizes)))
            except CorruptionError as damage:
                self._judged[uid] = _Judged(damage)
        return self._judged[uid]

    def _need_right(self, key: str, row: Row) -> Steps[None]:
        """Of a ``.log`` that only snapshots name: it is what the row tells, by its checksum."""
        seen = yield Head(key)
        crc = seen.crc32c if isinstance(seen, Object) else None
        if self._read_data:
            read = _Sum()
            try:
                yield from fetch_log(self._tp, key, row, read.add, told=False)
            except ObjectGone as gone:
                raise CorruptionError(gone.message, path_or_key=key, offset=row.base) from None
            crc = read.crc
        if crc is not None and crc != row.crc:
            raise _wrong(key, row, f"has CRC32C {crc:#010x}, {row.crc:#010x} is right")

    def _index_flaw(self, row: Row, sizes: Mapping[str, int]) -> Steps[str]:
        key = index_key(self._view.topic_id, self._view.partition, row)
        told = _size_flaw(key, row.idx_len, sizes)
        if told:
            return f"{key}, with offsets {row.base} to {row.next}, {told}"
        got = yield Get(key, max_bytes=row.idx_len)
        try:
            bundle = decode_bundle(got.data, key=key) if isinstance(got, Object) else None
        except CorruptionError as damage:
            return damage.message
        noted = None if bundle is None else bundle.descriptor
        named = (self._view.topic_id, self._view.partition, row.next - row.base, row.size, row.crc)
        if noted is None or named == (
            noted.topic_id,
            noted.partition,
            noted.end_offset - noted.base_offset,
            noted.size_bytes,
            noted.crc32c,
        ):
            return ""
        return f"{key}, with offsets {row.base} to {row.next}, describes other bytes"


def _size_flaw(key: str, size: int, sizes: Mapping[str, int]) -> str:
    if sizes.get(key) != size:
        return f"has {sizes[key]} bytes, {size} are right" if key in sizes else "is gone"
    return ""


def _wrong(key: str, row: Row, what: str) -> CorruptionError:
    return CorruptionError(f"{key}, with offsets {row.base} to {row.next}, {what}", path_or_key=key, offset=row.base)


class _Sum:
    """The CRC32C of an object that comes in pieces."""

    def __init__(self) -> None:
        self.crc = 0

    def add(self, data: bytes) -> None:
        self.crc = crc32c(data, self.crc)


def _names(newest: Snapshot | None, row: Row) -> Steps[bool]:
    """Whether the newest catalog names a row, and so its own check looks at it."""
    if newest is None or not newest.start_offset <= row.base < newest.next_offset:
        return False
    try:
        now = yield from newest.at(row.base)
    except CorruptionError:
        return False
    return now is not None and (now.id_hi, now.id_lo) == (row.id_hi, row.id_lo)
