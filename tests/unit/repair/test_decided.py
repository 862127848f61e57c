"""Batches of sinks that were decided since the copy from which a lost root goes on."""

from __future__ import annotations

import pytest

from tests.support.admin import apply_repair, plan_repair
from tests.unit.remote.building import RemoteLog
from tests.unit.remote.paged.sinks import TP as FLIGHTS
from tests.unit.remote.paged.sinks import commit, decide, log_of_sinks, lose
from tiered.errors import CorruptionError
from tiered.format.keys import hist_prefix, parse_hist_key
from tiered.model import Row
from tiered.repair.plan import RepairOptions
from tiered.store.base import Delete
from tiered.store.driver import drive
from tiered.store.steps import list_all


def rows_of(log: RemoteLog) -> list[Row]:
    assert log.root is not None
    return list(log.root.rows)


def lose_since(log: RemoteLog, version: int) -> None:
    """Lose the root, and the copies that are newer than ``version``."""
    lose(log)
    copies = [entry.key for entry in drive(log.store, list_all(hist_prefix(log.topic_id, 0)))]
    log.store.execute(Delete(tuple(key for key in copies if (parse_hist_key(key) or 0) > version)))


def test_one_decision_since_the_copy_is_committed() -> None:
    log = log_of_sinks()
    assert log.root is not None
    version = log.root.version
    commit(log, decide(log, [10, 20], 1, "query"))
    rows = rows_of(log)
    lose_since(log, version)
    plan = plan_repair(log.store, [FLIGHTS])
    assert plan.actions[0].notes[0] == "batch 1 of query is committed by its decision"
    apply_repair(log.store, plan)
    assert [row[:8] for row in rows_of(log)] == [row[:8] for row in rows]
    assert plan_repair(log.store, [FLIGHTS]).actions == ()


def test_several_decisions_have_no_proven_order() -> None:
    log = log_of_sinks()
    assert log.root is not None
    version = log.root.version
    for txn in ("query", "other"):
        commit(log, decide(log, [10], 1, txn))
    lose_since(log, version)
    with pytest.raises(CorruptionError, match="their order is not known"):
        plan_repair(log.store, [FLIGHTS])
    apply_repair(log.store, plan_repair(log.store, [FLIGHTS], RepairOptions(accept_loss=True)))
    assert len(rows_of(log)) == 4
