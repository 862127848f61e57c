"""``read_committed`` over both tiers while segments leave the disk, seen by the writer and by others."""

from __future__ import annotations

from pathlib import Path

import pytest

import tiered
from tiered.config import LogConfig
from tiered.errors import OffsetOutOfRangeError
from tiered.log import Log
from tiered.model import TopicPartition
from tiered.read.stream import ReadRange
from tiered.read.topic import TopicReads

TP = TopicPartition("t", 0)
SETTINGS = {"segment.bytes": 400, "segment.index.bytes": 4096}


@pytest.fixture
def log(tmp_path: Path) -> Log:
    log = tiered.open(tmp_path / "log", f"file://{tmp_path / 'store'}", config=LogConfig(disk_reserve_bytes=0))
    log.topic("t", create=True, config=SETTINGS)
    return log


def upload_and_trim(log: Log) -> int:
    """What is sealed goes to the bucket and from the disk; where the disk begins now."""
    log.sync()
    partition = log._local.partition(TP)
    partition.delete_local_before(partition.positions().end_offset)
    return partition.positions().local_start_offset


def committed(topic: TopicReads) -> list[bytes]:
    return [(record.value or b"")[:1] for record in topic.read(isolation="read_committed")]


def test_a_transaction_that_is_open_in_the_bucket_hides_what_follows_it_from_all(log: Log, tmp_path: Path) -> None:
    """Its first record has left the disk: a reader beside the writer must not take the disk's start for stable."""
    with log:
        topic = log.topic("t")
        topic.append(b"1")
        txn = topic.transaction("x")
        txn.append(b"2")
        for _ in range(10):
            topic.append(b"3" * 100)
        assert upload_and_trim(log) > 2
        topic.append(b"4")
        readers = {
            "both": tiered.open_reader(log.remote, log_dir=tmp_path / "log"),
            "bucket": tiered.open_reader(log.remote),
        }
        assert committed(topic) == [b"1"]
        for name, reader in readers.items():
            with reader:
                assert committed(reader.topic("t")) == [b"1"], name
        txn.abort()
        with tiered.open_reader(log.remote, log_dir=tmp_path / "log") as reader:
            assert committed(reader.topic("t")) == committed(topic) == [b"1", *[b"3"] * 10, b"4"]


def test_what_was_aborted_stays_hidden_when_it_moves_to_the_bucket_during_a_read(log: Log) -> None:
    with log:
        topic = log.topic("t")
        topic.append(b"1")
        upload_and_trim(log)
        stream = topic.stream(0)  # the catalog is looked at here
        txn = topic.transaction("x")
        txn.append(b"2")
        txn.abort()
        topic.append(b"3")
        assert upload_and_trim(log) > 2
        found = stream.records(ReadRange(), isolation="read_committed")
        assert [record.value for record in found] == [b"1", b"3"]


@pytest.mark.parametrize("more", [{}, {"end": 900}, {"until": 2**40}, {"on_trimmed": "jump"}])
def test_an_offset_behind_the_end_is_an_error_whatever_is_still_open(
    log: Log, tmp_path: Path, more: dict[str, object]
) -> None:
    """Who asks for it has seen more than there is. What is open only has to be waited for."""
    with log:
        topic = log.topic("t")
        topic.append(b"0")
        topic.transaction("x").append(b"1")
        topic.append(b"2")
        log.sync()
        with (
            tiered.open_reader(log.remote, log_dir=tmp_path / "log") as both,
            tiered.open_reader(log.remote) as bucket,
            tiered.open_reader(log_dir=tmp_path / "log") as disk,
        ):
            for reads in (topic, both.topic("t"), bucket.topic("t"), disk.topic("t")):
                for start in (1, 2, 3):
                    assert list(reads.read(0, start=start, isolation="read_committed", **more)) == []  # type: ignore[arg-type]  # keywords of each case
                for read in (reads.read, reads.read_batches):
                    with pytest.raises(OffsetOutOfRangeError) as refused:
                        list(read(0, start=800, isolation="read_committed", **more))  # type: ignore[arg-type]
                    assert (refused.value.requested, refused.value.earliest, refused.value.latest) == (800, 0, 3)
                assert list(reads.read(0, start=800, end=700, isolation="read_committed")) == []
