"""Who meets whom over what, and how many faults are looked at by default."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tests.explore.bucket import NO_OBJECTS, Objects
from tests.explore.groups import JUDGE, Offsets, member
from tests.explore.machine import TOPIC_ID, TP, Disk, Machine
from tests.explore.process import Program, Runner
from tests.explore.programs import keeper_of, maintainer, reader, writer
from tests.explore.search import Scene, undisturbed
from tests.explore.truth import Memory
from tiered.plan.commit import SHAPE, Shape
from tiered.remote.roots import TopicIds, make_roots

SMALL = Shape(leaf_rows=2, tail_rows=3, fan_out=2, root_leaves=3, small_leaf=2, trash_entries=6, trash_page=3)
"""Pages of two rows."""


@dataclass
class Stage:
    """What happened before a scene begins: one process after the other, undisturbed."""

    objects: Objects = NO_OBJECTS
    memory: Memory = field(default_factory=Memory)
    acts: int = 0

    def __post_init__(self) -> None:
        def roots(_: Machine) -> Any:
            yield from make_roots(TopicIds(TP.topic, TOPIC_ID), [0], "registrar")

        self.act("registrar", roots, Disk("registrar"))

    def act(self, name: str, program: Program, disk: Disk) -> Disk:
        self.acts += 1
        runner = Runner(f"before {self.acts} {name}", 0, program, disk)
        self.objects, disk, self.memory = undisturbed(runner, self.objects, memory=self.memory)
        return disk

    def scene(self, name: str, programs: Mapping[str, tuple[Program, Disk]], **more: Any) -> Scene:
        return Scene(
            name,
            {who: program for who, (program, _) in programs.items()},
            self.objects,
            {who: disk for who, (_, disk) in programs.items()},
            self.memory,
            **more,
        )


NO_DISK = Disk("")


def takeover() -> Scene:
    """Two fresh machines on one empty partition: one takes it over from the other."""
    stage = Stage()
    return stage.scene("takeover", {"a": (writer(1), Disk("a")), "b": (writer(1), Disk("b"))})


def three_writers() -> Scene:
    """Three fresh machines."""
    stage = Stage()
    return stage.scene("three-writers", {name: (writer(1), Disk(name)) for name in "abc"})


def restart() -> Scene:
    """A machine whose log goes on, and a fresh one that takes it over."""
    stage = Stage()
    disk = stage.act("a", writer(1), Disk("a"))
    return stage.scene("restart", {"a": (writer(2), disk), "b": (writer(1), Disk("b"))})


def copied() -> Scene:
    """A volume and its copy, which has records of its own, and both go on."""
    stage = Stage()
    disk = stage.act("a", writer(1), Disk("a"))
    copy = replace(disk, pen="copy", segments=(*disk.segments, (2, 4, "copy.1")), made=2)
    programs = {"a": (writer(2), disk), "copy": (writer(2), copy)}
    return stage.scene("copied-volume", programs, copied=True)


def trim_append() -> Scene:
    """A writer appends while a maintainer trims."""
    stage = Stage()
    disk = stage.act("a", writer(2), Disk("a"))
    return stage.scene("append-and-trim", {"a": (writer(3), disk), "m": (maintainer([("trim", 2)]), NO_DISK)})


def trim_merge() -> Scene:
    """A writer trims into the very rows that a maintainer merges."""
    stage = Stage()
    disk = stage.act("a", writer(3), Disk("a"))
    programs = {"a": (writer(3, trims=(4, 6)), disk), "m": (maintainer([("merge", 2, 6)]), NO_DISK)}
    return stage.scene("trim-and-merge", programs)


def two_maintainers() -> Scene:
    """One maintainer merges the rows that another one trims."""
    stage = Stage()
    stage.act("a", writer(2), Disk("a"))
    programs = {
        "m": (maintainer([("merge", 0, 4)], owner="m"), NO_DISK),
        "n": (maintainer([("trim", 2)], owner="n"), NO_DISK),
    }
    return stage.scene("two-maintainers", programs)


def with_garbage(segments: int, shape: Shape = SHAPE) -> tuple[Stage, Disk]:
    stage = Stage()
    disk = stage.act("a", writer(segments, shape=shape), Disk("a"))
    stage.act("m", maintainer([("merge", 0, 4)], shape=shape), NO_DISK)
    return stage, disk


def collection() -> Scene:
    """A collector that trims first, and a user who takes a snapshot meanwhile."""
    stage, _ = with_garbage(3)
    programs = {
        "gc": (maintainer([("trim", 4), ("collect",)], owner="gc"), NO_DISK),
        "user": (keeper_of("kept"), NO_DISK),
    }
    return stage.scene("collection-and-snapshot", programs, deletes=True)


def two_collectors() -> Scene:
    """Two collectors over one trash."""
    stage, _ = with_garbage(2)
    programs = {
        "gc": (maintainer([("collect",)], owner="gc"), NO_DISK),
        "hc": (maintainer([("collect",)], owner="hc"), NO_DISK),
    }
    return stage.scene("two-collectors", programs, deletes=True)


def reading() -> Scene:
    """A reader without a pin while rows are merged and collected under it."""
    stage = Stage()
    stage.act("a", writer(2), Disk("a"))
    programs = {
        "r": (reader(0), NO_DISK),
        "m": (maintainer([("merge", 0, 4), ("collect",)]), NO_DISK),
    }
    return stage.scene("reader-and-collection", programs, deletes=True)


def pinned_reading() -> Scene:
    """The same with a pin."""
    stage = Stage()
    stage.act("a", writer(2), Disk("a"))
    programs = {
        "r": (reader(0, pinned=True), NO_DISK),
        "m": (maintainer([("merge", 0, 4), ("collect",)]), NO_DISK),
    }
    return stage.scene("pinned-reader-and-collection", programs, deletes=True)


def sweeping() -> Scene:
    """An uploader whose objects no root names yet, and a sweep for orphans."""
    stage = Stage()
    disk = stage.act("a", writer(1), Disk("a"))
    programs = {
        "a": (writer(2), disk),
        "m": (maintainer([("sweep",)]), NO_DISK),
    }
    return stage.scene("append-and-sweep", programs, deletes=True, lists=True)


def sweeping_three() -> Scene:
    """A fresh machine takes over from one that uploads, while orphans are swept."""
    stage = Stage()
    disk = stage.act("a", writer(1), Disk("a"))
    programs = {
        "a": (writer(2), disk),
        "b": (writer(0), Disk("b")),
        "m": (maintainer([("sweep",)]), NO_DISK),
    }
    return stage.scene("takeover-and-sweep", programs, deletes=True, lists=True)


def merging_and_sweep() -> Scene:
    """A maintainer that merges, and another that sweeps: the objects of the first are not named yet."""
    stage = Stage()
    disk = stage.act("a", writer(2), Disk("a"))
    stage.act("a again", writer(2), disk)
    programs = {
        "m": (maintainer([("merge", 0, 4)], owner="m"), NO_DISK),
        "n": (maintainer([("sweep",)], owner="n"), NO_DISK),
    }
    return stage.scene("merge-and-sweep", programs, deletes=True, lists=True)


def pages() -> Scene:
    """Rows in pages of two: a writer spills while a maintainer merges and trims inside a page."""
    stage = Stage()
    disk = stage.act("a", writer(4, shape=SMALL), Disk("a"))
    programs = {
        "a": (writer(6, shape=SMALL), disk),
        "m": (maintainer([("trim", 2), ("merge", 2, 6)], shape=SMALL), NO_DISK),
    }
    return stage.scene("pages", programs)


def pages_collected() -> Scene:
    """Pages that leave are collected with what they name, while a user takes a snapshot."""
    stage = Stage()
    stage.act("a", writer(5, shape=SMALL), Disk("a"))
    stage.act("m", maintainer([("merge", 0, 4)], shape=SMALL), NO_DISK)
    programs = {
        "gc": (maintainer([("trim", 6), ("collect",)], owner="gc", shape=SMALL), NO_DISK),
        "user": (keeper_of("kept"), NO_DISK),
    }
    return stage.scene("pages-collected", programs, deletes=True)


def two_keepers() -> Scene:
    """A snapshot that is taken, deleted and taken again, while another user takes one of its name."""
    stage = Stage()
    stage.act("a", writer(1), Disk("a"))
    programs = {"user": (keeper_of("kept", times=2), NO_DISK), "other": (keeper_of("kept"), NO_DISK)}
    return stage.scene("two-keepers", programs)


def group() -> Scene:
    """Two members of a group and one partition; each may judge the other dead at any time."""
    programs = {name: member(name, 1) for name in "ab"}
    disks = {name: Disk(name) for name in "ab"}
    return Scene("group", programs, NO_OBJECTS, disks, Offsets(), JUDGE, lists=True, deletes=True)


def group_again() -> Scene:
    """One of the members reads twice: it may have lost the partition and taken it again."""
    programs = {"a": member("a", 2), "b": member("b", 1)}
    disks = {name: Disk(name) for name in "ab"}
    return Scene("group-again", programs, NO_OBJECTS, disks, Offsets(), JUDGE, lists=True, deletes=True)


def group_restart() -> Scene:
    """A member that dies begins again, beside the requests and the object of its life before."""
    return Scene(
        "group-restart",
        {"a": member("a", 2, lives=2)},
        NO_OBJECTS,
        {"a": Disk("a")},
        Offsets(),
        JUDGE,
        lists=True,
        deletes=True,
    )


@dataclass(frozen=True)
class Bound:
    """A scene, the faults that ``make explore`` looks at, and those of ``make test``."""

    make: Callable[[], Scene]
    faults: int
    quick: int


SCENES = (
    Bound(takeover, 1, 0),
    Bound(three_writers, 0, -1),
    Bound(restart, 1, 0),
    Bound(copied, 2, 1),
    Bound(trim_append, 1, 0),
    Bound(trim_merge, 1, 0),
    Bound(two_maintainers, 1, 0),
    Bound(collection, 1, 0),
    Bound(two_collectors, 1, 0),
    Bound(two_keepers, 2, 1),
    Bound(reading, 1, 0),
    Bound(pinned_reading, 1, 0),
    Bound(sweeping, 1, 0),
    Bound(sweeping_three, 0, -1),
    Bound(merging_and_sweep, 1, 0),
    Bound(pages, 0, -1),
    Bound(pages_collected, 1, 0),
    Bound(group, 1, 0),
    Bound(group_again, 1, -1),
    Bound(group_restart, 2, 1),
)
"""``quick`` -1: not in ``make test``."""
