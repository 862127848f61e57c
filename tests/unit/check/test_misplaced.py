"""Objects that somebody moved below another prefix: repairs refuse, and say where they lie."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest

import tiered.aio
from tests.unit.check.building import Scenario, scenario
from tiered.care.misplaced import copy_command, misplaced_words
from tiered.care.run import mend, plan_mend, plan_rebuild
from tiered.errors import ConfigError, CorruptionError
from tiered.format.keys import gc_audit_key, partition_prefix, segment_key
from tiered.model import TopicPartition
from tiered.store.base import ABSENT, List, ListEntry, Outcome, Put, StoreRequest, list_all
from tiered.store.driver import drive
from tiered.store.location import StoreLocation

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


def objects(log: Scenario) -> dict[str, bytes]:
    return {entry.key: log.read(entry.key) for entry in drive(log.store, list_all(""))}


@pytest.mark.parametrize("left", [b"", b"cut"], ids=["gone", "cut"])
def test_what_lies_elsewhere_is_not_given_up(log: Scenario, left: bytes) -> None:
    row = log.rows()[1]
    key = segment_key(log.root().topic_id, 0, row)
    place, data = f"backup/of/{key}", log.read(key)
    move(log, key, place)
    if left:
        log.replace(key, data[: len(data) // 2])
    before = objects(log)
    for offsets in ([], [row.base]):
        with pytest.raises(ConfigError, match=f"{place} has its name, size and checksum: nothing was given up") as told:
            plan_mend(log.store, TP, offsets, drop=True)
        assert told.value.hint.startswith(
            f"if it was moved there by mistake, copy it to {key}, then run `tiered check`"
        )
        assert told.value.hint.endswith("else --accept-loss gives up all the same what cannot be read")
    plan = plan_mend(log.store, TP, drop=True, accept_loss=True)
    assert [(each.row, each.problem.split("; ")[-1]) for each in plan.rows] == [
        (row, f"{place} has its name, size and checksum")
    ]
    assert plan.lost[-1].end == row.next
    assert objects(log) == before
    log.replace(key, data)  # as is said
    with pytest.raises(ConfigError, match="nothing to repair"):
        plan_mend(log.store, TP, drop=True)


def test_a_loss_is_accepted_only_of_what_is_given_up(log: Scenario) -> None:
    """It had no effect: whoever asked for it was told that something would be lost, as if it had not been accepted."""
    row = log.rows()[1]
    log.delete(segment_key(log.root().topic_id, 0, row))
    before = objects(log)
    told = f"{TP}: accept_loss was asked for without drop"

    async def ask() -> None:
        store = StoreLocation.parse(log.url).open_aio()
        try:
            await tiered.aio.plan_mend(store, TP, [row.base], accept_loss=True)
        finally:
            await store.close()

    with pytest.raises(ConfigError, match=told) as refused:
        plan_mend(log.store, TP, [row.base], accept_loss=True)
    assert refused.value.hint.startswith("drop=True gives up what cannot be read")
    with pytest.raises(ConfigError, match=told):
        asyncio.run(ask())
    assert objects(log) == before
    assert plan_mend(log.store, TP, [row.base], drop=True, accept_loss=True).lost[0].start == row.base


def test_whoever_accepts_the_loss_gives_it_up(log: Scenario) -> None:
    row = log.rows()[1]
    key = segment_key(log.root().topic_id, 0, row)
    data = log.read(key)
    move(log, key, f"backup/{key}")
    mend(log.store, plan_mend(log.store, TP, drop=True, accept_loss=True), "test")
    assert log.read(f"backup/{key}") == data
    with pytest.raises(ConfigError, match="nothing to repair"):
        plan_mend(log.store, TP, drop=True)


@pytest.mark.parametrize("change", ["bytes", "size", "name"])
def test_for_another_object_nothing_is_kept(log: Scenario, change: str) -> None:
    row = log.rows()[1]
    key = segment_key(log.root().topic_id, 0, row)
    data = log.read(key)
    changed = {"bytes": data[:-1] + bytes([data[-1] ^ 1]), "size": data[:-1], "name": data}[change]
    move(log, key, f"backup/{key}" if change != "name" else "backup/1.log", changed)
    (plan,) = plan_mend(log.store, TP, drop=True).rows
    assert (plan.row, plan.problem) == (row, "the .log is gone")
    assert [(loss.start, loss.end) for loss in plan.lost] == [(row.base, row.next)]


@pytest.mark.parametrize(
    ("url", "command"),
    [
        ("s3://acme/prod", "aws s3 cp 's3://acme/prod/a b/1.log' s3://acme/prod/s/1.log"),
        ("s3://acme", "aws s3 cp 's3://acme/a b/1.log' s3://acme/s/1.log"),
        ("file:///srv/it", "mkdir -p /srv/it/s && cp '/srv/it/a b/1.log.obj' /srv/it/s/1.log.obj"),
        ("memory://it", ""),
        ("", ""),
    ],
)
def test_the_command_that_copies_is_a_whole_one(url: str, command: str) -> None:
    assert copy_command(url, "a b/1.log", "s/1.log") == command


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
