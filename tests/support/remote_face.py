"""A remote partition for tests: its steps, run on a store on the calling thread."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any
from uuid import UUID

from tiered.clock import Clock, IdSource
from tiered.model import AbortedTxn, Row, TopicPartition
from tiered.remote.catalog_view import CatalogView
from tiered.remote.reader import HeadedBatch, RemotePartition
from tiered.store.base import Store
from tiered.store.driver import Runner


class RemoteFace:
    """``RemotePartition`` with a store."""

    def __init__(
        self,
        store: Store,
        topic: str,
        topic_id: UUID,
        partition: int,
        *,
        clock: Clock | None = None,
        ids: IdSource | None = None,
        **options: Any,
    ) -> None:
        self.steps = RemotePartition(TopicPartition(topic, partition), topic_id, **options)
        self.tp, self.topic_id = self.steps.tp, topic_id
        self.runner = Runner(store, clock, ids)

    def snapshot(self) -> CatalogView | None:
        return self.runner.run(self.steps.snapshot())

    def refresh(self) -> CatalogView | None:
        return self.runner.run(self.steps.refresh())

    @property
    def start_offset(self) -> int:
        snapshot = self.snapshot()
        return snapshot.start_offset if snapshot is not None else 0

    @property
    def next_offset(self) -> int:
        snapshot = self.snapshot()
        return snapshot.next_offset if snapshot is not None else 0

    def segments(self) -> list[Row]:
        snapshot, at, found = self.snapshot(), 0, []
        while snapshot is not None and len(rows := self.runner.run(snapshot.piece(at))):
            found += rows
            at = rows.end_offset
        return found

    def read_headed(self, start: int, end: int | None = None) -> Generator[HeadedBatch, None, None]:
        return self.runner.stream(self.steps.read(start, end))  # type: ignore[return-value]  # what it emits

    def read_batches(self, start: int, end: int | None = None) -> Generator[memoryview, None, None]:
        for _, batch in self.read_headed(start, end):
            yield batch

    def offset_for_time(self, timestamp: int) -> tuple[int, int] | None:
        return self.runner.run(self.steps.offset_for_time(timestamp))

    def aborted_txns(self, start: int, end: int) -> list[AbortedTxn]:
        return self.runner.run(self.steps.aborted_txns(start, end))

    def last_stable_offset(self) -> int:
        return self.runner.run(self.steps.last_stable_offset())

    def producer_snapshot(self) -> bytes:
        return self.runner.run(self.steps.producer_snapshot())
