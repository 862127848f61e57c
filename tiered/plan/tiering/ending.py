"""The rules of sealing and of the end: what a drain still waits for, and the last look before the program goes.

::

    DrainRequested --> seal, upload, commit up to the targets --> all met --Look--> LookDone --> Exit
                            ^                                                          |
                            +----------------- something new is on the disk -----------+
"""

from __future__ import annotations

from tiered.errors import DataLocalError
from tiered.plan.tiering import facts
from tiered.plan.tiering.drain import LEFT_HINT, Drain
from tiered.plan.tiering.facts import DrainMode, Failure, FailureKind
from tiered.plan.tiering.ledger import Ledger
from tiered.plan.tiering.orders import Exit, Level, Look, Seal
from tiered.plan.tiering.partition import NONE_MS, Partition

WRITER_SEAL_MS = 60_000
"""A writer that was asked to roll is asked again after this time."""

WRITER_GONE_MS = 500
"""The same during a drain, if nobody is known to hold the lock."""

_REFUSED = frozenset({FailureKind.PERMISSION, FailureKind.FATAL})
"""What is looked at again rarely while the program runs, and once more at its end."""


class Finisher:
    """Orders the seals that no writer makes, and the end of the run. It works on the ledger of the other rules."""

    def __init__(self, books: Ledger) -> None:
        self._books = books
        self._seal_order = 0
        self._seal_attempts = 0
        self._seal_at_ms = 0
        self._seal_failure: Failure | None = None
        self._look_order = 0
        self._looked = False
        self._look_failure: Failure | None = None
        self._writer = ""
        self.exited = False

    def writer_seen(self, holder: str, now_ms: int) -> None:
        if self._books.drain is not None and self._writer and not holder:
            self._seal_at_ms = now_ms  # it was asked to roll and is gone: now that can be done here
        self._writer = holder
        if self._books.drain is not None and not holder:
            followed = [self.follow_drain(p, now_ms) for p in self._books.partitions.values()]
            if any(followed):
                self.poke(now_ms)

    # ------------------------------------------------------------------ sealing

    def seal_if_due(self, now_ms: int) -> None:
        """For a drain of everything, and for an idle tail whose writer is gone: by its topic's ``seal.ms``, too."""
        if self._seal_order or self._seal_at_ms > now_ms:
            return
        if self._books.drain is not None:
            due = self._books.drain.mode is DrainMode.ALL and bool(self._books.drain.unsealed)
        else:
            due = not self._writer and NONE_MS < self._books.next_seal_ms() <= now_ms
        if due:
            self._seal_order = self._books.order(Seal).order

    def seal_answer(self, event: facts.Answer, now_ms: int) -> None:
        self._seal_order = 0
        if isinstance(event, facts.SealDone):
            self._seal_failure, self._seal_attempts = None, 0
            self._seal_at_ms = now_ms + WRITER_SEAL_MS
            if event.by_writer and self._books.drain is not None and not self._writer:
                self._seal_at_ms = now_ms + WRITER_GONE_MS  # it went while it was being asked
        elif isinstance(event, facts.Failed):
            self._seal_attempts += 1
            self._seal_failure = event.failure
            self._seal_at_ms = now_ms + self._books.delay_ms(event.failure, self._seal_attempts)
            if self._seal_attempts == 1:
                text = f"the active segments were not sealed: {event.failure.message}"
                self._books.say(Level.WARN, "seal_failed", text, None, (("code", event.failure.code),))
        self._books.wait_until(self._seal_at_ms, None)

    # ------------------------------------------------------------------ the end

    def begin_drain(self, event: facts.DrainRequested, now_ms: int) -> None:
        self._books.drain = Drain.begin(event, self._books.partitions)
        self._seal_at_ms, self._seal_failure = now_ms, None
        self._books.say(Level.INFO, "drain_started", f"sending {event.mode.value} data, then ending")
        if event.deadline_ms is not None:
            self._books.wait_until(event.deadline_ms, None)
        self._ask_once_more(now_ms)
        self.poke(now_ms)

    def _ask_once_more(self, now_ms: int) -> None:
        """What was refused may have been put right since it was last looked at: the end rests on an answer of now."""
        for p in self._books.partitions.values():
            if p.failure is not None and p.failure.kind in _REFUSED:
                p.failure, p.retry_at_ms = None, now_ms
        for topic in self._books.topics.values():
            if topic.failure is not None and topic.failure.kind in _REFUSED:
                topic.failure, topic.retry_at_ms = None, now_ms

    def follow_drain(self, p: Partition, now_ms: int) -> bool:
        """Once the writer is gone, this program has to send its last records: no other process will."""
        if self._books.drain is None or not self._books.drain.last or self._writer or not self._books.drain.follow(p):
            return False
        self._seal_at_ms = now_ms
        return True

    def review_drain(self) -> None:
        """What something happened to: is it sent, is it sealed?"""
        if self._books.drain is not None:
            for tp in self._books.queue:
                self._books.drain.review(self._books.partitions[tp])

    def end_if_due(self, now_ms: int) -> None:
        """Orders the end; status 0 of the last drain only after a look at the disk that found nothing more."""
        looked, self._looked = self._looked, False
        drain = self._books.drain
        if drain is None or self.exited:
            return
        ending = drain.ending(self._books.partitions, now_ms, obstacle=self._obstacle)
        if ending is not None and ending.code == 0 and drain.last and (self._seal_order or not looked):
            ending = self._look(drain, now_ms)
        if ending is not None:
            self.exited = True
            self._books.out.append(ending)

    def _look(self, drain: Drain, now_ms: int) -> Exit | None:
        if self._look_failure is not None:
            failure = self._look_failure
            reason = f"the log directory cannot be read before the end: {failure.message}"
            return Exit(DataLocalError.exit_code, reason, failure.hint or LEFT_HINT)
        if drain.is_over(now_ms):
            reason = "ended before a last look at the log directory: whether the bucket holds it all is not known"
            return Exit(DataLocalError.exit_code, reason, LEFT_HINT)
        if not self._look_order and not self._seal_order:  # while we seal, our own lock looks like a writer's
            self._look_order = self._books.order(Look).order
        return None

    def look_answer(self, event: facts.Answer) -> None:
        self._look_order = 0
        self._looked = not isinstance(event, facts.Failed)
        if isinstance(event, facts.Failed):
            self._look_failure = event.failure

    def poke(self, now_ms: int) -> None:
        """Somebody waits: what backs off after a failure of the store is tried now."""
        for p in self._books.partitions.values():
            self.poke_one(p, now_ms)
        for topic in self._books.topics.values():
            if topic.failure is not None and topic.failure.kind is FailureKind.RETRIABLE:
                topic.retry_at_ms = now_ms

    def poke_one(self, p: Partition, now_ms: int) -> None:
        if p.failure is not None and p.failure.kind in (FailureKind.RETRIABLE, FailureKind.UNKNOWN):
            p.retry_at_ms = now_ms
        self._books.queue[p.tp] = None

    def _obstacle(self, p: Partition) -> Failure | None:
        topic = self._books.topics[p.tp.topic]
        if topic.failure is not None and topic.failure.kind in (FailureKind.PERMISSION, FailureKind.FATAL):
            return topic.failure
        if self._seal_failure is not None and self._seal_failure.kind is FailureKind.FATAL and not p.works:
            return self._seal_failure
        return p.obstacle()
