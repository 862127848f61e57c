"""Is the log what its model says? Each check compares values and says whose they are."""

from __future__ import annotations

from typing import Any

from tests.property.history.world import Subject, World
from tiered.format.batch import BatchHeader, decode_records, read_header
from tiered.format.control import ControlType, control_type, coordinator_epoch
from tiered.local.partition.partition import PartitionLog
from tiered.model import Record
from tiered.testing.model import ModelBatch, Stamp


def same(actual: Any, expected: Any, what: str) -> None:
    """``actual == expected``, told as values."""
    if actual != expected:
        raise AssertionError(f"{what}:\n   log   {actual!r}\n   model {expected!r}")


def as_model(header: BatchHeader, records: list[Record]) -> ModelBatch:
    """A batch of the log as the model has it."""
    stamp = None
    if header.producer_id >= 0:
        stamp = Stamp(header.producer_id, header.producer_epoch, header.base_sequence)
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


def batches_of(partition: PartitionLog, start: int, end: int | None = None, **options: Any) -> list[ModelBatch]:
    """Everything from ``start`` on."""
    read = partition.read_batches(start, end, **options)
    return [as_model(read_header(batch), list(decode_records(batch))) for batch in read]


def check_ends(world: World, subject: Subject) -> None:
    """Positions, leader epochs, stable offset."""
    model, partition = subject.model, world.partition(subject)
    found = partition.positions()
    same((found.local_start_offset, found.end_offset), (model.start, model.end), f"{subject.name} start, end")
    promised = min(model.flushed, model.end)
    assert promised <= found.flushed_offset <= model.end, f"{subject.name} flushed {found} promised {promised}"
    model.flushed = found.flushed_offset
    same(list(partition.leader_epochs()), model.epochs, f"{subject.name} epochs")
    same(partition.last_stable_offset(), model.stable_offset(), f"{subject.name} last stable offset")


def check_content(subject: Subject, partition: PartitionLog) -> None:
    """Every batch, header and records, from the start to the end."""
    model = subject.model
    found = batches_of(partition, model.start)
    expected = [batch for batch in model.batches if batch.last >= model.start]
    for one, other in zip(found, expected, strict=False):
        same(one, other, f"{subject.name} batch")
    same([b.base for b in found], [b.base for b in expected], f"{subject.name} batches")


def check(world: World, subject: Subject) -> None:
    """All of it."""
    check_ends(world, subject)
    check_content(subject, world.partition(subject))
