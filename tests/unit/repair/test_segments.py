"""Segments of a bucket that were damaged come back from versions, from a log directory, or from what is left."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import tiered
from tests.support.admin import apply_repair
from tests.support.buckets import TP, Bucket, bucket, write
from tiered.clock import SystemClock
from tiered.errors import ConfigError
from tiered.format.keys import FLAG_HOLE, FLAG_MAINTAINER
from tiered.local.directory.read_only_log import LogView
from tiered.model import EpochEntry
from tiered.remote.catalog_view import CatalogView
from tiered.repair.plan import Ground, RepairOptions
from tiered.repair.salvage import DamagedRow, plan_remains
from tiered.repair.segments import find_run
from tiered.repair.versions import RepairSource
from tiered.store.driver import drive

Damage = Callable[[Bucket, str], None]


def flip(place: Bucket, key: str) -> None:
    data = bytearray(place.data(key))
    data[len(data) // 2] ^= 1
    place.replace(key, bytes(data))


@pytest.fixture
def plain(tmp_path: Path) -> Iterator[Bucket]:
    with bucket("memory", tmp_path) as made:
        write(made)
        yield made


def test_a_disk_that_diverged_gives_nothing(plain: Bucket) -> None:
    """Its records have the same offsets, under another leader epoch."""
    row = plain.compact(1, 5)
    with contextlib.closing(LogView.open(plain.directory, clock=SystemClock())) as view:
        run = find_run(Ground(TP, plain.entry, RepairOptions(), view), view, row)
        one = DamagedRow(plain.entry.topic_id, TP, row, RepairSource(plain.log_key(row), row.size, run=run))
        for lineage, lost in ((plain.root.lineage, ()), ((EpochEntry(7, 0),), ((row.base, row.next),))):
            pinned = CatalogView.from_root(dataclasses.replace(plain.root, lineage=lineage))
            assert drive(plain.store, plan_remains(one, pinned, accepted=False)) == (lost, ())


@pytest.mark.parametrize("seed", range(4))
def test_an_accepted_loss_keeps_the_outcome_of_transactions(tmp_path: Path, seed: int) -> None:
    """The bundle is whole: it names the transactions that ended in the lost segment."""
    with bucket("memory", tmp_path) as place:
        write(place, seed)
        before, rows = place.committed(), place.rows()
        lost = rows[2 : len(rows) : 3]
        place.delete(*[place.log_key(row) for row in lost])
        plan = place.repair(accept_loss=True)
        assert [action.lost for action in plan.actions] == [((row.base, row.next),) for row in lost]
        assert not any(action.notes for action in plan.actions)
        gone = {offset for row in lost for offset in range(row.base, row.next)}
        assert place.committed() == [seen for seen in before if seen[0] not in gone]
        assert place.findings() == ()
        place.continues()


@pytest.mark.parametrize("seed", range(4))
def test_without_the_bundle_open_transactions_count_as_aborted(tmp_path: Path, seed: int) -> None:
    with bucket("memory", tmp_path) as place:
        write(place, seed)
        before, row = place.committed(), place.rows()[3]
        place.delete(place.log_key(row), place.index_key(row))
        plan = place.repair(accept_loss=True)
        (action,) = plan.actions
        kept = [seen for seen in before if not row.base <= seen[0] < row.next]
        after = place.committed()
        assert set(after) <= set(kept)
        if not action.notes:
            assert after == kept
        for note in action.notes:
            assert "counts as aborted" in note
        place.continues()


@pytest.mark.parametrize("seed", range(4))
def test_batches_that_are_whole_are_kept(tmp_path: Path, seed: int) -> None:
    with bucket("memory", tmp_path) as place:
        write(place, seed)
        before, row = place.committed(), place.rows()[2]
        flip(place, place.log_key(row))
        plan = place.repair(accept_loss=True)
        (action,) = plan.actions
        assert action.lost != ((row.base, row.next),)
        gone = {offset for start, end in action.lost for offset in range(start, end)}
        assert place.committed() == [seen for seen in before if seen[0] not in gone]
        assert len(place.listed("/aside/")) == 1
        assert place.findings() == ()


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
    with pytest.raises(ConfigError, match="changed since the repair was planned"):
        apply_repair(plain.store, plan)
    assert plain.data(plain.log_key(row)) == right[:-1]
