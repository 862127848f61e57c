"""An outage of hours costs lag: neither memory nor requests grow with what waits, and the end of it drains in order."""

from __future__ import annotations

import pytest

from tests.unit.tiering.desk import Desk, segment
from tests.unit.tiering.world import World, failure, row, topic_id, tp
from tiered.plan.backoff import BACKOFF_MAX_SECONDS
from tiered.plan.tiering import facts, orders
from tiered.plan.tiering.facts import FailureKind
from tiered.plan.tiering.limits import Limits

PARTITIONS, SEGMENTS = 20, 250
HOURS = 4
HOUR_MS = 3_600_000
CAP_MS = int(BACKOFF_MAX_SECONDS * 1000)


class Outage(World):
    """The store is gone; writers go on, and so do looks at the disk."""

    attempts = 0

    def sizes(self) -> dict[str, int]:
        """Of everything that the rules keep beside the segments themselves."""
        books = self.state._books
        return {
            "open orders": len(books.orders),
            "timers": len(books.timers),
            "queue": len(books.queue),
            "claim line": len(books.claim_line),
            "commit line": len(books.commit_line),
            "ready": len(books.ready_heap),
            "idle": len(books.idle_heap),
        }

    def fail_all(self) -> None:
        for order in list(self.open):
            self.open.pop(order)
            self.uploading.pop(order, None)
            self.attempts += 1
            self.send(facts.Failed(order, failure(FailureKind.RETRIABLE)))

    def wake(self) -> None:
        assert self.wake_ms is not None
        self.now_ms = max(self.now_ms + 1, self.wake_ms)
        self.send(facts.Tick())


@pytest.mark.parametrize("seed", range(2))
def test_thousands_of_segments_wait_for_hours_at_the_cost_of_their_names(seed: int) -> None:
    world = Outage(seed, partitions=PARTITIONS, limits=Limits(uploads=4))
    world.fault_rate = 0.0
    world.scan()
    while world.open:  # all are claimed
        world.answer(min(world.open))
    world.old_answers.clear()
    for at in world.disk:
        world.append(at, SEGMENTS)
    world.scan()
    begin, bound, attempts = world.now_ms, {}, []
    for hour in range(HOURS):
        before = world.attempts
        while world.now_ms < begin + (hour + 1) * HOUR_MS:
            world.fail_all()
            world.wake()
            sizes = world.sizes()
            bound = {name: max(size, bound.get(name, 0)) for name, size in sizes.items()}
        attempts.append(world.attempts - before)
        world.append(tp(0), 10)
        world.scan()
    assert bound["open orders"] <= world.limits.uploads
    assert bound["queue"] == 0
    assert bound["timers"] <= 2 * PARTITIONS
    assert bound["ready"] <= 2 * PARTITIONS + 64
    assert max(bound["claim line"], bound["commit line"]) <= PARTITIONS
    most = PARTITIONS * HOUR_MS // (CAP_MS // 3)  # a wait is half of its bound on average
    assert 0 < max(attempts) < most
    assert max(attempts) < 1.2 * min(attempts)  # no faster and no slower as it goes on
    world.settle()
    for at, bucket in world.buckets.items():
        assert bucket.next_offset == world.disk[at][-1].end, f"seed {seed}: {at}"
    assert sum(world.sizes().values()) <= 2 * (PARTITIONS + 64)


def test_whoever_asks_again_and_again_during_an_outage_does_not_fill_the_books() -> None:
    """An application's sync pokes; each poke is an attempt, and each leaves its timer behind until that is due."""
    desk = Desk().claimed()
    desk.seal(0)
    books = desk.state._books
    most = 0
    for _ in range(5_000):
        for upload in desk.of(orders.Upload):
            desk.send(facts.Failed(upload.order, failure(FailureKind.RETRIABLE)))
        desk.send(facts.Poked(), later_ms=500)
        most = max(most, len(books.timers))
    assert most <= CAP_MS // 500 + 1


def test_a_backlog_of_one_partition_starves_no_other() -> None:
    """Its thousand segments are older than all that comes; still each new one of the others is sent at once."""
    desk = Desk(limits=Limits(uploads=4), partitions=4).claimed()
    desk.send(facts.PartitionSeen(tp(0), topic_id(), 0, 10_000, 10_000))
    under_way = [u for u in desk.seal(*range(0, 10_000, 10), at=0, first_ms=1) if isinstance(u, orders.Upload)]
    assert len(under_way) == 4  # nobody else waits
    waited = []
    for turn in range(1, 20):
        for number in (1, 2, 3):
            desk.send(facts.SegmentSealed(tp(number), segment(10 * (turn - 1), first_ms=1_000 + turn)))
        sent: list[orders.Upload] = []
        for upload in under_way:
            desk.send(facts.UploadDone(upload.order, row(upload.segment, upload.claim_epoch)))
            sent += desk.of(orders.Upload)
            for commit in desk.of(orders.Commit):
                desk.send(facts.CommitDone(commit.order, commit.rows[-1].next))
                sent += desk.of(orders.Upload)
        waited.append(sorted(upload.tp.partition for upload in sent))
        under_way = sent
    assert waited == [[0, 1, 2, 3]] * 19
