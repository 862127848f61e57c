"""``tiered segments TOPIC``: list every segment of both tiers."""

from __future__ import annotations

from typing import Any

import click

from tiered.format.keys import FLAG_HOLE, segment_key
from tiered.model import TopicPartition
from tiered.plan.root_lower_bounds import NOTHING_KNOWN
from tiered.program.application import Application, Command, pass_application, split_topic
from tiered.program.open_log import Tiers, TopicFacts, open_tiers
from tiered.program.open_reader import chosen_partitions, of_each
from tiered.program.output import columns, human_bytes
from tiered.program.partition_status import DiskNotes
from tiered.times import format_time


@click.command("segments", cls=Command)
@click.argument("topic", metavar="TOPIC[:P]")
@pass_application
def command(app: Application, topic: str) -> int:
    """List segments: offsets, sizes, times, and which tier holds them.

    \b
    Examples:
      tiered segments flights --log-dir data --remote s3://acme-logs/prod
      tiered segments flights:0 --remote s3://acme-logs/prod --json
    """
    name, partition = split_topic(topic)
    with open_tiers(app) as tiers:
        notes = DiskNotes.read(tiers)
        facts = tiers.need_topic(name)
        chosen = chosen_partitions(name, facts.partitions, partition)
        entries, code = of_each(app, name, chosen, lambda one: partition_segments(tiers, facts, one, notes))
    header = ["partition", "base", "end", "size", "records", "from", "to", "state"]
    rows = [
        [
            entry["partition"],
            entry["base_offset"],
            entry["end_offset"],
            human_bytes(entry["size_bytes"]),
            entry["records"],
            format_time(entry["min_timestamp"]),
            format_time(entry["max_timestamp"]),
            entry["state"],
        ]
        for entry in entries
    ]
    return app.out.result("segments", {"topic": name, "segments": entries}, columns(header, rows), code)


def partition_segments(tiers: Tiers, facts: TopicFacts, partition: int, notes: DiskNotes) -> list[dict[str, Any]]:
    """Return segments in offset order. One in both tiers is one entry. Figures that a tier lacks are -1."""
    tp = TopicPartition(facts.name, partition)
    found: dict[tuple[int, int], dict[str, Any]] = {}
    pinned, at = tiers.snapshot(facts, partition, notes.known.get(tp, NOTHING_KNOWN)), 0
    while pinned is not None and len(rows := tiers.run(pinned.piece(at))):
        at = rows.end_offset
        for row in rows:
            hole = bool(row.flags & FLAG_HOLE)
            found[row.base, row.next] = {
                **_entry(tp, row.base, row.next, row.size, "remote"),
                "records": row.records,
                "min_timestamp": row.min_ts,
                "max_timestamp": row.max_ts,
                "appended_ms": row.appended_ms,
                "crc32c": row.crc,
                "leader_epoch": row.leader_epoch,
                "claim_epoch": row.claim_epoch,
                "key": None if hole else segment_key(pinned.root.topic_id, partition, row),
            }
    for entry in _local_segments(tiers, tp, notes):
        place = (entry["base_offset"], entry["end_offset"])
        if place in found:
            found[place]["state"] = "both"
        else:
            found[place] = entry
    return [found[place] for place in sorted(found)]


def _local_segments(tiers: Tiers, tp: TopicPartition, notes: DiskNotes) -> list[dict[str, Any]]:
    if tiers.local is None or tp not in notes.present:
        return []
    log = tiers.local.partition(tp)
    entries = []
    reached = log.positions().local_start_offset
    for segment in log.sealed_segments():
        entry = _entry(tp, segment.base_offset, segment.end_offset, segment.size_bytes, "local")
        entry["max_timestamp"], entry["appended_ms"] = segment.max_timestamp, segment.appended_ms
        entries.append(entry)
        reached = segment.end_offset
    end = log.positions().end_offset
    if end > reached or not entries:
        path = tiers.local.directory / str(tp) / f"{reached:020d}.log"
        size_bytes = path.stat().st_size if path.exists() else 0
        entries.append(_entry(tp, reached, end, size_bytes, "active"))
    return entries


def _entry(tp: TopicPartition, base: int, end: int, size_bytes: int, state: str) -> dict[str, Any]:
    return {
        "topic": tp.topic,
        "partition": tp.partition,
        "base_offset": base,
        "end_offset": end,
        "size_bytes": size_bytes,
        "state": state,
        "records": -1,
        "min_timestamp": -1,
        "max_timestamp": -1,
        "appended_ms": -1,
        "crc32c": None,
        "leader_epoch": -1,
        "claim_epoch": -1,
        "key": None,
    }
