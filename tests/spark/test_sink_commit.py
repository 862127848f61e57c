"""The driver's side of the sink: exactly once, whoever dies when, and at which price."""

from __future__ import annotations

import itertools
import resource
from collections import Counter
from collections.abc import Callable
from uuid import UUID

import pyarrow as pa
import pytest

from tests.spark.staging import TEXT, Bucket, batch_of, targets, values
from tiered.errors import FencedError
from tiered.format.keys import FLAG_STAGED, Role, split_uid, staged_uid
from tiered.model import Row
from tiered.plan.ownership import VolumeProof
from tiered.remote.catalog import Catalog
from tiered.spark.staging import Staged
from tiered.store.base import Outcome, Store, StoreAround, StoreRequest
from tiered.store.driver import drive
from tiered.store.memory import MemoryStore
from tiered.testing.faults import FaultStore

PARTITIONS = 3


class Crash(BaseException):
    """The process is gone."""


class AfterRequests(StoreAround):
    """Does something, once, when ``count`` requests were carried out; without anything to do the process is gone."""

    def __init__(self, inner: Store, count: int, do: Callable[[], None] | None = None) -> None:
        super().__init__(inner)
        self._turns = itertools.count()
        self._count = count
        self._do = do

    def execute(self, request: StoreRequest) -> Outcome:
        turn = next(self._turns)
        if turn >= self._count and self._do is None:
            raise Crash
        if turn == self._count and self._do is not None:
            self._do()
        return self.inner.execute(request)


@pytest.fixture
def bucket() -> Bucket:
    made = Bucket(MemoryStore())
    made.make("flights", PARTITIONS)
    return made


def tasks_of(word: str, tasks: int = 2, rows: int = 12) -> list[list[pa.RecordBatch]]:
    """Rows whose keys are the same for every ``word``, and whose partitions are not: as with ``rand()``."""
    return [
        [batch_of(TEXT, [(f"{word}-{task}-{at}", f"{word}:{task}:{at}") for at in range(rows)])]
        for task in range(tasks)
    ]


def expected(word: str, tasks: int = 2, rows: int = 12) -> list[str]:
    return sorted(f"{word}:{task}:{at}" for task in range(tasks) for at in range(rows))


def found(bucket: Bucket) -> list[str]:
    return sorted(itertools.chain.from_iterable(values(records) for records in bucket.everything().values()))


def test_rows_are_in_the_order_of_their_tasks(bucket: Bucket) -> None:
    columns = f"{TEXT}, partition int"
    tasks = [[batch_of(columns, [(None, f"{task}.{at}", 1) for at in range(3)])] for task in range(12)]
    staged = bucket.stage("job", 0, tasks, columns=columns)
    landed = bucket.commit("job", 0, staged[::-1])
    assert values(bucket.records(partition=1)) == [f"{task}.{at}" for task in range(12) for at in range(3)]
    assert targets(landed) == [(bucket.topics["flights"].topic_id, 1)]
    assert [(each.base, each.end) for each in landed] == [(0, 36)]


def test_a_commit_costs_a_get_and_a_swap_of_each_touched_partition_and_one_decision(bucket: Bucket) -> None:
    bucket.make("wide", 200)
    columns = f"{TEXT}, partition int"
    tasks = [[batch_of(columns, [("k", "v", at)])] for at in (3, 77, 3, 150)]
    staged = bucket.stage("job", 0, tasks, columns=columns, topic="wide")
    store = FaultStore(bucket.store)
    bucket.commit("job", 0, staged, store)
    kinds = Counter(
        (operation, next(name for name in ("txn/", "/hist/", "/root") if name in key)) for operation, key in store.calls
    )
    assert kinds == {("get", "/root"): 3, ("put", "txn/"): 1, ("put", "/root"): 3, ("put", "/hist/"): 3}


def test_the_same_id_again_adds_nothing_and_asks_nothing_for_untouched_partitions(bucket: Bucket) -> None:
    bucket.commit("nightly", 0, bucket.stage("nightly", 0, tasks_of("first")))
    again = bucket.stage("nightly", 0, tasks_of("second"))
    store = FaultStore(bucket.store)
    landed = bucket.commit("nightly", 0, again, store)
    assert found(bucket) == expected("first")
    assert {(each.base, each.end) for each in landed} == {(-1, -1)}
    assert all(operation != "put" or key.startswith("txn/") or "/hist/" in key for operation, key in store.calls)
    bucket.commit("other", 0, bucket.stage("other", 0, tasks_of("second")))
    assert found(bucket) == sorted(expected("first") + expected("second"))


def commit_requests() -> int:
    whole = Bucket(MemoryStore())
    whole.make("flights", PARTITIONS)
    store = FaultStore(whole.store)
    whole.commit("query", 0, whole.stage("query", 0, tasks_of("first")), store)
    return len(store.calls)


@pytest.mark.parametrize("died_after", range(commit_requests() + 1))
def test_a_driver_that_dies_anywhere_and_a_replay_with_other_rows(bucket: Bucket, died_after: int) -> None:
    first = bucket.stage("query", 0, tasks_of("first"))
    dying = AfterRequests(bucket.store, died_after)
    if died_after < commit_requests():
        with pytest.raises(Crash):
            bucket.commit("query", 0, first, dying)
    else:
        bucket.commit("query", 0, first, dying)
    bucket.commit("query", 0, bucket.stage("query", 0, tasks_of("second")))
    decided = died_after > PARTITIONS  # the roots are read, then the decision is made
    assert found(bucket) == expected("first" if decided else "second")
    bucket.commit("query", 1, bucket.stage("query", 1, tasks_of("third")))
    assert found(bucket) == sorted(expected("first" if decided else "second") + expected("third"))


@pytest.mark.parametrize("stood_after", range(commit_requests()))
def test_a_driver_that_stood_still_while_another_found_no_rows(bucket: Bucket, stood_after: int) -> None:
    first = bucket.stage("query", 0, tasks_of("first"))
    third = bucket.stage("query", 1, tasks_of("third"))

    def others() -> None:
        bucket.commit("query", 0, [(0, ())])
        bucket.commit("query", 1, third)

    bucket.commit("query", 0, first, AfterRequests(bucket.store, stood_after, others))
    decided = stood_after > PARTITIONS
    assert found(bucket) == sorted((expected("first") if decided else []) + expected("third"))


def test_a_batch_without_rows_adopts_what_was_decided_before(bucket: Bucket) -> None:
    first = bucket.stage("query", 0, tasks_of("first"))
    with pytest.raises(Crash):
        bucket.commit("query", 0, first, AfterRequests(bucket.store, PARTITIONS + 1))
    assert found(bucket) == []
    store = FaultStore(bucket.store)
    bucket.commit("query", 0, [(0, ())], store)
    assert found(bucket) == expected("first")
    store.calls.clear()
    assert bucket.commit("query", 1, [(0, ())], store) == ()
    assert store.calls == [("put", "txn/query/1")]


def test_a_partition_that_a_local_log_owns_is_refused_with_the_command(bucket: Bucket) -> None:
    topic = bucket.topics["flights"]
    catalog = Catalog(topic.topic_id, 1, "flights", persist=lambda token, append: None)
    drive(bucket.store, catalog.claim(Role.WRITER, "host:1", VolumeProof("volume-1", empty=True, end_offset=0)))
    staged = bucket.stage("query", 0, tasks_of("first"))
    store = FaultStore(bucket.store)
    with pytest.raises(FencedError) as told:
        bucket.commit("query", 0, staged, store)
    assert "tiered topic transfer flights spark" in str(told.value)
    assert "flights-1" in str(told.value)
    assert not [call for call in store.calls if call[0] == "put"]
    assert found_rows(bucket) == 0


def found_rows(bucket: Bucket) -> int:
    return sum(len(bucket.rows(partition=number)) for number in range(PARTITIONS))


def test_25_000_segments_in_one_commit(bucket: Bucket) -> None:
    topic_id = bucket.topics["flights"].topic_id
    tasks = [(task, tuple(fabricated(topic_id, task, at) for at in range(125))) for task in range(200)]
    store = FaultStore(bucket.store)
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    bucket.commit("big", 0, tasks, store)
    grown_mib = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib) / 1024
    assert Counter(key[-5:] for operation, key in store.calls if operation == "get") == {"/root": PARTITIONS}
    puts = Counter(
        "page" if key.endswith(".page") else key[-5:] for operation, key in store.calls if operation == "put"
    )
    assert (puts["/root"], puts["big/0"]) == (PARTITIONS, 1)
    assert found_rows(bucket) == 25_000
    assert grown_mib < 256


def fabricated(topic_id: UUID, task: int, at: int) -> Staged:
    number = task * 125 + at
    id_hi, id_lo = split_uid(staged_uid("big", 0, number))
    row = Row(0, 10, 5, 9, 1000, number, id_hi, id_lo, 600, 0, 10, FLAG_STAGED, -1)
    return Staged("flights", topic_id, number % PARTITIONS, row)
