"""Copies of consumer group positions in the bucket, one object for each partition (``format.positions``)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from uuid import UUID

from tiered.errors import ConfigError, CorruptionError, FencedError, RemoteUnavailableError, TieredError
from tiered.format.keys import group_plan_key, positions_key
from tiered.format.positions import (
    MAX_POSITIONS_BYTES,
    Positions,
    PositionsCopy,
    are_equal,
    decode_positions,
    encode_positions,
)
from tiered.model import TopicPartition
from tiered.remote.conditional_put import (
    COMMIT_DEADLINE_MS,
    Cell,
    NextBody,
    Planned,
    Tagged,
    deadline_after,
    read_cell,
    update,
)
from tiered.remote.topics import load_topic
from tiered.store.base import Get, NewId, Object, Steps
from tiered.store.steps import in_turns

LATELY_MS = 24 * 3_600_000
"""Age of a group's last commit in a log from which on the group may be used over the bucket."""


def store_positions(topic_id: UUID, tp: TopicPartition, epoch: int, groups: Positions) -> Steps[None]:
    """Replace the stored copy of one partition's group positions. Sends no PUT if it is equal and of the same claim.

    ``epoch``: claim epoch of the log that writes the copy. Raises FencedError for a copy of a newer claim, ConfigError
    for one of a newer release.
    """
    key = positions_key(topic_id, tp.partition)

    def decode(got: Object) -> PositionsCopy | None:
        try:
            return decode_positions(bytes(got.data), key=key)
        except CorruptionError:
            return None  # the log has the positions: its copy is written again

    def change(seen: Tagged[PositionsCopy | None]) -> Planned[PositionsCopy | None]:
        found = seen.value
        # mutant positions-copy-is-fenced
        if found is not None and found.epoch > epoch:
            raise FencedError(
                f"{tp}: {key} was written under the newer claim {found.epoch}, this log has claim {epoch}",
                hint=f"`tiered repair rejoin {tp.topic}:{tp.partition} --log-dir DIR` lets this log continue at the "
                "bucket's end",
            )
        if found is not None and found.epoch == epoch and are_equal(found.groups, groups):
            return None
        made = PositionsCopy(tp.topic, epoch, groups, int((yield NewId()), 16))
        return NextBody(encode_positions(made, key=key), made)

    look = read_cell(key, decode, MAX_POSITIONS_BYTES)
    cell = Cell(key, f"{tp}: positions of groups", look, _is_same, "the next sync writes them again")
    yield from update(cell, change, (yield from deadline_after(COMMIT_DEADLINE_MS)))


def _is_same(found: PositionsCopy | None, sent: PositionsCopy | None) -> bool:
    return found is not None and sent is not None and found.commit == sent.commit


def load_positions(partitions: Sequence[tuple[UUID, int]]) -> Steps[list[PositionsCopy | TieredError | None]]:
    """Return the stored copy of group positions for each (topic id, partition), in order.

    None: no copy is stored. An unreadable copy gives its error. Raises RemoteUnavailableError.
    """
    found = yield from in_turns([_load(positions_key(*each)) for each in partitions])
    for each in found:
        if isinstance(each, RemoteUnavailableError):
            raise each
    return found


def _load(key: str) -> Steps[PositionsCopy | None]:
    got = yield Get(key, max_bytes=MAX_POSITIONS_BYTES)
    return decode_positions(bytes(got.data), key=key) if isinstance(got, Object) else None


def refuse_shared(group: str) -> Steps[None]:
    """Raise ConfigError if members share the partitions of ``group`` over the bucket. One GET of a byte."""
    try:
        key = group_plan_key(group)
    except ConfigError:  # no group of the bucket has such a name
        return
    if isinstance((yield Get(key, 0, 1)), Object):
        raise ConfigError(
            f"group {group!r} keeps its positions in the bucket, so a consumer of the log cannot join it",
            hint="read with open_reader(url).consumer, give this consumer another group, or run "
            f"`tiered group delete {group}`",
        )


def refuse_logged(group: str, topics: Iterable[str], now_ms: int) -> Steps[None]:
    """Raise ConfigError if ``group`` committed positions of ``topics`` in a log within ``LATELY_MS`` before ``now_ms``.

    It raises nothing if the bucket has a plan of the group. That costs one GET of a byte, otherwise one GET for each
    topic and partition.
    """
    if isinstance((yield Get(group_plan_key(group), 0, 1)), Object):
        return
    partitions: list[tuple[UUID, int]] = []
    for name in topics:
        entry = yield from load_topic(name)
        if entry is not None:
            partitions += [(entry.topic_id, number) for number in range(entry.partitions)]
    for copy in (yield from load_positions(partitions)):
        at = copy.groups.get(group) if isinstance(copy, PositionsCopy) else None
        if at is not None and now_ms - at.committed_ms < LATELY_MS:
            raise ConfigError(
                f"group {group!r} keeps its positions in the log, where it committed less than a day ago",
                hint="read with Log.consumer where the log is open, or give this consumer another group",
            )
