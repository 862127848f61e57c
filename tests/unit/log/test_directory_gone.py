"""A log directory that is removed or replaced under an open log: an error, and nothing is made again."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import tiered
from tiered import aio
from tiered.errors import CorruptionError, LocalIOError, UnknownTopicError
from tiered.local.directory.log_directory import LocalLog
from tiered.testing.clock import FakeClock


def names(directory: Path) -> dict[str, bytes] | None:
    """Every file below the directory but the notes of locks; None if it is absent."""
    if not directory.exists():
        return None
    files = (path for path in sorted(directory.rglob("*")) if path.is_file() and not path.name.endswith("lock"))
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}


def remove(directory: Path) -> None:
    shutil.rmtree(directory)


def replace(directory: Path) -> None:
    shutil.rmtree(directory)
    with tiered.open(directory) as other:
        other.topic("t", create=True, partitions=2).append(b"another", partition=0)


@pytest.fixture(params=[remove, replace])
def take_away(request: pytest.FixtureRequest) -> Callable[[Path], None]:
    found: Callable[[Path], None] = request.param
    return found


WORDS = "the directory was removed while it was open|another directory is in its place"


@pytest.mark.parametrize("remote", [False, True])
def test_every_call_after_it_is_an_error(tmp_path: Path, take_away: Callable[[Path], None], remote: bool) -> None:
    directory = tmp_path / "log"
    log = tiered.open(directory, remote=f"file://{tmp_path / 'bucket'}" if remote else None)
    topic = log.topic("t", create=True, partitions=2)
    topic.append(b"1", partition=0)
    take_away(directory)
    left = names(directory)
    calls: list[Callable[[], object]] = [log.flush, lambda: log.topic("u", create=True), log.close]
    if remote:
        calls.insert(1, lambda: log.sync(timeout=5))
    for call in calls:
        with pytest.raises(LocalIOError, match=WORDS):
            call()
    assert names(directory) == left


def test_an_idle_log_closes_with_an_error_and_leaves_no_clean_mark(
    tmp_path: Path, take_away: Callable[[Path], None]
) -> None:
    directory = tmp_path / "log"
    with tiered.open(directory) as log:
        log.topic("t", create=True, partitions=2).append(b"1", partition=0)
    log = tiered.open(directory)
    take_away(directory)
    left = names(directory)
    with pytest.raises(LocalIOError, match=WORDS):
        log.topic("t")  # its partitions sleep: they would be read from what stands there now
    with pytest.raises(LocalIOError, match=WORDS):
        log.close()
    assert names(directory) == left


def test_the_error_of_a_block_is_raised_before_that_of_the_close(
    tmp_path: Path, take_away: Callable[[Path], None]
) -> None:
    with pytest.raises(LocalIOError, match=WORDS), tiered.open(tmp_path / "a"):
        take_away(tmp_path / "a")

    def use() -> None:
        with tiered.open(tmp_path / "b") as log:
            try:
                log.topic("t")
            finally:
                take_away(tmp_path / "b")

    async def use_aio() -> None:
        async with aio.open(tmp_path / "c") as log:
            try:
                await log.topic("t")
            finally:
                take_away(tmp_path / "c")

    for each in (use, lambda: asyncio.run(use_aio())):
        with pytest.raises(UnknownTopicError, match="no topic t"):
            each()


def test_the_next_tick_stops_appends(tmp_path: Path, take_away: Callable[[Path], None]) -> None:
    directory = tmp_path / "log"
    log = LocalLog.open(directory, clock=FakeClock())
    log.create_topic("t", 2)
    (first, _) = log.partitions()
    take_away(directory)
    with pytest.raises(LocalIOError, match=WORDS):
        log.tick()
    with pytest.raises(LocalIOError, match=WORDS):
        log.partition(first).append([tiered.model.NewRecord(b"2")])
    with pytest.raises(LocalIOError, match=WORDS):
        log.close()


def test_one_of_several_directories_leaves_the_others_in_service(tmp_path: Path) -> None:
    paths = [tmp_path / "a", tmp_path / "b"]
    log = tiered.open(paths)
    topic = log.topic("t", create=True, partitions=2)
    gone, kept = (log._local.directory_of(tp) for tp in log._local.partitions())
    shutil.rmtree(gone)
    with pytest.raises(LocalIOError, match=WORDS):
        log.flush()
    assert list(log._local.offline) == [gone]
    assert topic.append(b"1", partition=1).offset == 0
    log.close()
    assert not gone.exists()
    assert (kept / ".kafka_cleanshutdown").exists()


def test_a_removed_partition_is_an_error_of_its_log(tmp_path: Path) -> None:
    directory = tmp_path / "log"
    log = tiered.open(directory)
    topic = log.topic("t", create=True, partitions=2)
    topic.append(b"1", partition=0)
    log.flush()
    shutil.rmtree(directory / "t-0")
    with pytest.raises(CorruptionError, match="t-0 was removed while the log was open"):
        log.close()
    assert not (directory / "t-0").exists()
    assert not (directory / ".kafka_cleanshutdown").exists()


def test_a_sleeping_partition_is_not_made_again(tmp_path: Path) -> None:
    directory = tmp_path / "log"
    with tiered.open(directory) as log:
        log.topic("t", create=True, partitions=2).append(b"1", partition=0)
    with tiered.open(directory) as log:
        shutil.rmtree(directory / "t-0")
        with pytest.raises(CorruptionError, match="t-0 was removed while the log was open"):
            log.topic("t")
    assert not (directory / "t-0").exists()


@pytest.mark.parametrize("emptied", [False, True])
def test_a_tiered_partition_that_is_gone_gives_no_offset_again(tmp_path: Path, emptied: bool) -> None:
    directory, url = tmp_path / "log", f"file://{tmp_path / 'bucket'}"
    with tiered.open(directory, remote=url) as log:  # claimed, and none of its records is in the bucket
        log.topic("t", create=True, partitions=2).append_many([b"1", b"2"], partition=0)
    shutil.rmtree(directory / "t-0")
    if emptied:
        (directory / "t-0").mkdir()
    words = "t-0 is out of service: its directory .* is gone or has no .log file; it held records up to offset 2"
    with tiered.open(directory, remote=url) as log:
        with pytest.raises(CorruptionError, match=words) as refused:
            log.topic("t").append(b"3", partition=0)
        log.topic("t").append(b"3", partition=1)
    assert f"`tiered repair t:0 --log-dir {directory}` shows what is lost" in refused.value.hint

    async def use() -> None:
        async with aio.open(directory, remote=url) as log:
            topic = await log.topic("t")
            with pytest.raises(CorruptionError, match=words):
                await topic.append(b"3", partition=0)
            assert (await topic.append(b"3", partition=1)).offset == 1

    asyncio.run(use())
    tiered.admin.rejoin(directory, tiered.TopicPartition("t", 0)).apply()
    with tiered.open(directory, remote=url) as log:
        assert log.topic("t").append(b"3", partition=0).offset == 0
