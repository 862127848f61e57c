"""Acceptance cases of idempotence and transactions on a partition; the number in a name is the case's own."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from tests.support.given import append_given, move_start
from tests.unit.local.opening import run_task
from tests.unit.local.partition.producer_bench import PID, ProducerBench, data, end
from tiered.errors import (
    InvalidRecordError,
    InvalidTimestampError,
    InvalidTxnStateError,
    LocalIOError,
    OutOfOrderSequenceError,
    ProducerFencedError,
)
from tiered.format.batch import BatchProducer, encode_batch, read_header
from tiered.format.codecs import Codec
from tiered.format.producer_snapshot import decode_snapshot, encode_snapshot
from tiered.model import AbortedTxn, NewRecord
from tiered.plan.producer import EXPIRATION_MS
from tiered.testing.clock import START_MS

LAST = 2**31 - 1


@pytest.fixture
def bench(tmp_path: Path) -> ProducerBench:
    return ProducerBench(tmp_path / "log")


def test_case_48_repetitions(bench: ProducerBench) -> None:
    for sequence in range(6):
        bench.send(sequence)
    first = bench.send(6, 3)
    assert (first.offset, first.end_offset) == (6, 9)
    assert bench.send(6, 3) == first
    with pytest.raises(OutOfOrderSequenceError):
        bench.send(7, 2)
    assert bench.send(2).offset == 2
    with pytest.raises(OutOfOrderSequenceError):
        bench.send(1)
    assert bench.offsets() == list(range(9))


def test_case_49_sequences_wrap(bench: ProducerBench) -> None:
    bench.send(LAST)
    with pytest.raises(OutOfOrderSequenceError):
        bench.send(1)
    assert bench.send(0).offset == 1
    bench.send(LAST - 1, 4, pid=8)
    assert bench.send(LAST - 1, 4, pid=8).offset == 2
    assert bench.send(2, pid=8).offset == 6


def test_case_51_a_marker_with_a_higher_epoch(bench: ProducerBench) -> None:
    bench.send(0, 3, txn=True)
    bench.mark(epoch=1)
    producer = bench.state.producer(PID)
    assert producer is not None
    assert (producer.batches, producer.last_sequence) == ((), -1)
    with pytest.raises(ProducerFencedError):
        bench.mark(epoch=0)
    with pytest.raises(OutOfOrderSequenceError):
        bench.send(1, epoch=1, txn=True)
    assert bench.send(0, epoch=1, txn=True).offset == 4
    assert producer.epoch == 1


@pytest.mark.parametrize("unclean", [True, False])
def test_case_52_coordinator_epochs(bench: ProducerBench, unclean: bool) -> None:
    for coordinator in (1, 1, 2):
        bench.mark(coordinator=coordinator)
    with pytest.raises(ProducerFencedError):
        bench.mark(coordinator=1)
    if unclean:
        bench.unclean()
    else:
        bench.reopen()
    with pytest.raises(ProducerFencedError):
        bench.mark(coordinator=1)
    assert bench.end == 3


STEPS: list[tuple[int, int]] = [
    *((1, 5), (0, 3), (2, 2), (1, 4), (3, 3), (0, 2), (1, 10), (-1, 1), (2, 6), (4, 3), (0, 10), (3, 9), (-3, 1)),
    *((4, 8), (2, 7), (-2, 1), (0, 10), (4, 4), (-4, 1)),
]
"""(producer, records): 0 is nobody, -n the marker of n; 1 and 2 abort."""

ENTRIES = [AbortedTxn(1, 0, 29, 8), AbortedTxn(2, 8, 74, 36)]


def case_53(bench: ProducerBench, *, given: bool) -> list[int]:
    """The last stable offset after each step."""
    sequences = dict.fromkeys(range(1, 5), 0)
    stable = []
    for who, count in STEPS:
        base = bench.end
        if who < 0:
            sent = end(abort=who >= -2, pid=-who, base=base)
        elif who:
            sent = data(sequences[who], count, pid=who, txn=True, base=base)
            sequences[who] += count
        else:
            bench.plain(count)
            continue
        if given:
            append_given(bench.partition, sent)
        elif who < 0:
            bench.partition.append_as_coordinator(sent)
        else:
            bench.partition.append_batches(sent)
        stable.append(bench.lso)
    return stable


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("per_segment", [None, 12])
def test_case_53_the_transaction_index(tmp_path: Path, given: bool, per_segment: int | None) -> None:
    bench = ProducerBench(tmp_path / "log", per_segment=per_segment)
    stable = case_53(bench, given=given)
    assert sorted(stable) == stable
    assert set(stable) == {0, 8, 36, bench.end}
    assert (bench.end, bench.lso, bench.aborted()) == (90, 90, ENTRIES)
    bases = bench.bases
    for restart in (bench.reopen, bench.unclean):
        restart()
        assert (bench.bases, bench.lso, bench.aborted()) == (bases, 90, ENTRIES)
    bench.kill()
    for name in (*bench.names(".txnindex"), *bench.names(".snapshot")):
        (bench.folder / name).unlink()
    (bench.directory / "recovery-point-offset-checkpoint").unlink()
    bench.open()
    assert (bench.lso, bench.aborted()) == (90, ENTRIES)
    assert [p for p in range(1, 5) if bench.state.producer(p) is not None] == [1, 2, 3, 4]


def test_case_54_the_log_start_moves_past_an_open_transaction(bench: ProducerBench) -> None:
    bench.send(0, 10, txn=True)
    bench.partition.roll()
    bench.plain(5)
    move_start(bench.partition, 5)
    assert bench.lso == 5
    move_start(bench.partition, 12)
    bench.retain()
    assert (bench.bases, bench.lso) == ([10], 12)
    bench.mark(abort=True)
    assert bench.lso == bench.end


def test_case_55_a_batch_outside_of_the_open_transaction(bench: ProducerBench) -> None:
    bench.send(0, txn=True)
    with pytest.raises(InvalidTxnStateError):
        bench.send(1)
    bench.mark()
    bench.send(1)


@pytest.mark.parametrize("torn", [0.0, 0.5, 1.0])
def test_case_56_the_transaction_index_cannot_be_written(tmp_path: Path, torn: float) -> None:
    bench = ProducerBench(tmp_path / "log")
    bench.send(0, 2, txn=True)
    bench.mark(abort=True)
    bench.send(2, 3, txn=True)
    bench.files.torn = torn
    bench.files.fail = lambda name, path: errno.EIO if (name, path.suffix) == ("write", ".txnindex") else 0
    with pytest.raises(LocalIOError):
        bench.mark(abort=True)
    assert (bench.end, bench.lso) == (7, 3)
    with pytest.raises(LocalIOError):
        bench.send(5)
    bench.files.fail = None
    bench.unclean()
    assert (bench.end, bench.lso) == (7, 7)
    assert bench.aborted() == [AbortedTxn(PID, 0, 2, 3), AbortedTxn(PID, 3, 6, 7)]


def test_case_57_snapshots_follow_a_cut(bench: ProducerBench) -> None:
    for sequence in range(5):
        bench.send(sequence)
        bench.partition.roll()
    assert bench.snapshots == [1, 2, 3, 4, 5]
    move_start(bench.partition, 1)
    bench.partition.truncate_to(3)
    assert bench.snapshots == [2, 3]
    with pytest.raises(OutOfOrderSequenceError):
        bench.send(4)
    assert bench.send(2).offset == 2
    assert bench.send(3).offset == 3
    bench.reopen()
    assert (bench.end, bench.bases) == (4, [0, 1, 2, 3])
    before = bench.snapshots
    bench.reopen()
    assert bench.end == 4
    assert bench.snapshots == before == [2, 3, 4]  # no second file without a change


@pytest.mark.parametrize("damage", [lambda d: b"", lambda d: d[:-3], lambda d: d[:20] + bytes([d[20] ^ 1]) + d[21:]])
def test_case_58_a_damaged_snapshot_is_passed_over(tmp_path: Path, damage: Any) -> None:
    bench = ProducerBench(tmp_path / "log")
    bench.send(0)
    bench.partition.roll()
    bench.send(1, 2)
    bench.log.close()
    assert bench.snapshots == [1, 3]
    newest = bench.folder / f"{3:020d}.snapshot"
    good = newest.read_bytes()
    newest.write_bytes(damage(good))
    bench.open()
    assert bench.send(1, 2).offset == 1
    assert newest.read_bytes() == good  # deleted, the older one loaded, and written anew after the replay
    assert bench.send(3).offset == 3


@pytest.mark.parametrize("codec", ["gzip", "zstd", "lz4", "snappy"])
def test_case_60_a_control_batch_is_never_compressed(tmp_path: Path, codec: str) -> None:
    bench = ProducerBench(tmp_path / "log", compression_type=codec)
    bench.send(0, txn=True)
    sent = end(abort=True)
    bench.partition.append_as_coordinator(sent)
    stored = [bytes(batch) for batch in bench.partition.read_batches(0)]
    assert [read_header(batch).codec is Codec.NONE for batch in stored] == [False, True]
    assert stored[1][21:] == sent[21:]


def test_case_59_timestamps_of_a_producers_batch(tmp_path: Path) -> None:
    bench = ProducerBench(tmp_path / "log", message_timestamp_before_max_ms=1000, message_timestamp_after_max_ms=1000)
    for stamp in (START_MS - 1001, START_MS + 1001):
        records = [NewRecord(b"v", b"k", START_MS), NewRecord(b"v", b"k", stamp)]
        with pytest.raises(InvalidTimestampError) as caught:
            bench.partition.append_batches(encode_batch(records, producer=BatchProducer(PID, 0, 0)))
        assert caught.value.index == 1
    bench.send(0)
    assert bench.end == 1


def test_a_duplicate_reports_the_logs_time(tmp_path: Path) -> None:
    bench = ProducerBench(tmp_path / "log", message_timestamp_type="LogAppendTime")
    first = bench.send(0, 2)
    bench.clock.advance(5)
    assert (bench.send(0, 2), first.timestamp) == (first, START_MS)


def test_a_marker_gets_the_logs_time_where_the_topic_wants_it(tmp_path: Path) -> None:
    bench = ProducerBench(tmp_path / "log", message_timestamp_type="LogAppendTime")
    bench.send(0, txn=True)
    bench.clock.advance(5)
    assert bench.mark(ts=7).timestamp == START_MS + 5000
    stored = list(bench.partition.read_batches(0))
    assert [read_header(batch).max_timestamp for batch in stored] == [START_MS, START_MS + 5000]
    assert [r.timestamp for r in bench.records()] == [START_MS, START_MS + 5000]
    assert bench.state.entries()[0].timestamp == START_MS + 5000
    bench.unclean()
    assert (bench.end, bench.lso) == (2, 2)


def test_a_coordinator_appends_one_batch_of_a_producer(bench: ProducerBench) -> None:
    for sent in (b"", encode_batch([NewRecord(b"v", b"k", 5)]), end() + end(base=1)):
        with pytest.raises(InvalidRecordError):
            bench.partition.append_as_coordinator(sent)
    assert bench.partition.append_as_coordinator(data(-1)).offset == 0


def test_idle_producers_are_forgotten_in_time(bench: ProducerBench) -> None:
    bench.send(0)
    bench.send(0, pid=8, txn=True)
    bench.partition.maintenance.expire_producers(START_MS + EXPIRATION_MS - 1)
    assert len(bench.state) == 2
    bench.clock.set_ms(START_MS + EXPIRATION_MS)
    run_task(bench.log.tasks, "retention")
    assert len(bench.state) == 2
    status = run_task(bench.log.tasks, "producer-expiry")
    assert [e.producer_id for e in bench.state.entries()] == [8]
    assert (status.period_ms, status.partitions) == (600_000, 1)


def test_a_log_without_producers_has_no_state(tmp_path: Path) -> None:
    bench = ProducerBench(tmp_path / "log", per_segment=3)
    bench.fill(10)
    assert bench.snapshots == [3, 6, 9]  # at each roll, as Kafka's; all empty
    bench.reopen()
    bench.unclean()
    assert bench.partition.producers.state is None
    assert (bench.snapshots, bench.lso) == ([3, 6, 9, 10], 10)
    assert {(bench.folder / name).read_bytes() for name in bench.names(".snapshot")} == {encode_snapshot(())}
    bench.fill(1)
    assert bench.snapshots == [3, 6, 9, 10]  # that of the last load stays until the next one
    bench.reopen()
    assert bench.end == 11
    assert bench.snapshots == [3, 6, 9, 11]
    assert [s.indexes().producer_snapshot for s in bench.partition.sealed_segments()] == [b"", b"", b""]


def test_a_log_that_gets_producers_says_so_before_the_first_of_their_batches(tmp_path: Path) -> None:
    bench = ProducerBench(tmp_path / "log", per_segment=3)
    bench.fill(4)
    plain = bench.folder / "tiered-plain"
    assert (plain.exists(), bench.snapshots) == (True, [3])
    before = len(bench.files.effects)
    bench.send(0, 2)
    assert not plain.exists()
    names = [path.name for name, path in bench.files.effects[before:] if name in ("unlink", "write")]
    assert names.index("tiered-plain") < names.index(f"{3:020d}.log")
    assert bench.snapshots == [3, 4]
    bench.partition.flush()
    bench.log.checkpoint()
    bench.unclean()
    assert bench.send(0, 2).offset == 4
    bench.partition.truncate_to(4)
    assert bench.snapshots == [3, 4]
    bench.reopen()
    assert bench.end == 4


def test_a_snapshot_of_a_broker_counts_more_than_the_mark(tmp_path: Path) -> None:
    bench = ProducerBench(tmp_path / "log", per_segment=3)
    bench.fill(4)
    bench.send(0, 2)
    bench.log.close()
    (bench.folder / "tiered-plain").write_bytes(b"")
    bench.open()
    assert bench.send(0, 2).offset == 4
    assert not (bench.folder / "tiered-plain").exists()


def test_a_refused_first_batch_begins_nothing(bench: ProducerBench) -> None:
    with pytest.raises(ProducerFencedError):
        bench.partition.append_batches(data(0, epoch=3) + data(0, epoch=2))
    assert bench.partition.producers.state is None
    assert bench.snapshots == []


def test_a_sealed_segment_ships_the_state_at_its_end(bench: ProducerBench) -> None:
    bench.send(0, 3)
    bench.partition.roll()
    (sealed,) = bench.partition.sealed_segments()
    (entry,) = decode_snapshot(sealed.indexes().producer_snapshot)
    assert (entry.producer_id, entry.last_sequence, entry.last_offset) == (PID, 2, 2)
    assert encode_snapshot(bench.state.entries()) == sealed.indexes().producer_snapshot
