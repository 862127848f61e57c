"""The broker cleaned these logs: what comes out of our rounds must be what came out of its.

The broker's clock is read off its own delete horizons (horizon = now + ``delete.retention.ms``). It was restarted
before each round, which drops producers whose records are older than a day; those that wrote since are known from the
snapshot of the shutdown that followed. What was appended between two rounds is only known as the second round left
it: its keys name the same newest offsets, so everything below the old end must come out byte for byte.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.golden.fixtures import expected_records, partition_facts
from tests.unit.cleaning.rounds import MemoryLog, MemorySegment, clean, load, newest_snapshot, visible
from tiered.config import DAY_MS, TopicConfig
from tiered.format.batch import decode_records, read_header
from tiered.format.checkpoint import decode_offsets
from tiered.format.producer_snapshot import ProducerEntry, decode_snapshot
from tiered.model import AbortedTxn, TopicPartition

PARTITIONS = ("compact-keep-0", "compact-drop-0", "compact-txn-0", "compact-delete-0")
LATER_ROUNDS = [("compact-after1", "compact-after2"), ("compact-after2", "main")]


def _config(fixtures: Path, partition: str, root: str) -> TopicConfig:
    facts = dict(partition_facts(fixtures, partition, root)["topicConfigs"])
    facts["segment.bytes"] = facts.pop("internal.segment.bytes")
    return TopicConfig.from_properties(facts)


def _checkpoint(fixtures: Path, partition: str, root: str) -> int:
    topic, _, number = partition.rpartition("-")
    text = (fixtures / root / "cleaner-offset-checkpoint").read_text()
    return decode_offsets(text)[TopicPartition(topic, int(number))]


def _now(log: MemoryLog, after: MemoryLog) -> int:
    """The time of the broker's round: from the newest horizon in it; without one, after the newest record."""
    old = {read_header(batch).delete_horizon_ms for batch in log.batches}
    new = {read_header(batch).delete_horizon_ms for batch in after.batches}
    horizons = [h for h in new - old if h is not None]
    if not horizons:
        return max(read_header(batch).max_timestamp for batch in after.batches)
    assert len(horizons) == 1
    return horizons[0] - after.config.delete_retention_ms


def _producers(fixtures: Path, partition: str, root: str) -> list[ProducerEntry]:
    return decode_snapshot(newest_snapshot(fixtures, partition, root).read_bytes())


def _content(batch: bytes) -> Any:
    """The bytes; of a compressed batch, which compresses differently everywhere, the header and the records."""
    header = read_header(batch)
    return (header._replace(crc=0, batch_length=0), list(decode_records(batch))) if header.codec else batch


def _below(log: MemoryLog, start: int, end: int) -> list[tuple[int, Any]]:
    """Segment base and content of every batch below ``end``, in segments from ``start`` on."""
    batches = [(s.base_offset, b) for s in log.segments if s.base_offset >= start for b in s.batches]
    return [(base, _content(batch)) for base, batch in batches if read_header(batch).base_offset < end]


def _txns(log: MemoryLog, start: int, end: int) -> list[tuple[int, AbortedTxn]]:
    entries = [(s.base_offset, txn) for s in log.segments for txn in s.aborted]
    return [(base, txn) for base, txn in entries if base >= start and txn.last_offset < end]


@pytest.mark.parametrize("partition", PARTITIONS)
def test_the_first_round_is_the_brokers(kafka_fixtures: Path, partition: str) -> None:
    config = _config(kafka_fixtures, partition, "compact-after1")
    before = load(kafka_fixtures, partition, "compact-before", config)
    after = load(kafka_fixtures, partition, "compact-after1", config)
    now = _now(before, after)
    live = tuple(p for p in _producers(kafka_fixtures, partition, "compact-before") if now - p.timestamp < DAY_MS)
    ours = clean(MemoryLog(before.segments, config, producers=live), now).log
    start = after.segments[0].base_offset  # retention took the first segment of compact-delete afterwards
    assert [s.base_offset for s in ours.segments if s.base_offset >= start] == [s.base_offset for s in after.segments]
    assert _below(ours, start, after.end_offset) == _below(after, start, after.end_offset)
    assert [s.aborted for s in ours.segments if s.base_offset >= start] == [s.aborted for s in after.segments]
    assert ours.checkpoint == _checkpoint(kafka_fixtures, partition, "compact-after1")
    seen = [(r.offset, r.timestamp, r.key, r.value) for r in visible(ours.batches) if r.offset >= start]
    expected = expected_records(kafka_fixtures, partition, "compact-after1")
    assert seen == [(r.offset, r.timestamp, r.key, r.value) for r in expected]


@pytest.mark.parametrize(("root", "next_root"), LATER_ROUNDS)
@pytest.mark.parametrize("partition", PARTITIONS)
def test_a_later_round_is_the_brokers(kafka_fixtures: Path, partition: str, root: str, next_root: str) -> None:
    config = _config(kafka_fixtures, partition, next_root)
    before = load(kafka_fixtures, partition, root, config)
    after = load(kafka_fixtures, partition, next_root, config)
    end = before.end_offset
    log = MemoryLog(
        _with_appended(before, after),
        config,
        checkpoint=_checkpoint(kafka_fixtures, partition, root),
        log_start_offset=before.segments[0].base_offset,
        producers=tuple(_producers(kafka_fixtures, partition, next_root)),
    )
    done = clean(log, _now(before, after))
    ours = done.log
    start = after.segments[0].base_offset
    assert ours.checkpoint == _checkpoint(kafka_fixtures, partition, next_root)
    sealed = before.segments[-1].base_offset  # what follows was appended to; its size before the round is not known
    assert [s.base_offset for s in ours.segments if start <= s.base_offset < sealed] == [
        s.base_offset for s in after.segments if s.base_offset < sealed
    ]
    assert _below(ours, start, end) == _below(after, start, end)
    assert _txns(ours, start, end) == _txns(after, start, end)


def _with_appended(before: MemoryLog, after: MemoryLog) -> tuple[MemorySegment, ...]:
    """The segments of ``before``, the last one with what was appended to it as ``after`` shows it, and later ones."""
    end, last = before.end_offset, before.segments[-1]
    grown = [s for s in after.segments if s.base_offset == last.base_offset]
    added = b"".join(b for s in grown for b in s.batches if read_header(b).base_offset >= end)
    txns = tuple(t for s in grown for t in s.aborted if t.last_offset >= end)
    joined = MemorySegment(
        last.base_offset, last.data + added, last.aborted + txns, last.offset_index_bytes, last.time_index_bytes
    )
    return (*before.segments[:-1], joined, *(s for s in after.segments if s.base_offset > last.base_offset))
