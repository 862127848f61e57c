"""What ``repair advice`` says of decisions and registry entries that cannot be read."""

from __future__ import annotations

import re
from uuid import UUID

import pytest

from tests.unit.remote.building import TOPIC_ID, TRUSTED, RemoteLog, batches, seal
from tests.unit.remote.staging import stage
from tiered.care.repair_advice import Advice
from tiered.care.run import advise, plan_entry, put_entry
from tiered.format.crc import crc32c
from tiered.format.keys import decision_key, partition_prefix, root_key, topic_key
from tiered.remote.stage import upload_staged
from tiered.remote.topics import register_topic
from tiered.store.base import ABSENT, Delete, Get, Object, Put, list_all
from tiered.store.driver import drive
from tiered.store.memory import MemoryStore

KEY = decision_key("query", 1, 0)


@pytest.fixture
def logs() -> tuple[RemoteLog, RemoteLog]:
    """Two partitions that have batch 0 of a query."""
    first = RemoteLog(MemoryStore())
    second = RemoteLog(first.store, partition=1, ids=first.ids, clock=first.clock)
    drive(first.store, register_topic("flights", TOPIC_ID, 2, {}), clock=first.clock, ids=first.ids)
    for log in (first, second):
        stage(log, [seal(batches(0, 20), partition=log.partition)], 0)
        log.store.execute(Delete((decision_key("query", 0, 0),)))
    return first, second


def hang(log: RemoteLog) -> None:
    """A task has staged something of batch 1, and nothing is committed of it."""
    segment = seal(batches(0, 20), partition=log.partition)
    drive(log.store, upload_staged(segment, "query", 1, TRUSTED), clock=log.clock, ids=log.ids)


def hurt(log: RemoteLog, key: str = KEY, data: bytes = b"garbage") -> None:
    log.store.execute(Delete((key,)))
    log.store.execute(Put(key, data, ABSENT))


def newer_root(log: RemoteLog, key: str) -> None:
    """A root that needs a newer reader."""
    got = log.store.execute(Get(key))
    assert isinstance(got, Object)
    body = re.sub(rb'"min_reader":\d', b'"min_reader":9', bytes(got.data[:-4]))
    hurt(log, key, body + crc32c(body).to_bytes(4, "little"))


def told(log: RemoteLog) -> tuple[Advice, str]:
    (advice,) = advise(log.store, None).lost
    assert "backup" in " ".join(advice.steps[:-1])
    return advice, advice.steps[-1]


def test_a_batch_that_is_nowhere_is_decided_again(logs: tuple[RemoteLog, RemoteLog]) -> None:
    hang(logs[1])
    hurt(logs[0])
    advice, step = told(logs[0])
    assert (advice.key, advice.topic, advice.partition) == (KEY, "", -1)
    assert "no partition has batch 1 of query (flights-1 hold segments of it): stop the query" in step
    logs[0].store.execute(Delete((KEY,)))  # as is said
    rows = stage(logs[1], [seal(batches(0, 10), partition=1)], 1)
    assert (rows[0].base, rows[0].next) == (20, 30)


def test_a_batch_that_is_everywhere_needs_no_decision(logs: tuple[RemoteLog, RemoteLog]) -> None:
    stage(logs[0], [seal(batches(0, 20))], 1)
    hurt(logs[0])
    assert "flights-0 have batch 1 of query, and no other partition holds anything of it" in told(logs[0])[1]
    logs[0].store.execute(Delete((KEY,)))
    stage(logs[0], [seal(batches(0, 10))], 1)  # a replay
    assert logs[0].root is not None
    assert logs[0].root.next_offset == 40
    stage(logs[0], [seal(batches(0, 20))], 2)
    assert logs[0].root.next_offset == 60


def test_a_batch_that_is_in_one_of_two_is_not_to_be_deleted(logs: tuple[RemoteLog, RemoteLog]) -> None:
    hang(logs[1])
    stage(logs[0], [seal(batches(0, 20))], 1)
    hurt(logs[0])
    step = told(logs[0])[1]
    assert "flights-0 have batch 1 of query, flights-1 hold segments of it" in step
    assert "do not delete the decision" in step


def test_where_a_root_cannot_be_asked_nothing_is_known(logs: tuple[RemoteLog, RemoteLog]) -> None:
    hang(logs[1])
    hurt(logs[0])
    hurt(logs[1], root_key(TOPIC_ID, 1))
    root, decision = sorted(advise(logs[0].store, None).lost, key=lambda advice: advice.partition, reverse=True)
    assert root.key == root_key(TOPIC_ID, 1)
    assert "whether flights-1 have batch 1 of query is not known" in decision.steps[-1]


def test_an_entry_of_nothing_is_told_and_hinders_no_other_advice(logs: tuple[RemoteLog, RemoteLog]) -> None:
    hurt(logs[0], topic_key("Alpha"))
    hurt(logs[0], root_key(TOPIC_ID, 1))
    entry, root = sorted(advise(logs[0].store, None).lost, key=lambda advice: advice.partition)
    assert (entry.key, root.key) == ("topics/Alpha", root_key(TOPIC_ID, 1))
    assert "no root below any topic id is of a topic of that name" in entry.steps[-1]


def test_an_entry_of_a_topic_that_has_roots_is_made_anew(logs: tuple[RemoteLog, RemoteLog]) -> None:
    hurt(logs[0], topic_key("flights"))
    assert "`tiered repair registry flights`" in told(logs[0])[1]


def test_an_entry_that_is_gone_is_made_anew(logs: tuple[RemoteLog, RemoteLog]) -> None:
    store = logs[0].store
    store.execute(Delete((topic_key("flights"),)))
    advice, step = told(logs[0])
    assert (advice.key, step[: len("or `tiered repair registry flights`")]) == (
        "topics/flights",
        "or `tiered repair registry flights`",
    )
    put_entry(store, plan_entry(store, "flights"))  # as is said
    assert advise(store, None).lost == ()


def test_what_another_bucket_had_may_be_deleted_or_chosen(logs: tuple[RemoteLog, RemoteLog]) -> None:
    """Somebody copied a partition of a topic of the same name."""
    store, other_id = logs[0].store, UUID(int=7)
    other = RemoteLog(store, topic_id=other_id, ids=logs[0].ids, clock=logs[0].clock)
    other.add(seal(batches(0, 10), topic_id=other_id))
    (advice,) = advise(store, None).lost
    chosen, deleted = advice.steps[-2:]
    assert f"`tiered repair registry flights --id {other_id}`" in chosen
    assert plan_entry(store, "flights", other_id).entry.topic_id == other_id
    prefix = partition_prefix(other_id, 0)
    assert f"copy what lies below {prefix} elsewhere, and delete it here" in deleted
    store.execute(Delete(tuple(entry.key for entry in drive(store, list_all(prefix)))))  # as is said
    assert advise(store, None).lost == ()


def test_a_topic_whose_name_nothing_tells(logs: tuple[RemoteLog, RemoteLog]) -> None:
    logs[0].upload(seal(batches(20, 30)))
    logs[0].store.execute(Delete((topic_key("flights"), root_key(TOPIC_ID, 0), root_key(TOPIC_ID, 1))))
    advised = advise(logs[0].store, None)
    (advice,) = advised.lost
    assert (advice.key, advice.topic, advised.topics) == ("topics/", "", frozenset())
    assert "put one of them back, too, then `tiered repair registry NAME`" in advice.steps[-1]


def test_a_root_that_was_never_made_they_say(logs: tuple[RemoteLog, RemoteLog]) -> None:
    """The entry is from before roots were made with their topic."""
    key = topic_key("flights")
    got = logs[0].store.execute(Get(key))
    assert isinstance(got, Object)
    logs[0].store.execute(Delete((key, root_key(TOPIC_ID, 0), root_key(TOPIC_ID, 1))))
    logs[0].store.execute(Put(key, bytes(got.data).replace(b'"roots": true', b'"roots": false'), ABSENT))
    assert advise(logs[0].store, None).lost == ()
    logs[0].upload(seal(batches(0, 10)))
    (advice,) = advise(logs[0].store, None).lost
    assert (advice.key, "comes after it" in advice.problem) == (root_key(TOPIC_ID, 0), True)
    assert "rebuild-catalog flights:0" in advice.steps[-1]


NEWER = b'{"format": 9}'


def test_an_entry_of_a_newer_release_hinders_no_other_advice(logs: tuple[RemoteLog, RemoteLog]) -> None:
    store = logs[0].store
    hurt(logs[0], topic_key("later"), NEWER)
    advised = advise(store, None)
    (note,) = advised.not_looked_at
    assert (advised.lost, advised.topics) == ((), frozenset({"flights", "later"}))
    assert note == f"{topic_key('later')} was written by a newer release; upgrade tieredlog; nothing was changed"
    hurt(logs[0], root_key(TOPIC_ID, 1))
    hurt(logs[0], topic_key("Alpha"))
    advised = advise(store, None)
    assert [advice.key for advice in advised.lost] == ["topics/Alpha", root_key(TOPIC_ID, 1)]
    assert advised.not_looked_at == (note,)


def test_the_topic_of_an_entry_of_a_newer_release_is_not_taken_for_lost(logs: tuple[RemoteLog, RemoteLog]) -> None:
    hurt(logs[0], topic_key("flights"), NEWER)
    assert (advise(logs[0].store, None).lost, len(advise(logs[0].store, None).not_looked_at)) == ((), 1)
    for partition in (0, 1):
        newer_root(logs[0], root_key(TOPIC_ID, partition))
    advised = advise(logs[0].store, None)
    assert (advised.lost, advised.topics) == ((), frozenset({"flights"}))
    assert f"topic id {TOPIC_ID}: nothing tells its name" in advised.not_looked_at[-1]


def test_a_root_of_a_newer_release_hinders_no_other_advice(logs: tuple[RemoteLog, RemoteLog]) -> None:
    newer_root(logs[0], root_key(TOPIC_ID, 0))
    hurt(logs[0], root_key(TOPIC_ID, 1))
    advised = advise(logs[0].store, None)
    assert [advice.key for advice in advised.lost] == [root_key(TOPIC_ID, 1)]
    (note,) = advised.not_looked_at
    assert (root_key(TOPIC_ID, 0) in note, "newer release" in note, "upgrade" in note) == (True, True, True)


@pytest.mark.parametrize("data", [b"{nothing", NEWER])
def test_of_a_batch_a_topic_that_cannot_be_asked_may_have_it(logs: tuple[RemoteLog, RemoteLog], data: bytes) -> None:
    """Else its decision would be deleted, and the batch decided anew beside what that topic has."""
    hang(logs[1])
    hurt(logs[0])
    hurt(logs[0], topic_key("other"), data)
    (step,) = [advice.steps[-1] for advice in advise(logs[0].store, None).lost if advice.key == KEY]
    assert "whether partitions of topic other have batch 1 of query is not known: go on under another" in step
