"""What clients with a producer id and their coordinators do: in order, again, out of order, fenced."""

from __future__ import annotations

from tests.property.history.acts_append import records
from tests.property.history.checks import same
from tests.property.history.world import Raised, Subject, World, outcome
from tests.support.model_log import SEQUENCES, ModelProducer, ModelStamp
from tiered.format.batch import BatchProducer, encode_batch
from tiered.format.codecs import Codec
from tiered.format.control import ControlType, marker
from tiered.model import NewRecord

IDEMPOTENT = (1, 2, 3)
TRANSACTIONAL = (11, 12, 13, 14)


def producer_append(world: World, subject: Subject) -> None:
    """An idempotent or a transactional producer sends one batch, or so many that older ones are forgotten."""
    pid = world.dice.choice(IDEMPOTENT + TRANSACTIONAL)
    for _ in range(world.dice.choice([1, 1, 1, 1, 7])):
        send(world, subject, pid)


def send(world: World, subject: Subject, pid: int) -> None:
    """One batch, as a rule the one that is due."""
    dice, model, now = world.dice, subject.model, world.clock.now_ms()
    known = model.producers.get(pid, ModelProducer())
    made = records(world, subject, dice.choice([1, 1, 2, 4]), timeless=False)
    transactional = (pid in TRANSACTIONAL) != (dice.random() < 0.03)
    stamp = choose_stamp(world, pid, known)
    if known.window and dice.random() < 0.12:  # once more what it sent before
        written = dice.choice([known.window[0], dice.choice(known.window)])
        stamp = ModelStamp(pid, known.epoch, written.sequence)
        made = records(world, subject, written.last_offset - written.first_offset + 1, timeless=False)
    data = encode(made, stamp, transactional, dice.choice(list(Codec)))
    expected = outcome(lambda: model.append(made, now, stamp=stamp, transactional=transactional, fill_times=False))
    found = outcome(lambda: world.partition(subject).append_batches(data))
    if not isinstance(found, Raised):
        same(found.end_offset, found.offset + len(made), f"append of {stamp} to {subject.name}")
        found = found.offset
    world.say(f"append {subject.name} {stamp} {len(made)} records, {transactional=}: {found}")
    same(found, expected, f"append of {stamp} to {subject.name}")


def choose_stamp(world: World, pid: int, known: ModelProducer) -> ModelStamp:
    """The stamp that is due, or a wrong one."""
    dice = world.dice
    if known.epoch < 0:
        return ModelStamp(pid, dice.choice([0, 0, 3]), dice.choice([0, 0, 7, SEQUENCES - 3]))
    due = (known.window[-1].last_sequence + 1) % SEQUENCES if known.window else 0
    kind = dice.random()
    if kind < 0.75:
        return ModelStamp(pid, known.epoch, due)
    if kind < 0.83:
        return ModelStamp(pid, known.epoch, (due + dice.choice([1, -1, 5])) % SEQUENCES)
    if kind < 0.88 and known.epoch > 0:
        return ModelStamp(pid, known.epoch - 1, due)
    return ModelStamp(pid, known.epoch + 1, dice.choice([0, 0, 0, 1, due]))


def encode(made: list[NewRecord], stamp: ModelStamp, transactional: bool, codec: Codec) -> bytes:
    """As a client sends it."""
    return encode_batch(
        made,
        codec=codec,
        producer=BatchProducer(stamp.producer_id, stamp.epoch, stamp.sequence, transactional=transactional),
    )


def end_transaction(world: World, subject: Subject) -> None:
    """A marker, as a rule for an open transaction; now and then from a coordinator that was replaced."""
    dice, model, now = world.dice, subject.model, world.clock.now_ms()
    is_open = [pid for pid, producer in sorted(model.producers.items()) if producer.txn_first_offset >= 0]
    pid = dice.choice(is_open) if is_open and dice.random() < 0.9 else dice.choice(TRANSACTIONAL)
    known = model.producers.get(pid, ModelProducer())
    epoch = max(known.epoch + dice.choice([0, 0, 0, 1, -1]), 0)
    subject.coordinator += dice.random() < 0.1
    coordinator = max(subject.coordinator - (dice.random() < 0.05), 0)
    kind = dice.choice([ControlType.COMMIT, ControlType.ABORT])
    stamp = ModelStamp(pid, epoch)
    data = encode_batch(
        [marker(kind, coordinator, now)], producer=BatchProducer(pid, epoch, transactional=True, control=True)
    )
    expected = outcome(lambda: model.append_marker(stamp, kind, coordinator, now, now))
    found = outcome(lambda: world.partition(subject).append_as_coordinator(data).offset)
    world.say(f"{kind.name} {subject.name} {stamp} of coordinator {coordinator}: {found}")
    same(found, expected, f"{kind.name} of {stamp} to {subject.name}")
