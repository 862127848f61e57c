"""Compaction of more rows than anybody would hold in memory: all are reached, and nothing is left to do then."""

from __future__ import annotations

import pytest

from tests.sim.bucket.ledger import Held, batches_of
from tests.unit.remote.building import FIRST_MS, TOPIC_ID, TRUSTED, RemoteLog, seal
from tiered.config import TopicConfig
from tiered.format.batch import encode_batch
from tiered.format.rows import Rows
from tiered.model import NewRecord, Row, TopicPartition
from tiered.plan.maintenance import MaintenanceKind, MaintenancePlan
from tiered.remote.maintain import Maintainer
from tiered.store.base import Get, Object
from tiered.store.driver import drive
from tiered.store.memory import MemoryStore
from tiered.testing.clock import FakeClock

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


def test_runs_converge_and_keep_the_newest_record_of_each_key() -> None:
    """600 rows in pieces, keys that do not fit into the map at once, then the same again behind them."""
    clock = FakeClock()
    log = RemoteLog(MemoryStore(clock=clock), clock=clock)
    for begin in (0, 600):
        new = [log.upload(seal([one_record(at, key_of(at))])) for at in range(begin, begin + 600)]
        before = list(log.root.rows) if log.root is not None else []
        log.put_root(Rows.from_rows([*before, *new]), next_offset=begin + 600)
        clock.advance(86_400)
        maintainer = Maintainer(TP, TOPIC_ID, CONFIG, owner="m:1")
        (action,) = plan_of(log, maintainer).actions
        assert (action.start, action.end, action.rows_in) == (0, begin + 600, len(before) + 600)
        done = drive(log.store, maintainer.run(action, TRUSTED, memory_bytes=8_000), clock=clock, ids=log.ids)
        assert done.note == ""
        assert plan_of(log, Maintainer(TP, TOPIC_ID, CONFIG, owner="m:2")).actions == ()
    assert log.root is not None
    rows = list(log.root.rows)
    assert (rows[0].base, rows[-1].next) == (0, 1200)
    found = [(held.key, offset) for row in rows for offset, held in records_of(log, row).items()]
    assert sorted(found) == sorted({b"key %d" % key_of(offset): offset for offset in range(1200)}.items())


def records_of(log: RemoteLog, row: Row) -> dict[int, Held]:
    data = log.store.execute(Get(log.log_key(row)))
    return dict(batches_of(data.data)) if isinstance(data, Object) else {}
