"""Figures of the catalog: what a commit and a lookup cost by the number of segments, from a thousand to ten million."""

from __future__ import annotations

import dataclasses
from functools import partial
from uuid import UUID

import numpy as np

from bench.measure import Figure, compare
from tiered.format.keys import PageName, Role, root_key
from tiered.format.page import Page, Pointers, encode_page
from tiered.format.root import Root, encode_root
from tiered.format.rows import Rows
from tiered.model import Row
from tiered.plan.commit import SHAPE
from tiered.plan.ownership import VolumeProof
from tiered.remote.catalog import Catalog
from tiered.remote.root_view import RootView
from tiered.store.base import ABSENT, Get, Match, Object, Outcome, Put, Steps, StoreRequest
from tiered.store.driver import drive
from tiered.store.memory import MemoryStore

TOPIC_ID = UUID(int=2)
TAIL = 1000
"""Rows in the root of each catalog: what a commit costs must not differ by where in a leaf it happens to stand."""
SIZES = tuple(TAIL + leaves * SHAPE.leaf_rows for leaves in (0, 10, 97, 976, 9765))
"""About 10^3 to 10^7 segments."""
SPAN = 100
"""Offsets of one row."""
COMMITS = 30
LOOKUPS = 1000


class CountingStore:
    """A memory store that counts GETs."""

    def __init__(self) -> None:
        self.inner = MemoryStore()
        self.gets = 0

    @property
    def url(self) -> str:
        """Of the memory store."""
        return self.inner.url

    def execute(self, request: StoreRequest) -> Outcome:
        """One attempt."""
        self.gets += isinstance(request, Get)
        return self.inner.execute(request)

    def close(self) -> None:
        """Nothing to release."""
        self.inner.close()


def _rows(first: int, count: int) -> Rows:
    """Rows as an uploader would have made them, in columns at once."""
    number = np.arange(first, first + count, dtype=np.int64)
    same = np.ones(count, np.int64)
    random = np.random.default_rng(first)
    low, high = -(2**63), 2**63
    values = {
        "base": number * SPAN,
        "next": (number + 1) * SPAN,
        "min_ts": number * 1000,
        "max_ts": number * 1000 + 999,
        "size": number % 977 + 1_000_000,
        "crc": random.integers(0, 2**32, count),
        "id_hi": random.integers(low, high, count),
        "id_lo": random.integers(low, high, count),
        "idx_len": same * 700,
        "claim_epoch": same,
        "records": same * SPAN,
        "flags": same * 0,
        "leader_epoch": same * 0,
        "reserved": same * 0,
    }
    return Rows({name: values[name] for name in Row._fields})


class _Builder:
    """A catalog made straight from pages: committing ten million rows would take hours."""

    def __init__(self, store: CountingStore) -> None:
        self._store, self._pages = store, 0

    def page(self, content: Rows | Pointers) -> Page:
        """One page, stored."""
        self._pages += 1
        page = encode_page(TOPIC_ID, 0, PageName(Role.WRITER, 1, f"{self._pages:032x}"), content)
        self._store.execute(Put(page.key, page.body, ABSENT, page.pointer.crc))
        return page

    def root(self, first: Root, count: int) -> Root:
        """``first``, which has no rows yet, with ``count`` rows, all but the newest in pages."""
        full = (count - TAIL) // SHAPE.leaf_rows
        leaves = [self.page(_rows(at * SHAPE.leaf_rows, SHAPE.leaf_rows)).pointer for at in range(full)]
        inner = []
        while len(leaves) >= SHAPE.root_leaves:
            inner.append(self.page(Pointers.from_pointers(leaves[: SHAPE.fan_out])).pointer)
            leaves = leaves[SHAPE.fan_out :]
        root = dataclasses.replace(
            first,
            inner=Pointers.from_pointers(inner),
            leaves=Pointers.from_pointers(leaves),
            rows=_rows(full * SHAPE.leaf_rows, count - full * SHAPE.leaf_rows),
            next_offset=count * SPAN,
        )
        return dataclasses.replace(root, added=root.held)


class _Case:
    """A catalog of ``count`` rows, its writer, and a reader that has seen it."""

    def __init__(self, count: int) -> None:
        self.store, self.count = CountingStore(), count
        self.writer = Catalog(TOPIC_ID, 0, "bench", persist=lambda token, last_append: None)
        claim = drive(self.store, self.writer.claim("w", "bench", VolumeProof("v", empty=True, end_offset=0)))
        root = _Builder(self.store).root(claim.root, count)
        got = self.store.execute(Get(root_key(TOPIC_ID, 0)))
        assert isinstance(got, Object)
        self.store.execute(Put(root.key, encode_root(root), Match(got.etag)))
        drive(self.store, self.writer.load())
        self.pinned = drive(self.store, RootView(TOPIC_ID, 0, "bench").pin())
        self.random = np.random.default_rng(1)

    def commits(self) -> None:
        """Appends of one row each."""
        for _ in range(COMMITS):
            end = self.writer.root.next_offset if self.writer.root else 0
            high, low = map(int, self.random.integers(0, 2**62, 2))
            row = Row(end, end + SPAN, 0, 9, 1000, 5, high, low, 700, 1, SPAN, 0, 0)
            drive(self.store, self.writer.append([row]))

    def offsets(self) -> list[int]:
        """Spread over the log, the same few leaves each time, so that they stay in the cache."""
        return [self.count * SPAN * at // 10 + at for at in range(10)]

    def opens(self) -> None:
        """By readers that know nothing: one GET, whatever the size."""
        for _ in range(10):
            before = self.store.gets
            drive(self.store, RootView(TOPIC_ID, 0, "bench").pin())
            if self.store.gets - before != 1:
                raise RuntimeError(f"a cold open took {self.store.gets - before} GETs")

    def warm(self) -> None:
        """Lookups in pages that are in memory, by the steps of one reader."""
        drive(self.store, self._lookups())

    def _lookups(self) -> Steps[None]:
        assert self.pinned is not None
        for _ in range(LOOKUPS // 10):
            for offset in self.offsets():
                yield from self.pinned.at(offset)

    def warm_times(self) -> None:
        """The same by time."""
        drive(self.store, self._times())

    def _times(self) -> Steps[None]:
        assert self.pinned is not None
        for _ in range(LOOKUPS // 10):
            for offset in self.offsets():
                yield from self.pinned.reaching(offset // SPAN * 1000)

    def cold(self) -> None:
        """Lookups by readers that know nothing: three GETs at most."""
        for offset in self.offsets():
            before = self.store.gets
            pinned = drive(self.store, RootView(TOPIC_ID, 0, "bench").pin())
            if pinned is None or drive(self.store, pinned.at(offset)) is None or self.store.gets - before > 3:
                raise RuntimeError(f"a cold lookup took {self.store.gets - before} GETs")


def catalog(rounds: int) -> list[Figure]:
    """Commit and lookup by the number of segments, each beside the smallest catalog."""
    cases = [_Case(count) for count in SIZES]
    small, figures = cases[0], list[Figure]()
    kinds = (
        ("commit of one segment", _Case.commits, COMMITS),
        ("cold open, one GET", _Case.opens, 10),
        ("warm lookup by offset", _Case.warm, LOOKUPS),
        ("warm lookup by time", _Case.warm_times, LOOKUPS),
        ("cold lookup, 3 GETs at most", _Case.cold, 10),
    )
    for what, method, units in kinds:
        figures += [
            compare(
                f"{what}, {case.count:,} segments",
                partial(method, case),
                units=units,
                unit="/s",
                peer=f"{small.count:,} segments",
                theirs=partial(method, _Case(small.count)),  # a new one each: commits make it larger
                rounds=rounds,
            )
            for case in cases[1:]
        ]
    return figures
