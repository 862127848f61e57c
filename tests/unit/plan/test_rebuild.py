"""Uploads that follow the end of a copy of a root, as far as their claims and bytes agree."""

from __future__ import annotations

import pytest

from tiered.errors import CorruptionError
from tiered.model import Row
from tiered.plan.rebuild import chain


def upload(base: int, end: int, claim: int, *, uid: int = 0, crc: int = 1) -> Row:
    return Row(base, end, 0, 0, 100, crc, base, uid, 10, claim, end - base, 0, 0)


def bases(*found: Row, end: int = 0, claim: int = 1) -> list[tuple[int, int]]:
    return [(row.base, row.claim_epoch) for row in chain(found, end, claim, lambda row: f"{row.base}-{row.id_lo}")]


def test_uploads_without_a_gap_follow() -> None:
    assert bases(upload(0, 5, 1), upload(5, 9, 1), upload(10, 12, 1)) == [(0, 1), (5, 1)]


def test_claims_never_fall() -> None:
    """The older volume was fenced: its upload after that was never committed."""
    assert bases(upload(0, 5, 2), upload(5, 9, 1)) == [(0, 2)]
    assert bases(upload(0, 5, 1), claim=2) == []
    assert bases(upload(0, 5, 1), upload(5, 9, 1), upload(5, 7, 2), upload(7, 9, 2)) == [(0, 1), (5, 2), (7, 2)]


def test_equal_uploads_of_one_claim_are_one() -> None:
    """The answer to the first was lost."""
    assert bases(upload(0, 5, 1), upload(0, 5, 1, uid=7), upload(5, 6, 1)) == [(0, 1), (5, 1)]


@pytest.mark.parametrize(
    "other", [upload(0, 5, 1, uid=7, crc=2), upload(0, 6, 1, uid=7), upload(3, 6, 2)], ids=["bytes", "end", "inside"]
)
def test_uploads_that_contradict_each_other_are_refused(other: Row) -> None:
    with pytest.raises(CorruptionError, match="contradict each other"):
        bases(upload(0, 5, 1), other)
