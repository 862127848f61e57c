"""What a registry entry is made anew of: every root of the topic, each read once."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from tests.unit.remote.building import TOPIC_ID, RemoteLog, batches, seal
from tiered.care.check_registry import GETS_AT_ONCE
from tiered.care.run import plan_entry
from tiered.format.keys import root_key, topic_key
from tiered.format.root import STATE_DELETING, STATE_OPEN, decode_root, encode_root
from tiered.remote.topics import register_topic
from tiered.store.base import ABSENT, Delete, Get, Object, Outcome, Put, StoreRequest, Together
from tiered.store.driver import drive
from tiered.store.memory import MemoryStore

PARTITIONS = 2 * GETS_AT_ONCE + 3


class Counts:
    """How often each object is read."""

    def __init__(self, store: MemoryStore) -> None:
        self.url = store.url
        self.read = Counter[str]()
        self._store = store

    def execute(self, request: StoreRequest) -> Outcome:
        """One request."""
        for each in request.requests if isinstance(request, Together) else (request,):
            self.read.update([each.key] if isinstance(each, Get) else [])
        return self._store.execute(request)

    def close(self) -> None:
        """Nothing is open."""


@pytest.mark.parametrize("in_use", [-1, 0, GETS_AT_ONCE + 1])
@pytest.mark.parametrize("deleting", [-1, 0, GETS_AT_ONCE + 2, PARTITIONS - 1])
def test_each_root_is_asked_once_whether_its_topic_is_being_deleted(in_use: int, deleting: int) -> None:
    log = RemoteLog(MemoryStore(), partition=max(in_use, 0))
    drive(log.store, register_topic("flights", TOPIC_ID, PARTITIONS, {}), clock=log.clock, ids=log.ids)
    if in_use >= 0:
        log.add(seal(batches(0, 10), partition=in_use))
    if deleting >= 0:
        key = root_key(TOPIC_ID, deleting)
        got = log.store.execute(Get(key))
        assert isinstance(got, Object)
        log.store.execute(Delete((key,)))
        marked = replace(decode_root(bytes(got.data), key=key), state=STATE_DELETING)
        log.store.execute(Put(key, encode_root(marked), ABSENT))
    log.store.execute(Delete((topic_key("flights"),)))
    store = Counts(log.store)
    entry = plan_entry(store, "flights").entry
    assert (entry.partitions, entry.state) == (PARTITIONS, STATE_OPEN if deleting < 0 else STATE_DELETING)
    roots = {root_key(TOPIC_ID, number): 1 for number in range(PARTITIONS)}
    assert {key: count for key, count in store.read.items() if key.endswith("/root")} == roots
