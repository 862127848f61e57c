"""How a process ends, what happens to its files meanwhile, what the next one finds; topics that come, move and go."""

from __future__ import annotations

from pathlib import Path
from random import Random

from tests.property.history.checks import check, same
from tests.property.history.settle import settle, settle_one
from tests.property.history.world import Raised, Subject, World, outcome
from tiered.errors import ConfigError
from tiered.local.segment.side_files import read_note

INDEXES = (".index", ".timeindex")
TOLD = (*INDEXES, ".seal", ".txnindex")
"""What the log tells, as long as the snapshots at the bases of its segments say what was open there."""


def close(world: World) -> None:
    """A clean end and a new process."""
    world.say("close and open")
    world.logs.close()
    for subject in world.subjects.values():
        subject.model.flush()
    damage(world, TOLD)
    world.open()
    settle(world, clean=True)


def kill(world: World) -> None:
    """SIGKILL: the page cache survives."""
    world.say("kill and open")
    world.kill()
    damage(world, world.dice.choice([TOLD, (*INDEXES, ".snapshot", ".seal")]))
    world.open()
    settle(world, clean=False)


def cut_power(world: World) -> None:
    """What was not fsynced is lost, or torn, or zeros."""
    world.say("cut power and open")
    world.kill()
    world.files.cut_power(world.dice)
    damage(world, TOLD)
    world.open()
    for subject in world.subjects.values():
        end = world.partition(subject).positions().end_offset
        world.say(f"  {subject.name} ends at {end}")
        subject.model.power_cut(end)
    settle(world, clean=False)


def damage(world: World, suffixes: tuple[str, ...]) -> None:
    """Some files that can be made anew go missing, are cut, zeroed or overwritten."""
    dice = world.dice
    if dice.random() < 0.5:
        return
    for directory in world.paths:
        for path in sorted(directory.glob("*-0/*")):
            if path.suffix not in suffixes or dice.random() > 0.2:
                continue
            if not is_needed(world, path):
                world.spoiled.add((path.parent.name, path.name))
                world.say(f"  {spoil(world, path)} {path.parent.name}/{path.name}")


def is_needed(world: World, path: Path) -> bool:
    """Whether nothing else tells it, now or when what came before has left the disk.

    The only snapshot of a partition; where a bucket holds what came before also the oldest, and the transaction index
    of a segment at whose base the snapshot was lost, or the other way round: then it is an error, as it should be.
    """
    other = path.with_suffix({".txnindex": ".snapshot", ".snapshot": ".txnindex"}.get(path.suffix, ""))
    tiered = path.parent.name.startswith("tiered-")
    if tiered and (path.parent.name, other.name) in world.spoiled:
        return True
    snapshots = sorted(path.parent.glob("*.snapshot"))
    return path.suffix == ".snapshot" and (len(snapshots) == 1 or (tiered and path == snapshots[0]))


def spoil(world: World, path: Path) -> str:
    """One file; returns how. The dice do not see how long it is: a note has the checksums of what threads wrote."""
    how = world.dice.choice(["missing", "empty", "zeroed", "cut", "junk"])
    size = path.stat().st_size
    if how == "cut" and path.suffix == ".timeindex":
        log = path.with_suffix(".log")
        noted = read_note(world.files, path.with_suffix(".seal"), log.stat().st_size if log.exists() else 0)
        how = "cut" if noted else "ragged"  # else nothing tells that whole entries are missing
    if how == "missing":
        path.unlink()
    elif how == "zeroed":
        path.write_bytes(bytes(size))
    elif how == "junk":
        path.write_bytes(Random(world.dice.random()).randbytes(size))
    elif how == "ragged":
        path.write_bytes(path.read_bytes()[:-5])
    else:
        path.write_bytes(path.read_bytes()[: 0 if how == "empty" else round(world.dice.random() * size)])
    return how


def move(world: World, subject: Subject) -> None:
    """To the other directory; a tiered one stays."""
    target = next(path for path in world.paths if path != world.home(subject).directory)
    found = outcome(lambda: world.logs.move(subject.tp, target))
    world.say(f"move {subject.name} to {target.name}: {found}")
    if subject.uploaded is not None:
        same(found, Raised(ConfigError), f"move of {subject.name}")
        return
    same(found, None, f"move of {subject.name}")
    subject.model.flush()
    settle_one(world, subject, clean=True)
    check(world, subject)


def recreate(world: World, subject: Subject) -> None:
    """The topic is deleted, and another of its name begins."""
    world.say(f"delete and create {subject.tp.topic}")
    del world.subjects[subject.tp.topic]
    world.logs.delete_topic(subject.tp.topic)
    world.create(subject.tp.topic)
