"""What a leader sends: offsets, epochs and bytes as it has them, with gaps, torn at the end, or out of place."""

from __future__ import annotations

from tests.property.history.acts_append import records
from tests.property.history.acts_producer import TRANSACTIONAL
from tests.property.history.checks import as_model, same
from tests.property.history.world import Raised, Subject, World, outcome
from tiered.errors import InvalidRecordError
from tiered.format.batch import decode_records, encode_batch, read_header, rebuild_batch
from tiered.format.codecs import Codec
from tiered.local.partition.replica import Replica
from tiered.model import NewRecord
from tiered.testing.model import ModelBatch


def follow(world: World, subject: Subject) -> None:
    """One to three batches."""
    dice, model = world.dice, subject.model
    at, epoch = model.end, max(model.leader_epoch, 0)
    if dice.random() < 0.15:
        at = max(at + dice.choice([-1, -3, 1, 6, 500]), 0)
    pieces: list[bytes] = []
    for _ in range(dice.choice([1, 1, 2, 3])):
        if dice.random() < 0.1:
            epoch = max(epoch + dice.choice([1, 1, 2, -1]), 0)
        pieces.append(one(world, subject, at, epoch))
        at = read_header(pieces[-1]).next_offset + dice.choice([0] * 9 + [3])
    sent = [modelled(piece) for piece in pieces]
    data = b"".join(pieces)
    if dice.random() < 0.1:
        data += one(world, subject, at, epoch)[: dice.choice([5, 30, 60])]  # the fetch ended here
    if len(pieces) > 1 and dice.random() < 0.05:
        found = outcome(lambda: Replica(world.partition(subject)).append_as_follower(pieces[1] + pieces[0]))
        same(found, Raised(InvalidRecordError), f"batches in disorder to {subject.name}")
    expected = outcome(lambda: model.append_given(sent))
    found = outcome(lambda: Replica(world.partition(subject)).append_as_follower(data))
    told = [(batch.base, batch.last, batch.epoch) for batch in sent]
    world.say(f"follow {subject.name} {told}: {found if isinstance(found, Raised) else 'ok'}")
    same(found if isinstance(found, Raised) else None, expected, f"follower's append to {subject.name}")


def one(world: World, subject: Subject, base: int, epoch: int) -> bytes:
    """A batch of a leader; some have lost records to its cleaner, some belong to a transaction."""
    dice = world.dice
    made = [
        NewRecord(r.value, r.key, max(r.timestamp, 1), r.headers)
        for r in records(world, subject, dice.choice([1, 2, 5]))
    ]
    stamp = {}
    if dice.random() < 0.2:
        pid = dice.choice(TRANSACTIONAL)
        known = subject.model.producers.get(pid)
        stamp = {
            "producer_id": pid,
            "producer_epoch": max(known.epoch if known else 0, 0),
            "base_sequence": dice.randint(0, 5),
        }
    data = encode_batch(
        made, base_offset=base, leader_epoch=epoch, codec=dice.choice(list(Codec)), transactional=bool(stamp), **stamp
    )
    if len(made) > 2 and dice.random() < 0.3:
        kept = [record for record in decode_records(data) if dice.random() < 0.6]
        if kept:
            return rebuild_batch(read_header(data), kept)
    return data


def modelled(piece: bytes) -> ModelBatch:
    return as_model(read_header(piece), list(decode_records(piece)))
