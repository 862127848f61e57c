"""Repair of what sinks wrote: segments whose objects begin at offset 0, and batches decided since a copy."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.admin import apply_repair, check, plan_repair
from tests.support.remote_face import RemoteFace
from tests.unit.remote.building import TOPIC_ID, RemoteLog, batches, seal
from tests.unit.remote.paged.sinks import TP as FLIGHTS
from tests.unit.remote.paged.sinks import commit, decide, log_of_sinks, lose
from tests.unit.remote.staging import stage
from tiered.check.check import CheckOptions
from tiered.check.findings import Severity
from tiered.errors import CorruptionError
from tiered.format.batch import decode_records
from tiered.format.bundle import encode_bundle
from tiered.format.keys import FLAG_STAGED, hist_prefix, index_key, parse_hist_key, segment_key
from tiered.model import Row, TopicPartition
from tiered.remote.topics import register_topic
from tiered.repair.plan import EXIT_LEFT, RepairOptions
from tiered.store.base import ABSENT, Delete, Get, Object, Put
from tiered.store.driver import drive
from tiered.store.memory import MemoryStore
from tiered.store.steps import list_all

TP = TopicPartition("flights", 0)
LOSS = RepairOptions(accept_loss=True)


@pytest.fixture
def log() -> RemoteLog:
    """Offsets 0 to 20, 20 to 50, 50 to 60."""
    log = RemoteLog(MemoryStore())
    drive(log.store, register_topic(log.topic, log.topic_id, 1, {}), clock=log.clock, ids=log.ids)
    stage(log, [seal(batches(0, 20)), seal(batches(0, 30))], 0)
    stage(log, [seal(batches(0, 10))], 1)
    return log


def rows(log: RemoteLog) -> list[Row]:
    root = log.root
    assert root is not None
    return list(root.rows)


def records(log: RemoteLog) -> dict[int, bytes | None]:
    face = RemoteFace(log.store, log.topic, TOPIC_ID, 0, clock=log.clock)
    return {record.offset: record.value for batch in face.read_batches(0) for record in decode_records(batch)}


def data(log: RemoteLog, key: str) -> bytes:
    got = log.store.execute(Get(key))
    assert isinstance(got, Object)
    return bytes(got.data)


def lay(log: RemoteLog, key: str, body: bytes | None) -> None:
    log.store.execute(Delete((key,)))
    if body is not None:
        log.store.execute(Put(key, body, ABSENT))


def clean(log: RemoteLog) -> bool:
    report = check(None, log.store, CheckOptions(read_data=True))
    return not [found for found in report.findings if found.severity is not Severity.INFO]


@pytest.mark.parametrize("at", [0, 1, 2])
@pytest.mark.parametrize("damage", ["missing", "garbage", "of another segment", "of another stream"])
def test_an_index_is_made_from_its_log(log: RemoteLog, at: int, damage: str) -> None:
    before, (row, other) = records(log), (rows(log)[at], rows(log)[at - 1])
    bundle = seal(batches(0, row.next - row.base))
    body = {
        "missing": None,
        "garbage": b"garbage",
        "of another segment": data(log, index_key(TOPIC_ID, 0, other)),
        "of another stream": encode_bundle(bundle.descriptor, bundle.sealed_indexes, 0, txn="other"),
    }[damage]
    lay(log, index_key(TOPIC_ID, 0, row), body)
    assert not clean(log)
    plan = plan_repair(log.store, [TP])
    assert (len(plan.actions), plan.exit_code) == (1, 0)
    apply_repair(log.store, plan)
    new = rows(log)[at]
    assert (new.base, new.next, new.flags & FLAG_STAGED, new.leader_epoch) == (row.base, row.next, 0, row.leader_epoch)
    assert records(log) == before
    assert clean(log)


@pytest.mark.parametrize(
    ("change", "lost"),
    [
        (lambda data: None, (20, 50)),
        (lambda data: data[:-1], (20, 50)),  # batches of a shorter segment would fit into it, too
        (lambda data: data[:80] + bytes([data[80] ^ 1]) + data[81:], (20, 30)),
        (lambda data: b"", (20, 50)),
    ],
    ids=["missing", "cut", "a bit of a record", "empty"],
)
def test_what_no_copy_holds_becomes_a_hole(
    log: RemoteLog, change: Callable[[bytes], bytes | None], lost: tuple[int, int]
) -> None:
    before, key = records(log), segment_key(TOPIC_ID, 0, rows(log)[1])
    lay(log, key, change(data(log, key)))
    left = plan_repair(log.store, [TP])
    assert ([action.lost for action in left.left], left.exit_code) == ([(lost,)], EXIT_LEFT)
    apply_repair(log.store, plan_repair(log.store, [TP], LOSS))
    assert records(log) == {at: value for at, value in before.items() if not lost[0] <= at < lost[1]}
    assert clean(log)


def rows_of(log: RemoteLog) -> list[Row]:
    assert log.root is not None
    return list(log.root.rows)


def lose_since(log: RemoteLog, version: int) -> None:
    """Lose the root, and the copies that are newer than ``version``."""
    lose(log)
    copies = [entry.key for entry in drive(log.store, list_all(hist_prefix(log.topic_id, 0)))]
    log.store.execute(Delete(tuple(key for key in copies if (parse_hist_key(key) or 0) > version)))


def test_one_decision_since_the_copy_is_committed() -> None:
    log = log_of_sinks()
    assert log.root is not None
    version = log.root.version
    commit(log, decide(log, [10, 20], 1, "query"))
    rows = rows_of(log)
    lose_since(log, version)
    plan = plan_repair(log.store, [FLIGHTS])
    assert plan.actions[0].notes[0] == "batch 1 of query is committed by its decision"
    apply_repair(log.store, plan)
    assert [row[:8] for row in rows_of(log)] == [row[:8] for row in rows]
    assert plan_repair(log.store, [FLIGHTS]).actions == ()


def test_several_decisions_have_no_proven_order() -> None:
    log = log_of_sinks()
    assert log.root is not None
    version = log.root.version
    for txn in ("query", "other"):
        commit(log, decide(log, [10], 1, txn))
    lose_since(log, version)
    with pytest.raises(CorruptionError, match="their order is not known"):
        plan_repair(log.store, [FLIGHTS])
    apply_repair(log.store, plan_repair(log.store, [FLIGHTS], RepairOptions(accept_loss=True)))
    assert len(rows_of(log)) == 4
