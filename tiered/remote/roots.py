"""Roots of a topic: loading, creation with the topic, and the list of all that a bucket holds.

A topic's roots are made before its registry entry. Once the entry exists, a missing root is lost. Roots are made
create-only, in groups. Repeating it finds the existing roots and changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple
from uuid import UUID

from tiered.errors import CommitUnknownError, CorruptionError
from tiered.format.framed_object import MAX_OBJECT_BYTES
from tiered.format.keys import Role, parse_partition_key, partition_prefix, root_key
from tiered.format.root import Root, decode_root, encode_root
from tiered.plan.commit import Stamp, create_root
from tiered.plan.invariants import check_root
from tiered.remote.conditional_put import (
    COMMIT_DEADLINE_MS,
    Cell,
    Deadline,
    NextBody,
    Planned,
    Tagged,
    deadline_after,
    read_cell,
    update,
)
from tiered.remote.root_view import root_get
from tiered.store.base import (
    NewId,
    Now,
    Object,
    Steps,
    Time,
    Together,
)
from tiered.store.steps import Listing, results_of, side_by_side

ROOTS_TOGETHER = 64
"""Roots made or read in one group. The driver limits the concurrent requests."""
REGISTRATION_REQUESTS = 16
"""Concurrent requests of a registration: a topic of 10,000 partitions needs 10,000 PUTs, once."""


class TopicIds(NamedTuple):
    """Name and id of a topic, to address its roots."""

    topic: str
    topic_id: UUID


def root_body(root: Root) -> bytes:
    """Return the bytes of a root. Raises ConfigError if it is too large, ValueError if a page is not stored yet."""
    if root.unwritten:
        raise ValueError(f"{root.where} names {len(root.unwritten)} pages that are not stored yet")
    return encode_root(root)


def load_roots(ids: TopicIds, partitions: Sequence[int]) -> Steps[dict[int, Root | None]]:
    """Return the roots of ``partitions``, by number, None for a missing one."""
    found: dict[int, Root | None] = {}
    for group in _groups(partitions):
        keys = [root_key(ids.topic_id, partition) for partition in group]
        outcomes = yield Together(tuple(root_get(key) for key in keys))
        for partition, key, got in zip(group, keys, outcomes, strict=True):
            found[partition] = decode_root(got.data, key=key) if isinstance(got, Object) else None
    return found


def make_roots(
    ids: TopicIds, partitions: Sequence[int], owner: str, deadline: Deadline | None = None
) -> Steps[dict[int, Root]]:
    """Make empty roots for ``partitions``, create-only. Return, by number, the roots that existed before.

    ``owner``: name of this process in the new roots. One ``deadline`` bounds all groups together, by default
    ``COMMIT_DEADLINE_MS`` from now.

    A 412 alone does not prove that a root exists. The root is read, and made again if it is missing. Otherwise the
    registry entry, which vouches for the root, would declare it lost for ever.

    Raises CommitUnknownError (some may have been made) or RemoteUnavailableError; call again after either.
    """
    found: dict[int, Root] = {}
    deadline = deadline or (yield from deadline_after(COMMIT_DEADLINE_MS))
    for group in _groups(partitions):
        ends = yield from side_by_side([_make_root(ids, partition, owner, deadline) for partition in group])
        try:
            roots = results_of(ends)
        except CommitUnknownError as error:
            raise CommitUnknownError(
                f"topic {ids.topic}: it is unknown which of its partitions were created: {error.message}",
                hint="create the topic again: partitions that exist stay",
            ) from error
        found |= {partition: root for partition, root in zip(group, roots, strict=True) if root is not None}
    return found


def _make_root(ids: TopicIds, partition: int, owner: str, deadline: Deadline) -> Steps[Root | None]:
    """Make one empty root. Return the one that existed before, None if this call made it."""
    key = root_key(ids.topic_id, partition)

    def first_root(seen: Tagged[Root | None]) -> Planned[Root | None]:
        if seen.value is not None:
            return None
        time: Time = yield Now()
        stamp = Stamp((yield NewId()), time.now_ms, Role.WRITER, 0, owner)
        first = create_root(ids.topic_id, partition, ids.topic, stamp)
        if violations := check_root(first):
            raise CorruptionError(
                f"{first.where}: the new catalog breaks a rule: {violations[0]}", path_or_key=first.key
            )
        return NextBody(encode_root(first), first)

    look = read_cell(key, lambda got: decode_root(got.data, key=key), MAX_OBJECT_BYTES)
    cell: Cell[Root | None] = Cell(key, f"{ids.topic}-{partition}, a new root", look, _same_commit)
    done = yield from update(cell, first_root, deadline, seen=Tagged(None))
    return None if done.written else done.value


def _same_commit(found: Root | None, sent: Root | None) -> bool:
    return found is not None and sent is not None and found.commit.id == sent.commit.id


def _groups(partitions: Sequence[int]) -> Iterator[Sequence[int]]:
    for at in range(0, len(partitions), ROOTS_TOGETHER):
        yield partitions[at : at + ROOTS_TOGETHER]


_LAST = "~"
"""Character above all that our keys contain after a partition's prefix."""


def list_partitions() -> Steps[set[tuple[UUID, int]]]:
    """Return (topic id, partition) of every partition prefix below which an object exists.

    For ``check``, ``repair`` and the sweep of strays, which alone list the bucket. The listing reads at most one page
    of each partition, then jumps past the partition's prefix. It costs about one LIST for each partition that fills a
    page. Folders of foreign keys are jumped over, too.
    """
    found: set[tuple[UUID, int]] = set()
    listing = Listing("")
    while listing.more:
        for entry in (yield from listing.page()):
            owner = parse_partition_key(entry.key)
            if owner is not None:
                found.add(owner)
        behind = _behind(listing.after)
        if not behind:
            break
        listing.after = behind
    return found


def _behind(key: str) -> str:
    """Return the key after which a listing whose last key was ``key`` continues; ``""`` if no partition can follow."""
    owner = parse_partition_key(key)
    if owner is not None:
        return partition_prefix(*owner) + _LAST
    # A foreign key: jump to the next folder of two hex digits, or continue in this one.
    for number in range(256):
        folder = f"{number:02x}"
        if key.startswith(f"{folder}/"):
            return key
        if f"{folder}/" > key:
            return max(folder, key)
    return ""
