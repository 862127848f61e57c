"""What a sink decided against what the catalogs hold: damage is told, and nothing that can come about without any."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

import pytest

from tests.unit.remote.building import TOPIC_ID, TRUSTED, RemoteLog, batches, seal
from tests.unit.remote.staging import two_partitions
from tiered.checking.decisions import check_decisions
from tiered.config import TopicConfig
from tiered.format.crc import crc32c
from tiered.format.decision import ABORTED, COMMITTED, Decision, encode_decision
from tiered.format.keys import FLAG_HOLE, decision_key, index_key, root_key, segment_key
from tiered.format.root import TXNS_LIMIT, Root, decode_root, encode_root
from tiered.format.rows import Rows
from tiered.model import Row, TopicPartition
from tiered.plan.maintenance import ORPHAN_MS, Kind
from tiered.remote.catalog import Catalog
from tiered.remote.maintain import Maintainer
from tiered.remote.roots import PartitionIds, make_roots
from tiered.remote.stage import Sink, hand_over, read_decision, upload_staged
from tiered.remote.sweep_staged import DECISION_KEPT_MS, sweep_decisions
from tiered.remote.topics import TopicEntry
from tiered.store.base import ABSENT, Delete, Get, Head, Match, Object, Outcome, Put, Steps, StoreRequest
from tiered.store.driver import drive
from tiered.store.memory import MemoryStore
from tiered.testing.clock import FakeClock

pytestmark = pytest.mark.usefixtures("both_catalogs")
T = TypeVar("T")
GRACE_MS = 3_600_000
EACH = 20
"""Records of a staged segment."""


@pytest.fixture
def log() -> RemoteLog:
    return two_partitions()


def run(log: RemoteLog, steps: Steps[T]) -> T:
    return drive(log.store, steps, clock=log.clock, ids=log.ids)


def told(log: RemoteLog) -> list[tuple[str, str, int, int]]:
    """Code, key, partition and offset of each finding."""
    entries = [TopicEntry(log.topic, TOPIC_ID, 2)]
    return [(each.code, each.where, each.partition, each.offset) for each in run(log, check_decisions(entries))]


def staged(log: RemoteLog, txn: str, batch: int, count: int = 2, partition: int = 0) -> tuple[Row, ...]:
    segment = seal(batches(0, EACH), partition=partition)
    return tuple([run(log, upload_staged(segment, txn, batch, TRUSTED)) for _ in range(count)])


def decide(log: RemoteLog, txn: str, batch: int, *of: Sequence[Row]) -> Decision:
    """``of``: what was staged, by partition."""
    rows = {(TOPIC_ID, number): tuple(each) for number, each in enumerate(of)}
    return run(log, Sink("driver:1", {TOPIC_ID: log.topic}).decide(Decision(txn, batch, COMMITTED, rows)))


def carry_out(log: RemoteLog, decision: Decision, partitions: Iterable[int] = (0, 1)) -> None:
    chosen = {(TOPIC_ID, number) for number in partitions}
    rows = {target: rows for target, rows in decision.partitions.items() if target in chosen}
    run(log, Sink("driver:1", {TOPIC_ID: log.topic}).commit_staged(replace(decision, partitions=rows)))


def written(log: RemoteLog, txn: str, batch: int, count: int = 2) -> Decision:
    """A batch in both partitions, carried out."""
    decision = decide(log, txn, batch, staged(log, txn, batch, count), staged(log, txn, batch, count, 1))
    carry_out(log, decision)
    return decision


def root_of(log: RemoteLog, partition: int = 0) -> Root:
    key = root_key(TOPIC_ID, partition)
    found = log.store.execute(Get(key))
    assert isinstance(found, Object)
    return decode_root(found.data, key=key)


def put_root(log: RemoteLog, root: Root, partition: int = 0) -> None:
    key = root_key(TOPIC_ID, partition)
    found = log.store.execute(Get(key))
    assert isinstance(found, Object)
    log.store.execute(Put(key, encode_root(root), Match(found.etag)))


def rewritten(log: RemoteLog, change: Callable[[list[Row]], list[Row]]) -> None:
    """Another list of rows in the root of partition 0, as no program of ours makes it."""
    root = root_of(log)
    rows = Rows.from_rows(change(list(root.rows)))
    put_root(log, replace(root, rows=rows, added=rows.tally, next_offset=rows.end_offset))


def wait(log: RemoteLog, ms: int) -> None:
    log.clock.advance(ms / 1000)


def maintain(log: RemoteLog, *kinds: Kind) -> None:
    config = TopicConfig(gc_grace_ms=GRACE_MS, merge_min_bytes=1 << 20)
    for kind in kinds:
        wait(log, 2 * GRACE_MS)
        maintainer = Maintainer(TopicPartition(log.topic, 0), TOPIC_ID, config, owner="gc:1")
        actions = run(log, maintainer.plan((kind,))).actions
        assert [action.kind for action in actions] == [kind]
        run(log, maintainer.run(actions[0], TRUSTED))


def trim(log: RemoteLog, offset: int) -> None:
    catalog = Catalog(TOPIC_ID, 0, log.topic, persist=lambda *_: None)
    run(log, catalog.claim("m", "test"))
    run(log, catalog.trim(offset))


def changed(log: RemoteLog, decision: Decision, **values: object) -> None:
    """Another decision under its key, as no sink puts one there."""
    other = replace(decision, **values)  # type: ignore[arg-type]  # whatever a test wants
    body = encode_decision(other)
    log.store.execute(Delete((decision.key,)))
    log.store.execute(Put(decision.key, body, ABSENT, crc32c(body)))


# -- what no damage is -------------------------------------------------------------------------------------------------


def test_batches_that_are_carried_out_under_way_or_only_decided_are_right(log: RemoteLog) -> None:
    written(log, "q", 0)
    written(log, "q", 1)
    assert told(log) == []
    under_way = decide(log, "q", 2, staged(log, "q", 2), staged(log, "q", 2, 2, 1))
    assert told(log) == []
    carry_out(log, under_way, [0])
    assert told(log) == []
    carry_out(log, under_way)
    assert told(log) == []
    decide(log, "q", 3)
    staged(log, "q", 3)
    assert told(log) == []


def test_what_retention_takes_is_right(log: RemoteLog) -> None:
    written(log, "q", 0, 4)
    for offset in (EACH // 2, EACH, 3 * EACH, 4 * EACH):
        trim(log, offset)
        assert told(log) == []
    wait(log, 2 * GRACE_MS)
    maintain(log, Kind.COLLECT)
    assert told(log) == []


def test_what_a_merge_takes_is_right(log: RemoteLog) -> None:
    for batch in range(5):
        written(log, "q", batch)
    for kind in (Kind.MERGE, Kind.COLLECT):
        maintain(log, kind)
        assert told(log) == []
    written(log, "q", 5)
    assert told(log) == []
    assert [(row.base, row.next) for row in root_of(log).rows] == [(0, 200), (200, 220), (220, 240)]


def test_a_segment_that_was_rewritten_alone_or_given_up_is_right(log: RemoteLog) -> None:
    written(log, "q", 0, 3)
    rewritten(log, lambda rows: [rows[0], rows[1]._replace(flags=FLAG_HOLE, size=0, idx_len=0, records=0), rows[2]])
    assert told(log) == []


def test_decisions_that_were_swept_are_not_missed(log: RemoteLog) -> None:
    for batch in range(3):
        written(log, "q", batch)
    wait(log, ORPHAN_MS)
    assert run(log, sweep_decisions(delete=True)).keys == ["txn/q/0", "txn/q/1"]
    assert told(log) == []
    wait(log, DECISION_KEPT_MS)
    assert run(log, sweep_decisions(delete=True)).keys == ["txn/q/2"]
    assert told(log) == []


def test_a_batch_that_was_decided_anew_after_the_sweep_is_right(log: RemoteLog) -> None:
    """A checkpoint of weeks ago: what is decided now was committed long since, in one partition, not in the other."""
    for batch in range(3):
        decision = decide(log, "q", batch, staged(log, "q", batch))
        carry_out(log, decision)
    wait(log, ORPHAN_MS)
    run(log, sweep_decisions(delete=True))
    anew = decide(log, "q", 0, staged(log, "q", 0), staged(log, "q", 0, 2, 1))
    assert told(log) == []
    carry_out(log, anew)
    assert told(log) == []
    assert (len(root_of(log).rows), len(root_of(log, 1).rows)) == (6, 2)


@pytest.mark.parametrize("what", ["times", "versions"])
def test_which_was_decided_first_is_told_by_times_and_by_versions(log: RemoteLog, what: str) -> None:
    """As before; a copy of a bucket has other times, and who stood still since he read the roots has older versions."""
    for batch in range(3):
        carry_out(log, decide(log, "q", batch, staged(log, "q", batch)))
    wait(log, ORPHAN_MS)
    run(log, sweep_decisions(delete=True))
    anew = decide(log, "q", 0, staged(log, "q", 0), staged(log, "q", 0, 2, 1))
    if what == "versions":
        changed(log, anew, seen=dict.fromkeys(anew.seen, 1))
    else:
        wait(log, 1000)
        newest = run(log, read_decision("txn/q/2"))
        assert newest is not None
        changed(log, newest)
    assert told(log) == []


def test_an_id_that_was_forgotten_and_adds_again_is_right(log: RemoteLog) -> None:
    first = decide(log, "monthly", 0, staged(log, "monthly", 0))
    carry_out(log, first)
    wait(log, 2 * DECISION_KEPT_MS)
    assert run(log, sweep_decisions(delete=True)).keys == ["txn/monthly/0"]
    for number in range(TXNS_LIMIT):
        txn = f"other-{number}"
        carry_out(log, decide(log, txn, 0, staged(log, txn, 0, 1)))
    again = decide(log, "monthly", 0, staged(log, "monthly", 0))
    assert told(log) == []
    carry_out(log, again)
    assert told(log) == []
    assert len(root_of(log).rows) == 2 * 2 + TXNS_LIMIT


def test_a_batch_that_the_root_has_forgotten_is_right_whatever_was_collected_since(log: RemoteLog) -> None:
    carry_out(log, decide(log, "first", 0, staged(log, "first", 0)))
    for number in range(TXNS_LIMIT):
        txn = f"other-{number}"
        carry_out(log, decide(log, txn, 0, staged(log, txn, 0, 1)))
    for kind in (Kind.MERGE, Kind.COLLECT):
        maintain(log, kind)
    assert told(log) == []


def test_a_batch_that_is_decided_again_after_an_abort_is_right(log: RemoteLog) -> None:
    staged(log, "q", 0)
    wait(log, 2 * GRACE_MS)
    maintainer = Maintainer(TopicPartition(log.topic, 0), TOPIC_ID, TopicConfig(gc_grace_ms=GRACE_MS), owner="gc:1")
    run(log, maintainer.sweep(delete=True))
    again = decide(log, "q", 0, staged(log, "q", 0))
    assert again.generation == 1
    assert told(log) == []
    carry_out(log, again)
    assert told(log) == []


def test_a_partition_that_was_handed_over_and_a_topic_that_is_unknown_are_right(log: RemoteLog) -> None:
    waiting = decide(log, "q", 0, staged(log, "q", 0), staged(log, "q", 0, 2, 1))
    carry_out(log, waiting, [0])
    run(log, hand_over(PartitionIds(log.topic, TOPIC_ID), [1], "local", "test"))
    assert told(log) == []
    for row in waiting.partitions[TOPIC_ID, 1]:
        log.store.execute(Delete((segment_key(TOPIC_ID, 1, row),)))
    assert run(log, check_decisions([])) == []


class Meanwhile(MemoryStore):
    """Something happens before the first HEAD."""

    then: Callable[[], object] | None = None

    def execute(self, request: StoreRequest) -> Outcome:
        if isinstance(request, Head) and self.then is not None:
            then, self.then = self.then, None
            then()
        return super().execute(request)


def test_what_is_committed_merged_and_collected_meanwhile_is_right() -> None:
    clock = FakeClock()
    store = Meanwhile(clock=clock)
    log = RemoteLog(store, clock=clock)
    drive(store, make_roots(PartitionIds(log.topic, log.topic_id), [0], "test"), clock=clock, ids=log.ids)
    decision = decide(log, "q", 0, staged(log, "q", 0, 5))

    def goes_on() -> None:
        carry_out(log, decision)
        maintain(log, Kind.MERGE, Kind.COLLECT)

    store.then = goes_on
    assert told(log) == []
    assert (store.then, len(root_of(log).rows)) == (None, 1)


def test_a_topic_that_is_being_deleted_is_right(log: RemoteLog) -> None:
    rows = staged(log, "q", 0)
    decide(log, "q", 0, rows)
    log.store.execute(Delete((segment_key(TOPIC_ID, 0, rows[0]),)))
    put_root(log, replace(root_of(log), state="deleting"))
    assert told(log) == []


# -- what is damage ----------------------------------------------------------------------------------------------------


def test_an_older_root_that_was_put_back_is_told(log: RemoteLog) -> None:
    written(log, "q", 0)
    before = root_of(log)
    written(log, "q", 1)
    written(log, "q", 2)
    put_root(log, before)
    assert told(log) == [("went_back", root_key(TOPIC_ID, 0), 0, -1)]


def test_half_of_a_batch_whose_sink_went_on_is_told(log: RemoteLog) -> None:
    """Of the other partition the root was replaced before the next batch was decided: no version tells."""
    half = decide(log, "q", 0, staged(log, "q", 0), staged(log, "q", 0, 2, 1))
    carry_out(log, half, [0])
    assert told(log) == []
    later = decide(log, "q", 1, staged(log, "q", 1))
    assert told(log) == []  # decided, not carried out
    carry_out(log, later)
    assert told(log) == [("decision_half", "txn/q/0", 1, -1)]
    carry_out(log, half)
    assert told(log) == []


def test_a_later_batch_that_shares_no_partition_proves_nothing(log: RemoteLog) -> None:
    half = decide(log, "q", 0, (), staged(log, "q", 0, 2, 1))
    carry_out(log, decide(log, "q", 1, staged(log, "q", 1)))
    assert told(log) == []
    carry_out(log, half)
    assert told(log) == []


@pytest.mark.parametrize("which", [segment_key, index_key])
def test_a_segment_that_is_to_be_committed_and_is_gone_is_told(log: RemoteLog, which: Callable[..., str]) -> None:
    rows = staged(log, "q", 0, 10)
    decision = decide(log, "q", 0, rows)
    log.store.execute(Delete((which(TOPIC_ID, 0, rows[9]),)))
    assert told(log) == [("decision_segment", "txn/q/0", 0, -1)]
    carry_out(log, decision)  # from then on its row is looked at
    assert told(log) == []


def test_a_segment_that_is_to_be_committed_and_has_other_bytes_is_told(log: RemoteLog) -> None:
    rows = staged(log, "q", 0)
    decide(log, "q", 0, rows)
    log.damage(segment_key(TOPIC_ID, 0, rows[0]), 90)
    log.replace(index_key(TOPIC_ID, 0, rows[1]), b"short")
    assert told(log) == [("decision_segment", "txn/q/0", 0, -1)] * 2


def test_a_row_that_is_not_what_was_decided_is_told(log: RemoteLog) -> None:
    written(log, "q", 0, 3)
    rewritten(log, lambda rows: [rows[0], rows[1]._replace(crc=rows[1].crc ^ 1), rows[2]])
    assert told(log) == [("decision_differs", "txn/q/0", 0, EACH)]


def test_segments_in_another_order_are_told(log: RemoteLog) -> None:
    decision = written(log, "q", 0, 3)
    target = (TOPIC_ID, 0)
    first, second, third = decision.partitions[target]
    changed(log, decision, partitions={**decision.partitions, target: (first, third, second)})
    assert told(log) == [("decision_differs", "txn/q/0", 0, EACH), ("decision_differs", "txn/q/0", 0, 2 * EACH)]


def test_a_segment_that_the_catalog_leaves_out_is_told(log: RemoteLog) -> None:
    written(log, "q", 0, 3)
    foreign = staged(log, "q", 0, 1)[0]
    rewritten(log, lambda rows: [rows[0], rows[1]._replace(id_hi=foreign.id_hi, id_lo=foreign.id_lo), rows[2]])
    # What is in its place, and that it is not there.
    assert told(log) == [("decision_differs", "txn/q/0", 0, EACH)] * 2
    rewritten(log, lambda rows: [rows[0]])
    assert told(log) == [("decision_differs", "txn/q/0", 0, at) for at in (EACH, 2 * EACH)]


def test_a_segment_that_no_decision_names_is_told_behind_those_of_its_batch(log: RemoteLog) -> None:
    written(log, "q", 0)
    foreign = staged(log, "q", 0, 1)[0]
    end = 2 * EACH
    rewritten(log, lambda rows: [*rows, rows[-1]._replace(base=end, next=end + EACH, id_lo=foreign.id_lo)])
    assert told(log) == [("decision_differs", "txn/q/0", 0, end)]


def test_a_segment_that_was_aborted_and_stands_in_the_catalog_is_told(log: RemoteLog) -> None:
    decision = written(log, "q", 0)
    changed(log, decision, state=ABORTED)
    assert told(log) == [("decision_aborted", decision_key("q", 0), p, at) for p in (0, 1) for at in (0, EACH)]
