"""Rounds of maintenance over a whole bucket: whose turn it is, what fails, when it ends."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tiered
from tests.support.uploaded import RETAINED, upload_topics
from tiered.clock import SystemClock
from tiered.errors import CorruptionError, RemotePermissionError, RemoteUnavailableError, TieredError
from tiered.group.admin import reset_group
from tiered.model import TopicPartition
from tiered.plan.maintenance import MaintenanceKind
from tiered.program.maintenance_loop import MaintenanceLoop, Scope
from tiered.remote.gc.deletion import start_deletion
from tiered.remote.maintain import ActionResult, Maintainer
from tiered.remote.topics import load_topic
from tiered.store.base import List, Store, StoreRequest
from tiered.store.directory import DirectoryStore
from tiered.store.driver import drive
from tiered.store.location import StoreLocation
from tiered.store.options import StoreOptions
from tiered.testing.clock import FakeClock, SeededIds

A, B, C = (TopicPartition(name, 0) for name in "abc")


class Rests(FakeClock):
    """Keeps how long somebody waited for an event."""

    def __init__(self) -> None:
        super().__init__()
        self.rests: list[float | None] = []

    def wait(self, event: threading.Event, seconds: float | None) -> bool:
        self.rests.append(seconds)
        return super().wait(event, seconds)


class Told:
    """What the rounds told, and what happens when they do."""

    def __init__(self) -> None:
        self.done: list[tuple[TopicPartition, MaintenanceKind]] = []
        self.failed: list[tuple[TopicPartition | None, type[TieredError]]] = []
        self.then: Callable[[], object] = lambda: None

    def on_done(self, tp: TopicPartition, done: ActionResult) -> None:
        self.done.append((tp, done.action.kind))
        self.then()

    def on_failed(self, tp: TopicPartition | None, error: TieredError) -> None:
        self.failed.append((tp, type(error)))
        self.then()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Three topics of which retention takes the beginning."""
    place = StoreLocation.parse(upload_topics(tmp_path, {**RETAINED, "merge.min.bytes": 0}, "abc"))
    return place.open(StoreOptions(clock=FakeClock()))


def upkeep_of(store: Store, told: Told, clock: FakeClock | None = None, **scope: Any) -> MaintenanceLoop:
    return MaintenanceLoop(
        store,
        owner="m",
        clock=clock or FakeClock(),
        ids=SeededIds(),
        scope=Scope(**scope),
        on_done=told.on_done,
        on_failed=told.on_failed,
    )


def test_a_round_over_the_whole_bucket_reports_the_lag_of_its_groups(store: Store) -> None:
    with tiered.open_reader(store.url) as reader:
        ids = {name: info.topic_id for name, info in reader.topics().items()}
    positions = {tp: (ids[tp.topic], offset) for tp, offset in ((A, 40), (B, 39))}
    drive(store, reset_group("billing", positions))  # type: ignore[arg-type]
    alone, told = upkeep_of(store, Told(), topic="a"), Told()
    alone.turn()
    assert alone.view.groups == ()
    upkeep = upkeep_of(store, told)
    upkeep.turn()
    figures = [each for each in upkeep.view.metrics() if each.name == "tiered_group_lag_records"]
    assert [(dict(each.labels)["topic"], each.value) for each in figures] == [("b", 1), ("a", 0)]


def test_unreadable_groups_stop_no_maintenance(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    execute = DirectoryStore.execute

    def refuse(self: DirectoryStore, request: StoreRequest) -> Any:
        if isinstance(request, List) and request.prefix.startswith("groups/"):
            raise RemotePermissionError("groups/ may not be listed")
        return execute(self, request)

    monkeypatch.setattr(DirectoryStore, "execute", refuse)
    told = Told()
    upkeep = upkeep_of(store, told)
    upkeep.turn()
    assert told.failed == [(None, RemotePermissionError)]
    assert (upkeep.view.rounds, upkeep.view.trouble, upkeep.view.groups) == (1, None, ())


def root_of_a(store: Store, tmp_path: Path) -> Path:
    """The file of the root of topic ``a``."""
    with tiered.open_reader(store.url) as reader:
        topic_id = reader.topics()["a"].topic_id
    assert topic_id is not None
    (root,) = (tmp_path / "store").glob(f"??/{topic_id.hex}-0/root.obj")
    return root


def test_one_partition_keeps_no_other_from_its_turn(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is wrong with it: damage, or a bug that only its records meet."""
    root = root_of_a(store, tmp_path)
    root.write_bytes(root.read_bytes()[:-1])
    run = Maintainer.run

    def buggy(self: Maintainer, *args: Any, **kwargs: Any) -> Any:
        if self._tp == B:
            raise IndexError("a bug")
        return run(self, *args, **kwargs)

    monkeypatch.setattr(Maintainer, "run", buggy)
    told = Told()
    upkeep = upkeep_of(store, told)
    upkeep.turn()
    assert told.done == [(C, MaintenanceKind.RETENTION)]
    assert told.failed == [(A, CorruptionError), (B, TieredError)]
    assert (upkeep.view.rounds, set(upkeep.view.failed), dict(upkeep.view.actions)) == (
        1,
        {A, B},
        {MaintenanceKind.RETENTION: 1},
    )
    monkeypatch.undo()
    upkeep.turn()
    assert (upkeep.view.rounds, set(upkeep.view.failed)) == (2, {A})  # what is well again is not told for ever


def test_an_older_root_that_was_put_back_is_left_alone_round_after_round(store: Store, tmp_path: Path) -> None:
    """Each round would claim it, and make a version of it: soon it would have more than the newer one had."""
    root = root_of_a(store, tmp_path)
    older = root.read_bytes()
    with tiered.open(tmp_path / "log", remote=store.url) as log:
        for _ in range(40):
            log.topic("a").append(b"y" * 100)
        log.sync(timeout=60)
    told = Told()
    upkeep = upkeep_of(store, told)
    upkeep.turn()
    assert told.done == [(A, MaintenanceKind.RETENTION), (B, MaintenanceKind.RETENTION), (C, MaintenanceKind.RETENTION)]
    root.write_bytes(older)
    for rounds in (2, 3, 4):
        upkeep.turn()
        assert (upkeep.view.rounds, {tp: type(error) for tp, error in upkeep.view.failed.items()}) == (
            rounds,
            {A: CorruptionError},
        )
    assert (told.done[3:], told.failed) == ([], [(A, CorruptionError)] * 3)
    upkeep_of(store, told).turn()  # another process, which has seen no newer one
    assert (told.done[3:], told.failed[3:]) == ([], [(A, CorruptionError)])
    assert root.read_bytes() == older


def test_the_root_that_a_round_began_with_is_an_older_one_after_it(store: Store, tmp_path: Path) -> None:
    root = root_of_a(store, tmp_path)
    before = root.read_bytes()
    told = Told()
    upkeep = upkeep_of(store, told)
    upkeep.turn()
    root.write_bytes(before)
    upkeep.turn()
    assert (told.done[3:], told.failed) == ([], [(A, CorruptionError)])
    assert root.read_bytes() == before


def test_a_damaged_partition_of_a_deleted_topic_keeps_no_other_from_its_destruction(tmp_path: Path) -> None:
    place = StoreLocation.parse(f"file://{tmp_path / 'store'}")
    with tiered.open(tmp_path / "log", remote=place.url) as log:
        topic = log.topic("d", create=True, partitions=3, config={"gc.grace.ms": 0})
        for number in range(3):
            topic.append(b"x", partition=number)
        log.sync(timeout=60)
    store = place.open(StoreOptions(clock=SystemClock()))
    entry = drive(store, load_topic("d"))
    assert entry is not None
    drive(store, start_deletion(entry, "m"))
    (root,) = (tmp_path / "store").glob(f"??/{entry.topic_id.hex}-1/root.obj")
    root.write_bytes(root.read_bytes()[:-1])
    told = Told()
    upkeep = MaintenanceLoop(
        store, owner="m", clock=SystemClock(), ids=SeededIds(), on_done=told.on_done, on_failed=told.on_failed
    )
    upkeep.turn()
    destroyed, damaged, other = (TopicPartition("d", number) for number in range(3))
    assert told.done == [(destroyed, MaintenanceKind.COLLECT), (other, MaintenanceKind.COLLECT)]
    assert told.failed == [(destroyed, CorruptionError), (damaged, CorruptionError)]  # the name is not free yet
    left = {path.name for path in (tmp_path / "store").glob("??/*") if any(path.rglob("*.obj"))}
    assert left & {f"{entry.topic_id.hex}-{number}" for number in range(3)} == {f"{entry.topic_id.hex}-1"}


def test_an_entry_that_cannot_be_read_keeps_no_other_topic_from_its_turn(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "store" / "topics" / "b.obj"
    whole = path.read_bytes()
    path.write_bytes(whole[:9])
    told = Told()
    upkeep = upkeep_of(store, told)
    upkeep.turn()
    assert told.done == [(A, MaintenanceKind.RETENTION), (C, MaintenanceKind.RETENTION)]
    assert told.failed == [(None, CorruptionError)]
    assert (upkeep.view.rounds, type(upkeep.view.trouble)) == (1, CorruptionError)
    assert [each.value for each in upkeep.view.metrics() if each.name.endswith("maintenance_failing")] == [1]
    path.write_bytes(whole)
    upkeep.turn()
    assert (told.done[2:], upkeep.view.rounds, upkeep.view.trouble) == ([(B, MaintenanceKind.RETENTION)], 2, None)


def test_the_end_comes_between_two_actions(store: Store) -> None:
    clock, told = Rests(), Told()
    upkeep = upkeep_of(store, told, clock)
    told.then = upkeep.end
    upkeep.run(1000)
    assert told.done == [(A, MaintenanceKind.RETENTION)]
    assert (upkeep.view.rounds, upkeep.view.doing, clock.rests) == (0, "", [1.0])


def test_a_paused_topic_is_not_looked_at_and_that_is_told(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """One topic only: the others have their turn. What is resumed has it in the next round."""
    told, paused, plan, looked_at = Told(), {"b"}, Maintainer.plan, list[TopicPartition]()

    def seen(self: Maintainer, *args: Any) -> Any:
        looked_at.append(self._tp)
        return plan(self, *args)

    monkeypatch.setattr(Maintainer, "plan", seen)
    upkeep = MaintenanceLoop(
        store,
        owner="m",
        clock=FakeClock(),
        ids=SeededIds(),
        on_done=told.on_done,
        scope=Scope(is_paused=lambda name: name in paused),
    )
    upkeep.turn()
    assert [tp for tp, _ in told.done] == looked_at == [A, C]
    assert (upkeep.view.paused, upkeep.view.rounds) == ({"b"}, 1)
    paused.clear()
    upkeep.turn()
    assert [tp for tp, _ in told.done] == [A, C, B]
    assert upkeep.view.paused == frozenset()


def test_a_pause_that_comes_during_an_action_keeps_the_next_one_back(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, told, paused = Maintainer.plan, Told(), set[str]()

    def twice(self: Maintainer, *args: Any) -> Any:
        found = yield from plan(self, *args)
        return None if found is None else replace(found, actions=(*found.actions, *found.actions))

    monkeypatch.setattr(Maintainer, "plan", twice)
    told.then = lambda: paused.add("a")
    upkeep = MaintenanceLoop(
        store,
        owner="m",
        clock=FakeClock(),
        ids=SeededIds(),
        on_done=told.on_done,
        scope=Scope(is_paused=lambda name: name in paused),
    )
    upkeep.turn()
    assert [tp for tp, _ in told.done] == [A, B, B, C, C]
    assert upkeep.view.paused == {"a"}


def test_a_scope_is_kept(store: Store) -> None:
    told = Told()
    upkeep_of(store, told, topic="b", partition=0).turn()
    upkeep_of(store, told, kinds=(MaintenanceKind.MERGE,)).turn()
    assert told.done == [(B, MaintenanceKind.RETENTION)]


def test_a_store_that_is_down_is_asked_again_in_the_next_round(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, told = Rests(), Told()
    upkeep = upkeep_of(store, told, clock)
    execute = type(store).execute

    def down(*_: object) -> object:
        raise RemoteUnavailableError("down")

    def up_again() -> None:
        monkeypatch.setattr(type(store), "execute", execute)
        if len(told.done) == 3:
            upkeep.end()

    monkeypatch.setattr(type(store), "execute", down)
    with pytest.raises(RemoteUnavailableError):
        upkeep.run(7000, patient=False)
    told.then = up_again
    upkeep.run(7000)
    assert told.failed == [(None, RemoteUnavailableError)]
    assert [tp for tp, _ in told.done] == [A, B, C]
    assert clock.rests == [7.0, 7.0]
