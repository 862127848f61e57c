"""Segments of a bucket that were damaged come back from versions, from a log directory, or from what is left."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import tiered
from tests.support.admin import apply_repair
from tests.support.buckets import STORES, TP, Bucket, bucket, write
from tiered.clock import SystemClock
from tiered.errors import ConfigError
from tiered.format.keys import FLAG_HOLE, FLAG_MAINTAINER
from tiered.local.directory.read_only_log import LogView
from tiered.model import EpochEntry
from tiered.repair.new_segments import is_of_log
from tiered.repair.plan import RepairOptions
from tiered.repair.segments import Ground, find_run

Damage = Callable[[Bucket, str], None]


def delete(place: Bucket, key: str) -> None:
    place.delete(key)


def extend(place: Bucket, key: str) -> None:
    place.replace(key, place.data(key) + b"more")


@pytest.fixture(params=STORES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bucket]:
    with bucket(request.param, tmp_path) as made:
        write(made)
        yield made


@pytest.fixture
def versions(tmp_path: Path) -> Iterator[Bucket]:
    with bucket("versions", tmp_path) as made:
        write(made)
        yield made


@pytest.fixture
def plain(tmp_path: Path) -> Iterator[Bucket]:
    with bucket("memory", tmp_path) as made:
        write(made)
        yield made


def test_nothing_is_done_where_nothing_is_wrong(place: Bucket) -> None:
    before = place.listed()
    plan = place.repair()
    assert (plan.actions, plan.exit_code) == ((), 0)
    assert place.listed() == before


@pytest.mark.parametrize("damage", [delete, extend])
def test_a_version_takes_the_place_of_a_damaged_object(versions: Bucket, damage: Damage) -> None:
    before, rows = versions.committed(), versions.rows()
    for key in (versions.log_key(rows[1]), versions.index_key(rows[1]), versions.index_key(rows[3])):
        damage(versions, key)
    plan = versions.repair()
    assert len(plan.actions) == 3
    assert (plan.exit_code, versions.rows()) == (0, rows)
    assert versions.committed() == before
    assert versions.findings() == ()
    assert len(versions.listed("/aside/")) == (0 if damage is delete else 3)
    versions.continues()


def test_a_disk_that_diverged_gives_nothing(plain: Bucket) -> None:
    """Its records have the same offsets, under another leader epoch."""
    row = plain.compact(1, 5)
    with contextlib.closing(LogView.open(plain.directory, clock=SystemClock())) as view:
        run = find_run(Ground(TP, plain.entry, RepairOptions(), view), view, row)
        assert is_of_log(TP, run, plain.root.lineage)
        assert not is_of_log(TP, run, [EpochEntry(7, 0)])


@pytest.mark.parametrize("seed", range(4))
def test_open_transactions_count_as_aborted_where_a_hole_begins(tmp_path: Path, seed: int) -> None:
    with bucket("memory", tmp_path) as place:
        write(place, seed)
        before, row = place.committed(), place.rows()[3]
        place.delete(place.log_key(row), place.index_key(row))
        plan = place.repair(accept_loss=True)
        (action,) = plan.actions
        assert action.lost == ((row.base, row.next),)
        kept = [seen for seen in before if not row.base <= seen[0] < row.next]
        after = place.committed()
        assert set(after) <= set(kept)
        if not action.notes:
            assert after == kept
        for note in action.notes:
            assert "counts as aborted" in note
        place.continues()


def test_a_log_without_producers_gets_a_hole(tmp_path: Path) -> None:
    with bucket("memory", tmp_path) as place:
        with tiered.open(place.directory, place.store.url) as log:
            topic = log.topic("t", create=True, config={"segment.bytes": 700})
            for number in range(40):
                topic.append(b"%d" % number + b"x" * 60)
            log.sync(timeout=60)
        row = place.rows()[1]
        place.delete(place.log_key(row))
        place.repair(accept_loss=True)
        assert place.rows()[1].flags == FLAG_HOLE | FLAG_MAINTAINER
        assert place.findings() == ()


def test_a_plan_that_is_out_of_date_changes_nothing(plain: Bucket) -> None:
    row = plain.rows()[2]
    right = plain.data(plain.log_key(row))
    plain.delete(plain.log_key(row))
    plan = plain.plan(from_dir=plain.directory)
    plain.replace(plain.log_key(row), right[:-1])
    with pytest.raises(ConfigError, match="another object by now"):
        apply_repair(plain.store, plan)
    assert plain.data(plain.log_key(row)) == right[:-1]
