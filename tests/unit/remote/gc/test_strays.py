"""Strays: what proves that nobody can name an object any more, and everything else, which stays."""

from __future__ import annotations

from typing import TypeVar
from uuid import UUID

import pytest

from tests.unit.remote.building import TOPIC_ID, RemoteLog
from tiered.errors import CorruptionError, RemotePermissionError
from tiered.format.kernels import crc32c
from tiered.format.keys import (
    partition_prefix,
    root_key,
    topic_key,
)
from tiered.plan.maintenance import ORPHAN_MS
from tiered.remote.gc.audit import note_destroyed, was_destroyed
from tiered.remote.gc.deletion import destroy, resume_topic_deletion, start_deletion
from tiered.remote.gc.orphans import Swept, sweep_strays
from tiered.remote.roots import TopicIds, load_roots, make_roots
from tiered.remote.topics import load_entry, register_topic
from tiered.store.base import (
    ABSENT,
    Delete,
    Outcome,
    Put,
    PutResult,
    PutStatus,
    Steps,
    StoreRequest,
)
from tiered.store.driver import drive
from tiered.store.memory import MemoryStore
from tiered.store.steps import list_all
from tiered.testing.clock import FakeClock

OTHER = UUID(int=77)
DAY_S = ORPHAN_MS / 1000
T = TypeVar("T")


@pytest.fixture
def log() -> RemoteLog:
    """A registered topic of two partitions with a few segments in the first."""
    clock = FakeClock()
    log = RemoteLog(MemoryStore(clock=clock), clock=clock)
    run(log, register_topic(log.topic, TOPIC_ID, 2, {}))
    return log


def run(log: RemoteLog, steps: Steps[T]) -> T:
    return drive(log.store, steps, clock=log.clock, ids=log.ids)


def below(log: RemoteLog, topic_id: UUID = TOPIC_ID) -> list[str]:
    """All keys of a topic id."""
    prefixes = tuple(partition_prefix(topic_id, partition) for partition in range(4))
    return [key for key in everything(log) if key.startswith(prefixes)]


def everything(log: RemoteLog) -> list[str]:
    return [entry.key for entry in run(log, list_all(""))]


def put(log: RemoteLog, key: str, data: bytes = b"late") -> None:
    run(log, _put(key, data))


def _put(key: str, data: bytes) -> Steps[None]:
    yield Put(key, data, ABSENT, crc32c(data))


def destroyed(log: RemoteLog) -> None:
    """The topic goes, as an operator's deletion takes it away."""
    entry = run(log, load_entry(log.topic))
    assert entry is not None
    run(log, start_deletion(entry, "operator"))
    log.clock.advance(60)
    for root in run(log, load_roots(TopicIds(log.topic, TOPIC_ID), range(2))).values():
        assert root is not None
        run(log, destroy(root, 0))
    entry = run(log, load_entry(log.topic))
    assert entry is not None
    assert run(log, resume_topic_deletion(entry, "operator"))
    assert below(log) == []


def late(log: RemoteLog) -> str:
    """What a process that stood still puts below the topic's first partition."""
    key = f"{partition_prefix(TOPIC_ID, 0)}hist/{1:016x}"
    put(log, key)
    return key


def swept(log: RemoteLog, *, delete: bool = True) -> Swept:
    return run(log, sweep_strays(delete=delete))


def test_what_came_after_the_destruction_goes_after_a_day(log: RemoteLog) -> None:
    destroyed(log)
    key = late(log)
    log.clock.advance(DAY_S - 1)
    assert swept(log) == Swept()
    assert below(log) == [key]
    log.clock.advance(1)
    assert swept(log, delete=False) == Swept([key], 1, 4)
    assert below(log) == [key]
    assert swept(log) == Swept([key], 1, 4)
    assert below(log) == []


def test_a_root_goes_last(log: RemoteLog) -> None:
    destroyed(log)
    run(log, make_roots(TopicIds(log.topic, TOPIC_ID), [0], "late"))
    put(log, f"{partition_prefix(TOPIC_ID, 0)}zzz")
    log.clock.advance(DAY_S)
    gone: list[tuple[str, ...]] = []
    execute = log.store.execute

    def watched(request: StoreRequest) -> Outcome:
        gone.extend([request.keys] if isinstance(request, Delete) else [])
        return execute(request)

    log.store.execute = watched  # type: ignore[method-assign]
    swept(log)
    assert gone == [(f"{partition_prefix(TOPIC_ID, 0)}zzz",), (root_key(TOPIC_ID, 0),)]


def test_a_deleted_topic_stays_for_its_grace_by_the_clock_of_the_store(log: RemoteLog) -> None:
    entry = run(log, load_entry(log.topic))
    assert entry is not None
    run(log, start_deletion(entry, "operator"))
    root = run(log, load_roots(TopicIds(log.topic, TOPIC_ID), [0]))[0]
    assert root is not None
    before = below(log)
    log.clock.advance(59)
    assert run(log, destroy(root, 60_000)).held == 1
    assert below(log) == before
    log.clock.advance(2)
    assert run(log, destroy(root, 60_000)).held == 0
    assert root.key not in below(log)


@pytest.mark.parametrize("answers", ["refused", "lost"])
def test_without_a_line_nothing_goes(log: RemoteLog, answers: str) -> None:
    """A PUT of the line that was refused is no line; one whose answer was lost is sent until it is there."""
    entry = run(log, load_entry(log.topic))
    assert entry is not None
    run(log, start_deletion(entry, "operator"))
    log.clock.advance(60)
    root = run(log, load_roots(TopicIds(log.topic, TOPIC_ID), [0]))[0]
    assert root is not None
    execute, sent = log.store.execute, 0

    def answered(request: StoreRequest) -> Outcome:
        nonlocal sent
        if isinstance(request, Put) and request.key.startswith("jobs/gc/"):
            sent += 1
            if answers == "refused":
                raise RemotePermissionError("403")
            if sent < 3:
                return PutResult(PutStatus.UNKNOWN, cause="reset")
        return execute(request)

    log.store.execute = answered  # type: ignore[method-assign]
    if answers == "refused":
        with pytest.raises(RemotePermissionError):
            run(log, destroy(root, 0))
        assert root.key in below(log)
        assert not run(log, was_destroyed(TOPIC_ID, 0))
    else:
        run(log, destroy(root, 0))
        assert (sent, run(log, was_destroyed(TOPIC_ID, 0))) == (3, True)
        assert root.key not in below(log)


def test_what_an_entry_names_stays_whatever_a_line_says(log: RemoteLog) -> None:
    run(log, note_destroyed(TOPIC_ID, 0, {}))
    late(log)
    before = below(log)
    log.clock.advance(2 * DAY_S)
    assert swept(log) == Swept()
    assert below(log) == before


def test_a_lost_entry_makes_no_strays(log: RemoteLog) -> None:
    log.fill(100)
    before = below(log)
    run(log, _delete(topic_key(log.topic)))
    log.clock.advance(2 * DAY_S)
    assert swept(log) == Swept()
    assert below(log) == before


def _delete(key: str) -> Steps[None]:
    yield Delete((key,))


def test_an_unreadable_entry_ends_it(log: RemoteLog) -> None:
    destroyed(log)
    late(log)
    put(log, topic_key("torn"), b"{")
    log.clock.advance(2 * DAY_S)
    with pytest.raises(CorruptionError):
        swept(log)
    assert len(below(log)) == 1
