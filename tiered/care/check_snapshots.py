"""Snapshots that users take, as ``check`` sees them: each can be read, and all that it names is there."""

from __future__ import annotations

from collections.abc import Mapping

from tiered.errors import ConfigError, CorruptionError, RemotePermissionError
from tiered.findings import NEWER_RELEASE, Finding, Findings, Severity
from tiered.format.keys import FLAG_HOLE, parse_snap_key, partition_prefix, segment_key, snap_prefix
from tiered.model import TopicPartition
from tiered.remote.past import Taken, load_snapshot
from tiered.remote.pins import let_go
from tiered.remote.root_view import RootView
from tiered.remote.snapshot import Snapshot
from tiered.store.base import Steps, list_all


def check_snapshots(tp: TopicPartition, view: RootView) -> Steps[list[Finding]]:
    """What is wrong with the snapshots of a partition. Lists them, and the segments where there are any."""
    found: list[Finding] = []
    try:
        listed = yield from list_all(snap_prefix(view.topic_id, view.partition))
    except RemotePermissionError as refused:
        findings = Findings(snap_prefix(view.topic_id, view.partition))
        findings.add(Severity.INFO, "not_listed", f"snapshots are not looked at: {refused.message}")
        return list(findings.about(*tp))
    sizes: dict[str, int] | None = None
    for entry in listed:
        name = parse_snap_key(entry.key)
        if name is None:
            continue
        findings = Findings(entry.key)
        try:
            taken = yield from load_snapshot(view, name)
            if taken is None or taken.begun:
                continue
            if sizes is None:
                segments = yield from list_all(partition_prefix(view.topic_id, view.partition) + "s/")
                sizes = {each.key: each.size for each in segments}
            yield from _need_all(view, taken, sizes)
        except CorruptionError as damage:
            if (yield from _is_deleted(view, name)):
                continue  # meanwhile: what it held may be collected
            what = f"snapshot {name}: {damage.message}; {let_go(*tp, name)}"
            findings.error("snapshot", what, position=damage.position, offset=damage.offset)
        except ConfigError as newer:
            findings.error(NEWER_RELEASE, newer.message)
        found += findings.about(*tp)
    return found


def _is_deleted(view: RootView, name: str) -> Steps[bool]:
    try:
        return (yield from load_snapshot(view, name)) is None
    except CorruptionError:
        return False


def _need_all(view: RootView, taken: Taken, sizes: Mapping[str, int]) -> Steps[None]:
    """Raises CorruptionError for the first segment that is gone or of another size, and for a page that is lost."""
    pinned = Snapshot.of(taken.root)
    at = pinned.start_offset
    while len(rows := (yield from pinned.piece(at))):
        for row in rows:
            key = segment_key(view.topic_id, view.partition, row)
            if not row.flags & FLAG_HOLE and sizes.get(key) != row.size:
                what = f"has {sizes[key]} bytes, {row.size} are right" if key in sizes else "is gone"
                raise CorruptionError(
                    f"{key}, with offsets {row.base} to {row.next}, {what}", path_or_key=key, offset=row.base
                )
        at = rows.end_offset
