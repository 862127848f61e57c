"""The broker cleaned these logs: what comes out of our rounds must be what came out of its.

The broker's clock is read off its own delete horizons (horizon = now + ``delete.retention.ms``). It was restarted
before each round, which drops producers whose records are older than a day; those that wrote since are known from the
snapshot of the shutdown that followed. What was appended between two rounds is only known as the second round left
it: its keys name the same newest offsets, so everything below the old end must come out byte for byte.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.golden.fixtures import expected_records
from tests.unit.plan.cleaning.golden import PARTITIONS, below, checkpoint_of, config_of, time_of_round
from tests.unit.plan.cleaning.rounds import MemoryLog, MemorySegment, clean, load, newest_snapshot, visible
from tiered.config import DAY_MS
from tiered.format.batch import read_header
from tiered.format.producer_snapshot import ProducerEntry, decode_snapshot
from tiered.model import AbortedTxn

LATER_ROUNDS = [("compact-after1", "compact-after2"), ("compact-after2", "main")]


def _producers(fixtures: Path, partition: str, root: str) -> list[ProducerEntry]:
    return decode_snapshot(newest_snapshot(fixtures, partition, root).read_bytes())


def _txns(log: MemoryLog, start: int, end: int) -> list[tuple[int, AbortedTxn]]:
    entries = [(s.base_offset, txn) for s in log.segments for txn in s.aborted]
    return [(base, txn) for base, txn in entries if base >= start and txn.last_offset < end]


@pytest.mark.parametrize("partition", PARTITIONS)
def test_the_first_round_is_the_brokers(kafka_fixtures: Path, partition: str) -> None:
    config = config_of(kafka_fixtures, partition, "compact-after1")
    before = load(kafka_fixtures, partition, "compact-before", config)
    after = load(kafka_fixtures, partition, "compact-after1", config)
    now = time_of_round(before, after)
    live = tuple(p for p in _producers(kafka_fixtures, partition, "compact-before") if now - p.timestamp < DAY_MS)
    ours = clean(MemoryLog(before.segments, config, producers=live), now).log
    start = after.segments[0].base_offset  # retention took the first segment of compact-delete afterwards
    assert [s.base_offset for s in ours.segments if s.base_offset >= start] == [s.base_offset for s in after.segments]
    assert below(ours, start, after.end_offset) == below(after, start, after.end_offset)
    assert [s.aborted for s in ours.segments if s.base_offset >= start] == [s.aborted for s in after.segments]
    assert ours.checkpoint == checkpoint_of(kafka_fixtures, partition, "compact-after1")
    seen = [(r.offset, r.timestamp, r.key, r.value) for r in visible(ours.batches) if r.offset >= start]
    expected = expected_records(kafka_fixtures, partition, "compact-after1")
    assert seen == [(r.offset, r.timestamp, r.key, r.value) for r in expected]


@pytest.mark.parametrize(("root", "next_root"), LATER_ROUNDS)
@pytest.mark.parametrize("partition", PARTITIONS)
def test_a_later_round_is_the_brokers(kafka_fixtures: Path, partition: str, root: str, next_root: str) -> None:
    config = config_of(kafka_fixtures, partition, next_root)
    before = load(kafka_fixtures, partition, root, config)
    after = load(kafka_fixtures, partition, next_root, config)
    end = before.end_offset
    log = MemoryLog(
        _with_appended(before, after),
        config,
        checkpoint=checkpoint_of(kafka_fixtures, partition, root),
        log_start_offset=before.segments[0].base_offset,
        producers=tuple(_producers(kafka_fixtures, partition, next_root)),
    )
    done = clean(log, time_of_round(before, after))
    ours = done.log
    start = after.segments[0].base_offset
    assert ours.checkpoint == checkpoint_of(kafka_fixtures, partition, next_root)
    sealed = before.segments[-1].base_offset  # what follows was appended to; its size before the round is not known
    assert [s.base_offset for s in ours.segments if start <= s.base_offset < sealed] == [
        s.base_offset for s in after.segments if s.base_offset < sealed
    ]
    assert below(ours, start, end) == below(after, start, end)
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
