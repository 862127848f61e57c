"""Several log directories as one log: placement, failure of one, moves between them."""

from __future__ import annotations

import contextlib
import errno
import shutil
from pathlib import Path

import pytest

from tests.support.faulty_files import FaultyFiles, PowerCut, on_nth
from tests.support.given import move_start
from tests.unit.local.several import SMALL, TP, Mortal, opened, values
from tiered.config import TopicConfig
from tiered.errors import ConfigError, LocalIOError, LockedError, TieredError, UnknownTopicError
from tiered.format.batch import decode_records
from tiered.local.directory.log_directory import LocalLog
from tiered.local.directory.multi_directory_log import LocalTier
from tiered.local.disk.directory_files import CLEANER_NAME
from tiered.model import NewRecord, TopicPartition
from tiered.testing.clock import FakeClock, SeededIds


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


def test_two_directories_with_one_id_are_refused_before_either_is_opened(tmp_path: Path) -> None:
    with opened(tmp_path, "a", "c"):
        pass
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    (tmp_path / "b" / "meta.properties").write_text((tmp_path / "a" / "meta.properties").read_text())
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for names in (("a", "b"), ("b", "c", "a")):
        with pytest.raises(ConfigError, match=r"have the same directory.id, .* one is a copy of the other") as told:
            opened(tmp_path, *names)
        assert "move its meta.properties away" in told.value.hint
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    (tmp_path / "b" / "meta.properties").unlink()
    with opened(tmp_path, "a", "b", "c") as logs:
        assert len({log.volume_id for log in logs.logs().values()}) == 3


def test_a_partition_in_two_directories_is_an_error(tmp_path: Path) -> None:
    for name in "ab":
        with LocalLog.open(tmp_path / name, clock=FakeClock(), ids=SeededIds(1)) as log:
            log.create_topic("t")
    (tmp_path / "b" / "meta.properties").unlink()  # the next open gives it an id of its own
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


def test_a_directory_that_cannot_be_opened_is_offline(tmp_path: Path) -> None:
    with opened(tmp_path) as logs:
        logs.create_topic("t", 2)
    files = FaultyFiles(lambda name, path: errno.EIO if name == "open" and tmp_path / "a" in path.parents else 0)
    logs = opened(tmp_path, files=files)
    assert logs.partitions() == [TopicPartition("t", 1)]
    with pytest.raises(UnknownTopicError, match="could not be opened"):
        logs.partition(TP)
    with pytest.raises(ConfigError, match="it may exist in"):
        logs.create_topic("u")
    logs.close()
    files.fail = lambda name, path: errno.EIO if name == "open" else 0
    with pytest.raises(LocalIOError):
        opened(tmp_path, files=files)


@pytest.mark.parametrize("nth", range(1, 40, 2))
def test_a_topic_that_a_full_disk_refused_to_make_lies_in_one_directory(tmp_path: Path, nth: int) -> None:
    files = Mortal()
    logs = opened(tmp_path, files=files)
    files.fail = on_nth(nth, "*", errno.ENOSPC)
    with contextlib.suppress(TieredError):
        logs.create_topic("t", 3, SMALL)
    files.fail = None
    with contextlib.suppress(ConfigError):  # all of it was made
        assert logs.create_topic("t", 3, SMALL).partitions == 3
    with pytest.raises(ConfigError, match="exists already"):
        logs.create_topic("t", 3, SMALL)
    tps = [TopicPartition("t", i) for i in range(3)]
    here = [tp for tp in tps if logs.directory_of(tp) not in logs.offline]
    for tp in here:
        logs.partition(tp).append([NewRecord(b"%d" % tp.partition)])
        logs.partition(tp).flush()
    stopped(logs)
    for handle in list(files._locks):
        files.close(handle)
    for _ in range(2):
        with opened(tmp_path, files=files) as logs:
            assert (logs.partitions(), logs.out_of_service) == (tps, {})
            assert [values(logs, tp) for tp in here] == [[b"%d" % tp.partition] for tp in here]


def filled(tmp_path: Path, files: FaultyFiles | None = None, settings: TopicConfig = SMALL) -> LocalTier:
    logs = opened(tmp_path, files=files)
    logs.create_topic("t", 2, settings)
    for i in range(20):
        logs.partition(TP).append([NewRecord(b"%d" % i)])
    return logs


def test_a_partition_moves(tmp_path: Path) -> None:
    with filled(tmp_path) as logs:
        move_start(logs.partition(TP), 3)
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


def test_a_move_that_cannot_read_the_cleaners_checkpoint_leaves_the_partition_in_service(tmp_path: Path) -> None:
    with opened(tmp_path) as logs:
        logs.create_topic("t", 1, SMALL)
        logs.partition(TP).append([NewRecord(b"%d" % i) for i in range(5)])
        move_start(logs.partition(TP), 3)
        checkpoint = tmp_path / "a" / CLEANER_NAME
        checkpoint.unlink(missing_ok=True)
        checkpoint.mkdir()
        with pytest.raises(LocalIOError):
            logs.move(TP, tmp_path / "b")
        assert (logs.partition(TP).log_start, logs.partition(TP).append([NewRecord(b"x")]).offset) == (3, 5)
        checkpoint.rmdir()
    with opened(tmp_path) as logs:
        assert logs.partition(TP).positions().start_offset == 3


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


def stopped(logs: LocalTier) -> None:
    """Its process has died."""
    for log in logs.logs().values():
        log._directory_lock.release()


def killed_before_the_release(tmp_path: Path, settings: TopicConfig = SMALL) -> Path:
    """A move whose copy is complete, and whose process died before the partition left its name; gives the copy."""
    files = FaultyFiles()
    logs = filled(tmp_path, files, settings)

    def cut(operation: str, path: Path) -> int:
        if path.name.startswith("tiered-topics.json"):
            raise PowerCut
        return 0

    files.fail = cut
    with pytest.raises(PowerCut):
        logs.move(TP, tmp_path / "b")
    files.fail = None
    stopped(logs)
    (future,) = tmp_path.glob("b/*-future")
    assert (future / "tiered-move-ready").exists()
    return future


@pytest.mark.parametrize("settings", [SMALL, TopicConfig()], ids=["sealed", "nothing sealed"])
def test_a_complete_copy_becomes_the_partition_whose_folder_is_gone(tmp_path: Path, settings: TopicConfig) -> None:
    killed_before_the_release(tmp_path, settings)
    shutil.rmtree(tmp_path / "a" / "t-0")
    for _ in range(2):
        with opened(tmp_path) as logs:
            assert logs.out_of_service == {}
            assert logs.directory_of(TP) == tmp_path / "b"
            assert values(logs) == [b"%d" % i for i in range(20)]
            assert not list(tmp_path.glob("*/*-future"))
    assert not list(tmp_path.glob("a/t-0*"))


@pytest.mark.parametrize("nth", range(1, 60))
def test_a_crash_while_a_copy_becomes_the_partition_loses_nothing(tmp_path: Path, nth: int) -> None:
    killed_before_the_release(tmp_path)
    shutil.rmtree(tmp_path / "a" / "t-0")
    files = Mortal()
    with files.killed(nth), opened(tmp_path, files=files):
        pass
    with opened(tmp_path) as logs:
        assert (logs.out_of_service, logs.directory_of(TP)) == ({}, tmp_path / "b")
        assert values(logs) == [b"%d" % i for i in range(20)]
