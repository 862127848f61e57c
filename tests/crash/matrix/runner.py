"""Runs one operation of the table, again and again, and cuts it short or fails it at each of its calls."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tests.crash.matrix.disk import POWER_CUTS, Cut, Disk, fingerprint, write_tree
from tests.crash.matrix.trace import ERRORS, READS, Effect, fails_at
from tests.crash.matrix.verify import verify_crash, verify_partition
from tests.crash.matrix.world import World
from tiered.errors import LocalIOError, TieredError
from tiered.local.disk.files import disk_failed
from tiered.model import TopicPartition

HOW_MUCH = os.environ.get("TIERED_CRASH_MATRIX", "")
GIVEN_SEED = os.environ.get("TIERED_CRASH_SEED", "random")
"""Other cases in each run, whose seed each failure prints; a number repeats a run."""

SEED = random.SystemRandom().randrange(2**32) if GIVEN_SEED == "random" else int(GIVEN_SEED)
SHARE = 1.0 if HOW_MUCH == "all" else float(HOW_MUCH or 0.025)
"""Of all cases of an operation, but at least one of each variant."""


class Operation(NamedTuple):
    """``prepare`` makes the log that ``run`` works on; the calls of ``run`` are those that fail."""

    name: str
    prepare: Callable[[World], None]
    run: Callable[[World], None]
    directories: int = 1


class Case(NamedTuple):
    """``variant``: ``kill``, ``kill torn``, ``power {cut}``, ``EIO``, ``ENOSPC``; ``call`` counts from 0.

    ``seed`` of a ``power suffix`` is the number of its loss among those that the disk lists at that call.
    """

    call: int
    variant: str
    seed: int


@dataclass(slots=True)
class Result:
    """What became of one operation: distinct states that were opened, and the messages of what went wrong."""

    checked: int = 0
    failed: list[str] = field(default_factory=list)


class Recording(NamedTuple):
    """One undisturbed run: its world, and where among the effects the operation begins."""

    world: World
    begin: int
    loaded: Disk


def record(operation: Operation, root: Path) -> Recording:
    """Runs it once."""
    world = World(root, directories=operation.directories)
    root.mkdir()
    operation.prepare(world)
    begin = len(world.files.effects)
    operation.run(world)
    world.files.abandon()
    return Recording(world, begin, Disk(root))


def cases_of(recording: Recording, dice: random.Random) -> list[Case]:
    """Every call with every variant that it can have."""
    cases = []
    effects = recording.world.files.effects
    disk = Disk(recording.world.root)
    for effect in effects[: recording.begin]:
        disk.apply(effect)
    for call in range(recording.begin, len(effects) + 1):
        after = effects[call - 1] if call > recording.begin else None
        if after is None or after.name not in READS:
            cases.append(Case(call, "kill", 0))
            cases += [Case(call, f"power {cut}", dice.getrandbits(32)) for cut in POWER_CUTS]
            cases += [Case(call, "power suffix", number) for number in range(len(disk.losses()))]
        if call == len(effects):
            break
        disk.apply(effects[call])
        if effects[call].name == "write" and len(effects[call].data) > 1:
            cases.append(Case(call, "kill torn", dice.getrandbits(32)))
        cases.append(Case(call, "EIO", dice.getrandbits(32)))
        if effects[call].name not in READS:
            cases.append(Case(call, "ENOSPC", dice.getrandbits(32)))
    return cases


def sampled(cases: list[Case], dice: random.Random) -> list[Case]:
    """:data:`SHARE` of each variant."""
    by_variant: dict[str, list[Case]] = {}
    for case in cases:
        by_variant.setdefault(case.variant, []).append(case)
    chosen: list[Case] = []
    for variant in sorted(by_variant):
        these = by_variant[variant]
        chosen += dice.sample(these, min(len(these), max(1, round(len(these) * SHARE))))
    return sorted(chosen)


class Matrix:
    """One operation in a directory of its own."""

    def __init__(self, operation: Operation, root: Path) -> None:
        self.operation = operation
        self.root = root
        self.result = Result()
        self._seen: set[tuple[bytes, bool, str]] = set()
        self._count = 0

    def run(self) -> Result:
        """Every case; failures are collected."""
        dice = random.Random(f"{SEED} {self.operation.name}")
        recording = record(self.operation, self.root / "recording")
        effects = recording.world.files.effects
        chosen = sampled(cases_of(recording, dice), dice)
        crashes: dict[int, list[Case]] = {}
        for case in chosen:
            if case.variant in ERRORS:
                self._attempt(case, effects[case.call], lambda case=case: self._fault(case, recording))  # type: ignore[misc]  # mypy cannot infer a lambda's default
            else:
                crashes.setdefault(case.call, []).append(case)
        self._crashes(crashes, recording)
        shutil.rmtree(self.root / "recording")
        return self.result

    def _attempt(self, case: Case, effect: Effect | None, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - whatever goes wrong is a row of the report
            place = "the end" if effect is None else f"{effect.name} {effect.path.name}"
            text = f"{type(error).__name__}: {error}".replace(str(self.root), "")
            self.result.failed.append(f"{self.operation.name}: {case} at {place}: {text[:1500]}")

    def _place(self) -> Path:
        self._count += 1
        return self.root / f"case-{self._count}"

    def _crashes(self, crashes: dict[int, list[Case]], recording: Recording) -> None:
        effects = recording.world.files.effects
        disk = Disk(recording.world.root)
        for call in range(len(effects) + 1):
            for case in crashes.get(call, []):
                following = effects[call] if call < len(effects) else None
                self._attempt(case, following, lambda case=case: self._crash(case, disk, recording))  # type: ignore[misc]  # mypy cannot infer a lambda's default
            if call < len(effects):
                disk.apply(effects[call])

    def _crash(self, case: Case, disk: Disk, recording: Recording) -> None:
        world = recording.world
        dice = random.Random(case.seed)
        power = case.variant.startswith("power")
        at = case.call
        if case.variant == "power suffix":
            tree = disk.state(Cut("suffix", dice, disk.losses()[case.seed]))
        elif power:
            tree = disk.state(Cut(case.variant.removeprefix("power "), dice))
        elif case.variant == "kill":
            tree = disk.state(None)
        else:  # the write that is under way is cut in the middle; the model is put back afterwards
            effect = world.files.effects[at]
            inode = disk._handles[effect.handle]
            before = bytes(inode.now)
            part = effect._replace(data=effect.data[: dice.randint(1, len(effect.data) - 1)])
            disk.apply(part)
            tree = disk.state(None)
            inode.later.pop()
            inode.now = bytearray(before)
        key = fingerprint(tree), power, str(world.ledger.summary(at, power=power))
        if key in self._seen:
            return
        self._seen.add(key)
        self.result.checked += 1
        place = self._place()
        write_tree(tree, place)
        verify_crash(place, world, at, power=power)
        shutil.rmtree(place)

    def _fault(self, case: Case, recording: Recording) -> None:
        """The call fails once, the caller goes on; in the end the process dies, or power goes, or it closes."""
        dice = random.Random(case.seed)
        place = self._place()
        place.mkdir()
        fail = fails_at(case.call, ERRORS[case.variant])
        world = World(place, fail, torn=dice.choice((0.0, 0.5, 1.0)), directories=self.operation.directories)
        self.operation.prepare(world)
        assert len(world.files.effects) == recording.begin, "a second run makes other calls"
        try:
            self.operation.run(world)
        except TieredError as error:
            verify_message(world, error)
        assert len(world.files.hits) == 1, "the call was not made"
        end = dice.choice(("kill", "power", "close"))
        if world.log is None and world.files.hits[0].name == "sync" and end == "power":
            end = "kill"  # an open after a failed fsync cannot know what the kernel has dropped: only a restart can
        go_on(world)
        if end == "close" and world.log is not None:
            try:
                world.close()
            except TieredError as error:
                verify_message(world, error)
        world.files.abandon()
        at = len(world.files.effects)
        if end == "power":
            disk = Disk(place)
            for effect in world.files.effects:
                disk.apply(effect)
            kind, losses = dice.choice((*POWER_CUTS, "suffix")), disk.losses()
            loss = dice.choice(losses) if kind == "suffix" and losses else None
            tree = disk.state(Cut(kind, dice, loss))
            shutil.rmtree(place)
            write_tree(tree, place)
        self.result.checked += 1
        verify_crash(place, world, at, power=end == "power")
        shutil.rmtree(place)


def verify_message(world: World, error: TieredError) -> None:
    """It says which partition, topic or file."""
    names = [str(world.root), *(str(tp) for tp in world.ledger.events)]
    assert any(name in error.message for name in names), f"{type(error).__name__} names nothing: {error}"


def go_on(world: World) -> None:
    """After an error: what is acknowledged can be read; every partition takes records, or says why it does not."""
    if world.log is None:
        world.open()
    assert world.log is not None
    assert set(world.untouched) <= set(world.log.partitions())
    refused: dict[TopicPartition, tuple[TieredError, bool]] = {}
    for tp in world.log.partitions():
        try:
            partition = world.partition(tp)
        except LocalIOError as error:  # a failed sync took its whole directory offline
            refused[tp] = error, True
            continue
        try:
            before = partition.positions().end_offset
            world.put("after", tp=tp)
            assert partition.positions().end_offset == before + 1
            world.flush(tp)
        except TieredError as error:
            refused[tp] = error, disk_failed(partition.context.offline)
        offline = partition.context.offline is not None
        promise = world.ledger.promise(tp, len(world.files.effects), power=False)
        try:
            verify_partition(partition, promise, world.expired, offline=offline)
        except LocalIOError as error:  # a cut that failed: not even reads are answered
            refused[tp] = error, disk_failed(partition.context.offline)
    for tp, (error, whole) in refused.items():
        assert "offline" in error.message or "closed" in error.message, f"{type(error).__name__}: {error}"
        assert whole or tp not in world.untouched, f"{tp} had nothing to do with it: {error}"
