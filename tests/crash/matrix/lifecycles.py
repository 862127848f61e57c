"""Operations on topics, directories and whole logs."""

from __future__ import annotations

from tests.crash.matrix.appends import two_topics
from tests.crash.matrix.removals import segments
from tests.crash.matrix.runner import Operation
from tests.crash.matrix.world import OTHER, T, World
from tiered.model import TopicPartition


def other_only(world: World) -> None:
    world.open()
    world.create("other")
    world.append(2, tp=OTHER)
    world.flush(OTHER)


def create_topic(world: World) -> None:
    world.create("t", 2)
    world.append(2)
    world.append(1, tp=TopicPartition("t", 1))
    world.flush()


def three_partitions(world: World) -> None:
    other_only(world)
    world.create("t", 3)
    for number in range(3):
        world.append(2, tp=TopicPartition("t", number))
        world.flush(TopicPartition("t", number))
    world.checkpoint()


def delete_topic(world: World) -> None:
    world.delete("t")


def delete_topic_wholly(world: World) -> None:
    world.delete("t")
    world.tick(6)


def three_directories(world: World) -> None:
    """``other`` in the first, ``t`` in the second, its log start checkpointed; the third is empty."""
    world.open()
    world.create("other")
    world.create("t")
    world.append(1, tp=OTHER)
    world.flush(OTHER)
    for _ in range(2):
        world.append(2)
        world.produce(7)
        world.roll()
    world.append(1)
    world.delete_records(1)
    world.checkpoint()
    world.append(1)


def move(world: World) -> None:
    world.move(T, 2)
    world.append(1)
    world.flush()


def open_log(world: World) -> None:
    world.open()
    world.append(1)


def killed(world: World) -> None:
    """A process that was killed with records that were not flushed, and a batch that was written by half."""
    segments(world)
    world.crash(lambda e: e.name == "write" and e.path.suffix == ".log", lambda: world.append(2))
    path = world.directories[0] / str(T) / max(p.name for p in (world.directories[0] / str(T)).glob("*.log"))
    handle = world.files.open_write(path)
    world.files.write_at(handle, b"\x00\x00\x00half of a batch", world.files.size(handle))
    world.files.close(handle)


def killed_after_checkpoint(world: World) -> None:
    """The recovery point lies in the middle of the active segment."""
    segments(world, segment_bytes=2000)
    world.append(3)
    world.put("a", "b", "c")
    world.flush()
    world.delete_records(1)
    world.checkpoint()
    world.put("a", "b", "c")
    world.end(99)
    world.files.abandon()
    world.log = None


def closed(world: World) -> None:
    segments(world)
    world.close()


def close_log(world: World) -> None:
    world.close()


def tick_everything(world: World) -> None:
    world.tick(400)


def old_producers(world: World) -> None:
    segments(world)
    world.roll()


def expire_producers(world: World) -> None:
    world.expire_producers()
    world.append(1)
    world.roll()


def new_epochs(world: World) -> None:
    world.epoch(1)
    world.append(1)
    world.epoch(4)
    world.append(1)
    world.flush()


LIFECYCLES = (
    Operation("new leader epochs", two_topics, new_epochs),
    Operation("expiry of producers, roll", old_producers, expire_producers),
    Operation("all background tasks", segments, tick_everything),
    Operation("create topic", other_only, create_topic),
    Operation("delete topic", three_partitions, delete_topic),
    Operation("delete topic, after its delay", three_partitions, delete_topic_wholly),
    Operation("move to another directory", three_directories, move, 3),
    Operation("unclean open, torn tail", killed, open_log),
    Operation("unclean open, recovery point", killed_after_checkpoint, open_log),
    Operation("clean open", closed, open_log),
    Operation("clean close", segments, close_log),
)
