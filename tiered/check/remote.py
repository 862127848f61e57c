"""Check of one partition of the bucket: its root, its pages, and the objects beside them.

``segment_check`` looks at the objects of the rows. An object or page that a collection deletes meanwhile is no damage:
the newest root decides.

Each object beside the root must be readable. A pin or a page of garbage that cannot be read stops every collection. A
root is rebuilt from the newest copy below ``hist/``. The other copies are read with the data. A segment that only a
snapshot names is compared with its row. Decisions of sinks belong to no partition.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import NamedTuple
from uuid import UUID

from tiered.check.findings import NEWER_RELEASE, Finding, Findings, Severity
from tiered.check.local import PartitionFacts
from tiered.check.segment_check import Reading, RemoteFacts, Reporter, SegmentCheck, ask_all, judge_index, judge_log
from tiered.config import MAX_LONG
from tiered.errors import ConfigError, CorruptionError, RemotePermissionError, TieredError
from tiered.format.framed_object import MAX_OBJECT_BYTES
from tiered.format.keys import (
    DECISIONS_PREFIX,
    FLAG_HOLE,
    is_pin_key,
    parse_decision_key,
    parse_hist_key,
    parse_snap_key,
    partition_prefix,
    positions_key,
    root_key,
    snap_key,
)
from tiered.format.page import PageKind
from tiered.format.root import STATE_DELETING, Root, decode_root
from tiered.format.rows import Trash
from tiered.model import TRASH_LIST, Row, TopicPartition
from tiered.plan.invariants import check_root
from tiered.plan.root_lower_bounds import NOTHING_KNOWN
from tiered.remote.catalog_view import CatalogView
from tiered.remote.gc.garbage import page_key_of, trash_page
from tiered.remote.pins import live_pins, read_pin, snapshot_hint
from tiered.remote.positions import load_positions
from tiered.remote.root_history import find_newest_copy, find_proof_of_root
from tiered.remote.root_view import RootView, root_get, two_names
from tiered.remote.sink_commit import read_decision
from tiered.remote.snapshots import KeptRoot, decode_taken, still_exists
from tiered.remote.topics import TopicEntry
from tiered.store.base import Get, Missing, Object, Steps
from tiered.store.steps import list_all

ROWS_TOGETHER = 8
"""Segments whose objects are requested at once; their bundles are in memory at the same time."""

KINDS = {"snap/": "snapshot", "pin/": "pin", "hist/": "hist"}
"""Folders of a partition, with the code of a finding about an object in each."""


class RemoteCheck:
    """Check of one partition of the bucket. ``reporter``: returns steps that emit findings and progress.

    ``facts``: totals of the whole check. ``local``: facts of the same partition on the disk, None without them.
    """

    def __init__(
        self,
        tp: TopicPartition,
        entry: TopicEntry,
        facts: RemoteFacts,
        local: PartitionFacts | None,
        reporter: Reporter,
    ) -> None:
        self._tp, self._topic_id = tp, entry.topic_id
        self._facts, self._local, self._report = facts, local, reporter
        self._known = entry.known_with(local.known if local is not None else NOTHING_KNOWN)
        self._state = entry.state
        self._key = root_key(entry.topic_id, tp.partition)
        self._segments = SegmentCheck(tp, entry, facts, local, reporter, newest=self._newest)

    def run(self, reading: Reading, start: int = 0, end: int = MAX_LONG, *, with_root: bool = True) -> Steps[None]:
        """Check the segments whose base is in ``start`` to ``end`` (exclusive).

        ``reading``: the segments of which every byte is read. ``with_root``: also check the root, its copies, snapshots
        and pins. Raises the errors of a store that does not answer.
        """
        pinned = yield from self.catalog(report=with_root)
        if pinned is not None:
            yield from self.segments(pinned, start, end, reading)
        if with_root:
            view = RootView(self._topic_id, self._tp.partition, self._tp.topic)
            yield from self._report((yield from check_kept(self._tp, view, read_data=reading.data)))

    def catalog(self, *, report: bool = True) -> Steps[CatalogView | None]:
        """Read the root and return the catalog, None if the root is missing or unusable.

        ``report`` False: report no findings about the root.
        """
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
            if report:
                yield from self._need_newest(pinned.root, catalog)
        if report:
            yield from self._report(catalog.about(*self._tp))
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
        pinned = yield from self._newest()  # later commits leave copies, too
        if pinned is not None and (older := newest.contradicts(pinned.root)):
            catalog.error("went_back", f"an older root was put back: {older}; see `{self._repair}`")

    def segments(self, pinned: CatalogView, start: int, end: int, reading: Reading) -> Steps[None]:
        """Check the segments with bases from ``start`` to ``end`` (exclusive).

        ``reading``: those of which every byte is read.
        """
        yield from self._segments.start_segment(pinned)
        if reading.data:
            yield from self._segments.follow_up_to(pinned, start)
        at = start
        while at < end:
            try:
                rows = yield from pinned.piece(at)
            except CorruptionError as damage:
                newest = yield from self._newest()
                if newest is None or newest.version == pinned.version:
                    yield from self._lost_page(damage, at)
                    return
                pinned = newest  # a collection may have deleted the page, which only the older root names
                continue
            if not len(rows):
                return
            held = [row for row in rows if start <= row.base < end]
            for first in range(0, len(held), ROWS_TOGETHER):
                yield from self._segments.rows(held[first : first + ROWS_TOGETHER], reading)
            at = rows.end_offset

    def _lost_page(self, damage: CorruptionError, at: int) -> Steps[None]:
        found = Findings(damage.path_or_key)
        what = f"{damage.message}; what offsets from {max(damage.offset, at)} on are in is not known without it"
        what += f"; see `{self._repair}`"
        found.error("page", what, position=damage.position, offset=damage.offset)
        yield from self._report(found.about(*self._tp))

    def _newest(self) -> Steps[CatalogView | None]:
        """Return the current catalog, and report nothing about its root."""
        return (yield from self._pin(Findings(self._key)))

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
            clash = two_names(root, self._tp.topic)
            catalog.error("two_names", f"{clash.message}; {clash.hint}")
            return None
        for violation in check_root(root):
            catalog.error("invariant", str(violation))
        return CatalogView.from_root(root)

    def _left_without_root(self, catalog: Findings) -> Steps[str]:
        """Return a sentence that proves an earlier root, ``""`` without a proof."""
        try:
            key = yield from find_proof_of_root(self._topic_id, self._tp.partition)
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


def size_steps(tps: Iterable[tuple[UUID, int]], parts: int) -> Steps[int]:
    """Return the total size of the partitions' segments, by their roots, divided by ``parts``. For a progress bar."""
    total, keys = 0, [root_key(topic_id, partition) for topic_id, partition in tps]
    for start in range(0, len(keys), ROWS_TOGETHER):
        some = keys[start : start + ROWS_TOGETHER]
        for key, found in zip(some, (yield from ask_all(map(root_get, some))), strict=True):
            if isinstance(found, Object):
                with contextlib.suppress(TieredError):  # reported when its turn comes
                    total += CatalogView.from_root(decode_root(found.data, key=key)).size_bytes // parts
    return total


# -- objects beside the root -------------------------------------------------------------------------------------------


class RootCopy(NamedTuple):
    """Snapshot, pin or copy of a root, as it was read. ``taken``: its root, None for a pin or an unreadable object.

    ``flaw``: why it is unreadable, None if it is not.
    """

    key: str
    etag: str
    taken: KeptRoot | None = None
    flaw: TieredError | None = None


def decode_beside(view: RootView, data: bytes, *, key: str) -> KeptRoot | None:
    """Decode a snapshot, a copy of a root or a pin. Return its root, None for a pin.

    Raises CorruptionError for a damaged object, ConfigError for one of a newer release.
    """
    if is_pin_key(key):
        read_pin(data, key=key)
        return None
    return decode_taken(view, data, key=key)


def read_beside(view: RootView, folder: str, *, newest: bool = False) -> Steps[list[RootCopy]]:
    """Read all objects in a folder of a partition: ``snap/``, ``pin/`` or ``hist/``.

    ``newest``: only the last by its key.
    """
    if folder == "pin/":
        keys = yield from live_pins(view.topic_id, view.partition)
    else:
        listed = yield from list_all(partition_prefix(view.topic_id, view.partition) + folder)
        parse = parse_hist_key if folder == "hist/" else parse_snap_key
        keys = [entry.key for entry in listed if parse(entry.key) is not None]
    found: list[RootCopy] = []
    for key in keys[-1:] if newest else keys:
        etag = ""
        try:
            got = yield Get(key, max_bytes=MAX_OBJECT_BYTES)
            if isinstance(got, Object):
                etag = got.etag
                found.append(RootCopy(key, etag, decode_beside(view, bytes(got.data), key=key)))
        except (CorruptionError, ConfigError) as flaw:
            found.append(RootCopy(key, etag, flaw=flaw))
    return found


def check_kept(tp: TopicPartition, view: RootView, *, read_data: bool) -> Steps[list[Finding]]:
    """Check snapshots, pins, copies of roots and pages of garbage of a partition. Return the findings.

    ``read_data``: read all copies of the root, not only the newest one. Read every byte of segments that only a
    snapshot names.
    """
    kept = _SnapshotCheck(tp, view, read_data)
    for folder, code in KINDS.items():
        try:
            found = yield from read_beside(view, folder, newest=folder == "hist/" and not read_data)
        except RemotePermissionError as refused:
            where = partition_prefix(view.topic_id, view.partition) + folder
            kept.add(where, "not_listed", f"{folder} is not looked at: {refused.message}", Severity.INFO)
            continue
        for each in found:
            if each.flaw is not None:
                kept.unreadable(each.key, code, each.flaw)
            elif folder == "snap/" and each.taken is not None and not each.taken.begun:
                yield from kept.segments(each.taken)
    (copy,) = yield from load_positions([(view.topic_id, view.partition)])
    if isinstance(copy, TieredError):
        kept.add(positions_key(view.topic_id, view.partition), "positions", copy.message, Severity.WARNING)
    yield from kept.garbage()
    return kept.found


class _SnapshotCheck:
    """Check of one partition's snapshots, pins, root copies and pages of garbage. ``found``: findings so far."""

    def __init__(self, tp: TopicPartition, view: RootView, read_data: bool) -> None:
        self._tp, self._view, self._read_data = tp, view, read_data
        self._newest: CatalogView | None = None
        self.found: list[Finding] = []

    def add(self, where: str, code: str, message: str, severity: Severity = Severity.ERROR, position: int = -1) -> None:
        """Add a finding about the object or folder ``where``."""
        findings = Findings(where)
        findings.add(severity, code, message, position=position)
        self.found += findings.about(*self._tp)

    def unreadable(self, key: str, code: str, flaw: TieredError) -> None:
        """Report an object that cannot be read. ``flaw``: the error. ``code``: that of the finding for damage."""
        if isinstance(flaw, ConfigError):
            self.add(key, NEWER_RELEASE, flaw.message)
            return
        what, severity = f"{flaw.message}; {flaw.hint}" if flaw.hint else flaw.message, Severity.ERROR
        name = parse_snap_key(key)
        if name is not None:
            what = f"snapshot {name}: {flaw.message}; {snapshot_hint(*self._tp, name)}"
        if code == "hist":
            severity = Severity.WARNING
            what = f"the copy cannot be read: {what}; a lost root is rebuilt from an older one then; put it back "
            what += "from a version or a backup of the bucket; it may go while the root is whole"
        self.add(key, code, what, severity, flaw.position if isinstance(flaw, CorruptionError) else -1)

    def segments(self, taken: KeptRoot) -> Steps[None]:
        """Compare the segments that only a snapshot names, not the newest catalog, with their rows."""
        name = taken.source.removeprefix("snapshot ")
        findings = Findings(snap_key(self._view.topic_id, self._view.partition, name))
        held, newest = CatalogView.from_root(taken.root), (yield from self._pinned())
        at = held.start_offset
        try:
            while len(rows := (yield from held.piece(at))):
                for row in rows:
                    if not row.flags & FLAG_HOLE and not (yield from _names(newest, row)):
                        yield from self._segment(name, row, findings)
                at = rows.end_offset
        except CorruptionError as lost:
            what = f"snapshot {name}: {lost.message}; {snapshot_hint(*self._tp, name)}"
            findings.error("snapshot", what, offset=lost.offset)
        if findings.items and (yield from self._is_held(taken)):  # otherwise its segments may be collected
            self.found += findings.about(*self._tp)

    def _segment(self, name: str, row: Row, findings: Findings) -> Steps[None]:
        """Add a finding if the ``.log`` of a segment is missing or damaged. If it is right, check its index.

        ``name``: that of the snapshot.
        """
        severity, code, advice = Severity.ERROR, "snapshot", snapshot_hint(*self._tp, name)
        judged = yield from judge_log(self._view.topic_id, self._tp, row, read_data=self._read_data)
        if not judged.problem:
            judged = yield from judge_index(self._view.topic_id, self._tp, row)
            severity, code = Severity.WARNING, "snapshot_index"
            advice = f"no record is lost: `tiered restore --as-of {name}` makes the indexes on a disk; {advice}"
        if judged.problem:
            what = f"{judged.key}, with offsets {row.base} to {row.next}: {judged.problem}"
            findings.add(severity, code, f"snapshot {name}: {what}; {advice}", offset=row.base)

    def garbage(self) -> Steps[None]:
        """Read each page of garbage, and report the damaged ones."""
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
                self.unreadable(key, "garbage", damage)

    def _pinned(self) -> Steps[CatalogView | None]:
        """Return the newest catalog, None without one that can be read."""
        if self._newest is None:
            try:
                self._newest = yield from self._view.pin()
            except TieredError:
                return None
        return self._newest

    def _is_held(self, taken: KeptRoot) -> Steps[bool]:
        """Return True if the snapshot still exists, readable or not."""
        try:
            return (yield from still_exists(self._view, taken))
        except CorruptionError:
            return True


def _names(newest: CatalogView | None, row: Row) -> Steps[bool]:
    """Return True if the newest catalog names the row, so that the check of the catalog covers it."""
    if newest is None or not newest.start_offset <= row.base < newest.next_offset:
        return False
    try:
        now = yield from newest.at(row.base)
    except CorruptionError:
        return False
    return now is not None and (now.id_hi, now.id_lo) == (row.id_hi, row.id_lo)


def check_decisions() -> Steps[list[Finding]]:
    """Read each decision of a sink. Return findings for the damaged ones."""
    findings: list[Findings] = [Findings(DECISIONS_PREFIX)]
    try:
        listed = yield from list_all(DECISIONS_PREFIX)
    except RemotePermissionError as refused:
        findings[0].add(Severity.INFO, "not_listed", f"decisions of sinks are not looked at: {refused.message}")
        return findings[0].items
    for entry in listed:
        if parse_decision_key(entry.key) is None:
            continue
        findings.append(Findings(entry.key))
        try:
            yield from read_decision(entry.key)
        except CorruptionError as damage:
            findings[-1].error("decision", f"{damage.message}; {damage.hint}", position=damage.position)
        except ConfigError as newer:
            findings[-1].error(NEWER_RELEASE, newer.message)
    return [one for each in findings for one in each.items]
