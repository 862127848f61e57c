"""What a cleaner counts: Kafka's gauges of its log cleaner, and totals since the open."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from tiered.local.cleaning.rounds import CleaningReport
from tiered.plan.cleaning import CleaningCandidate


@dataclass(frozen=True, slots=True)
class CleanerFigures:
    """Ratios are of 1. The maxima are those of each worker's last round, ``max_dirty_ratio`` that of the last look.

    =============================  ====================================
    ours                           Kafka's
    =============================  ====================================
    ``max_clean_seconds``          ``max-clean-time-secs``
    ``max_buffer_utilization``     ``max-buffer-utilization-percent``
    ``recopy_ratio``               ``cleaner-recopy-percent``
    ``max_compaction_delay_ms``    ``max-compaction-delay-secs``
    ``max_dirty_ratio``            ``max-dirty-percent``
    ``last_run_ms`` (-1: never)    ``time-since-last-run-ms``
    ``uncleanable_partitions``     ``uncleanable-partitions-count``
    ``uncleanable_bytes``          ``uncleanable-bytes``
    =============================  ====================================
    """

    max_clean_seconds: float = 0.0
    max_buffer_utilization: float = 0.0
    recopy_ratio: float = 0.0
    max_compaction_delay_ms: int = 0
    max_dirty_ratio: float = 0.0
    last_run_ms: int = -1
    uncleanable_partitions: int = 0
    uncleanable_bytes: int = 0
    rounds: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    at_work: int = 0


class CleanerCounts:
    """Thread-safe."""

    def __init__(self, workers: int) -> None:
        self._lock = threading.Lock()
        self._last: deque[tuple[CleaningReport, float]] = deque(maxlen=workers)
        self._rounds = self._read = self._written = 0
        self._dirty = 0.0
        self._delay_ms = 0
        self._looked_ms = -1

    def looked(self, candidates: Iterable[CleaningCandidate], now_ms: int) -> None:
        """The partitions that were chosen from."""
        found = list(candidates)
        with self._lock:
            self._dirty = max((each.ratio for each in found), default=0.0)
            self._delay_ms = max((each.delay_ms for each in found), default=0)
            self._looked_ms = now_ms

    def cleaned(self, report: CleaningReport, seconds: float) -> None:
        """One round is over."""
        with self._lock:
            self._last.append((report, seconds))
            self._rounds += 1
            self._read += report.bytes_read
            self._written += report.bytes_written

    def figures(self, *, uncleanable_partitions: int, uncleanable_bytes: int, at_work: int) -> CleanerFigures:
        """As they are now."""
        with self._lock:
            read = sum(report.bytes_read for report, _ in self._last)
            written = sum(report.bytes_written for report, _ in self._last)
            return CleanerFigures(
                max_clean_seconds=max((seconds for _, seconds in self._last), default=0.0),
                max_buffer_utilization=max((report.utilization for report, _ in self._last), default=0.0),
                recopy_ratio=written / read if read else 0.0,
                max_compaction_delay_ms=self._delay_ms,
                max_dirty_ratio=self._dirty,
                last_run_ms=self._looked_ms,
                uncleanable_partitions=uncleanable_partitions,
                uncleanable_bytes=uncleanable_bytes,
                rounds=self._rounds,
                bytes_read=self._read,
                bytes_written=self._written,
                at_work=at_work,
            )
