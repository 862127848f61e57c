"""Check that a stream's trigger is not too frequent: many tiny segments are costly until they are merged. Pure.

Each batch makes a segment for each task and partition. Until a maintainer merges them, each of them costs a row of the
catalog, two objects, and requests of every reader.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable

WINDOW_BATCHES = 20
"""Batches with rows over which the pace is measured."""

SEGMENTS_A_DAY = 5_000
"""Most segments a day of one partition without a warning: four tasks with a trigger a minute make 5,760."""

TINY_BYTES = 1024 * 1024
"""Mean segment size below which requests and rows cost more than bytes."""

DAY_SECONDS = 86_400


class TriggerPace:
    """Last batches of one stream. Warns once that they come too often."""

    def __init__(self) -> None:
        self._batches: deque[tuple[float, Counter[tuple[str, int]], int]] = deque(maxlen=WINDOW_BATCHES)
        self._is_said = False

    def add(self, now_seconds: float, segments: Iterable[tuple[str, int, int]]) -> str:
        """Add a committed batch: its monotonic time, and topic, partition and bytes of each segment.

        Return the warning, ``""`` for none.
        """
        listed = list(segments)
        if self._is_said or not listed:
            return ""
        found = Counter((topic, partition) for topic, partition, _ in listed)
        self._batches.append((now_seconds, found, sum(size for _, _, size in listed)))
        if len(self._batches) < WINDOW_BATCHES:
            return ""
        seconds = now_seconds - self._batches[0][0]
        counts: Counter[tuple[str, int]] = Counter()
        for _, each, _ in list(self._batches)[1:]:  # the first batch ended where these seconds begin
            counts.update(each)
        mean_bytes = sum(size for _, _, size in self._batches) // sum(each.total() for _, each, _ in self._batches)
        (topic, partition), most = counts.most_common(1)[0]
        a_day = round(most * DAY_SECONDS / max(seconds, 1e-3))
        if mean_bytes >= TINY_BYTES or a_day <= SEGMENTS_A_DAY:
            return ""
        self._is_said = True
        return (
            f"the trigger is too frequent: the last {WINDOW_BATCHES - 1} batches wrote {most} segments into "
            f"{topic}-{partition} in {seconds:.0f} s, {mean_bytes:,} bytes each on average; that is {a_day:,} a day, "
            f"and {SEGMENTS_A_DAY:,} of less than {TINY_BYTES:,} bytes are many. Trigger once a minute or less often "
            f"(processingTime='1 minute'), write with fewer tasks (coalesce), and have them merged: "
            f"`tiered maintain {topic} --only merge --loop`, or `tiered spark maintain {topic} --only merge`"
        )
