"""Several log directories as one log: placement, failure of one, moves between them."""

from __future__ import annotations

import contextlib
import errno
from pathlib import Path

import pytest

from tests.unit.local.several import SMALL, TP, opened, values
from tiered.errors import ConfigError, LocalIOError, LockedError, UnknownTopicError
from tiered.format.batch import decode_records, encode_batch
from tiered.local.directory.directories import LocalTier
from tiered.local.directory.manager import LocalLog
from tiered.local.partition.replica import Replica
from tiered.model import EpochEntry, NewRecord, TopicPartition
from tiered.testing.clock import FakeClock, SeededIds
from tiered.testing.disk import FaultyFiles, PowerCut, on_nth


def test_case_47_counts_differ_by_at_most_one(tmp_path: Path) -> None:
    with opened(tmp_path, "a", "b", "c") as logs:
        for i, count in enumerate((1, 5, 2, 3)):
            logs.create_topic(f"t{i}", count)
            counts = [len(log.partitions()) for log in logs.logs().values()]
            assert max(counts) - min(counts) <= 1
        logs.alter_topic("t0", partitions=6)
        counts = [len(log.partitions()) for log in logs.logs().values()]
        assert (max(counts) - min(counts), sum(counts)) == (1, 16)
        assert logs.topics()["t0"].partitions == 6
        known = logs.partitions()
    with opened(tmp_path, "c", "b", "a") as logs:
        assert logs.partitions() == known
        assert all(logs.partition(tp).append([NewRecord(b"x")]).offset == 0 for tp in known)


def test_case_47_a_directory_with_the_same_lock_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path):
        with pytest.raises(LockedError):
            opened(tmp_path, "b", "c")
        with pytest.raises(LockedError):
            opened(tmp_path, "c", "a")
    with pytest.raises(ConfigError, match="twice"):
        opened(tmp_path, "a", "b", "../" + tmp_path.name + "/a")


def test_one_alone_does_not_make_the_partitions_of_the_others(tmp_path: Path) -> None:
    with opened(tmp_path) as logs:
        logs.create_topic("t", 3)
        held = {path: log.partitions() for path, log in logs.logs().items()}
    for path, tps in held.items():
        with LocalLog.open(path, clock=FakeClock(), ids=SeededIds(1)) as log:
            assert log.partitions() == tps


def test_a_partition_in_two_directories_is_an_error(tmp_path: Path) -> None:
    for name in "ab":
        with LocalLog.open(tmp_path / name, clock=FakeClock(), ids=SeededIds(1)) as log:
            log.create_topic("t")
    with pytest.raises(ConfigError, match="two log directories") as caught:
        opened(tmp_path)
    assert "t-0" in caught.value.message.replace(":", "-")
    with LocalLog.open(tmp_path / "a", clock=FakeClock(), ids=SeededIds(1)) as log:
        assert log.partitions() == [TP]


@pytest.mark.parametrize("operation", ["sync", "rename", "write"])
def test_case_44_a_disk_that_fails_in_the_background_takes_its_directory_offline(
    tmp_path: Path, operation: str
) -> None:
    files, clock = FaultyFiles(), FakeClock()
    logs = opened(tmp_path, files=files, clock=clock)
    logs.create_topic("t", 4)
    bad = tmp_path / "a"
    files.fail = lambda name, path: errno.EIO if name == operation and bad in path.parents else 0
    clock.advance(60)
    with pytest.raises(LocalIOError):
        logs.tick()
    assert list(logs.offline) == [bad]
    for tp in logs.partitions():
        if logs.directory_of(tp) == bad:
            with pytest.raises(LocalIOError, match="offline"):
                logs.partition(tp)
        else:
            assert logs.partition(tp).append([NewRecord(b"x")]).offset == 0
    logs.flush()
    logs.create_topic("u", 2)
    assert {logs.directory_of(TopicPartition("u", p)) for p in range(2)} == {tmp_path / "b"}
    logs.close()
    files.fail = None
    with opened(tmp_path) as logs:
        assert not logs.offline
        assert len(logs.partitions()) == 6


def test_an_fsync_that_fails_in_a_flush_takes_the_directory_with_it(tmp_path: Path) -> None:
    files = FaultyFiles()
    logs = opened(tmp_path, files=files)
    logs.create_topic("t", 4)
    for tp in logs.partitions():
        logs.partition(tp).append([NewRecord(b"x")])
    kept = logs.partition(TopicPartition("t", 2))
    files.fail = lambda name, path: errno.EIO if name == "sync" and path.parent.name == "t-0" else 0
    with pytest.raises(LocalIOError):
        logs.flush()
    assert list(logs.offline) == [tmp_path / "a"]
    with pytest.raises(LocalIOError, match="offline"):
        kept.append([NewRecord(b"y")])
    assert logs.partition(TopicPartition("t", 1)).append([NewRecord(b"y")]).offset == 1
    logs.close()


def test_a_directory_that_cannot_be_opened_is_offline(tmp_path: Path) -> None:
    with opened(tmp_path) as logs:
        logs.create_topic("t", 2)
    files = FaultyFiles(lambda name, path: errno.EIO if name == "open" and tmp_path / "a" in path.parents else 0)
    logs = opened(tmp_path, files=files)
    assert logs.partitions() == [TopicPartition("t", 1)]
    with pytest.raises(UnknownTopicError, match="could not be opened"):
        logs.partition(TP)
    with pytest.raises(ConfigError, match="may hold it"):
        logs.create_topic("u")
    logs.close()
    files.fail = lambda name, path: errno.EIO if name == "open" else 0
    with pytest.raises(LocalIOError):
        opened(tmp_path, files=files)


def filled(tmp_path: Path, files: FaultyFiles | None = None) -> LocalTier:
    logs = opened(tmp_path, files=files)
    logs.create_topic("t", 2, SMALL)
    for i in range(20):
        logs.partition(TP).append([NewRecord(b"%d" % i)])
    return logs


def test_a_partition_moves(tmp_path: Path) -> None:
    with filled(tmp_path) as logs:
        logs.partition(TP).delete_records(3)
        logs.move(TP, tmp_path / "b")
        assert logs.directory_of(TP) == tmp_path / "b"
        assert logs.partition(TP).positions().start_offset == 3
        assert logs.partition(TP).append([NewRecord(b"20")]).offset == 20
        with pytest.raises(ConfigError, match="already"):
            logs.move(TP, tmp_path / "b")
        with pytest.raises(ConfigError, match="none of"):
            logs.move(TP, tmp_path / "c")
    with opened(tmp_path) as logs:
        assert logs.partitions() == [TP, TopicPartition("t", 1)]
        assert logs.directory_of(TP) == tmp_path / "b"
        found = [r.value for b in logs.partition(TP).read_batches(3) for r in decode_records(b)]
        assert found == [b"%d" % i for i in range(3, 21)]


def test_a_move_leaves_the_leader_epochs_as_they_are(tmp_path: Path) -> None:
    """All of it is durable, so that no batch is asked again which epoch it is of: an older leader's came last."""
    with filled(tmp_path) as logs:
        logs.partition(TP).new_leader_epoch(2)
        logs.partition(TP).append([NewRecord(b"20")])
        older = encode_batch([NewRecord(b"21", timestamp=1)], base_offset=21, leader_epoch=1)
        Replica(logs.partition(TP)).append_as_follower(older)
        logs.move(TP, tmp_path / "b")
        assert logs.partition(TP).leader_epochs() == (EpochEntry(0, 0), EpochEntry(1, 21))
        assert values(logs) == [b"%d" % i for i in range(22)]


def test_a_move_is_durable_before_its_mark_goes(tmp_path: Path) -> None:
    """Every file before the copy takes the name, and the name before the mark: a copy without it is thrown away."""
    files = FaultyFiles()
    logs = filled(tmp_path, files)
    files.effects.clear()
    logs.move(TP, tmp_path / "b")
    effects = files.effects
    renamed = effects.index(next(e for e in effects if e[0] == "rename" and e[1].name.endswith("-future")))
    future, final = effects[renamed][1], tmp_path / "b" / "t-0"
    for path in final.iterdir():
        changes = [name for name, changed in effects[:renamed] if changed == future / path.name]
        assert changes[-1] == "sync", path.name
    gone = next(i for i, (name, path) in enumerate(effects) if (name, path.parent) == ("unlink", final))
    assert effects[renamed + 1 : gone] == [("sync_directory", tmp_path / "b")]
    logs.close()


@pytest.mark.parametrize("nth", [*range(1, 60, 2), *range(60, 240, 7)])
def test_a_crash_in_a_move_loses_nothing(tmp_path: Path, nth: int) -> None:
    files = FaultyFiles()
    logs = filled(tmp_path, files)
    files.fail = on_nth(nth, "*", PowerCut)
    with contextlib.suppress(PowerCut):
        logs.move(TP, tmp_path / "b")
    files.fail = None
    for log in logs.logs().values():
        assert log._directory_lock is not None
        log._directory_lock.release()
    with opened(tmp_path) as logs:
        assert values(logs) == [b"%d" % i for i in range(20)]
        assert logs.partitions() == [TP, TopicPartition("t", 1)]
        assert logs.partition(TP).append([NewRecord(b"20")]).offset == 20
        assert not list(tmp_path.glob("*/*-future"))
