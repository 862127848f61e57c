"""What an unclean stop leaves: a state log without its tail, disks that are not there."""

from __future__ import annotations

import dataclasses
import errno
import os
import shutil
import threading
from pathlib import Path

import pytest

from tests.unit.local.transactions.bench import STATE, A, B, C, TxnBench
from tiered.config import LogConfig
from tiered.errors import ConfigError, ForkedLogError, MarkersPendingError
from tiered.format.coordinator_records import TxnState, encode_transaction, encode_transaction_key
from tiered.local.directory.log_directory import LocalLog
from tiered.local.directory.multi_directory_log import LocalTier
from tiered.local.directory.read_only_log import LogView
from tiered.local.disk.directory_files import RECOVERY_POINT_NAME, OffsetsFile
from tiered.local.disk.files import PosixFiles
from tiered.local.transactions.coordinator import TxnProducer
from tiered.local.transactions.state_log import PRODUCER_IDS_NAME
from tiered.model import NewRecord, TopicPartition
from tiered.plan.producer import ProducerStamp
from tiered.testing.clock import FakeClock, SeededIds

SETTINGS = LogConfig(disk_reserve_bytes=0)


@pytest.fixture
def bench(tmp_path: Path) -> TxnBench:
    return TxnBench(tmp_path / "log")


def write(log: LocalLog | LocalTier, producer: TxnProducer, value: bytes, *tps: TopicPartition) -> None:
    for tp in tps:
        log.transactions.join(producer, [tp])
        log.partition(tp).append_as_producer([NewRecord(value)], ProducerStamp(*producer[1:], 0))


def test_nor_does_what_began_under_the_next_producer_id(bench: TxnBench) -> None:
    """The epochs are used up by that commit, so that what follows it has another producer id, and epoch 0."""
    bench.transact("x", b"1")
    value = bench.log.transactions.describe()["x"]
    last = dataclasses.replace(value, producer_epoch=32766)
    bench.log.partition(STATE).append([NewRecord(encode_transaction(last), encode_transaction_key("x"), 0)])
    bench.log.close()
    bench.open()
    bench.transact("x", b"2")
    decided = bench.log.partition(STATE).positions().end_offset - 1
    following = bench.log.transactions.begin("x")
    assert (following.producer_id == value.producer_id, following.producer_epoch) == (False, 0)
    write(bench.log, following, b"3", A)
    bench.log.partition(STATE).truncate_to(decided)
    bench.kill()
    bench.open()
    assert (bench.stuck(), bench.committed(A), bench.committed(B)) == ([], [b"1", b"2"], [b"1", b"2"])
    bench.transact("x", b"4")
    assert bench.committed(A) == bench.committed(B) == [b"1", b"2", b"4"]


def test_a_lost_file_of_ids_loses_no_decision(bench: TxnBench) -> None:
    producer = bench.log.transactions.begin("x")
    write(bench.log, producer, b"1", A, B)
    bench.log.transactions._mark = lambda owed: (_ for _ in ()).throw(ForkedLogError("stop"))  # type: ignore[method-assign]  # markers are not reached
    with pytest.raises(MarkersPendingError):
        bench.log.transactions.end(producer, commit=True)
    bench.kill()
    (bench.directory / PRODUCER_IDS_NAME).unlink()
    bench.open()
    assert bench.committed(A) == bench.committed(B) == [b"1"]
    assert bench.states() == {"x": "COMPLETE_COMMIT"}


def test_a_partition_that_refuses_keeps_no_other_waiting(tmp_path: Path) -> None:
    """One of them belongs to another volume by now: its marker is left out, the others are aborted."""
    bench = TxnBench(tmp_path / "log")
    for name, tp in (("x", A), ("y", C)):
        write(bench.log, bench.log.transactions.begin(name), b"1", tp)
    bench.log.partition(A).set_uploaded(0, 1, True)
    bench.log.uploads.update({A: bench.log.roster.logs[A].upload})  # type: ignore[dict-item]  # set just now
    bench.log.partition(STATE).truncate_to(0)
    bench.kill()
    bench.open()
    assert bench.stuck() == [A]


def test_a_deletion_of_the_state_log_is_an_error_with_a_name_and_lets_the_log_close(bench: TxnBench) -> None:
    write(bench.log, bench.log.transactions.begin("x"), b"1", A)
    bench.log.delete_topic("__transaction_state")
    bench.log.close()
    bench.open()
    assert bench.stuck() == []
    bench.transact("x", b"2")
    assert bench.committed(A) == [b"2"]


def decided_over_two(paths: list[Path]) -> dict[Path, TopicPartition]:
    """A commit that was decided and not marked, over topics of one partition each; by directory."""
    logs = LocalTier.open(paths, clock=FakeClock(), ids=SeededIds(3), config=SETTINGS)
    for name in ("one", "two", "three"):
        logs.create_topic(name)
    tps = [TopicPartition(name, 0) for name in ("one", "two", "three")]
    producer = logs.transactions.begin("x")
    write(logs, producer, b"1", *tps)
    where = {logs.directory_of(tp): tp for tp in tps}
    home = logs.directory_of(STATE)
    logs.transactions._finish = lambda *_: None  # type: ignore[method-assign]  # stopped after the decision
    logs.transactions.end(producer, commit=True)
    logs.transactions.close = lambda _: False  # type: ignore[method-assign]  # settles nothing
    logs.close()
    return dict(sorted(where.items(), key=lambda item: item[0] != home))


@pytest.mark.parametrize("alone", [True, False], ids=["opened alone", "the other one cannot be opened"])
def test_a_directory_that_is_not_there_is_owed_its_markers(tmp_path: Path, alone: bool) -> None:
    paths = [tmp_path / "a", tmp_path / "b"]
    (home, _), (other, tp) = decided_over_two(paths).items()
    shutil.move(other, tmp_path / "away")
    if alone:
        with LocalLog.open(home, clock=FakeClock(), ids=SeededIds(4), config=SETTINGS) as log:
            assert log.transactions.describe()["x"].state is TxnState.PREPARE_COMMIT
    else:
        other.write_bytes(b"")  # no directory: it cannot be opened
        with LocalTier.open(paths, clock=FakeClock(), ids=SeededIds(4), config=SETTINGS) as logs:
            assert list(logs.offline) == [other]
            assert logs.transactions.describe()["x"].state is TxnState.PREPARE_COMMIT
        other.unlink()
    shutil.move(tmp_path / "away", other)
    with LocalTier.open(paths, clock=FakeClock(), ids=SeededIds(5), config=SETTINGS) as logs:
        assert logs.transactions.describe()["x"].state is TxnState.COMPLETE_COMMIT
        partition = logs.partition(tp)
        assert (partition.open_txns(), partition.aborted_txns(0, 9), partition.last_stable_offset()) == ([], [], 2)


def test_a_fork_neither_waits_for_locks_nor_ends_what_its_parent_began(bench: TxnBench) -> None:
    producer = bench.log.transactions.begin("x")
    write(bench.log, producer, b"1", A)
    with bench.log.transactions._held("x"):
        child = os.fork()
        if child == 0:  # the lock is held here for ever
            try:
                bench.log.transactions.begin("x")
            except ForkedLogError:
                os._exit(0 if bench.log.transactions.close(5.0) is False else 2)
            os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
    bench.log.transactions.end(producer, commit=True)
    assert bench.committed(A) == [b"1"]


def test_close_waits_for_who_is_at_work_but_not_for_ever(bench: TxnBench) -> None:
    write(bench.log, bench.log.transactions.begin("x"), b"1", A)
    held, closed = threading.Event(), threading.Event()

    def hold() -> None:
        with bench.log.transactions._held("another"):
            held.set()
            closed.wait()

    other = threading.Thread(target=hold)
    other.start()
    try:
        held.wait()
        assert bench.log.transactions.close(0.01) is False
    finally:
        closed.set()
        other.join()
    bench.log.close()
    bench.open()
    assert bench.stuck() == []


def test_who_only_reads_waits_where_an_abort_is_not_in_its_index_yet(bench: TxnBench) -> None:
    """The marker is written first: to read on would show what was aborted."""
    bench.transact("x", b"0", commit=False, at=(A,))
    bench.transact("x", b"1", at=(A,))
    producer = bench.log.transactions.begin("x")
    write(bench.log, producer, b"2", A)
    bench.files.fail = lambda name, path: errno.EIO if name == "write" and path.suffix == ".txnindex" else 0
    with pytest.raises(MarkersPendingError):
        bench.log.transactions.end(producer, commit=False)
    bench.kill()
    with LogView.open(bench.directory) as reader:
        partition = reader.partition(A)
        assert (partition.positions().end_offset, partition.last_stable_offset()) == (6, 4)
        assert [txn.first_offset for txn in partition.open_txns()] == [4]
    bench.files.fail = None
    bench.open()
    bench.log.close()
    with LogView.open(bench.directory) as reader:
        partition = reader.partition(A)
        assert partition.last_stable_offset() == partition.positions().end_offset
        assert [txn.first_offset for txn in partition.aborted_txns(0, 9)] == [0, 4]


@pytest.mark.parametrize("first", ["a", "b"])
def test_a_directory_alone_makes_no_second_state_log_and_forgets_nothing_that_is_open(
    tmp_path: Path, first: str
) -> None:
    """A power cut took the whole state log; the directory that has none is opened alone, closed, then both are."""
    paths = [tmp_path / "a", tmp_path / "b"]
    (home, kept), (other, tp) = decided_over_two(paths if first == "a" else paths[::-1]).items()
    for path in (home / "__transaction_state-0").iterdir():
        if path.suffix in {".log", ".snapshot"}:
            path.write_bytes(b"")
        elif path.suffix == ".seal":
            path.unlink()
    points = OffsetsFile(home, RECOVERY_POINT_NAME, PosixFiles())
    points.write({each: point for each, point in points.read().items() if each != STATE})  # nor was it noted as safe
    with LocalLog.open(other, clock=FakeClock(), ids=SeededIds(4), config=SETTINGS) as alone:
        assert "__transaction_state" not in alone.topics()
        with pytest.raises(ConfigError, match="open all directories"):
            alone.transactions.begin("y")
    with LocalTier.open(paths, clock=FakeClock(), ids=SeededIds(5), config=SETTINGS) as logs:
        assert [logs.partition(each).open_txns() for each in (kept, tp)] == [[], []]
