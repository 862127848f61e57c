"""Comparison of the two objects of a row with the row."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple
from uuid import UUID

from tiered.check.segment_check import bundle_flaws
from tiered.errors import CorruptionError, NewerFormatError
from tiered.format.bundle import MAX_BUNDLE_BYTES, Bundle, decode_bundle
from tiered.format.kernels import crc32c
from tiered.format.keys import FLAG_STAGED, index_key, segment_key
from tiered.format.segment_indexes import OffsetIndex, TimeIndex
from tiered.model import Row, TopicPartition
from tiered.plan.maintenance import READ_BYTES
from tiered.store.base import Blocking, Get, Head, Object, Steps


class ObjectVerdict(NamedTuple):
    """An object of a row. ``problem`` is ``""`` if it is right. ``etag`` and ``size`` are of the stored object."""

    key: str
    problem: str
    etag: str = ""
    size: int = 0
    bundle: Bundle | None = None


def own_row(row: Row) -> Row:
    """Return the row with the offsets that its objects have: those of a sink's segment begin at 0."""
    return row._replace(base=0, next=row.next - row.base) if row.flags & FLAG_STAGED else row


def judge_log(topic_id: UUID, tp: TopicPartition, row: Row, *, read_data: bool) -> Steps[ObjectVerdict]:
    """Compare a ``.log`` with the size and the checksum of its row; with ``read_data`` by its bytes."""
    key = segment_key(topic_id, tp.partition, row)
    head = yield Head(key)
    if not isinstance(head, Object):
        return ObjectVerdict(key, "the .log is missing")
    problem = ""
    if head.size != row.size:
        problem = f"the .log has {head.size} bytes, the catalog says {row.size}"
    elif head.crc32c not in (None, row.crc):
        problem = f"the .log has CRC32C {head.crc32c:#010x}, the catalog says {row.crc:#010x}"
    elif (read_data or head.crc32c is None) and (yield from sum_of(key, row.size)) != row.crc:
        problem = f"the bytes of the .log do not have CRC32C {row.crc:#010x}, which the catalog says"
    return ObjectVerdict(key, problem, head.etag, head.size)


def judge_index(topic_id: UUID, tp: TopicPartition, row: Row) -> Steps[ObjectVerdict]:
    """Compare an index bundle with its row."""
    key = index_key(topic_id, tp.partition, row)
    got = yield Get(key, 0, MAX_BUNDLE_BYTES)
    if not isinstance(got, Object):
        return ObjectVerdict(key, "the .idx is missing")
    bundle, problem = read_index(bytes(got.data), topic_id, tp, row, key)
    return ObjectVerdict(key, problem, got.etag, got.size, bundle)


def read_index(data: bytes, topic_id: UUID, tp: TopicPartition, row: Row, key: str) -> tuple[Bundle | None, str]:
    """Return the bundle in ``data`` if it is that of ``row``; else None and what is wrong with it.

    Raises NewerFormatError for a bundle of a newer release, which may be whole.
    """
    own = own_row(row)
    try:
        bundle = decode_bundle(data, key=key)
        offsets = OffsetIndex.from_bytes(bundle.indexes.offset_index, own.base)
        times = TimeIndex.from_bytes(bundle.indexes.time_index, own.base)
    except NewerFormatError:
        raise
    except CorruptionError as damage:
        return None, f"the .idx cannot be read: {damage.message}"
    if len(data) != row.idx_len or any(bundle_flaws(topic_id, tp.partition, row, bundle)):
        return None, "the .idx describes other bytes than the catalog"
    if not offsets.is_sane(own.size) or not times.is_sane(own.next):
        return None, "the indexes in the .idx do not rise"
    return bundle, ""


def sum_of(key: str, size: int, version: str = "", take: Callable[[bytes], object] | None = None) -> Steps[int]:
    """Return the CRC32C of an object's first ``size`` bytes, each piece handed to ``take``; -1 if it is shorter."""
    crc = at = 0
    while at < size:
        got = yield Get(key, at, min(at + READ_BYTES, size), version=version)
        if not isinstance(got, Object) or not got.data:
            return -1
        if take is not None:
            yield Blocking(partial(take, got.data))
        crc, at = crc32c(got.data, crc), at + len(got.data)
    return crc
