"""Copies of replaced objects are all of them, or nothing is replaced."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tiered.errors import CorruptionError
from tiered.repair.versions import keep_copy
from tiered.store.base import ABSENT, Get, Head, Object, Outcome, Put, StoreAround, StoreRequest
from tiered.store.driver import drive
from tiered.store.memory import MemoryStore
from tiered.store.steps import list_all


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def data_of(store: MemoryStore, key: str) -> bytes:
    got = store.execute(Get(key))
    assert isinstance(got, Object)
    return bytes(got.data)


class Short(StoreAround):
    """A store whose ranged GETs of one key come short, and whose copies do, if ``of_copies``."""

    def __init__(self, inner: MemoryStore, key: str, *, of_copies: bool) -> None:
        super().__init__(inner)
        self.key, self.of_copies = key, of_copies

    def execute(self, request: StoreRequest) -> Outcome:
        outcome = self.inner.execute(request)
        if isinstance(outcome, Object) and isinstance(request, Get) and request.key == self.key and not self.of_copies:
            return replace(outcome, data=outcome.data[:-1])
        if isinstance(outcome, Object) and isinstance(request, Head) and "/aside/" in request.key and self.of_copies:
            return replace(outcome, size=outcome.size - 1)
        return outcome


@pytest.mark.parametrize("of_copies", [False, True])
def test_a_copy_that_is_not_all_of_it_keeps_the_object_in_its_place(store: MemoryStore, of_copies: bool) -> None:
    key, to, data = "a/s/1.log", "a/aside/1", b"all of it"
    store.execute(Put(key, data, ABSENT))
    with pytest.raises(CorruptionError, match="nothing was replaced"):
        drive(Short(store, key, of_copies=of_copies), keep_copy(key, to))
    if of_copies:
        return
    assert drive(store, list_all("a/aside/")) == []
    assert drive(store, keep_copy(key, to))
    copy = store.execute(Get(to))
    assert isinstance(copy, Object)
    assert copy.data == data
    assert not drive(store, keep_copy("a/s/gone", to))  # there is nothing to keep


class Rotted(StoreAround):
    """A store that tells of one key another checksum than its bytes have. Its ``odd`` GET of it (from 1 on) gives
    ``other`` fields."""

    def __init__(self, inner: MemoryStore, key: str, odd: int, **other: object) -> None:
        super().__init__(inner)
        self.key, self.odd, self.other = key, odd, other
        self.gets = 0

    def execute(self, request: StoreRequest) -> Outcome:
        outcome = self.inner.execute(request)
        if isinstance(outcome, Object) and isinstance(request, Head) and request.key == self.key:
            return replace(outcome, crc32c=1)
        if isinstance(outcome, Object) and isinstance(request, Get) and request.key == self.key:
            self.gets += 1
            return replace(outcome, **self.other) if self.gets == self.odd else outcome  # type: ignore[arg-type]
        return outcome


def test_a_copy_of_what_has_rotted_below_its_checksum_is_what_is_read_twice(store: MemoryStore) -> None:
    key, to, data = "a/s/1.log", "a/aside/1", b"all of it"
    store.execute(Put(key, data, ABSENT))
    for unsteady in (Rotted(store, key, 1, data=b"ALL OF IT"), Rotted(store, key, 1, etag="another")):
        with pytest.raises(CorruptionError, match="nothing was replaced"):
            drive(unsteady, keep_copy(key, to))
        assert drive(store, list_all("a/aside/")) == []
    assert drive(Rotted(store, key, 0), keep_copy(key, to))
    assert data_of(store, to) == data
