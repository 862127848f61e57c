"""``repair put-back``: what the bucket has lost of its segments, from a log directory that still holds it.

::

    row ── HEAD ── gone, or other bytes ── sealed segments of the disk ── size and CRC32C of the row ── PUT ── read back

The object gets back the bytes that it was uploaded with, under its own name: the catalog, and each snapshot that names
it, are right again, and nothing of them changes. Only bytes whose size and CRC32C are those of the catalog's row are
put there; what lies there damaged is replaced under a condition, and copied below ``aside/`` before. What compaction
or a merge over other bounds has written anew is on no disk: those rows find nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tiered.care.aside import keep_copy
from tiered.care.batch_walk import reads_right
from tiered.care.mend import choose_rows
from tiered.clock import SystemClock
from tiered.errors import ConfigError, CorruptionError, TieredError, UnknownTopicError
from tiered.format.crc import crc32c
from tiered.format.keys import aside_key, segment_key
from tiered.local.directory.view import LogView
from tiered.local.partition.partition import PartitionLog
from tiered.model import ByteSource, Row, TopicPartition
from tiered.plan.maintenance import READ_BYTES
from tiered.remote.settle import deadline_after, settle
from tiered.remote.topics import TopicEntry
from tiered.store.base import Blocking, Head, Match, NewId, Object, Put, PutStatus, Steps
from tiered.store.probe import check_capabilities, probe
from tiered.store.puts import upload_object, verify_stored

PUT_BACK_DEADLINE_MS = 600_000
"""A segment that replaces a damaged one is sent again for so long after an answer that tells nothing."""


@dataclass(frozen=True, slots=True)
class LostLog:
    """A segment whose object is not what its row says. ``etag`` is that of what lies there, ``""`` if nothing does.

    ``held``: the log directory has its bytes.
    """

    row: Row
    key: str
    problem: str
    etag: str
    held: bool


@dataclass(frozen=True, slots=True)
class PutBackPlan:
    """What would be put back from ``directory``: the segments that are ``held``; the others are on no disk of it."""

    tp: TopicPartition
    entry: TopicEntry
    directory: Path
    segments: tuple[LostLog, ...]


def plan_put_back_steps(tp: TopicPartition, directory: Path, offsets: Sequence[int]) -> Steps[PutBackPlan]:
    """Reads only. ``offsets`` name segments, whose bytes are read; without any, all are asked for size and checksum.

    Raises UnknownTopicError, NotFoundError (no catalog, no such directory), ConfigError: an offset is in no segment, or
    nothing is wrong; CorruptionError where the directory holds another topic under that name.
    """
    chosen = yield from choose_rows(tp, offsets)
    found: list[LostLog] = []
    view: LogView = yield Blocking(partial(LogView.open, directory, clock=SystemClock()))
    try:
        for row in chosen.rows:
            lost = yield from _lost(tp, chosen.entry, row, named=bool(offsets))
            if lost is not None:
                source = yield from _held(view, tp, chosen.entry, row)
                if source is not None:
                    source.close()
                found.append(LostLog(row, *lost, held=source is not None))
    finally:
        view.close()
    if not found:
        raise ConfigError(
            f"{tp}: the objects have the size and the checksum that the catalog names: there is nothing to put back",
            hint="`tiered check --read-data` names the offset of what is wrong inside them: name it here, too",
        )
    return PutBackPlan(tp, chosen.entry, directory, tuple(found))


def put_back_steps(plan: PutBackPlan) -> Steps[int]:
    """Carries a plan out, object by object: what was put back stays so if a later one fails. Gives how many.

    Raises ConfigError if the bucket or the disk holds other bytes by now, and as ``verify_stored``.
    """
    capabilities = yield from probe()
    check_capabilities(capabilities, "the store")
    done = 0
    view: LogView = yield Blocking(partial(LogView.open, plan.directory, clock=SystemClock()))
    try:
        for each in plan.segments:
            if not each.held:
                continue
            source = yield from _held(view, plan.tp, plan.entry, each.row)
            if source is None:
                raise _another(plan.tp, f"{plan.directory} does not hold {each.key} any more")
            try:
                yield from _put(plan, each, source)
            finally:
                source.close()
            yield from verify_stored(each.key, each.row.size, each.row.crc, capabilities)
            done += 1
    finally:
        view.close()
    return done


def _lost(tp: TopicPartition, entry: TopicEntry, row: Row, *, named: bool) -> Steps[tuple[str, str, str] | None]:
    """Key, problem and ETag of a segment whose object is not the one of its row; None if it is."""
    key = segment_key(entry.topic_id, tp.partition, row)
    head = yield Head(key)
    if not isinstance(head, Object):
        return key, "the .log is gone", ""
    if head.size != row.size:
        return key, f"the .log has {head.size} bytes, the catalog says {row.size}", head.etag
    if head.crc32c not in (None, row.crc):
        return key, f"the .log has CRC32C {head.crc32c:#010x}, the catalog says {row.crc:#010x}", head.etag
    if named and not (yield from reads_right(tp, key, row)):
        return key, f"the .log does not read as CRC32C {row.crc:#010x}, which the catalog says", head.etag
    return None


def _held(view: LogView, tp: TopicPartition, entry: TopicEntry, row: Row) -> Steps[ByteSource | None]:
    source: ByteSource | None = yield Blocking(partial(find_bytes, view, tp, entry, row))
    return source


def _put(plan: PutBackPlan, each: LostLog, source: ByteSource) -> Steps[None]:
    if not each.etag:
        yield from upload_object(each.key, source, each.row.crc)
        return
    kept = yield from keep_copy(each.key, aside_key(plan.entry.topic_id, plan.tp.partition, (yield NewId())))
    if not kept:  # if it is there all the same, nothing would have what it held
        raise _another(plan.tp, f"{each.key} is gone by now")
    deadline = yield from deadline_after(PUT_BACK_DEADLINE_MS)
    settled = yield from settle(Put(each.key, source, Match(each.etag), each.row.crc), deadline, str(plan.tp))
    if settled.status is not PutStatus.LANDED and (yield from _lost(plan.tp, plan.entry, each.row, named=True)):
        raise _another(plan.tp, f"{each.key} is another object by now")


def _another(tp: TopicPartition, what: str) -> ConfigError:
    return ConfigError(f"{tp}: {what}; nothing of it was replaced", hint="plan again")


def find_bytes(view: LogView, tp: TopicPartition, entry: TopicEntry, row: Row) -> ByteSource | None:
    """The bytes that a row was uploaded with: sealed segments of a log directory, one behind the other.

    None if the directory has no such segments, or other bytes in their offsets. Raises CorruptionError where it holds
    another topic under that name.
    """
    info = view.topics().get(tp.topic)
    if info is not None and info.topic_id != entry.topic_id:
        raise CorruptionError(
            f"{view.directory} holds topic {tp.topic} under the topic id {info.topic_id}, the bucket under "
            f"{entry.topic_id}",
            path_or_key=str(view.directory),
            hint="name the directory that wrote this topic",
        )
    try:
        partition = view.partition(tp)
    except UnknownTopicError:
        return None
    opened = _opened(partition, row)
    source = JoinedSource(opened) if opened else None
    if source is not None and source.size == row.size and _sum(source) == row.crc:
        return source
    for each in opened:
        each.close()
    return None


def _opened(partition: PartitionLog, row: Row) -> list[ByteSource]:
    """The segments from the row's first offset on whose bytes fit into it."""
    found: list[ByteSource] = []
    expected, left = row.base, row.size
    for segment in partition.sealed_segments(row.base):
        if segment.base_offset != expected or segment.size_bytes > left:
            break
        found.append(segment.open_log())
        expected, left = segment.end_offset, left - segment.size_bytes
    return found


def _sum(source: ByteSource) -> int:
    crc = 0
    try:
        for at in range(0, source.size, READ_BYTES):
            crc = crc32c(source.read_at(at, min(READ_BYTES, source.size - at)), crc)
    except TieredError:  # it is damaged on the disk, too
        return -1
    return crc


class JoinedSource:
    """Byte sources one behind the other, as one. Thread-safe as they are."""

    def __init__(self, sources: Sequence[ByteSource]) -> None:
        self._sources = tuple(sources)
        self.size = sum(source.size for source in sources)

    def read_at(self, position: int, length: int) -> bytes:
        """Exactly ``length`` bytes; raises CorruptionError if there are fewer."""
        pieces: list[bytes] = []
        start, end = position, position + length
        for source in self._sources:
            if start < min(source.size, end):
                stop = min(source.size, end)
                pieces.append(source.read_at(start, stop - start))
                start = stop
            start, end = max(0, start - source.size), end - source.size
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        if len(data) != length:
            raise CorruptionError(
                f"{length} bytes at byte {position} are not there: {self.size} are", position=position
            )
        return data

    def close(self) -> None:
        """All of them."""
        for source in self._sources:
            source.close()
