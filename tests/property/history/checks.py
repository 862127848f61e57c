"""Is the log what its model says? Each check compares values and says whose they are."""

from __future__ import annotations

from typing import Any

from tests.property.history.world import Subject, World
from tests.support.model_log import ModelBatch, ModelLog, ModelProducer, ModelStamp
from tiered.config import DAY_MS
from tiered.format.batch import BatchHeader, decode_records, read_header
from tiered.format.control import ControlType, control_type, coordinator_epoch
from tiered.format.kernels import Record
from tiered.format.producer_snapshot import ProducerEntry
from tiered.local.partition.read_log import ReadLog
from tiered.model import AbortedTxn
from tiered.read.stream import ReadRange
from tiered.read.topic import PartitionStream


def same(actual: Any, expected: Any, what: str) -> None:
    """``actual == expected``, told as values."""
    if actual != expected:
        raise AssertionError(f"{what}:\n   log   {actual!r}\n   model {expected!r}")


def as_model(header: BatchHeader, records: list[Record]) -> ModelBatch:
    """A batch of the log as the model has it."""
    stamp = None
    if header.producer_id >= 0:
        stamp = ModelStamp(header.producer_id, header.producer_epoch, header.base_sequence)
    kind, coordinator = None, -1
    if header.is_control:
        kind = control_type(records[0]) if records else ControlType.UNKNOWN
        coordinator = coordinator_epoch(records[0]) if records else -1
    return ModelBatch(
        header.base_offset,
        header.last_offset,
        tuple(records),
        header.max_timestamp,
        header.leader_epoch,
        stamp,
        header.is_transactional,
        kind,
        coordinator,
        header.delete_horizon_ms,
    )


def batches_of(partition: ReadLog, start: int, end: int | None = None, **options: Any) -> list[ModelBatch]:
    """Everything from ``start`` on."""
    read = partition.read_batches(start, end, **options)
    return [as_model(read_header(batch), list(decode_records(batch))) for batch in read]


def check_ends(world: World, subject: Subject) -> None:
    """Positions, leader epochs, stable offset."""
    model, partition, writer = subject.model, world.partition(subject), world.partition(subject)
    found = partition.positions()
    subject.first_base, subject.active_base = writer.segments.first_base, writer.segments.active.base_offset
    model.forget_below(writer.segments.first_base)
    same((found.local_start_offset, found.end_offset), (model.start, model.end), f"{subject.name} start, end")
    same(writer.log_start, subject.log_start, f"{subject.name} log start")
    same(found.uploaded_offset, subject.uploaded or 0, f"{subject.name} uploaded")
    promised = min(model.flushed, model.end)
    assert promised <= found.flushed_offset <= model.end, f"{subject.name} flushed {found} promised {promised}"
    model.flushed = found.flushed_offset
    subject.starts.add(subject.log_start)
    same(list(partition.leader_epochs()), model.epochs, f"{subject.name} epochs")
    check_producers(world, subject)
    same(partition.last_stable_offset(), model.stable_offset(), f"{subject.name} last stable offset")


def check_content(subject: Subject, partition: ReadLog) -> None:
    """Every batch, header and records, from the start to the end."""
    model = subject.model
    found = batches_of(partition, model.start)
    expected = [batch for batch in model.batches if batch.last >= model.start]
    for one, other in zip(found, expected, strict=False):
        same(one, other, f"{subject.name} batch")
    same([b.base for b in found], [b.base for b in expected], f"{subject.name} batches")


def check_aborted(subject: Subject, partition: ReadLog) -> None:
    """The transaction indexes. A rebuild may know less of batches that are gone, or more."""
    model = subject.model
    found = {txn.last_offset: txn for txn in partition.aborted_txns(0, model.end)}
    model.aborted = [txn for txn in model.aborted if txn.last_offset in found or holds_data(model, txn)]
    known = {txn.last_offset for txn in model.aborted}
    markers = {b.base: b.stamp.producer_id for b in model.batches if b.stamp and b.kind is ControlType.ABORT}
    again = [t for t in found.values() if t.last_offset not in known and markers.get(t.last_offset) == t.producer_id]
    model.aborted = sorted([*model.aborted, *(t for t in again if not holds_data(model, t))], key=by_marker)
    same(sorted(found), sorted(txn.last_offset for txn in model.aborted), f"{subject.name} aborted")
    for txn in model.aborted:
        other = found[txn.last_offset]
        earlier, later = sorted((txn.first_offset, other.first_offset))
        between = txn._replace(first_offset=earlier, last_offset=later - 1)
        if later > earlier and not holds_data(model, between):  # it was deleted, or cleaned away
            other = other._replace(first_offset=txn.first_offset)
        stable = other.last_stable_offset
        # A rebuild reads batches below the log start, too, whose producers are forgotten: too low an offset makes a
        # reader look at one more index. Kafka's own recovery of a segment notes the same.
        low = txn.last_offset < subject.rebuilt and stable < min(txn.last_stable_offset, model.start)
        if low or txn.last_stable_offset < model.start or (subject.cleaned and stable > txn.last_stable_offset):
            other = other._replace(last_stable_offset=txn.last_stable_offset)
        same(other, txn, f"{subject.name} aborted")
    model.aborted = [found[txn.last_offset] for txn in model.aborted]


def by_marker(txn: AbortedTxn) -> int:
    """The order in which they ended."""
    return txn.last_offset


def holds_data(model: ModelLog, txn: AbortedTxn) -> bool:
    """Whether a reader would meet anything of an aborted transaction."""
    return any(
        batch.transactional and batch.stamp is not None and batch.stamp.producer_id == txn.producer_id
        for batch in model.batches
        if batch.kind is None and max(txn.first_offset, model.start) <= batch.last <= txn.last_offset
    )


def entries_of(world: World, subject: Subject) -> dict[int, ProducerEntry]:
    """The producer state of the log."""
    state = world.partition(subject).producers.state
    return {} if state is None else {entry.producer_id: entry for entry in state.entries()}


def is_idle(producer: ModelProducer, now_ms: int) -> bool:
    """Whether it may be forgotten."""
    return producer.txn_first_offset < 0 and now_ms - producer.timestamp >= DAY_MS


def check_producers(world: World, subject: Subject) -> None:
    """Each producer's epoch, sequence, transaction. One that was idle for a day may be gone."""
    model, found = subject.model, entries_of(world, subject)
    for pid in sorted(model.producers.keys() - found.keys()):
        if is_idle(model.producers[pid], world.clock.now_ms()):
            forget(subject, pid)
    expected = {pid: producer.entry(pid) for pid, producer in model.producers.items()}
    same(found, expected, f"{subject.name} producers")


def forget(subject: Subject, pid: int) -> None:
    """It has expired."""
    del subject.model.producers[pid]
    subject.expired[pid] = last_offset_of(subject.model, pid)


def last_offset_of(model: ModelLog, pid: int) -> int:
    """The last that a producer wrote."""
    return max((b.last for b in model.history if b.stamp is not None and b.stamp.producer_id == pid), default=-1)


def check_outside(subject: Subject, partition: ReadLog) -> None:
    """What a process that only reads sees."""
    check_content(subject, partition)
    check_aborted(subject, partition)
    same(list(partition.leader_epochs()), subject.model.epochs, f"{subject.name} epochs from outside")
    ends = {end_on_disk(subject), max(end_on_disk(subject), subject.model.start)}
    assert partition.positions().end_offset in ends, f"{subject.name} end from outside {partition.positions()}"


def end_on_disk(subject: Subject) -> int:
    """The end as files tell it: where a cut, or a cleaning before it, took the last offsets, it lies below the end."""
    return max([subject.active_base, *(b.last + 1 for b in subject.model.batches[-1:])])


def check_committed(subject: Subject, partition: ReadLog, start: int) -> None:
    """What a consumer of committed records gets."""
    stream = PartitionStream.open(subject.tp, local=partition, remote=None)
    found = [
        Record(r.offset, r.timestamp, r.key, r.value, r.headers)
        for r in stream.records(ReadRange(start=start), isolation="read_committed")
    ]
    same(found, subject.model.read_committed(start), f"{subject.name} committed from {start}")


def check(world: World, subject: Subject) -> None:
    """All of it."""
    partition = world.partition(subject)
    check_ends(world, subject)
    check_content(subject, partition)
    check_aborted(subject, partition)
    check_committed(subject, partition, subject.model.start)
