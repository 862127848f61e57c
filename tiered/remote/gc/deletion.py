"""Deletion of a topic in the bucket: marked at once, gone after its grace, its name free at the end.

::

    registry entry: deleting ── each root: deleting (intent ``state``) ── gc.grace.ms, pins, snapshots
        ── audit line: destroyed ── LIST and DELETE of all below the partition but the root ── the root
        ── registry entry: deleted

The entry is never deleted but replaced, by compare-and-swap. Otherwise a late maintainer could delete the entry of a
new topic with this name. The new topic has another id, so that it never meets the old objects.
"""

from __future__ import annotations

from dataclasses import replace

from tiered.format.keys import Role, partition_prefix
from tiered.format.root import STATE_DELETING, Root
from tiered.plan.commit import DeletionIntent
from tiered.plan.root_lower_bounds import RootLowerBounds
from tiered.remote.catalog import Catalog
from tiered.remote.gc.audit import note_destroyed
from tiered.remote.gc.garbage import Collected, delete_all
from tiered.remote.pins import drop_stale, read_pins
from tiered.remote.roots import TopicIds, load_roots
from tiered.remote.topics import STATE_DELETED, TopicEntry, update_topic
from tiered.store.base import Steps
from tiered.store.steps import Listing


def start_deletion(entry: TopicEntry, owner: str) -> Steps[TopicEntry]:
    """Start the deletion of a topic: mark its entry, so that no new work starts, then its roots. Return the entry.

    An entry that meanwhile has another topic id stays as it is. ``owner``: name of this process in its claims. After a
    failure call this again.
    """

    def marked(found: TopicEntry) -> TopicEntry:
        return replace(found, state=STATE_DELETING) if found.topic_id == entry.topic_id else found

    found = yield from update_topic(entry.name, marked)
    if found.topic_id == entry.topic_id:
        yield from resume_topic_deletion(found, owner)
    return found


def resume_topic_deletion(entry: TopicEntry, owner: str) -> Steps[bool]:
    """Mark for deletion those roots that an interrupted deletion left unmarked.

    Once no root exists, free the topic's name and return True. Otherwise return False. ``owner``: name of this process
    in its claims. Raises FencedError, CommitUnknownError, RemoteUnavailableError: call this again.
    """
    roots = yield from load_roots(TopicIds(entry.name, entry.topic_id), range(entry.partitions))
    there = [root for root in roots.values() if root is not None]
    for root in there:
        if root.state != STATE_DELETING:
            catalog = Catalog(entry.topic_id, root.partition, entry.name, known=RootLowerBounds(made=True))
            yield from catalog.claim(Role.MAINTAINER, owner)
            yield from catalog.commit(DeletionIntent(), reason="the topic was deleted")

    def freed(found: TopicEntry) -> TopicEntry:
        ours = found.topic_id == entry.topic_id and found.partitions == entry.partitions
        return replace(found, state=STATE_DELETED) if ours and found.state == STATE_DELETING else found

    # mutant name-is-free-after-roots
    if not there:
        yield from update_topic(entry.name, freed)
    return not there


def destroy(root: Root, grace_ms: int) -> Steps[Collected]:
    """Delete all objects of a partition whose root is marked as deleted, the root last. Return the counts.

    Before the end of the grace period, or while a pin or snapshot exists, nothing is deleted. ``Collected.held`` is 1
    then. ``grace_ms``: time between the mark and the deletion. After a failure call this again: it lists the remaining
    objects. An object that arrives later is a stray (``remote.gc.orphans``).

    Raises RemotePermissionError for a key that may not be deleted, CorruptionError for an unreadable pin or snapshot.
    """
    pins = yield from read_pins(root)
    yield from drop_stale(pins)
    # mutant topic-deletion-waits-for-grace
    due = not grace_ms or pins.date_ms - root.commit.ts_ms >= grace_ms  # the commit may be dated ahead
    # mutant topic-deletion-heeds-snapshots
    if root.state != STATE_DELETING or pins.count or not due:
        return Collected(pins=pins.count, held=1)
    yield from note_destroyed(root.topic_id, root.partition, {"topic": root.topic, "root_version": root.version})
    listing, objects = Listing(partition_prefix(root.topic_id, root.partition)), 0
    while listing.more:
        # mutant root-goes-last
        keys = [entry.key for entry in (yield from listing.page()) if entry.key != root.key]
        yield from delete_all(keys)
        objects += len(keys)
    yield from delete_all([root.key])  # last: while it exists, the deletion can be repeated
    return Collected(entries=1, objects=objects + 1)
