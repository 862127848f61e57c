"""One batch of plain records, appended where nothing is out of the ordinary: the pure twin of the compiled classes.

What compiled code does in one call is what ``tiered.local.partition.appender`` does in thirty: it encodes, asks all
that is asked there under the partition's lock, writes, and notes the batch in totals and index. It answers None, with
nothing appended, for whatever is odd: a record, a topic with a codec, a partition that refuses, a segment that is full,
a file that the pool has closed, a write that failed. The appender then does it, or says why not.

The pure twin finds everything odd. Both twins are held together by ``tests/unit/local/test_plain_append.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from tiered.clock import SystemClock
from tiered.format import kernels
from tiered.format.segment_stats import SegmentStats
from tiered.local.disk.handles import Lease, PooledFiles
from tiered.local.disk.space import DiskReserve
from tiered.local.disk.uploads import PartitionUpload
from tiered.local.partition.beginning import Beginning
from tiered.local.partition.condition import Condition
from tiered.local.partition.flusher import Flusher
from tiered.local.partition.leadership import Leadership
from tiered.local.partition.log_segments import LogSegments
from tiered.local.partition.producers import PartitionProducers
from tiered.local.partition.surroundings import Shared
from tiered.local.segment.active import ActiveSegment
from tiered.model import NewRecord, RecordMetadata

if TYPE_CHECKING:
    from tiered.format import _kernels


class PlainAppend:
    """Of one partition. Thread-safe: it takes the partition's lock."""

    def configure(
        self,
        *,
        plain: bool,
        keyed: bool,
        logs_time: bool,
        most_bytes: int,
        before_ms: int,
        after_ms: int,
        flush_messages: int,
    ) -> None:
        """The topic's settings. ``plain``: they ask for no codec. ``keyed``: a record without a key is odd."""

    def append(self, records: Sequence[NewRecord]) -> RecordMetadata | None:
        """As ``Appender.append``; None, and nothing is appended, where anything is odd."""
        del records
        return None


AnyPlainAppend: TypeAlias = "PlainAppend | _kernels.PlainAppend"


class PlainAppends:
    """Of all partitions of a topic: ``logs``, None for one that cannot be appended to."""

    def __init__(self, logs: Sequence[AnyPlainAppend | None]) -> None:
        del logs

    def append(self, value: object, key: object, partition: object) -> RecordMetadata | None:
        """One record without time or headers; ``partition`` None: that of its key. None as of ``PlainAppend``."""
        del value, key, partition
        return None

    def append_many(
        self, records: object, fixed: int | None, keyless: int
    ) -> tuple[list[RecordMetadata], list[tuple[int, list[object], list[int]]]] | None:
        """Records as ``Topic.append_many`` takes them: one batch per partition, in partition order.

        ``fixed`` is the partition of all, None: Kafka's partitioner chooses; ``keyless`` is that of records without a
        key. Returns what was written, and what is left from the first partition on that found something odd: partition,
        records as they were given, their places in the call. None, and nothing is written: one of the records is odd.
        """
        del records, fixed, keyless
        return None


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
) -> AnyPlainAppend:
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
        keeps_reserve=keeps_reserve,
    )
