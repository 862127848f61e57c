"""What the owner of a log and its timers do to segments, starts and ends."""

from __future__ import annotations

from tests.property.history.checks import same
from tests.property.history.geometry import segments_of
from tests.property.history.judges import take_start
from tests.property.history.settle import settle_producers
from tests.property.history.world import HOUR_MS, Raised, Subject, World, outcome
from tests.support.given import move_start
from tiered.errors import ConfigError
from tiered.local.disk.uploader_files import PartitionUpload


def flush(world: World, subject: Subject) -> None:
    """All of it is promised."""
    world.say(f"flush {subject.name}")
    world.partition(subject).flush()
    subject.model.flush()


def roll(world: World, subject: Subject) -> None:
    """The active segment is sealed, if it holds anything."""
    holds = world.partition(subject).segments.active.size_bytes > 0
    found = outcome(lambda: world.partition(subject).roll())
    world.say(f"roll {subject.name}: {found}")
    same(found, holds, f"roll of {subject.name}")


def new_leader_epoch(world: World, subject: Subject) -> None:
    """This process leads anew."""
    model = subject.model
    epoch = model.leader_epoch + world.dice.choice([1, 1, 1, 3, 0, -1])
    expected = outcome(lambda: model.new_leader_epoch(epoch))
    found = outcome(lambda: world.partition(subject).new_leader_epoch(epoch))
    world.say(f"epoch {epoch} of {subject.name}: {found}")
    same(found, expected, f"new epoch of {subject.name}")


def delete_records(world: World, subject: Subject) -> None:
    """The start moves, files stay."""
    model, dice = subject.model, world.dice
    if not subject.config.deletes or subject.uploaded is not None:
        return
    target = min(model.start + 5, model.end) if dice.random() < 0.5 else dice.randint(model.start, model.end)
    found = move_start(world.partition(subject), target)
    world.say(f"delete records of {subject.name} below {target}: {found}")
    if target > model.start:
        model.delete_before(target)
        model.trim_epochs()
    same(found, model.start, f"records of {subject.name}")


def delete_local(world: World, subject: Subject) -> None:
    """Whole segments leave the disk, never more than the bucket holds."""
    model, writer = subject.model, world.partition(subject)
    asked = world.dice.randint(model.start, model.start + max(1, (model.end - model.start) // 2))
    limit = asked if subject.uploaded is None else min(asked, subject.uploaded)
    sealed = [s for s in segments_of(writer) if s.sealed]
    stays = next((at for at, s in enumerate(sealed) if s.end > limit or not s.durable), len(sealed))
    found = world.partition(subject).delete_local_before(asked)
    world.say(f"delete {subject.name} below {asked}: {found}")
    same(found, [s.base for s in sealed[:stays]], f"local deletion of {subject.name}")
    if found:
        take_start(subject, writer)


def retain(world: World, subject: Subject) -> None:
    """One pass of retention, judged where it is made."""
    world.say(f"retention of {subject.name}")
    world.partition(subject).apply_retention()


def truncate(world: World, subject: Subject) -> None:
    """The end goes back to an offset, anywhere."""
    model, dice = subject.model, world.dice
    near = max(model.end - dice.randint(0, 12), 0)
    offset = dice.choice([near, near, near, model.end + 1, dice.randint(max(model.start - 3, 0), model.end)])
    found = outcome(lambda: world.partition(subject).truncate_to(offset))
    world.say(f"truncate {subject.name} to {offset}: {found}")
    if subject.uploaded is not None and offset < subject.uploaded:
        same(found, Raised(ConfigError), f"truncation of {subject.name}")
        return
    same(found, None, f"truncation of {subject.name}")
    cut(world, subject, offset)


def cut(world: World, subject: Subject, offset: int) -> None:
    """The model follows a truncation."""
    model, writer = subject.model, world.partition(subject)
    if offset < model.end:
        subject.dirty = None if subject.dirty is None else min(subject.dirty, offset)
        subject.rebuilt = offset
    if offset < subject.first_base:
        start_over(world, subject, offset)
    elif offset < model.end:
        model.truncate_to(offset)
        if writer.producers.state is not None or model.producers:
            settle_producers(world, subject, exact=False)
    else:
        model.truncate_to(offset)


def start_over(world: World, subject: Subject, offset: int) -> None:
    """Nothing is left."""
    subject.model.start_over(offset)
    subject.starts.add(offset)
    subject.dirty = None if subject.dirty is None else min(subject.dirty, offset)


def upload(world: World, subject: Subject) -> None:
    """An uploader notes what a bucket holds; the writer reads the note, now or when its timer says so."""
    if subject.tp.topic != "tiered":
        return
    sealed = [s for s in segments_of(world.partition(subject)) if s.durable]
    ends = [s.end for s in sealed if s.end > (subject.uploaded or 0)]
    if not ends:
        return
    if subject.uploaded is None:
        subject.model.remote_start = subject.model.start
    subject.uploaded = world.dice.choice(ends)
    subject.uploaded_start = subject.log_start
    note = PartitionUpload(subject.uploaded, 1, start_offset=subject.uploaded_start)
    log = world.home(subject)
    log.uploads.update({subject.tp: note})
    world.say(f"upload {subject.name} below {subject.uploaded}")
    log.refresh_uploads()


def tick(world: World) -> None:
    """Time passes, in either direction, and every timer looks at it."""
    dice = world.dice
    seconds = dice.choice([1, 5, 30, 61, 300, 700, 1800, 3700, 4 * HOUR_MS // 1000])
    if dice.random() < 0.03:
        seconds = 25 * HOUR_MS // 1000
    if dice.random() < 0.1:
        seconds = -dice.choice([1, 61, 1000])
    world.clock.jump(seconds) if seconds < 0 else world.clock.advance(seconds)
    world.say(f"tick after {seconds} s")
    world.logs.tick()
