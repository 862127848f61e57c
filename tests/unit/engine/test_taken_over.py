"""A claim that is taken over before its root is read back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.engine.open_log import TP, World, take_over
from tiered.engine.disk import OpenDisk
from tiered.engine.steps import BucketSteps
from tiered.errors import FencedError
from tiered.model import NewRecord
from tiered.store.base import Get, Match, Put, Steps
from tiered.store.unique_upload import PartSizes


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path / "log")
    yield made
    made.journal.close()
    made.tiering.close()
    made.log.close()


def test_a_claim_that_is_taken_over_before_it_is_read_back_acknowledges_nothing(world: World) -> None:
    """The other writer's commits are at offsets of this disk, and not on it."""
    world.partition.append([NewRecord(b"only on this disk")])
    world.partition.roll()
    engine = BucketSteps(world.store.url, OpenDisk(world.log), lambda: world.journal, owner="again", sizes=PartSizes())
    world.drive(engine.probe())
    with pytest.raises(FencedError, match="fresh claimed role w with epoch 3, this process held epoch 2"):
        interrupt(world, engine.claim(TP))
    assert world.root().next_offset == 4


def interrupt(world: World, steps: Steps[Any]) -> None:
    """Runs ``steps``; before the first GET behind a conditional PUT a fresh volume takes the partition over."""
    answer: object = None
    put = False
    while True:
        request = steps.send(answer)
        if put and isinstance(request, Get):
            take_over(world, "fresh", 4)
            put = False
        answer = world.drive(carried(request))
        put = put or (isinstance(request, Put) and isinstance(request.condition, Match))


def carried(request: Any) -> Steps[Any]:
    return (yield request)
