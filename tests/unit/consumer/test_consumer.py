"""Consumers of a log in one process: positions in ``__consumer_offsets``, the verbs, what is never skipped."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

import pytest

import tiered
from tiered import TopicPartition
from tiered.consumer.assignment import Changes, LogAssignment, Position
from tiered.errors import (
    ClosedError,
    ConfigError,
    CorruptionError,
    InvalidTimestampError,
    LogDestroyedError,
    LogTruncatedError,
    OffsetOutOfRangeError,
    PartitionLostError,
    UnknownTopicError,
)
from tiered.format.coordinator_records import OFFSETS_TOPIC, encode_position_key
from tiered.model import NewRecord
from tiered.testing.clock import FakeClock

ZERO, ONE = TopicPartition("t", 0), TopicPartition("t", 1)


class CallersClock(FakeClock):
    """A clock that only the test's thread moves. The timers of the log wait for its close."""

    def __init__(self) -> None:
        super().__init__()
        self._caller = threading.current_thread()

    def wait(self, event: threading.Event, seconds: float | None) -> bool:
        return super().wait(event, seconds if threading.current_thread() is self._caller else None)


def values(records: Iterable[tiered.ConsumerRecord]) -> list[bytes | None]:
    return [record.value for record in records]


@pytest.fixture
def log(tmp_path: Path) -> Iterable[tiered.Log]:
    with tiered.open(tmp_path / "log", clock=CallersClock()) as log:
        log.topic("t", partitions=2, create=True)
        yield log


def fill(log: tiered.Log, count: int, *, partition: int = 0, first: int = 0) -> None:
    log.topic("t").append_many([b"%d" % (first + i) for i in range(count)], partition=partition)


def test_a_group_goes_on_where_it_committed(tmp_path: Path) -> None:
    with tiered.open(tmp_path / "log") as log:
        log.topic("t", create=True).append_many([b"0", b"1", b"2"])
        with log.consumer("g", "t", stop_at="end") as consumer:
            for record in consumer:
                if record.value == b"1":
                    break
            consumer.commit()
            assert consumer.committed()[ZERO].offset == 2
            assert consumer.lag() == {ZERO: 1}
    with tiered.open(tmp_path / "log") as log:
        log.topic("t").append(b"3")
        with log.consumer("g", "t", stop_at="end") as consumer:
            assert values(consumer) == [b"2", b"3"]
        with log.consumer("g", "t", stop_at="end") as consumer:  # nothing was committed
            assert values(consumer) == [b"2", b"3"]
        with log.consumer("other", "t", stop_at="end") as consumer:
            assert values(consumer) == [b"0", b"1", b"2", b"3"]


def test_all_partitions_are_read_and_each_record_once(log: tiered.Log) -> None:
    fill(log, 1200)
    fill(log, 700, partition=1)
    with log.consumer("g", "t", stop_at="end") as consumer:
        found = [(record.partition, record.offset) for record in consumer.poll(300)]
        found += [(record.partition, record.offset) for batch in consumer.batches(250) for record in batch]
        assert sorted(found) == [(0, i) for i in range(1200)] + [(1, i) for i in range(700)]
        assert consumer.poll(timeout=0) == []
        consumer.commit()
        assert {tp: at.offset for tp, at in consumer.committed().items()} == {ZERO: 1200, ONE: 700}
        assert consumer.committed(ZERO)[ZERO].leader_epoch == log.topic("t").log(0).leader_epochs()[-1].epoch


def test_an_exception_that_leaves_the_block_commits_nothing(log: tiered.Log) -> None:
    fill(log, 3)
    with pytest.raises(ConfigError), log.consumer("g", "t", commit_every=1000) as consumer:  # noqa: PT012
        assert len(consumer.poll()) == 3
        consumer.poll(-1)
    assert log.consumer("g", "t").committed(ZERO) == {}


def test_commit_every_commits_what_earlier_calls_handed_out(log: tiered.Log) -> None:
    fill(log, 4)
    with log.consumer("g", "t", commit_every=0) as consumer:
        consumer.poll(2)
        assert consumer.committed(ZERO) == {}
        consumer.poll(1)
        assert consumer.committed(ZERO)[ZERO].offset == 2
    with log.consumer("g", "t", stop_at="end") as consumer:  # the end of the block committed the third one
        assert values(consumer) == [b"3"]


def test_commit_every_commits_while_a_poll_waits(log: tiered.Log) -> None:
    fill(log, 2)
    with log.consumer("g", "t", commit_every="10s") as consumer:
        consumer.poll(2)
        assert consumer.poll(timeout=9) == []
        assert consumer.committed(ZERO) == {}
        assert consumer.poll(timeout=2) == []
        assert consumer.committed(ZERO)[ZERO].offset == 2


def test_the_time_of_joining_is_no_silence(log: tiered.Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """A member of a group over a bucket waits like this for others that start at the same time."""
    fill(log, 2)
    with log.consumer("g", "t", idle_timeout="5s") as consumer:
        joined, rounds = consumer.core.assignment.poll, iter(range(20))

        def poll(busy: Collection[TopicPartition]) -> Changes:
            return Changes(wait=True) if next(rounds, None) is not None else joined(busy)

        monkeypatch.setattr(consumer.core.assignment, "poll", poll)
        assert values(consumer) == [b"0", b"1"]


def test_a_log_that_was_closed_first(tmp_path: Path) -> None:
    with tiered.open(tmp_path / "log") as log:
        log.topic("t", create=True).append(b"0")
        consumer = log.consumer("g", "t")
        consumer.poll()
    with pytest.raises(ClosedError):
        consumer.poll()
    with pytest.raises(ClosedError):
        consumer.commit()
    consumer.close()


def test_commits_that_nobody_waits_for_are_stored_together_once_in_an_interval(
    log: tiered.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a bucket each commit is a PUT for each partition."""
    fill(log, 6)
    monkeypatch.setattr(LogAssignment, "commit_interval_s", 1.0)
    with log.consumer("g", "t", commit_every=0) as consumer:
        stored, commit = [], LogAssignment.commit

        def note(self: LogAssignment, positions: Mapping[TopicPartition, Position]) -> object:
            stored.append(positions[ZERO].offset)
            return commit(self, positions)

        monkeypatch.setattr(LogAssignment, "commit", note)
        for _ in range(3):
            consumer.poll(1)
            consumer.commit(async_=True)
        assert stored == [1]
        assert consumer.poll(1, timeout=0) != []
        assert consumer.poll(1, timeout=0) != []
        assert stored == [1]
        consumer.seek(ZERO, 6)
        assert consumer.poll(timeout=1.5) == []  # it waits, and stores meanwhile
        assert stored == [1, 6]
        consumer.seek(ZERO, 2)
        consumer.poll(1)
        consumer.commit()  # its caller waits: at once
        assert stored == [1, 6, 3]


def test_a_deferred_commit_that_fails_raises_at_the_next_commit(
    log: tiered.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(log, 3)
    monkeypatch.setattr(LogAssignment, "commit_interval_s", 1.0)
    with log.consumer("g", "t") as consumer:
        consumer.poll(1)
        consumer.commit()
        consumer.poll(1)
        consumer.commit(async_=True)
        lost = {ZERO: PartitionLostError("t-0 belongs to another member")}
        with monkeypatch.context() as patch:
            patch.setattr(LogAssignment, "commit", lambda *_: lost)
            assert values(consumer.poll(2, timeout=2)) == [b"2"]
            assert consumer.poll(2, timeout=2) == []
        with pytest.raises(PartitionLostError):
            consumer.commit()
        consumer.commit()
        assert consumer.committed(ZERO)[ZERO].offset == 3
        consumer.poll(timeout=0)
        consumer.seek(ZERO, 1)
        consumer.commit(async_=True)  # too soon: the end of the block stores it
    assert log.consumer("g", "t").committed(ZERO)[ZERO].offset == 1


def test_the_verbs(log: tiered.Log) -> None:
    fill(log, 5)
    fill(log, 5, partition=1, first=100)
    with log.consumer("g") as consumer:
        consumer.assign([ZERO])
        assert consumer.assignment() == {ZERO}
        assert values(consumer.poll(2)) == [b"0", b"1"]
        assert consumer.position(ZERO) == 2
        consumer.seek(ZERO, 4)
        assert values(consumer.poll()) == [b"4"]
        consumer.seek_to_beginning()
        assert values(consumer.poll(1)) == [b"0"]
        consumer.seek_to_end(ZERO)
        assert (consumer.position(ZERO), consumer.poll(timeout=0)) == (5, [])
        consumer.subscribe(["t"])
        consumer.pause(ZERO)
        assert values(consumer.poll()) == [b"100", b"101", b"102", b"103", b"104"]
        consumer.resume(ZERO)
        fill(log, 1, first=5)
        assert values(consumer.poll()) == [b"5"]
        assert consumer.offsets_for_times({ONE: 0})[ONE] == log.topic("t").offsets_for_times(0)[ONE]
        consumer.commit({ONE: Position(3, metadata="by hand")})
        assert consumer.committed(ONE)[ONE].metadata == "by hand"
        with pytest.raises(UnknownTopicError, match="t-7 is not assigned"):
            consumer.seek(TopicPartition("t", 7), 0)
    with pytest.raises(ClosedError):
        consumer.poll()


def test_records_that_are_appended_later_are_followed(log: tiered.Log) -> None:
    with log.consumer("g", "t", idle_timeout=5) as consumer:
        found = []
        fill(log, 1)
        for record in consumer:
            found.append(record.value)
            if len(found) < 4:
                fill(log, 1, partition=len(found) % 2, first=len(found))
        assert found == [b"0", b"1", b"2", b"3"]


def test_latest_is_resolved_once_and_another_word_is_refused(log: tiered.Log) -> None:
    with pytest.raises(InvalidTimestampError, match="start: 'begin' is not a time") as raised:
        log.consumer("g", "t", start="begin")
    assert raised.value.hint.startswith('"earliest", "latest" or a time: write ')
    fill(log, 3)
    with log.consumer("g", "t", start="latest") as consumer:
        assert consumer.poll(timeout=0) == []
    fill(log, 1, first=3)
    with log.consumer("g", "t", start="latest", stop_at="end") as consumer:
        assert values(consumer) == [b"3"]


def test_arrow_moves_the_positions(log: tiered.Log) -> None:
    pytest.importorskip("pyarrow")
    fill(log, 600)
    with log.consumer("g", "t", stop_at="end") as consumer:
        assert sum(batch.num_rows for batch in consumer.record_batches()) == 600
        consumer.commit()
        assert consumer.committed(ZERO)[ZERO].offset == 600


def test_positions_of_the_program(log: tiered.Log) -> None:
    fill(log, 3)
    kept: dict[TopicPartition, Position] = {}
    with log.consumer("g", "t", positions=kept, stop_at="end") as consumer:
        consumer.poll(2)
        consumer.commit()
    assert kept[ZERO].offset == 2
    assert log.consumer("g", "t").committed(ZERO) == {}
    database = sqlite3.connect(":memory:", check_same_thread=False)
    database.execute("CREATE TABLE at (partition INTEGER PRIMARY KEY, offset INTEGER)")

    def load(partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Position | int]:
        return {TopicPartition("t", p): at for p, at in database.execute("SELECT partition, offset FROM at")}

    def store(positions: Mapping[TopicPartition, Position]) -> None:
        rows = [(tp.partition, at.offset) for tp, at in positions.items()]
        database.executemany("INSERT OR REPLACE INTO at VALUES (?, ?)", rows)

    for expected in ([b"0", b"1"], [b"2"]):
        with log.consumer("g", "t", positions=(load, store)) as consumer:
            assert values(consumer.poll(2)) == expected
            consumer.commit()


def test_a_second_consumer_of_the_group_is_refused(log: tiered.Log) -> None:
    with log.consumer("g", "t") as one, log.consumer("g", "t") as other:
        one.poll(timeout=0)
        with pytest.raises(ConfigError, match="another consumer of this log reads it for group 'g'"):
            other.poll(timeout=0)
        one.assign([ONE])
        assert one.poll(timeout=0) == []
        with pytest.raises(ConfigError):
            other.poll(timeout=0)
        one.subscribe("t")
        assert one.poll(timeout=0) == []  # the refused one holds no partition back
        one.close()
        assert other.poll(timeout=0) == []


def test_a_close_from_another_thread_ends_a_waiting_poll(log: tiered.Log) -> None:
    consumer = log.consumer("g", "t", on_assigned=lambda _: closer.start())
    closer = threading.Thread(target=consumer.close)
    with pytest.raises(ClosedError):
        consumer.poll()
    closer.join()


def test_a_position_beyond_the_end(log: tiered.Log) -> None:
    fill(log, 5)
    log.consumer("g", "t").poll(timeout=0)
    with log.consumer("h", "t") as consumer:
        consumer.poll()
        consumer.commit()
    log.topic("t").log(0).truncate_to(2)
    with log.consumer("h", "t") as consumer, pytest.raises(LogTruncatedError) as caught:
        consumer.poll()
    assert (caught.value.requested, caught.value.diverged) == (5, 2)
    with log.consumer("h", "t", on_truncated="rewind") as consumer:
        assert consumer.poll(timeout=0) == []
        fill(log, 1, first=9)
        assert values(consumer.poll()) == [b"9"]


def test_records_of_another_leader_epoch(log: tiered.Log) -> None:
    part = log.topic("t").log(0)
    for value in (b"0", b"1", b"2"):
        log.topic("t").append(value, partition=0)
    with log.consumer("g", "t") as consumer:
        consumer.poll()
        consumer.commit()
    part.truncate_to(1)
    part.new_leader_epoch(part.leader_epochs()[-1].epoch + 1)
    fill(log, 5, first=10)
    with log.consumer("g", "t") as consumer, pytest.raises(LogTruncatedError) as caught:
        consumer.poll()
    assert (caught.value.requested, caught.value.diverged) == (3, 1)
    with log.consumer("g", "t", on_truncated="rewind") as consumer:
        assert values(consumer.poll()) == [b"10", b"11", b"12", b"13", b"14"]


def test_a_position_before_the_start(tmp_path: Path) -> None:
    with tiered.open(tmp_path / "log", clock=CallersClock()) as log:
        topic = log.topic("t", create=True, config={"segment.bytes": 140})
        for value in (b"0", b"1", b"2", b"3"):
            topic.append(value * 60)
        with log.consumer("g", "t") as consumer:
            consumer.poll(1)
            consumer.commit()
        topic.log(0).delete_local_before(3)
        with log.consumer("g", "t") as consumer, pytest.raises(OffsetOutOfRangeError):
            consumer.poll()
        with log.consumer("g", "t", on_trimmed="jump") as consumer:
            assert [record.offset for record in consumer.poll()] == [3]
            assert consumer.skipped == 2


def test_an_uncommitted_record_is_not_passed(log: tiered.Log) -> None:
    with log.consumer("g", "t", isolation="read_committed") as consumer:
        with log.topic("t").transaction("x") as txn:
            txn.append(b"in", partition=0)
            fill(log, 1, first=7)
            assert consumer.poll(timeout=0) == []
            consumer.commit()
        assert values(consumer.poll()) == [b"in", b"7"]
        txn = log.topic("t").transaction("x")
        txn.append(b"gone", partition=0)
        txn.abort()
        assert consumer.poll(timeout=0) == []
        consumer.commit()
        assert consumer.lag() == {ZERO: 0, ONE: 0}


def test_a_topic_that_is_made_again_is_read_from_its_start(log: tiered.Log) -> None:
    fill(log, 3)
    with log.consumer("g", "t") as consumer:
        consumer.poll()
        consumer.commit()
        log.delete_topic("t")
        log.topic("t", create=True).append(b"new")
        with pytest.raises(LogDestroyedError):
            consumer.commit({ZERO: 3})
        assert values(consumer.poll()) == [b"new"]
        log.topic("t").add_partitions(1)
        log.topic("t").append(b"added", partition=1)
        assert values(consumer.poll()) == [b"added"]


def test_a_group_of_another_program(log: tiered.Log) -> None:
    with log.consumer("g", "t") as consumer:
        consumer.commit({ZERO: 1}) if consumer.poll(timeout=0) else None
    positions = log._local.transactions.positions
    part = positions.log(positions.partition_of("g"))
    connect = b"\x00\x03" + b"\x00\x07connect" + b"\x00\x00\x00\x01" + b"\xff\xff" * 2 + b"\x00" * 8 + b"\x00" * 4
    part.append([NewRecord(connect, b"\x00\x02\x00\x01g")])
    with pytest.raises(ConfigError, match="not a consumer group: its protocol is 'connect'"):
        log.consumer("g", "t")
    assert values(log.consumer("other", "t").poll(timeout=0)) == []


def test_a_damaged_position(log: tiered.Log) -> None:
    fill(log, 2)
    with log.consumer("g", "t") as consumer:
        consumer.poll()
        consumer.commit()
    positions = log._local.transactions.positions
    part = positions.log(positions.partition_of("g"))
    part.append([NewRecord(b"\x00\x63junk", encode_position_key("g", ZERO))])
    with (
        log.consumer("g", "t") as consumer,
        pytest.raises(CorruptionError, match=r"group 'g' in t-0 at offset 1 cannot"),
    ):
        consumer.poll(timeout=0)
    with log.consumer("g", "t") as consumer:
        consumer.seek(ZERO, 1)
        assert values(consumer.poll()) == [b"1"]


def test_a_damaged_key_in_a_transaction_is_reported_by_each_read(log: tiered.Log) -> None:
    positions = log._local.transactions.positions
    with log.transaction("copy") as txn:
        txn._append(positions, positions.partition_of("g"), [NewRecord(b"", b"\x00")])
    for _ in range(2):
        with pytest.raises(CorruptionError, match="at offset 0 cannot be read"):
            log.consumer("g", "t")


def test_the_topic_of_positions_is_kafka_s(log: tiered.Log) -> None:
    fill(log, 1)
    with log.consumer("billing", "t") as consumer:
        consumer.poll()
        consumer.commit()
    info = log.topics()[OFFSETS_TOPIC]
    assert (info.partitions, info.config.cleanup_policy) == (50, "compact")
    assert log._local.partition(TopicPartition(OFFSETS_TOPIC, 9)).end_offset == 1
    with pytest.raises(ConfigError, match="internal"):
        log.topic(OFFSETS_TOPIC).append(b"x")


def test_positions_commit_with_a_transaction(tmp_path: Path) -> None:
    with tiered.open(tmp_path / "log") as log:
        log.topic("t", create=True)
        fill(log, 4)
        out = log.topic("out", create=True)
        with log.consumer("g", "t") as consumer:
            with out.transaction("copy") as txn:
                txn.append_many([(record.value, None) for record in consumer.poll(2)])
                txn.commit_positions(consumer)
                assert consumer.committed(ZERO) == {}
            assert consumer.committed(ZERO)[ZERO].offset == 2
            txn = out.transaction("copy")
            txn.append_many([(record.value, None) for record in consumer.poll(1)])
            txn.commit_positions(consumer)
            with log.consumer("other", "t") as other:  # a commit beside the open transaction
                other.poll(3)
                other.commit()
                assert other.committed(ZERO)[ZERO].offset == 3
            txn.abort()
            assert consumer.committed(ZERO)[ZERO].offset == 2
        with log.consumer("g", "t", stop_at="end") as consumer:
            assert values(consumer) == [b"2", b"3"]
        txn = out.transaction("copy")
        with (
            log.consumer("h", "t", positions={}) as kept,
            pytest.raises(ConfigError, match="cannot join this transaction"),
        ):
            txn.commit_positions(kept)
        assert values(out.read(isolation="read_committed")) == [b"0", b"1"]


def test_positions_of_a_power_cut_go_back_with_the_log(tmp_path: Path) -> None:
    with tiered.open(tmp_path / "log") as log:
        topic = log.topic("t", create=True)
        for value in (b"0", b"1", b"2"):
            topic.append(value)
        with log.consumer("g", "t") as consumer:
            consumer.poll()
            consumer.commit()
    (tmp_path / "log" / ".kafka_cleanshutdown").unlink()
    segment = next((tmp_path / "log" / "t-0").glob("*.log"))
    segment.write_bytes(segment.read_bytes()[: segment.stat().st_size // 3])
    with tiered.open(tmp_path / "log") as log:
        log.topic("t").append_many([b"new", b"newer", b"newest"])
        with log.consumer("g", "t", stop_at="end") as consumer:
            assert values(consumer) == [b"new", b"newer", b"newest"]
