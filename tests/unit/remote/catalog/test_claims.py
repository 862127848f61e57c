"""Each row of the volume table, and every way a claim can end."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from tests.unit.remote.catalog.script import TOPIC_ID, Desk, World
from tiered.errors import (
    ConfigError,
    FencedError,
    LogDestroyedError,
    OffsetGapError,
)
from tiered.model import EpochEntry
from tiered.plan.ownership import RestoredFrom, VolumeProof
from tiered.remote.catalog import Catalog
from tiered.store.base import Delete


@pytest.fixture
def world() -> World:
    return World()


def written(world: World, volume_id: str = "v1", end: int = 10) -> Desk:
    """A desk that has claimed an empty catalog and committed ``0..end``."""
    desk = world.desk(volume_id)
    desk.claim(desk.proof(empty=True, end_offset=0))
    world.run(desk.catalog.append([desk.row(0, end)]))
    return desk


def test_any_volume_may_claim_when_there_is_no_writer_yet(world: World) -> None:
    desk = world.desk()
    claim = desk.claim(desk.proof(end_offset=500, start_offset=300, leader_epoch=4))
    assert (claim.epoch, claim.leader_epoch, claim.next_offset, claim.resumes) == (1, 4, 300, False)
    assert (claim.root.start_offset, claim.root.next_offset, claim.root.lineage) == (300, 300, (EpochEntry(4, 300),))
    assert claim.root.writer.volume == "v1"
    assert claim.not_recovered == ""


def test_the_same_volume_with_its_proof_is_granted_without_a_new_leader_epoch(world: World) -> None:
    desk = written(world)
    again = world.desk("v1", "host-v1:2")
    again.token, again.last_append = desk.token, desk.last_append
    claim = again.claim(again.proof(end_offset=10))
    assert (claim.epoch, claim.leader_epoch, claim.resumes) == (2, 0, False)
    assert claim.root.sealed[-1].epoch == 1


@pytest.mark.parametrize("missing", ["token", "last_append"])
def test_a_copy_or_an_old_snapshot_of_the_volume_is_refused(world: World, missing: str) -> None:
    desk = written(world)
    copy = world.desk("v1", "copy:1")
    copy.token, copy.last_append = desk.token, desk.last_append
    setattr(copy, missing, "")
    with pytest.raises(FencedError, match="copy, or an older snapshot"):
        copy.claim(copy.proof(end_offset=10))
    assert world.run(desk.catalog.append([desk.row(10, 20)])).next_offset == 20


@pytest.mark.parametrize(
    ("joints", "end", "text"),
    [
        ((0, 7, 14), 14, "inside the broker's segment 7 to 14"),
        ((20, 30), 20, "log begins at 20"),
        ((0, 8), 10, "last segment begins at 8"),
        ((), 10, "last segment begins at 0"),
    ],
)
def test_a_fresh_volume_that_cannot_go_on_at_the_end_fences_nobody(
    world: World, joints: tuple[int, ...], end: int, text: str
) -> None:
    desk = written(world)
    sidecar = world.desk("v2")
    puts = len(world.store.puts)
    with pytest.raises(OffsetGapError, match=text) as refused:
        sidecar.claim(dataclasses.replace(sidecar.proof(empty=True), joints=joints))
    assert (refused.value.start, refused.value.end, len(world.store.puts), sidecar.kept) == (10, end, puts, [])
    assert world.run(desk.catalog.append([desk.row(10, 20)])).next_offset == 20
    claim = sidecar.claim(dataclasses.replace(sidecar.proof(empty=True), joints=(*joints, 20)))
    assert (claim.resumes, claim.next_offset) == (True, 20)


def test_it_is_judged_on_the_root_that_it_loses_the_race_to(world: World) -> None:
    desk = written(world)
    sidecar = world.desk("v2")
    world.store.script.append(lambda: world.run(desk.catalog.append([desk.row(10, 20)])))
    with pytest.raises(OffsetGapError, match="ends at offset 20"):
        sidecar.claim(dataclasses.replace(sidecar.proof(empty=True), joints=(10,)))


def test_a_volume_that_has_lost_committed_records_is_refused(world: World) -> None:
    desk = written(world, end=10)
    with pytest.raises(FencedError, match=r"ends at offset 9, below the committed end 10"):
        desk.claim(desk.proof(end_offset=9))


def test_a_fresh_volume_resumes_at_the_end_with_a_new_leader_epoch(world: World) -> None:
    written(world, end=10)
    fresh = world.desk("v2")
    claim = fresh.claim(fresh.proof(empty=True, end_offset=0))
    assert (claim.epoch, claim.leader_epoch, claim.next_offset, claim.resumes) == (2, 1, 10, True)
    assert claim.root.lineage == (EpochEntry(0, 0), EpochEntry(1, 10))
    why = "if volume v1, claimed by host-v1:1, appended beyond it, only its disk has these records"
    assert claim.not_recovered == f"flights-0 resumes at offset 10: {why}"
    # and from now on it is "the same volume": its disk holds the append that it resumed from
    claim = fresh.claim(fresh.proof(end_offset=12))
    assert (claim.epoch, claim.leader_epoch) == (3, 1)


def test_a_volume_without_records_is_fresh_even_if_the_root_names_it(world: World) -> None:
    written(world, end=10)
    wiped = world.desk("v1", "wiped:1")
    claim = wiped.claim(wiped.proof(empty=True, end_offset=0))
    assert (claim.leader_epoch, claim.next_offset, claim.resumes) == (1, 10, True)
    assert claim.not_recovered == ""  # the volume that could hold more is this one


def test_a_leader_epoch_without_offsets_is_dropped_but_never_used_again(world: World) -> None:
    written(world, end=10)
    desks = [world.desk(volume) for volume in ("v2", "v3", "v4")]
    claims = [desk.claim(desk.proof(empty=True, end_offset=0)) for desk in desks]
    assert [claim.leader_epoch for claim in claims] == [1, 2, 3]
    assert claims[-1].root.lineage == (EpochEntry(0, 0), EpochEntry(3, 10))


@pytest.mark.parametrize(
    ("restored", "end", "message"),
    [
        (RestoredFrom(3, 10), 10, ""),
        (RestoredFrom(2, 7), 7, "was restored up to"),
        (RestoredFrom(3, 10), 12, "may not write"),  # it wrote after the restore, and lost the log meanwhile
        (RestoredFrom(99, 10), 10, "may not write"),  # from a root that this catalog never had
        (None, 10, "rejoin"),
    ],
)
def test_a_restored_volume_must_end_exactly_where_the_catalog_ends(
    world: World, restored: RestoredFrom | None, end: int, message: str
) -> None:
    written(world, end=10)
    desk = world.desk("v9")
    proof = desk.proof(end_offset=end, restored_from=restored)
    if message:
        with pytest.raises(FencedError, match=message):
            desk.claim(proof)
    else:
        claim = desk.claim(proof)
        assert (claim.leader_epoch, claim.resumes) == (1, False)


def test_a_writer_needs_volume_and_persist(world: World) -> None:
    world.make_root()
    with pytest.raises(ConfigError, match="persist"):
        world.run(Catalog(TOPIC_ID, 0, "flights").claim("w", "h", VolumeProof("v", True, 0)))
    with pytest.raises(ConfigError, match="volume"):
        world.run(Catalog(TOPIC_ID, 0, "flights", persist=lambda *_: None).claim("w", "h"))
    with pytest.raises(ConfigError, match="volume"):
        world.run(Catalog(TOPIC_ID, 0, "flights", persist=lambda *_: None).claim("w", "h", VolumeProof("", True, 0)))


def test_a_volume_that_cannot_keep_the_proof_sends_nothing(world: World) -> None:
    desk = world.desk()
    desk.claim(desk.proof(empty=True, end_offset=0))
    sent = len(world.store.puts)

    def full(token: str | None, last_append: str | None) -> None:
        raise OSError(28, "no space")

    desk.catalog._persist = full
    with pytest.raises(OSError, match="no space"):
        world.run(desk.catalog.append([desk.row(0, 10)]))
    assert len(world.store.puts) == sent
    desk.catalog._persist = desk._persist
    assert world.run(desk.catalog.append([desk.row(0, 10)])).next_offset == 10


@pytest.mark.parametrize("seen", [{}, {"token": "t1"}, {"restored_from": RestoredFrom(3, 10)}])
def test_a_claim_makes_no_root(world: World, seen: dict[str, Any]) -> None:
    desk = world.desk()
    world.store.inner.execute(Delete((desk.catalog.key,)))
    with pytest.raises(LogDestroyedError, match="was deleted after this process read it"):
        desk.claim(dataclasses.replace(desk.proof(end_offset=10), **seen))
    assert world.store.puts == []
