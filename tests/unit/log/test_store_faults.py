"""A store that fails at any request of a sync: no error is silent, nothing is lost, nothing is there twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from tiered.clock import SystemIds
from tiered.config import TopicConfig
from tiered.engine.inline import Tiering
from tiered.errors import CommitUnknown, CorruptionError, RemoteUnavailableError, TieredError
from tiered.local.directory.log_directory import LocalLog
from tiered.model import NewRecord, TopicPartition
from tiered.read.stream import ReadRange
from tiered.read.topic import PartitionStream
from tiered.remote.reader import RemotePartition
from tiered.store.layers import LayeredStore
from tiered.store.memory import MemoryStore
from tiered.store.retry import Retries
from tiered.store.runner import Runner
from tiered.testing.clock import FakeClock
from tiered.testing.faults import Fault, FaultKind, FaultStore

TP = TopicPartition("t", 0)
MUST_SUCCEED = (FaultKind.ERROR, FaultKind.UNKNOWN_BEFORE, FaultKind.UNKNOWN_AFTER, FaultKind.CONFLICT)


def make(directory: Path, faults: list[Fault]) -> tuple[LocalLog, FaultStore, Tiering, FakeClock]:
    clock, ids = FakeClock(), SystemIds()
    log = LocalLog.open(directory, clock=clock, ids=ids)
    if "t" not in log.topics():
        log.create_topic("t", 1, TopicConfig(segment_bytes=2048))
    store = FaultStore(MemoryStore(), faults)
    return log, store, Tiering(log, LayeredStore(store, Retries(clock=clock, ids=ids)), clock=clock, ids=ids), clock


def fill(log: LocalLog, start: int, end: int) -> None:
    for i in range(start, end):
        log.partition(TP).append([NewRecord(b"%05d" % i * 20, b"k", 1_000 + i)])
    log.partition(TP).roll()


def remote_values(store: FaultStore, topic_id: object, clock: FakeClock) -> list[bytes | None]:
    remote = RemotePartition("t", topic_id, 0)  # type: ignore[arg-type]  # a UUID
    stream = PartitionStream.open(TP, local=None, remote=remote, runner=Runner(store.inner, clock, SystemIds()))
    return [record.value for record in stream.records(ReadRange())]


def requests_of_a_sync(directory: Path) -> int:
    log, store, tiering, _ = make(directory, [])
    fill(log, 0, 60)
    tiering.sync({TP: 60}, None)
    log.close()
    return len(store.calls)


@pytest.mark.parametrize("kind", MUST_SUCCEED)
def test_one_fault_at_each_request_of_a_sync(tmp_path: Path, kind: FaultKind) -> None:
    total = requests_of_a_sync(tmp_path / "count")
    assert total > 15
    for nth in range(1, total + 1):
        log, store, tiering, clock = make(tmp_path / f"{nth}", [Fault(kind, nth=nth)])
        fill(log, 0, 60)
        tiering.sync({TP: 60}, None)
        assert store.fired == [] or len(store.fired) == 1
        assert log.partition(TP).positions().uploaded_offset == 60
        assert remote_values(store, log.partition(TP).topic_id, clock) == [b"%05d" % i * 20 for i in range(60)]
        log.close()


@pytest.mark.parametrize("kind", [FaultKind.ERROR, FaultKind.UNKNOWN_BEFORE, FaultKind.UNKNOWN_AFTER])
def test_an_outage_from_any_request_on_is_an_error_and_the_next_sync_mends_it(tmp_path: Path, kind: FaultKind) -> None:
    total = requests_of_a_sync(tmp_path / "count")
    for nth in range(1, total + 1, 3):
        log, store, tiering, clock = make(tmp_path / f"{nth}", [Fault(kind, nth=nth, times=-1)])
        fill(log, 0, 60)
        with pytest.raises((RemoteUnavailableError, CommitUnknown)) as caught:
            tiering.sync({TP: 60}, None)
        assert caught.value.exit_code == 75
        store.clear()
        fill(log, 60, 70)
        tiering.sync({TP: 70}, None)
        assert remote_values(store, log.partition(TP).topic_id, clock) == [b"%05d" % i * 20 for i in range(70)]
        log.close()


@pytest.mark.parametrize("kind", [FaultKind.UNKNOWN_BEFORE, FaultKind.UNKNOWN_AFTER])
def test_a_commit_in_doubt_is_settled_by_the_next_sync(tmp_path: Path, kind: FaultKind) -> None:
    """The same process goes on with a new claim: nothing else tells whether the commit that it sent has landed."""
    log, store, tiering, clock = make(tmp_path, [])
    fill(log, 0, 10)
    tiering.sync({TP: 10}, None)
    fill(log, 10, 20)
    store.add(Fault(kind, operation="put", key="*/root", times=-1))
    with pytest.raises(CommitUnknown):
        tiering.sync({TP: 20}, None)
    assert log.partition(TP).positions().uploaded_offset == 10
    store.clear()
    fill(log, 20, 30)
    tiering.sync({TP: 30}, None)
    assert log.partition(TP).positions().uploaded_offset == 30
    assert remote_values(store, log.partition(TP).topic_id, clock) == [b"%05d" % i * 20 for i in range(30)]
    log.close()


def test_a_refusal_is_not_retried_and_names_the_resource(tmp_path: Path) -> None:
    log, store, tiering, _ = make(tmp_path, [Fault(FaultKind.PERMISSION, operation="put", key="*/root", times=-1)])
    fill(log, 0, 10)
    with pytest.raises(TieredError) as caught:
        tiering.sync({TP: 10}, None)
    assert caught.value.exit_code == 12
    assert len([1 for kind, _, _ in store.fired if kind is FaultKind.PERMISSION]) == 1
    assert log.partition(TP).positions().uploaded_offset == 0
    log.close()


@pytest.mark.parametrize("kind", [FaultKind.TRUNCATED, FaultKind.FLIPPED])
def test_an_object_damaged_on_its_way_is_never_committed(tmp_path: Path, kind: FaultKind) -> None:
    log, store, tiering, clock = make(tmp_path, [Fault(kind, operation="put", key="*/s/*.log", nth=2)])
    fill(log, 0, 60)
    with pytest.raises(CorruptionError):
        tiering.sync({TP: 60}, None)
    assert log.partition(TP).positions().uploaded_offset == 0
    tiering.sync({TP: 60}, None)
    assert remote_values(store, log.partition(TP).topic_id, clock) == [b"%05d" % i * 20 for i in range(60)]
    log.close()
