"""A catalog whose rows lie in pages of a few rows, each of which costs a request: what a partition of ten million
segments will be like. Its root shows no rows at all, so that whoever looks there finds nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import pytest

from tiered.format.keys import PageName, Role
from tiered.format.page import Content, PageKind, Pointer, Pointers, encode_page
from tiered.format.root import Root
from tiered.format.rows import NO_ROWS
from tiered.remote import catalog_view
from tiered.remote.catalog_view import CatalogView, PageCache
from tiered.store.base import Get, Steps

PAGE_ROWS = 2


@dataclass
class Pages:
    """How many pages were read, and how many rows the catalogs held that were pinned."""

    read: int = 0
    rows: int = 0
    bounds: list[tuple[int, int]] = field(default_factory=list)
    held: dict[Pointer, Content] = field(default_factory=dict)

    def of(self, root: Root, _cache: PageCache | None = None) -> CatalogView:
        """The catalog of ``root``, all of its rows in pages that are in no store."""
        pointers = []
        for at in range(0, len(root.rows), PAGE_ROWS):
            name = PageName(Role.WRITER, 1, f"{int(root.rows.base[at]):032x}")
            page = encode_page(root.topic_id, root.partition, name, root.rows.slice(at, at + PAGE_ROWS))
            self.held[page.pointer] = page.content
            pointers.append(page.pointer)
        self.rows = max(self.rows, len(root.rows))
        return CatalogView(replace(root, rows=NO_ROWS, leaves=Pointers.from_pointers(pointers)))

    def answer(
        self, root: Root, _kind: PageKind, pointers: Sequence[Pointer], _cache: PageCache
    ) -> Steps[tuple[Content, ...]]:
        """The pages, for a request each."""
        for pointer in pointers:
            yield Get(root.page_key(pointer))
            self.read += 1
            self.bounds.append((pointer.base, pointer.next))
        return tuple([self.held[pointer] for pointer in pointers])


def use_pages(patch: Callable[[object, str, object], None]) -> Pages:
    """From now on every catalog that is pinned has pages."""
    pages = Pages()
    patch(CatalogView, "from_root", pages.of)
    patch(catalog_view, "read_pages", pages.answer)
    return pages


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch) -> Pages:
    """Catalogs with pages, in one test."""
    return use_pages(monkeypatch.setattr)


@pytest.fixture(params=["inline", "paged"])
def both_catalogs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a test that reads a catalog twice: with all rows in the root, and with pages."""
    if request.param == "paged":
        use_pages(monkeypatch.setattr)
