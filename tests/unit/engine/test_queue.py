"""Who gets a free slot: the oldest byte first, no partition above its share while another waits, and at what cost."""

from __future__ import annotations

import pytest

from tests.unit.engine.desk import Call, Desk
from tiered.engine.engine import FRESH_WORKERS
from tiered.engine.partition import EngineLimits, Partition
from tiered.engine.reports import StepKind


def test_the_oldest_byte_goes_first_and_nobody_takes_more_than_a_quarter_while_another_waits() -> None:
    desk = Desk(limits=EngineLimits(uploads=4), partitions=3).claimed()
    under_way = desk.seal(0, 10, 20, 30, 40, 50, at=0, first_ms=5)
    assert len(under_way) == 4
    desk.seal(0, 10, at=1, first_ms=3)
    desk.seal(0, 10, at=2, first_ms=1)
    assert len(desk.uploads) == 4  # no slot is free
    desk.store(under_way[0])
    desk.store(under_way[1])
    assert [call.tp.partition for call in desk.uploads][2:] == [2, 1]


def test_a_backlog_of_one_partition_starves_no_other() -> None:
    """Its thousand segments are older than all that comes; still each new one of the others is sent at once."""
    desk = Desk(limits=EngineLimits(uploads=4), partitions=4).claimed()
    under_way = desk.seal(*range(0, 10_000, 10), at=0, first_ms=1)
    assert len(under_way) == 4  # nobody else waits
    waited = []
    for turn in range(1, 10):
        for number in (1, 2, 3):
            desk.seal(10 * (turn - 1), at=number, first_ms=1_000 + turn)
        sent: list[Call] = []
        for upload in under_way:
            before = list(desk.uploads)
            desk.store(upload)
            for commit in desk.commits:
                desk.commit(commit)
            sent += [call for call in desk.uploads if call not in before]
        waited.append(sorted(call.tp.partition for call in sent))
        under_way = sent
    assert waited == [[0, 1, 2, 3]] * 9


def test_more_slots_are_given_out_at_once() -> None:
    desk = Desk(limits=EngineLimits(uploads=1)).claimed()
    assert len(desk.seal(0, 10, 20)) == 1
    desk.do(desk.engine.reconfigure, EngineLimits(uploads=3))
    assert len(desk.uploads) == 3


def work_for(partitions: int, monkeypatch: pytest.MonkeyPatch) -> float:
    """Claims, uploads and commits one segment of each partition: turns of loops for each commit."""
    turns = 0
    has_work = Desk(partitions=1).engine.has_work.__func__  # type: ignore[attr-defined]  # the function of the method

    def counted(self: object, p: Partition) -> bool:
        nonlocal turns
        turns += 1
        return bool(has_work(self, p))

    monkeypatch.setattr("tiered.engine.engine.Engine.has_work", counted)
    desk = Desk(partitions=partitions, limits=EngineLimits(uploads=4, claims=16)).claimed()
    for number in range(partitions):
        desk.seal(0, at=number, first_ms=number)
    turns, committed = 0, 0
    while desk.open:
        for call in list(desk.open):
            if call.kind is StepKind.UPLOAD:
                desk.store(call)
            elif call.kind is StepKind.COMMIT:
                committed += 1
                desk.commit(call)
    assert committed == partitions
    monkeypatch.undo()
    return turns / partitions


def test_a_commit_costs_the_same_work_however_many_partitions_are_held(monkeypatch: pytest.MonkeyPatch) -> None:
    few = work_for(20, monkeypatch)
    assert work_for(200, monkeypatch) <= few * 1.1


def test_a_partition_that_waits_for_its_claim_has_no_coroutine() -> None:
    """Thousands begin at once, and the allocator keeps the memory of so many."""
    desk = Desk(partitions=100)
    for number in range(100):
        desk.see(number, end=1)
    desk.answer(desk.of(StepKind.REGISTER)[0])
    assert len(desk.engine._workers) == FRESH_WORKERS
    while desk.claims:
        desk.grant(desk.claims[0], 7)
    assert {p.claim_epoch for p in desk.engine.partitions.values()} == {7}
