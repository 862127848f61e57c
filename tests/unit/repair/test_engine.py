"""A repair of several topics: what one of them is refused for stops no other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import tiered
from tests.support.admin import apply_repair, plan_repair
from tests.support.buckets import SETTINGS, TP, Bucket, bucket, write
from tests.unit.remote.paged.sinks import TP as FLIGHTS
from tests.unit.remote.paged.sinks import commit, decide, log_of_sinks, lose
from tiered.errors import ConfigError, CorruptionError, UnknownTopicError
from tiered.format.keys import hist_prefix, parse_hist_key, root_key, topic_key
from tiered.repair.plan import EXIT_LEFT
from tiered.store.base import ABSENT, Delete, Put
from tiered.store.driver import drive
from tiered.store.steps import list_all


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Bucket]:
    """A topic ``t``, and a topic ``other`` of two partitions."""
    with bucket("memory", tmp_path) as made:
        write(made, steps=30)
        with tiered.open(made.directory, made.store.url) as log:
            topic = log.topic("other", partitions=2, create=True)
            for partition in range(2):
                topic.append(b"x", partition=partition)
            log.sync(timeout=60)
        yield made


def other_root(place: Bucket, partition: int) -> str:
    with tiered.open_reader(place.store.url) as reader:
        return root_key(reader.topics()["other"].topic_id, partition)


def test_a_partition_that_is_refused_stops_no_other(place: Bucket) -> None:
    """A root of another topic cannot be repaired: the move must be undone."""
    keys = [other_root(place, partition) for partition in range(2)]
    place.replace(keys[0], place.data(place.root_key))
    for key in keys[1:]:
        place.delete(key)
    plan = plan_repair(place.store)
    assert keys[1] in [action.where for action in plan.actions if action.act is not None]
    apply_repair(place.store, plan)
    assert plan_repair(place.store, ["other"]).exit_code in (0, EXIT_LEFT)


def test_an_entry_of_a_newer_release_stops_no_other_topic(place: Bucket) -> None:
    place.replace(topic_key("other"), place.data(topic_key("other")).replace(b'"format": 1', b'"format": 99'))
    place.delete(place.index_key(place.rows()[1]))
    plan = plan_repair(place.store)
    assert (plan.exit_code, len(plan.left), len(plan.actions)) == (EXIT_LEFT, 1, 2)
    assert "newer release" in plan.left[0].problem
    with pytest.raises(ConfigError, match="newer release"):
        plan_repair(place.store, ["other"])
    assert len(place.repair().actions) == 1


def test_a_topic_that_was_deleted_stops_no_other(place: Bucket) -> None:
    entry = place.data(topic_key("other")).replace(b'"state": "open"', b'"state": "deleted"')
    assert entry != place.data(topic_key("other"))
    place.replace(topic_key("other"), entry)
    place.delete(place.root_key)
    plan = plan_repair(place.store)
    assert place.root_key in [action.where for action in plan.actions if action.act is not None]


def test_nothing_of_a_topic_that_is_being_deleted_is_made_again(place: Bucket) -> None:
    keys = [other_root(place, partition) for partition in range(2)]
    entry = place.data(topic_key("other")).replace(b'"state": "open"', b'"state": "deleting"')
    place.replace(topic_key("other"), entry)
    place.delete(*keys)
    assert plan_repair(place.store).actions == ()


def test_the_topic_id_of_an_entry_that_holds_nothing(place: Bucket) -> None:
    right = place.entry.topic_id
    place.replace(topic_key("t"), place.data(topic_key("t")).replace(right.hex.encode(), b"5" * 32))
    assert plan_repair(place.store, [TP]).actions[0].where == topic_key("t")
    apply_repair(place.store, plan_repair(place.store, [TP]))
    assert place.entry.topic_id == right
    assert plan_repair(place.store).actions == ()


def test_a_damaged_decision_since_the_copy_is_named_with_its_batch() -> None:
    """Nothing proves whether the batch was committed."""
    log = log_of_sinks()
    assert log.root is not None
    version = log.root.version
    decision = decide(log, [10, 20], 1, "query")
    commit(log, decision)
    lose(log)
    copies = [entry.key for entry in drive(log.store, list_all(hist_prefix(log.topic_id, 0)))]
    newer = [key for key in copies if (parse_hist_key(key) or 0) > version]
    log.store.execute(Delete((*newer, decision.key)))
    log.store.execute(Put(decision.key, b"damage", ABSENT))
    with pytest.raises(CorruptionError, match="the decision of batch 1 of query is damaged"):
        plan_repair(log.store, [FLIGHTS])
    plan = plan_repair(log.store)
    assert (plan.exit_code, [action.where for action in plan.left]) == (EXIT_LEFT, [decision.key, decision.key])


KEY = topic_key("t")


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
        plan_repair(place.store, ["absent"])
