"""A store that fails at any request of a sync: no error is silent, nothing is lost, nothing is there twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from tiered.clock import SystemIds
from tiered.config import TopicConfig
from tiered.engine.tiering import Tiering
from tiered.errors import CorruptionError, TieredError
from tiered.local.directory.log_directory import LocalLog
from tiered.model import NewRecord, TopicPartition
from tiered.read.stream import ReadRange
from tiered.read.topic import PartitionStream
from tiered.remote.reader import RemotePartition
from tiered.store.driver import Runner
from tiered.store.layers import LayeredStore
from tiered.store.memory import MemoryStore
from tiered.store.retry import Retries
from tiered.testing.clock import FakeClock
from tiered.testing.faults import Fault, FaultKind, FaultStore

TP = TopicPartition("t", 0)


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
    remote = RemotePartition(TopicPartition("t", 0), topic_id)  # type: ignore[arg-type]  # a UUID
    stream = PartitionStream.open(TP, local=None, remote=remote, runner=Runner(store.inner, clock, SystemIds()))
    return [record.value for record in stream.records(ReadRange())]


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
