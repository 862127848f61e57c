"""Each damage of the bucket with each action; the table is in ``damages``."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.damage.bucket.actions import ACTIONS, EXPECTED, fresh_writer, outcome
from tests.damage.bucket.damages import DAMAGES, Damage, flip
from tests.damage.bucket.place import HIT, RECORDS, TPS, Place
from tests.damage.bucket.repairs import (
    CATALOG,
    DROP,
    INDEX,
    REPAIRS,
    VERBS,
    carry_out,
    everything,
    findings,
    left,
    objects,
)
from tests.sim.tiers.virtual import without_threads
from tiered.care.run import plan_rebuild, rebuild
from tiered.errors import CorruptionError, TieredError


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    with without_threads():
        yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("damage", DAMAGES, ids=[damage.name for damage in DAMAGES])
def test_no_damage_is_passed_over(damage: Damage, tmp_path: Path) -> None:
    wrong = {}
    for action in ACTIONS:
        place = Place(tmp_path / action.__name__)
        damage.hurt(place)
        found = outcome(action, place)
        if found not in damage.allowed(action.__name__):
            wrong[action.__name__] = found
    assert wrong == {}


def test_every_damage_has_its_repair() -> None:
    assert REPAIRS.keys() == {damage.name for damage in DAMAGES}


@pytest.mark.parametrize("damage", DAMAGES, ids=[damage.name for damage in DAMAGES])
def test_its_repair_mends_it_and_keeps_what_it_replaces(damage: Damage, tmp_path: Path) -> None:
    place, repair = Place(tmp_path), REPAIRS[damage.name]
    damage.hurt(place)
    before = objects(place)
    for verb in repair.verbs:
        for tp in repair.partitions:
            carry_out(place, verb, tp)
    if repair.verbs:
        assert findings(place) == []
        assert everything(place) == left(repair.lost, repair.partitions)
    kept = objects(place)
    for key, data in before.items():  # only what is written again and again is another one now, and its copy is kept
        assert kept.get(key) == data or ("/root" in key and repair.verbs[0] in {INDEX, DROP}) or data in kept.values()
        assert kept.get(key) == data or key.endswith("/root") or key.startswith("topics/"), key


def test_what_was_collected_since_its_neighbours_repair_comes_from_aside(tmp_path: Path) -> None:
    """Of two partitions that changed places: the bytes of the second lay under a name that the first let go of."""
    place = Place(tmp_path)
    name, other = place.log_key(), place.log_key(tp=TPS[1])
    place.swap(name, other)
    carry_out(place, INDEX)
    place.delete(name)
    carry_out(place, INDEX, TPS[1])
    assert findings(place) == []
    assert everything(place) == EXPECTED


def cut(data: bytearray) -> bytearray:
    return data[:-9]


@pytest.mark.parametrize("number", [0, 1, -1])
@pytest.mark.parametrize("what", ["log", "index", "longer log"])
def test_a_lost_root_and_an_object_of_another_size(tmp_path: Path, number: int, what: str) -> None:
    """Its bundle tells the row all the same: no record is given up that is there, and no offset is given twice."""
    place = Place(tmp_path)
    key, row = place.log_key(number), list(place.decoded().rows)[number]
    match what:
        case "log":
            place.edit(key, cut)
        case "index":
            place.edit(place.idx_key(number), cut)
        case _:
            place.edit(key, lambda data: data + b"more")
    place.delete(place.root_key())
    plan = plan_rebuild(place.store(), HIT, "test")
    assert (plan.bare, plan.lost, plan.gone, plan.root.next_offset) == ((key,), (), (0, 0), RECORDS)
    carry_out(place, CATALOG)
    carry_out(place, DROP if what == "log" else INDEX)
    assert findings(place) == []
    assert everything(place) == left((row.next - 1, row.next) if what == "log" else (0, 0), (HIT,))
    assert outcome(fresh_writer, place) == "right"


def test_a_lost_root_does_not_end_before_an_index_whose_data_are_gone(tmp_path: Path) -> None:
    place = Place(tmp_path)
    key, row = place.log_key(-1), list(place.decoded().rows)[-1]
    place.delete(key, place.root_key())
    with pytest.raises(CorruptionError, match=f"end at offset {row.base}, and the .idx beside {key}"):
        carry_out(place, CATALOG)
    plan = plan_rebuild(place.store(), HIT, "test", accept_loss=True)
    assert plan.lost == ((row.base, RECORDS),)
    rebuild(place.store(), plan)
    assert findings(place) == []
    assert everything(place) == left((row.base, RECORDS), (HIT,))
    assert outcome(fresh_writer, place) == "right"


def test_of_two_that_changed_places_nothing_is_taken_for_the_other_although_one_is_damaged(tmp_path: Path) -> None:
    """Its batches that are whole lie at the offsets of the other, and nothing in them says whose they are."""
    place = Place(tmp_path)
    place.swap(place.log_key(), place.log_key(tp=TPS[1]))
    place.edit(place.log_key(), flip(80))  # now a batch of the other partition
    with pytest.raises(TieredError, match="there is nothing to repair"):
        carry_out(place, DROP)
    carry_out(place, INDEX)
    carry_out(place, DROP, TPS[1])
    assert findings(place) == []
    assert everything(place) == left((5, 10), (TPS[1],))


@pytest.mark.parametrize("damage", DAMAGES, ids=[damage.name for damage in DAMAGES])
def test_a_verb_that_is_for_something_else_refuses_and_changes_nothing(damage: Damage, tmp_path: Path) -> None:
    repair = REPAIRS[damage.name]
    for verb in VERBS:
        if verb in repair.verbs:
            continue
        place = Place(tmp_path / verb)
        damage.hurt(place)
        before = objects(place)
        with pytest.raises(TieredError) as refused:
            carry_out(place, verb)
        assert refused.value.message
        assert objects(place) == before, verb


def test_an_undamaged_bucket_is_right_for_everybody(tmp_path: Path) -> None:
    found = {action.__name__: outcome(action, Place(tmp_path / action.__name__)) for action in ACTIONS}
    checks = dict.fromkeys(("check_bucket", "check_with_disk", "check_read_data"), "clean")
    others = dict.fromkeys(("read", "read_by_time", "own_writer", "fresh_writer", "restored"), "right")
    assert found == {**checks, **others}
