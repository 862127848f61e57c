"""What a new process, or a log that was cut, may know of its producers and its start: one of a few things."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from tests.property.history.checks import check, end_on_disk, entries_of, forget, is_idle, last_offset_of, same
from tests.property.history.world import Subject, World
from tests.support.model_log import ModelBatch, ModelLog, ModelProducer, replayed
from tiered.format.control import ControlType
from tiered.model import EpochEntry
from tiered.plan.producer import BatchSpan


def settle(world: World, *, clean: bool) -> None:
    """After an open: takes over what may have changed, and compares the rest."""
    for subject in world.subjects.values():
        settle_one(world, subject, clean=clean)
        check(world, subject)


def settle_one(world: World, subject: Subject, *, clean: bool) -> None:
    """After one partition was opened."""
    model, writer = subject.model, world.partition(subject)
    if writer.segments.first_base == writer.end_offset == model.log_start > subject.first_base:
        model.start_over(model.log_start)  # files ended below the start: Kafka's log starts anew there
    subject.active_base = writer.segments.active.base_offset
    whole = end_on_disk(subject) == model.end  # else the snapshot at the end is above what files tell: it goes
    model.end = subject.rebuilt = end_on_disk(subject)
    model.history = [b for b in model.history if b.last < model.end]  # their offsets are given again, to others
    model.flushed = min(model.flushed, model.end)
    if clean:
        same(writer.log_start, subject.log_start, f"{subject.name} log start after a clean stop")
    elif subject.uploaded is not None:
        # A log that was emptied, and lost its own word of where it begins, begins where the bucket's note says.
        starts = {subject.model.remote_start, subject.uploaded_start, writer.segments.first_base}
        assert writer.log_start in starts, f"{subject.name} {writer.log_start}"
        subject.model.remote_start = writer.log_start
        model.start = min(
            model.start, writer.segments.local_start
        )  # moved before the log was tiered, noted with the next checkpoint
    else:
        starts = {*subject.starts, writer.segments.first_base}
        assert writer.log_start in starts, f"{subject.name} starts at {writer.log_start}, known {sorted(starts)}"
        assert writer.segments.first_base <= writer.log_start <= model.start, (
            f"{subject.name} starts at {writer.log_start}"
        )
        model.start = writer.log_start
    model.reopen()
    if not clean:
        settle_epochs(subject, list(writer.epochs.entries))
    nothing_left = model.log_start == model.end  # the snapshot at the end is not above the start: Kafka drops it
    settle_producers(world, subject, exact=clean and whole and not nothing_left)


def settle_epochs(subject: Subject, found: list[EpochEntry]) -> None:
    """A recovery that meets batches of an epoch above the latest, left by a leader before an older one, believes them.

    How many batches it reads again is its own affair. Where no epoch was known, it learns them from all that it reads.
    """
    model = subject.model
    before = model.epochs
    if before == [EpochEntry(0, model.end)] != found:  # a log that knows none leads under epoch 0
        before = []
    for at in range(len(model.batches)):
        if model.epochs == found:
            break
        model.epochs = before
        for batch in model.batches[at:]:
            if batch.epoch > (model.epochs[-1].epoch if model.epochs else -1):
                model.assign(batch.epoch, batch.base)
        if model.epochs != found:
            model.trim_epochs()
    model.leader_epoch = model.epochs[-1].epoch


def settle_producers(world: World, subject: Subject, *, exact: bool) -> None:
    """After a load: each producer as one of its :func:`pasts` tells it; some may have expired."""
    model, found = subject.model, entries_of(world, subject)
    full = dict(model.producers) if exact else replayed(model.history)
    readable = {b.base for b in model.batches if b.last >= model.start and b.kind is not ControlType.UNKNOWN}
    model.producers = dict(full)
    for pid in sorted(full.keys() - found.keys()):
        gone = not any(batch.base in readable for batch in written(model, pid))
        known = [full[pid]] if exact else pasts(model, pid, readable)
        expired = any(is_idle(p, world.clock.now_ms()) for p in known) or subject.expired.get(
            pid, -1
        ) == last_offset_of(model, pid)
        assert expired or (gone and not exact), f"{subject.name} producer {pid} is gone: {full[pid]}"
        forget(subject, pid)
    state = world.partition(subject).producers.state
    loose = subject.cleaned and not exact
    for pid in sorted(found):
        assert pid in full, f"{subject.name} producer {pid} came from nowhere: {found[pid]}"
        known = [full[pid]] if exact else pasts(model, pid, readable)
        if loose:  # a cleaning may have taken markers, and with them a coordinator's epoch and a time
            known = [
                replace(p, coordinator=found[pid].coordinator_epoch, timestamp=found[pid].timestamp) for p in known
            ]
        fitting = [producer for producer in known if producer.entry(pid) == found[pid]]
        same(found[pid], (fitting or known)[0].entry(pid), f"{subject.name} producer after a load")
        real = state and state.producer(pid)
        model.producers[pid] = with_window(fitting, real.batches if real else (), f"{subject.name} producer {pid}")


def with_window(fitting: list[ModelProducer], spans: Sequence[BatchSpan], what: str) -> ModelProducer:
    """That of several pasts whose newest batches are the known ones: some may have been cleaned away in between."""
    found = [(span.first_sequence, span.first_offset, span.last_offset) for span in spans]
    known = [p.window[len(p.window) - len(found) :] for p in fitting if len(p.window) >= len(found)]
    windows = [[written[:3] for written in window] for window in known]
    assert found in windows, f"{what} after a load: its batches {found} are none of {windows}"
    return replace(fitting[0], window=known[windows.index(found)])


def written(model: ModelLog, pid: int) -> list[ModelBatch]:
    """What a producer wrote and nobody cut off."""
    return [batch for batch in model.history if batch.stamp is not None and batch.stamp.producer_id == pid]


def pasts(model: ModelLog, pid: int, readable: Collection[int]) -> list[ModelProducer]:
    """A producer as the log may tell it: a snapshot of its first batches, or none, and what can be read of the rest."""
    all_of_it = written(model, pid)
    told = [all_of_it]
    for at in range(len(all_of_it)):
        rest = [batch for batch in all_of_it[at:] if batch.base in readable]
        told += [[*all_of_it[:at], *rest], all_of_it[at:], rest]
    return [replayed(batches)[pid] for batches in told if batches]
