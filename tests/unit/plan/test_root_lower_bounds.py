"""What a registry entry and a disk know of a root before it is read."""

from __future__ import annotations

import dataclasses
from typing import Any
from uuid import UUID

import pytest

from tiered.format.keys import Role
from tiered.format.root import Root
from tiered.plan.commit import Stamp, create_root
from tiered.plan.root_lower_bounds import NOTHING_KNOWN, RootLowerBounds

FIRST = create_root(UUID(int=7), 0, "flights", Stamp("0" * 32, 1_000, Role.WRITER, 0, "host:1"))


def root(**changes: Any) -> Root:
    """A root of version 5 that holds offsets 10 to 40, claimed twice, last with the token ``t2``."""
    writer = dataclasses.replace(FIRST.writer, epoch=2, token="t2", owner="host:2")
    found = dataclasses.replace(
        FIRST, version=5, start_offset=10, next_offset=40, roles={**FIRST.roles, Role.WRITER.value: writer}
    )
    return dataclasses.replace(found, **changes)


@pytest.mark.parametrize(
    ("known", "by_disk", "why"),
    [
        (NOTHING_KNOWN, False, ""),
        (RootLowerBounds(made=True), False, "the registry entry says that it was made with its topic"),
        (RootLowerBounds(next_offset=40), True, "this disk saw offset 40 committed in it"),
        (RootLowerBounds(start_offset=10), True, "this disk has claimed the partition, or was restored from it"),
        (RootLowerBounds(version=5), True, "this disk has claimed the partition, or was restored from it"),
        (RootLowerBounds(writer_epoch=2), True, "this disk has claimed the partition, or was restored from it"),
        (RootLowerBounds(tokens=("t1",)), True, "this disk has claimed the partition, or was restored from it"),
        (
            RootLowerBounds(made=True, tokens=("t1",)),
            True,
            "this disk has claimed the partition, or was restored from it",
        ),
    ],
)
def test_why_an_absent_root_is_lost(known: RootLowerBounds, by_disk: bool, why: str) -> None:
    assert (known.by_disk, known.absent()) == (by_disk, why)


@pytest.mark.parametrize(
    "known",
    [
        NOTHING_KNOWN,
        RootLowerBounds(made=True, version=5, start_offset=10, next_offset=40, writer_epoch=2, tokens=("t1", "t2")),
        RootLowerBounds(version=4, start_offset=9, next_offset=39, writer_epoch=1, tokens=("t1",)),
        RootLowerBounds(writer_epoch=2),
        RootLowerBounds(tokens=("t1",)),
    ],
)
def test_a_root_that_says_as_much_or_more_is_right(known: RootLowerBounds) -> None:
    assert list(known.contradictions(root())) == []


@pytest.mark.parametrize(
    ("known", "sentence"),
    [
        (RootLowerBounds(next_offset=41), "this disk saw offset 41 committed, the root ends at 40"),
        (RootLowerBounds(start_offset=11), "this disk saw the log begin at 11, by the root it begins at 10"),
        (RootLowerBounds(version=6), "this disk was restored from version 6, the root has version 5"),
        (RootLowerBounds(writer_epoch=3, tokens=("t3",)), "this disk holds claim 3, the root knows claims up to 2"),
        (
            RootLowerBounds(writer_epoch=2, tokens=("t1", "t3")),
            "claim 2 was made with a token of this disk, in the root it is of host:2",
        ),
    ],
)
def test_an_older_root_is_told_by_each_number_alone(known: RootLowerBounds, sentence: str) -> None:
    assert list(known.contradictions(root())) == [sentence]
