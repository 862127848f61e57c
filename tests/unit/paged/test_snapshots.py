"""Who makes a snapshot may only take back what is his own."""

from __future__ import annotations

import pytest

from tests.unit.catalog.script import TOPIC_ID
from tests.unit.paged.collecting import Place
from tiered.errors import CommitUnknown, ConfigError, TieredError
from tiered.format.keys import snap_key
from tiered.remote.past import create_snapshot, load_snapshot
from tiered.remote.root_view import RootView
from tiered.store.base import Outcome, Put, PutResult, PutStatus, StoreRequest

NAME = "nightly"
KEY = snap_key(TOPIC_ID, 0, NAME)


def view() -> RootView:
    return RootView(TOPIC_ID, 0, "flights")


@pytest.mark.parametrize(
    ("told", "error"), [(PutStatus.LOST, ConfigError), (PutStatus.UNKNOWN, CommitUnknown)], ids=str
)
def test_a_snapshot_that_another_one_made_of_the_same_root_is_never_deleted(
    told: PutStatus, error: type[TieredError]
) -> None:
    """Two hosts make it at once, of one root; a collector has passed that root when the second one looks again."""
    place = Place()
    place.append(4)
    place.trim(10)
    place.wait()
    execute = place.store.execute
    first: list[int] = []

    def racing(request: StoreRequest) -> Outcome:
        if not isinstance(request, Put) or request.key != KEY or first:
            return execute(request)
        first.append(0)
        first[0] = place.world.run(create_snapshot(view(), NAME)).version
        execute(request)
        place.trim(20)
        place.wait()
        place.collect()
        return PutResult(told)

    place.store.execute = racing  # type: ignore[method-assign]  # between two requests of the second host
    with pytest.raises(error):
        place.world.run(create_snapshot(view(), NAME))
    kept = place.world.run(load_snapshot(view(), NAME))
    assert kept is not None
    assert [kept.version] == first
