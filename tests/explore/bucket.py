"""An object store as a value: a request makes of one state another one, and states that are equal are one.

Its rules are those of :class:`tiered.store.memory.MemoryStore` (``test_explore.py`` compares the two) but for the ETag,
which is a hash of the body as on S3: it depends on nothing but what is stored.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tiered.format.kernels import crc32c
from tiered.store.base import (
    Absent,
    Delete,
    Deleted,
    Get,
    Head,
    List,
    ListEntry,
    ListPage,
    Missing,
    NotModified,
    Object,
    Put,
    PutResult,
    PutStatus,
)

Request = Get | Head | Put | Delete | List

STORED_MS = 0
"""When every object was stored: so long ago that no age of it protects it."""
PINNED_MS = 1_700_000_000_000
"""When every pin was: just now, so that none expires."""


@dataclass(frozen=True)
class Stored:
    """One body, known by its hash."""

    data: bytes = field(repr=False, compare=False)
    etag: str
    crc32c: int = field(compare=False)

    @classmethod
    def of(cls, data: bytes) -> Stored:
        return cls(data, f'"{hashlib.blake2b(data, digest_size=16).hexdigest()}"', crc32c(data))


class Objects:
    """What a store holds, by key. Immutable, hashed once."""

    __slots__ = ("_hash", "_items", "held")

    def __init__(self, held: Mapping[str, Stored]) -> None:
        self.held = held
        self._items = frozenset((key, stored.etag) for key, stored in held.items())
        self._hash = hash(self._items)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Objects) and self._items == other._items

    def apply(self, request: Request) -> tuple[Objects, Any]:
        """The store after ``request``, and the answer."""
        match request:
            case Put():
                return self._put(request)
            case Delete(keys):
                left = {key: stored for key, stored in self.held.items() if key not in keys}
                return (self if len(left) == len(self.held) else Objects(left)), Deleted()
            case Get():
                return self, self._get(request)
            case Head(key):
                stored = self.held.get(key)
                return self, Missing() if stored is None else _object(stored, b"")
            case List():
                return self, self._list(request)

    def _get(self, request: Get) -> Any:
        stored = self.held.get(request.key)
        if stored is None:
            return Missing()
        if request.if_none_match == stored.etag:
            return NotModified()
        end = len(stored.data) if request.end is None else min(request.end, len(stored.data))
        request.check_body(end - request.start)
        return _object(stored, stored.data[request.start : end])

    def _put(self, request: Put) -> tuple[Objects, PutResult]:
        current = self.held.get(request.key)
        if isinstance(request.condition, Absent):
            if current is not None:
                return self, PutResult(PutStatus.LOST)
        elif current is None:
            return self, PutResult(PutStatus.ABSENT)
        elif current.etag != request.condition.etag:
            return self, PutResult(PutStatus.LOST)
        body = request.body
        stored = Stored.of(body if isinstance(body, bytes) else body.read_at(0, body.size))
        assert request.crc32c in {None, stored.crc32c}, "the body is not what was announced"
        return Objects({**self.held, request.key: stored}), PutResult(PutStatus.LANDED, stored.etag, stored.crc32c)

    def _list(self, request: List) -> ListPage:
        found = sorted(
            (key for key in self.held if key.startswith(request.prefix) and key > request.start_after), key=str.encode
        )
        entries = [
            ListEntry(key, len(self.held[key].data), self.held[key].etag, PINNED_MS if "/pin/" in key else STORED_MS)
            for key in found[: request.limit]
        ]
        return ListPage(tuple(entries), len(found) > request.limit, PINNED_MS)


def _object(stored: Stored, data: bytes) -> Object:
    return Object(data, stored.etag, len(stored.data), STORED_MS, 0, stored.crc32c)


NO_OBJECTS = Objects({})
