"""Every class of bytes of a ``.log``, damaged: the right records or an error, never fewer or other ones without.

``make test`` takes a sample of the places; TIERED_DAMAGE=all takes all, TIERED_DAMAGE_SEED another sample.
"""

from __future__ import annotations

import itertools
import random
import shutil
from pathlib import Path

import pytest

from tests.damage.damages import LOG_DAMAGES, Damage
from tests.damage.sampling import ACTIVE, SEALED, SEED, SHARE, both_kinds, sample
from tests.damage.scene import EVERY, TP, QuickFiles, Scene, Seen, State, fresh, observe, truth
from tests.support.admin import check
from tiered.errors import TieredError
from tiered.local.directory.read_only_log import LogView
from tiered.local.segment.side_files import SEAL_SUFFIX
from tiered.model import SealedSegment
from tiered.remote.upload import plan_upload, upload_segment
from tiered.store.base import Capabilities, Get, Object
from tiered.store.driver import drive
from tiered.store.memory import MemoryStore

NUMBERS = (0, 2, 5)
"""The first batch of a segment, one in the middle, the last."""

TRUSTED = Capabilities(conditional_writes=True, ranges=True, returns_crc32c=True, verifies_crc32c=True)
DAMAGED_EXIT = 13

every_damage = pytest.mark.parametrize("name", LOG_DAMAGES)


def spoil(scene: Scene, damage: Damage, segment: int, number: int) -> bytes:
    """Damages one batch; returns the ``.log`` as it was."""
    path = scene.path(scene.bases[segment])
    before = path.read_bytes()
    data = bytearray(before)
    damage.spoil(data, scene.batches(scene.bases[segment]), number, random.Random(SEED))
    path.write_bytes(data)
    return before


def places(damage: Damage, salt: str, *, share: float = SHARE) -> list[tuple[int, int, State, bool]]:
    """Segment, batch, how the writer went, read-only or not: a sample that is the same for a seed."""
    numbers = NUMBERS if damage.anywhere else NUMBERS[-1:]
    cases = list(itertools.product((SEALED, ACTIVE), numbers, State, (True, False)))
    seeded = random.Random(f"{SEED} {salt}")
    return [case for case in cases if seeded.random() < share]


def ends(seen: Seen, right: Seen) -> bool:
    """Whether the last records are all that is missing."""
    return not isinstance(seen, str) and not isinstance(right, str) and seen == right[: len(seen)]


def is_torn(segment: int, state: State, *, read_only: bool, whole_behind: bool) -> bool:
    """Whether it may be what a crash leaves, for all that anybody knows: the end of a log that nobody promised."""
    return segment == ACTIVE and state is State.LOST and (read_only or not whole_behind)


@every_damage
@both_kinds
def test_reads_and_recoveries(tmp_path: Path, name: str, sparse: bool) -> None:
    damage = LOG_DAMAGES[name]
    offsets, right = truth(sparse=sparse)
    for case in places(damage, f"{name} {sparse}"):
        segment, number, state, read_only = case
        scene = fresh(tmp_path / "log", sparse=sparse, state=state)
        before = spoil(scene, damage, segment, number)
        after = scene.path(scene.bases[segment]).read_bytes()
        with scene.opened(read_only=read_only) as partition:
            seen = observe(partition, offsets)
        whole_behind = number != NUMBERS[-1] and after[len(after) - 8 :] == before[-8:]
        torn = is_torn(segment, state, read_only=read_only, whole_behind=whole_behind)
        for way, found in seen.items():
            allowed = isinstance(found, str) or found == right[way]
            if torn:  # what is left is the beginning of what was there; times and offsets near its end find nothing
                allowed = allowed or ends(found, right[way]) or way in {"times", "middle", "fetched"}
            assert allowed, f"seed {SEED}: {name} {case}: {way} gave {found}"
        shutil.rmtree(scene.root)


@every_damage
@both_kinds
@pytest.mark.parametrize("noted", [True, False], ids=["noted", "measured"])
def test_uploads(tmp_path: Path, name: str, sparse: bool, noted: bool) -> None:
    """The upload equals the sealed segment, or there is none."""
    damage = LOG_DAMAGES[name]
    if damage.epoch_only and not noted:
        pytest.skip("without a note nothing else tells the leader epoch of a batch")
    for number in sample(NUMBERS, f"upload {name} {sparse} {noted}"):
        scene = fresh(tmp_path / str(number), sparse=sparse, state=State.CLEAN)
        base = scene.bases[SEALED]
        before = spoil(scene, damage, SEALED, number)
        if not noted:
            scene.path(base, SEAL_SUFFIX).unlink()
        with LogView.open(scene.root, files=QuickFiles()) as log:
            found = next(s for s in log.partition(TP).sealed_segments() if s.base_offset == base)
            try:
                sent = send(MemoryStore("memory://damage"), found)
            except TieredError:
                continue
        if noted or not sparse or name != "cut at a border":  # then nothing tells that there was more
            assert sent == before, f"seed {SEED}: {name} batch {number}"


def send(store: MemoryStore, segment: SealedSegment) -> bytes:
    """The ``.log`` as it arrived."""
    descriptor = segment.descriptor
    plan = plan_upload(descriptor, uid="a" * 32, claim_epoch=1)
    steps = upload_segment(
        segment,
        claim_epoch=1,
        capabilities=TRUSTED,
        plan=plan,
    )
    drive(store, steps)
    arrived = store.execute(Get(plan.log_key))
    assert isinstance(arrived, Object)
    return bytes(arrived.data)


@every_damage
@both_kinds
def test_check_names_it(tmp_path: Path, name: str, sparse: bool) -> None:
    damage = LOG_DAMAGES[name]
    for segment, number in sample(itertools.product((SEALED, ACTIVE), NUMBERS), f"check {name} {sparse}"):
        scene = fresh(tmp_path / f"{segment}-{number}", sparse=sparse, state=State.CLEAN)
        spoil(scene, damage, segment, number)
        report = check(scene.root, None)
        assert report.exit_code == DAMAGED_EXIT, f"seed {SEED}: {name} segment {segment} batch {number}"


def test_the_log_is_what_it_should_be() -> None:
    """The reads of a log that is whole give records, not errors, and enough of them."""
    for sparse in (False, True):
        offsets, right = truth(sparse=sparse)
        assert not [way for way, seen in right.items() if isinstance(seen, str)]
        plain = right["plain"]
        assert len(right["committed"]) < len(plain) == len(offsets) > EVERY
