"""Operations that take something away: retention, deleted records, truncation, compaction."""

from __future__ import annotations

from tests.crash.matrix.runner import Operation
from tests.crash.matrix.world import OTHER, T, World


def segments(world: World, **config: object) -> None:
    """Three sealed segments, with producers and an aborted transaction, and an active one whose end is not flushed."""
    world.open()
    world.create("other")
    world.append(1, tp=OTHER)
    world.create("t", **config)
    for _ in range(2):
        world.put("a", "b")
        world.produce(7)
        world.roll()
    world.produce(1, txn=True)
    world.end(1, abort=True)
    world.epoch(3)
    world.append(2)
    world.roll()
    world.put("a")
    world.flush()
    world.produce(7)
    world.put("b")


def old_segments(world: World) -> None:
    segments(world, retention_ms=60_000)
    world.clock.advance(100)


def expire_all(world: World) -> None:
    world.retain(world.partition().positions().end_offset)


def large_segments(world: World) -> None:
    segments(world, retention_bytes=500)


def expire_some(world: World) -> None:
    world.retain(9)


def delete_records(world: World) -> None:
    world.delete_records(4)
    world.retain(4)
    world.checkpoint()
    world.delete_records(10)
    world.checkpoint()


def deleted_files(world: World) -> None:
    segments(world)
    world.delete_records(7)
    world.retain(7)


def delay_over(world: World) -> None:
    world.tick(6)


def truncate_active(world: World) -> None:
    world.truncate(world.partition().positions().end_offset - 1)
    world.append(1)


def truncate_sealed(world: World) -> None:
    world.truncate(4)
    world.append(1)
    world.flush()


def truncate_several(world: World) -> None:
    world.truncate(2)
    world.append(1)
    world.flush()


def wide_batches(world: World) -> None:
    segments(world)
    world.append(4)
    world.append(1)


def truncate_inside(world: World) -> None:
    world.truncate(world.partition().positions().end_offset - 3)
    world.append(1)


def restart(world: World) -> None:
    world.restart(100)
    world.append(2)
    world.flush()


def restart_below(world: World) -> None:
    world.restart(2)
    world.append(1)


def dirty(world: World, **config: object) -> None:
    """A compacted log: keys that come again, tombstones, transactions, an idempotent producer."""
    world.open()
    world.create("other")
    world.append(1, tp=OTHER)
    world.create("t", cleanup_policy="compact", min_cleanable_dirty_ratio=0.0, **config)
    world.put("a", "b", "a")
    world.put("b", tombstone=True)
    world.produce(7)
    world.roll()
    world.produce(1, 2, txn=True)
    world.end(1, abort=True)
    world.put("c", "a")
    world.produce(2, txn=True)
    world.end(2)
    world.roll()
    world.put("c", "d")
    world.produce(7)
    world.roll()
    world.put("e")


def compact(world: World) -> None:
    world.clean()
    world.put("a")


def compacted(world: World) -> None:
    dirty(world, delete_retention_ms=1000, segment_bytes=2000)
    world.clean()
    world.clock.advance(60)
    world.put("a", "d")
    world.roll()
    world.expired.add(b"b")


def compact_and_delete(world: World) -> None:
    dirty(world)
    world.partition()
    world.log_of(T).alter_topic("t", {"cleanup.policy": "compact,delete"})


def compact_deleted(world: World) -> None:
    world.delete_records(5)
    world.clean()
    world.retain(5)


def unfinished_swap(world: World) -> None:
    """A round of compaction that ended between the renames that put the new segments in their place."""
    dirty(world)
    world.crash(lambda e: e.name == "rename" and e.path.name.endswith(".log.swap"), world.clean)


def unfinished_copy(world: World) -> None:
    """One that ended before it had begun to take effect."""
    dirty(world)
    world.crash(lambda e: e.name == "rename" and e.path.name.endswith(".log.cleaned"), world.clean)


def open_again(world: World) -> None:
    world.open()
    world.put("a")


REMOVALS = (
    Operation("retention by time", old_segments, expire_all),
    Operation("retention by size", large_segments, expire_some),
    Operation("delete_records, checkpoints", segments, delete_records),
    Operation("removal of .deleted files", deleted_files, delay_over),
    Operation("truncation, active segment", segments, truncate_active),
    Operation("truncation, sealed segment", segments, truncate_sealed),
    Operation("truncation, several segments", segments, truncate_several),
    Operation("truncation, inside a batch", wide_batches, truncate_inside),
    Operation("truncation, full", segments, restart),
    Operation("truncation, full, backwards", segments, restart_below),
    Operation("compaction", dirty, compact),
    Operation("compaction, tombstones", compacted, compact),
    Operation("compaction and retention", compact_and_delete, compact_deleted),
    Operation("open in the middle of a swap", unfinished_swap, open_again),
    Operation("open after an unfinished copy", unfinished_copy, open_again),
)
