"""One wrong ``partition.metadata`` takes one partition out of service, says which and why, and no other."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import shutil
from pathlib import Path
from uuid import UUID

import pytest

import tiered
from tests.support.faulty_files import UnreadableFiles
from tests.unit.local.opening import run_task
from tiered import aio
from tiered.cli.main import run
from tiered.engine.drain import DrainMode
from tiered.engine.reports import Exit
from tiered.errors import CorruptionError, LocalIOError
from tiered.format.checkpoint import encode_partition_metadata
from tiered.local.directory.log_directory import LocalLog
from tiered.local.directory.multi_directory_log import LocalTier
from tiered.local.directory.read_only_log import LogView
from tiered.local.disk.directory_files import RECOVERY_POINT_NAME, OffsetsFile
from tiered.local.disk.files import PosixFiles
from tiered.local.disk.uploader_files import SealRequest
from tiered.model import TopicPartition
from tiered.store.location import StoreLocation
from uploader.config import Settings
from uploader.service import Service, ServicePlace, serve

BROKEN = TopicPartition("a", 1)
ANOTHER = encode_partition_metadata(UUID(int=1)).encode()
DAMAGE = [b"\xff\xfe\xff", b"version: 0\ntopic_id: garbage\n", b"", b"version: 7\n", ANOTHER]


@pytest.fixture(params=range(len(DAMAGE)), ids=["not UTF-8", "no id", "empty", "newer", "another topic"])
def damaged(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    with tiered.open(tmp_path / "log") as log:
        for name in ("a", "b"):
            topic = log.topic(name, partitions=3, create=True)
            for partition in range(3):
                topic.append(b"before", partition=partition)
    (tmp_path / "log" / "a-1" / "partition.metadata").write_bytes(DAMAGE[request.param])
    return tmp_path


def refused(error: CorruptionError) -> None:
    assert "a-1 is out of service" in error.message
    assert error.path_or_key.endswith("a-1/partition.metadata")
    assert "put the file back" in error.hint


def test_the_library(damaged: Path) -> None:
    metadata = damaged / "log" / "a-1" / "partition.metadata"
    for clean in (True, False):
        if not clean:
            (damaged / "log" / ".kafka_cleanshutdown").unlink(missing_ok=True)
        with tiered.open(damaged / "log") as log:
            topic = log.topic("a")
            with pytest.raises(CorruptionError) as caught:
                topic.append(b"lost?", partition=1)
            refused(caught.value)
            with pytest.raises(CorruptionError):
                topic.positions(1)
            with pytest.raises(CorruptionError):
                list(topic.read(1))
            topic.append(b"after", partition=0)
            topic.append(b"after", partition=2)
            log.topic("b").append(b"after", partition=1)
            topic.flush()
            log.flush()
            assert BROKEN not in log.positions()
            assert len(log.positions()) == 5
            assert log.topics()["a"].partitions == 3
    # Nothing that was noted of it is forgotten, and its next open looks at what a crash may have left in it.
    assert OffsetsFile(damaged / "log", RECOVERY_POINT_NAME, PosixFiles()).read()[BROKEN] == 1
    assert not (damaged / "log" / ".kafka_cleanshutdown").exists()
    metadata.write_bytes((damaged / "log" / "a-0" / "partition.metadata").read_bytes())
    with tiered.open(damaged / "log") as log:
        assert log.topic("a").append(b"back", partition=1).offset == 1
        assert [r.value for r in log.topic("a").read(1)] == [b"before", b"back"]
        assert [r.value for r in log.topic("a").read(0)] == [b"before", b"after", b"after"]


def test_readers_and_asyncio(damaged: Path) -> None:
    with tiered.open_reader(log_dir=damaged / "log") as reader:
        assert [r.value for r in reader.topic("a").read(0)] == [b"before"]
        assert [r.value for r in reader.topic("b").read()] == [b"before"] * 3
        with pytest.raises(CorruptionError) as caught:
            list(reader.topic("a").read())
        refused(caught.value)
    with LogView.open(damaged / "log") as log:
        assert log.out_of_service.keys() == {BROKEN}
        assert BROKEN in log.partitions()

    async def appended() -> int:
        async with aio.open(damaged / "log") as log:
            topic = await log.topic("a")
            with pytest.raises(CorruptionError):
                await topic.append(b"x", partition=1)
            return (await topic.append(b"x", partition=2)).offset

    assert asyncio.run(appended()) == 1


def daemon(damaged: Path) -> tuple[Service, Exit]:
    settings = Settings(http=None, scan=20)
    service = Service(ServicePlace(damaged / "log", StoreLocation.parse(f"file://{damaged / 'store'}")), settings)
    return service, asyncio.run(serve(service, oneshot=DrainMode.ALL, timeout_ms=60_000))


def test_the_daemon_uploads_all_others_and_owns_up(damaged: Path) -> None:
    service, ending = daemon(damaged)
    assert (ending.code, "not all of a-1 could be read" in ending.reason) == (13, True)
    assert [each["topic"] for each in service.status()["out_of_service"]] == ["a"]
    with tiered.open_reader(f"file://{damaged / 'store'}") as reader:
        assert [r.value for r in reader.topic("b").read()] == [b"before"] * 3
        assert [r.value for r in reader.topic("a").read(0)] == [b"before"]
        assert list(reader.topic("a").read(1)) == []


def test_inline_sync_uploads_all_others_and_then_raises(damaged: Path) -> None:
    with tiered.open(damaged / "log", remote=f"file://{damaged / 'store'}") as log:
        for name in ("a", "b"):
            log.topic(name)
        with pytest.raises(CorruptionError) as caught:
            log.sync(timeout=60)
        refused(caught.value)
        assert {tp: at.uploaded_offset for tp, at in log.positions().items()} == dict.fromkeys(log.positions(), 1)


def test_it_is_named_by_every_command(damaged: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = str(damaged / "log")
    for command, code in (("status", 3), ("check", 13)):
        assert run([command, "--log-dir", directory]) == code
        assert "a-1" in (told := capsys.readouterr().out)
        assert "partition.metadata" in told
    assert run(["cat", "b", "--log-dir", directory]) == 0
    assert run(["cat", "a:1", "--log-dir", directory]) == 13


def test_a_request_to_seal_concerns_all_others(damaged: Path) -> None:
    with LocalLog.open(damaged / "log") as log:
        SealRequest(damaged / "log", PosixFiles()).write()
        done = run_task(log.tasks, "uploads")
        assert done.failures == 0
        ends = [len(log.partition(tp).sealed_segments()) for tp in log.partitions() if tp != BROKEN]
        assert ends == [1] * 5


def test_compaction_and_moves_say_why(damaged: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with LocalTier.open([damaged / "log", damaged / "other"]) as logs:
        with pytest.raises(CorruptionError) as caught:
            logs.move(BROKEN, damaged / "other")
        refused(caught.value)
        assert not list((damaged / "other").glob("a-1*"))
        logs.alter_topic("a", {"cleanup.policy": "compact"})
    with tiered.open([damaged / "log", damaged / "other"]):
        pass
    for name in (".kafka_cleanshutdown", "tiered-one-of-several"):
        (damaged / "log" / name).unlink(missing_ok=True)
    directory = str(damaged / "log")
    assert run(["disk", "compact", "a", "--dry-run", "--log-dir", directory]) == 13
    assert "a-1 is out of service" in capsys.readouterr().err
    assert run(["disk", "compact", "--dry-run", "--log-dir", directory]) == 0


def test_a_topic_with_one_can_be_deleted(damaged: Path) -> None:
    with tiered.open(damaged / "log") as log:
        log.delete_topic("a")
        assert set(log.topics()) == {"b"}


def test_a_disk_that_fails_under_one_file_is_not_written(tmp_path: Path) -> None:
    with LocalLog.open(tmp_path) as log:
        log.create_topic("t", 2)
    for number, wrong in ((errno.EIO, LocalIOError), (errno.EACCES, None)):
        files = UnreadableFiles(tmp_path / "t-1" / "partition.metadata", number=number)
        with contextlib.ExitStack() as held:
            if wrong is not None:
                held.enter_context(pytest.raises(wrong, match="Input/output error"))
            with LocalLog.open(tmp_path, files=files) as log:
                assert list(log.out_of_service) == [TopicPartition("t", 1)]
        with LogView.open(tmp_path, files=files) as log:
            assert list(log.out_of_service) == [TopicPartition("t", 1)]


@pytest.mark.parametrize("uploaded", [False, True])
def test_a_partition_whose_directory_is_gone_reads_as_no_empty_one(tmp_path: Path, uploaded: bool) -> None:
    with tiered.open(tmp_path / "log", remote=f"file://{tmp_path / 'store'}" if uploaded else None) as log:
        topic = log.topic("a", partitions=2, create=True)
        for partition in (0, 1):
            topic.append_many([b"x"] * 5, partition=partition)
        if uploaded:
            log.sync(timeout=30)
    (tmp_path / "log" / "a-1").rename(tmp_path / "kept")
    with tiered.open_reader(log_dir=tmp_path / "log") as reader:
        held = reader.topic("a")
        assert [record.value for record in held.read(0)] == [b"x"] * 5
        for look in (lambda: list(held.read(1)), lambda: list(held.read()), held.end_offsets):
            with pytest.raises(CorruptionError, match="it held records up to offset 5") as refused:
                look()
            assert ("read the bucket" in refused.value.hint) is uploaded
        (tmp_path / "kept").rename(tmp_path / "log" / "a-1")
        assert [record.value for record in held.read(1)] == [b"x"] * 5
    assert run(["cat", "a:1", "--log-dir", str(tmp_path / "log")]) == 0
    (tmp_path / "log" / "a-1").rename(tmp_path / "kept")
    assert run(["cat", "a:1", "--log-dir", str(tmp_path / "log")]) == 13


@pytest.mark.parametrize("clean", [True, False])
def test_a_partition_without_its_segments_gives_no_offset_again_until_it_is_repaired(
    tmp_path: Path, clean: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = tmp_path / "log"
    with tiered.open(directory) as log:
        topic = log.topic("a", partitions=2, create=True)
        for partition in (0, 1):
            topic.append_many([b"x"] * 5, partition=partition)
    if not clean:
        (directory / ".kafka_cleanshutdown").unlink()
    for path in (directory / "a-1").glob("0*"):
        path.unlink()
    with tiered.open(directory) as log:
        with pytest.raises(CorruptionError, match=r"has no \.log file; it held records up to offset 5"):
            log.topic("a").append(b"y", partition=1)
        assert log.topic("a").append(b"y", partition=0).offset == 5
    assert [run([verb, "--log-dir", str(directory)]) for verb in ("status", "check", "repair")] == [3, 13, 3]
    assert "gives up offsets 0 to 5" in capsys.readouterr().err
    assert run(["repair", "a:1", "--accept-loss", "--yes", "--log-dir", str(directory)]) == 0
    with tiered.open(directory) as log:
        assert log.topic("a").append(b"y", partition=1).offset == 5


def test_a_reader_of_both_tiers_says_that_a_directory_is_gone_whose_records_the_bucket_has_not(tmp_path: Path) -> None:
    url, directory = f"file://{tmp_path / 'store'}", tmp_path / "log"
    with tiered.open(directory, url) as log:
        topic = log.topic("a", partitions=3, create=True)
        for partition in (0, 1):
            topic.append_many([b"sent"] * 5, partition=partition)
        log.sync(timeout=30)
        topic.append(b"only here", partition=1, durability="disk")
    with tiered.open_reader(url, log_dir=directory) as reader:
        held = reader.topic("a")
        assert [record.value for record in held.read(1)] == [b"sent"] * 5 + [b"only here"]
        (directory / "a-1").rename(tmp_path / "kept")
        shutil.rmtree(directory / "a-2")
        assert [record.value for record in held.read(0)] == [b"sent"] * 5
        assert list(held.read(2)) == []  # it held nothing
        for look in (lambda: list(held.read(1)), held.end_offsets, lambda: reader.to_arrow("a")):
            with pytest.raises(CorruptionError, match="it held records up to offset 6") as refused:
                look()
            assert "read the bucket without this directory" in refused.value.hint
        (tmp_path / "kept").rename(directory / "a-1")
        assert [record.value for record in held.read(1)] == [b"sent"] * 5 + [b"only here"]
    (directory / "a-1").rename(tmp_path / "kept")
    with tiered.open_reader(url) as reader:
        assert [record.value for record in reader.topic("a").read(1)] == [b"sent"] * 5
    assert run(["cat", "a:1", "--log-dir", str(directory), "--remote", url]) == 13


def test_what_lies_in_another_directory_of_the_log_is_read_from_the_bucket(tmp_path: Path) -> None:
    url = f"file://{tmp_path / 'store'}"
    with tiered.open([tmp_path / "x", tmp_path / "y"], url) as log:
        topic = log.topic("a", partitions=2, create=True)
        for partition in (0, 1):
            topic.append_many([b"sent"] * 5, partition=partition)
        log.sync(timeout=30)
    with tiered.open_reader(url, log_dir=tmp_path / "x") as reader:
        assert [record.value for record in reader.topic("a").read()] == [b"sent"] * 10
