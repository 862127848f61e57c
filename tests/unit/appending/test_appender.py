"""The buffered appender: what it writes is what single appends write, when it leaves, and what becomes of failures.

``Held`` threads never run: a test writes by ``flush``, by ``close`` or by ``_write_due`` at a time of its own.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tiered
from tiered.appending.appender import MAX_BLOCK_MS, RECORD_OVERHEAD_BYTES, Appender, AppenderLimits
from tiered.appending.thread import IDLE_SECONDS, AppenderThread
from tiered.errors import (
    AppendHaltedError,
    AppendTimeoutError,
    ClosedError,
    ConfigError,
    DiskFullError,
    ForkedLogError,
    InvalidRecordError,
    RecordTooLargeError,
    TieredError,
    UnknownTopicError,
)
from tiered.format import kernels
from tiered.local.directory.tasks import ThreadWorkers
from tiered.local.partition.write_log import WriteLog
from tiered.model import NewRecord, PackedBatch, RecordMetadata
from tiered.testing.clock import FakeClock, SeededIds

WAIT_S = 60.0
"""Longer than any test waits for a thread that works."""


class Held:
    """Workers that do not work; ``begun`` is what they were given."""

    def __init__(self, error: Exception | None = None) -> None:
        self.begun: list[Callable[[], None]] = []
        self._error = error

    def start(self, name: str, work: Callable[[], None]) -> None:
        assert name == "appender"
        if self._error is not None:
            raise self._error
        self.begun.append(work)

    def join(self, timeout_seconds: float) -> bool:
        del timeout_seconds
        return True


class Failing:
    """A partition that raises what its test says, once each; everything else is the partition's own."""

    def __init__(self, log: WriteLog) -> None:
        self._log = log
        self.errors: list[BaseException | None] = []
        self.flush_error: TieredError | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    def append(self, records: Sequence[NewRecord]) -> RecordMetadata:
        self._raise_next()
        return self._log.append(records)

    def append_packed(self, batch: PackedBatch) -> RecordMetadata | None:
        self._raise_next()
        return self._log.append_packed(batch)

    def _raise_next(self) -> None:
        error = self.errors.pop(0) if self.errors else None
        if error is not None:
            raise error

    def flush(self) -> None:
        if self.flush_error is not None:
            raise self.flush_error
        self._log.flush()


class Bench:
    """An appender over a log whose thread is held."""

    def __init__(self, log: tiered.Log, **topic: Any) -> None:
        self.log = log
        self.clock = FakeClock()
        self.workers = Held()
        self.thread = AppenderThread(self.clock, self.workers)
        self.topic = log.topic("t", create=True, **topic)
        self.failing = [Failing(each) for each in self.topic._logs]  # type: ignore[arg-type]  # none is out of service
        self.topic._logs = self.failing  # type: ignore[assignment]  # they have all that a partition has

    def appender(self, **limits: Any) -> Appender:
        return Appender(self.topic, self.thread, AppenderLimits(**limits))

    def values(self, partition: int = 0) -> list[bytes | None]:
        return [record.value for record in self.topic.read(partition)]


@pytest.fixture
def log(tmp_path: Path) -> Iterator[tiered.Log]:
    with tiered.open(tmp_path / "log", ids=SeededIds(1)) as log:  # Hypothesis watches the global randomness
        yield log


@pytest.fixture
def bench(log: tiered.Log) -> Bench:
    return Bench(log, partitions=2)


# -- what is written ---------------------------------------------------------------------------------------------------

BYTES = st.none() | st.binary(max_size=40) | st.binary(max_size=40).map(bytearray)
HEADERS = st.none() | st.lists(st.tuples(st.text(max_size=5), BYTES), max_size=2)
TIMES = st.integers(1_600_000_000_000, 1_600_000_000_010) | st.just(1)  # 1: earlier than the topic takes
SPECS = st.tuples(BYTES, BYTES, TIMES, HEADERS, st.sampled_from([None, 0, 1]))
CONFIG = {"message.timestamp.before.max.ms": 400_000_000_000, "max.message.bytes": 130, "cleanup.policy": "compact"}
names = count()


def refused(error: TieredError | None) -> tuple[type[TieredError] | None, str]:
    """Kind and words of an error, without the time of the day."""
    return type(error) if error else None, error.message.split(", outside the range")[0] if error else ""


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    specs=st.lists(SPECS | st.sampled_from(["flush", "due"]), max_size=25),
    max_bytes=st.sampled_from([1, 90, 200, 400, 10_000]),
    durability=st.sampled_from(["memory", "disk"]),
)
def test_the_same_records_and_refusals_as_single_appends(
    log: tiered.Log, specs: list[Any], max_bytes: int, durability: str
) -> None:
    """Keys, values and headers of any kind; no key, a late time and a batch that is too large are refused."""
    ours, theirs = (log.topic(f"t{next(names)}", partitions=2, create=True, config=CONFIG) for _ in range(2))
    thread = AppenderThread(FakeClock(), Held())
    appender = Appender(ours, thread, AppenderLimits(max_bytes=max_bytes, durability=durability))
    receipts, expected = [], []
    for spec in specs:
        if spec == "flush":
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(appender, "_raise_failed", lambda: None)
                appender.flush()
        elif spec == "due":
            appender._write_due(1e9)
        else:
            value, key, timestamp, headers, partition = spec
            words = {"key": key, "timestamp": timestamp, "headers": headers, "partition": partition}
            if key is None and partition is None:
                words["partition"] = 0  # those without a key go by batches: another test
            receipts.append(appender.append(value, **words))
            try:
                expected.append((theirs.append(value, **words), (None, "")))
            except InvalidRecordError as error:
                expected.append((None, refused(error)))
    failed = [why for _, why in expected if why[0]]
    if failed and "flush" not in specs:
        with pytest.raises(failed[0][0]):  # type: ignore[arg-type]  # one that is an error
            appender.close()
    else:
        appender._drain()
    assert [refused(r.exception()) for r in receipts] == [why for _, why in expected]
    assert [r.result()._replace(topic="") for r in receipts if not r.exception()] == [
        md._replace(topic="") for md, _ in expected if md
    ]
    assert [(r.partition, r.offset, r.timestamp) for r in receipts if not r.exception()] == [
        (md.partition, md.offset, md.timestamp) for md, _ in expected if md
    ]
    for partition in range(2):
        found, wanted = ([r._replace(topic="") for r in topic.read(partition)] for topic in (ours, theirs))
        assert found == wanted


def test_a_record_that_is_no_record_is_refused_at_once(bench: Bench) -> None:
    appender = bench.appender()
    with pytest.raises(InvalidRecordError, match="value is str, not bytes"):
        appender.append("text")  # type: ignore[arg-type]  # the bad input
    with pytest.raises(InvalidRecordError, match="not valid Unicode"):
        appender.append(b"v", headers=[("\ud800", b"")])
    with pytest.raises(UnknownTopicError, match="no partition 2"):
        appender.append(b"v", partition=2)
    assert appender.buffered_bytes == 0
    appender.close()
    assert bench.values(0) == bench.values(1) == []


def test_a_buffer_that_its_caller_uses_again_is_not_changed_in_the_log(bench: Bench) -> None:
    appender = bench.appender()
    value, key, held = bytearray(b"value"), bytearray(b"key"), bytearray(b"held")
    headers: list[tuple[str, bytes | None]] = [("name", held), ("none", None)]  # type: ignore[list-item]  # a buffer
    appender.append(memoryview(value), key=key, headers=headers, partition=0)  # type: ignore[arg-type]  # buffers
    value[:], key[:], held[:] = b"other", b"not", b"gone"
    headers.clear()
    appender.flush()
    (record,) = bench.topic.read(0)
    assert (record.value, record.key, record.headers) == (b"value", b"key", [("name", b"held"), ("none", None)])


def test_a_record_has_the_time_at_which_it_was_appended(bench: Bench) -> None:
    appender = bench.appender()
    now_ms = bench.clock.now_ms()
    first = appender.append(b"1", partition=0)
    bench.clock.advance(0.003)
    second = appender.append(b"2", partition=0)
    bench.clock.advance(10)
    appender.flush()
    assert [first.timestamp, second.timestamp] == [now_ms, now_ms + 3]
    assert [r.timestamp for r in bench.topic.read(0)] == [now_ms, now_ms + 3]


def test_with_log_append_time_the_receipt_has_the_logs(log: tiered.Log) -> None:
    topic = log.topic("t", create=True, config={"message.timestamp.type": "LogAppendTime"})
    with topic.appender() as appender:
        receipt = appender.append(b"v", timestamp=1_600_000_000_000)
    assert receipt.timestamp == next(iter(topic.read())).timestamp != 1_600_000_000_000


def test_records_without_a_key_stay_together_for_a_batch(bench: Bench) -> None:
    size = RECORD_OVERHEAD_BYTES + 1
    appender = bench.appender(max_bytes=61 + 3 * size)
    partitions = [appender.append(b"%d" % i).partition for i in range(9)]
    assert partitions == [0, 0, 0, 1, 1, 1, 0, 0, 0]
    appender.flush()
    after = [appender.append(b"x").partition for _ in range(2)]
    assert after == [1, 1]
    appender.close()
    assert bench.values(0) == [b"0", b"1", b"2", b"6", b"7", b"8"]


# -- when it leaves ----------------------------------------------------------------------------------------------------


def test_a_batch_leaves_when_it_has_lingered(bench: Bench) -> None:
    appender = bench.appender(linger_ms=5)
    first = appender.append(b"1", partition=0)
    bench.clock.advance(0.003)
    second, other = appender.append(b"2", partition=0), appender.append(b"3", partition=1)
    assert appender._write_due(0.004) == 0.005
    assert (first.done(), first.offset, first.timestamp, appender.buffered_bytes > 0) == (False, None, None, True)
    assert appender._write_due(0.005) == 0.008
    assert (first.offset, second.offset, other.done()) == (0, 1, False)
    assert appender._write_due(0.008) is None
    assert (other.offset, appender.buffered_bytes) == (0, 0)


def test_a_batch_leaves_when_it_is_full(bench: Bench) -> None:
    size = RECORD_OVERHEAD_BYTES + 10
    appender = bench.appender(max_bytes=61 + 2 * size, linger_ms=1000)
    small = [appender.append(b"x" * 10, partition=0) for _ in range(3)]
    large = appender.append(b"x" * 500, partition=0)
    assert appender._write_due(0.0) is None  # the third left before the large one, which is a batch of its own
    assert [r.offset for r in (*small, large)] == [0, 1, 2, 3]
    assert [m.value for m in bench.thread.metrics() if m.name == "tiered_appender_batches_total"] == [3]


def test_the_thread_starts_with_the_first_record_and_ends_when_idle(log: tiered.Log) -> None:
    clock, workers = FakeClock(), ThreadWorkers()
    thread = AppenderThread(clock, workers)
    topic = log.topic("t", create=True)
    appender = Appender(topic, thread, AppenderLimits())
    assert workers.join(0.0)
    for offset in range(3):
        assert appender.append(b"v").result(None).offset == offset
        assert workers.join(WAIT_S)
    assert clock.monotonic() >= 3 * IDLE_SECONDS


def test_where_no_thread_can_be_started_the_caller_writes(log: tiered.Log) -> None:
    thread = AppenderThread(FakeClock(), Held(RuntimeError("can't start new thread at interpreter shutdown")))
    appender = Appender(log.topic("t", create=True), thread, AppenderLimits())
    assert [appender.append(b"v").offset for _ in range(2)] == [0, 1]


def test_flush_and_sync_of_topic_and_log_write_what_appenders_hold(tmp_path: Path) -> None:
    with tiered.open(tmp_path / "log", remote=f"file://{tmp_path / 'bucket'}") as log:
        topic = log.topic("t", create=True)
        appender = topic.appender(linger_ms=3_600_000)
        for offset, write in enumerate((log.flush, topic.flush, log.sync, appender.flush)):
            receipt = appender.append(b"v")
            write()
            assert receipt.offset == offset
        at = topic.positions(0)
        assert (at.uploaded_offset, at.flushed_offset, at.end_offset) == (3, 3, 4)


def test_a_receipt_promises_what_the_appender_was_told(bench: Bench) -> None:
    appender = bench.appender(durability="disk")
    receipts = [appender.append(b"v", partition=p) for p in (0, 1, 0)]
    appender._write_due(1.0)
    assert [r.offset for r in receipts] == [0, 0, 1]
    assert [bench.topic.positions(p).flushed_offset for p in (0, 1)] == [2, 1]
    memory = bench.appender()
    memory.append(b"v", partition=0)
    memory.flush()
    assert bench.topic.positions(0).flushed_offset == 2
    memory.flush(durability="disk")
    assert bench.topic.positions(0).flushed_offset == 3
    with pytest.raises(ConfigError, match="no remote to wait for"):
        memory.flush(durability="remote")


def test_flush_waits_for_the_bucket_if_it_is_asked_to(tmp_path: Path) -> None:
    with tiered.open(tmp_path / "log", remote=f"file://{tmp_path / 'bucket'}") as log:
        topic = log.topic("t", create=True, config={"seal.ms": 1})
        with topic.appender() as appender:
            appender.append(b"v")
            syncing = threading.Thread(target=lambda: log.sync(WAIT_S))
            syncing.start()
            appender.flush(durability="remote")
            assert topic.positions(0).uploaded_offset == 1
        syncing.join()


# -- how much it holds -------------------------------------------------------------------------------------------------


def test_append_waits_for_room_and_then_refuses(bench: Bench) -> None:
    size = RECORD_OVERHEAD_BYTES + 1
    appender = bench.appender(max_bytes=100, buffer_bytes=3 * size, linger_ms=1_000_000)
    held = [appender.append(b"%d" % i, partition=i % 2) for i in range(3)]
    began = bench.clock.monotonic()
    with pytest.raises(AppendTimeoutError, match="111 bytes are buffered, buffer_bytes is 111"):
        appender.append(b"no", partition=0)
    assert bench.clock.monotonic() - began == MAX_BLOCK_MS / 1000
    assert appender._write_due(0.0) is None  # what held the buffer is due by that
    assert all(each.done() for each in held)
    assert appender.append(b"x" * 500, partition=0).partition == 0  # larger than the buffer: alone in it
    appender.close()
    assert (bench.values(0), bench.values(1)) == ([b"0", b"2", b"x" * 500], [b"1"])
    assert [m.value for m in bench.thread.metrics() if m.name == "tiered_appender_waits_total"] == [1]


def test_the_buffer_is_full_also_where_no_batch_is(bench: Bench) -> None:
    appender = bench.appender(max_bytes=1000, buffer_bytes=1000)
    for partition in (0, 1):
        for _ in range(2):
            appender.append(b"x" * 200, partition=partition)
    with pytest.raises(AppendTimeoutError, match="944 bytes are buffered, buffer_bytes is 1000"):
        appender.append(b"x" * 50, partition=0)
    appender.close()


def test_append_goes_on_when_there_is_room(log: tiered.Log) -> None:
    topic = log.topic("t", create=True)
    with topic.appender(max_bytes=50, buffer_bytes=80, linger_ms=3_600_000) as appender:
        receipts = [appender.append(b"%d" % i) for i in range(200)]
        assert appender.buffered_bytes <= 80
    assert [each.offset for each in receipts] == list(range(200))
    waits = [m.value for m in log.metrics() if m.name == "tiered_appender_waits_total"]
    assert waits[0] > 0


def test_who_keeps_receipts_keeps_no_values(bench: Bench) -> None:
    appender = bench.appender()
    value = bytes(range(40))
    before = sys.getrefcount(value)
    receipts = [appender.append(value, partition=0, timestamp=bench.clock.now_ms() + i) for i in range(10)]
    assert sys.getrefcount(value) == before + (
        10 if kernels.KERNELS_IN_USE == kernels.PURE else 0
    )  # encoded at once there
    appender.flush()
    assert sys.getrefcount(value) == before
    assert [(r.offset, r.timestamp) for r in receipts] == [(i, bench.clock.now_ms() + i) for i in range(10)]


def test_limits_that_make_no_sense_are_refused(bench: Bench) -> None:
    for words, hint in (
        ({"linger_ms": -1}, "linger_ms=-1"),
        ({"linger_ms": 1.5}, "linger_ms=1.5"),
        ({"max_bytes": 0}, "max_bytes=0"),
        ({"max_bytes": 10, "buffer_bytes": 9}, "buffer_bytes=9"),
        ({"max_block_ms": -1}, "max_block_ms=-1"),
        ({"durability": "remote"}, "a receipt cannot wait for the bucket"),
        ({"durability": "tape"}, "durability='tape'"),
    ):
        with pytest.raises(ConfigError, match=hint):
            bench.topic.appender(**words)  # type: ignore[arg-type]  # the bad input


# -- what fails --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", ["memory", "disk"])
def test_nothing_overtakes_a_batch_that_failed(bench: Bench, durability: str) -> None:
    appender = bench.appender(max_bytes=61 + RECORD_OVERHEAD_BYTES + 1, durability=durability)
    bench.failing[0].errors = [None, DiskFullError("no space")]
    receipts = [appender.append(b"%d" % i, partition=0) for i in range(4)]  # a batch each
    other = appender.append(b"o", partition=1)
    appender._write_due(1.0)
    assert [type(each.exception()) for each in receipts] == [type(None), DiskFullError, *[AppendHaltedError] * 2]
    assert other.result().offset == 0
    with pytest.raises(
        AppendHaltedError,
        match="t-0: the record was not written, because an earlier batch of this appender failed: no space",
    ):
        appender.append(b"x", partition=0)
    with pytest.raises(DiskFullError, match="no space"):
        appender.flush()
    again = [appender.append(receipt_value, partition=0) for receipt_value in (b"1", b"2", b"3")]
    appender.flush()
    assert [each.offset for each in again] == [1, 2, 3]
    assert bench.values(0) == [b"0", b"1", b"2", b"3"]
    failed = [m.value for m in bench.thread.metrics() if m.name == "tiered_appender_failed_records_total"]
    assert failed == [3]


def test_what_waits_behind_a_failure_fails_before_flush_lets_records_in_again(bench: Bench) -> None:
    """Also what another thread had put in before it failed."""
    appender = bench.appender(linger_ms=1000)
    bench.failing[0].errors = [DiskFullError("no space")]
    first = appender.append(b"1", partition=0)
    appender._drain()
    with appender._lock:
        receipt, _ = appender._put(0, NewRecord(b"2", None, 1), 10)  # as if it had been taken while the first failed
    with pytest.raises(AppendHaltedError):
        appender.append(b"3", partition=0)
    with pytest.raises(DiskFullError):
        appender._raise_failed()
    assert isinstance(first.exception(1.0), DiskFullError)
    assert isinstance(receipt.exception(1.0), AppendHaltedError)
    appender.close()
    assert bench.values() == []


def test_a_refused_record_fails_alone_and_a_failure_behind_it_keeps_the_rest_out(bench: Bench) -> None:
    appender = bench.appender()
    small = InvalidRecordError("as if one of them were bad")
    bench.failing[0].errors = [small, None, small, None, DiskFullError("no space")]
    receipts = [appender.append(b"%d" % i, partition=0) for i in range(8)]
    appender._drain()  # 8 -> 4 written, 4 refused -> 2 written, 2 -> the disk is full
    assert [r.offset for r in receipts] == [0, 1, 2, 3, 4, 5, None, None]
    assert [type(r.exception()) for r in receipts[6:]] == [DiskFullError] * 2
    bench.failing[1].errors = [small, DiskFullError("no space")]
    receipts = [appender.append(b"%d" % i, partition=1) for i in range(4)]
    appender._drain()
    assert [type(r.exception()) for r in receipts] == [DiskFullError] * 2 + [AppendHaltedError] * 2
    with pytest.raises(DiskFullError):
        appender.close()


def test_flush_tells_of_a_refused_record_once(bench: Bench) -> None:
    topic = bench.log.topic("keyed", create=True, config={"cleanup.policy": "compact", "max.message.bytes": 200})
    appender = Appender(topic, bench.thread, AppenderLimits())
    receipts = [appender.append(b"v", key=b"k"), appender.append(b"v"), appender.append(b"x" * 300, key=b"k")]
    last = appender.append(b"w", key=b"k")
    with pytest.raises(InvalidRecordError, match="record 0 has no key, and the topic is compacted"):
        appender.flush()
    assert [r.offset for r in (*receipts, last)] == [0, None, None, 1]
    with pytest.raises(RecordTooLargeError):
        receipts[2].result()
    appender.flush()
    appender.close()


def test_an_fsync_that_fails_fails_what_it_was_for(bench: Bench) -> None:
    appender = bench.appender(durability="disk")
    bench.failing[0].flush_error = TieredError("fsync")
    receipts = [appender.append(b"v", partition=p) for p in (0, 1)]
    appender._drain()
    assert [str(r.exception()) for r in receipts] == ["fsync", "None"]
    with pytest.raises(AppendHaltedError):
        appender.append(b"v", partition=0)
    bench.failing[0].flush_error = None
    with pytest.raises(TieredError, match="fsync"):
        appender.close()


def test_an_interrupt_leaves_nobody_waiting(bench: Bench) -> None:
    appender = bench.appender()
    bench.failing[0].errors = [KeyboardInterrupt()]
    receipts = [appender.append(b"v", partition=p) for p in (0, 1)]
    with pytest.raises(KeyboardInterrupt):
        appender.flush()
    for each in receipts:
        with pytest.raises(
            TieredError, match="the write of a batch was interrupted: it is unknown whether its records are in the log"
        ):
            each.result(1.0)
    assert appender.buffered_bytes == 0


def test_a_fault_of_ours_is_an_error_of_the_receipt(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    appender = bench.appender()
    bench.failing[0].errors = [ZeroDivisionError("ours")]
    receipt = appender.append(b"v", partition=0)
    appender._drain()
    with pytest.raises(TieredError, match="t-0: ZeroDivisionError: ours"):
        receipt.result()
    assert "an appender could not write to t-0" in caplog.text


def test_a_receipt_waits_as_long_as_it_is_told(bench: Bench) -> None:
    receipt = bench.appender().append(b"v", partition=1)
    assert (receipt.partition, repr(receipt)) == (1, "<Receipt t-1 pending>")
    for ask in (receipt.result, receipt.exception):
        with pytest.raises(AppendTimeoutError, match=r"t-1: a record was not written within 3\.0 s"):
            ask(3)
    assert bench.clock.monotonic() == 6.0
    bench.thread.drain()
    assert (receipt.result().offset, receipt.exception(), repr(receipt)) == (0, None, "<Receipt t-1 offset=0>")


# -- the end -----------------------------------------------------------------------------------------------------------


def fail_after(appender: Appender, value: bytes) -> None:
    appender.append(value, partition=0)
    raise KeyError


def test_the_end_of_the_block_writes_and_closes(bench: Bench) -> None:
    with bench.appender(linger_ms=1000) as appender:
        appender.append(b"1", partition=0)
    assert bench.values() == [b"1"]
    appender.close()
    for refused_call in (appender.flush, lambda: appender.append(b"2")):
        with pytest.raises(ClosedError, match="the appender of t is closed and takes no records"):
            refused_call()
    with pytest.raises(KeyError), bench.appender() as appender:
        fail_after(appender, b"2")
    assert bench.values() == [b"1", b"2"]


def test_an_error_of_the_block_is_not_hidden_by_one_of_its_end(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.failing[0].errors = [DiskFullError("no space"), DiskFullError("no space either")]
    with caplog.at_level(logging.WARNING), pytest.raises(KeyError), bench.appender() as appender:
        fail_after(appender, b"1")
    assert "records of an appender of t failed: no space" in caplog.text
    with pytest.raises(DiskFullError, match="no space either"), bench.appender() as appender:
        appender.append(b"1", partition=0)


def test_a_log_that_is_closed_writes_what_its_appenders_hold(tmp_path: Path) -> None:
    log = tiered.open(tmp_path / "log")
    topic = log.topic("t", create=True)
    appender, receipt = topic.appender(linger_ms=3_600_000), None
    receipt = appender.append(b"v")
    del topic
    log.close()
    assert receipt.offset == 0
    with pytest.raises(ClosedError):
        appender.append(b"v")
    appender.close()
    with tiered.open(tmp_path / "log") as log:
        assert [r.value for r in log.topic("t").read()] == [b"v"]


def test_a_log_that_cannot_write_what_its_appenders_hold_says_so_when_it_is_closed(tmp_path: Path) -> None:
    log = tiered.open(tmp_path / "log")
    topic = log.topic("t", create=True, config={"cleanup.policy": "compact"})
    appender = topic.appender(linger_ms=3_600_000)
    receipt = appender.append(b"without a key")
    with pytest.raises(InvalidRecordError, match="no key"):
        log.close()
    assert isinstance(receipt.exception(), InvalidRecordError)
    with tiered.open(tmp_path / "log"):  # its lock is free
        pass


def test_an_appender_that_nobody_holds_is_kept_until_its_records_are_written(bench: Bench) -> None:
    bench.appender().append(b"v", partition=0)
    gc.collect()
    bench.thread.drain()
    assert bench.values() == [b"v"]


def test_a_fork_gets_an_error_and_writes_nothing(log: tiered.Log) -> None:
    topic = log.topic("t", create=True)
    appender = topic.appender(linger_ms=3_600_000)
    receipt = appender.append(b"parent")
    with appender._lock:  # as if another thread had it
        pid = os.fork()
    if pid == 0:
        signal.alarm(int(WAIT_S))  # a child that waits for the lock is ended
        try:
            calls = [appender.flush, appender.close, receipt.result, topic.appender, lambda: appender.append(b"child")]
            caught = 0
            for call in calls:
                try:
                    call()
                except ForkedLogError:
                    caught += 1
            os._exit(caught)
        finally:
            os._exit(100)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 5
    appender.close()
    assert [r.value for r in topic.read()] == [b"parent"]


def test_the_order_of_each_thread_is_kept(log: tiered.Log) -> None:
    topic = log.topic("t", partitions=2, create=True)
    with topic.appender(max_bytes=400, buffer_bytes=2000) as appender:

        def work(name: int) -> None:
            for i in range(300):
                appender.append(b"%d %d" % (name, i), partition=i % 2)

        threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    for partition in range(2):
        found = [tuple(map(int, (record.value or b"").split())) for record in topic.read(partition)]
        for name in range(4):
            assert [i for who, i in found if who == name] == list(range(partition, 300, 2))


def test_figures_are_by_topic(bench: Bench) -> None:
    appender = bench.appender()
    appender.append(b"12345", partition=0)
    found = {m.name.removeprefix("tiered_appender_"): m.value for m in bench.thread.metrics()}
    size = RECORD_OVERHEAD_BYTES + 5
    zero = {"records_total": 0, "failed_records_total": 0, "batches_total": 0, "waits_total": 0}
    assert found == zero | {"buffered_bytes": size}
    appender.close()
    found = {m.name.removeprefix("tiered_appender_"): m.value for m in bench.thread.metrics()}
    assert found == zero | {"buffered_bytes": 0, "records_total": 1, "batches_total": 1}
    assert {m.labels for m in bench.thread.metrics()} == {(("topic", "t"),)}
