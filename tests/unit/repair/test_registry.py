"""A registry entry that is missing, damaged or older is written from the roots of the topic."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import tiered
from tests.support.admin import apply_repair, plan_repair
from tests.support.buckets import SETTINGS, STORES, Bucket, bucket, write
from tiered.errors import UnknownTopicError
from tiered.format.keys import topic_key

KEY = topic_key("t")


@pytest.fixture(params=STORES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bucket]:
    with bucket(request.param, tmp_path) as made:
        write(made, steps=30)
        yield made


def test_the_roots_name_the_topic(place: Bucket) -> None:
    """The repair of a named topic does what the repair of all topics does."""
    before, entry = place.committed(), place.entry
    place.replace(KEY, place.data(KEY)[:-9])
    plan = plan_repair(place.store, ["t"])
    apply_repair(place.store, plan)
    assert [action.where for action in plan.actions] == [KEY]
    assert (plan.exit_code, place.entry.topic_id) == (0, entry.topic_id)
    kept = not plan.actions[0].notes
    assert kept is (place.kind == "versions")
    assert place.entry.config == (SETTINGS_TEXT if kept else {})
    assert place.committed() == before
    assert place.plan().actions == ()


SETTINGS_TEXT = {name: str(value) for name, value in SETTINGS.items()}


def test_an_older_entry_names_fewer_partitions(tmp_path: Path) -> None:
    with bucket("memory", tmp_path) as place:
        write(place, steps=10)
        old = place.data(KEY)
        with tiered.open(place.directory, place.store.url) as log:
            log.topic("t").add_partitions(2)
            log.topic("t").append_many([b"x"] * 10, partition=1)
            log.sync(timeout=60)
        place.replace(KEY, old)
        plan = plan_repair(place.store, ["t"])
        apply_repair(place.store, plan)
        assert (place.entry.partitions, place.entry.config) == (3, SETTINGS_TEXT)


def test_a_topic_that_never_was(place: Bucket) -> None:
    with pytest.raises(UnknownTopicError):
        plan_repair(place.store, ["other"])
