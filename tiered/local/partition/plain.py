"""One batch of plain records, appended where nothing is out of the ordinary: the door to the compiled classes.

What compiled code does in one call is what ``tiered.local.partition.appender`` does in thirty: it encodes, asks all
that is asked there under the partition's lock, writes, and notes the batch in totals and index. It answers None, with
nothing appended, for whatever is odd: a record, a topic with a codec, a partition that refuses, a segment that is full,
a file that the pool has closed, a write that failed. The appender then does it, or says why not.

The pure twin (``format.pure_kernels``) finds everything odd. Both are held together by
``tests/unit/local/partition/test_plain_append.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tiered.clock import SystemClock
from tiered.format import kernels
from tiered.format.pure_kernels import PlainAppend, PlainAppends
from tiered.format.segment_stats import SegmentStats
from tiered.local.disk.handles import Lease, PooledFiles
from tiered.local.disk.space import DiskReserve
from tiered.local.disk.uploads import PartitionUpload
from tiered.local.partition.beginning import Beginning
from tiered.local.partition.condition import APPEND, Condition
from tiered.local.partition.flusher import Flusher
from tiered.local.partition.leadership import Leadership
from tiered.local.partition.log_segments import LogSegments
from tiered.local.partition.producers import PartitionProducers
from tiered.local.partition.surroundings import Shared
from tiered.local.segment.active import ActiveSegment

__all__ = ["PlainAppend", "PlainAppends", "plain_append"]

if TYPE_CHECKING:
    from tiered.format import _kernels


_places: _kernels.PlainPlaces | None = None

if kernels.AT_WORK != kernels.PURE:
    from tiered.format import _kernels

    PlainAppends = _kernels.PlainAppends  # type: ignore[misc]
    _places = _kernels.PlainPlaces(
        Condition,
        PartitionUpload,
        LogSegments,
        Leadership,
        Beginning,
        DiskReserve,
        PartitionProducers,
        Flusher,
        ActiveSegment,
        SegmentStats,
        Lease,
    )


def plain_append(
    shared: Shared,
    *,
    flusher: Flusher,
    producers: PartitionProducers,
    beginning: Beginning,
    keeps_reserve: bool,
    break_off: Callable[[BaseException], None],
) -> PlainAppend:
    """The compiled one where it is at work. ``break_off`` is told what a write ended with."""
    if _places is None:
        return PlainAppend()
    around = shared.around
    leases, uses = around.files.own if isinstance(around.files, PooledFiles) else (None, None)
    return _kernels.PlainAppend(
        _places,
        shared,
        flusher=flusher,
        producers=producers,
        beginning=beginning,
        tp=shared.segments.tp,
        now_ms=None if type(around.clock) is SystemClock else around.clock.now_ms,
        leases=leases,
        uses=uses,
        write=ActiveSegment.write,
        add_entries=ActiveSegment.add_entries,
        write_entries=ActiveSegment.write_entries,
        break_off=break_off,
        append_words=APPEND,
        keeps_reserve=keeps_reserve,
    )
