"""List of the partitions in a bucket, by its keys. For ``check`` and ``restore``, which alone list the bucket.

The listing reads at most one page of each partition, then jumps past the partition's prefix. It costs about one LIST
for each partition that fills a page, and nothing for foreign keys.
"""

from __future__ import annotations

from uuid import UUID

from tiered.format.keys import parse_partition_key, partition_prefix
from tiered.store.base import Steps
from tiered.store.steps import Listing

_LAST = "~"
"""Character above all that our keys contain after a partition's prefix."""


def list_partitions() -> Steps[set[tuple[UUID, int]]]:
    """Return (topic id, partition) of all prefixes that hold an object."""
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
    """Return the key after which the listing continues; ``""`` if no partition can follow."""
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
