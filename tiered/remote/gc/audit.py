"""Audit lines: records of the objects that each garbage collection and sweep deleted, kept for ever below ``jobs/gc/``.

The key of a line contains the partition and the version of the root at that time. So lines also prove that a version
existed: a root below the newest of them is an older one that was put back.

Before the objects of a destroyed partition are deleted, a line with the highest possible version is written, which no
root ever has. A topic id is never reused, so objects that appear below such a partition later belong to no topic.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from uuid import UUID

from tiered.errors import CommitUnknownError, RemotePermissionError, RemoteUnavailableError, TieredError
from tiered.format.kernels import crc32c
from tiered.format.keys import MAX_INT64, decisions_audit_key, gc_audit_key, gc_audit_prefix, parse_gc_audit_key
from tiered.format.root import Root
from tiered.remote.conditional_put import COMMIT_DEADLINE_MS, conditional_put, deadline_after
from tiered.store.base import ABSENT, NewId, Now, Put, Steps
from tiered.store.steps import list_all, list_page

DESTROYED = MAX_INT64
"""Version in the key of the line about a partition's destruction."""
STORE_LINE, DELETE = "PutObject of an audit line", "DeleteObject"
"""Operations that the refusals of a line and of a deletion name."""
AUDITED_KEYS = 100
"""Most keys that one line names."""
LOGGER = logging.getLogger("tiered.remote")


def write_line(root: Root, fields: Mapping[str, object], *, must: bool = False) -> Steps[str]:
    """Store an audit line, for people, about a collection or sweep at the version of ``root``.

    Args:
        fields: JSON fields of the line, such as the counts.
        must: the line announces a deletion. No object may be deleted before the line is stored.

    Returns:
        The key of the line. ``""`` if it was not stored and need not be: the objects are deleted by then.

    Raises:
        RemoteUnavailableError, RemotePermissionError: with ``must`` alone. Nothing was deleted yet.
    """
    key = gc_audit_key(root.topic_id, root.partition, root.version, (yield NewId()))
    about = {"topic": root.topic, "version": root.version, "owner": root.commit.owner, **fields}
    put = yield from _line(key, root.topic_id, root.partition, about)
    if must:
        yield from _landed(put, root.where)
        return key
    try:
        yield put  # one attempt: the deletions are done, so no retry is worth a delay
    except TieredError as error:
        LOGGER.warning("gc_not_noted key=%s error=%s", key, error.message)
        return ""
    return key


def note_destroyed(topic_id: UUID, partition: int, fields: Mapping[str, object]) -> Steps[None]:
    """Store the audit line ``destroyed``, before a partition or its leftover objects are deleted.

    ``fields``: further JSON fields of the line.
    """
    key = gc_audit_key(topic_id, partition, DESTROYED, (yield NewId()))
    put = yield from _line(key, topic_id, partition, {"destroyed": True, **fields})
    yield from _landed(put, f"partition {partition} of topic id {topic_id}")


def is_refused_deletion(error: RemotePermissionError) -> bool:
    """Return True if the store refused a deletion, or the audit line that announces one."""
    return error.operation in (STORE_LINE, DELETE)


def announce_decisions(keys: Sequence[str]) -> Steps[None]:
    """Store an audit line about the sink decisions ``keys``, before a sweep deletes them.

    The line has their number and at most ``AUDITED_KEYS`` of the keys.
    """
    line = {"at_ms": (yield Now()).now_ms, "decisions": len(keys), "keys": list(keys[:AUDITED_KEYS])}
    body = json.dumps(line).encode() + b"\n"
    yield from _landed(Put(decisions_audit_key((yield NewId())), body, ABSENT, crc32c(body)), "decisions of sinks")


def was_destroyed(topic_id: UUID, partition: int) -> Steps[bool]:
    """Return True if an audit line proves that the partition was destroyed. Costs one LIST of one key."""
    prefix = gc_audit_prefix(topic_id, partition)
    page = yield from list_page(prefix, gc_audit_key(topic_id, partition, DESTROYED - 1, "f" * 32), 1)
    return any(parse_gc_audit_key(entry.key) == DESTROYED for entry in page.entries)


def _line(key: str, topic_id: UUID, partition: int, fields: Mapping[str, object]) -> Steps[Put]:
    line = {"topic_id": topic_id.hex, "partition": partition, "at_ms": (yield Now()).now_ms, **fields}
    body = json.dumps(line).encode() + b"\n"
    return Put(key, body, ABSENT, crc32c(body))


def _landed(put: Put, what: str) -> Steps[None]:
    """Store a line, and raise if that is refused or unknown. ``what`` names the subject of the line in errors."""
    try:
        yield from conditional_put(put, (yield from deadline_after(COMMIT_DEADLINE_MS)), what)
    except RemotePermissionError as refused:
        raise RemotePermissionError(
            f"{what}: the store refused the audit line {put.key}: {refused.message}; nothing was deleted",
            operation=STORE_LINE,
            resource=put.key,
            hint="allow s3:PutObject below jobs/gc/: `tiered iam-policy --role maintainer` prints the policy",
        ) from refused
    except CommitUnknownError as unknown:
        raise RemoteUnavailableError(
            f"{what}: it is unknown whether the audit line {put.key} was stored; nothing was deleted", hint="try again"
        ) from unknown


def audited(root: Root) -> Steps[int]:
    """Return the newest root version above that of ``root`` whose existence an audit line proves; 0 without one.

    Costs one LIST: keys are ordered by version, and only those above ``root`` are listed.
    """
    prefix = gc_audit_prefix(root.topic_id, root.partition)
    after = gc_audit_key(root.topic_id, root.partition, root.version, "f" * 32)
    listed = yield from list_all(prefix, after)
    versions = [parse_gc_audit_key(entry.key) for entry in listed]
    return max((version for version in versions if version is not None and version != DESTROYED), default=0)
