"""A store that ignores where a listing is to begin: an error where it has no end, and never a key twice."""

from __future__ import annotations

import pytest

from tiered.errors import ConfigError
from tiered.store.aio_driver import adrive
from tiered.store.base import ABSENT, List, Outcome, Put, StoreRequest
from tiered.store.driver import drive
from tiered.store.location import ThreadedAioStore
from tiered.store.memory import MemoryStore
from tiered.store.steps import list_all


class Ignoring(MemoryStore):
    """Gives the first ``most`` keys below a prefix, whatever is asked for. It gives up on a client that does not."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most, self.listings = most, 0

    def execute(self, request: StoreRequest) -> Outcome:
        if isinstance(request, List):
            self.listings += 1
            assert self.listings < 100, "the listing has no end"
            request = List(request.prefix, limit=self.most)
        return super().execute(request)


def filled(most: int) -> Ignoring:
    store = Ignoring(most)
    for number in range(10):
        store.execute(Put(f"a/{number}", b"v", ABSENT))
    return store


@pytest.mark.parametrize("after", ["", "a/3"])
async def test_a_page_that_does_not_advance_is_an_error(after: str) -> None:
    with pytest.raises(ConfigError, match="ignores start-after"):
        drive(filled(3), list_all("a/", after))
    aio = ThreadedAioStore(filled(3))
    with pytest.raises(ConfigError, match="ignores start-after"):
        await adrive(aio, list_all("a/", after))
    await aio.close()


def test_a_page_of_all_keys_is_cut_to_those_that_were_asked_for() -> None:
    found = drive(filled(100), list_all("a/", "a/7"))
    assert [entry.key for entry in found] == ["a/8", "a/9"]
