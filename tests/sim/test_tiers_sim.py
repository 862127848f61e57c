"""Both tiers under crashes, lost answers, older disks: no violation over seeds, and each broken variant is caught."""

from __future__ import annotations

import contextlib
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.sim.tiers import world as world_module
from tests.sim.tiers.machine import ProcessFiles
from tests.sim.tiers.truth import TPS, Violated
from tests.sim.tiers.virtual import without_threads
from tests.sim.tiers.world import World
from tiered.check.check import CheckReport
from tiered.engine.sync_run import SyncRun
from tiered.errors import DiskFullError, FencedError, OffsetGapError, TieredError
from tiered.format.kernels import ConsumerRecord
from tiered.format.root import Root
from tiered.local.disk.uploader_files import PartitionUpload
from tiered.model import Row, TopicPartition
from tiered.plan import ownership
from tiered.read.stream import ReadRange
from tiered.read.topic import PartitionStream
from tiered.remote import conditional_put, upload
from tiered.remote.root_view import RootView
from tiered.store.base import Put, PutResult, PutStatus, Steps

pytestmark = pytest.mark.no_cover  # seeds tell nothing of coverage, and its tracer makes them take three times as long

RANDOM_SEED = random.SystemRandom().randrange(2**32)
"""Another one in each run; a failure prints it."""
SEEDS = 60
AT_A_TIME = 20
DAMAGED = 4
DELETED = 8
STEPS = 60
DAMAGE_STEPS = 100
"""Until a root has an older one to be lost to, and somebody has met it."""
TRIES = 40
"""Seeds in which a broken variant has to be caught once."""


def run(seed: int, path: Path, *, steps: int = STEPS, **options: Any) -> World:
    path.mkdir()
    try:
        return World(seed, path, **options).run(steps)
    except BaseException as error:
        error.add_note(f"replay with World({seed}, path, **{options}).run({steps})")
        raise


@pytest.mark.parametrize("first", range(0, SEEDS, AT_A_TIME))
def test_no_seed_violates_an_invariant(first: int, tmp_path: Path) -> None:
    totals: Counter[str] = Counter()
    for seed in range(first, first + AT_A_TIME):
        totals.update(run(seed, tmp_path / str(seed)).counts)
        shutil.rmtree(tmp_path / str(seed))
    least_of = {"synced": 40, "append": 160, "killed": 12, "open": 40, "ended": 12, "read": 160, "checked": 20}
    least_of |= {"done": 20, "collect": 15, "deleted": 80, "read as of": 8, "snapshots": 4, "replace": 4}
    least_of |= {"full-disk": 8, "DiskFullError": 15, "read pinned": 8}
    for what, least in least_of.items():
        assert totals[what] >= least, totals  # a simulation in which nothing happens proves nothing


def test_a_lost_or_an_older_root_is_never_taken_for_the_newest(tmp_path: Path) -> None:
    totals: Counter[str] = Counter()
    for seed in (*range(100, 100 + DAMAGED), RANDOM_SEED):
        totals.update(run(seed, tmp_path / str(seed), steps=DAMAGE_STEPS, damage=True).counts)
    assert totals["damage"] >= 4, totals
    assert min(totals["named lost"], totals["named older"]) >= 1, totals


def test_a_check_that_sees_nothing_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    correct = world_module.check

    def blind(*arguments: Any, **options: Any) -> CheckReport:
        return replace(correct(*arguments, **options), findings=())

    monkeypatch.setattr(world_module, "check", blind)
    for seed in range(TRIES):
        try:
            run(seed, tmp_path / str(seed), steps=DAMAGE_STEPS, damage=True)
        except Violated:
            return
    pytest.fail(f"not caught in {TRIES} runs")


def test_disks_that_begin_before_anything_is_committed(tmp_path: Path) -> None:
    for seed in (*range(200, 200 + DAMAGED), RANDOM_SEED):
        run(seed, tmp_path / str(seed), begun=False)


def test_topics_that_are_deleted_and_made_again(tmp_path: Path) -> None:
    totals: Counter[str] = Counter()
    late = (5036, 5058)  # a process that stands still is to leave nothing of a topic that is destroyed meanwhile
    for seed in (*range(300, 300 + DELETED), *late, RANDOM_SEED):
        totals.update(run(seed, tmp_path / str(seed), deletes=True).counts)
    assert min(totals["destroyed"], totals["registered"], totals["drop-topic"]) >= 2, totals


def test_a_seed_replays_exactly(tmp_path: Path) -> None:
    worlds = [run(RANDOM_SEED, tmp_path / str(number)) for number in range(2)]
    first, second = worlds
    assert first.truth.bodies == second.truth.bodies
    assert first.truth.acked == second.truth.acked
    assert first.counts == second.counts


# -- what a broken product does ----------------------------------------------------------------------------------------


def unknown_is_success(monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit without an answer counts as landed, and no root is read back."""

    def put(request: Put, *_: object) -> Steps[PutResult]:
        result = yield request
        return PutResult(PutStatus.LANDED if result.status is PutStatus.UNKNOWN else result.status, result.etag)

    def read_back(self: RootView, rows: Sequence[Row] = ()) -> Steps[Root]:
        yield from ()
        assert self.root is not None
        return self.root

    monkeypatch.setattr(conditional_put, "conditional_put", put)
    monkeypatch.setattr(RootView, "read_back", read_back)


def noted_before_the_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The checkpoint permits local deletion before the root names the segments."""
    correct = SyncRun.drain

    def early(self: SyncRun, ends: Mapping[TopicPartition, int], *, claims: bool) -> dict[TopicPartition, TieredError]:
        local = self._tiering.local
        for tp, end in ends.items() if not claims else ():
            epoch = local.uploads.read().get(tp, PartitionUpload(0)).claim_epoch
            local.uploads.update({tp: PartitionUpload(end, epoch)})
            local.partition(tp).set_uploaded(end, epoch, False, 0)
        return correct(self, ends, claims=claims)

    monkeypatch.setattr(SyncRun, "drain", early)


def everybody_is_granted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A volume with records of its own takes a partition over."""
    monkeypatch.setattr(ownership, "_other_volume", lambda *_: ownership.Grant(new_leader_epoch=True))


def objects_are_not_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """The catalog comes before the bytes."""

    def upload_object(_: str, __: object, crc: int, *___: object, **____: object) -> Steps[PutResult]:
        yield from ()
        return PutResult(PutStatus.LANDED, '"x"', crc)

    monkeypatch.setattr(upload, "upload_object", upload_object)


def reads_end_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last record of a partition is left out."""
    correct = PartitionStream.records

    def records(self: PartitionStream, wanted: ReadRange) -> Iterator[ConsumerRecord]:
        return iter(list(correct(self, wanted))[:-1])

    monkeypatch.setattr(PartitionStream, "records", records)


def nothing_is_fsynced(monkeypatch: pytest.MonkeyPatch) -> None:
    """A flush returns and nothing is durable."""
    monkeypatch.setattr(ProcessFiles, "sync", lambda self, handle: None)


def what_has_no_room_counts_as_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of a full disk is swallowed."""
    correct = ProcessFiles.write_at

    def write_at(self: ProcessFiles, handle: int, data: bytes, position: int) -> None:
        with contextlib.suppress(DiskFullError):
            correct(self, handle, data, position)

    monkeypatch.setattr(ProcessFiles, "write_at", write_at)


@pytest.mark.parametrize(
    "breaks",
    [
        unknown_is_success,
        noted_before_the_commit,
        everybody_is_granted,
        objects_are_not_stored,
        reads_end_early,
        nothing_is_fsynced,
        what_has_no_room_counts_as_written,
    ],
)
def test_a_broken_product_is_caught(
    breaks: Callable[[pytest.MonkeyPatch], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    breaks(monkeypatch)
    for seed in range(TRIES):
        try:
            run(seed, tmp_path / str(seed), older_disks=1.0, faults=0.15)
        except Violated:
            return
    pytest.fail(f"not caught in {TRIES} runs")


def older_disk(path: Path) -> World:
    """A disk is copied, the log goes on, and the copy comes back."""
    path.mkdir()
    world = World(1, path, faults=0.0)
    with without_threads():
        world._begin()
        world.settling = True
        application = world.places[0][0]
        application.snapshot()
        application.append(TPS[0])
        application.sync()
        application.put_back()
        application.open()
        for _ in range(5):  # beyond the end that was reached before
            application.append(TPS[0])
        try:
            application.sync()
        finally:
            world.end()
    return world


def test_an_older_copy_of_a_disk_is_fenced(tmp_path: Path) -> None:
    with pytest.raises(FencedError):
        older_disk(tmp_path / "world")


def test_a_product_that_knows_volumes_by_their_id_alone_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ownership, "_same_volume", lambda *_: ownership.Grant(new_leader_epoch=False))
    with pytest.raises((Violated, OffsetGapError)):
        older_disk(tmp_path / "world")
