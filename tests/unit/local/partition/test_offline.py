"""A disk that fails under one file takes its directory offline, and no other; a partition that fails alone, itself."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from tests.support.faulty_files import FaultyFiles
from tests.unit.local.cleaning.cleaning_bench import CLEAN, KEYED_BYTES
from tests.unit.local.opening import opened, run_task
from tiered.config import TopicConfig
from tiered.errors import ConfigError, LocalIOError, TieredError
from tiered.format.batch import decode_records
from tiered.local.directory.figures import read_report
from tiered.local.directory.multi_directory_log import LocalTier
from tiered.local.disk.files import PosixFiles, disk_failed, translate
from tiered.model import NewRecord, TopicPartition
from tiered.testing.clock import FakeClock, SeededIds

A, B, ASLEEP = (TopicPartition("t", p) for p in range(3))


def made(path: Path) -> None:
    with opened(path) as log:
        log.create_topic("t", 3, TopicConfig(seal_ms=-1))
        for tp in log.partitions():
            log.partition(tp).append([NewRecord(b"x")])


@pytest.mark.parametrize("number", [errno.EIO, errno.EROFS])
@pytest.mark.parametrize("operation", ["write", "sync"])
def test_one_file_that_fails_takes_every_partition_with_it(tmp_path: Path, operation: str, number: int) -> None:
    made(tmp_path)
    files = FaultyFiles()
    log = opened(tmp_path, files=files)
    a, b = log.partition(A), log.partition(B)
    b.append([NewRecord(b"y")])
    files.fail = lambda name, path: number if name == operation and path.parent.name == "t-0" else 0
    with pytest.raises(LocalIOError):
        _ = a.append([NewRecord(b"y")]), a.flush()
    assert log.offline is not None
    for tp in (A, B, ASLEEP):  # also one that wakes afterwards
        with pytest.raises(LocalIOError, match=f"{tp} is offline: cannot {operation} .*t-0"):
            log.partition(tp).append([NewRecord(b"z")])
    for call in (a.flush, a.roll):
        with pytest.raises(LocalIOError, match="t-0 is offline"):
            call()
    with pytest.raises(LocalIOError, match=f"log directory {tmp_path} is offline"):
        log.create_topic("u")
    with pytest.raises(LocalIOError, match="offline"):
        log.delete_topic("t")
    assert [r.value for batch in b.read_batches(0) for r in decode_records(batch)] == [b"x", b"y"]
    assert {m.name: m.value for m in log.metrics()}["tiered_directory_offline"] == 1
    with pytest.raises(LocalIOError, match="not everything is durable"):
        log.close()
    with opened(tmp_path) as log:
        assert log.offline is None
        assert log.partition(B).append([NewRecord(b"z")]).offset == 2


def test_a_checkpoint_that_fails_does_too_and_one_without_room_does_not(tmp_path: Path) -> None:
    made(tmp_path)
    files, clock = FaultyFiles(), FakeClock()
    log = opened(tmp_path, clock, files)
    b = log.partition(B)
    files.fail = lambda name, path: errno.ENOSPC if "checkpoint" in path.name else 0
    clock.advance(60)
    with pytest.raises(TieredError):
        log.tick()
    assert b.append([NewRecord(b"y")]).offset == 1
    files.fail = lambda name, path: errno.EIO if "recovery-point" in path.name else 0
    clock.advance(60)
    with pytest.raises(LocalIOError):
        log.tick()
    with pytest.raises(LocalIOError, match="offline"):
        b.append([NewRecord(b"z")])
    files.fail = None
    run_task(log.tasks, "uploads")
    with pytest.raises(LocalIOError):
        log.close()


def test_a_topic_that_cannot_be_made_for_the_disk_takes_the_directory_offline(tmp_path: Path) -> None:
    made(tmp_path)
    files = FaultyFiles()
    log = opened(tmp_path, files=files)
    files.fail = lambda name, path: errno.EIO if path.name.startswith("tiered-topics") else 0
    with pytest.raises(LocalIOError):
        log.create_topic("u")
    files.fail = None
    with pytest.raises(LocalIOError, match="offline"):
        log.partition(A).append([NewRecord(b"y")])
    with pytest.raises(LocalIOError):
        log.close()


def test_what_is_the_disks_and_what_is_not() -> None:
    path = Path("x")
    for number, failed in {errno.EIO: True, errno.EROFS: True, errno.ENOSPC: False, errno.EMFILE: False}.items():
        assert disk_failed(translate(OSError(number, "no"), "write", path)) is failed
    outer = LocalIOError("t:0 is offline")
    outer.__cause__ = translate(OSError(errno.EIO, "no"), "write", path)
    assert disk_failed(outer)
    assert not disk_failed(LocalIOError("an append was interrupted"))
    assert not disk_failed(None)


class Broken(Exception):
    """A fault of the program."""


def test_a_round_that_fails_makes_its_partition_uncleanable_until_the_next_open(
    tmp_path: Path,
) -> None:
    files = FaultyFiles()

    def broken(operation: str, path: Path) -> int:
        if path.suffix == ".cleaned" and path.parent.name == "t-0":
            raise Broken("at 7")
        return 0

    config = TopicConfig(segment_bytes=3 * KEYED_BYTES, **CLEAN)  # type: ignore[arg-type]  # a dict
    with opened(tmp_path, files=files) as log:
        log.create_topic("t", 2, config)
        for tp in log.partitions():
            for value in (b"1", b"2", b"3"):
                log.partition(tp).append([NewRecord(value, b"k")])
            log.partition(tp).roll()

        files.fail = broken
        with pytest.raises(TieredError, match="t-0: Broken: at 7"):
            run_task(log.tasks, "cleaning")
        assert list(log.cleaner.uncleanable) == [A]
        with pytest.raises(ConfigError, match="Broken: at 7"):
            log.cleaner.clean(A)
        figures = log.cleaner.figures()
        assert (figures.uncleanable_partitions, figures.uncleanable_bytes) == (1, 3 * KEYED_BYTES)
        run_task(log.tasks, "cleaning")  # it is passed over
    noted = read_report(tmp_path, PosixFiles())
    assert noted.problems == ["t-0 is not cleaned until the next open: t-0: Broken: at 7"]
    with opened(tmp_path) as log:
        [log.roster.find(tp) for tp in log.roster.names()]
        run_task(log.tasks, "cleaning")
        assert log.cleaner.uncleanable == {}
        assert [r.value for b in log.partition(A).read_batches(0) for r in decode_records(b)] == [b"3"]


def test_what_happened_to_a_directory_is_left_for_others_to_read(tmp_path: Path) -> None:
    files, clock = FaultyFiles(), FakeClock()
    logs = LocalTier.open([tmp_path / "a", tmp_path / "b"], clock=clock, ids=SeededIds(1), files=files)
    logs.create_topic("t", 2)
    for tp in logs.partitions():
        logs.partition(tp).append([NewRecord(b"x")])
    files.fail = lambda name, path: errno.EIO if name == "sync" and path.parent.name == "t-0" else 0
    with pytest.raises(LocalIOError):
        logs.flush()
    assert read_report(tmp_path / "a", PosixFiles()).offline.startswith("cannot sync")
    assert read_report(tmp_path / "b", PosixFiles()).offline == ""
    offline = {dict(m.labels)["log_dir"]: m.value for m in logs.metrics() if m.name == "tiered_directory_offline"}
    assert offline == {str(tmp_path / "a"): 1, str(tmp_path / "b"): 0}
    logs.close()


def test_a_flush_that_one_partition_refuses_reaches_the_others(tmp_path: Path) -> None:
    made(tmp_path)
    files = FaultyFiles()
    log = opened(tmp_path, files=files)
    for tp in (A, B, ASLEEP):
        log.partition(tp).append([NewRecord(b"y")])
    files.fail = lambda name, path: errno.EMFILE if name == "sync" and path.parent.name == "t-0" else 0
    with pytest.raises(LocalIOError, match="t-0 is offline"):
        log.flush()
    assert [log.partition(tp).positions().flushed_offset for tp in (A, B, ASLEEP)] == [1, 2, 2]
    assert log.offline is None
    with pytest.raises(LocalIOError):
        log.close()
