"""The root of one partition for a reader: fetched, verified, and never older than one seen before."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import NamedTuple
from uuid import UUID

from tiered.errors import CorruptionError, LogDestroyedError
from tiered.format.framed_object import MAX_OBJECT_BYTES
from tiered.format.keys import FLAG_MAINTAINER, root_key, topic_key
from tiered.format.root import Root, decode_root
from tiered.model import Row
from tiered.plan.invariants import check_root
from tiered.plan.root_lower_bounds import NOTHING_KNOWN, RootLowerBounds
from tiered.remote.catalog_view import CatalogView, PageCache
from tiered.remote.fetch import Cache
from tiered.store.base import Get, Missing, NotModified, Object, Steps

ROOT_CACHE_BYTES = 4 * 1024 * 1024
"""Most bytes of roots that the streams of one log or reader cache together."""

_CHECK_HINT = "`tiered check TOPIC` names the damage, `tiered repair TOPIC:P --dry-run` its repair; nothing was written"
_LOST_HINT = (
    "an expiry rule or a person removed it, or this is another bucket: correct the URL, or see `tiered repair "
    "TOPIC:P --dry-run`; nothing was deleted"
)
OLDER_HINT = (
    "an older root was put back, or this is another bucket: `tiered repair TOPIC:P --dry-run` shows its repair; if the "
    "bucket has no newer copy, `tiered repair rejoin TOPIC:P` continues at its end and sets this disk's files aside"
)


def root_get(key: str, if_none_match: str | None = None) -> Get:
    """Return the request that reads a root. An object larger than any root is refused before its download."""
    return Get(key, if_none_match=if_none_match, max_bytes=MAX_OBJECT_BYTES)


def two_names(root: Root, topic: str) -> CorruptionError:
    """Return the error for two topics with one id: the root names another topic than the registry entry ``topic``.

    Deleting one of these topics would delete both.
    """
    return CorruptionError(
        f"{root.key} belongs to topic {root.topic}, but the entry of topic {topic} in the bucket has "
        f"the same id {root.topic_id}",
        path_or_key=topic_key(topic),
        hint=f"nothing was changed; if {topic_key(topic)} is a copy of {topic_key(root.topic)}, delete "
        f"that copy; otherwise put the entry of {topic} back from a version or a backup of the bucket",
    )


class HeldRoot(NamedTuple):
    """Cached root that was checked, its ETag, and its approximate size in memory."""

    root: Root
    etag: str
    size_bytes: int


class RootCache(Cache[str, HeldRoot]):
    """Cache of roots as last read, by key. Several views may share it. Each still asks the store if the root is
    current.
    """

    def __init__(self, max_bytes: int = ROOT_CACHE_BYTES) -> None:
        super().__init__(max_bytes, attrgetter("size_bytes"))


class RootView:
    """Reader of one partition's root. ``root``, ``etag``: last acknowledged or read; None and ``""`` before.

    ``known``: lower bounds of the root, proven by the registry and a disk before the root is read here. ``roots``:
    cache shared by the views of one reader. Each view still asks the store for the newest root.
    """

    def __init__(
        self,
        topic_id: UUID,
        partition: int,
        topic: str,
        known: RootLowerBounds = NOTHING_KNOWN,
        *,
        roots: RootCache | None = None,
    ) -> None:
        self.topic_id, self.partition, self.topic = topic_id, partition, topic
        self.name = f"{topic}-{partition}"
        self.known = known
        self.key = root_key(topic_id, partition)
        self.root: Root | None = None
        self.etag = ""
        self.pages = PageCache()
        self._roots = roots
        self._earlier: HeldRoot | None = None  # read by another view: makes the first GET conditional
        self._pinned: CatalogView | None = None
        self._pinned_of: Root | None = None
        self._sent = b""  # the bytes of ``root`` between its PUT and the next GET

    def load(self) -> Steps[Root | None]:
        """Read and return the newest root, None if the partition has no catalog yet. Later GETs are conditional."""
        return (yield from self._asked(self.request()))

    def pin(self) -> Steps[CatalogView | None]:
        """Read the newest root and return the catalog at its version, None if the partition has no root yet."""
        return self._pin((yield from self._asked(self.request())))

    def request(self) -> Get:
        """Return the GET that :meth:`load` sends."""
        if self.root is None and self._earlier is None and self._roots is not None:
            self._earlier = self._roots.get(self.key)  # kept until a root is read: answers may come out of order
        if self.root is None and self._earlier is not None:
            return root_get(self.key, self._earlier.etag)
        return root_get(self.key, self.etag or None)

    def pin_received(self, got: object) -> CatalogView | None:
        """Return the catalog in ``got``, the store's answer to :meth:`request`. None if the partition has no root yet.

        Raises LogDestroyedError for a root that was there and is gone, CorruptionError for damaged or older content.
        """
        return self._pin(self._received(got))

    def _pin(self, root: Root | None) -> CatalogView | None:
        if root is not None and self._pinned_of is not root:
            self._pinned, self._pinned_of = CatalogView.from_root(root, self.pages), root
        return self._pinned if root is not None else None

    def read_back(self, rows: Sequence[Row] = ()) -> Steps[Root]:
        """Read the root by an unconditional GET, check it, and return it.

        Raises LogDestroyedError if the root is gone. Raises CorruptionError if it is damaged, or if it does not cover
        one of ``rows``.

        Trimmed rows need not be covered. Reads the pages of rows that are not in the root. Call this before local bytes
        are deleted.
        """
        root = yield from self._asked(root_get(self.key))
        if root is None:
            raise self._destroyed()
        if rows and root.rows.ends_with(rows):
            return root
        snapshot = CatalogView(root, self.pages)
        for row in rows:
            flaw = yield from _uncovered(snapshot, row)
            if flaw:
                raise CorruptionError(f"{root.where}: {flaw}", path_or_key=self.key, offset=row.base, hint=_CHECK_HINT)
        return root

    def _asked(self, request: Get) -> Steps[Root | None]:
        return self._received((yield request))

    def _received(self, got: object) -> Root | None:
        """Check and return the root in ``got``, the store's answer; None if there is none and none was seen before.

        Raises LogDestroyedError for a root that is gone, CorruptionError for damaged, foreign or older content.
        """
        if isinstance(got, NotModified):
            if self.root is None and self._earlier is not None:
                self._check_names(self._earlier.root)
                self.root, self.etag = self._earlier.root, self._earlier.etag
            if (unchanged := self.root) is not None:
                self._check_known(unchanged)  # more may be known since it was read
            return unchanged
        if isinstance(got, Missing):
            if self.root is not None:
                raise self._destroyed()
            self._need_none()
            return None
        if not isinstance(got, Object):
            raise TypeError(f"a GET gave {got!r}")
        sent, self._sent = self._sent, b""
        if self.root is not None and got.etag == self.etag and got.data == sent:
            root = self.root  # the same bytes that were checked and encoded before the PUT
        else:
            root = decode_root(got.data, key=self.key)
            self._check(root, self.root)
        self.root, self.etag = root, got.etag
        if self._roots is not None and got.etag:
            self._roots.put(self.key, HeldRoot(root, got.etag, root.nbytes + len(got.data)))
        self._accepted(root)
        return root

    def _accepted(self, root: Root) -> None:
        """React to a root that was read. Readers do nothing."""

    def _check(self, root: Root, previous: Root | None) -> None:
        self._check_names(root)
        violations = check_root(root, previous)
        if violations:
            text = "; ".join(str(violation) for violation in violations[:3])
            raise CorruptionError(
                f"{root.where}: the catalog {self.key} breaks a rule: {text}", path_or_key=self.key, hint=_CHECK_HINT
            )
        self._check_known(root)

    def _check_names(self, root: Root) -> None:
        if (root.topic_id, root.partition) != (self.topic_id, self.partition):
            raise CorruptionError(
                f"{self.key} contains the catalog of another partition, {root.where}",
                path_or_key=self.key,
                hint=_CHECK_HINT,
            )
        if root.topic != self.topic:
            raise two_names(root, self.topic)

    def _check_known(self, root: Root) -> None:
        for older in self.known.contradictions(root):
            raise CorruptionError(
                f"{root.where}: the catalog {self.key} is out of date: {older}", path_or_key=self.key, hint=OLDER_HINT
            )

    def _need_none(self) -> None:
        """Raise LogDestroyedError if this disk has seen a root, CorruptionError if only the registry proves one."""
        why = self.known.absent()
        if not why:
            return
        text = f"{self.name}: the catalog {self.key} is not in the bucket, and {why}"
        if self.known.by_disk:
            raise LogDestroyedError(f"{text}: it was there and is gone", hint=_LOST_HINT)
        raise CorruptionError(f"{text}: it was lost", path_or_key=self.key, hint=_LOST_HINT)

    def _destroyed(self) -> LogDestroyedError:
        return LogDestroyedError(
            f"{self.name}: the catalog {self.key} is gone: it was deleted after this process read it",
            hint=f"run `tiered repair {self.topic}:{self.partition} --dry-run`; records on the local disk stay",
        )


def _uncovered(snapshot: CatalogView, row: Row) -> Steps[str]:
    """Return why the catalog no longer covers the range of a committed row. ``""``: it does, or the range was trimmed.

    A maintainer may have replaced the row by others over the same range. A writer's row must be unchanged.
    """
    if row.next <= snapshot.start_offset:
        return ""
    if row.next > snapshot.next_offset:
        return f"ends at offset {snapshot.next_offset}, the committed row {row.base}..{row.next} is beyond it"
    found = yield from snapshot.at(max(row.base, snapshot.start_offset))
    if found is None:
        return f"no row holds offset {row.base}"
    if not found.flags & FLAG_MAINTAINER and found != row:
        return f"offset {row.base} is held by {found}, not by the committed {row}"
    return ""
