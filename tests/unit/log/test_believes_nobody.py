"""An inline sync notes only what it has read back in a root."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.log.lying import TP, fill, opened
from tiered.engine.tiering import Tiering
from tiered.errors import RemoteUnavailableError, TieredError
from tiered.format.keys import root_key
from tiered.format.root import decode_root
from tiered.store.base import Get, Object, Outcome, Put, StoreRequest
from tiered.store.memory import MemoryStore


class Forgetful(MemoryStore):
    """It stores the root that names segments, and then cannot be asked for it."""

    silent = told = False

    def execute(self, request: StoreRequest) -> Outcome:
        if self.silent and isinstance(request, Get) and request.key.endswith("/root"):
            raise RemoteUnavailableError("no answer")
        outcome = super().execute(request)
        if isinstance(request, Put) and request.key.endswith("/root") and isinstance(request.body, bytes):
            self.silent = not self.told and decode_root(request.body, key=request.key).next_offset > 0
            self.told = self.told or self.silent
        return outcome


def test_a_commit_that_nobody_could_read_back_is_claimed_again(tmp_path: Path) -> None:
    """Until a root was seen nothing is noted; the next sync does not go on from what this process only sent."""
    log, clock, ids = opened(tmp_path / "log")
    store = Forgetful()
    tiering = Tiering(log, store, clock=clock, ids=ids)
    end = fill(log)
    with pytest.raises(TieredError):
        tiering.sync({TP: end}, None)
    assert log.partition(TP).positions().uploaded_offset == 0
    store.silent = False
    tiering.sync({TP: end}, None)
    assert log.partition(TP).positions().uploaded_offset == end
    key = root_key(log.partition(TP).topic_id, 0)
    got = MemoryStore.execute(store, Get(key))
    assert isinstance(got, Object)
    assert decode_root(got.data, key=key).writer.epoch == 2
    log.close()
