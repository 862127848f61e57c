"""Which partitions a bucket holds, by its keys. For ``check`` and ``restore`` only: nothing else lists the bucket.

A listing that jumps: of each partition one page at most is seen, then it goes on behind the partition's prefix, so
that a bucket costs about one LIST for each partition that fills a page, and strangers' keys beside ours cost nothing.
"""

from __future__ import annotations

from uuid import UUID

from tiered.format.keys import parse_partition_key, partition_prefix
from tiered.store.base import Steps, list_page

_LAST = "~"
"""Above every character that a key of ours holds behind a partition's prefix."""


def list_partitions() -> Steps[set[tuple[UUID, int]]]:
    """(topic id, partition) of all prefixes under which there is an object."""
    found: set[tuple[UUID, int]] = set()
    after = ""
    while True:
        page = yield from list_page("", after)
        for entry in page.entries:
            owner = parse_partition_key(entry.key)
            if owner is not None:
                found.add(owner)
        if not page.more or not page.entries:
            return found
        behind = _behind(page.entries[-1].key)
        if not behind:
            return found
        after = behind


def _behind(key: str) -> str:
    """Where the listing goes on after ``key``; ``""`` if no partition can follow."""
    owner = parse_partition_key(key)
    if owner is not None:
        return partition_prefix(*owner) + _LAST
    # A stranger's: on to the next folder of two hex digits, or on within this one.
    for number in range(256):
        folder = f"{number:02x}"
        if key.startswith(f"{folder}/"):
            return key
        if f"{folder}/" > key:
            return max(folder, key)
    return ""
