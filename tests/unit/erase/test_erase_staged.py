"""Erasure of what sinks staged: plain segments come out, the same as of a log's own."""

from __future__ import annotations

import random

from tests.support.admin import check
from tests.support.remote_face import RemoteFace
from tests.unit.remote.building import TOPIC_ID, RemoteLog
from tests.unit.remote.staging import twins
from tiered.check.check import CheckOptions
from tiered.erase.erase import erase_steps, plan_erase_steps
from tiered.format.batch import decode_records
from tiered.format.kernels import Record
from tiered.format.keys import FLAG_STAGED
from tiered.model import TopicPartition
from tiered.plan.erasure import Selection
from tiered.remote.topics import load_topic, register_topic
from tiered.store.driver import drive
from tiered.store.memory import MemoryStore

TP = TopicPartition("flights", 0)


def records(log: RemoteLog) -> list[Record]:
    face = RemoteFace(log.store, log.topic, TOPIC_ID, 0, clock=log.clock)
    return [record for batch in face.read_batches(0) for record in decode_records(bytes(batch))]


def test_erased_they_are_what_an_erased_log_is() -> None:
    seed = random.SystemRandom().randrange(2**32)
    print("seed", seed)
    logs = [RemoteLog(MemoryStore()) for _ in range(2)]
    for log in logs:
        drive(log.store, register_topic(log.topic, log.topic_id, 1, {}), clock=log.clock, ids=log.ids)
    logs = list(twins(logs[0].store, logs[1].store, seed))
    before = records(logs[0])
    assert logs[0].root is not None
    staged = [row for row in logs[0].root.rows if row.flags & FLAG_STAGED]
    assert staged
    key = next(record.key for record in before if record.key is not None)
    selection = Selection(frozenset([key]))
    for log in logs:
        entry = drive(log.store, load_topic(log.topic))
        assert entry is not None
        plan = drive(log.store, plan_erase_steps(TP, entry, selection))
        assert plan is not None
        assert plan.records == sum(record.key == key for record in before)
        done = drive(
            log.store, erase_steps(plan, selection, "m:1", "erase-test", now=True), clock=log.clock, ids=log.ids
        )
        assert (done.records, done.left) == (plan.records, ())
        assert records(log) == [record for record in before if record.key != key]
        report = check(None, log.store, CheckOptions(read_data=True))
        assert (report.errors, report.warnings) == (0, 0)
    root = logs[0].root
    assert root is not None
    assert len([row for row in root.rows if row.flags & FLAG_STAGED]) < len(staged)
