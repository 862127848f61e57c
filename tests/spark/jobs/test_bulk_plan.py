"""A compaction of 10 TB is planned from its catalog alone: 150,000 segments that no store holds."""

from __future__ import annotations

import itertools

from bench.bulk_plan import SEGMENT_BYTES, SEGMENT_RECORDS, SEGMENTS, make_catalog, plan_round_of
from tiered.plan.jobs import SPAN_BYTES, TWO_PHASE_BYTES
from tiered.plan.survivors import PAIR_BYTES, SURVIVOR_BYTES
from tiered.spark.jobs.compact import Compact
from tiered.store.memory import MemoryStore

NOW_MS = 1_700_000_000_000
ARGUMENTS = {
    "topics": [],
    "task_bytes": SPAN_BYTES,
    "memory_bytes": 128 * 1024**2,
    "two_phase_bytes": TWO_PHASE_BYTES,
    "sample": 0,
}


def test_every_log_is_planned_in_two_phases_and_every_row_is_counted() -> None:
    store, partitions = MemoryStore(), 100
    make_catalog(store, partitions=partitions, segments=SEGMENTS // partitions)
    plan = Compact().plan(store, ARGUMENTS, NOW_MS)
    assert (plan.tasks, plan.facts["notes"]) == ((), [])
    rows = SEGMENTS // partitions
    records = rows * SEGMENT_RECORDS
    told = [
        (log["partition"], log["rows_in"], log["records"], log["bytes_written"], log["shuffle_bytes"])
        for log in plan.facts["two_phase"]
    ]
    most = round(records * PAIR_BYTES + records * SURVIVOR_BYTES)
    assert told == [(number, rows, records, rows * SEGMENT_BYTES, most) for number in range(partitions)]


def test_a_round_has_each_segment_of_one_log_in_one_group_and_parts_without_a_gap() -> None:
    store = MemoryStore()
    make_catalog(store, partitions=1, segments=SEGMENTS)
    kept, parts = plan_round_of(store)
    assert len(kept["parts"]) == len(parts)
    assert sum(part.records for part in parts) == SEGMENTS * SEGMENT_RECORDS
    assert sum(part.size_bytes for part in parts) == SEGMENTS * SEGMENT_BYTES
    assert {part.size_bytes for part in parts[:-1]} == {-(-SPAN_BYTES // SEGMENT_BYTES) * SEGMENT_BYTES}
    groups = [group for part in parts for group in part.groups]
    assert sum(group.rows for group in groups) == SEGMENTS
    assert (groups[0].start, groups[-1].end) == (0, SEGMENTS * SEGMENT_RECORDS)
    assert all(one.end == other.start for one, other in itertools.pairwise(groups))
    assert all(one.end == other.start for one, other in itertools.pairwise(parts))
