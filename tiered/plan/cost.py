"""Estimate of the requests, bytes and dollars of a log in a bucket, and the price of counted requests."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

MONTH_SECONDS = 30 * 86_400
GIB = 1024**3
CHUNK_BYTES = 4 * 1024**2
SMALL_SEGMENT_BYTES = 1024**2
HISTORY_EVERY = 64
"""Commits per copy of the root, as ``remote.root_history`` makes them."""
MULTIPART_FROM_BYTES, PART_BYTES = 64 * 1024**2, 16 * 1024**2
FOLLOW_SECONDS = (0.5, 10.0)
"""Shortest and longest interval between two polls of a reader that waits for new records."""


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices in dollars: of one PUT (``write``), one GET (``read``) and a GiB for a month. ``day``: their date."""

    write: float
    read: float
    gib_month: float
    day: str
    source: str


PRICES = Prices(
    write=5.00 / 1_000_000,
    read=0.40 / 1_000_000,
    gib_month=0.023,
    day="2026-11-27",
    source="S3 Standard in us-east-1, as public pages state it: aws.amazon.com/s3/pricing has today's",
)
STORAGE = {"STANDARD_IA": 0.0125, "ONEZONE_IA": 0.01, "GLACIER_IR": 0.004, "GLACIER": 0.0036, "DEEP_ARCHIVE": 0.00099}
"""Dollars of a GiB for a month in storage classes that cost less than the standard one; ``PRICES`` has its day."""
FREE = frozenset({"delete", "abortupload"})
READS = frozenset({"get", "head"})
"""Requests that cost as a GET. All others that are not free cost as a PUT."""


def price(requests: Mapping[str, float]) -> float:
    """Return the price in dollars of ``requests``: numbers of requests by kind, as the store's metrics name the
    kinds.
    """
    kinds = {op: count for op, count in requests.items() if op not in FREE}
    return sum(count * (PRICES.read if op in READS else PRICES.write) for op, count in kinds.items())


@dataclass(frozen=True, slots=True)
class Workload:
    """Workload of a log, for :func:`plan_cost`. ``records_per_second``: of all partitions together.

    ``ratio``: stored bytes per byte of records. ``seal_seconds``: longest time until a segment is sealed. ``readers``:
    number of readers that each follow all partitions. ``retention_seconds``: None for a log that deletes nothing.
    ``maintain_every_seconds``: interval of maintenance rounds, 0 for none.
    """

    records_per_second: float
    record_bytes: int
    partitions: int = 1
    seal_seconds: float = 600.0
    segment_bytes: int = 64 * 1024**2
    retention_seconds: float | None = None
    readers: int = 0
    ratio: float = 1.0
    maintain_every_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class CostPlan:
    """Planned requests by kind, and stored bytes. ``segment_bytes``: size of one segment.

    ``stored_bytes``: bytes written in the time of the retention. Without a retention: in the planned time.
    """

    requests: dict[str, float]
    stored_bytes: float
    segment_bytes: float

    @property
    def request_dollars(self) -> float:
        """Return the price of the requests."""
        return price(self.requests)

    @property
    def storage_dollars(self) -> float:
        """Return the price of the stored bytes for a month."""
        return self.stored_bytes / GIB * PRICES.gib_month


def plan_cost(work: Workload, seconds: float = MONTH_SECONDS) -> CostPlan:
    """Return the requests of ``seconds`` of steady ``work``, and the bytes that are stored at the end.

    Faults, merging, compaction and reads of old records are not included.
    """
    rate = work.records_per_second * work.record_bytes * work.ratio / work.partitions
    sealed_every = min(work.seal_seconds, work.segment_bytes / rate) if rate else math.inf
    if rate:  # a segment has at least one record
        sealed_every = max(sealed_every, work.partitions / work.records_per_second)
    segments = work.partitions * seconds / sealed_every if rate else 0.0
    size = rate * sealed_every if rate else 0.0
    requests = {"put": 3 * segments + segments / HISTORY_EVERY, "get": segments}
    if size > MULTIPART_FROM_BYTES:  # the segment itself is no PUT then
        parts = math.ceil(size / PART_BYTES)
        requests |= {"put": requests["put"] - segments, "startupload": segments, "uploadpart": parts * segments}
        requests["completeupload"] = segments
    if work.readers:
        # A look without news costs a GET, and so does the root that has the segment.
        look = min(max(sealed_every / 4, FOLLOW_SECONDS[0]), FOLLOW_SECONDS[1])
        looks = work.partitions * seconds / look
        chunks = 1 if size <= SMALL_SEGMENT_BYTES else 1 + math.ceil(size / CHUNK_BYTES)
        requests["get"] += work.readers * (looks + chunks * segments)
    if work.maintain_every_seconds:
        rounds = seconds / work.maintain_every_seconds
        requests["list"] = 2 * rounds  # of topics and of groups
        requests["get"] += rounds * (1 + work.partitions)
    kept = rate * work.partitions * (seconds if work.retention_seconds is None else work.retention_seconds)
    return CostPlan(requests, kept, size)
