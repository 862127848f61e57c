"""The engine on a loop whose time a test moves, and a bucket whose steps a test answers."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

from tests.sim.tiers.virtual import VirtualLoop
from tiered.clock import SystemIds
from tiered.engine.bucket import StepBucket
from tiered.engine.disk import Granted
from tiered.engine.drain import Drain, DrainMode, Ending, Sealer
from tiered.engine.engine import Engine
from tiered.engine.partition import EngineLimits, PartitionSeen, SegmentRef
from tiered.engine.reports import Exit, Report, Step, StepKind
from tiered.engine.status import PartitionView
from tiered.errors import ConfigError, RemotePermissionError, RemoteUnavailableError, TieredError
from tiered.local.disk.uploader_files import PartitionUpload
from tiered.model import Row, TopicPartition
from tiered.plan.pacing import Pause
from tiered.testing.clock import FakeClock

if TYPE_CHECKING:
    from tiered.engine.steps import BucketSteps

OPENED: list[Desk] = []
"""Desks of the running test, closed at its end."""

TURNS = 20
"""Turns of the loop in which all that can be done at one time is done."""

DOWN = RemoteUnavailableError("503", hint="wait")
DENIED = RemotePermissionError("AccessDenied", operation="PutObject", resource="x", hint="allow it")
WRONG = ConfigError("because", hint="do this")


def tp(number: int, topic: str = "t") -> TopicPartition:
    return TopicPartition(topic, number)


def topic_id(number: int = 1) -> UUID:
    return UUID(int=number)


def segment(base: int, size: int = 10, first_ms: int = 0) -> SegmentRef:
    return SegmentRef(base, base + size, size * 100, first_ms)


def row(ref: SegmentRef, epoch: int) -> Row:
    return Row(ref.base, ref.end, 0, 0, ref.size_bytes, 0, 0, ref.base, 10, epoch, 1, 0, 0)


class Dice(SystemIds):
    """Jitter from a seed."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def random(self) -> float:
        return self._rng.random()


@dataclass(eq=False)
class Call:
    """One step that the engine waits for. A cancelled one is under way until it is answered."""

    kind: StepKind
    topic: str
    tp: TopicPartition = field(default_factory=lambda: tp(-1))
    epoch: int = 0
    segment: SegmentRef = field(default_factory=lambda: segment(-1))
    rows: tuple[Row, ...] = ()
    future: asyncio.Future[Any] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    cancelled: bool = False


@dataclass(frozen=True)
class CommittedRoot:
    """The part of a root that the engine reads."""

    next_offset: int
    start_offset: int = 0


class AnsweredSteps:
    """In place of each step a call, which the test answers."""

    capabilities = object()

    def rest(self, tp: TopicPartition) -> None:
        """No root is held."""

    def register(self, topic: str) -> Call:
        return Call(StepKind.REGISTER, topic)

    def claim(self, tp: TopicPartition) -> Call:
        return Call(StepKind.CLAIM, tp.topic, tp)

    def sweep_dead_uploads(self, tp: TopicPartition, claim_epoch: int, next_offset: int) -> Call:
        return Call(StepKind.SETTLE, tp.topic, tp, claim_epoch)

    def upload_bytes(self, tp: TopicPartition, segment: SegmentRef) -> int:
        return 0

    def upload(self, tp: TopicPartition, segment: SegmentRef, claim_epoch: int, *, deadline_seconds: float) -> Call:
        return Call(StepKind.UPLOAD, tp.topic, tp, claim_epoch, segment)

    def commit_bytes(self, tp: TopicPartition, rows: Sequence[Row]) -> int:
        return 0

    def commit(self, tp: TopicPartition, claim_epoch: int, rows: Sequence[Row]) -> Call:
        return Call(StepKind.COMMIT, tp.topic, tp, claim_epoch, rows=tuple(rows))


class AnsweredBucket(StepBucket):
    """Each step waits until the test answers it."""

    def __init__(self, desk: Desk) -> None:
        super().__init__(cast("BucketSteps", AnsweredSteps()), None)
        self._desk = desk

    async def drive(self, steps: Any, *, together: int = 0) -> Any:
        call: Call = steps
        self._desk.begun(call)
        while not call.future.done():
            try:
                await asyncio.wait([call.future])
            except asyncio.CancelledError:
                call.cancelled = True
        self._desk.open.remove(call)
        if call.cancelled or call.future.cancelled():
            raise asyncio.CancelledError
        return call.future.result()


class Desk:
    """An engine, its open calls, what it reported and noted. Each method runs the loop until nothing more happens."""

    def __init__(
        self, *, limits: EngineLimits | None = None, partitions: int = 1, lazy: bool = False, seed: int = 1
    ) -> None:
        self.clock = FakeClock()
        self.loop = VirtualLoop(self.clock)
        self.rng = random.Random(seed)
        self.open: list[Call] = []
        self.reports: list[Report] = []
        self.notes: list[tuple[TopicPartition, PartitionUpload]] = []
        self.looks: list[asyncio.Future[None]] = []
        self.seals: list[asyncio.Future[bool]] = []
        self.partitions = partitions
        OPENED.append(self)
        self.loop.run(self._begin(limits or EngineLimits(), lazy=lazy))

    async def _begin(self, limits: EngineLimits, *, lazy: bool) -> None:
        self.engine = Engine(
            AnsweredBucket(self),
            now_ms=self.clock.now_ms,
            monotonic=self.clock.monotonic,
            dice=Dice(self.rng),
            limits=limits,
            listener=self,
            note=self.noted,
        )
        self.engine.lazy = lazy
        self.sealer = Sealer(self.engine, self._seal)
        self.ending = Ending(self.engine, self.sealer, self._look)
        self.sealing = asyncio.ensure_future(self.sealer.run())
        self.end: asyncio.Future[Exit] = asyncio.ensure_future(self.ending.run())

    # -- what the engine asks of a test ------------------------------------------------------------------------------

    def begun(self, call: Call) -> None:
        self.open.append(call)

    def noted(self, tp: TopicPartition, upload: PartitionUpload) -> None:
        self.notes.append((tp, upload))

    async def _seal(self) -> bool:
        self.seals.append(asyncio.get_running_loop().create_future())
        return await self.seals[-1]

    async def _look(self) -> None:
        self.looks.append(asyncio.get_running_loop().create_future())
        await self.looks[-1]

    def report(self, report: Report) -> None:
        self.reports.append(report)

    def ended(self, step: Step, error: BaseException | None, seconds: float) -> None:
        """Nothing is counted."""

    def bug(self, error: BaseException) -> None:
        raise AssertionError("a bug") from error

    # -- what a test does --------------------------------------------------------------------------------------------

    def turn(self, later_ms: int = 0) -> None:
        """Lets time pass, and all happen that is due by then."""
        self.loop.run(self._turns(later_ms))
        if self.engine.bugs.done():
            self.engine.bugs.result()

    async def _turns(self, later_ms: int) -> None:
        if later_ms:
            await asyncio.sleep(later_ms / 1000)
        for _ in range(TURNS):
            await asyncio.sleep(0)

    def do(self, what: Any, *args: Any, later_ms: int = 0) -> None:
        """Calls something on the loop."""

        async def on_the_loop() -> None:
            what(*args)

        if later_ms:
            self.turn(later_ms)
        self.loop.run(on_the_loop())
        self.turn()

    @property
    def now_ms(self) -> int:
        return self.clock.now_ms()

    def of(self, kind: StepKind) -> list[Call]:
        """The open calls, without those that are cancelled."""
        return [call for call in self.open if call.kind is kind and not call.cancelled]

    @property
    def uploads(self) -> list[Call]:
        return self.of(StepKind.UPLOAD)

    @property
    def commits(self) -> list[Call]:
        return self.of(StepKind.COMMIT)

    @property
    def claims(self) -> list[Call]:
        return self.of(StepKind.CLAIM)

    def answer(self, call: Call, value: Any = None, *, later_ms: int = 0) -> None:
        """Ends a step: with an error where ``value`` is one."""
        end = call.future.set_exception if isinstance(value, TieredError | OSError) else call.future.set_result
        self.do(end, value, later_ms=later_ms)

    def store(self, call: Call, later_ms: int = 0) -> None:
        self.answer(call, row(call.segment, call.epoch), later_ms=later_ms)

    def commit(self, call: Call, end: int | None = None) -> None:
        self.answer(call, CommittedRoot(call.rows[-1].next if end is None else end))

    def grant(self, call: Call, epoch: int = 7, next_offset: int = 0, *, resumes: bool = False) -> None:
        """Grants a claim, which left nothing to settle."""
        self.answer(call, Granted("token", epoch, 0, 0, next_offset, resumes))
        for settle in self.of(StepKind.SETTLE):
            self.answer(settle, 0)

    def see(self, number: int = 0, topic: str = "t", *, start: int = 0, end: int = 0, **more: Any) -> None:
        """A look at the disk found this."""
        of_topic = more.pop("topic_id", topic_id())
        self.do(self.engine.see, PartitionSeen(tp(number, topic), of_topic, start, end, end, **more))

    def claimed(self, *, epoch: int = 7, next_offset: int = 0, end: int = 0) -> Desk:
        """All partitions are seen and claimed."""
        for number in range(self.partitions):
            self.see(number, end=end)
            for register in self.of(StepKind.REGISTER):
                self.answer(register)
        while self.claims:
            self.grant(self.claims[0], epoch, next_offset)
        return self

    def seal(self, *bases: int, at: int = 0, first_ms: int = 0) -> list[Call]:
        """Segments were sealed. Gives the uploads that began."""
        before = list(self.open)

        self.add(tp(at), *[segment(base, first_ms=first_ms) for base in bases])
        return [call for call in self.uploads if call not in before]

    def add(self, at: TopicPartition, *segments: SegmentRef) -> None:
        """A look at the disk found that these were sealed."""

        def tell() -> None:
            for each in segments:
                self.engine.partitions[at].add(each)
                self.engine.changed(self.engine.partitions[at])

        self.do(tell)

    def pause(self, pauses: Mapping[str, Pause]) -> None:
        self.do(self.engine.pause, pauses)

    def writer(self, holder: str) -> None:
        self.do(self.ending.writer_is, holder)

    def drain(self, mode: DrainMode, wait_ms: int | None = 25_000, **more: Any) -> None:
        until_ms = None if wait_ms is None else self.now_ms + wait_ms
        self.do(self.ending.start_drain, Drain(mode, until_ms, **more))

    def sigterm(self, mode: DrainMode = DrainMode.ALL) -> None:
        self.drain(mode, last=True)

    def looked(self, error: TieredError | None = None) -> None:
        """The look at the disk ends."""
        look = self.looks[-1]
        self.do(look.set_result if error is None else look.set_exception, error)

    def sealed(self, *, by_writer: bool = False) -> None:
        """The seal ends."""
        self.do(self.seals[-1].set_result, by_writer)

    @property
    def exit(self) -> Exit | None:
        return self.end.result() if self.end.done() else None

    def view(self, number: int = 0) -> PartitionView:
        (found,) = [each for each in self.engine.views(self.now_ms) if each.tp == tp(number)]
        return found

    def waiting(self, number: int = 0) -> str:
        """The code of what a partition waits for."""
        waiting = self.view(number).waiting
        return "" if waiting is None else waiting.code

    def events(self) -> list[str]:
        return [report.event for report in self.reports]

    def close(self) -> None:
        """Cancels everything."""

        async def stop() -> None:
            for call in self.open:
                call.future.cancel()
            self.sealing.cancel()
            self.end.cancel()
            await self.engine.stop()

        self.loop.run(stop())
        self.loop.close()
