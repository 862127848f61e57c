"""Garbage of sinks: what is proven dead goes, what can still be committed stays, whatever anybody does meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TypeVar

import pytest

from tests.unit.remote.building import TOPIC_ID, TRUSTED, RemoteLog, batches, seal
from tests.unit.remote.staging import stage, two_partitions
from tiered.config import TopicConfig
from tiered.errors import CorruptionError, FencedError
from tiered.format.decision import ABORTED, COMMITTED, Decision
from tiered.format.kernels import crc32c
from tiered.format.keys import index_key, staged_key, staged_prefix, staged_uid
from tiered.format.root import TXNS_LIMIT
from tiered.model import Row, TopicPartition
from tiered.plan.maintenance import ORPHAN_MS, MaintenanceKind
from tiered.plan.sink_commit import once_id
from tiered.remote.gc.orphans import Swept
from tiered.remote.gc.sink_orphans import DECISION_KEPT_MS, sweep_decisions
from tiered.remote.maintain import Maintainer
from tiered.remote.sink_commit import Sink, read_decision, upload_staged
from tiered.store.base import ABSENT, Delete, Get, Head, List, ListPage, Object, Outcome, Put, Steps, StoreRequest
from tiered.store.driver import drive
from tiered.store.memory import MemoryStore

pytestmark = pytest.mark.usefixtures("both_catalogs")
GRACE_MS = 3_600_000


@pytest.fixture
def log() -> RemoteLog:
    return two_partitions()


T = TypeVar("T")


def run(log: RemoteLog, steps: Steps[T]) -> T:
    return drive(log.store, steps, clock=log.clock, ids=log.ids)


def sweep(log: RemoteLog, *, delete: bool = True, partition: int = 0) -> Swept:
    config = TopicConfig(gc_grace_ms=GRACE_MS)
    tp = TopicPartition(log.topic, partition)
    return run(log, Maintainer(tp, TOPIC_ID, config, owner="gc:1").sweep(delete=delete))


def left_behind(log: RemoteLog, txn: str, batch: int, count: int = 2, partition: int = 0) -> tuple[Row, ...]:
    """What a task staged and no commit has named yet."""
    segment = seal(batches(0, 20), partition=partition)
    return tuple([run(log, upload_staged(segment, txn, batch, TRUSTED)) for _ in range(count)])


def wanted(txn: str, batch: int, rows: Iterable[Row]) -> Decision:
    return Decision(txn, batch, COMMITTED, {(TOPIC_ID, 0): tuple(rows)})


def commit(log: RemoteLog, decision: Decision) -> None:
    sink = Sink("driver:1", {TOPIC_ID: log.topic})
    run(log, sink.commit_staged(run(log, sink.decide(decision))))


def staged_keys(log: RemoteLog) -> set[str]:
    page = log.store.execute(List(staged_prefix(TOPIC_ID, 0)))
    assert isinstance(page, ListPage)
    return {entry.key for entry in page.entries}


def keys(log: RemoteLog, rows: Iterable[Row]) -> set[str]:
    return {key for row in rows for key in (log.log_key(row), index_key(TOPIC_ID, 0, row))}


def wait(log: RemoteLog, ms: int = GRACE_MS) -> None:
    log.clock.advance(ms / 1000)


def test_what_another_attempt_at_a_committed_batch_staged_goes_after_the_grace(log: RemoteLog) -> None:
    losers = left_behind(log, "query", 0)
    kept = stage(log, [seal(batches(0, 20))], 0)
    assert sweep(log).count == 0
    wait(log)
    assert (sweep(log, delete=False).count, staged_keys(log)) == (4, keys(log, [*losers, *kept]))
    found = sweep(log)
    assert (found.count, staged_keys(log)) == (4, keys(log, kept))
    assert sweep(log).count == 0


def test_what_was_never_decided_is_aborted_first_and_can_never_be_committed(log: RemoteLog) -> None:
    rows = left_behind(log, "q", 7)
    wait(log)
    assert (sweep(log, delete=False).count, run(log, read_decision("txn/q/7"))) == (4, None)
    assert (sweep(log).count, staged_keys(log)) == (4, set())
    decision = run(log, read_decision("txn/q/7"))
    assert decision is not None
    assert (decision.state, decision.uids) == (ABORTED, {(row.id_hi, row.id_lo) for row in rows})
    with pytest.raises(FencedError, match="aborted"):
        commit(log, wanted("q", 7, rows))
    anew = left_behind(log, "q", 7)
    commit(log, wanted("q", 7, anew))
    root = log.root
    assert root is not None
    assert (root.txns, root.next_offset) == ((("q", 7),), 40)
    wait(log)
    assert (sweep(log).count, staged_keys(log)) == (0, keys(log, anew))


class StoodStill(MemoryStore):
    """Between the PUT of a staged ``.log`` and the look at it somebody else does all of ``meanwhile``."""

    def __init__(self, log: RemoteLog, meanwhile: Callable[[], object]) -> None:
        super().__init__(clock=log.clock)
        assert isinstance(log.store, MemoryStore)
        self._bucket, self._meanwhile = log.store._bucket, meanwhile

    def execute(self, request: StoreRequest) -> Outcome:
        if isinstance(request, Head) and request.key.endswith(".log"):
            self._meanwhile()
        return super().execute(request)


def stage_late(log: RemoteLog, meanwhile: Callable[[], object]) -> None:
    untrusted = replace(TRUSTED, returns_crc32c=False)  # so that it looks at what it has stored
    steps = upload_staged(seal(batches(0, 20)), "q", 0, untrusted)
    drive(StoodStill(log, meanwhile), steps, clock=log.clock, ids=log.ids)


def test_a_task_that_stood_still_until_its_segment_was_swept_tells_of_no_damage(log: RemoteLog) -> None:
    def abandoned() -> None:
        wait(log)
        assert sweep(log).count == 2

    with pytest.raises(FencedError, match="batch 0 of q was aborted: garbage collection deleted its staged segments"):
        stage_late(log, abandoned)


def test_a_task_that_stood_still_until_another_attempt_was_committed_tells_of_no_damage(log: RemoteLog) -> None:
    def overtaken() -> None:
        commit(log, wanted("q", 0, left_behind(log, "q", 0)))
        wait(log)
        assert sweep(log).count == 2

    with pytest.raises(FencedError, match="batch 0 of q was decided by another attempt"):
        stage_late(log, overtaken)


def test_a_log_that_was_stored_after_its_bundle_was_swept_goes_too(log: RemoteLog) -> None:
    (row,) = left_behind(log, "q", 3, 1)
    key = log.log_key(row)
    late = log.store.execute(Get(key))
    assert isinstance(late, Object)
    log.store.execute(Delete((key,)))  # the task stands still between the two
    wait(log)
    assert (sweep(log).count, staged_keys(log)) == (1, set())
    log.store.execute(Put(key, late.data, ABSENT))
    wait(log)
    assert (sweep(log).count, staged_keys(log)) == (1, set())


def test_a_staged_object_that_the_store_lost_is_damage(log: RemoteLog) -> None:
    def lost() -> None:
        log.store.execute(Delete(tuple(staged_keys(log))))

    with pytest.raises(CorruptionError, match="is absent although the store acknowledged it"):
        stage_late(log, lost)


def test_what_nobody_can_tell_stays(log: RemoteLog) -> None:
    (row,) = left_behind(log, "q", 0, 1)
    data = log.store.execute(Get(index_key(TOPIC_ID, 0, row)))
    assert isinstance(data, Object)
    alone = staged_key(TOPIC_ID, 0, staged_uid("other", 3, 1))
    bundle, odd = alone.replace(".log", ".idx"), staged_prefix(TOPIC_ID, 0) + "x"
    for key, body in ((alone, b"x"), (bundle, data.data), (odd, b"")):
        log.store.execute(Put(key, body, ABSENT, crc32c(body)))
    wait(log)
    found = sweep(log)
    assert found.count == 2
    assert staged_keys(log) == {alone, bundle, odd}


def decisions(log: RemoteLog) -> list[str]:
    page = log.store.execute(List("txn/"))
    assert isinstance(page, ListPage)
    return [entry.key for entry in page.entries]


def test_old_decisions_go_once_every_partition_has_passed_them(log: RemoteLog) -> None:
    for batch in range(3):
        stage(log, [seal(batches(0, 20))], batch)
    assert run(log, sweep_decisions(delete=True)).keys == []
    wait(log, ORPHAN_MS)
    assert run(log, sweep_decisions(delete=False)).keys == ["txn/query/0", "txn/query/1"]
    assert run(log, sweep_decisions(delete=True)).kept == 1
    assert decisions(log) == ["txn/query/2"]
    wait(log, DECISION_KEPT_MS)
    assert run(log, sweep_decisions(delete=True)).keys == ["txn/query/2"]


def test_an_abort_stays_while_its_batch_is_the_newest(log: RemoteLog) -> None:
    left_behind(log, "q", 0)
    wait(log, 2 * DECISION_KEPT_MS)
    sweep(log)
    wait(log, 2 * DECISION_KEPT_MS)
    assert run(log, sweep_decisions(delete=True)).keys == []
    commit(log, wanted("q", 0, left_behind(log, "q", 0)))
    wait(log, 2 * DECISION_KEPT_MS)
    assert run(log, sweep_decisions(delete=False)).keys == ["txn/q/0.1"]
    commit(log, wanted("q", 1, left_behind(log, "q", 1)))
    wait(log, ORPHAN_MS)
    assert run(log, sweep_decisions(delete=True)).keys == ["txn/q/0", "txn/q/0.1"]


@pytest.mark.parametrize(("hurt", "gone"), [(0, ["txn/query/1"]), (1, ["txn/query/0"]), (2, ["txn/query/0"])])
def test_a_damaged_decision_stays_and_hinders_no_other(log: RemoteLog, hurt: int, gone: list[str]) -> None:
    for batch in range(3):
        stage(log, [seal(batches(0, 20))], batch)
    stage(log, [seal(batches(0, 20))], 0, txn="other")
    stage(log, [seal(batches(0, 20))], 1, txn="other")
    key = f"txn/query/{hurt}"
    log.store.execute(Delete((key,)))
    log.store.execute(Put(key, b"x" * 100, ABSENT))
    wait(log, ORPHAN_MS)
    found = run(log, sweep_decisions(delete=True))
    assert sorted(found.keys) == ["txn/other/0", *gone]
    assert list(found.damaged) == [key]
    assert found.kept == 5 - len(found.keys)
    wait(log, DECISION_KEPT_MS)
    assert key not in run(log, sweep_decisions(delete=True)).keys


def test_what_is_forgotten_is_not_taken_for_dead(log: RemoteLog) -> None:
    """The id has left the root: only its decision tells."""
    rows = left_behind(log, "first", 0)
    commit(log, wanted("first", 0, rows[:1]))
    for number in range(TXNS_LIMIT):
        txn = f"other-{number}"
        commit(log, wanted(txn, 0, left_behind(log, txn, 0, 1)))
    wait(log)
    assert sweep(log).count == 2
    assert keys(log, rows[1:]).isdisjoint(staged_keys(log))
    assert keys(log, rows[:1]) <= staged_keys(log)


ONCE = once_id("5" * 32)


def decide(log: RemoteLog, txn: str, batch: int) -> tuple[Row, ...]:
    rows = left_behind(log, txn, batch)
    run(log, Sink("driver:1", {TOPIC_ID: log.topic}).decide(wanted(txn, batch, rows)))
    return rows


def others(log: RemoteLog, count: int = TXNS_LIMIT + 1) -> None:
    """So many ids are committed that all before are forgotten, and whether there were more."""
    for number in range(count):
        txn = f"other-{log.clock.now_ms()}-{number}"
        commit(log, wanted(txn, 0, left_behind(log, txn, 0, 1)))


def swept(log: RemoteLog) -> list[str]:
    """Decisions that go, but for those of others."""
    keys = run(log, sweep_decisions(delete=True)).keys
    return [key for key in keys if not key.startswith("txn/other")]


@pytest.mark.parametrize(("txn", "gone"), [(ONCE, [f"txn/{ONCE}/0"]), ("stream", [])])
def test_a_forgotten_decision_that_was_carried_out_goes_where_nobody_replays_it(
    log: RemoteLog, txn: str, gone: list[str]
) -> None:
    """A stream that comes back after a year learns by its decision alone that its last batch is not to be made anew."""
    commit(log, wanted(txn, 0, left_behind(log, txn, 0)))
    others(log)
    wait(log, ORPHAN_MS)
    assert swept(log) == []
    wait(log, DECISION_KEPT_MS)
    assert swept(log) == gone


def test_a_forgotten_decision_goes_whose_segments_were_merged_away(log: RemoteLog) -> None:
    rows = left_behind(log, ONCE, 0)
    commit(log, wanted(ONCE, 0, rows))
    others(log)
    config = TopicConfig(gc_grace_ms=GRACE_MS, merge_min_bytes=1 << 20)
    maintainer = Maintainer(TopicPartition(log.topic, 0), TOPIC_ID, config, owner="merge:1")
    wait(log, 2 * DECISION_KEPT_MS)
    for kinds, gone in (((MaintenanceKind.MERGE,), []), ((MaintenanceKind.COLLECT,), [f"txn/{ONCE}/0"])):
        plan = run(log, maintainer.plan(kinds))
        assert plan is not None
        for action in plan.actions:
            run(log, maintainer.run(action, TRUSTED))
        assert swept(log) == gone  # as long as its segments wait for their collection nothing tells why they wait
        wait(log, 2 * GRACE_MS)
    assert keys(log, rows).isdisjoint(staged_keys(log))
