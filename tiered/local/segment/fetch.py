"""One read as a Kafka broker answers a fetch: raw bytes from a batch's start, up to a number.

Unlike :mod:`tiered.local.segment.reading`, which gives whole verified batches, this tells where in which file the bytes
lie (for ``sendfile``) and may cut the last batch: whoever asked drops what is cut.

Kafka's rule: docs/kafka-semantics.md#fetch.
"""

from __future__ import annotations

import enum
from bisect import bisect_right
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from tiered.errors import ConfigError
from tiered.local.disk.files import Files
from tiered.local.segment.isolation import aborted_txns
from tiered.local.segment.reading import Extent, View, open_extent, out_of_range
from tiered.model import AbortedTxn

_BASE = attrgetter("base_offset")


class Isolation(enum.Enum):
    """How far a fetch reads: a follower to the end, ``read_uncommitted``, ``read_committed``."""

    LOG_END = "log_end"
    HIGH_WATERMARK = "read_uncommitted"
    COMMITTED = "read_committed"


class FetchPlace(NamedTuple):
    """Where a fetch begins: the offset, its segment's base and the byte in that segment's ``.log``."""

    offset: int
    segment_base: int
    position: int


class Fetched(NamedTuple):
    """``data`` begins with the batch that holds ``place.offset``, or the first one after a gap.

    ``first_entry_incomplete``: fewer bytes were asked for than the first batch has. ``aborted`` None unless
    ``read_committed`` was asked for.
    """

    place: FetchPlace
    data: bytes = b""
    first_entry_incomplete: bool = False
    aborted: tuple[AbortedTxn, ...] | None = None


def fetch(
    files: Files,
    directory: Path,
    view: View,
    start_offset: int,
    *,
    bound: int,
    max_bytes: int,
    isolation: Isolation,
    min_one_message: bool,
) -> Fetched:
    """Bytes from ``start_offset`` to below ``bound`` (the end, the high watermark or the stable offset).

    Raises OffsetOutOfRangeError below the view's start and above its end; ConfigError for negative ``max_bytes``.
    """
    if max_bytes < 0:
        raise ConfigError(f"a fetch of {max_bytes} bytes cannot be")
    if not view.start_offset <= start_offset <= view.end_offset:
        raise out_of_range(view, start_offset)
    none: tuple[AbortedTxn, ...] | None = () if isolation is Isolation.COMMITTED else None
    limit = locate(files, view, bound)
    if start_offset >= bound:
        return Fetched(limit if start_offset == bound else locate(files, view, start_offset), aborted=none)
    for extent in view.extents[_first(view, start_offset) :]:
        found = fetch_segment(
            files,
            view,
            extent,
            start_offset,
            max_bytes=max_bytes,
            max_position=max_position(extent, limit),
            min_one_message=min_one_message,
        )
        if found is None:
            continue
        if none is not None:
            upper = _upper_offset(files, view, extent, found.place.position, len(found.data))
            found = found._replace(aborted=tuple(aborted_txns(files, directory, view, start_offset, upper)))
        return found
    return Fetched(_end_of(view), aborted=none)


def fetch_segment(
    files: Files,
    view: View,
    extent: Extent,
    start_offset: int,
    *,
    max_bytes: int,
    max_position: int | None,
    min_one_message: bool,
) -> Fetched | None:
    """From one segment; None if it holds nothing at or above ``start_offset``.

    ``max_position`` None: nothing of this segment may be read yet; the answer then has its place and no bytes.
    """
    with open_extent(files, view, extent, start_offset) as log:
        walk = extent.walk(log, extent.seek(log, start_offset), dense=view.dense)
        span = next((s for s, _ in walk if s.last_offset >= start_offset), None)
        wanted_offset = max(start_offset, extent.base_offset)
        if view.dense and wanted_offset < (extent.end_offset if span is None else span.base_offset):
            position = extent.size_bytes if span is None else span.position
            raise log.damage(position, f"offset {wanted_offset} is missing", wanted_offset)
        if span is None:
            return None
        place = FetchPlace(start_offset, extent.base_offset, span.position)
        wanted = max(max_bytes, span.size) if min_one_message else max_bytes
        if wanted == 0 or max_position is None:
            return Fetched(place)
        length = max(min(max_position - span.position, wanted), 0)
        end = span.position + span.size
        while end < span.position + length:  # what is given stands in order: CRCs are for whoever asked
            after, _ = next(walk)
            end = after.position + after.size
        return Fetched(place, log.read_at(span.position, length), wanted < span.size)


def max_position(extent: Extent, limit: FetchPlace) -> int | None:
    """Up to which byte of a segment a fetch may read that ends at ``limit``; None: none of it."""
    if extent.base_offset < limit.segment_base:
        return extent.size_bytes
    return limit.position if extent.base_offset == limit.segment_base else None


def locate(files: Files, view: View, offset: int) -> FetchPlace:
    """Where ``offset`` lies, or the next one that there is; the end of the log above all of them."""
    if offset < view.end_offset:
        for extent in view.extents[_first(view, offset) :]:
            found = fetch_segment(files, view, extent, offset, max_bytes=0, max_position=None, min_one_message=False)
            if found is not None:
                return found.place
    return _end_of(view)


def _end_of(view: View) -> FetchPlace:
    if not view.extents:
        return FetchPlace(view.end_offset, view.start_offset, 0)
    last = view.extents[-1]
    return FetchPlace(view.end_offset, last.base_offset, last.size_bytes)


def _first(view: View, offset: int) -> int:
    return max(bisect_right(view.extents, offset, key=_BASE) - 1, 0)


def _upper_offset(files: Files, view: View, extent: Extent, position: int, size: int) -> int:
    """Above every offset in the bytes that were read, as far as the index tells."""
    with open_extent(files, view, extent, extent.base_offset) as log:
        bound = extent.segment.lookup.seek_upper(log, position, size, extent.size_bytes, extent.offsets)
    if bound is not None:
        return bound
    at = view.extents.index(extent) + 1
    return view.extents[at].base_offset if at < len(view.extents) else view.end_offset
