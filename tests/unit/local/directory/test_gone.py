"""A partition whose directory is gone gives none of its offsets again; no killed deletion is taken for such a one."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import pytest

from tests.support.admin import apply_repair, check, plan_rejoin, plan_repair, rejoin
from tests.support.faulty_files import FaultyFiles
from tests.unit.local.opening import opened
from tests.unit.local.several import Mortal
from tiered.errors import ConfigError, CorruptionError, LocalPermissionError
from tiered.local.directory.multi_directory_log import LocalTier
from tiered.local.disk.directory_files import CLEAN_SHUTDOWN_NAME, RECOVERY_POINT_NAME
from tiered.local.disk.topics import read_leaving
from tiered.local.disk.uploader_files import PartitionUpload
from tiered.model import NewRecord, TopicPartition
from tiered.repair.disk import plan_disk
from tiered.repair.plan import RepairAction, RepairOptions, Workbench
from tiered.store.driver import Runner
from tiered.testing.clock import FakeClock

GONE, OTHER = TopicPartition("t", 1), TopicPartition("t", 0)


@pytest.fixture(params=["clean", "killed"])
def directory(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """Five records in each of two partitions of t; the directory of one is gone, and kept beside the log."""
    path = tmp_path / "log"
    with opened(path) as log:
        log.create_topic("t", 2)
        for tp in log.partitions():
            log.partition(tp).append([NewRecord(b"x")] * 5)
    if request.param == "killed":
        (path / CLEAN_SHUTDOWN_NAME).unlink()
    (path / "t-1").rename(tmp_path / "kept")
    return path


def test_it_is_out_of_service_until_it_is_put_back(directory: Path) -> None:
    for end in (6, 7):  # the second open is not clean: the first had not looked at all
        with opened(directory) as log:
            assert list(log.out_of_service) == [GONE]
            assert log.partition(OTHER).append([NewRecord(b"y")]).offset == end - 1
            with pytest.raises(CorruptionError) as refused:
                log.partition(GONE)
    assert refused.value.message == (
        f"t-1 is out of service: its directory {directory / 't-1'} is gone or has no .log file; "
        "it held records up to offset 5"
    )
    assert f"`tiered repair t:1 --log-dir {directory} --accept-loss`" in refused.value.hint
    assert (refused.value.offset, refused.value.path_or_key) == (5, str(directory / "t-1"))
    assert not (directory / "t-1").exists()
    (directory.parent / "kept").rename(directory / "t-1")
    with opened(directory) as log:
        assert log.out_of_service == {}
        assert log.partition(GONE).append([NewRecord(b"y")]).offset == 5
        assert log.partition(OTHER).positions().end_offset == 7
    assert check(directory, None).findings == ()


def test_one_that_held_nothing_is_made_anew(directory: Path) -> None:
    with opened(directory) as log:
        log.create_topic("empty", 1)
    (directory / "empty-0").rename(directory.parent / "nothing")
    with opened(directory) as log:
        assert list(log.out_of_service) == [GONE]
        assert log.partition(TopicPartition("empty", 0)).append([NewRecord(b"x")]).offset == 0


@pytest.mark.parametrize("known", ["upload", "claim"])
def test_one_that_a_bucket_knows_goes_on_after_a_rejoin(directory: Path, known: str) -> None:
    with opened(directory) as log:
        if known == "upload":
            log.uploads.update({GONE: PartitionUpload(3, 1)})
        else:
            log.claims.write(GONE, token="a" * 32)
    for _ in range(2):
        with opened(directory) as log:
            assert list(log.out_of_service) == [GONE]
            with pytest.raises(CorruptionError) as refused:
                log.partition(GONE)
    assert f"`tiered repair t:1 --log-dir {directory}` shows what is lost" in refused.value.hint
    assert not (directory / "t-1").exists()
    rejoin(plan_rejoin(directory, [GONE]))
    with opened(directory) as log:
        assert log.out_of_service == {}
        assert log.partition(GONE).positions().end_offset == 0


def accepted(directory: Path, files: Mortal) -> RepairAction:
    options = RepairOptions(log_dir=directory, accept_loss=True)
    (action,) = Runner().run(plan_disk(directory, [], options, remote=False, files=files))
    return action


@pytest.mark.parametrize("nth", range(1, 25))
def test_a_crash_while_the_loss_is_accepted(directory: Path, nth: int) -> None:
    files = Mortal()
    action = accepted(directory, files)
    assert action.act is not None
    with files.killed(nth):
        Runner().run(action.act(Workbench(None, "test")))
    with opened(directory) as log:
        whole = not log.out_of_service
        assert whole == (directory / "t-1" / "partition.metadata").exists()  # an empty directory is no partition
        assert log.partition(OTHER).positions().end_offset == 5
    if not whole:
        apply_repair(None, plan_repair(None, [], RepairOptions(log_dir=directory, accept_loss=True)))
    with opened(directory) as log:
        assert log.partition(GONE).append([NewRecord(b"y")]).offset == 5


def test_a_loss_that_was_another_one_by_then(directory: Path) -> None:
    plan = plan_repair(None, [], RepairOptions(log_dir=directory, accept_loss=True))
    (directory / RECOVERY_POINT_NAME).write_text("0\n2\nt 0 5\nt 1 9\n")
    with pytest.raises(ConfigError, match="t-1 ends at offset 9 now, and ended at 5 when the repair was planned"):
        apply_repair(None, plan)
    assert not (directory / "t-1").exists()


def test_its_topic_can_be_deleted(directory: Path) -> None:
    with opened(directory) as log:
        assert [path.name[:4] for path in log.delete_topic("t")] == ["t-0."]
        assert (log.topics(), log.out_of_service) == ({}, {})
        log.create_topic("t", 2)
        assert log.partition(GONE).append([NewRecord(b"y")]).offset == 0


@pytest.mark.parametrize("nth", range(1, 40))
def test_no_killed_deletion_is_taken_for_a_loss(tmp_path: Path, nth: int) -> None:
    """Killed, and the open behind it too, at each step; then a topic of the name is made, and that is killed."""
    files = Mortal()
    log = opened(tmp_path, files=files)
    log.create_topic("t", 2)
    for tp in log.partitions():
        log.partition(tp).append([NewRecord(b"x")] * 3)
    log.checkpoint()
    with files.killed(nth):
        log.delete_topic("t")
    for step in range(1, 12):
        files = Mortal()
        with files.killed(step), opened(tmp_path, files=files) as log:
            assert log.out_of_service == {}
    with opened(tmp_path) as log:
        assert log.out_of_service == {}
        there = "t" in log.topics()
        assert {log.partition(tp).positions().end_offset for tp in log.partitions()} == ({3} if there else set())
        if there:
            log.delete_topic("t")
    for step in range(1, 12):
        files = Mortal()
        log = opened(tmp_path, files=files)
        assert log.out_of_service == {}
        with files.killed(step):
            if "t" in log.topics():
                log.close()
            else:
                log.create_topic("t", 2)
    with opened(tmp_path) as log:
        assert log.out_of_service == {}
        assert {log.partition(tp).positions().end_offset for tp in log.partitions()} == {0}


def test_a_deletion_that_failed_is_ended_by_the_next_open_whatever_was_made_meanwhile(tmp_path: Path) -> None:
    files = FaultyFiles()
    with opened(tmp_path, files=files) as log:
        log.create_topic("t", 2)
        for tp in log.partitions():
            log.partition(tp).append([NewRecord(b"x")] * 3)
        files.fail = lambda operation, path: errno.EACCES if operation == "rename" and path.name == "t-1" else 0
        with pytest.raises(LocalPermissionError):
            log.delete_topic("t")
        files.fail = None
        with pytest.raises(ConfigError, match=r"topic t cannot be created: its deletion in .* is not finished"):
            log.create_topic("t", 2)
        log.create_topic("u")
        log.alter_topic("u", partitions=2)
        assert read_leaving(tmp_path, files) == {"t"}
    with opened(tmp_path) as log:
        assert list(log.topics()) == ["u"]
        log.create_topic("t", 2)
        assert log.partition(GONE).append([NewRecord(b"y")]).offset == 0
        assert read_leaving(tmp_path, files) == frozenset()


def test_of_several_directories(tmp_path: Path) -> None:
    paths = [tmp_path / "a", tmp_path / "b"]
    with LocalTier.open(paths) as log:
        log.create_topic("t", 4)
        for tp in log.partitions():
            log.partition(tp).append([NewRecord(b"x")])
        moved = next(tp for tp in log.partitions() if log.directory_of(tp) == paths[0])
        log.move(moved, paths[1])
    with LocalTier.open(paths) as log:
        assert log.out_of_service == {}
        assert log.directory_of(moved) == paths[1]
    shutil.rmtree(paths[1] / str(moved))
    with LocalTier.open(paths) as log:
        assert list(log.out_of_service) == [moved]
        assert [log.partition(tp).positions().end_offset for tp in log.partitions() if tp != moved] == [1, 1, 1]


@pytest.mark.parametrize("nth", range(1, 30))
def test_no_killed_rejoin_is_taken_for_a_loss(tmp_path: Path, nth: int) -> None:
    path, tp = tmp_path / "log", TopicPartition("t", 0)
    with opened(path) as log:
        log.create_topic("t")
        log.partition(tp).append([NewRecord(b"x")] * 3)
        log.claims.write(tp, token="a" * 32)  # claimed, and nothing of it was uploaded: no checkpoint names it
    plan, files = plan_rejoin(path, [tp], clock=FakeClock()), Mortal()
    with files.killed(nth):
        rejoin(plan, clock=FakeClock(), files=files)
    with opened(path) as log:
        assert log.out_of_service == {}
        assert log.partition(tp).positions().end_offset == (0 if (plan.target / "t-0").exists() else 3)
