"""Which batches a recovery keeps, by their offsets alone: base offsets are outside the CRC."""

from __future__ import annotations

import pytest

from tiered.format.batch_scanner import NO_LIMIT, BatchPosition, Offsets
from tiered.local.recovery.segment_recovery import BatchOrder
from tiered.plan.roll import MAX_RELATIVE_OFFSET

SIZE = 100
Ranges = list[tuple[int, int]]


def judged(order: BatchOrder, ranges: Ranges) -> list[bool]:
    """Whether each batch, of (first, last offset), fits; they stand one behind the other, ``SIZE`` bytes each."""
    return [order.fits(BatchPosition(at * SIZE, SIZE, first, last), first) for at, (first, last) in enumerate(ranges)]


@pytest.mark.parametrize("dense", [True, False])
def test_batches_that_follow_each_other_are_good(dense: bool) -> None:
    order = BatchOrder(Offsets(10, 20), dense=dense)
    assert judged(order, [(10, 12), (13, 13), (14, 19)]) == [True, True, True]
    assert (order.expected, order.damage) == (20, None)


def test_the_first_batch_that_lies_below_its_segment() -> None:
    order = BatchOrder(Offsets(10, 20), dense=False)
    assert judged(order, [(9, 9), (10, 11)]) == [False, True]
    assert (order.expected, order.damage) == (12, (0, 10))


def test_a_batch_below_the_two_before_it_is_the_one_that_rotted() -> None:
    order = BatchOrder(Offsets(0, 100), dense=False)
    assert judged(order, [(0, 3), (4, 7), (2, 2), (8, 9)]) == [True, True, False, True]
    assert (order.expected, order.damage) == (10, (2 * SIZE, 8))


def test_a_batch_that_ends_beyond_its_segment() -> None:
    order = BatchOrder(Offsets(0, 10), dense=False)
    assert judged(order, [(0, 3), (4, 10), (4, 9)]) == [True, False, True]
    assert (order.expected, order.damage) == (10, (SIZE, 4))


def test_a_batch_too_far_from_the_base_for_an_index() -> None:
    order = BatchOrder(Offsets(5, NO_LIMIT), dense=False)
    last = 5 + MAX_RELATIVE_OFFSET
    assert judged(order, [(5, 5), (last, last)]) == [True, True]
    order = BatchOrder(Offsets(5, NO_LIMIT), dense=False)
    far = BatchPosition(SIZE, SIZE, last + 1, last + 1)
    assert judged(order, [(5, 5)]) == [True]
    assert not order.fits(far, last + 1)
    assert (order.expected, order.damage) == (6, (SIZE, 6))


def test_a_hole_where_every_offset_has_a_record() -> None:
    assert judged(BatchOrder(Offsets(0, 100), dense=False), [(0, 3), (5, 6)]) == [True, True]
    order = BatchOrder(Offsets(0, 100), dense=True)
    assert judged(order, [(0, 3), (5, 6), (7, 8)]) == [True, False, True]
    assert (order.expected, order.damage) == (9, (SIZE, 4))


@pytest.mark.parametrize(("promised", "fits"), [(4, True), (5, False), (6, False), (7, True)])
def test_a_hole_across_an_offset_at_which_a_batch_ends(promised: int, fits: bool) -> None:
    """The hole is 4 to 6: a batch that ends at 5 or 6 is missing."""
    order = BatchOrder(Offsets(0, 100), dense=False, promised=promised)
    assert judged(order, [(0, 3), (6, 8)]) == [True, fits]
    assert order.damage == (None if fits else (SIZE, 4))
