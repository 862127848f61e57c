"""Compaction of more rows than anybody would hold in memory: all are reached, and nothing is left to do then."""

from __future__ import annotations

import pytest

from tests.unit.remote.building import FIRST_MS, TOPIC_ID, RemoteLog, seal
from tiered.config import TopicConfig
from tiered.format.batch import encode_batch
from tiered.format.rows import Rows
from tiered.model import NewRecord, TopicPartition
from tiered.plan.maintenance import MaintenanceKind, MaintenancePlan
from tiered.remote.maintain import Maintainer
from tiered.store.driver import drive
from tiered.store.memory import MemoryStore

TP = TopicPartition("flights", 0)
CONFIG = TopicConfig(cleanup_policy="compact", min_cleanable_dirty_ratio=0.01, segment_bytes=2_000)


def one_record(offset: int, key: int) -> bytes:
    record = NewRecord(value=b"value %d" % offset, key=b"key %d" % key, timestamp=FIRST_MS + offset)
    return encode_batch([record], base_offset=offset, leader_epoch=0)


def key_of(offset: int) -> int:
    """Of 60 keys; one of them comes again and again, up to the very end."""
    return 0 if offset % 100 > 90 else offset * 7 % 60


def plan_of(log: RemoteLog, maintainer: Maintainer) -> MaintenancePlan:
    plan = drive(log.store, maintainer.plan((MaintenanceKind.COMPACT,)), clock=log.clock, ids=log.ids)
    assert plan is not None
    return plan


@pytest.mark.long
def test_a_plan_reaches_the_last_of_150_000_rows() -> None:
    count = 150_000
    log = RemoteLog(MemoryStore())
    log.add(seal([one_record(0, 0)]))
    assert log.root is not None
    real = log.root.rows.row(0)
    log = RemoteLog(MemoryStore())
    log.add(seal([one_record(count, 0)]))
    assert log.root is not None
    last = log.root.rows.row(0)
    rows = Rows.from_rows([real._replace(base=at, next=at + 1, id_lo=at) for at in range(count)]).appended(
        Rows.from_rows([last])
    )
    log.put_root(rows, start_offset=0)
    (action,) = plan_of(log, Maintainer(TP, TOPIC_ID, CONFIG, owner="m:1")).actions
    assert (action.start, action.end, action.rows_in) == (0, count + 1, count + 1)
