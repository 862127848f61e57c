"""Objects that lie below another prefix than their own, as where somebody copied or moved a partition's by hand: where
they are, for the refusals of repairs. Pure: the caller has listed the store's prefix.

No verb reads them there: a key that is not of the protocol says nothing of who put it, and may be a backup of long ago.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable
from uuid import UUID

from tiered.format.keys import gc_audit_prefix, partition_prefix
from tiered.store.base import ListEntry
from tiered.store.directory_paths import object_path, tail_bytes
from tiered.store.location import StoreLocation

MAX_NAMED = 3
"""Places that a hint names."""


def misplaced_words(topic_id: UUID, partition: int, listed: Iterable[ListEntry]) -> str:
    """Where objects lie whose keys hold the folder of a partition, with another beginning; ``""`` for nowhere."""
    right = partition_prefix(topic_id, partition)
    folder = "/" + right.rpartition("/")[0].rpartition("/")[2] + "/"
    places = Counter[str]()
    for entry in listed:
        before, found, _ = f"/{entry.key}".partition(folder)
        place = f"{before}{found}"[1:]
        if found and place not in (right, gc_audit_prefix(topic_id, partition)):
            places[place] += 1
    named = [f"{count} below {place}" for place, count in places.most_common(MAX_NAMED)]
    if not named:
        return ""
    return (
        f"objects of this partition lie under another prefix: {', '.join(named)}; if they were moved there by mistake, "
        f"copy them back below {right} and run `tiered check`"
    )


def misplaced_log(key: str, size: int, listed: Iterable[ListEntry]) -> list[str]:
    """Keys that end in the name of ``key``, which is given once, of objects as large; or of files as large, which were
    copied in the folder of a store: there the end of the file is part of what is read."""
    name, sizes = "/" + key.rpartition("/")[2], (size, size + tail_bytes(key))
    return [
        entry.key for entry in listed if entry.size in sizes and entry.key != key and f"/{entry.key}".endswith(name)
    ]


def copy_command(url: str, key: str, to: str) -> str:
    """What copies an object of the store at ``url`` to another key, in a shell; ``""`` where no shell can."""
    place = StoreLocation.parse(url, environ={}) if url else None
    if place is not None and place.path is not None:
        old, new = object_path(place.path, key), object_path(place.path, to)
        return f"mkdir -p {shlex.quote(new.rpartition('/')[0])} && cp {shlex.quote(old)} {shlex.quote(new)}"
    if place is not None and place.scheme == "s3":
        folder = f"s3://{place.bucket}/{place.prefix}/" if place.prefix else f"s3://{place.bucket}/"
        return f"aws s3 cp {shlex.quote(folder + key)} {shlex.quote(folder + to)}"
    return ""
