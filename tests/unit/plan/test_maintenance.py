"""What a maintainer plans: retention, merges, compaction. Numbers in names are those of bugs that others shipped."""

from __future__ import annotations

import dataclasses
import random
import tracemalloc
from uuid import UUID

import pytest

from tiered.config import DAY_MS, MAX_LONG, TopicConfig
from tiered.format.keys import Role
from tiered.format.rows import NO_TRASH, Trash
from tiered.model import TRASH_TREE, Row, TopicPartition, TrashEntry
from tiered.plan import maintenance
from tiered.plan.cleaning import CleaningCandidate, GroupScan, LogState, SegmentState, cleaning_candidate
from tiered.plan.commit import MAX_APPEND_ROWS, Stamp, create_root
from tiered.plan.maintenance import (
    MAX_GROUP_ROWS,
    CompactionPlanner,
    MaintenanceAction,
    MaintenanceKind,
    MergePlanner,
    WrongTimes,
    collectable,
    collection_action,
    newest_trimmed,
    retention_action,
    segment_state,
)
from tiered.plan.retention import LocalSegmentFacts, age_from_ms, dated, has_wrong_times, plan_remote_expiry

HOUR = 3_600_000
NOW = 1_700_000_000_000
OLD = NOW - 10 * DAY_MS
CONFIG = TopicConfig(cleanup_policy="compact")


def row(
    at: int,
    *,
    size: int = 1000,
    max_ts: int = OLD,
    min_ts: int | None = None,
    count: int = 100,
    appended_ms: int = -1,
) -> Row:
    least = max_ts if min_ts is None else min_ts
    return Row(
        at * 100, at * 100 + 100, least, max_ts, size, 0, at, at, 60 if size else 0, 1, count, 0, 0, 0, appended_ms
    )


# -- limits ----------------------------------------------------------------------------------------------------------


def test_no_group_has_more_rows_than_an_intent_may_replace() -> None:
    tiny = [row(at, size=1) for at in range(2 * MAX_GROUP_ROWS + 10)]
    found = merges(tiny, each=1000)
    assert [action.rows_in for action in found] == [MAX_GROUP_ROWS, MAX_GROUP_ROWS, 10]
    assert MAX_GROUP_ROWS < MAX_APPEND_ROWS
    scan = GroupScan(first_uncleanable=tiny[-1].next, config=CONFIG, most_segments=MAX_GROUP_ROWS)
    groups = [group for one in tiny if (group := scan.add(segment_state(one, CONFIG)))]
    assert [len(group) for group in (*groups, *scan.end())] == [MAX_GROUP_ROWS, MAX_GROUP_ROWS, 10]


def test_a_plan_holds_a_bounded_number_of_rows_to_merge(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "MAX_MERGED_ROWS", 25)
    tiny = [row(at, size=2_000 if at % 10 else 9_999) for at in range(200)]
    assert sum(action.rows_in for action in merges(tiny)) == 27


# -- retention -------------------------------------------------------------------------------------------------------


def test_bug_22_a_topic_that_is_only_compacted_is_never_trimmed_by_retention() -> None:
    rows = [row(0), row(1), row(2)]
    for policy, gone in (("compact", 0), ("compact,delete", 3), ("delete", 3)):
        config = TopicConfig(cleanup_policy=policy, retention_ms=1000, retention_bytes=0)
        assert plan_remote_expiry(rows, config=config, now_ms=NOW, start_offset=0).segments == gone, policy


def test_a_start_offset_trims_whatever_the_policy_and_is_exact() -> None:
    config = TopicConfig(cleanup_policy="compact")
    expiry = plan_remote_expiry([row(0), row(1)], config=config, now_ms=NOW, start_offset=130)
    assert (expiry.start_offset, expiry.segments, expiry.reasons) == (130, 1, ("log start offset",))
    trim = retention_action(expiry, 0, config=config, now_ms=NOW)
    assert trim is not None
    assert (trim.start, trim.end, trim.rows_in, trim.garbage_objects, trim.garbage_bytes) == (0, 130, 1, 2, 1000)
    assert trim.frees_at_ms == NOW + DAY_MS
    assert retention_action(expiry, 130, config=config, now_ms=NOW) is None


def test_bugs_1_and_2_size_is_that_of_the_committed_rows_and_never_falls_below_the_limit() -> None:
    """Whatever is on a disk or under way counts for nothing: the sum is that of one list of rows."""
    rows = [row(at) for at in range(5)]
    for limit, start in ((5000, 0), (4001, 0), (4000, 100), (3999, 100), (1000, 400), (1, 400), (0, 500)):
        config = TopicConfig(retention_bytes=limit)
        expiry = plan_remote_expiry(rows, config=config, now_ms=NOW, start_offset=0)
        assert expiry.start_offset == start, limit
        pieced = plan_remote_expiry(rows[:2], config=config, now_ms=NOW, start_offset=0, size_bytes=5000)
        assert pieced.start_offset == min(start, 200), limit


WRONG = {"a year ahead": NOW + 365 * DAY_MS, "microseconds": 1000 * NOW, "missing": -1, "before 1970": -5 * DAY_MS}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_where_a_timestamp_cannot_be_right_the_append_counts(wrong: int) -> None:
    """Such a timestamp pins nothing, and expires nothing early."""
    config = TopicConfig(retention_ms=DAY_MS)
    for appended_ms, gone in ((NOW - DAY_MS, 2), (NOW - DAY_MS + 1, 0)):
        rows = [row(0, max_ts=wrong, appended_ms=appended_ms), row(1, appended_ms=OLD), row(2, max_ts=NOW)]
        assert plan_remote_expiry(rows, config=config, now_ms=NOW, start_offset=0).segments == gone


@pytest.mark.parametrize("at", [0, OLD, NOW - 1, NOW + HOUR])
def test_a_timestamp_that_can_be_right_counts(at: int) -> None:
    """Between the epoch and the append, and after it as far as the topic lets a clock be ahead."""
    assert age_from_ms(at, NOW, TopicConfig()) == at
    assert not has_wrong_times(row(0, max_ts=at, appended_ms=NOW), TopicConfig())
    assert age_from_ms(NOW + HOUR + 1, NOW, TopicConfig()) == NOW


@pytest.mark.parametrize(("ahead", "counts"), [(2 * DAY_MS, True), (DAY_MS - 1, False), (MAX_LONG, False)])
def test_the_setting_says_how_far_a_clock_may_be_ahead_unless_it_is_switched_off(ahead: int, counts: bool) -> None:
    config = TopicConfig(message_timestamp_after_max_ms=ahead)
    assert age_from_ms(NOW + DAY_MS, NOW, config) == (NOW + DAY_MS if counts else NOW)


def test_a_row_without_any_time_stays_and_a_hole_goes() -> None:
    config = TopicConfig(retention_ms=HOUR)
    assert plan_remote_expiry([row(0, max_ts=-1)], config=config, now_ms=NOW, start_offset=0).segments == 0
    hole = row(0, size=0, max_ts=-1, count=0, appended_ms=NOW)
    assert plan_remote_expiry([hole], config=config, now_ms=NOW, start_offset=0).segments == 1


def test_the_disk_and_the_bucket_count_the_same_age() -> None:
    config = TopicConfig(retention_ms=HOUR)
    for number, at in enumerate((*WRONG.values(), OLD, NOW)):
        for appended_ms in (OLD, NOW):
            disk = LocalSegmentFacts(0, 100, 1000, at, appended_ms)
            gone = disk.is_older(HOUR, NOW, config)
            there = [row(0, max_ts=at, appended_ms=appended_ms)]
            assert plan_remote_expiry(there, config=config, now_ms=NOW, start_offset=0).segments == gone, number


@pytest.mark.parametrize(
    ("before_ms", "trusted", "sealed", "fixed"),
    [
        (-1, True, (NOW - 50, NOW - 40), (NOW - 50, NOW - 40)),
        (NOW - 45, True, (NOW - 50, NOW - 40), (NOW - 45, NOW - 40)),
        (-1, True, (NOW + DAY_MS, NOW - 40), (NOW, NOW)),
        (-1, True, (-1, NOW - 40), (NOW, NOW)),
        (-1, False, (NOW - 50, NOW - 40), (NOW, NOW)),
    ],
    ids=["as sealed", "not before the row before", "sealed ahead of the commit", "not known", "a wrong clock"],
)
def test_append_times_are_fixed_at_the_commit(
    before_ms: int, trusted: bool, sealed: tuple[int, ...], fixed: tuple[int, ...]
) -> None:
    rows = [row(at, appended_ms=appended_ms) for at, appended_ms in enumerate(sealed)]
    made = dated(rows, before_ms=before_ms, commit_ms=NOW, trusted=trusted)
    assert made == tuple(one._replace(appended_ms=ms) for one, ms in zip(rows, fixed, strict=True))


def test_a_plan_names_the_segments_whose_timestamps_are_not_used() -> None:
    rows = [row(at, max_ts=1000 * NOW if at % 2 else NOW, appended_ms=NOW) for at in range(10)]
    wrong = WrongTimes(TopicConfig())
    wrong.add(rows[:4])
    wrong.add(rows)
    text = "timestamps of the segment with offsets 100 to 200 are not used: the largest is"
    assert wrong.notes[0] == f"{text} {1000 * NOW}, its append time is 2023-11-14T22:13:20Z"
    assert len(wrong.notes) == 4
    assert wrong.notes[3] == "the timestamps of 2 more segments are not used either"


# -- merging ---------------------------------------------------------------------------------------------------------


def merges(rows: list[Row], config: TopicConfig | None = None, *, each: int = 3) -> list[MaintenanceAction]:
    planner = MergePlanner(config or TopicConfig(segment_bytes=10_000), NOW)
    for at in range(0, len(rows), each):
        planner.add(rows[at : at + each])
    return planner.finish()


def ranges(found: list[MaintenanceAction]) -> list[tuple[int, int]]:
    return [(action.start, action.end) for action in found]


def test_four_small_neighbours_become_one_and_three_do_not() -> None:
    assert merges([row(at) for at in range(3)]) == []
    (found,) = merges([row(at) for at in range(4)])
    assert (found.kind, found.start, found.end, found.rows_in, found.rows_out) == (MaintenanceKind.MERGE, 0, 400, 4, 1)
    assert (found.bytes_read, found.bytes_written, found.garbage_objects) == (4000, 4000, 8)
    assert [merged.base for merged in found.rows] == [0, 100, 200, 300]


def test_merges_stay_within_the_target_and_are_cut_by_large_rows() -> None:
    rows = [row(at) for at in range(25)]
    rows[21] = row(21, size=2500)  # a quarter of segment.bytes: not small
    assert ranges(merges(rows)) == [(0, 1000), (1000, 2000)]
    config = TopicConfig(merge_min_bytes=3000, merge_target_bytes=5000)
    assert ranges(merges(rows, config)) == [(0, 500), (500, 1000), (1000, 1500), (1500, 2000)]


@pytest.mark.parametrize(
    ("max_ts", "appended_ms", "found"),
    [
        (NOW - HOUR, NOW - HOUR, 1),
        (NOW - HOUR + 1, NOW - HOUR, 0),
        (NOW + 9 * DAY_MS, NOW - HOUR, 1),
        (NOW + 9 * DAY_MS, NOW - HOUR + 1, 0),
        (-1, NOW - HOUR + 1, 0),
    ],
)
def test_only_rows_at_rest_are_merged_and_a_wrong_clock_pins_none(max_ts: int, appended_ms: int, found: int) -> None:
    rows = [row(at, max_ts=max_ts, appended_ms=appended_ms) for at in range(4)]
    assert len(merges(rows)) == found
    minute = TopicConfig(segment_bytes=10_000, merge_idle_ms=60_000)
    assert len(merges(rows, minute)) == 1


def test_a_row_larger_than_all_its_neighbours_together_is_not_written_again_for_them() -> None:
    rows = [row(at, size=10) for at in range(9)]
    rows[4] = row(4, size=81)
    assert ranges(merges(rows)) == [(0, 400), (500, 900)]
    rows[4] = row(4, size=80)
    assert ranges(merges(rows)) == [(0, 900)]


def test_bug_4_offsets_that_one_index_cannot_hold_are_not_merged() -> None:
    """Deltas are 31 bits in the index: they are compared as 64-bit numbers before anything is written."""
    far = [Row(at << 30, (at + 1) << 30, OLD, OLD, 1000, 0, at, at, 60, 1, 1, 0, 0) for at in range(6)]
    assert merges(far) == []
    near = [Row(at << 29, (at + 1) << 29, OLD, OLD, 1000, 0, at, at, 60, 1, 1, 0, 0) for at in range(6)]
    assert ranges(merges(near)) == [(0, 4 << 29)]


# -- compaction, collection ------------------------------------------------------------------------------------------


def compaction(rows: list[Row], config: TopicConfig, *, cleaned: int | None = None) -> MaintenanceAction | None:
    end = rows[-1].next
    planner = CompactionPlanner(LogState(TopicPartition("t", 0), config, (), 0, end, end, end, cleaned), NOW)
    planner.add(rows)
    return planner.action()


@pytest.mark.parametrize(("cleaned", "due"), [(None, True), (400, True), (500, False), (1000, False)])
def test_compaction_is_due_above_the_dirty_ratio(cleaned: int | None, due: bool) -> None:
    rows = [row(at) for at in range(10)]
    found = compaction(rows, TopicConfig(cleanup_policy="compact"), cleaned=cleaned)
    assert (found is not None) is due
    if found is not None:
        dirty = (1000 - (cleaned or 0)) * 10
        assert (found.start, found.end, found.rows_in, found.bytes_read) == (0, 1000, 10, 10_000 + dirty)
    assert compaction(rows, TopicConfig(), cleaned=cleaned) is None


def test_max_compaction_lag_forces_a_compaction() -> None:
    rows = [row(at, min_ts=NOW - HOUR, max_ts=NOW) for at in range(10)]
    for lag, due in ((HOUR - 1, True), (HOUR, False)):
        config = TopicConfig(cleanup_policy="compact", max_compaction_lag_ms=lag)
        assert (compaction(rows, config, cleaned=900) is not None) is due


def test_min_compaction_lag_keeps_what_is_young_and_what_tells_no_age() -> None:
    config = TopicConfig(cleanup_policy="compact", min_compaction_lag_ms=HOUR)
    for newest, end in ((OLD, 1000), (NOW - HOUR + 1, 500), (-1, 500)):
        rows = [row(at, max_ts=newest if at == 5 else OLD) for at in range(10)]
        found = compaction(rows, config)
        assert found is not None
        assert found.end == end, newest
    assert compaction([row(at, max_ts=-1) for at in range(10)], TopicConfig(cleanup_policy="compact")) is not None


def test_what_holds_no_record_is_never_too_young() -> None:
    """A hole in the dirty part, of a round that was cut short or of what was given up, held back all behind it."""
    config = TopicConfig(cleanup_policy="compact", min_compaction_lag_ms=HOUR)
    for empty in (row(5, size=0, max_ts=-1, count=0), row(5, max_ts=-1, count=0)):
        found = compaction([*map(row, range(5)), empty, *map(row, range(6, 10))], config)
        assert found is not None
        assert (found.end, found.rows_in) == (1000, 10)


@pytest.mark.long
def test_compactions_cover_all_rows_however_many_there_are_and_the_plan_holds_one_of_them() -> None:
    """Each covers what came since the one before; behind the last nothing is due."""
    config = TopicConfig(cleanup_policy="compact", min_cleanable_dirty_ratio=0.0)
    cleaned, covered = None, []
    for count in (150_000, 270_000, 270_000):
        end = count * 100
        planner = CompactionPlanner(LogState(TopicPartition("t", 0), config, (), 0, end, end, end, cleaned), NOW)
        tracemalloc.start()
        for at in range(count):
            planner.add([row(at)])
        action, (_, peak) = planner.action(), tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 100_000
        if action is not None:
            dirty = count * 100 - (cleaned or 0)
            assert action.bytes_read == count * 1000 + dirty * 10
            cleaned = action.end
        covered.append(action and (action.start, action.end, action.rows_in))
    assert covered == [(0, 15_000_000, 150_000), (0, 27_000_000, 270_000), None]


def _candidate_of(state: LogState, now_ms: int) -> CleaningCandidate:
    """As Kafka's comparisons say it of all segments at once."""

    def held(offset: int) -> tuple[SegmentState, ...]:
        if offset >= state.active_base_offset:
            return ()
        first = sum(1 for segment in state.segments if segment.base_offset <= offset)
        return state.segments[max(first - 1, 0) :]

    config, checkpoint = state.config, state.checkpoint
    useful = checkpoint is not None and state.log_start_offset <= checkpoint <= state.end_offset
    dirty = checkpoint if checkpoint is not None and useful else state.log_start_offset
    bound = min(state.last_stable_offset, state.active_base_offset)
    if (lag := config.min_compaction_lag_ms) > 0:
        young = [one.base_offset for one in held(dirty) if one.age_from_ms(config) > now_ms - lag]
        bound = min([bound, *young[:1]])
    end = held(bound)[0].base_offset if held(bound) else state.active_base_offset
    stamps = [one.first_batch_timestamp for one in held(dirty) if one.first_batch_timestamp > 0]
    return CleaningCandidate(
        state.tp,
        dirty,
        end,
        sum(one.size_bytes for one in state.segments if one.base_offset < dirty),
        sum(one.size_bytes for one in held(dirty) if one.base_offset < end),
        config.min_cleanable_dirty_ratio,
        max(now_ms - config.max_compaction_lag_ms - min(stamps), 0) if stamps else 0,
        checkpoint is not None and not useful,
    )


@pytest.mark.parametrize("seed", range(300))
def test_what_is_told_of_segments_one_by_one_is_what_all_of_them_tell(seed: int) -> None:
    rng = random.Random(seed)
    segments, at = list[SegmentState](), rng.randrange(3)
    for _ in range(rng.randrange(7)):
        base = at + rng.choice((0, 0, 0, 2))
        at = base + rng.randrange(1, 4)
        segments.append(SegmentState(base, at, rng.randrange(5), rng.randrange(-1, 9), rng.randrange(-1, 9)))
    active = at + rng.choice((0, 0, 1))
    config = TopicConfig(
        cleanup_policy="compact", min_compaction_lag_ms=rng.randrange(4), max_compaction_lag_ms=rng.randrange(4, 9)
    )
    state = LogState(
        TopicPartition("t", 0),
        config,
        tuple(segments),
        rng.randrange(at + 2),
        active + rng.randrange(3),
        rng.randrange(active + 3),
        active,
        rng.choice((None, *range(active + 4))),
    )
    assert cleaning_candidate(state, 10) == _candidate_of(state, 10)


def test_collection_is_due_when_the_grace_is_over() -> None:
    trash = Trash.from_entries([TrashEntry(1, 1, 0, 5, NOW - DAY_MS, 1), TrashEntry(2, 2, 100, 6, NOW - DAY_MS + 1, 1)])
    stamp = Stamp("0" * 32, NOW, Role.MAINTAINER, 1, "m")
    root = dataclasses.replace(
        create_root(UUID(int=7), 0, "t", stamp), version=6, start_offset=100, next_offset=200, trash=trash
    )
    found = collection_action(root, config=TopicConfig(), now_ms=NOW)
    assert found is not None
    assert (found.kind, found.garbage_objects) == (MaintenanceKind.COLLECT, 2)
    for other in (dataclasses.replace(root, version=4), dataclasses.replace(root, trash=NO_TRASH)):
        assert collection_action(other, config=TopicConfig(), now_ms=NOW) is None


def test_the_newest_segment_of_a_log_without_records_is_not_collected() -> None:
    """The one that left last, and of several that left together the one with the largest offsets; no page."""
    first, replaced, last = (
        TrashEntry(at, at, base, removed, 0, 1) for at, base, removed in ((1, 0, 5), (2, 100, 4), (3, 90, 5))
    )
    page = TrashEntry(4, 4, 200, 6, 0, 1, TRASH_TREE)
    stamp = Stamp("0" * 32, NOW, Role.MAINTAINER, 1, "m")
    root = dataclasses.replace(
        create_root(UUID(int=7), 0, "t", stamp),
        version=6,
        start_offset=100,
        next_offset=100,
        trash=Trash.from_entries([replaced, first, last, page]),
    )
    assert newest_trimmed(root) == last
    assert list(collectable(root, limit=6, now_ms=NOW, grace_ms=0)) == [replaced, first, page]
    grown = dataclasses.replace(root, next_offset=101)
    assert newest_trimmed(grown) is None
    assert len(collectable(grown, limit=6, now_ms=NOW, grace_ms=0)) == 4
    assert newest_trimmed(dataclasses.replace(root, trash=NO_TRASH)) is None
