"""A reader's access to a bucket: its topics as last seen, the version to read, and pins."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace
from uuid import UUID

from tiered.arguments import StorePlace
from tiered.errors import TieredError
from tiered.local.disk.topics import TopicInfo
from tiered.model import TopicPartition
from tiered.plan.root_lower_bounds import NOTHING_KNOWN, RootLowerBounds
from tiered.remote.fetch import INDEX_CACHE_BYTES, ByteCache
from tiered.remote.pins import Pin
from tiered.remote.reader import RemotePartition, SharedCaches
from tiered.remote.root_view import RootCache, RootView
from tiered.remote.snapshots import AsOf, KeptRoot, Past
from tiered.remote.topics import TopicEntry, check_entry, check_successor, list_topics, load_topic_to_read, need_open
from tiered.store.base import Steps, Store
from tiered.store.location import StoreLocation
from tiered.store.options import StoreOptions
from tiered.times import Time


class BucketReads:
    """Open bucket of a reader. Thread-safe. ``pins``: active pins; ``entries``: registry entries as last seen."""

    def __init__(self, store: Store, as_of: AsOf | None = None, *, pin: bool = False) -> None:
        self.store = store
        self.pins: set[Pin] = set()
        self._as_of = as_of
        self._pinning = pin
        self._pasts: dict[tuple[UUID, int], Past] = {}
        self._caches = SharedCaches(ByteCache(INDEX_CACHE_BYTES), RootCache())
        self.entries: dict[str, TopicEntry] = {}  # as last seen
        self._busy = threading.Lock()

    @classmethod
    def open(
        cls, place: StorePlace, as_of: Time | None, options: StoreOptions, *, pin: bool, now_ms: int
    ) -> BucketReads:
        """Open the bucket of ``place``. Makes no request. ``now_ms``: time to which a relative ``as_of`` refers.

        Raises ConfigError for a wrong URL or ``as_of``, NotFoundError for a ``file://`` folder that is no store.
        """
        past = None if as_of is None else AsOf.parse(as_of, now_ms=now_ms)
        location = StoreLocation.parse(place.url or "", **place.s3)
        location.require_folder()
        return cls(location.open(options), past, pin=pin)

    @property
    def is_past(self) -> bool:
        """Return True if this reader reads a past version (``as_of``)."""
        return self._as_of is not None

    def topics(self, unreadable: dict[str, TieredError] | None = None) -> Steps[dict[str, TopicInfo]]:
        """Return all topics by name, from one listing of the registry.

        ``unreadable``: dictionary that gets the errors of unreadable entries by name; None: the first one is raised.
        """
        found = {}
        for entry in (yield from list_topics(unreadable)):
            found[entry.name] = TopicInfo(entry.name, entry.topic_id, entry.partitions, entry.known_settings)
        return found

    def entry(self, name: str, known: Mapping[int, RootLowerBounds]) -> Steps[TopicEntry | None]:
        """Return a topic's registry entry. None if there is none, and neither the disk nor this reader has seen one.

        ``known``: lower bounds of its roots on the disk, by partition. Raises LogDestroyedError if the topic is being
        deleted. Raises it also if the disk or this reader has seen the topic, and its entry is gone. Raises
        CorruptionError if they have seen a newer entry, or for a damaged one.
        """
        entry = yield from load_topic_to_read(name)
        with self._busy:
            check_entry(name, entry, known, where=self.store.url)
            check_successor(name, self.entries.get(name), entry, where=self.store.url)
            if entry is not None:
                need_open(entry)
                self.entries[name] = entry
        return entry

    def partition(self, tp: TopicPartition, entry: TopicEntry, known: RootLowerBounds) -> RemotePartition:
        """Return the remote tier of one partition, to read from. ``known``: lower bounds of its root from the disk."""
        # A root is known to exist only for partitions that the registry entry already counts.
        known = replace(known, made=tp.partition < entry.partitions)
        past = self._past(tp, entry.topic_id, known)
        pin = Pin(tp.topic, entry.topic_id, tp.partition, self.pins) if self._pinning else None
        return RemotePartition(tp, entry.topic_id, shared=self._caches, known=known, past=past, pin=pin)

    def _past(self, tp: TopicPartition, topic_id: UUID, known: RootLowerBounds) -> Past | None:
        """Return the past version that all streams of this partition read; None to read the newest."""
        if self._as_of is None:
            return None
        with self._busy:
            made = Past(RootView(topic_id, tp.partition, tp.topic, known), self._as_of)
            return self._pasts.setdefault((topic_id, tp.partition), made)

    def taken(self, tp: TopicPartition) -> Steps[KeptRoot | None]:
        """Return the past root that this reader reads. None if it reads the newest, or has not loaded the topic yet.

        Raises NotFoundError if no stored version matches, or if its objects were deleted.
        """
        entry = self.entries.get(tp.topic)
        past = self._past(tp, entry.topic_id, NOTHING_KNOWN) if entry is not None else None
        return None if past is None else (yield from past.choose())
