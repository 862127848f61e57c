"""How a process ends, and what the next one finds."""

from __future__ import annotations

from tests.property.history.checks import check, same
from tests.property.history.world import Subject, World


def close(world: World) -> None:
    """A clean end and a new process."""
    world.say("close and open")
    world.logs.close()
    for subject in world.subjects.values():
        subject.model.flush()
    world.open()
    settle(world, clean=True)


def kill(world: World) -> None:
    """SIGKILL: the page cache survives."""
    world.say("kill and open")
    world.kill()
    world.open()
    settle(world, clean=False)


def cut_power(world: World) -> None:
    """What was not fsynced is lost, or torn, or zeros."""
    world.say("cut power and open")
    world.kill()
    world.files.cut_power(world.dice)
    world.open()
    for subject in world.subjects.values():
        subject.model.power_cut(world.partition(subject).positions().end_offset)
    settle(world, clean=False)


def settle(world: World, *, clean: bool) -> None:
    """Takes over what an end of the process may change, if it is one of the things that it may."""
    for subject in world.subjects.values():
        settle_one(world, subject, clean=clean)
        check(world, subject)


def settle_one(world: World, subject: Subject, *, clean: bool) -> None:
    model = subject.model
    found = world.partition(subject).positions()
    if clean:
        same(found.local_start_offset, model.start, f"{subject.name} start after a clean stop")
    model.reopen()
