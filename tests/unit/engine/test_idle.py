"""Idle partitions keep a few words in memory: the next commit reads the root, and accepts no older one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from uuid import UUID

import pytest

from tests.unit.engine.open_log import TP, World, take_over
from tiered.engine import steps
from tiered.engine.partition import SegmentRef
from tiered.errors import CorruptionError, FencedError
from tiered.format.keys import Role
from tiered.model import NewRecord, Row
from tiered.store.base import Get, Match, Object, Put


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    made = World(tmp_path / "log")
    monkeypatch.setattr(steps, "CATALOGS_HELD", 0)
    yield made
    made.journal.close()
    made.tiering.close()
    made.log.close()


def stored(world: World, claim_epoch: int) -> Row:
    """The next segment, uploaded."""
    engine = world.tiering.steps
    at = world.partition.positions().end_offset
    world.partition.append([NewRecord(b"next")])
    world.partition.roll()
    (sealed,) = [each for each in world.partition.sealed_segments(at) if each.base_offset == at]
    ref = SegmentRef(sealed.base_offset, sealed.end_offset, sealed.size_bytes, sealed.appended_ms)
    row: Row = world.drive(engine.upload(TP, ref, claim_epoch))
    return row


def epoch(world: World) -> int:
    held = world.tiering.steps.held(TP)
    assert held is not None
    return held.claim_epoch


def rest(world: World) -> int:
    """Let the partition rest, and return the epoch of its claim."""
    claim_epoch = epoch(world)
    world.tiering.steps.rest(TP)
    assert world.tiering.steps.held(TP) is None
    return claim_epoch


def words(kept: object) -> Iterator[object]:
    """Yield the scalars that a value is made of."""
    if isinstance(kept, tuple):
        parts: list[object] = list(kept)
    elif is_dataclass(kept):
        parts = [getattr(kept, field.name) for field in fields(kept)]
    else:
        yield kept
        return
    for part in parts:
        yield from words(part)


def test_an_idle_partition_keeps_a_few_words(world: World) -> None:
    rest(world)
    engine = world.tiering.steps
    assert not engine._catalogs
    kept = list(words(engine._resting[TP]))
    assert len(kept) <= 12
    assert {type(word) for word in kept} <= {int, str, UUID, Role}


def test_the_newest_idle_partitions_keep_their_roots(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "CATALOGS_HELD", 1)
    world.tiering.steps.rest(TP)
    held = world.tiering.steps.held(TP)
    assert held is not None
    assert held.root is not None


def test_a_catalog_in_doubt_does_not_rest(world: World) -> None:
    held = world.tiering.steps.held(TP)
    assert held is not None
    held._doubt = "a commit was sent and is not settled"
    world.tiering.steps.rest(TP)
    assert world.tiering.steps._catalogs[TP] is held


def test_a_commit_after_a_rest_reads_the_root_first(world: World) -> None:
    claim_epoch = rest(world)
    row = stored(world, claim_epoch)
    root = world.drive(world.tiering.steps.commit(TP, claim_epoch, [row]))
    assert (root.next_offset, root.writer.epoch) == (row.next, claim_epoch)
    assert epoch(world) == claim_epoch


def test_a_root_that_went_back_during_a_rest_is_not_believed(world: World) -> None:
    held = world.tiering.steps.held(TP)
    assert held is not None
    older = world.store.execute(Get(held.key))
    assert isinstance(older, Object)
    row = stored(world, epoch(world))
    world.drive(world.tiering.steps.commit(TP, epoch(world), [row]))
    claim_epoch = rest(world)
    newest = world.store.execute(Get(held.key))
    assert isinstance(newest, Object)
    world.store.execute(Put(held.key, older.data, Match(newest.etag)))
    row = stored(world, claim_epoch)
    with pytest.raises(CorruptionError):
        world.drive(world.tiering.steps.commit(TP, claim_epoch, [row]))


def test_a_claim_that_was_taken_over_during_a_rest_commits_nothing(world: World) -> None:
    claim_epoch = rest(world)
    row = stored(world, claim_epoch)
    take_over(world, "fresh", 4)
    with pytest.raises(FencedError):
        world.drive(world.tiering.steps.commit(TP, claim_epoch, [row]))
    assert world.root().next_offset == 4
