"""Where the demo's objects go: a fresh prefix, measured and removed through the product's own store layer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tiered.store.base import MAX_DELETE_KEYS, Delete, List, ListEntry, ListPage, Store
from tiered.store.location import open_store


@dataclass(frozen=True, slots=True)
class Place:
    """A URL that nothing else uses."""

    url: str
    endpoint_url: str | None

    def size(self) -> tuple[int, int]:
        """Objects and bytes below the URL."""
        store = open_store(self.url, endpoint_url=self.endpoint_url)
        try:
            sizes = [entry.size for entry in _entries(store)]
        finally:
            store.close()
        return len(sizes), sum(sizes)

    def keys(self) -> list[str]:
        """Of all objects below the URL."""
        store = open_store(self.url, endpoint_url=self.endpoint_url)
        try:
            return [entry.key for entry in _entries(store)]
        finally:
            store.close()

    def remove(self) -> None:
        """Deletes every object below the URL."""
        store = open_store(self.url, endpoint_url=self.endpoint_url)
        try:
            keys = [entry.key for entry in _entries(store)]
            for at in range(0, len(keys), MAX_DELETE_KEYS):
                store.execute(Delete(tuple(keys[at : at + MAX_DELETE_KEYS])))
        finally:
            store.close()


def _entries(store: Store) -> Iterator[ListEntry]:
    after = ""
    while True:
        page = store.execute(List("", start_after=after))
        if not isinstance(page, ListPage):
            return
        yield from page.entries
        if not page.more or not page.entries:
            return
        after = max(entry.key for entry in page.entries)
