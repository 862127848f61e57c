"""What a store is asked, by kind of request: the lines of a bill."""

from __future__ import annotations

from typing import NamedTuple

from tiered.store.metrics import StoreMetrics


class Line(NamedTuple):
    """Requests of one kind, and their bytes."""

    requests: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0


class Bill:
    """Every attempt at the store since the last look, below the retries."""

    def __init__(self, metrics: StoreMetrics) -> None:
        self._metrics = metrics
        self._before = self._totals()

    def _totals(self) -> dict[str, Line]:
        totals: dict[str, Line] = {}
        for each in self._metrics.snapshot():
            before = totals.get(each.op, Line())
            totals[each.op] = Line(
                before.requests + each.requests,
                before.sent_bytes + each.sent_bytes,
                before.received_bytes + each.received_bytes,
            )
        return totals

    def take(self) -> dict[str, Line]:
        """The lines since the last ``take``, without those that are empty."""
        now, before = self._totals(), self._before
        self._before = now
        lines = {
            op: Line(*(a - b for a, b in zip(line, before.get(op, Line()), strict=True))) for op, line in now.items()
        }
        return {op: line for op, line in lines.items() if line.requests}

    def requests(self) -> dict[str, int]:
        """The same, only how many."""
        return {op: line.requests for op, line in self.take().items()}
