"""The ``.log`` of a segment in the bucket as ``check`` and ``restore`` read it: whole, from the first byte on."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tiered.errors import CorruptionError
from tiered.findings import Passed
from tiered.model import Row, TopicPartition
from tiered.store.base import Blocking, Emit, Get, Missing, Object, Steps, Together

RANGE_BYTES = 8 * 1024 * 1024
"""Bytes of one GET."""

RANGES_TOGETHER = 4
"""GETs under way at once; as many ranges are in memory."""


class ObjectGone(CorruptionError):
    """The object of a segment that a catalog names is not there (any more)."""


def fetch_log(
    tp: TopicPartition, key: str, row: Row, take: Callable[[bytes], object], *, told: bool = True
) -> Steps[None]:
    """Hands the whole object to ``take``, a range after the other, and emits how much that was if ``told``.

    ``take`` may wait for the disk. Raises ObjectGone, and CorruptionError for an object of another size.
    """
    for first in range(0, row.size, RANGE_BYTES * RANGES_TOGETHER):
        last = min(first + RANGE_BYTES * RANGES_TOGETHER, row.size)
        starts = range(first, last, RANGE_BYTES)
        gets = tuple(Get(key, start, min(start + RANGE_BYTES, last)) for start in starts)
        for start, found in zip(starts, (yield Together(gets)), strict=True):
            if isinstance(found, Missing):
                raise ObjectGone(
                    f"{tp}: the object {key} is gone (offsets {row.base} to {row.next})",
                    path_or_key=key,
                    position=start,
                    offset=row.base,
                    hint="if the log moved on meanwhile, restoring again succeeds; else look for another version of it "
                    "in the bucket, or restore newer segments only",
                )
            whole_bytes = min(RANGE_BYTES, last - start)
            if not isinstance(found, Object) or found.size != row.size or len(found.data) != whole_bytes:
                raise CorruptionError(
                    f"{tp}: {key} is not the object of {row.size} bytes that the catalog names",
                    path_or_key=key,
                    position=start,
                    offset=row.base,
                    hint="run check",
                )
            yield Blocking(partial(take, found.data))
            if told:
                yield Emit(Passed(len(found.data), str(tp)))
