"""Audit lines: what each collection and each sweep deleted, one object below ``jobs/gc/`` each. Nobody deletes them.

A key tells the partition and the version of the root that the line was written under. So the lines, too, prove that a
version was there: a root below the newest of them is an older one that was put back.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping

from tiered.errors import RemoteUnavailableError, TieredError
from tiered.format.crc import crc32c
from tiered.format.keys import gc_audit_key, gc_audit_prefix, parse_gc_audit_key
from tiered.format.root import Root
from tiered.store.base import ABSENT, NewId, Now, Put, Steps, list_all

LOGGER = logging.getLogger("tiered.remote")


def write_line(root: Root, fields: Mapping[str, object], *, must: bool = False) -> Steps[str]:
    """A line about ``root``, the newest that was committed or read, for people; its key.

    Never raises: what was deleted is gone, noted or not. ``""`` then. A line that ``must`` be there before something
    goes raises RemoteUnavailableError: nothing has gone yet.
    """
    key = gc_audit_key(root.topic_id, root.partition, root.version, (yield NewId()))
    line = {
        "topic": root.topic,
        "partition": root.partition,
        "topic_id": root.topic_id.hex,
        "version": root.version,
        "owner": root.commit.owner,
        "at_ms": (yield Now()).now_ms,
        **fields,
    }
    body = json.dumps(line).encode() + b"\n"
    try:
        yield Put(key, body, ABSENT, crc32c(body))
    except TieredError as error:
        if must and isinstance(error, RemoteUnavailableError):
            raise
        LOGGER.warning("gc_not_noted key=%s error=%s", key, error.message)
        return ""
    return key


def audited(root: Root) -> Steps[int]:
    """A version above that of ``root`` that a line proves to have been there, the newest; 0 without one.

    Costs one LIST: keys are in the order of versions, and only those above ``root`` are asked for.
    """
    prefix = gc_audit_prefix(root.topic_id, root.partition)
    after = gc_audit_key(root.topic_id, root.partition, root.version, "f" * 32)
    listed = yield from list_all(prefix, after)
    versions = [parse_gc_audit_key(entry.key) for entry in listed]
    return max((version for version in versions if version is not None), default=0)
