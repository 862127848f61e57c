"""What an inline sync believes: the root that it reads back, and the claim that is on its disk. Nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.facade.lying import TP, LyingStore, fill, opened
from tiered.errors import TieredError
from tiered.store.memory import MemoryStore
from tiered.tiering.inline import Tiering


def test_a_commit_whose_root_does_not_show_it_permits_nothing(tmp_path: Path) -> None:
    log, clock, ids = opened(tmp_path)
    store = LyingStore()
    tiering = Tiering(log, store, clock=clock, ids=ids)
    end = fill(log)
    with pytest.raises(TieredError):
        tiering.sync({TP: end}, None)
    assert log.partition(TP).positions().uploaded_offset == 0
    upload = log.uploads.read().get(TP)
    assert upload is None or upload.end_offset == 0
    log.close()


def test_another_process_of_the_volume_that_has_claimed_since_is_no_stranger(tmp_path: Path) -> None:
    log, clock, ids = opened(tmp_path)
    store = MemoryStore()
    first, second = (Tiering(log, store, clock=clock, ids=ids) for _ in range(2))
    for tiering in (first, second, first, second):
        end = fill(log)
        tiering.sync({TP: end}, None)
        assert log.partition(TP).positions().uploaded_offset == end
    log.close()
