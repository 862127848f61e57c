"""Reads: by offset with every bound, by time, of committed records, from another process."""

from __future__ import annotations

from tests.property.history.checks import as_model, check_committed, check_outside, same
from tests.property.history.world import HOUR_MS, Raised, Subject, World, outcome
from tiered.errors import OffsetOutOfRangeError
from tiered.format.batch import decode_records, read_header
from tiered.local.directory.read_only_log import LogView


def read(world: World, subject: Subject) -> None:
    """From anywhere, to anywhere."""
    dice, model, partition = world.dice, subject.model, world.partition(subject)
    start = dice.randint(max(model.start - 2, 0), model.end + 2)
    end = dice.choice([None, start, start + dice.randint(0, 20)])
    found = outcome(lambda: [bytes(b) for b in partition.read_batches(start, end)])
    world.say(f"read {subject.name} {start} to {end}: {found if isinstance(found, Raised) else len(found)}")
    if not model.start <= start <= model.end:
        same(found, Raised(OffsetOutOfRangeError), f"read of {subject.name} from {start}")
        return
    limit = model.end if end is None else end
    wanted = [b for b in model.batches if b.last >= start and b.base < limit and start < limit]
    same(
        [as_model(read_header(b), list(decode_records(b))) for b in found],
        wanted,
        f"read of {subject.name} {start} to {end}",
    )


def read_committed(world: World, subject: Subject) -> None:
    """What a consumer of committed records gets."""
    model = subject.model
    start = world.dice.randint(model.start, model.end)
    world.say(f"read committed {subject.name} from {start}")
    check_committed(subject, world.partition(subject), start)


def find_time(world: World, subject: Subject) -> None:
    """The first record at or after a time."""
    dice, model = world.dice, subject.model
    times = [record.timestamp for record in model.records] or [0]
    time = dice.choice([dice.choice(times) + dice.choice([-1, 0, 1]), world.clock.now_ms() - dice.randint(0, HOUR_MS)])
    found = world.partition(subject).offset_for_time(time)
    world.say(f"offset of {subject.name} for {time}: {found}")
    same(found, model.offset_for_time(time), f"offset of {subject.name} for {time}")


def look_from_outside(world: World) -> None:
    """Another process reads beside the writer."""
    world.say("look from outside")
    for path in world.paths:
        with LogView.open(path, clock=world.clock, files=world.files) as log:
            for tp in log.partitions():
                subject = world.subjects.get(tp.topic)
                if subject is not None:
                    check_outside(subject, log.partition(tp))
