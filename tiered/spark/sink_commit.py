"""What the tasks staged -> one decision -> one CAS per touched partition: the driver's side of a write.

Everything here may run again, after any crash, with other staged segments: a decision is made once, and a partition
that has the batch is left alone (``remote.stage``). So a write is done exactly once, whatever the query would give the
second time.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from uuid import UUID

from tiered.format.decision import COMMITTED, Decision
from tiered.model import Row
from tiered.remote.stage import Landed, Sink
from tiered.spark.staging import Staged
from tiered.store.base import Store
from tiered.store.driver import drive

REQUESTS_TOGETHER = 16
"""Requests of one commit that are under way at once."""

_logger = logging.getLogger("tiered.spark")

StagedTasks = Iterable[tuple[int, Sequence[Staged]]]
"""Spark's number of each task, and what it staged in the order of its rows."""


def commit_batch(store: Store, sink: Sink, txn: str, batch: int, tasks: StagedTasks) -> tuple[Landed, ...]:
    """Commits the batch; gives what is in each touched partition.

    That a batch has no rows is decided, too: an earlier attempt may have had some, or one that stands still may go on.
    Raises as ``Sink.decide`` and ``Sink.commit_staged`` do.
    """
    rows = rows_in_order(tasks)
    decision = drive(store, sink.decide(Decision(txn, batch, COMMITTED, rows)), together=REQUESTS_TOGETHER)
    if decision.partitions != rows:
        _logger.info("sink_replayed txn=%s batch=%d: what was decided before is committed", txn, batch)
    return drive(store, sink.commit_staged(decision), together=REQUESTS_TOGETHER)


def rows_in_order(tasks: StagedTasks) -> dict[tuple[UUID, int], tuple[Row, ...]]:
    """The staged rows of each partition in the order of their tasks: the rows of a sorted frame stay sorted."""
    found: dict[tuple[UUID, int], list[Row]] = {}
    for _, staged in sorted(tasks, key=lambda task: task[0]):
        for segment in staged:
            found.setdefault((segment.topic_id, segment.partition), []).append(segment.row)
    return {target: tuple(rows) for target, rows in found.items()}
