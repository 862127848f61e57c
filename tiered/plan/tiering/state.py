"""Every rule of the uploader: facts in, orders out. No I/O, no clock, no task; randomness only as jitter.

``State.handle(event, now_ms)`` returns what to do now. ``now_ms`` is wall-clock-like and never goes back (the
runner sees to that). The rules, each of them an invariant of the tests:

* Only the contiguous prefix of stored and verified segments is committed, under the claim that stored them.
* At most ``limits.uploads`` uploads are under way, cancelled ones included until they have ended.
* After ``fenced`` nothing of the partition is ordered again.
* A commit whose outcome is unknown is settled by a new claim; what the old claim stored is uploaded again.
* A commit that was refused for good is looked at less and less often, claims and uploads included.
* Of a topic that is paused no upload begins; what was begun is committed.
* Whatever can succeed later is tried again, for ever; what cannot is said, and looked at again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import assert_never

from tiered.format.keys import Role
from tiered.model import Row, TopicPartition
from tiered.plan.tiering import facts
from tiered.plan.tiering.backoff import Dice
from tiered.plan.tiering.ending import Finisher
from tiered.plan.tiering.facts import Event, Failure, FailureKind
from tiered.plan.tiering.ledger import Ledger, OpenOrder, TopicState
from tiered.plan.tiering.limits import Limits
from tiered.plan.tiering.orders import (
    Action,
    Claim,
    Commit,
    Level,
    Look,
    Note,
    Order,
    RegisterTopic,
    Seal,
    Settle,
    Upload,
)
from tiered.plan.tiering.partition import NONE_MS, Partition, Phase, Work
from tiered.plan.tiering.pauses import Pause
from tiered.plan.tiering.planner import Planner
from tiered.plan.tiering.waits import PartitionView, view_of


class State:
    """The uploader's mind. Not thread-safe: one event at a time."""

    def __init__(
        self,
        dice: Dice,
        limits: Limits | None = None,
        *,
        lazy: bool = False,
        watched: bool = True,
        role: Role = Role.WRITER,
    ) -> None:
        """``lazy``: partitions that the checkpoint notes as wholly committed are not claimed (one-shot runs).

        ``watched``: somebody asks for ``views``, which tell since when each partition waits for what.
        """
        self._role = role
        self._books = Ledger(dice, limits or Limits(), lazy=lazy, watched=watched)
        self._planner = Planner(self._books)
        self._finisher = Finisher(self._books)
        self._disk_said_ms = NONE_MS

    def handle(self, event: Event, now_ms: int) -> tuple[Action, ...]:
        """Takes one fact, returns what to do; after ``Exit`` nothing more."""
        return self.handle_all((event,), now_ms)

    def handle_all(self, events: Sequence[Event], now_ms: int) -> tuple[Action, ...]:
        """Takes facts that are told together, and then decides once."""
        self._books.out = []
        if self._finisher.exited:
            return ()
        for event in events:
            self._take(event, now_ms)
        if self._books.timers:
            self._books.run_timers(now_ms)
        self._finisher.review_drain()
        self._finisher.seal_if_due(now_ms)
        self._planner.pump_queue(now_ms)
        if self._books.ready:
            self._planner.fill_pool(now_ms)
        self._finisher.end_if_due(now_ms)
        if not self._finisher.exited:
            self._books.ask_for_wake()
        return tuple(self._books.out)

    def views(self, now_ms: int) -> list[PartitionView]:
        """One line per partition for ``status`` and the metrics, by name."""
        found = []
        for _, p in sorted(self._books.partitions.items()):
            topic = self._books.topics[p.tp.topic]
            found.append(view_of(p, now_ms, topic.failure, topic.registered))
        return found

    def counts(self) -> tuple[int, int]:
        """Partitions held, and how many of them have segments that the bucket lacks."""
        return len(self._books.partitions), sum(1 for p in self._books.partitions.values() if p.works)

    def partition(self, tp: TopicPartition) -> Partition:
        """What is known of a partition, to be looked at."""
        return self._books.partitions[tp]

    @property
    def limits(self) -> Limits:
        """What the rules go by now."""
        return self._books.limits

    def go_by(self, limits: Limits) -> None:
        """Other limits from now on."""
        self._books.go_by(limits)

    @property
    def is_draining(self) -> bool:
        """Whether the program is to end."""
        return self._books.drain is not None

    def _take(self, event: Event, now_ms: int) -> None:
        match event:
            case facts.PartitionSeen():
                self._seen(event, now_ms)
            case facts.PartitionGone(tp):
                self._books.gone(tp)
            case facts.SegmentSealed():
                self._sealed(event, now_ms)
            case facts.ClaimHeld():
                self._held(event)
            case facts.PausesSeen(pauses):
                self._paused(pauses)
            case facts.WriterSeen(holder):
                self._finisher.writer_seen(holder, now_ms)
            case facts.DiskLow():
                self._disk_low(event, now_ms)
            case facts.DrainRequested():
                self._finisher.begin_drain(event, now_ms)
            case facts.Poked():
                self._finisher.poke(now_ms)
            case facts.Tick():
                pass
            case _:
                self._answer(event, now_ms)

    def _answer(self, event: facts.Answer, now_ms: int) -> None:
        """Only the first answer to an open order counts, and only if it answers that kind of order."""
        opened = self._books.orders.get(event.order)
        if opened is None or not isinstance(event, (facts.Failed, _DONE[type(opened.action)])):
            return
        del self._books.orders[event.order]
        match opened.action:
            case RegisterTopic():
                self._topic_answer(opened, event, now_ms)
            case Claim():
                self._claim_answer(opened, event, now_ms)
            case Upload():
                self._upload_answer(opened, event, now_ms)
            case Commit():
                self._commit_answer(opened, event, now_ms)
            case Settle():
                self._settle_answer(opened, event, now_ms)
            case Seal():
                self._finisher.seal_answer(event, now_ms)
            case Look():
                self._finisher.look_answer(event)
            case _:
                assert_never(opened.action)
        if opened.owner is not None and self._books.partitions.get(opened.owner.tp) is opened.owner:
            self._books.queue[opened.owner.tp] = None

    # ------------------------------------------------------------------ what is on the disk

    def _seen(self, event: facts.PartitionSeen, now_ms: int) -> None:
        p = self._books.partitions.get(event.tp)
        if p is not None and p.topic_id != event.topic_id:
            self._books.gone(event.tp)
            p = None
        if p is None:
            p = Partition(tp=event.tp, topic_id=event.topic_id, role=self._role, wait_since_ms=now_ms)
            p.pause = self._books.pause_of(event.tp.topic)
            self._books.partitions[event.tp] = p
            self._books.topics.setdefault(event.tp.topic, TopicState()).members[event.tp] = None
        p.local_start, p.flushed, p.end = event.local_start_offset, event.flushed_offset, event.end_offset
        p.active_bytes, p.active_since_ms = event.active_bytes, event.active_since_ms
        p.seal_ms = event.seal_ms
        p.noted = max(p.noted, event.noted_offset)
        self._books.queue[p.tp] = None
        self._books.watch_idle(p)
        if self._finisher.follow_drain(p, now_ms):
            self._finisher.poke_one(p, now_ms)
        resuming = p.phase is Phase.CLAIMED and p.resume_at >= 0
        if resuming and not self._diverged(p, now_ms) and p.local_start >= p.resume_at:
            p.resume_at = -1
            self._note(p)

    def _paused(self, pauses: Mapping[str, Pause]) -> None:
        """What is under way of a topic that is paused now is finished and committed; no upload of it begins."""
        before, self._books.pauses = self._books.pauses, pauses
        for name in sorted(pauses.keys() - before.keys()):
            self._books.say(Level.WARN, "paused", f"{name or 'all topics'}: {pauses[name]}")
        for name in sorted(before.keys() - pauses.keys()):
            self._books.say(Level.INFO, "resumed_uploads", f"{name or 'all topics'}: uploads go on")
        for p in self._books.partitions.values():
            p.pause = self._books.pause_of(p.tp.topic)
            self._books.queue[p.tp] = None

    def _sealed(self, event: facts.SegmentSealed, now_ms: int) -> None:
        p = self._books.partitions.get(event.tp)
        if p is None or event.segment.end <= p.known_committed:
            return
        known = p.works.get(event.segment.base)
        if known is None:
            p.works[event.segment.base] = Work(event.segment)
            p.end = max(p.end, event.segment.end)
        elif known.segment != event.segment and not known.order and known.row is None:
            known.segment = event.segment
        self._books.queue[p.tp] = None
        if self._finisher.follow_drain(p, now_ms):
            self._finisher.poke_one(p, now_ms)

    def _held(self, event: facts.ClaimHeld) -> None:
        p = self._books.partitions.get(event.tp)
        if p is not None and p.phase is Phase.NEW:
            p.phase, p.claim_epoch, p.committed = Phase.CLAIMED, event.claim_epoch, event.next_offset
            p.forget_committed()
            self._books.topics[p.tp.topic].registered = True
            self._books.queue[p.tp] = None

    def _disk_low(self, event: facts.DiskLow, now_ms: int) -> None:
        if self._disk_said_ms != NONE_MS and now_ms < self._disk_said_ms + self._books.limits.repeat_report_ms:
            return
        self._disk_said_ms = now_ms
        text = f"the disk of the log is {event.used_percent} % full, {event.free_bytes >> 20} MiB are free"
        self._books.say(Level.WARN, "disk_low", text, None, (("free_bytes", event.free_bytes),))

    # ------------------------------------------------------------------ answers

    def _topic_answer(self, opened: OpenOrder, event: facts.Answer, now_ms: int) -> None:
        action = opened.action
        if not opened.live or not isinstance(action, RegisterTopic):
            return
        topic = self._books.topics[action.topic]
        topic.order = 0
        if not isinstance(event, facts.Failed):
            if topic.failure is not None:
                self._books.say(Level.INFO, "recovered", f"topic {action.topic} is registered")
            topic.registered, topic.failure, topic.attempts = True, None, 0
            self._books.queue.update(topic.members)
            return
        topic.attempts += 1
        first = topic.failure is None or topic.failure.code != event.failure.code
        topic.failure = event.failure
        topic.retry_at_ms = now_ms + self._books.delay_ms(event.failure, topic.attempts)
        self._books.wait_until(topic.retry_at_ms, next(iter(topic.members)))
        for tp in topic.members:  # their reason to wait is the topic's now
            self._books.track_wait(self._books.partitions[tp], now_ms)
        if first or now_ms >= topic.reported_ms + self._books.limits.repeat_report_ms:
            topic.reported_ms = now_ms
            level = Level.WARN if event.failure.kind is FailureKind.RETRIABLE else Level.ERROR
            text = f"topic {action.topic} is not registered: {event.failure.message}"
            hint = f" ({event.failure.hint})" if event.failure.hint else ""
            self._books.say(
                level, "failed" if first else "still_failing", text + hint, None, (("code", event.failure.code),)
            )

    def _claim_answer(self, opened: OpenOrder, event: facts.Answer, now_ms: int) -> None:
        self._books.claims -= 1
        p = opened.owner
        if p is None or not opened.live:
            return
        if isinstance(event, facts.Failed):
            if event.failure.kind is FailureKind.FENCED:
                self._fence_and_note(p, event.failure, now_ms)
                return
            p.phase = Phase.NEW
            self._books.failed(p, event.failure, f"claiming the {p.role.word} role", now_ms)
        if not isinstance(event, facts.ClaimDone):
            return
        for text in event.warnings:
            self._books.say(Level.WARN, "resumed", text, p.tp)
        p.claim_epoch, p.committed, p.remote_start = event.claim_epoch, event.next_offset, event.start_offset
        yet_to = event.resumes and p.local_start < event.next_offset  # its writer may have been faster than our answer
        p.resume_at = event.next_offset if yet_to else -1
        if self._diverged(p, now_ms):
            return
        p.phase, p.settled, p.settle_at_ms, p.settle_attempts, p.doubt_end = Phase.CLAIMED, False, 0, 0, 0
        p.forget_committed()
        self._books.succeeded(p, f"claiming the {p.role.word} role")
        self._note(p)
        fields = (("claim_epoch", p.claim_epoch), ("uploaded_offset", p.committed))
        self._books.say(
            Level.INFO, "claimed", f"the {p.role.word} role is ours, the bucket ends at {p.committed}", p.tp, fields
        )

    def _note(self, p: Partition) -> None:
        """Permits local deletion; not before a log that resumes has been seen to begin where the bucket ends.

        The checkpoint is the writer's: a maintainer says nothing of this disk, and needs nothing of it.
        """
        if p.resume_at < 0 and p.role is Role.WRITER:
            self._books.out.append(Note(p.tp, p.committed, p.claim_epoch, False, p.remote_start))

    def _diverged(self, p: Partition, now_ms: int) -> bool:
        """Whether this disk holds records at offsets that the bucket has given to others; fences the partition then."""
        has_records = p.end > p.local_start and p.role is Role.WRITER
        if p.resume_at >= 0:
            diverged = has_records and p.local_start < p.resume_at
        else:
            diverged = has_records and p.committed > p.end
        if diverged:
            text = (
                f"{p.tp} holds offsets {p.local_start}..{p.end} on this disk, but the bucket went on to {p.committed}"
            )
            hint = "`tiered repair rejoin` moves this log's own tail aside and resumes at the bucket's end"
            p.committed = p.noted  # what was noted of this disk stays true; the rest of the bucket is not on it
            self._fence_and_note(p, Failure(FailureKind.FENCED, "diverged", text, hint, exit_code=11), now_ms)
        return diverged

    def _fence_and_note(self, p: Partition, failure: Failure, now_ms: int) -> None:
        self._books.fence(p, failure, now_ms)
        if p.role is Role.WRITER:
            self._books.out.append(Note(p.tp, p.known_committed, p.claim_epoch, True, p.remote_start))

    def _upload_answer(self, opened: OpenOrder, event: facts.Answer, now_ms: int) -> None:
        self._books.uploads -= 1
        p, work, action = opened.owner, opened.work, opened.action
        if p is None or work is None or not isinstance(action, Upload):
            return
        if not opened.live:
            p.stale_uploads -= 1
            return
        p.uploading -= 1
        work.order = 0
        if isinstance(event, facts.Failed):
            self._books.failed(p, event.failure, f"uploading {p.tp} from offset {work.segment.base}", now_ms)
        elif not isinstance(event, facts.UploadDone):
            pass
        elif not _matches(event.row, action):
            text = f"the row {event.row.base}..{event.row.next} is not the segment {action.segment.base}"
            self._books.failed(p, Failure(FailureKind.FATAL, "internal", text), "uploading", now_ms)
        else:
            work.row = event.row
            self._books.succeeded(p, "uploading")

    def _commit_answer(self, opened: OpenOrder, event: facts.Answer, now_ms: int) -> None:
        self._books.commits -= 1
        p, action = opened.owner, opened.action
        if p is None or not opened.live or not isinstance(action, Commit):
            return
        p.commit_order = 0
        if isinstance(event, facts.CommitDone):
            if event.next_offset != action.rows[-1].next:
                text = f"the root read back ends at {event.next_offset}, not at {action.rows[-1].next}"
                if event.next_offset > action.rows[-1].next:  # ours are in it, and another's that came behind them
                    p.committed = action.rows[-1].next
                    p.remote_start = max(p.remote_start, event.start_offset)
                    p.forget_committed()
                    self._note(p)
                self._reclaim(p, Failure(FailureKind.UNKNOWN, "commit_unknown", text, exit_code=75), now_ms)
                return
            p.committed = event.next_offset
            p.remote_start = max(p.remote_start, event.start_offset)
            p.forget_committed()
            self._books.succeeded(p, "committing")
            self._note(p)
            fields = (("segments", len(action.rows)), ("uploaded_offset", p.committed))
            self._books.say(Level.INFO, "committed", f"{len(action.rows)} segments are in the catalog", p.tp, fields)
        elif not isinstance(event, facts.Failed):
            pass
        elif event.failure.kind is FailureKind.FENCED:
            self._fence_and_note(p, event.failure, now_ms)
        elif event.failure.kind is FailureKind.UNKNOWN:
            p.doubt_end = action.rows[-1].next
            self._reclaim(p, event.failure, now_ms)
        elif event.failure.kind is FailureKind.FATAL:  # a new claim knows the catalog as it is, and stores anew
            self._books.drop_claim(p)
            p.phase = Phase.NEW
            self._books.refused(p, event.failure, action.rows[-1].next, now_ms)
        else:
            self._books.commit_failed(p, event.failure, now_ms)

    def _reclaim(self, p: Partition, failure: Failure, now_ms: int) -> None:
        """Only a new claim tells whether the commit is in; until then nothing is stored."""
        self._books.drop_claim(p)
        p.phase = Phase.NEW
        self._books.commit_failed(p, failure, now_ms)

    def _settle_answer(self, opened: OpenOrder, event: facts.Answer, now_ms: int) -> None:
        p, action = opened.owner, opened.action
        if p is None or not opened.live or not isinstance(action, Settle):
            return
        p.settle_order = 0
        if isinstance(event, facts.SettleDone):
            p.settled = True
            if event.swept:
                self._books.say(
                    Level.INFO, "settled", f"{event.swept} uploads that an earlier claim left were swept", p.tp
                )
        if not isinstance(event, facts.Failed):
            return
        p.settle_attempts += 1
        p.settle_at_ms = now_ms + self._books.delay_ms(event.failure, p.settle_attempts)
        self._books.wait_until(p.settle_at_ms, p.tp)
        if p.settle_attempts == 1:
            text = f"{p.tp}: what the last run left is still in the bucket: {event.failure.message}"
            self._books.say(Level.WARN, "settle_failed", text, p.tp, (("code", event.failure.code),))


_DONE: dict[type[Order], type[facts.Answer]] = {
    RegisterTopic: facts.Done,
    Claim: facts.ClaimDone,
    Upload: facts.UploadDone,
    Commit: facts.CommitDone,
    Settle: facts.SettleDone,
    Seal: facts.SealDone,
    Look: facts.Done,
}


def _matches(row: Row, action: Upload) -> bool:
    """Whether the row says what was ordered: nothing else may ever reach a commit."""
    segment = action.segment
    return (row.base, row.next, row.size, row.claim_epoch) == (
        segment.base,
        segment.end,
        segment.size_bytes,
        action.claim_epoch,
    )
