"""The broker's rounds of cleaning: their settings, checkpoints and times, and the batches that they left."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.golden.fixtures import partition_facts
from tests.unit.plan.cleaning.rounds import MemoryLog
from tiered.config import TopicConfig
from tiered.format.batch import decode_records, read_header
from tiered.format.checkpoint import decode_offsets
from tiered.model import TopicPartition

PARTITIONS = ("compact-keep-0", "compact-drop-0", "compact-txn-0", "compact-delete-0")


def config_of(fixtures: Path, partition: str, root: str) -> TopicConfig:
    facts = dict(partition_facts(fixtures, partition, root)["topicConfigs"])
    facts["segment.bytes"] = facts.pop("internal.segment.bytes")
    return TopicConfig.from_properties(facts)


def checkpoint_of(fixtures: Path, partition: str, root: str) -> int:
    topic, _, number = partition.rpartition("-")
    text = (fixtures / root / "cleaner-offset-checkpoint").read_text()
    return decode_offsets(text)[TopicPartition(topic, int(number))]


def time_of_round(log: MemoryLog, after: MemoryLog) -> int:
    """The time of the broker's round: from the newest horizon in it; without one, after the newest record."""
    old = {read_header(batch).delete_horizon_ms for batch in log.batches}
    new = {read_header(batch).delete_horizon_ms for batch in after.batches}
    horizons = [h for h in new - old if h is not None]
    if not horizons:
        return max(read_header(batch).max_timestamp for batch in after.batches)
    assert len(horizons) == 1
    return horizons[0] - after.config.delete_retention_ms


def content(batch: bytes) -> Any:
    """The bytes; of a compressed batch, which compresses differently everywhere, the header and the records."""
    header = read_header(batch)
    return (header._replace(crc=0, batch_length=0), list(decode_records(batch))) if header.codec else batch


def below(log: MemoryLog, start: int, end: int) -> list[tuple[int, Any]]:
    """Segment base and content of every batch below ``end``, in segments from ``start`` on."""
    batches = [(s.base_offset, b) for s in log.segments if s.base_offset >= start for b in s.batches]
    return [(base, content(batch)) for base, batch in batches if read_header(batch).base_offset < end]
