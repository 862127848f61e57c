"""``with topic.transaction(id)``: over partitions and topics, over both tiers, sync and asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from pathlib import Path

import pytest

import tiered
from tests.support.admin import restore
from tiered import aio
from tiered.errors import (
    ClosedError,
    ConfigError,
    InvalidRecordError,
    InvalidTxnStateError,
    ProducerFencedError,
    UnknownTopicError,
)
from tiered.log import Log
from tiered.model import NewRecord, TopicPartition
from tiered.plan.producer import ProducerStamp
from tiered.store.location import open_store

STATE = "__transaction_state"


def committed(log: Log, topic: str) -> list[bytes | None]:
    return sorted(record.value or b"" for record in log.topic(topic).read(isolation="read_committed"))


def all_of(log: Log, topic: str) -> list[bytes | None]:
    return sorted(record.value or b"" for record in log.topic(topic).read())


@pytest.fixture
def log(tmp_path: Path) -> Log:
    log = tiered.open(tmp_path / "log")
    log.topic("orders", partitions=3, create=True)
    log.topic("ledger", create=True)
    return log


def test_all_of_it_is_visible_at_the_end_of_the_block(log: Log) -> None:
    with log:
        orders = log.topic("orders")
        with orders.transaction("billing") as txn:
            first = txn.append(b"1", key=b"k", partition=0, headers=[("h", b"v")], timestamp=5)
            many = txn.append_many([(b"2", None), NewRecord(b"3", b"k")], partition=2)
            other = txn.append(b"4", topic="ledger")
            assert (first.offset, first.timestamp) == (0, 5)
            assert [(md.partition, md.offset, md.end_offset) for md in many] == [(2, 0, 2)]
            assert (other.topic, other.offset) == ("ledger", 0)
            assert txn.state == "open"
            assert (all_of(log, "orders"), committed(log, "orders")) == ([b"1", b"2", b"3"], [])
        assert repr(txn) == "<Transaction 'billing' committed partitions=3>"
        assert (committed(log, "orders"), committed(log, "ledger")) == ([b"1", b"2", b"3"], [b"4"])


def test_an_error_in_the_block_aborts_and_is_not_hidden(log: Log) -> None:
    with log:
        txn = log.transaction("x")
        with pytest.raises(ZeroDivisionError), txn:
            1 // len(repr(txn.append(b"1", topic="orders"))[:0])
        assert txn.state == "aborted"
        assert (all_of(log, "orders"), committed(log, "orders")) == ([b"1"], [])


def test_commit_and_abort_can_be_said_in_the_block(log: Log) -> None:
    with log:
        with log.topic("ledger").transaction("x") as txn:
            txn.append(b"1")
            txn.abort()
            txn.abort()
            with pytest.raises(InvalidTxnStateError, match="its state is 'aborted'"):
                txn.append(b"2")
        with log.topic("ledger").transaction("x") as txn:
            txn.append(b"3")
            txn.commit()
            with pytest.raises(InvalidTxnStateError, match="its state is 'committed'"):
                txn.commit()
        assert committed(log, "ledger") == [b"3"]


def test_a_refused_record_leaves_the_transaction_as_it_was(log: Log) -> None:
    with log:
        compacted = log.topic("c", create=True, config={"cleanup.policy": "compact"})
        with compacted.transaction("x") as txn:
            txn.append(b"1", key=b"k")
            with pytest.raises(InvalidRecordError, match="no key") as caught:
                txn.append_many([NewRecord(b"2", b"k"), NewRecord(b"3")])
            assert caught.value.index == 1
            with pytest.raises(UnknownTopicError):
                txn.append(b"4", topic="nowhere")
            with pytest.raises(UnknownTopicError, match="partition 9"):
                txn.append(b"4", key=b"k", partition=9)
            txn.append(b"5", key=b"k")
        assert committed(log, "c") == [b"1", b"5"]


def test_the_second_of_an_id_fences_the_first(log: Log) -> None:
    with log:
        first = log.topic("ledger").transaction("x")
        first.append(b"1")
        with log.topic("ledger").transaction("x") as second:
            second.append(b"2")
            with pytest.raises(ProducerFencedError):
                first.append(b"3")
            with pytest.raises(InvalidTxnStateError, match="can only be aborted"):
                first.commit()
        with pytest.raises(ProducerFencedError):
            first.abort()
        assert committed(log, "ledger") == [b"2"]


def test_many_threads_each_with_an_id(log: Log) -> None:
    """Each transaction writes a pair into two topics; readers never see one without the other, once it is decided."""
    failures: list[BaseException] = []

    def work(name: str) -> None:
        try:
            for i in range(10):
                with log.transaction(name) as txn:
                    txn.append(f"{name} {i}".encode(), topic="orders", partition=0)
                    txn.append(f"{name} {i}".encode(), topic="ledger")
                    if i % 3 == 2:
                        txn.abort()
        except BaseException as error:
            failures.append(error)
            raise

    with log:
        threads = [threading.Thread(target=work, args=(f"t{n}",)) for n in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        wanted = sorted(f"t{n} {i}".encode() for n in range(6) for i in range(10) if i % 3 != 2)
        assert committed(log, "orders") == committed(log, "ledger") == wanted


def test_no_topic_a_wrong_durability_and_the_internal_topic_are_refused(log: Log) -> None:
    with log:
        with log.transaction("x") as txn, pytest.raises(ConfigError, match="no topic"):
            txn.append(b"1")
        with pytest.raises(ConfigError, match="on disk"):
            log.transaction("x", durability="memory")
        with pytest.raises(ConfigError, match="timeout"):
            log.transaction("x", timeout=0)
        with pytest.raises(ConfigError, match="only transactions and groups append"):
            log.topic(STATE).append(b"v", key=b"k")
        with log.transaction("x") as txn, pytest.raises(ConfigError, match="only transactions and groups append"):
            txn.append(b"v", key=b"k", topic=STATE)
        assert all_of(log, STATE) != []


def test_a_closed_log_has_aborted_it(log: Log) -> None:
    txn = log.topic("ledger").transaction("x")
    txn.append(b"1")
    log.close()
    with pytest.raises(ClosedError):
        txn.commit()
    with tiered.open(log.directory) as again:
        assert (all_of(again, "ledger"), committed(again, "ledger")) == ([b"1"], [])


def test_both_tiers_and_a_lost_disk(tmp_path: Path) -> None:
    url = f"file://{tmp_path / 'store'}"
    with tiered.open(tmp_path / "log", url) as log:
        orders = log.topic("orders", partitions=2, create=True, config={"local.retention.bytes": 0})
        for i in range(6):
            with orders.transaction("x", durability="disk") as txn:
                txn.append(b"%d" % i, partition=i % 2)
                if i % 3 == 2:
                    txn.abort()
        log.sync(timeout=60)
        assert committed(log, "orders") == [b"0", b"1", b"3", b"4"]
        assert STATE in log.topics()
    with tiered.open_reader(url) as reader:
        values = sorted(r.value or b"" for r in reader.topic("orders").read(isolation="read_committed"))
        assert values == [b"0", b"1", b"3", b"4"]
        assert STATE not in reader.topics(), "it is of one disk"
    with tiered.open(tmp_path / "fresh", url) as log:
        with log.topic("orders").transaction("x") as txn:
            txn.append(b"6", partition=0)
        assert committed(log, "orders") == [b"0", b"1", b"3", b"4", b"6"]


def test_a_transaction_may_wait_for_the_bucket(tmp_path: Path) -> None:
    url = f"file://{tmp_path / 'store'}"
    with tiered.open(tmp_path / "log", url) as log:
        orders = log.topic("orders", create=True, config={"seal.ms": 1})
        with orders.transaction("x", durability="remote") as txn:
            txn.append(b"v")
        assert orders.positions(0).uploaded_offset == 2, "the record and its marker"


def interrupted(tmp_path: Path, url: str, *, kafka: bool = False) -> None:
    """A log whose bucket ends inside a transaction that its disk, now lost, knew to be committed."""
    with tiered.open(tmp_path / "lost", url) as log:
        orders = log.topic("orders", create=True)
        orders.append(b"plain")
        with orders.transaction("a") as txn:
            txn.append(b"whole")
        txn = orders.transaction("b")
        txn.append(b"half")
        orders.append(b"after")
        if kafka:
            orders.log(0).append_as_producer([NewRecord(b"of a Kafka cluster")], ProducerStamp(5, 0, 0))
        log.sync(timeout=60)
        txn.append(b"other half")
        txn.commit()


def test_a_fresh_volume_aborts_what_the_lost_one_left_open(tmp_path: Path) -> None:
    url = f"file://{tmp_path / 'store'}"
    interrupted(tmp_path, url)
    with tiered.open_reader(url) as reader:
        assert [r.value for r in reader.topic("orders").read(isolation="read_committed")] == [b"plain", b"whole"]
    with tiered.open(tmp_path / "fresh", url) as log:
        assert log.topic("orders").log(0).open_txns() == []
        assert committed(log, "orders") == [b"after", b"plain", b"whole"]
        with log.topic("orders").transaction("b") as txn:
            txn.append(b"again")
        log.sync(timeout=60)
    with tiered.open_reader(url) as reader:
        values = [r.value for r in reader.topic("orders").read(isolation="read_committed")]
        assert values == [b"plain", b"whole", b"after", b"again"]


def test_so_does_a_restored_one_and_spares_those_of_others(tmp_path: Path) -> None:
    url = f"file://{tmp_path / 'store'}"
    interrupted(tmp_path, url, kafka=True)
    with contextlib.closing(open_store(url)) as store:
        restore(store, tmp_path / "restored")
    with tiered.open(tmp_path / "restored", url) as log:
        partition = log.topic("orders").log(0)
        assert [txn.producer_id for txn in partition.open_txns()] == [5]
        assert committed(log, "orders") == [b"after", b"plain", b"whole"]


def test_one_that_runs_is_no_orphan(tmp_path: Path) -> None:
    with tiered.open(tmp_path / "log", f"file://{tmp_path / 'store'}") as log:
        orders = log.topic("orders", create=True)
        with orders.transaction("a") as txn:
            txn.append(b"1")
            tp = TopicPartition("orders", 0)
            assert log._local.transactions.abort_orphans(tp) == 0
        assert committed(log, "orders") == [b"1"]


def test_several_directories(tmp_path: Path) -> None:
    paths = [tmp_path / "one", tmp_path / "two"]
    with tiered.open(paths) as log:
        orders = log.topic("orders", partitions=4, create=True)
        with orders.transaction("x") as txn:
            for p in range(4):
                txn.append(b"%d" % p, partition=p)
        assert committed(log, "orders") == [b"0", b"1", b"2", b"3"]


def test_asyncio(tmp_path: Path) -> None:
    async def run() -> tuple[list[bytes | None], str, str]:
        async with aio.open(tmp_path / "log") as log:
            orders = await log.topic("orders", create=True)
            async with orders.transaction("x") as kept:
                await kept.append(b"1")
                await kept.append_many([b"2", b"3"])
            lost = None
            try:
                async with log.transaction("x") as lost:
                    await lost.append(b"4", topic="orders")
                    raise KeyError
            except KeyError:
                pass
            explicit = await orders.transaction("y")
            await explicit.append(b"5")
            await explicit.commit()
            values = [record.value async for record in orders.read(isolation="read_committed")]
            assert lost is not None
            return values, kept.state, lost.state

    assert asyncio.run(run()) == ([b"1", b"2", b"3", b"5"], "committed", "aborted")


def test_a_log_without_a_bucket_waits_for_none(log: Log) -> None:
    with log:
        orders = log.topic("orders")
        for append in (orders.append, lambda value, durability: orders.append_many([value], durability=durability)):
            with pytest.raises(ConfigError, match="no remote to wait for"):
                append(b"v", durability="remote")
        with pytest.raises(ConfigError, match="no remote to wait for"):
            orders.append_batches(b"", durability="remote")
        with pytest.raises(ConfigError, match="no remote to wait for"):
            orders.transaction("x", durability="remote")
        assert all_of(log, "orders") == []


@pytest.mark.parametrize("timeout", [0, 901])
def test_a_refused_timeout_leaves_no_state_log(tmp_path: Path, timeout: float) -> None:
    with tiered.open(tmp_path / "log") as log:
        with pytest.raises(ConfigError, match=r"is not in 1\.\.900000"):
            log.transaction("x", timeout=timeout)
        assert list(log.topics()) == []
    assert not (tmp_path / "log" / f"{STATE}-0").exists()
