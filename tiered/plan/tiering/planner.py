"""The rules that order something: what each partition does next, and who gets the free slots."""

from __future__ import annotations

from tiered.plan.tiering.ledger import Ledger, TopicState
from tiered.plan.tiering.orders import Claim, Commit, Level, RegisterTopic, Settle, Upload
from tiered.plan.tiering.partition import NONE_MS, Partition, Phase, Work


class Planner:
    """Gives out orders from what the ledger holds."""

    def __init__(self, books: Ledger) -> None:
        self._books = books

    def pump_queue(self, now_ms: int) -> None:
        """Who waits for a slot that is free now, then what something happened to."""
        books = self._books
        while True:
            if books.claim_line and books.claims < books.limits.claims:
                tp, _ = books.claim_line.popitem(last=False)
            elif books.commit_line and books.commits < books.limits.commits:
                tp, _ = books.commit_line.popitem(last=False)
            elif books.queue:
                tp, _ = books.queue.popitem(last=False)
            else:
                return
            p = books.partitions.get(tp)
            if p is None:
                continue
            work = p.next_upload() if self._pump(p, now_ms) else None
            if work is None:
                books.ready.pop(tp, None)
            else:
                books.make_ready(p, work)
            if books.watched:
                books.track_wait(p, now_ms)

    def _pump(self, p: Partition, now_ms: int) -> bool:
        """Orders the next thing for ``p``, or puts it into line for a slot; whether it may upload."""
        if p.phase is Phase.FENCED:
            return False
        if self._books.lazy and p.phase is Phase.NEW and p.committed < 0 and p.end <= max(p.noted, 0):
            return False  # one-shot runs do not claim what an earlier run has noted as committed
        topic = self._books.topics[p.tp.topic]
        if not topic.registered:
            self._register(p.tp.topic, topic, now_ms)
            return False
        if not p.settled and not p.settle_order and p.settle_at_ms <= now_ms and p.phase is Phase.CLAIMED:
            p.settle_order = self._books.order(Settle, p.tp, p.claim_epoch, p.committed, owner=p).order
        if p.retry_at_ms > now_ms:
            return False
        if p.phase is Phase.NEW:
            self._claim(p)
        if p.phase is not Phase.CLAIMED:
            return False
        first = p.works.get(p.committed)
        if first is None:
            blocked = p.blocked()
            if blocked is not None:
                self._books.say_once(p, Level.ERROR, blocked[0], blocked[1], now_ms)
            return False
        if first.row is not None and not p.commit_order and (p.settled or p.settle_attempts):
            self._commit_if_due(p, now_ms)  # not before the sweep: what lies below the end is no longer swept
        return True

    def _register(self, name: str, topic: TopicState, now_ms: int) -> None:
        if not topic.order and topic.retry_at_ms <= now_ms:
            topic.order = self._books.order(RegisterTopic, name).order

    def _claim(self, p: Partition) -> None:
        if p.stale_uploads:
            return  # the answer of the last one brings the partition back into the queue
        if self._books.claims >= self._books.limits.claims:
            self._books.claim_line[p.tp] = None
            return
        p.phase = Phase.CLAIMING
        self._books.claims += 1
        self._books.order(Claim, p.tp, owner=p)

    def _commit_if_due(self, p: Partition, now_ms: int) -> None:
        """Commits the stored prefix when it is full, old enough, or when nothing more is under way."""
        prefix = p.prefix()[: 1 if p.one_by_one else self._books.limits.commit_segments]
        if p.ready_since_ms == NONE_MS:
            p.ready_since_ms = now_ms
        due_ms = p.ready_since_ms + self._books.limits.commit_wait_ms
        if len(prefix) < self._books.limits.commit_segments and p.uploading and now_ms < due_ms:
            self._books.wait_until(due_ms, p.tp)
            return
        if self._books.commits >= self._books.limits.commits:
            self._books.commit_line[p.tp] = None
            return
        rows = tuple([work.row for work in prefix if work.row is not None])
        p.commit_order = self._books.order(Commit, p.tp, p.claim_epoch, rows, owner=p).order
        p.ready_since_ms = NONE_MS
        self._books.commits += 1

    def fill_pool(self, now_ms: int) -> None:
        """Oldest un-uploaded byte first; a partition above its share only while no other one waits."""
        while self._books.uploads < self._books.limits.uploads and (p := self._books.next_ready()) is not None:
            work = p.next_upload()
            if work is None or not self._may_upload(p, work, now_ms):
                del self._books.ready[p.tp]  # whatever changes that brings the partition back into the queue
                continue
            before = self._books.ready[p.tp]
            self._books.make_ready(p, work)
            if self._books.ready[p.tp] == before:
                self._upload(p, work, now_ms)

    def _may_upload(self, p: Partition, work: Work, now_ms: int) -> bool:
        """After a failure one upload at a time is the probe; a drain sends only what it promised.

        Nothing behind a commit that is refused is sent.
        """
        if p.pause is not None:
            return False  # what is stored already is committed
        if p.uploading and (p.attempts or p.one_by_one):
            return False
        if p.refused is not None and work.segment.base != p.committed:
            return False
        return self._books.drain is None or self._books.drain.wants(p, work.segment.base, now_ms)

    def _upload(self, p: Partition, work: Work, now_ms: int) -> None:
        action = self._books.order(Upload, p.tp, work.segment, p.claim_epoch, owner=p, work=work)
        work.order = action.order
        p.uploading += 1
        self._books.uploads += 1
        following = p.next_upload()
        if following is None:
            del self._books.ready[p.tp]
        else:
            self._books.make_ready(p, following)
        if self._books.watched:
            self._books.track_wait(p, now_ms)
