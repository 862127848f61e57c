"""Timestamps that are missing, in the future or in microseconds, from the append to retention and restore."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

import pytest

import tiered
from tests.support.admin import check, restore
from tiered.config import DAY_MS, TopicConfig
from tiered.local.directory.log_directory import LocalLog
from tiered.model import NewRecord, Row, TopicPartition
from tiered.plan.maintenance import ROUTINE, MaintenanceAction, MaintenanceKind
from tiered.remote.maintain import Maintainer
from tiered.remote.root_view import RootView
from tiered.remote.topics import load_topic
from tiered.restore.plan import RestoreOptions
from tiered.store.base import INCAPABLE
from tiered.store.driver import drive
from tiered.store.memory import MemoryStore
from tiered.testing.clock import START_MS, FakeClock

HOUR_S, DAY_S = 3600, 86_400
SETTINGS = {"retention_ms": 7 * DAY_MS, "message_timestamp_after_max_ms": 2**63 - 1}
TP = TopicPartition("t", 0)
WRONG = {"a year ahead": START_MS + 365 * DAY_MS, "microseconds": START_MS * 1000}


class World(NamedTuple):
    """A log with three segments, a day apart: the first has a wrong timestamp. It is uploaded ten days later."""

    clock: FakeClock
    store: MemoryStore
    directory: Path
    wrong: int

    @property
    def rows(self) -> list[Row]:
        """Of the catalog."""
        root = drive(self.store, RootView(self.topic_id, 0, TP.topic).load())
        assert root is not None
        return list(root.rows)

    @property
    def topic_id(self) -> UUID:
        """As the registry has it."""
        entry = drive(self.store, load_topic(TP.topic))
        assert entry is not None
        return entry.topic_id

    def maintainer(self, **settings: int) -> Maintainer:
        """With the settings of the topic, some of them changed."""
        config = TopicConfig.from_properties({**SETTINGS, **settings})
        return Maintainer(TP, self.topic_id, config, owner="test")

    def planned(
        self, clock: FakeClock | None = None, **settings: int
    ) -> tuple[tuple[MaintenanceAction, ...], tuple[str, ...]]:
        """Actions and notes of a plan, by this clock."""
        plan = drive(self.store, self.maintainer(**settings).plan(ROUTINE), clock=clock or self.clock)
        assert plan is not None
        return plan.actions, plan.notes


def written(directory: Path, clock: FakeClock, *timestamps: int, **settings: int) -> None:
    """One segment of one record for each timestamp (-1: the log's clock), a day apart."""
    with LocalLog.open(directory, clock=clock) as log:
        if TP.topic not in log.topics():
            log.create_topic(TP.topic, config=TopicConfig.from_properties({**SETTINGS, **settings}))
        for timestamp in timestamps:
            log.partition(TP).append([NewRecord(b"x" * 100, timestamp=timestamp)])
            log.partition(TP).roll()
            clock.advance(DAY_S)


@pytest.fixture(params=WRONG.values(), ids=WRONG)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    clock, name = FakeClock(), f"wrong-{request.param}"
    MemoryStore.forget(name)
    store = MemoryStore(name, clock=clock)
    written(tmp_path / "log", clock, request.param, -1, -1)
    clock.advance(7 * DAY_S)
    with tiered.open(tmp_path / "log", remote=f"memory://{name}", clock=clock) as log:
        log.topic("t")
        log.sync()
    yield World(clock, store, tmp_path / "log", request.param)
    MemoryStore.forget(name)


def test_rows_have_the_times_of_their_appends_however_late_they_are_uploaded(world: World) -> None:
    assert [row.appended_ms for row in world.rows] == [START_MS, START_MS + DAY_MS, START_MS + 2 * DAY_MS]
    assert [row.max_ts for row in world.rows] == [world.wrong, START_MS + DAY_MS, START_MS + 2 * DAY_MS]


def test_it_expires_when_it_was_appended_long_enough_ago_and_takes_no_good_segment_along(world: World) -> None:
    (trim,), notes = world.planned()
    assert (trim.kind, trim.end) == (
        MaintenanceKind.RETENTION,
        2,
    )  # ten days later the last segment is kept for its producers
    assert notes[0].startswith("timestamps of the segment with offsets 0 to 1 are not used: the largest is")
    actions, _ = world.planned(retention_ms=30 * DAY_MS)
    assert actions == ()


def test_a_merge_keeps_the_append_time(world: World) -> None:
    before_ms = world.clock.now_ms()
    with tiered.open(world.directory, remote=world.store.url, clock=world.clock) as log:
        log.topic("t").append(b"x" * 100)
        log.sync()
    world.clock.advance(2 * HOUR_S)
    maintainer = world.maintainer(retention_ms=-1)
    plan = drive(world.store, maintainer.plan((MaintenanceKind.MERGE,)), clock=world.clock)
    assert plan is not None
    (merge,) = plan.actions
    last_ms = world.rows[-1].appended_ms
    drive(world.store, maintainer.run(merge, INCAPABLE), clock=world.clock)
    (row,) = world.rows
    assert (row.appended_ms, row.max_ts) == (last_ms, world.wrong)
    assert before_ms <= last_ms <= world.clock.now_ms()


def test_a_restore_until_a_time_cuts_by_the_append_and_says_so(world: World, tmp_path: Path) -> None:
    until = START_MS + DAY_MS // 2
    report = restore(world.store, tmp_path / "new", RestoreOptions(until_ms=until))
    assert report.plans[0].end_offset == 1
    assert "t-0: timestamps of the segment with offsets 0 to 1 are not used" in report.notes[0]
    report = restore(world.store, tmp_path / "all", RestoreOptions(until_ms=START_MS + 5 * DAY_MS))
    assert report.plans[0].end_offset == 3
    report = restore(world.store, tmp_path / "since", RestoreOptions(since_ms=until))
    assert report.plans[0].start_offset == 1


def test_a_restored_segment_keeps_its_append_time(world: World, tmp_path: Path) -> None:
    restore(world.store, tmp_path / "new", RestoreOptions())
    with LocalLog.open(tmp_path / "new", clock=world.clock) as log:
        assert log.partition(TP).sealed_segments()[0].appended_ms == START_MS


def test_check_lists_it_in_both_tiers(world: World) -> None:
    report = check(world.directory, world.store)
    found = [(each.code, each.offset) for each in report.findings]
    assert found.count(("timestamps_not_used", 0)) == 2


def test_a_clock_that_is_400_days_ahead_expires_nothing(world: World) -> None:
    ahead = FakeClock(world.clock.now_ms() + 400 * DAY_MS)
    assert world.planned(ahead, retention_ms=30 * DAY_MS)[0] == ()


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_a_disk_without_a_bucket_lets_it_go_by_the_append(tmp_path: Path, wrong: int) -> None:
    clock = FakeClock()
    written(tmp_path, clock, wrong, -1)
    with LocalLog.open(tmp_path, clock=clock) as log:
        partition = log.partition(TP)
        clock.set_ms(START_MS + 7 * DAY_MS)
        assert partition.apply_retention() == []
        clock.set_ms(START_MS + 7 * DAY_MS + 1)
        assert partition.apply_retention() == [0]
