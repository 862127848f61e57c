"""Objects that somebody moved below another prefix: repairs refuse, and say where they lie."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest

from tests.unit.check.building import Scenario, scenario
from tiered.care.misplaced import misplaced_words
from tiered.care.run import plan_mend, plan_rebuild
from tiered.errors import ConfigError, CorruptionError
from tiered.format.keys import gc_audit_key, partition_prefix, segment_key
from tiered.model import TopicPartition
from tiered.store.base import ABSENT, List, ListEntry, Outcome, Put, StoreRequest, list_all
from tiered.store.driver import drive

TP = TopicPartition("flights", 0)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Scenario]:
    with scenario(tmp_path) as built:
        yield built


def move(log: Scenario, key: str, to: str, data: bytes | None = None) -> None:
    log.store.execute(Put(to, log.read(key) if data is None else data, ABSENT))
    log.delete(key)


def hint_of(log: Scenario) -> str:
    with pytest.raises(CorruptionError) as refused:
        plan_mend(log.store, TP)
    return refused.value.hint


def test_a_log_that_was_moved_is_named_and_moved_back(log: Scenario) -> None:
    key = segment_key(log.root().topic_id, 0, log.rows()[1])
    place = f"backup/of/{key}"
    move(log, key, place)
    hint = hint_of(log)
    said = f"{place} has its name, size and checksum: if it was moved there by mistake, copy it to {key}; else put "
    assert hint.startswith(said)
    move(log, place, key)  # as is said
    with pytest.raises(ConfigError, match="nothing to repair"):
        plan_mend(log.store, TP)


@pytest.mark.parametrize("change", ["bytes", "size", "name"])
def test_what_is_another_object_is_not_named(log: Scenario, change: str) -> None:
    key = segment_key(log.root().topic_id, 0, log.rows()[1])
    data = log.read(key)
    changed = {"bytes": data[:-1] + bytes([data[-1] ^ 1]), "size": data[:-1], "name": data}[change]
    move(log, key, f"backup/{key}" if change != "name" else "backup/1.log", changed)
    assert hint_of(log).startswith("put the object back: ")


def test_a_partition_that_was_moved_is_named(log: Scenario) -> None:
    right = partition_prefix(log.root().topic_id, 0)
    keys = [entry.key for entry in drive(log.store, list_all(right))]
    for key in keys:
        move(log, key, f"copy/{key}")
    with pytest.raises(CorruptionError) as refused:
        plan_rebuild(log.store, TP, "test")
    hint = refused.value.hint
    assert f"lie under another prefix: {len(keys)} below copy/{right}; if they were moved there by mistake" in hint
    for key in keys:
        move(log, f"copy/{key}", key)
    with pytest.raises(ConfigError, match="nothing to rebuild"):
        plan_rebuild(log.store, TP, "test")


def test_places_are_told_by_how_much_lies_there() -> None:
    topic_id = UUID(int=7)
    right, other = partition_prefix(topic_id, 1), partition_prefix(topic_id, 11)
    folder = right.partition("/")[2]
    keys = [f"{right}root", f"{other}root", gc_audit_key(topic_id, 1, 5, "1" * 32), f"{folder}root"]
    keys += [f"a/{folder}s/1", f"a/{folder}s/2", f"x{folder}root"]
    told = misplaced_words(topic_id, 1, [ListEntry(key, 1, "", 0) for key in keys])
    assert f"another prefix: 2 below a/{folder}, 1 below {folder}; if" in told
    assert misplaced_words(topic_id, 1, [ListEntry(key, 1, "", 0) for key in keys[:3]]) == ""


def test_a_plan_lists_the_partition_and_the_rest_once(log: Scenario) -> None:
    """However many segments are looked for."""
    topic_id, rows = log.root().topic_id, log.rows()
    first, second = (segment_key(topic_id, 0, row) for row in rows[:2])
    bodies = log.read(first), log.read(second)
    log.replace(first, bodies[1])
    log.replace(second, bodies[0])
    listed: list[str] = []

    class Counts:
        """Which prefixes are listed."""

        url = log.store.url

        def execute(self, request: StoreRequest) -> Outcome:
            """One request."""
            if isinstance(request, List) and not request.start_after:
                listed.append(request.prefix)
            return log.store.execute(request)

        def close(self) -> None:
            """Nothing is open."""

    assert [each.body for each in plan_mend(Counts(), TP).rows] == [second, first]
    assert listed == [partition_prefix(topic_id, 0)]
