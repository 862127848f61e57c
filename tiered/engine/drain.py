"""End of a run of the uploader: the drain of a log, the sealing of segments without a writer, and the exit status."""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tiered.engine.engine import Engine
from tiered.engine.failure import NO_FAILURES, NONE_MS, REFUSED, Failure, FailureKind
from tiered.engine.partition import Partition, Phase
from tiered.engine.reports import Exit, Report, Step, StepKind
from tiered.engine.worker import Wakeup
from tiered.errors import DataLocalError, TieredError
from tiered.model import TopicPartition

LEFT_HINT = "start the uploader again, or run `tiered-uploader sync --wait`; `tiered status` says what is left"
DONE = "everything that was asked for is committed"


JUDGE_PAUSES = 9
"""Length of the pause after a review of all partitions, as a multiple of its duration."""


WRITER_SEAL_MS = 60_000
"""Time after which a writer that was asked to roll is asked again."""

WRITER_GONE_MS = 500
"""Time between attempts during a drain, if the lock has no known holder."""


class DrainMode(enum.Enum):
    """Choice of the records that a drain uploads: uploads in progress, all sealed segments, or all records."""

    INFLIGHT = "inflight"  # uploads under way
    SEALED = "sealed"  # every sealed segment
    ALL = "all"  # the active segments too: they are rolled first


@dataclass(slots=True)
class Drain:
    """Upload of the records of ``mode``, which ends a run. ``deadline_ms``: on the engine's clock, None: never.

    ``oneshot`` (``sync --wait``): if a failure prevents the upload, the exit status is that of the failure; False: 75.
    ``last`` (SIGTERM): no process uploads from this disk afterwards, so records that a writer appends while it ends
    are uploaded too. Exit status 0 then means that a last scan found no record that the bucket lacks.

    ``targets``: the committed end that each partition must reach. ``ends``: the end of each partition on this disk;
    empty unless ``last``. Both are measured at the start of the drain, and :meth:`follow` raises them.
    """

    mode: DrainMode
    deadline_ms: int | None
    oneshot: bool = False
    last: bool = False
    targets: dict[TopicPartition, int] = field(default_factory=dict)
    ends: dict[TopicPartition, int] = field(default_factory=dict)

    def start(self, partitions: Mapping[TopicPartition, Partition]) -> None:
        """Measure the targets, from the partitions' current state."""
        self.targets = {tp: _target(p, self.mode) for tp, p in partitions.items()}
        self.ends = {tp: _target(p, DrainMode.ALL) for tp, p in partitions.items()} if self.last else {}

    def follow(self, p: Partition) -> bool:
        """Raise the partition's end, and its target, to records that scans found since the start of the drain.

        Return True if the target rises. It stays if the drain is only for uploads in progress. Call this method only
        without a writer: the drain of a log that grows would not end.
        """
        self.ends[p.tp] = max(self.ends.get(p.tp, 0), _target(p, DrainMode.ALL))
        target = _target(p, self.mode) if self.mode is not DrainMode.INFLIGHT else 0
        if target <= self.targets.get(p.tp, 0):
            return False
        self.targets[p.tp] = target
        return True

    def wants(self, p: Partition, base: int) -> bool:
        """Return True if the segment with this base offset must be uploaded before the drain ends."""
        return base < self.targets.get(p.tp, 0)

    def left(self, partitions: Mapping[TopicPartition, Partition]) -> list[Partition]:
        """Return the unfinished partitions, sorted by name.

        A partition is unfinished below its target, or while positions of consumer groups are to be copied.
        """
        copies = self.mode is not DrainMode.INFLIGHT
        left = [
            p
            for p in partitions.values()
            if p.known_committed < self.targets.get(p.tp, 0) or (copies and p.positions_to_copy() is not None)
        ]
        return sorted(left, key=lambda p: p.tp)

    def needs_seal(self, left: Sequence[Partition]) -> bool:
        """Return True if a target is in an active segment, which must be sealed first.

        ``left``: the unfinished partitions.
        """
        if self.mode is not DrainMode.ALL:
            return False
        return any(p.sealed_end < self.targets[p.tp] and p.phase is not Phase.FENCED for p in left)

    def is_over(self, now_ms: int) -> bool:
        """Return True once the deadline has passed."""
        return self.deadline_ms is not None and now_ms >= self.deadline_ms

    def ending(
        self, left: Sequence[Partition], now_ms: int, *, obstacle: Callable[[Partition], Failure | None]
    ) -> Exit | None:
        """Return exit status and reason of a drain that cannot finish, None if the drain continues.

        A drain cannot finish after its deadline, or if all of ``left``, the unfinished partitions, are blocked.
        ``obstacle``: returns the failure that blocks a partition, or None.
        """
        if self.is_over(now_ms):
            what = "wait" if self.oneshot else "drain"
            reason = f"the time to {what} is over: {_names(left)} only on this disk"
            return Exit(DataLocalError.exit_code, reason, LEFT_HINT)
        failures = []
        for p in left:
            failure = obstacle(p)
            if failure is None or p.moves:
                return None  # this one goes on without help
            failures.append(failure)
        fenced = [failure for failure in failures if failure.kind is FailureKind.FENCED]
        first = fenced[-1] if fenced else failures[0]
        code = first.exit_code if self.oneshot else DataLocalError.exit_code
        usual = LEFT_HINT if code == DataLocalError.exit_code else ""  # another error stays after a restart
        return Exit(code, f"{_names(left)} only on this disk: {first.message}", first.hint or usual)

    def all_sent(self, partitions: Mapping[TopicPartition, Partition]) -> Exit:
        """Return exit status and reason of a drain at its targets.

        The status is 0, or 75 if records below ``ends`` are on this disk only.
        """
        kept = [p for p in partitions.values() if p.known_committed < self.ends.get(p.tp, 0)]
        if not kept:
            return Exit(0, DONE)
        reason = f"a drain of {self.mode.value} data sends no more: {_names(kept)} only on this disk"
        return Exit(DataLocalError.exit_code, reason, LEFT_HINT)


def _target(p: Partition, mode: DrainMode) -> int:
    if mode is DrainMode.ALL:
        return p.end if p.end > p.local_start or p.works else 0
    if mode is DrainMode.SEALED:
        return p.sealed_end
    at = p.known_committed
    while (work := p.works.get(at)) is not None and (work.uploading or work.row is not None):
        at = work.segment.end
    return at


def _only_here(p: Partition) -> str:
    known = p.known_committed
    if p.end <= known and p.positions_to_copy() is not None:
        return f"the positions of groups in {p.tp}"
    if p.doubt_end <= known:
        return f"{p.tp} from offset {known}"
    return f"{p.tp} from offset {p.doubt_end} (whether the bucket holds {known}..{p.doubt_end} is not known)"


def _names(left: Sequence[Partition]) -> str:
    shown = ", ".join(_only_here(p) for p in left[:5])
    if len(left) > 5:
        return f"{shown} and {len(left) - 5} more are"
    return f"{shown} is" if len(left) == 1 else f"{shown} are"


class Ending:
    """Waiter for the end of a run: :meth:`run` returns once a drain has ended. Call it only on its event loop.

    ``look``: scans the log directory.
    """

    def __init__(self, engine: Engine, sealer: Sealer, look: Callable[[], Awaitable[None]]) -> None:
        self.drain: Drain | None = None
        self._engine = engine
        self._sealer = sealer
        self._look = look
        self._changed = Wakeup()
        engine.wants, engine.when_changed = self._wants, self._touch
        sealer.when_sealed = self._changed.set

    def start_drain(self, drain: Drain) -> None:
        """Start a drain. A second one replaces the first."""
        engine = self._engine
        self.drain = drain
        drain.start(engine.partitions)
        engine.report(Report(logging.INFO, "drain_started", f"sending {drain.mode.value} data, then ending"))
        self._sealer.drain()
        engine.scan_now(refused=True)
        self._changed.set()

    def review(self) -> None:
        """Check again what the drain still needs, after a scan or new limits."""
        self._sealer.review()
        self._changed.set()

    def writer_is(self, holder: str) -> None:
        """Record ``holder``, the process that writes the log, ``""`` for none.

        Once it is gone, a drain uploads its last records.
        """
        self._sealer.writer_is(holder)
        if self.drain is not None and not holder:
            self._engine.scan_now()

    async def run(self) -> Exit:
        """Wait until a drain has ended, and return its exit status with the reason.

        A drain ends when all is uploaded, when every unfinished partition is blocked, or at the deadline. A failure of
        the last scan ends it, too.
        """
        engine = self._engine
        while True:
            begun_ms = engine.now_ms()
            exit_ = self._judge()
            judged_ms = engine.now_ms() - begun_ms
            if exit_ is not None and exit_.code == 0 and self.drain is not None and self.drain.last:
                exit_ = await self._scan_last(self.drain)
            if exit_ is not None:
                engine.halt()
                return exit_
            # A review reads all partitions: with thousands it takes no more than a tenth of the time.
            await asyncio.sleep(judged_ms * JUDGE_PAUSES / 1000)
            await self._wait()

    def _judge(self) -> Exit | None:
        """Return the exit if the drain has ended, otherwise None. Request seals from the sealer."""
        drain, partitions = self.drain, self._engine.partitions
        if drain is None:
            return None
        left = drain.left(partitions)
        self._sealer.needs_seal = drain.needs_seal(left)
        if not left:
            return drain.all_sent(partitions)
        self._sealer.review()
        return drain.ending(left, self._engine.now_ms(), obstacle=self._obstacle)

    async def _scan_last(self, drain: Drain) -> Exit | None:
        """Scan once more. Return the exit if nothing is left to upload; None to continue the drain."""
        late = "ended before a last scan of the log directory: it is unknown whether the bucket has every record"
        if drain.is_over(self._engine.now_ms()):
            return Exit(DataLocalError.exit_code, late, LEFT_HINT)
        if self._sealer.is_at_work():
            return None  # while it seals, its own lock looks like a writer's
        look = asyncio.ensure_future(self._look())
        look.add_done_callback(lambda _: self._changed.set())
        try:
            while not look.done():
                await self._wait()
                if self.drain is not None and self.drain.is_over(self._engine.now_ms()) and not look.done():
                    return Exit(DataLocalError.exit_code, late, LEFT_HINT)
        finally:
            look.cancel()
        error = look.exception()
        if isinstance(error, (TieredError, OSError)):
            failure = Failure.from_error(error)
            reason = f"the last scan of the log directory failed: {failure.message}"
            return Exit(DataLocalError.exit_code, reason, failure.hint or LEFT_HINT)
        if error is not None:
            raise error
        self._changed.set()  # review the result at once
        return None if self._sealer.is_at_work() else self._judge()

    async def _wait(self) -> None:
        """Wait for a change, or for the drain's deadline."""
        drain, seconds = self.drain, None
        if drain is not None and drain.deadline_ms is not None:
            seconds = (drain.deadline_ms - self._engine.now_ms()) / 1000
        await self._changed.wait(seconds)

    # ------------------------------------------------------------------ what the engine asks

    def _wants(self, p: Partition, base: int) -> bool:
        return self.drain is None or self.drain.wants(p, base)

    def _touch(self, p: Partition) -> None:
        drain = self.drain
        if drain is None:
            return
        if drain.last and not self._sealer.writer and drain.follow(p):
            p.trouble = p.trouble.retry_now(self._engine.now_ms())
            self._sealer.seal_now()
        self._changed.set()

    def _obstacle(self, p: Partition) -> Failure | None:
        registering = self._engine.topics.find(p).trouble.failure
        if registering is not None and registering.kind in REFUSED:
            return registering
        sealing = self._sealer.trouble.failure
        if sealing is not None and sealing.kind is FailureKind.FATAL and not p.works:
            return sealing
        return p.obstacle()


class Sealer:
    """Loop that seals active segments when their time has come, or when a drain needs it.

    ``seal``: seals all active segments and scans the disk. It returns True if another process has the log open, and
    was only asked to seal them.
    """

    def __init__(self, engine: Engine, seal: Callable[[], Awaitable[bool]]) -> None:
        self._engine = engine
        self._seal = seal
        self.when_sealed: Callable[[], None] = lambda: None
        self._changed = Wakeup()
        self._not_before_ms = 0
        self.trouble = NO_FAILURES
        self._at_work = False
        self.writer = ""
        self._draining = False
        self.needs_seal = False  # set by a drain of everything

    def is_at_work(self) -> bool:
        """Return True while active segments are being sealed, here or by a request to the log's writer."""
        return self._at_work

    def writer_is(self, holder: str) -> None:
        """Record ``holder``, the process that writes the log, ``""`` for none."""
        if self._draining and self.writer and not holder:
            self._not_before_ms = self._engine.now_ms()  # the writer was asked to roll and is gone: now roll here
        self.writer = holder
        self._changed.set()

    def drain(self) -> None:
        """Switch to a drain: from now on seal only if the drain needs it (``needs_seal``), but without a delay."""
        self._draining = True
        self.seal_now()

    def seal_now(self) -> None:
        """Make the next seal due now, and forget earlier failures. A drain calls it when it finds more to seal."""
        self._not_before_ms, self.trouble = self._engine.now_ms(), NO_FAILURES
        self._changed.set()

    def review(self) -> None:
        """Compute the due time again, after a change of the disk, the limits or the drain."""
        self._changed.set()

    async def run(self) -> None:
        """Seal whenever it is due, until this coroutine is cancelled."""
        while True:
            at_ms = self.due_ms()
            now_ms = self._engine.now_ms()
            if at_ms == NONE_MS or at_ms > now_ms:
                await self._changed.wait(None if at_ms == NONE_MS else (at_ms - now_ms) / 1000)
                continue
            self._at_work = True
            try:
                found = await self._engine.attempt(Step(StepKind.SEAL), self._seal)
            finally:
                self._at_work = False
            self._sealed(found)
            self.when_sealed()

    def due_ms(self) -> int:
        """Return the time in ms of the next seal, -1 if none is due until something changes."""
        if self._draining:
            due = 0 if self.needs_seal else NONE_MS
        elif self.writer:
            return NONE_MS
        else:
            idle_ms = self._engine.limits.seal_idle_ms
            times = (p.seal_at(idle_ms) for p in self._engine.partitions.values() if p.active_bytes)
            due = min((at_ms for at_ms in times if at_ms != NONE_MS), default=NONE_MS)
        return due if due == NONE_MS else max(due, self._not_before_ms, self.trouble.retry_at_ms)

    def _sealed(self, found: bool | Failure) -> None:
        engine, doing = self._engine, "sealing the active segments"
        if isinstance(found, Failure):
            self.trouble = engine.failure_noted(self.trouble, found, doing)
            return
        self.trouble = engine.success_noted(self.trouble, doing)
        writer_ended = found and self._draining and not self.writer  # during the request
        self._not_before_ms = engine.now_ms() + (WRITER_GONE_MS if writer_ended else WRITER_SEAL_MS)
