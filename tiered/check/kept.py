"""Check of the objects beside the newest catalog of a partition, and of the decisions of sinks.

Each must be readable. A pin or a page of garbage that cannot be read stops every collection. A root is rebuilt from the
newest copy below ``hist/``. The other copies are read with the data. A segment that only a snapshot names is compared
with its row.
"""

from __future__ import annotations

from typing import NamedTuple

from tiered.check.findings import NEWER_RELEASE, Finding, Findings, Severity
from tiered.check.judge import judge_index, judge_log
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
    snap_key,
)
from tiered.format.page import PageKind
from tiered.format.rows import Trash
from tiered.model import TRASH_LIST, Row, TopicPartition
from tiered.remote.catalog_view import CatalogView
from tiered.remote.gc.garbage import page_key_of, trash_page
from tiered.remote.pins import live_pins, read_pin, snapshot_hint
from tiered.remote.positions import load_positions
from tiered.remote.root_view import RootView
from tiered.remote.sink_commit import read_decision
from tiered.remote.snapshots import KeptRoot, decode_taken, is_held_still
from tiered.store.base import Get, Object, Steps
from tiered.store.steps import list_all

KINDS = {"snap/": "snapshot", "pin/": "pin", "hist/": "hist"}
"""Folders of a partition, with the code of a finding about an object in each."""


class RootCopy(NamedTuple):
    """An object beside the root. ``taken``: the root in a snapshot or a copy. ``flaw``: why it cannot be read."""

    key: str
    etag: str
    taken: KeptRoot | None = None
    flaw: TieredError | None = None


def decode_beside(view: RootView, data: bytes, *, key: str) -> KeptRoot | None:
    """Return the root in a snapshot or a copy, None for a pin. Raises CorruptionError, ConfigError."""
    if is_pin_key(key):
        read_pin(data, key=key)
        return None
    return decode_taken(view, data, key=key)


def read_beside(view: RootView, folder: str, *, newest: bool = False) -> Steps[list[RootCopy]]:
    """Read the objects in a folder of a partition, or the ``newest`` by its key."""
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
    """Return what is wrong with snapshots, pins, copies and pages of garbage of a partition."""
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
    """One partition. ``found``: findings so far."""

    def __init__(self, tp: TopicPartition, view: RootView, read_data: bool) -> None:
        self._tp, self._view, self._read_data = tp, view, read_data
        self._newest: CatalogView | None = None
        self.found: list[Finding] = []

    def add(self, where: str, code: str, message: str, severity: Severity = Severity.ERROR, position: int = -1) -> None:
        """Report one object."""
        findings = Findings(where)
        findings.add(severity, code, message, position=position)
        self.found += findings.about(*self._tp)

    def unreadable(self, key: str, code: str, flaw: TieredError) -> None:
        """Report an object that cannot be read."""
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
        """Report the ``.log`` of a segment, or its index if the ``.log`` is right."""
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
        """Read each page of garbage."""
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
            return (yield from is_held_still(self._view, taken))
        except CorruptionError:
            return True


def _names(newest: CatalogView | None, row: Row) -> Steps[bool]:
    """Return True if the newest catalog names a row. It is judged there then."""
    if newest is None or not newest.start_offset <= row.base < newest.next_offset:
        return False
    try:
        now = yield from newest.at(row.base)
    except CorruptionError:
        return False
    return now is not None and (now.id_hi, now.id_lo) == (row.id_hi, row.id_lo)


def check_decisions() -> Steps[list[Finding]]:
    """Read each decision of a sink. Return the damaged ones."""
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
