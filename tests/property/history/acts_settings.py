"""Settings that change while a log is at work, and appends from two threads at once."""

from __future__ import annotations

import threading
from typing import Any

from tests.property.history.checks import same
from tests.property.history.world import HOUR_MS, Raised, Subject, World, outcome
from tiered.errors import ConfigError
from tiered.model import NewRecord

CHANGES: tuple[tuple[str, tuple[Any, ...]], ...] = (
    ("retention.ms", (2 * HOUR_MS, 12 * HOUR_MS, -1)),
    ("retention.bytes", (3_000, 6_000, -1)),
    ("local.retention.bytes", (3_000, 5_000)),
    ("local.retention.ms", (HOUR_MS, 2 * HOUR_MS)),
    ("delete.retention.ms", (60_000, HOUR_MS)),
    ("max.message.bytes", (900, 1_200)),
    ("segment.bytes", (1_300, 2_000, 3_500)),
)
POLICIES = ("delete", "compact", "compact,delete")
THREADS = 2
BATCHES = 3
THREADED = ("plain", "tiered")
"""Topics whose batches are all of one size: their segments are the same whichever thread comes first."""


def alter(world: World, subject: Subject) -> None:
    """One setting of the topic; it holds from now on."""
    name, values = world.dice.choice(CHANGES)
    change(world, subject, name, world.dice.choice(values))


def alter_policy(world: World, subject: Subject) -> None:
    """Compaction begins over what was written without keys, or ends and leaves its gaps."""
    change(world, subject, "cleanup.policy", world.dice.choice(POLICIES))
    subject.cleaned = subject.cleaned or subject.config.compacted


def change(world: World, subject: Subject, name: str, value: object) -> None:
    """One setting gets a value."""
    info = outcome(lambda: world.logs.alter_topic(subject.tp.topic, {name: str(value)}))
    world.say(f"alter {subject.name} {name}={value}: {info}"[:120])
    if isinstance(info, Raised):  # more on the local tier than in all
        same((info, "retention" in name), (Raised(ConfigError), True), f"{name}={value} of {subject.name}")
        return
    same(str(info.config.to_properties()[name]), str(value), f"{name} of {subject.name}")
    subject.model.config = info.config


def append_from_threads(world: World, subject: Subject) -> None:
    """Two threads begin together: each finds its batches in its own order, and all of them are there once."""
    if subject.tp.topic not in THREADED:
        return
    now, model, partition = world.clock.now_ms(), subject.model, world.partition(subject)
    tags = [world.dice.randbytes(6) for _ in range(THREADS)]
    batches = [[NewRecord(tag + bytes([number]) * 20, b"k", now) for number in range(BATCHES)] for tag in tags]
    offsets: list[list[int]] = [[] for _ in range(THREADS)]
    failed: list[BaseException] = []
    gate = threading.Barrier(THREADS)

    def work(index: int) -> None:
        try:
            gate.wait()
            offsets[index] += [partition.append([record]).offset for record in batches[index]]
        except BaseException as error:  # noqa: BLE001 - it is the history's, on the thread that waits
            failed.append(error)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
    world.say(f"append {subject.name} from {THREADS} threads")
    told = {
        offset: record
        for each, mine in zip(offsets, batches, strict=True)
        for offset, record in zip(each, mine, strict=True)
    }
    same(sorted(told), list(range(model.end, model.end + THREADS * BATCHES)), f"offsets given by {subject.name}")
    for each in offsets:
        same(each, sorted(each), f"the order of one thread in {subject.name}")
    for offset in sorted(told):
        same(model.append([told[offset]], now), offset, f"append to {subject.name}")
