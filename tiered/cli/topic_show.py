"""``tiered topic show``: id, settings, positions and segments of a topic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from tiered.arguments import chosen_partitions
from tiered.config import MAX_LONG, OF_SEGMENT, UNLIMITED, TopicConfig
from tiered.errors import ConfigError
from tiered.format.keys import FLAG_HOLE, segment_key
from tiered.model import TopicPartition
from tiered.plan.root_lower_bounds import NOTHING_KNOWN
from tiered.program.application import Application, Command, pass_application, split_topic
from tiered.program.open_log import Tiers, TopicFacts, open_tiers
from tiered.program.open_reader import collect_each, open_reader, topic_to_read
from tiered.program.output import columns, human_bytes, human_duration
from tiered.program.partition_status import DiskNotes, PartitionStatus, deleting_text, partition_status
from tiered.times import format_time, parse_time

SAME_AS_WHOLE = -2
"""Value of ``local.retention.*`` for "the same as ``retention.*``"."""

POSITIONS = ("partition", "start_offset", "local_start_offset", "uploaded_offset", "flushed_offset", "end_offset")


@click.command("show", cls=Command)
@click.argument("topic", metavar="TOPIC[:P]")
@click.option("--segments", is_flag=True, help="list the segments instead: offsets, sizes, times, tiers")
@click.option("--at", "time", metavar="TIME", help="add the first offset of this time or later")
@pass_application
def show(app: Application, topic: str, *, segments: bool, time: str | None) -> int:
    """Print the id, the settings and the positions of a topic, or its segments.

    \b
    Examples:
      tiered topic show flights --log-dir data --remote s3://acme-logs/prod
      tiered topic show flights:0 --remote s3://acme-logs/prod --at 2013-01-01
      tiered topic show flights:0 --remote s3://acme-logs/prod --segments --json
    """
    if segments and time is not None:
        raise ConfigError("--segments and --at exclude each other", hint="give one of them")
    name, partition = split_topic(topic)
    at_ms = None if time is None else parse_time(time, now_ms=app.clock.now_ms())
    with open_tiers(app) as tiers:
        notes = DiskNotes.read(tiers)
        facts = tiers.need_topic(name)
        chosen = chosen_partitions(name, facts.partitions, partition)
        if segments:
            entries, code = collect_each(app, name, chosen, lambda one: partition_segments(tiers, facts, one, notes))
            return app.out.result("topic show", {"topic": name, "segments": entries}, _segment_table(entries), code)
        partitions = [partition_status(tiers, facts, number, notes) for number in chosen]
    for status in partitions:
        if status.lost is not None:
            raise status.lost
    entries = [status.as_json() for status in partitions]
    code = next((status.unreadable.exit_code for status in partitions if status.unreadable is not None), 0)
    if at_ms is not None:
        found, later = _offsets_at(app, name, chosen, at_ms)
        code = code or later
        for entry in entries:
            entry["offset_at"], entry["timestamp_at"] = found.get(entry["partition"], (None, None))
    fields = {
        "topic": name,
        "topic_id": str(facts.topic_id) if facts.topic_id is not None else None,
        "tiers": facts.tiers,
        "deleting": facts.deleting,
        "config": dict(facts.config),
        "partitions": entries,
    }
    return app.out.result("topic show", fields, _text(facts, partitions, entries, with_time=at_ms is not None), code)


def _offsets_at(
    app: Application, name: str, partitions: Sequence[int], at_ms: int
) -> tuple[dict[int, tuple[int, int]], int]:
    """Return the first (offset, timestamp) at or after a time, by partition that has one, and the exit code."""
    with open_reader(app) as reader:
        source = topic_to_read(reader, name)
        found, code = collect_each(
            app, name, partitions, lambda one: [(one, source.stream(one).offset_for_time(at_ms))]
        )
    return {partition: place for partition, place in found if place is not None}, code


def _text(
    facts: TopicFacts, partitions: Sequence[PartitionStatus], entries: Sequence[Mapping[str, Any]], *, with_time: bool
) -> list[str]:
    names = [*POSITIONS, *(["offset_at"] if with_time else [])]
    header = [column.removesuffix("_offset").replace("_", " ") for column in names]
    phase = deleting_text(partitions)
    text = [f"{facts.name}  id {facts.topic_id}  in {' and '.join(facts.tiers)}{f'  {phase}' if phase else ''}"]
    text += columns(header, [[entry[column] for column in names] for entry in entries])
    text += ["", *setting_lines(facts.config)]
    return text + [
        f"problem: {status.tp}: {status.unreadable}" for status in partitions if status.unreadable is not None
    ]


def _segment_table(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    header = ["partition", "base", "end", "size", "newest record", "state"]
    rows = [
        [
            entry["partition"],
            entry["base_offset"],
            entry["end_offset"],
            human_bytes(entry["size_bytes"]),
            format_time(entry["max_timestamp"]),
            entry["state"],
        ]
        for entry in entries
    ]
    return columns(header, rows)


def setting_lines(config: Mapping[str, str]) -> list[str]:
    """Return a table of settings: name, value, meaning. ``*`` marks values that differ from the default."""
    defaults = TopicConfig().to_text()
    rows = [
        ["*" if value != defaults.get(name) else "", name, value, setting_meaning(name, value)]
        for name, value in sorted(config.items())
    ]
    changed = any(row[0] for row in rows)
    note = ["", "* changed; the others are the defaults" if changed else "all settings are the defaults"]
    return [*columns(["", "setting", "value", "meaning"], rows), *note]


def setting_meaning(name: str, value: str) -> str:
    """Return the meaning of a value: a readable size or time, ``no limit``, or the setting that it follows."""
    unit = name.rpartition(".")[2]
    if unit not in ("bytes", "ms", "messages"):
        return ""
    try:
        number = int(value)
    except ValueError:  # of an entry that is damaged: `check` says so
        return "no number"
    if number == OF_SEGMENT and name.startswith("merge."):
        return "a quarter of segment.bytes" if name == "merge.min.bytes" else "as segment.bytes"
    if number in (UNLIMITED, MAX_LONG):
        return "no limit"
    if number == SAME_AS_WHOLE:
        return f"as {name.removeprefix('local.')}"
    return {"bytes": human_bytes, "ms": human_duration}[unit](number) if unit in ("bytes", "ms") else ""


def partition_segments(tiers: Tiers, facts: TopicFacts, partition: int, notes: DiskNotes) -> list[dict[str, Any]]:
    """Return the JSON fields of each segment, in offset order. A segment in both tiers is one entry.

    ``notes``: facts about the log directory. Unknown fields are -1; ``crc32c`` and ``key`` are None.
    """
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
