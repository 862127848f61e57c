"""What producers, coordinators and leaders do."""

from __future__ import annotations

from tests.property.history.checks import same
from tests.property.history.geometry import roll_facts, roll_reasons
from tests.property.history.world import HOUR_MS, Raised, Subject, World, outcome
from tiered.errors import InvalidRecordError, RecordTooLargeError
from tiered.format.batch import encode_batch
from tiered.format.codecs import Codec
from tiered.model import NewRecord

KEYS = b"abcdefgh"


def records(world: World, subject: Subject, count: int, *, timeless: bool = True) -> list[NewRecord]:
    """Keys from a few, values of any length, times about now; now and then one that a rule refuses."""
    dice, now = world.dice, world.clock.now_ms()
    made = []
    base = now + dice.choice([0, 0, 0, -HOUR_MS, dice.randint(-10_000, 10_000)])
    for _ in range(count):
        key = bytes([dice.choice(KEYS)])
        if not subject.config.compacted or dice.random() < 0.01:
            key = dice.choice([key, None])
        value = None if dice.random() < 0.2 else dice.randbytes(dice.choice([0, 1, 10, 40, 90]))
        time = dice.choice([base, base, base + dice.randint(-5000, 5000), now])
        if timeless and dice.random() < 0.3:
            time = -1
        if dice.random() < 0.01:
            time = now + 2 * HOUR_MS
        headers = [("h", dice.choice([None, b"", b"1"]))] if dice.random() < 0.2 else None
        made.append(NewRecord(value, key, time, headers))
    return made


def append(world: World, subject: Subject) -> None:
    """One batch of records."""
    made = records(world, subject, world.dice.choice([1, 1, 2, 3, 8]))
    now, model = world.clock.now_ms(), subject.model
    writer = world.partition(subject)
    old = writer.segments.active
    before, facts = old.size_bytes, roll_facts(writer, now)
    expected = outcome(lambda: model.append(made, now))
    found = outcome(lambda: world.partition(subject).append(made).offset)
    world.say(f"append {subject.name} {len(made)} records: {found}")
    same(found, expected, f"append to {subject.name}")
    if not isinstance(found, Raised):
        rolled = writer.segments.active is not old
        added = writer.segments.active.size_bytes - (0 if rolled else before)
        reasons = roll_reasons(facts, subject.config, added, model.end - 1, model.batches[-1].timestamp)
        same(rolled, bool(reasons), f"roll of {subject.name} for {reasons}, {added} bytes, {facts}")


def append_batches(world: World, subject: Subject) -> None:
    """Batches of a client that encoded them itself, all or none."""
    dice, now, model = world.dice, world.clock.now_ms(), subject.model
    groups = [records(world, subject, dice.choice([1, 2, 4])) for _ in range(dice.choice([1, 1, 2, 3]))]
    data = b"".join(encode_batch(group, codec=dice.choice(list(Codec))) for group in groups)

    def expect() -> int:
        for group in groups:
            model.check(group, now)
        offsets = [model.append(group, now, fill_times=False) for group in groups]
        return offsets[0]

    expected = outcome(expect)
    found = outcome(lambda: world.partition(subject).append_batches(data).offset)
    world.say(f"append {subject.name} batches of {[len(group) for group in groups]}: {found}")
    same(found, expected, f"append of batches to {subject.name}")


def append_too_much(world: World, subject: Subject) -> None:
    """A batch beyond max.message.bytes, or no batch at all."""
    huge = [NewRecord(world.dice.randbytes(subject.config.max_message_bytes), b"k")]
    partition = world.partition(subject)
    world.say(f"append too much to {subject.name}")
    same(outcome(lambda: partition.append(huge)), Raised(RecordTooLargeError), f"a huge record for {subject.name}")
    data = encode_batch([NewRecord(huge[0].value, b"k", world.clock.now_ms())])
    same(
        outcome(lambda: partition.append_batches(data)), Raised(RecordTooLargeError), f"a huge batch for {subject.name}"
    )
    junk = bytearray(encode_batch([NewRecord(b"v", b"k", world.clock.now_ms())]))
    junk[world.dice.randrange(17, len(junk))] ^= 0x10
    same(outcome(lambda: partition.append_batches(junk)), Raised(InvalidRecordError), f"junk for {subject.name}")
