"""A compaction of 10 TB is planned from its catalog alone: 150,000 segments that no store holds."""

from __future__ import annotations

import itertools

from bench.bulk_plan import SEGMENT_BYTES, SEGMENT_RECORDS, SEGMENTS, make_catalog, plan_round_of
from tiered.plan.jobs import SPAN_BYTES, TWO_PHASE_BYTES
from tiered.plan.maintenance import MaintenanceKind
from tiered.spark.jobs.maintain import JobScope, _due
from tiered.store.memory import MemoryStore


def test_every_log_is_planned_in_two_phases_and_every_row_is_counted() -> None:
    store, partitions = MemoryStore(), 100
    make_catalog(store, partitions=partitions, segments=SEGMENTS // partitions)
    rows = SEGMENTS // partitions
    due = _due(store, JobScope(None, (MaintenanceKind.COMPACT,), SPAN_BYTES, TWO_PHASE_BYTES))
    found = [
        (each.plan.tp.partition, each.in_two_phases, *map(each.total, ("rows_in", "records", "bytes_written")))
        for each in due
    ]
    wanted = (True, rows, rows * SEGMENT_RECORDS, rows * SEGMENT_BYTES)
    assert found == [(number, *wanted) for number in range(partitions)]


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
