"""Driver's side of a write: staged segments -> one decision -> one CAS per touched partition.

All of it may run again, after any crash, with other staged segments. A decision is made once, and a partition that has
the batch is left alone (``remote.sink_commit``). So a write happens exactly once, whatever rows the query gives next
time.

A decision belongs to an id of the whole bucket, for all topics. A batch job with a used ``txnId`` would add nothing and
succeed. That is an error if the earlier use had no topic in common, and a warning otherwise.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from uuid import UUID

from tiered.errors import ConfigError, LogDestroyedError
from tiered.format.decision import COMMITTED, Decision
from tiered.model import Row
from tiered.remote.sink_commit import Landed, Sink
from tiered.spark.staging import Staged
from tiered.store.base import Store
from tiered.store.driver import drive

REQUESTS_TOGETHER = 16
"""Concurrent requests of one commit."""

_logger = logging.getLogger("tiered.spark")

StagedTasks = Iterable[tuple[int, Sequence[Staged]]]
"""Spark's number of each task, and its staged segments in the order of its rows."""

StagedRows = Mapping[tuple[UUID, int], tuple[Row, ...]]


def commit_batch(
    store: Store, sink: Sink, txn: str, batch: int, tasks: StagedTasks, *, topics: Mapping[UUID, str] | None = None
) -> tuple[Landed, ...]:
    """Commit the batch and return the rows' places in each touched partition.

    An empty batch is decided, too: an earlier attempt may have had rows, or a suspended one may continue. ``topics``:
    names of the topics of a batch job with a user's ``txnId``, to compare with an earlier run's decision. Raises as
    ``Sink.decide`` and ``Sink.commit_staged``, LogDestroyedError if an earlier attempt decided the batch for a topic
    that is gone, ConfigError if ``txn`` was used for other topics only.
    """
    rows = rows_in_order(tasks)
    decision = drive(store, sink.decide(Decision(txn, batch, COMMITTED, rows)), together=REQUESTS_TOGETHER)
    adopted = _objects(decision.partitions) != _objects(rows)
    try:
        landed = drive(store, sink.commit_staged(decision), together=REQUESTS_TOGETHER)
    except LogDestroyedError as error:
        if adopted:
            raise _decided_for_what_is_gone(txn, batch, rows, is_job=topics is not None) from error
        raise
    if adopted and topics is None:
        _logger.info("sink_replayed txn=%s batch=%d: what was decided before is committed", txn, batch)
    elif adopted and topics is not None:
        _warn_used_before(txn, rows, topics, landed)
    return landed


def _objects(rows: StagedRows) -> dict[tuple[UUID, int], list[tuple[int, int]]]:
    """Return the ids of the staged objects, because the append times of a decision differ from those of the tasks."""
    return {target: [(row.id_hi, row.id_lo) for row in of_partition] for target, of_partition in rows.items()}


def rows_in_order(tasks: StagedTasks) -> dict[tuple[UUID, int], tuple[Row, ...]]:
    """Return the staged rows of each partition in the order of their tasks: a sorted frame stays sorted."""
    found: dict[tuple[UUID, int], list[Row]] = {}
    for _, staged in sorted(tasks, key=lambda task: task[0]):
        for segment in staged:
            found.setdefault((segment.topic_id, segment.partition), []).append(segment.row)
    return {target: tuple(rows) for target, rows in found.items()}


def _decided_for_what_is_gone(txn: str, batch: int, rows: StagedRows, *, is_job: bool) -> LogDestroyedError:
    """Return the error for a batch that was decided for a topic which was deleted, and perhaps made again, since."""
    what, other = (f"txnId {txn}", "txnId") if is_job else (f"batch {batch} of {txn}", "checkpoint")
    return LogDestroyedError(
        f"{what} was decided for a topic that is deleted: none of the {_count(rows)} rows of this attempt were added",
        hint=f"write them under another {other}: a topic that was deleted and made again is another topic",
    )


def _warn_used_before(txn: str, rows: StagedRows, topics: Mapping[UUID, str], landed: Sequence[Landed]) -> None:
    """Warn that an earlier run under the same id counts, not this one. Raises ConfigError if its topics differ."""
    decided = {each.topic_id: each.root.topic for each in landed}
    ours = {topic_id: topics[topic_id] for topic_id, _ in rows}
    left_out = sorted({name for topic_id, name in ours.items() if topic_id not in decided})
    if decided and ours and not ours.keys() & decided.keys():
        raise ConfigError(
            f"txnId {txn} was used before, for {_words(decided.values())}: none of the {_count(rows)} rows for "
            f"{_words(ours.values())} were added",
            hint="give each write a txnId of its own: it is known in the whole bucket, whatever the topic",
        )
    if not rows:
        return
    finished = any(each.base >= 0 for each in landed)
    state = "decided by a run that had not ended, whose rows were added now" if finished else "committed before"
    also = f"; that run wrote nothing to {_words(left_out)}" if left_out else ""
    _logger.warning("txnId %s was %s: none of the %d rows of this run were added%s", txn, state, _count(rows), also)


def _count(rows: StagedRows) -> int:
    return sum(row.records for of_partition in rows.values() for row in of_partition)


def _words(names: Iterable[str]) -> str:
    return f"topic {', '.join(sorted(set(names)))}"
