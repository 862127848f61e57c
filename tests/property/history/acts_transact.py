"""Transactions by the log's own coordinator: over one partition or several, committed or aborted, whole in each."""

from __future__ import annotations

from tests.property.history.acts_append import records
from tests.property.history.checks import check_ends, same
from tests.property.history.world import Raised, Subject, World, outcome
from tests.support.model_log import ModelStamp
from tiered.format.batch import BatchProducer, encode_batch
from tiered.format.control import ControlType, marker
from tiered.format.coordinator_records import TRANSACTION_STATE_TOPIC
from tiered.local.transactions.coordinator import TxnProducer
from tiered.local.transactions.state_log import LEAST_ID
from tiered.model import TopicPartition
from tiered.plan.producer import ProducerStamp

NAMES = ("invoices", "audit")
STATE = TopicPartition(TRANSACTION_STATE_TOPIC, 0)


def transact(world: World, subject: Subject) -> None:
    """One transaction, begun and ended; a batch that is refused leaves it as it was."""
    dice, now = world.dice, world.clock.now_ms()
    coordinator = world.logs.transactions
    producer = coordinator.begin(dice.choice(NAMES))
    others = [other for other in world.subjects.values() if other is not subject]
    chosen = [subject, *dice.sample(others, dice.choice([0, 0, 1, 2]))]
    written: list[Subject] = []
    for one in chosen:
        coordinator.join(producer, [one.tp])
        sequence = 0
        for _ in range(dice.choice([1, 1, 2])):
            made = records(world, one, dice.choice([1, 2, 4]))
            stamp = ModelStamp(producer.producer_id, producer.producer_epoch, sequence)
            expected = outcome(lambda: one.model.append(made, now, stamp=stamp, transactional=True))  # noqa: B023 - called now
            found = outcome(
                lambda: world.partition(one).append_as_producer(made, ProducerStamp(*stamp)).offset  # noqa: B023 - called now
            )
            world.say(f"transaction in {one.name} {stamp} {len(made)} records: {found}")
            same(found, expected, f"transaction in {one.name}")
            sequence += 0 if isinstance(found, Raised) else len(made)
        written.append(one)
    end(world, producer, written, commit=dice.random() < 0.6)


def end(world: World, producer: TxnProducer, written: list[Subject], *, commit: bool) -> None:
    """The decision; each partition gets its marker under the next epoch, and all of it is on disk."""
    now = world.clock.now_ms()
    marked = ModelStamp(producer.producer_id, producer.producer_epoch + 1)
    kind = ControlType.COMMIT if commit else ControlType.ABORT
    world.say(f"transaction {kind.name} of {marked} in {', '.join(one.name for one in written)}")
    world.logs.transactions.end(producer, commit=commit)
    for one in written:
        outcome(lambda: one.model.append_marker(marked, kind, 0, now, now))  # noqa: B023 - called now
        check_ends(world, one)  # it may have begun a new segment; the story looks at one partition after each act
        one.model.flush()
    world.logs.partition(STATE).flush()  # its last record, too: no recovery writes the markers once more


def tidy(world: World, subject: Subject) -> None:
    """A cut took the marker of a transaction of ours: it is aborted, as the next unclean open would."""
    for pid, known in sorted(subject.model.producers.items()):
        if pid < LEAST_ID or known.txn_first_offset < 0:
            continue
        now = world.clock.now_ms()
        data = encode_batch(
            [marker(ControlType.ABORT, 0, now)],
            producer=BatchProducer(pid, known.epoch, transactional=True, control=True),
        )
        world.say(f"{subject.name}: a cut left {pid} open at {known.txn_first_offset}")
        subject.model.append_marker(ModelStamp(pid, known.epoch), ControlType.ABORT, 0, now, now)
        world.partition(subject).append_as_coordinator(data)
        world.partition(subject).flush()
        subject.model.flush()
