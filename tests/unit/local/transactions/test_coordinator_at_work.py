"""The coordinator on a real directory: what it writes, whom it fences, what it settles after a stop."""

from __future__ import annotations

import dataclasses
import struct
from pathlib import Path

import pytest

from tests.unit.local.transactions.bench import STATE, A, B, C, TxnBench
from tiered.errors import (
    ClosedError,
    CorruptionError,
    MarkersPendingError,
    ProducerFencedError,
)
from tiered.format.batch import decode_records, read_header
from tiered.format.coordinator_records import TxnState, decode_transaction, decode_transaction_key
from tiered.local.directory.log_directory import LocalLog
from tiered.local.directory.multi_directory_log import LocalTier
from tiered.local.transactions.state_log import PRODUCER_IDS_NAME
from tiered.model import NewRecord, TopicPartition
from tiered.plan.producer import ProducerStamp


@pytest.fixture
def bench(tmp_path: Path) -> TxnBench:
    return TxnBench(tmp_path / "log")


def begun(bench: TxnBench, name: str, *at: TopicPartition) -> ProducerStamp:
    producer = bench.log.transactions.begin(name)
    stamp = ProducerStamp(producer.producer_id, producer.producer_epoch, 0)
    for tp in at:
        bench.log.transactions.join(producer, [tp])
        bench.log.partition(tp).append_as_producer([NewRecord(b"open")], stamp)
    return stamp


def test_nothing_is_made_before_the_first_transaction(bench: TxnBench) -> None:
    assert bench.log.transactions.describe() == {}
    bench.log.transactions.tick(0)
    bench.log.close()
    names = {path.name for path in bench.directory.iterdir()}
    assert not names & {PRODUCER_IDS_NAME, "__transaction_state-0"}


def test_the_state_log_holds_what_a_brokers_would(bench: TxnBench) -> None:
    bench.transact("x", b"1")
    records = [r for batch in bench.log.partition(STATE).read_batches(0) for r in decode_records(batch)]
    assert {decode_transaction_key(r.key or b"") for r in records} == {"x"}
    values = [decode_transaction(r.value or b"") for r in records]
    assert [v.state for v in values] == [
        TxnState.EMPTY,
        TxnState.ONGOING,
        TxnState.ONGOING,
        TxnState.PREPARE_COMMIT,
        TxnState.COMPLETE_COMMIT,
    ]
    assert [v.partitions for v in values] == [None, (A,), (A, B), (A, B), ()]
    assert [v.producer_epoch for v in values] == [0, 0, 0, 1, 1]
    assert bench.log.topics()["__transaction_state"].config.cleanup_policy == "compact"


def test_markers_carry_the_raised_epoch_and_the_leader_epoch_of_the_state_log(bench: TxnBench) -> None:
    """Only a broker raises the latter: it would take its own markers for those of a zombie if we did."""
    for number in (1, 2):
        bench.transact("x", b"%d" % number, at=(A,))
        bench.log.close()
        bench.open()
    bench.log.partition(STATE).new_leader_epoch(4)
    bench.log.close()
    bench.open()
    bench.transact("x", b"3", at=(A,))
    markers = [
        (read_header(batch).producer_epoch, record.value)
        for batch in bench.log.partition(A).read_batches(0)
        if read_header(batch).is_control
        for record in decode_records(batch)
    ]
    assert markers == [(number, struct.pack(">hi", 0, epoch)) for number, epoch in ((1, 0), (2, 0), (3, 4))]
    assert [entry.epoch for entry in bench.log.partition(STATE).leader_epochs()] == [0, 4]


def test_a_second_transaction_of_the_id_aborts_and_fences_the_first(bench: TxnBench) -> None:
    first = bench.log.transactions.begin("x")
    begun(bench, "y", A)
    bench.log.transactions.join(first, [A])
    stamp = ProducerStamp(first.producer_id, first.producer_epoch, 0)
    bench.log.partition(A).append_as_producer([NewRecord(b"lost")], stamp)
    second = bench.log.transactions.begin("x")
    assert second.producer_epoch == first.producer_epoch + 1
    with pytest.raises(ProducerFencedError, match="taken this transactional id over"):
        bench.log.transactions.join(first, [B])
    with pytest.raises(ProducerFencedError):
        bench.log.partition(A).append_as_producer([NewRecord(b"late")], stamp._replace(base_sequence=1))
    with pytest.raises(ProducerFencedError):
        bench.log.transactions.end(first, commit=True)


def test_two_that_wrote_nothing_do_not_share_an_epoch(bench: TxnBench) -> None:
    first = bench.log.transactions.begin("x")
    second = bench.log.transactions.begin("x")
    assert second.producer_epoch == first.producer_epoch + 1
    with pytest.raises(ProducerFencedError):
        bench.log.transactions.join(first, [A])
    bench.log.transactions.end(second, commit=True)
    assert bench.states() == {"x": "EMPTY"}


def test_epochs_that_are_used_up_give_way_to_a_new_producer(bench: TxnBench) -> None:
    bench.transact("x", b"1", at=(A,))
    coordinator = bench.log.transactions._coordinator
    assert coordinator is not None
    value = coordinator.find("x")
    assert value is not None
    coordinator._txns["x"] = dataclasses.replace(value, producer_epoch=2**15 - 3)
    for i in range(4):
        bench.transact("x", b"%d" % (2 + i), at=(A,))
    after = coordinator.find("x")
    assert after is not None
    assert after.producer_id == value.producer_id + 1
    assert after.previous_producer_id == value.producer_id
    assert bench.committed(A) == [b"1", b"2", b"3", b"4", b"5"]
    assert bench.stuck() == []


def test_a_timeout_aborts(bench: TxnBench) -> None:
    producer = bench.log.transactions.begin("x", timeout_ms=5000)
    bench.log.transactions.join(producer, [A])
    bench.log.partition(A).append_as_producer([NewRecord(b"slow")], ProducerStamp(*producer[1:], 0))
    bench.clock.advance(5.0)
    bench.log.tick()
    assert bench.stuck() == [A]
    bench.clock.advance(0.001)
    bench.log.tick()
    assert (bench.stuck(), bench.states()) == ([], {"x": "COMPLETE_ABORT"})
    with pytest.raises(ProducerFencedError, match="its timeout"):
        bench.log.transactions.end(producer, commit=True)


def test_an_id_that_nobody_uses_is_forgotten(bench: TxnBench) -> None:
    bench.transact("x", b"1")
    bench.clock.advance(7 * 86_400)
    bench.log.tick()
    assert bench.states() == {}
    bench.log.close()
    bench.open()
    assert bench.states() == {}
    bench.transact("x", b"2")
    assert bench.committed(A) == [b"1", b"2"]


def test_close_aborts_what_is_open_and_refuses_what_comes(bench: TxnBench) -> None:
    begun(bench, "x", A, B)
    transactions = bench.log.transactions
    bench.log.close()
    with pytest.raises(ClosedError):
        transactions.begin("y")
    bench.open()
    assert (bench.stuck(), bench.states(), bench.committed(A)) == ([], {"x": "COMPLETE_ABORT"}, [])


def test_transactions_of_others_are_left_alone(bench: TxnBench) -> None:
    """A producer whose coordinator is elsewhere: its marker will come from there."""
    bench.transact("x", b"1")
    bench.log.partition(A).append_as_producer([NewRecord(b"theirs")], ProducerStamp(5, 0, 0))
    bench.kill()
    bench.open()
    assert [txn.producer_id for txn in bench.log.partition(A).open_txns()] == [5]


def test_a_topic_that_is_gone_owes_no_marker(bench: TxnBench) -> None:
    begun(bench, "x", A, C)
    bench.log.delete_topic("ledger")
    bench.kill()
    bench.open()
    assert bench.states() == {"x": "COMPLETE_ABORT"}
    bench.transact("x", b"1")


def test_a_state_log_that_cannot_be_read_keeps_no_log_from_opening(bench: TxnBench) -> None:
    bench.transact("x", b"1")
    begun(bench, "x", A)
    bench.log.partition(STATE).roll()
    bench.kill()
    path = bench.directory / "__transaction_state-0" / f"{0:020d}.log"
    data = bytearray(path.read_bytes())
    data[80] ^= 0xFF
    path.write_bytes(bytes(data))
    bench.open()
    assert bench.committed(A) == [b"1"]
    with pytest.raises(CorruptionError, match="__transaction_state"):
        bench.log.transactions.begin("x")


def test_a_file_of_ids_that_cannot_be_read_says_what_to_do(bench: TxnBench) -> None:
    bench.transact("x", b"1")
    bench.kill()
    (bench.directory / PRODUCER_IDS_NAME).write_text("{}")
    with pytest.raises(CorruptionError, match="remove that file"):
        bench.open()


def test_two_volumes_do_not_share_ids(tmp_path: Path) -> None:
    first, second = TxnBench(tmp_path / "a"), TxnBench(tmp_path / "b")
    second.ids.random()
    second.log.transactions._ids._ids = second.ids
    ids = {bench.log.transactions.begin("x").producer_id >> 32 for bench in (first, second)}
    assert len(ids) == 2
    assert min(ids) >= 1
    assert max(ids) < 2**31


def test_ids_are_never_given_twice_after_a_kill(bench: TxnBench) -> None:
    before = bench.log.transactions.begin("x").producer_id
    bench.log.partition(STATE).truncate_to(0)
    bench.kill()
    bench.open()
    assert bench.log.transactions.begin("x").producer_id == before + 1000


def test_a_transaction_over_two_directories(tmp_path: Path) -> None:
    paths = [tmp_path / "one", tmp_path / "two"]
    with LocalTier.open(paths) as logs:
        logs.create_topic("t", 4)
        tps = [TopicPartition("t", p) for p in range(4)]
        producer = logs.transactions.begin("x")
        logs.transactions.join(producer, tps)
        for tp in tps:
            logs.partition(tp).append_as_producer([NewRecord(b"v")], ProducerStamp(*producer[1:], 0))
        logs.transactions.end(producer, commit=True)
        assert {logs.directory_of(tp) for tp in tps} == set(paths)
        open_one = logs.transactions.begin("y")
        logs.transactions.join(open_one, tps)
        for tp in tps:
            logs.partition(tp).append_as_producer([NewRecord(b"w")], ProducerStamp(*open_one[1:], 0))
    for path in paths:
        (path / ".kafka_cleanshutdown").unlink()
    with LocalTier.open(paths) as logs:
        assert [logs.partition(tp).open_txns() for tp in tps] == [[]] * 4
        assert [len(logs.partition(tp).aborted_txns(0, 10)) for tp in tps] == [1] * 4


def test_one_directory_alone_keeps_what_the_other_is_owed(tmp_path: Path) -> None:
    paths = [tmp_path / "one", tmp_path / "two"]
    logs = LocalTier.open(paths)
    logs.create_topic("t", 2)
    tps = [TopicPartition("t", 0), TopicPartition("t", 1)]
    producer = logs.transactions.begin("x")
    logs.transactions.join(producer, tps)
    for tp in tps:
        logs.partition(tp).append_as_producer([NewRecord(b"v")], ProducerStamp(*producer[1:], 0))
    home = logs.directory_of(STATE)
    logs.transactions.close = lambda _: True  # type: ignore[method-assign]  # a stop that settles nothing
    logs.close()
    for path in paths:
        (path / ".kafka_cleanshutdown").unlink()
    with LocalLog.open(home) as alone:
        assert alone.transactions.describe()["x"].state is TxnState.PREPARE_ABORT
        with pytest.raises(MarkersPendingError, match="no partition t-"):
            alone.transactions.begin("x")
    with LocalTier.open(paths) as again:
        assert again.transactions.describe()["x"].state is TxnState.COMPLETE_ABORT
        assert [again.partition(tp).open_txns() for tp in tps] == [[], []]
