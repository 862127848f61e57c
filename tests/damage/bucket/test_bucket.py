"""Each damage of the bucket with each action; the table is in ``damages``."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.damage.bucket.actions import ACTIONS, outcome
from tests.damage.bucket.damages import DAMAGES, Damage
from tests.damage.bucket.place import Place
from tests.sim.tiers.virtual import without_threads


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


def test_an_undamaged_bucket_is_right_for_everybody(tmp_path: Path) -> None:
    found = {action.__name__: outcome(action, Place(tmp_path / action.__name__)) for action in ACTIONS}
    checks = dict.fromkeys(("check_bucket", "check_with_disk", "check_read_data"), "clean")
    others = dict.fromkeys(("read", "read_by_time", "own_writer", "fresh_writer", "restored"), "right")
    assert found == {**checks, **others}
