"""Each damage of the bucket with each action; the table is in ``damages``."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.damage.bucket.actions import ACTIONS, fresh_writer, outcome
from tests.damage.bucket.damages import DAMAGES, Damage
from tests.damage.bucket.place import Place
from tests.damage.bucket.repairs import (
    everything,
    findings,
    left,
    objects,
    plan,
    repair,
)
from tests.sim.tiers.virtual import without_threads
from tests.support.admin import apply_repair
from tiered.errors import TieredError
from tiered.format.keys import FLAG_HOLE
from tiered.repair.plan import EXIT_LEFT


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


REPAIRED = [damage for damage in DAMAGES if damage.repaired]
LEFT = [damage for damage in DAMAGES if not damage.repaired]


@pytest.mark.parametrize("source", ["versions", "disk", "loss"])
@pytest.mark.parametrize("damage", REPAIRED, ids=[damage.name for damage in REPAIRED])
def test_its_repair_mends_it_and_keeps_what_it_replaces(damage: Damage, source: str, tmp_path: Path) -> None:
    """From versions of the objects, from the log directory that wrote them, or without what no copy holds."""
    place = Place(tmp_path, versioned=source == "versions")
    damage.hurt(place)
    before = objects(place)
    choices: dict[str, dict[str, object]] = {"disk": {"from_dir": place.directory}, "loss": {"accept_loss": True}}
    options = choices.get(source, {})
    planned = repair(place, **options)
    gone = damage.lost if source == "loss" else {}
    assert {action.tp for action in planned.actions if action.lost} == gone.keys()
    assert findings(place) == []
    assert everything(place) == left(gone)
    kept = objects(place)
    for key, data in before.items():
        assert data in kept.values() or key.endswith("/root"), key  # a commit replaces the root that a claim read
    assert outcome(fresh_writer, place) == "right"


@pytest.mark.parametrize("damage", REPAIRED, ids=[damage.name for damage in REPAIRED])
def test_without_the_right_to_lose_records_none_is_given_up(damage: Damage, tmp_path: Path) -> None:
    place, gone = Place(tmp_path), damage.lost
    damage.hurt(place)
    planned = plan(place)
    assert {action.tp for action in planned.left} == gone.keys()
    assert planned.exit_code == (EXIT_LEFT if gone else 0)
    apply_repair(place.store(), planned)
    assert not any(row.flags & FLAG_HOLE for row in place.decoded().rows)


@pytest.mark.parametrize("damage", LEFT, ids=[damage.name for damage in LEFT])
def test_what_no_copy_proves_stays_as_it_is(damage: Damage, tmp_path: Path) -> None:
    place = Place(tmp_path)
    damage.hurt(place)
    before = objects(place)
    with contextlib.suppress(TieredError):
        planned = plan(place)
        assert planned.left == planned.actions
        apply_repair(place.store(), planned)
    assert objects(place) == before


def test_an_undamaged_bucket_is_right_for_everybody(tmp_path: Path) -> None:
    found = {action.__name__: outcome(action, Place(tmp_path / action.__name__)) for action in ACTIONS}
    checks = dict.fromkeys(("check_bucket", "check_with_disk", "check_read_data"), "clean")
    others = dict.fromkeys(("read", "read_by_time", "own_writer", "fresh_writer", "restored"), "right")
    assert found == {**checks, **others}
