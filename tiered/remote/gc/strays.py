"""Strays: objects below a topic id that no registry entry names, and that none can ever name again.

::

    keys of the bucket, listed first ── entries, read after the listing ── a topic id without an entry
        ├─ each partition with an audit line `destroyed`        a topic id is never reused: deleted
        ├─ the others: only roots of version 1, and the
        │  name belongs to another topic by now                 their registration can never end: deleted
        └─ anything else                                        the entry may be lost: all of it stays
    objects below probe/, left by a process that died while it probed the store: deleted
    unfinished multipart uploads ── of partitions with an audit line `destroyed`: aborted

A process that stalls during a topic's destruction leaves the first kind, a killed registration the second. Nothing is
deleted before it is a day old. Listing the bucket costs about one LIST a partition.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from uuid import UUID

from tiered.errors import ConfigError, CorruptionError, RemotePermissionError
from tiered.format.keys import PROBE_PREFIX, parse_segment_key, parse_staged_key, partition_prefix, root_key
from tiered.format.root import Root, decode_root
from tiered.plan.maintenance import ORPHAN_MS
from tiered.remote.gc.audit import note_destroyed, was_destroyed, write_line
from tiered.remote.gc.orphans import Swept
from tiered.remote.list_partitions import list_partitions
from tiered.remote.root_view import root_get
from tiered.remote.topics import STATE_DELETED, list_topics, load_entry
from tiered.store.base import (
    AbortUpload,
    List,
    ListEntry,
    Listing,
    ListPage,
    Now,
    Object,
    Steps,
    delete_keys,
    list_unfinished,
)


def sweep_strays(*, delete: bool) -> Steps[Swept]:
    """Find the strays of the whole bucket; with ``delete`` delete them.

    Raises CorruptionError for an unreadable registry entry: its topic is unknown then, and nothing is deleted.
    """
    listed = yield from list_partitions()
    named = {entry.topic_id for entry in (yield from list_topics())}
    groups: defaultdict[UUID, list[int]] = defaultdict(list)
    for topic_id, partition in sorted(listed, key=lambda owner: (owner[0].hex, owner[1])):
        if topic_id not in named:
            groups[topic_id].append(partition)
    found = Swept()
    for topic_id, partitions in groups.items():
        waiting: list[int] = []
        for partition in partitions:
            if (yield from was_destroyed(topic_id, partition)):
                yield from _sweep_destroyed(topic_id, partition, found, delete=delete)
            else:
                waiting.append(partition)
        if waiting:
            yield from _sweep_unregistered(topic_id, waiting, found, delete=delete)
    yield from _sweep_probes(found, delete=delete)
    try:
        yield from _sweep_uploads(found, abort=delete)
    except (RemotePermissionError, ConfigError) as error:  # a role that may not list, or a store that cannot
        found.unlisted = f"{error.message} ({error.hint})"
    return found


def _sweep_probes(found: Swept, *, delete: bool) -> Steps[None]:
    """Delete the objects of probes that were cut short, or whose role must not delete them."""
    listing = Listing("", PROBE_PREFIX)  # the maintainer's role may list "", and not each prefix below
    while listing.more:
        below = [entry for entry in (yield from listing.page()) if entry.key.startswith(PROBE_PREFIX)]
        old = [entry for entry in below if listing.age_ms(entry) >= ORPHAN_MS]
        found.add(old)
        if delete:
            found.failed += yield from delete_keys([entry.key for entry in old])
        if not listing.after.startswith(PROBE_PREFIX):
            return


def _sweep_uploads(found: Swept, *, abort: bool) -> Steps[None]:
    """Find, and with ``abort`` abort, old unfinished multipart uploads below destroyed partitions.

    Listings of objects do not show them. Without a lifecycle rule the bucket keeps their parts for ever.
    """
    listed, date_ms = yield from list_unfinished("")
    date_ms = date_ms or (yield Now()).now_ms
    destroyed: dict[tuple[UUID, int], bool] = {}
    for each in listed:
        parsed = parse_segment_key(each.key) or parse_staged_key(each.key)
        if parsed is None or date_ms - each.started_ms < ORPHAN_MS:
            continue
        owner = parsed.topic_id, parsed.partition
        if owner not in destroyed:
            destroyed[owner] = yield from was_destroyed(*owner)
        if destroyed[owner]:
            found.uploads.append((each.key, each.upload_id))
    for key, upload_id in found.uploads if abort else ():
        yield AbortUpload(key, upload_id)


def _sweep_destroyed(topic_id: UUID, partition: int, found: Swept, *, delete: bool) -> Steps[None]:
    """Find, and with ``delete`` delete, old objects below a destroyed partition, its root last."""
    last = root_key(topic_id, partition)
    noted = rooted = False
    listing = Listing(partition_prefix(topic_id, partition))
    while listing.more:
        old = [entry for entry in (yield from listing.page()) if listing.age_ms(entry) >= ORPHAN_MS]
        rooted = rooted or any(entry.key == last for entry in old)
        found.add(old)
        if delete and old and not noted:
            yield from note_destroyed(topic_id, partition, {"strays": len(old)})
            noted = True
        if delete:
            found.failed += yield from delete_keys([entry.key for entry in old if entry.key != last])
    if delete and rooted:
        found.failed += yield from delete_keys([last])  # the root last, as in ``destroy``


def _sweep_unregistered(topic_id: UUID, partitions: Sequence[int], found: Swept, *, delete: bool) -> Steps[None]:
    """Find roots that no entry will vouch for. Takes them only if that is proven of every partition of the topic id."""
    roots: list[Root] = []
    found_here: list[ListEntry] = []
    for partition in partitions:
        key = root_key(topic_id, partition)
        page: ListPage = yield List(partition_prefix(topic_id, partition), limit=2)
        date_ms = page.date_ms or (yield Now()).now_ms
        alone = [entry.key for entry in page.entries] == [key]
        if not alone or date_ms - page.entries[0].last_modified_ms < ORPHAN_MS:
            return
        found_here += page.entries
        got = yield root_get(key)
        try:
            root = decode_root(got.data, key=key) if isinstance(got, Object) else None
        except (CorruptionError, ConfigError):  # of a newer release
            root = None
        if root is None or root.version > 1:
            return
        roots.append(root)
    if len({root.topic for root in roots}) > 1 or not (yield from _is_taken(roots[0].topic, topic_id)):
        return
    found.add(found_here)
    if delete:
        why = "a registration that did not end"
        yield from write_line(roots[0], {"strays": len(found_here), "why": why}, must=True)
        found.failed += yield from delete_keys([entry.key for entry in found_here])


def _is_taken(name: str, topic_id: UUID) -> Steps[bool]:
    """Return True if no running registration of ``topic_id`` can land any more.

    Its PUT requires a deleted entry or none. It loses, and gives way, where another topic's entry exists. A ``deleted``
    entry may be the required one, unless it is of this id, which is never registered again.
    """
    entry = yield from load_entry(name)
    return entry is not None and (entry.topic_id == topic_id) == (entry.state == STATE_DELETED)
