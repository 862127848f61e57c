"""A root that is missing, damaged or older goes on from the newest good copy and what follows it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import tiered
from tests.support.admin import apply_repair, plan_rejoin, rejoin
from tests.support.buckets import TP, Bucket, bucket, write
from tiered.clock import SystemClock
from tiered.errors import ConfigError, FencedError, NotFoundError
from tiered.format.root import decode_root
from tiered.repair.plan import EXIT_LEFT
from tiered.store.base import ABSENT, Put
from tiered.times import format_time


def lose(place: Bucket) -> None:
    place.delete(place.root_key)


@pytest.fixture
def plain(tmp_path: Path) -> Iterator[Bucket]:
    with bucket("memory", tmp_path) as made:
        write(made)
        yield made


def goes_on(place: Bucket) -> None:
    """The disk that wrote rejoins, and appends more."""
    rejoin(plan_rejoin(place.directory, [TP], clock=SystemClock()), clock=SystemClock())
    place.continues()


def test_the_new_root_is_above_all_that_is_proven_and_of_no_volume(
    plain: Bucket, caplog: pytest.LogCaptureFixture
) -> None:
    root = plain.root
    plain.replace(plain.root_key, b"")
    plain.repair()
    after = plain.root
    assert after.version > root.version
    assert all(after.roles[role].epoch > root.roles[role].epoch for role in root.roles)
    assert (after.writer.volume, after.lineage) == ("", root.lineage)
    assert len(plain.listed("/aside/")) == 1
    with tiered.open(plain.directory, plain.store.url) as log:
        log.topic("t").append(b"set aside")
        with pytest.raises(FencedError, match=r"belongs to no volume \(claimed by repair"):
            log.sync(timeout=60)
    goes_on(plain)
    assert "resumes at offset" not in caplog.text  # the repair left nothing on another disk


def test_a_version_of_the_object_needs_no_history(tmp_path: Path) -> None:
    with bucket("versions", tmp_path) as place:
        write(place)
        place.trim(place.rows()[2].base)
        rows = place.rows()
        place.delete(place.root_key, *place.listed("/hist/"))
        assert place.repair().exit_code == 0
        assert place.rows() == rows


def test_without_any_copy_it_is_left(plain: Bucket) -> None:
    plain.delete(plain.root_key, *plain.listed("/hist/"))
    plan = plain.plan()
    assert plan.exit_code == EXIT_LEFT
    assert plan.actions[0].act is None


def test_lost_objects_at_the_end_need_leave_wherever_the_disk_is(plain: Bucket) -> None:
    """The bucket looks like a copy that was made while it was written. The disk still has the records."""
    before, rows = plain.committed(), plain.rows()
    plain.trim(rows[1].base)  # keeps a copy
    with tiered.open(plain.directory, plain.store.url) as log:
        for _ in range(4):
            log.topic("t").append(b"later" * 100)
        log.sync(timeout=60)
    kept = plain.committed()
    late = [row for row in plain.rows() if row not in rows]
    plain.delete(*[key for row in late for key in (plain.log_key(row), plain.index_key(row))])
    assert [action.act for action in plain.plan().actions] == [None]
    assert plain.plan().exit_code == EXIT_LEFT
    plain.repair_once(from_dir=plain.directory)
    assert plain.committed() == kept != before


def test_a_version_that_is_not_kept(plain: Bucket) -> None:
    kept = [decode_root(plain.data(key), key=key) for key in reversed(plain.listed("/hist/"))]
    lines = [
        f"  {root.version}: {format_time(root.commit.ts_ms)}, offsets {root.start_offset} to {root.next_offset}"
        for root in kept
        if root.version < plain.root.version
    ]
    with pytest.raises(NotFoundError, match="version 1 is not kept") as refused:
        plain.plan(to_version=1)
    assert refused.value.hint == "\n".join(["versions that are kept:", *lines])
    with pytest.raises(ConfigError, match="cannot go back") as ahead:
        plain.plan(to_version=plain.root.version)
    assert ahead.value.hint == refused.value.hint


def test_a_root_is_written_over_a_gap_only_with_a_hole(plain: Bucket) -> None:
    before, rows = plain.committed(), plain.rows()
    plain.delete(plain.root_key, plain.log_key(rows[-3]), plain.index_key(rows[-3]))
    ends = {decode_root(plain.data(key), key=key).next_offset for key in plain.listed("/hist/")}
    assert max(ends) <= rows[-3].base
    plan = plain.repair()
    assert plan.exit_code == EXIT_LEFT
    assert "`tiered repair t:0 --accept-loss` makes a hole of the gap" in plan.left[0].remedy
    assert plain.root_key not in plain.listed()
    plain.repair_once(accept_loss=True)
    assert (plain.root.next_offset, len(plain.rows())) == (rows[-1].next, len(rows))
    kept = [seen for seen in before if not rows[-3].base <= seen[0] < rows[-3].next]
    assert set(plain.committed()) <= set(kept)
    assert plain.findings() == ()


def test_a_root_is_not_replaced_if_another_one_is_there_by_now(plain: Bucket) -> None:
    data = plain.data(plain.root_key)
    lose(plain)
    plan = plain.plan()
    plain.store.execute(Put(plain.root_key, data, ABSENT))
    with pytest.raises(ConfigError, match="changed since the repair was planned"):
        apply_repair(plain.store, plan)
    assert plain.data(plain.root_key) == data
    assert not plain.listed("/aside/")
