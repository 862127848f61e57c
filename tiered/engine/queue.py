"""The fair queue of uploads: a free slot goes to the partition whose next segment was appended first.

A partition in the queue is one entry, not a waiting task. So an outage over thousands of partitions costs nothing here.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from typing import TYPE_CHECKING

from tiered.engine.limits import EngineLimits
from tiered.model import TopicPartition

if TYPE_CHECKING:
    from tiered.engine.worker import Worker

HEAP_SLACK = 64


class UploadQueue:
    """At most ``limits.uploads`` uploads, cancelled ones included until they have ended. On the event loop only.

    A partition that has its share, a quarter of them, gets another slot only while no other partition waits.
    """

    def __init__(self, limits: Callable[[], EngineLimits]) -> None:
        self._limits = limits
        self.running = 0
        self._waiting: dict[TopicPartition, tuple[bool, int, Worker]] = {}
        self._heap: list[tuple[bool, int, TopicPartition]] = []  # with stale entries, dropped when they come up
        self._filling = False

    def offer(self, worker: Worker) -> None:
        """Put a partition in line for a slot, if one of its uploads may begin. An older entry of it is replaced."""
        p, work = worker.p, worker.upload_due()
        if work is None:
            self._waiting.pop(p.tp, None)
            return
        over, first_ms = p.uploading >= self._limits().share, work.segment.first_ms
        known = self._waiting.get(p.tp)
        self._waiting[p.tp] = (over, first_ms, worker)
        if known is None or known[:2] != (over, first_ms):
            heapq.heappush(self._heap, (over, first_ms, p.tp))
            if len(self._heap) > 2 * len(self._waiting) + HEAP_SLACK:
                self._heap = [(*each[:2], tp) for tp, each in self._waiting.items()]
                heapq.heapify(self._heap)
        self.fill_soon()

    def withdraw(self, worker: Worker) -> None:
        """Take a partition out of the line."""
        known = self._waiting.get(worker.p.tp)
        if known is not None and known[2] is worker:
            del self._waiting[worker.p.tp]

    def ended(self) -> None:
        """Free the slot of an upload."""
        self.running -= 1
        self.fill_soon()

    def fill_soon(self) -> None:
        """Fill free slots in the next turn of the event loop: by then all partitions of one scan are in the queue."""
        if not self._filling and self._waiting and self.running < self._limits().uploads:
            self._filling = True
            asyncio.get_running_loop().call_soon(self._fill)

    def _fill(self) -> None:
        while self.running < self._limits().uploads and self._heap:
            over, first_ms, tp = heapq.heappop(self._heap)
            known = self._waiting.get(tp)
            if known is None or known[:2] != (over, first_ms):
                continue
            del self._waiting[tp]
            worker = known[2]
            work = worker.upload_due()
            if work is None:
                continue
            if (worker.p.uploading >= self._limits().share, work.segment.first_ms) == (over, first_ms):
                self.running += 1
                worker.start_upload(work)
            self.offer(worker)
        self._filling = False
