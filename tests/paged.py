"""A catalog whose rows lie in pages of a few rows, each of which costs a request: what a partition of ten million
segments will be like. Its root shows no rows at all, so that whoever looks there finds nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import pytest

from tiered.format.root import Root
from tiered.format.rows import NO_ROWS, Rows
from tiered.remote.snapshot import Leaf, Snapshot
from tiered.store.base import Get, Steps

PAGE_ROWS = 2


@dataclass
class Pages:
    """How many pages were read, and how many rows the catalogs held that were pinned."""

    read: int = 0
    rows: int = 0
    bounds: list[tuple[int, int]] = field(default_factory=list)

    def of(self, root: Root) -> Snapshot:
        """The catalog of ``root``, a page at a time."""
        pieces = [root.rows.slice(at, at + PAGE_ROWS) for at in range(0, len(root.rows), PAGE_ROWS)]
        self.rows = max(self.rows, len(root.rows))
        return Snapshot(replace(root, rows=NO_ROWS), [self._leaf(root, rows) for rows in pieces])

    def _leaf(self, root: Root, rows: Rows) -> Leaf:
        columns = rows.columns
        flags = int(np.bitwise_or.reduce(columns["flags"]))
        read = partial(self._page, root, rows)
        return Leaf(int(rows.base[0]), rows.end_offset, read, int(columns["max_ts"].max()), flags)

    def _page(self, root: Root, rows: Rows) -> Steps[Rows]:
        yield Get(f"{root.key.removesuffix('root')}p/w00000001/{int(rows.base[0]):032x}.page")
        self.read += 1
        self.bounds.append((int(rows.base[0]), rows.end_offset))
        return rows


def use_pages(patch: Callable[[object, str, object], None]) -> Pages:
    """From now on every catalog that is pinned has pages."""
    pages = Pages()
    patch(Snapshot, "of", pages.of)
    return pages


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch) -> Pages:
    """Catalogs with pages, in one test."""
    return use_pages(monkeypatch.setattr)


@pytest.fixture(params=["inline", "paged"])
def both_catalogs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test twice: with all rows in the root, and with pages."""
    if request.param == "paged":
        use_pages(monkeypatch.setattr)
