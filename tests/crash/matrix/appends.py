"""Operations that add to a log or make what it has durable."""

from __future__ import annotations

from tests.crash.matrix.runner import Operation
from tests.crash.matrix.world import OTHER, World
from tiered.format.codecs import Codec


def two_topics(world: World) -> None:
    """A log that was stopped and opened again, with something in both partitions, half of it flushed."""
    world.open()
    world.create("other")
    world.create("t")
    world.append(2)
    world.append(1, tp=OTHER)
    world.flush()
    world.flush(OTHER)
    world.append(1)


def append(world: World) -> None:
    world.append(1)
    world.append(3)


def append_idempotent(world: World) -> None:
    world.produce(7, 2)
    world.produce(7, 1)
    world.produce(8, 1)
    world.flush()
    world.checkpoint()
    world.append(1)


def append_compressed(world: World) -> None:
    world.batches(3, 2, codec=Codec.GZIP)
    world.batches(2, codec=Codec.ZSTD)


def append_over_rolls(world: World) -> None:
    for _ in range(8):
        world.append(2)


def append_transactions(world: World) -> None:
    world.produce(1, 2, txn=True)
    world.produce(2, 1, txn=True)
    world.end(1, abort=True)
    world.roll()
    world.end(2)
    world.produce(3, 1, txn=True)


def roll(world: World) -> None:
    world.roll()


def flush(world: World) -> None:
    world.flush()


APPENDS = (
    Operation("append", two_topics, append),
    Operation("append, idempotent", two_topics, append_idempotent),
    Operation("append, compressed", two_topics, append_compressed),
    Operation("append, across rolls", two_topics, append_over_rolls),
    Operation("append, transactions", two_topics, append_transactions),
    Operation("roll by request", two_topics, roll),
    Operation("flush", two_topics, flush),
)
