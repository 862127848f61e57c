"""The one place where roots are put, and where those of a new topic are made.

A topic's roots are made before its registry entry, which says so (``roots: true``): from then on a root that is absent
is lost. They are made create-only, some of them together, one group after the other; whoever repeats it finds what
was made before and changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

from tiered.errors import CommitUnknown, CorruptionError, RemoteUnavailableError
from tiered.format.crc import crc32c
from tiered.format.keys import Role, root_key
from tiered.format.root import Root, decode_root, encode_root
from tiered.plan.commit import Stamp, create_root
from tiered.plan.invariants import check_root
from tiered.remote.root_view import root_get
from tiered.remote.settle import COMMIT_DEADLINE_MS, Deadline, deadline_after
from tiered.store.base import (
    ABSENT,
    Backoff,
    Condition,
    NewId,
    Now,
    Object,
    Put,
    PutResult,
    PutStatus,
    Steps,
    Time,
    Together,
)

ROOTS_TOGETHER = 64
"""Roots that are made, or looked at, in one group. How many requests are under way at once is the driver's limit."""
REGISTRATION_REQUESTS = 16
"""Requests of a registration that are under way at once: a topic of 10,000 partitions is 10,000 PUTs, once."""


class PartitionIds(NamedTuple):
    """Whose roots: a topic's name and id."""

    topic: str
    topic_id: UUID


def root_put(root: Root, condition: Condition) -> Put:
    """The PUT of a root, whose pages are stored. Raises ConfigError if it is too large."""
    if root.unwritten:
        raise ValueError(f"{root.where} names {len(root.unwritten)} pages that are not stored yet")
    body = encode_root(root)
    return Put(root.key, body, condition, crc32c(body))


def load_roots(ids: PartitionIds, partitions: Sequence[int]) -> Steps[dict[int, Root | None]]:
    """The roots of some partitions, None where there is none. Raises CorruptionError for one that cannot be read."""
    found: dict[int, Root | None] = {}
    for group in _groups(partitions):
        keys = [root_key(ids.topic_id, partition) for partition in group]
        outcomes = yield Together(tuple(root_get(key) for key in keys))
        for partition, key, got in zip(group, keys, outcomes, strict=True):
            found[partition] = decode_root(got.data, key=key) if isinstance(got, Object) else None
    return found


def make_roots(
    ids: PartitionIds, partitions: Sequence[int], owner: str, deadline: Deadline | None = None
) -> Steps[dict[int, Root]]:
    """Make empty roots, create-only. Return those that were there before, as they are now.

    One ``deadline`` holds for all groups together, by default ``COMMIT_DEADLINE_MS`` from now.

    A 412 alone is no proof that a root is there: it is read, and made again if it is not. The registry entry that
    vouches for it would otherwise call it lost for ever.

    Raises CommitUnknown (it is not known which were made), RemoteUnavailableError; both: do it again.
    """
    found: dict[int, Root] = {}
    missing = list(partitions)
    deadline = deadline or (yield from deadline_after(COMMIT_DEADLINE_MS))
    attempt = 0
    while missing:
        there: list[int] = []
        for group in _groups(missing):
            there += yield from _create(ids, (yield from _first_puts(ids, group, owner)), deadline)
        roots = yield from load_roots(ids, there)
        found |= {partition: root for partition, root in roots.items() if root is not None}
        missing = [partition for partition, root in roots.items() if root is None]
        if missing:
            attempt += 1
            yield from _pause(ids, deadline, attempt, f"the PUT of root {missing[0]} lost, and there is none")
    return found


def _first_puts(ids: PartitionIds, group: Sequence[int], owner: str) -> Steps[dict[int, Put]]:
    time: Time = yield Now()
    puts: dict[int, Put] = {}
    for partition in group:
        stamp = Stamp((yield NewId()), time.now_ms, Role.WRITER, 0, owner)
        first = create_root(ids.topic_id, partition, ids.topic, stamp)
        if violations := check_root(first):
            raise CorruptionError(f"{first.where}: {violations[0]}", path_or_key=first.key)
        puts[partition] = root_put(first, ABSENT)
    return puts


def _create(ids: PartitionIds, puts: Mapping[int, Put], deadline: Deadline) -> Steps[list[int]]:
    """Sends the group until each PUT landed or lost; gives those that lost, also to an attempt of our own."""
    open_, lost, cause, attempt = dict(puts), [], "", 0
    while open_:
        try:
            results = yield Together(tuple(open_.values()))
        except RemoteUnavailableError as error:
            results = tuple(PutResult(PutStatus.UNKNOWN, cause=str(error)) for _ in open_)
        again: dict[int, Put] = {}
        for (partition, put), result in zip(open_.items(), results, strict=True):
            if result.status is PutStatus.LOST:
                lost.append(partition)
            elif result.status is not PutStatus.LANDED:
                again[partition] = put
                cause = result.cause or cause
        open_ = again
        if open_:
            attempt += 1
            yield from _pause(ids, deadline, attempt, cause)
    return lost


def _pause(ids: PartitionIds, deadline: Deadline, attempt: int, cause: str) -> Steps[None]:
    time: Time = yield Now()
    if deadline.passed(time):
        text = f"topic {ids.topic}: {attempt} attempts to make its roots in {deadline.after_ms} ms"
        if cause:
            raise CommitUnknown(
                f"{text}; it is not known which were made ({cause}); nothing was deleted", hint="register it again"
            )
        raise RemoteUnavailableError(f"{text}, all answered 409", hint="try again")
    yield Backoff(attempt)


def _groups(partitions: Sequence[int]) -> Iterator[Sequence[int]]:
    for at in range(0, len(partitions), ROOTS_TOGETHER):
        yield partitions[at : at + ROOTS_TOGETHER]
