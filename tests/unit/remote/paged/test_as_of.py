"""Reading as of something, over tiny pages: the rows of then and all their objects, or a refusal; races."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from tests.unit.remote.catalog.script import TOPIC_ID
from tests.unit.remote.paged.collecting import PREFIX, Place
from tiered.errors import CommitUnknownError, ConfigError, NotFoundError
from tiered.format.keys import index_key, segment_key, snap_key
from tiered.model import Row
from tiered.remote.root_history import history
from tiered.remote.root_view import RootView
from tiered.remote.snapshots import AsOf, Past, create_snapshot, delete_snapshot, list_snapshots
from tiered.store.base import Get, Missing, Outcome, Put, PutResult, PutStatus, StoreRequest


def view() -> RootView:
    return RootView(TOPIC_ID, 0, "flights")


def rows_as_of(place: Place, as_of: AsOf) -> list[Row]:
    """The rows of then, whose objects are all there."""
    pinned, at, found = place.world.run(Past(view(), as_of).pin()), 0, list[Row]()
    while len(rows := place.world.run(pinned.piece(max(at, pinned.start_offset)))):
        found += rows
        at = rows.end_offset
    keys = {key(TOPIC_ID, 0, row) for row in found for key in (segment_key, index_key)}
    assert keys <= place.keys
    return found


@pytest.mark.parametrize("seed", range(6))
def test_each_version_is_whole_or_refused(seed: int) -> None:
    place, chance = Place(), random.Random(seed)
    place.append(30)
    then = {place.root.version: place.rows()}
    times = {place.root.version: place.root.commit.ts_ms}
    snapshots: dict[str, int] = {}
    read = 0
    for step in range(40):
        act = chance.choice(["append", "trim", "replace", "snapshot", "delete", "collect"])
        rows = place.rows()
        if act == "append":
            place.append(chance.randrange(1, 12))
        elif act == "trim" and len(rows) > 8:
            place.trim(rows[chance.randrange(len(rows) // 2)].next)
        elif act == "replace" and len(rows) > 3:
            at = chance.randrange(len(rows) - 2)
            place.replace(*rows[at : at + 2])
        elif act == "snapshot":
            snapshots[f"s{step}"] = place.world.run(create_snapshot(view(), f"s{step}")).version
        elif act == "delete" and snapshots:
            name = chance.choice(sorted(snapshots))
            place.world.run(delete_snapshot(view(), name))
            del snapshots[name]
        elif act == "collect":
            place.wait()
            place.collect()
        then[place.root.version], times[place.root.version] = place.rows(), place.root.commit.ts_ms
        for name, version in snapshots.items():
            assert rows_as_of(place, AsOf(name=name)) == then[version]
        for version in place.world.run(history(place.root)) if act in ("collect", "replace") else ():
            if version not in then:  # a claim's, from before the first append
                continue
            try:
                assert rows_as_of(place, AsOf(version=version)) == then[version]
                assert rows_as_of(place, AsOf(time_ms=times[version])) == then[version]
                read += 1
            except NotFoundError:
                assert min(snapshots.values(), default=version + 1) > version
    assert [each.version for each in place.world.run(list_snapshots(view()))] == sorted(snapshots.values())
    assert read > 0


@pytest.mark.parametrize("landed", [True, False])
def test_a_snapshot_whose_answer_was_lost_is_there_or_not_known(landed: bool) -> None:
    place = Place()
    place.append(5)

    def answer(request: StoreRequest, carry_out: Callable[[], Outcome]) -> Outcome:
        if isinstance(request, Put) and request.key.startswith(f"{PREFIX}snap/"):
            if landed:
                carry_out()
            return PutResult(PutStatus.UNKNOWN, cause="timeout")
        return carry_out()

    place.store.answer = answer
    if landed:
        assert place.world.run(create_snapshot(view(), "a")) == place.root
        with pytest.raises(ConfigError, match="has a snapshot a already"):
            place.world.run(create_snapshot(view(), "a"))
    else:
        with pytest.raises(CommitUnknownError, match="timeout"):
            place.world.run(create_snapshot(view(), "a"))
        assert isinstance(place.store.inner.execute(Get(snap_key(TOPIC_ID, 0, "a"))), Missing)
