"""A folder has a clock of its own: the file system's, whatever the clock of the process says."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tiered.clock import SystemClock
from tiered.store.base import ABSENT, Get, Object, Put
from tiered.store.directory import DirectoryStore
from tiered.testing.clock import FakeClock

DAY_MS = 86_400_000


class WrongClock(SystemClock):
    """The machine's, so many days off."""

    def __init__(self, days: int) -> None:
        self.days = days

    def now_ms(self) -> int:
        return super().now_ms() + self.days * DAY_MS


def dates(store: DirectoryStore) -> tuple[int, int]:
    """When an object was stored, and when it was read, as the store says."""
    store.execute(Put("a", b"x", ABSENT))
    got = store.execute(Get("a"))
    assert isinstance(got, Object)
    return got.last_modified_ms, got.date_ms


@pytest.mark.parametrize("days", [400, -400, 0])
def test_a_store_of_files_dates_by_the_file_system(tmp_path: Path, days: int) -> None:
    before = int(time.time() * 1000)
    stored, read = dates(DirectoryStore(tmp_path, clock=WrongClock(days)))
    after = int(time.time() * 1000)
    assert before - 2000 <= stored <= read <= after + 2000


def test_a_jump_of_the_clock_is_seen(tmp_path: Path) -> None:
    clock = WrongClock(0)
    store = DirectoryStore(tmp_path, clock=clock)
    _, before = dates(store)
    clock.days = 400
    _, after = dates(store)
    assert after - before < DAY_MS


def test_a_clock_of_a_test_stays_behind_but_never_runs_ahead(tmp_path: Path) -> None:
    now = int(time.time() * 1000)
    clock = FakeClock()
    store = DirectoryStore(tmp_path, clock=clock)
    assert dates(store) == (clock.now_ms(), clock.now_ms())
    clock.set_ms(now + 400 * DAY_MS)
    assert dates(store)[1] < now + DAY_MS


def test_a_reader_that_may_change_nothing_goes_by_its_own_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    DirectoryStore(tmp_path).execute(Put("a", b"x", ABSENT))

    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr("os.utime", refuse)
    clock = WrongClock(400)
    got = DirectoryStore(tmp_path, clock=clock).execute(Get("a"))
    assert isinstance(got, Object)
    assert abs(got.date_ms - clock.now_ms()) < DAY_MS
