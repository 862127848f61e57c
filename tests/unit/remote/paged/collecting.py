"""A partition with tiny pages whose objects are all there: what names what, and what is in the bucket."""

from __future__ import annotations

from collections.abc import Callable

from tests.unit.remote.catalog.script import TOPIC_ID, Desk, World
from tests.unit.remote.recording import RecordingStore
from tiered.config import DAY_MS
from tiered.format.kernels import crc32c
from tiered.format.keys import (
    index_key,
    partition_prefix,
    segment_key,
)
from tiered.format.page import PageKind, Pointers
from tiered.format.root import Root
from tiered.format.rows import Rows
from tiered.model import Row
from tiered.plan.catalog_edit import ReplaceIntent
from tiered.plan.commit import Shape
from tiered.remote.catalog import Catalog
from tiered.remote.catalog_view import PageCache, read_pages
from tiered.remote.gc.garbage import Collected, Collector
from tiered.store.base import (
    ABSENT,
    List,
    ListPage,
    Outcome,
    Put,
    StoreRequest,
)
from tiered.store.memory import MemoryStore

TINY = Shape(leaf_rows=4, tail_rows=6, fan_out=3, root_leaves=5, small_leaf=2, trash_entries=9, trash_page=5)
PREFIX = partition_prefix(TOPIC_ID, 0)


class Place:
    """Rows whose objects are there, by a writer and a maintainer with tiny pages."""

    def __init__(self, shape: Shape = TINY) -> None:
        self.world = World()
        self.store = RecordingStore(MemoryStore(clock=self.world.clock))
        self.world.store = self.store  # type: ignore[assignment]  # a store that records
        self.writer, self.maintainer = self.desk("w", shape), self.desk("m", shape)
        self.writer.claim()
        self.maintainer.maintain()
        self.end = 0

    def desk(self, name: str, shape: Shape = TINY) -> Desk:
        desk = self.world.desk(name)
        desk.catalog = Catalog(TOPIC_ID, 0, "flights", persist=desk._persist, shape=shape)
        return desk

    def put(self, key: str, body: bytes = b"x") -> None:
        self.store.execute(Put(key, body, ABSENT, crc32c(body)))

    def objects(self, row: Row) -> Row:
        for key in (segment_key(TOPIC_ID, 0, row), index_key(TOPIC_ID, 0, row)):
            self.put(key)
        return row

    def append(self, count: int) -> None:
        self.world.run(self.writer.catalog.load())  # no commit loses a race: what it stored would be an orphan
        for _ in range(count):
            row = self.objects(self.writer.row(self.end, self.end + 10))
            self.world.run(self.writer.catalog.append([row]))
            self.end += 10

    def after_put(self, key: str, act: Callable[[], object], *, always: bool = False) -> None:
        """Do ``act`` after the next PUT of ``key`` was carried out; after each of them with ``always``."""

        def answer(request: StoreRequest, carry_out: Callable[[], Outcome]) -> Outcome:
            outcome = carry_out()
            if isinstance(request, Put) and request.key == key:
                self.store.answer = None
                act()
                self.store.answer = answer if always else None
            return outcome

        self.store.answer = answer

    def trim(self, offset: int) -> None:
        self.world.run(self.maintainer.catalog.load())
        self.world.run(self.maintainer.catalog.trim(offset))

    def replace(self, *old: Row) -> None:
        self.world.run(self.maintainer.catalog.load())
        row = self.maintainer.row(old[0].base, old[-1].next, flags=1)
        self.world.run(self.maintainer.catalog.commit(ReplaceIntent(old, (self.objects(row),))))

    def wait(self, ms: int = DAY_MS + 1000) -> None:
        """A root's time is some ms ahead of a clock that stands still."""
        self.world.clock.advance(ms / 1000)

    def collect(self) -> Collected:
        self.world.run(self.maintainer.catalog.load())
        self.store.forget()
        return self.world.run(Collector(self.maintainer.catalog, DAY_MS).run())

    @property
    def root(self) -> Root:
        root = self.world.run(self.maintainer.catalog.load())
        assert root is not None
        return root

    @property
    def keys(self) -> set[str]:
        """Every object but the root, copies of it and what was noted."""
        found: set[str] = set()
        after = ""
        while True:
            page = self.store.inner.execute(List(PREFIX, start_after=after))
            assert isinstance(page, ListPage)
            found |= {entry.key for entry in page.entries}
            if not page.more:
                break
            after = page.entries[-1].key
        return {key for key in found if "/hist/" not in key and not key.endswith("/root")}

    @property
    def named(self) -> set[str]:
        """What the root names, its pages followed."""
        root, cache = self.root, PageCache()
        inner, leaves = list(root.inner), list(root.leaves)
        for children in self.world.run(read_pages(root, PageKind.INNER, inner, cache)):
            assert isinstance(children, Pointers)
            leaves += list(children.slice(children.first_above(root.start_offset)))
        rows = list(root.rows)
        for leaf in leaves:
            if leaf.next > root.start_offset:
                (held,) = self.world.run(read_pages(root, PageKind.LEAF, (leaf,), cache))
                assert isinstance(held, Rows)
                rows += list(held.slice(held.first_above(root.start_offset)))
        pages = {root.page_key(pointer) for pointer in (*inner, *leaves)}
        return pages | {key(TOPIC_ID, 0, row) for row in rows for key in (segment_key, index_key)}

    def rows(self) -> list[Row]:
        """The live ones."""
        pinned, at, found = self.world.run(self.maintainer.catalog.pin()), 0, list[Row]()
        while pinned is not None and len(rows := self.world.run(pinned.piece(max(at, pinned.start_offset)))):
            found += rows
            at = rows.end_offset
        return found
