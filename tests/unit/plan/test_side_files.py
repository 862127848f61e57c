"""What may stand beside a ``.log``: nothing that hides what is committed or shows what is aborted or undecided."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tiered.format.producer_snapshot import ProducerEntry
from tiered.format.segment_indexes import encode_txns
from tiered.model import AbortedTxn
from tiered.plan.side_files import (
    ReplayedSegment,
    judge_txn_index,
    producers_flaw,
    txns_flaw,
)

BEFORE, WITHIN = AbortedTxn(1, 5, 12, 5), AbortedTxn(2, 20, 25, 20)


def followed(
    *aborted: AbortedTxn,
    unseen: Sequence[tuple[int, int]] = (),
    orphans: Sequence[tuple[int, int]] = (),
    producers: Sequence[ProducerEntry] = (),
    ended: dict[int, int] | None = None,
    whole: bool = True,
) -> ReplayedSegment:
    return ReplayedSegment(aborted, frozenset(unseen), tuple(orphans), tuple(producers), ended or {}, whole)


def producer(producer_id: int, first: int = -1) -> ProducerEntry:
    """``first``: of its open transaction, -1 for none."""
    return ProducerEntry(producer_id, 0, 3, 30, 0, 1_000, -1, first)


@pytest.mark.parametrize(
    ("entries", "told"),
    [
        ([], followed()),
        ([BEFORE, WITHIN], followed(BEFORE, WITHIN)),
        ([WITHIN._replace(first_offset=18)], followed(WITHIN)),  # compaction took its first records
        ([WITHIN], followed(orphans=[(2, 25)])),  # and here all of them
        ([], followed(orphans=[(2, 25)])),  # it wrote nothing
    ],
)
def test_entries_that_can_be(entries: list[AbortedTxn], told: ReplayedSegment) -> None:
    assert txns_flaw(entries, told) is None


@pytest.mark.parametrize(
    ("entries", "told", "flaw"),
    [
        ([WITHIN], followed(), "producer 2 has no ABORT marker at offset 25"),
        ([WITHIN._replace(first_offset=21)], followed(WITHIN), "begins at 20, its entry says 21"),
        ([WITHIN], followed(BEFORE, WITHIN), "1 of 2 aborted transactions have no entry, the first at 12"),
        ([], followed(orphans=[(2, 25)], whole=False), "aborted at offset 25 has no entry, and its beginning is not"),
    ],
)
def test_entries_that_cannot_be(entries: list[AbortedTxn], told: ReplayedSegment, flaw: str) -> None:
    assert flaw in (txns_flaw(entries, told) or "")


def test_a_transaction_that_was_not_seen_needs_its_entry_unless_all_was_followed() -> None:
    told = followed(BEFORE, unseen=[(1, 12)])
    assert "have no entry" in (txns_flaw([], told) or "")
    assert txns_flaw([], told, all_followed=True) is None
    assert "have no entry" in (txns_flaw([], followed(BEFORE), all_followed=True) or "")


@pytest.mark.parametrize(
    ("entries", "told"),
    [
        ([], followed()),
        ([producer(1, 7)], followed(producers=[producer(1, 7)])),
        ([producer(1, 6)], followed(producers=[producer(1, 7)])),  # compaction took its first batch
        ([producer(1, 6)], followed()),  # and here all of them
        ([producer(1, 6)], followed(ended={1: 6})),
        ([], followed(producers=[producer(1)])),  # it expired
    ],
)
def test_producers_that_can_be(entries: list[ProducerEntry], told: ReplayedSegment) -> None:
    assert producers_flaw(entries, told) is None


@pytest.mark.parametrize(
    ("entries", "told", "flaw"),
    [
        ([producer(1)], followed(producers=[producer(1, 7)]), "producer 1 that begins at offset 7 is open, and has no"),
        ([producer(1, 8)], followed(producers=[producer(1, 7)]), "the open transaction of producer 1 begins at 7, not"),
        ([producer(1, 6)], followed(producers=[producer(1)], ended={1: 7}), "begins at 6 was decided at offset 7"),
    ],
)
def test_producers_that_cannot_be(entries: list[ProducerEntry], told: ReplayedSegment, flaw: str) -> None:
    assert flaw in (producers_flaw(entries, told) or "")


def test_only_what_nobody_knows_leaves_a_transaction_index_unproven() -> None:
    orphan = [(3, 28)]
    lacking = judge_txn_index(encode_txns([WITHIN]), 20, followed(WITHIN, orphans=orphan, whole=False))
    wrong = judge_txn_index(b"", 20, followed(WITHIN, orphans=orphan, whole=False))
    assert [(each.known, each.proven) for each in (lacking, wrong)] == [(False, False), (False, True)]
    assert lacking.flaw == "the transaction that was aborted at offset 28 has no entry, and its beginning is not known"
