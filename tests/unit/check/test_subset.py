"""A check that reads the bytes of a part of the segments."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.admin import check
from tests.unit.check.building import Scenario, scenario
from tiered.check.check import CheckOptions, CheckReport
from tiered.errors import ConfigError
from tiered.store.base import Get, Head, Outcome, StoreAround, StoreRequest
from tiered.store.memory import MemoryStore

pytestmark = pytest.mark.usefixtures("both_catalogs")


class Watched(StoreAround):
    """Counts the requests for ``.log`` objects."""

    def __init__(self, inner: MemoryStore) -> None:
        super().__init__(inner)
        self.heads: list[str] = []
        self.bytes_read: dict[str, int] = {}

    def execute(self, request: StoreRequest) -> Outcome:
        """Run one request."""
        if isinstance(request, Head):
            self.heads.append(request.key)
        outcome = self.inner.execute(request)
        if isinstance(request, Get) and request.key.endswith(".log"):
            self.bytes_read[request.key] = self.bytes_read.get(request.key, 0) + len(outcome.data)  # type: ignore[union-attr]
        return outcome


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Scenario]:
    with scenario(tmp_path, partitions=2) as built:
        yield built


def keys(log: Scenario) -> list[str]:
    return [log.log_key(row, partition) for partition in (0, 1) for row in log.rows(partition)]


def ran(log: Scenario, **wanted: object) -> tuple[CheckReport, Watched]:
    store = Watched(log.store)
    return check(None, store, CheckOptions(**wanted)), store  # type: ignore[arg-type]


@pytest.mark.parametrize("parts", [1, 3, 20])
def test_the_parts_are_all_of_it_and_each_segment_is_in_one(log: Scenario, parts: int) -> None:
    read: list[str] = []
    for number in range(1, parts + 1):
        report, store = ran(log, read_data=True, subset=(number, parts))
        assert (report.exit_code, len(store.heads)) == (0, len(keys(log)))
        assert report.data_bytes_read == sum(store.bytes_read.values())
        read += store.bytes_read
    assert sorted(read) == sorted(keys(log))


@pytest.mark.parametrize("subset", [(0, 3), (4, 3), (1, 0)])
def test_what_is_no_part(log: Scenario, subset: tuple[int, int]) -> None:
    with pytest.raises(ConfigError, match="names no part of the segments"):
        ran(log, subset=subset, read_data=True)
