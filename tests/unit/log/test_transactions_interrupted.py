"""Ctrl-C in a transaction, topics that are made again under it, timeouts that are out of range."""

from __future__ import annotations

from pathlib import Path

import pytest

import tiered
from tiered.clock import SystemClock
from tiered.errors import ConfigError, InvalidTxnStateError, ProducerFencedError
from tiered.local.partition.write_log import WriteLog
from tiered.local.transactions.coordinator import Transactions
from tiered.log import Log
from tiered.model import RecordMetadata
from tiered.plan.transactions import DEFAULT_TIMEOUT_MS


@pytest.fixture
def log(tmp_path: Path) -> Log:
    log = tiered.open(tmp_path / "log")
    log.topic("t", create=True)
    return log


def committed(log: Log) -> list[bytes | None]:
    return [record.value for record in log.topic("t").read(isolation="read_committed")]


def test_an_append_that_was_interrupted_after_it_wrote_is_not_mistaken_for_the_next(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one would have the same sequence: the partition would answer it as a repetition, and drop it."""
    append = WriteLog.append_as_producer

    def interrupted(self: WriteLog, *args: object) -> RecordMetadata:
        append(self, *args)  # type: ignore[arg-type]  # as they came
        raise KeyboardInterrupt

    with log:
        txn = log.topic("t").transaction("x").__enter__()
        monkeypatch.setattr(WriteLog, "append_as_producer", interrupted)
        with pytest.raises(KeyboardInterrupt):
            txn.append(b"1")
        monkeypatch.undo()
        with pytest.raises(InvalidTxnStateError, match="interrupted"):
            txn.append(b"2")
        with pytest.raises(InvalidTxnStateError, match="can only be aborted"):
            txn.__exit__(None, None, None)
        assert txn.state == "aborted"
        with log.topic("t").transaction("x") as txn:
            txn.append(b"3")
        assert committed(log) == [b"3"]


@pytest.mark.parametrize("step", ["_decide", "_finish", "_complete"])
def test_a_commit_that_was_interrupted_is_neither_called_aborted_nor_half_done(
    log: Log, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    original = getattr(Transactions, step)

    def interrupted(self: Transactions, *args: object) -> None:
        if step != "_finish":
            original(self, *args)
        raise KeyboardInterrupt

    with log:
        txn = log.topic("t").transaction("x")
        txn.append(b"1")
        monkeypatch.setattr(Transactions, step, interrupted)
        with pytest.raises(KeyboardInterrupt):
            txn.commit()
        monkeypatch.undo()
        assert txn.state == "unknown"
        with pytest.raises(InvalidTxnStateError, match="its state is 'unknown'"):
            txn.commit()
        with log.topic("t").transaction("x") as txn:
            txn.append(b"2")
        assert committed(log) == [b"1", b"2"]


def test_a_transaction_that_was_ended_does_not_begin_again_in_a_topic_that_was_made_anew(log: Log) -> None:
    with log:
        txn = log.transaction("x")
        txn.append(b"1", topic="t")
        log._local.transactions.tick(SystemClock().now_ms() + 2 * DEFAULT_TIMEOUT_MS)
        log.delete_topic("t")
        partition = log.topic("t", create=True).log(0)
        with pytest.raises(ProducerFencedError):
            txn.append(b"2", topic="t")
        assert (partition.open_txns(), partition.positions().end_offset) == ([], 0)


def test_records_of_many_partitions_join_with_one_record(log: Log) -> None:
    with log:
        many = log.topic("many", partitions=50, create=True)
        with many.transaction("x") as txn:
            txn.append_many([(b"v", b"%d" % i) for i in range(500)])
        state = log._local.partition(tiered.TopicPartition("__transaction_state", 0))
        assert state.positions().end_offset == 4  # EMPTY, ONGOING, PREPARE_COMMIT, COMPLETE_COMMIT
        assert len(list(many.read(isolation="read_committed"))) == 500


def test_the_state_log_is_not_deleted_under_its_transactions(log: Log) -> None:
    with log:
        with log.topic("t").transaction("x") as txn:
            txn.append(b"1")
            with pytest.raises(ConfigError, match="internal"):
                log.delete_topic("__transaction_state")
        assert committed(log) == [b"1"]
