"""One sealed segment -> two verified objects -> the row that a commit puts into the catalog.

::

    plan_upload -> (caller journals keys) -> put .log -> put .idx -> verify -> Row
                                             |
                                             > 64 MiB: multipart, parts of 16 MiB, 4 together

The sizes and the checksum are those that were read at the seal: bytes sent, bytes hashed and the size in the
catalog are the same number. An object counts only when the store has acknowledged that checksum; a store that does
not return checksums, or was seen to accept wrong ones, is read back. Whatever fails leaves an orphan whose key
carries the claim epoch; nothing here deletes an object.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from uuid import UUID

from tiered.errors import CorruptionError, RemoteUnavailableError, TieredError
from tiered.format.bundle import encode_bundle
from tiered.format.crc import crc32c
from tiered.format.keys import (
    FLAG_ABORTED_TXNS,
    FLAG_MAINTAINER,
    Role,
    SegmentName,
    index_key,
    segment_key,
    split_uid,
)
from tiered.model import ByteSource, Row, SealedIndexes, SealedSegment, SegmentDescriptor
from tiered.remote.unique import put_unique
from tiered.store.base import (
    AbortUpload,
    Backoff,
    Capabilities,
    CompleteUpload,
    Get,
    Head,
    Missing,
    NewId,
    Object,
    PartStored,
    PutResult,
    PutStatus,
    StartUpload,
    Steps,
    Together,
    UploadPart,
    UploadStarted,
)

MULTIPART_ABOVE_BYTES = 64 * 1024 * 1024
"""Segments up to this size are one PUT."""

PART_BYTES = 16 * 1024 * 1024
"""Size of the parts of larger segments."""

PARTS_TOGETHER = 4
"""Parts of one segment under way at once."""

COMPLETE_ATTEMPTS = 8
"""Attempts to complete a multipart upload whose answers do not come."""

HASH_PIECE_BYTES = 1024 * 1024
"""Piece in which a part is read to be hashed."""

READ_BACK_BYTES = 4 * 1024 * 1024
"""Range of one GET when an object is verified by reading it back."""

SEGMENT_TAGS = (("kind", "segment"),)
INDEX_TAGS = (("kind", "index"),)


@dataclass(frozen=True, slots=True)
class UploadPlan:
    """The names of one upload, known before the first byte is sent, so that they can be journalled first."""

    log_key: str
    idx_key: str
    uid: str


@dataclass(frozen=True, slots=True)
class _Sent:
    """What a store said about an object: ``crc32c`` None if it said nothing, ``parts_checked`` if each part was."""

    crc32c: int | None
    parts_checked: bool = False


def plan_upload(
    descriptor: SegmentDescriptor, *, uid: str, claim_epoch: int, role: Role | str = Role.WRITER
) -> UploadPlan:
    """Keys of the ``.log`` and the ``.idx`` of one upload of a segment; ``uid`` is 32 fresh hex digits."""
    name = SegmentName(Role(role), claim_epoch, descriptor.base_offset, uid)
    return UploadPlan(
        segment_key(descriptor.topic_id, descriptor.partition, name),
        index_key(descriptor.topic_id, descriptor.partition, name),
        uid,
    )


def upload_segment(
    segment: SealedSegment,
    *,
    topic_id: UUID,
    partition: int,
    claim_epoch: int,
    capabilities: Capabilities,
    role: Role | str = Role.WRITER,
    plan: UploadPlan | None = None,
    on_multipart: Callable[[str], None] | None = None,
) -> Steps[Row]:
    """Stores and verifies both objects of ``segment``; returns its row. Nothing is committed.

    ``plan`` is what the caller journalled; without one a fresh name is taken. ``on_multipart`` is called with the
    id of a multipart upload before its first part is sent, to be journalled too.

    Raises CorruptionError if the file is not what was sealed or the store holds other bytes than were sent,
    RemoteUnavailableError if the store does not answer. A multipart upload that failed is aborted first.
    """
    descriptor = segment.descriptor
    if (descriptor.topic_id, descriptor.partition) != (topic_id, partition):
        raise CorruptionError(
            f"segment {descriptor.base_offset} belongs to {descriptor.topic_id}-{descriptor.partition}, "
            f"not to {topic_id}-{partition}",
            offset=descriptor.base_offset,
            hint="the directory was mixed up with another: compare its partition.metadata with the catalog",
        )
    if plan is None:
        uid: str = yield NewId()
        plan = plan_upload(descriptor, uid=uid, claim_epoch=claim_epoch, role=role)
    source = segment.open_log()
    try:
        yield from _put_log(source, descriptor, plan.log_key, capabilities, on_multipart)
    finally:
        source.close()
    indexes = segment.indexes()
    idx_len = yield from _put_index(descriptor, indexes, plan.idx_key, claim_epoch, capabilities)
    return _row(descriptor, indexes, uid=plan.uid, role=Role(role), claim_epoch=claim_epoch, idx_len=idx_len)


def _row(
    descriptor: SegmentDescriptor, indexes: SealedIndexes, *, uid: str, role: Role, claim_epoch: int, idx_len: int
) -> Row:
    id_hi, id_lo = split_uid(uid)
    flags = (FLAG_MAINTAINER if role is Role.MAINTAINER else 0) | (FLAG_ABORTED_TXNS if indexes.txn_index else 0)
    return Row(
        base=descriptor.base_offset,
        next=descriptor.end_offset,
        min_ts=descriptor.min_timestamp,
        max_ts=descriptor.max_timestamp,
        size=descriptor.size_bytes,
        crc=descriptor.crc32c,
        id_hi=id_hi,
        id_lo=id_lo,
        idx_len=idx_len,
        claim_epoch=claim_epoch,
        records=descriptor.records,
        flags=flags,
        leader_epoch=descriptor.leader_epoch,
    )


def _put_log(
    source: ByteSource,
    descriptor: SegmentDescriptor,
    key: str,
    capabilities: Capabilities,
    on_multipart: Callable[[str], None] | None,
) -> Steps[None]:
    if source.size != descriptor.size_bytes:
        raise CorruptionError(
            f"segment {descriptor.base_offset} has {source.size} bytes, {descriptor.size_bytes} were sealed",
            offset=descriptor.base_offset,
            hint="something changed the file after the seal; nothing was uploaded; run check on the log directory",
        )
    if descriptor.size_bytes > MULTIPART_ABOVE_BYTES:
        sent = yield from _put_multipart(source, descriptor, key, on_multipart)
    else:
        result = yield from put_unique(key, source, crc32c=descriptor.crc32c, tags=SEGMENT_TAGS)
        sent = _Sent(result.crc32c if result.status is PutStatus.LANDED else None)
    try:
        yield from _verify(key, descriptor.size_bytes, descriptor.crc32c, sent, capabilities)
    except CorruptionError:
        _check_source(source, descriptor)  # says so if it is the file that differs, not the object
        raise


def _put_index(
    descriptor: SegmentDescriptor, indexes: SealedIndexes, key: str, claim_epoch: int, capabilities: Capabilities
) -> Steps[int]:
    bundle = encode_bundle(descriptor, indexes, claim_epoch)
    crc = crc32c(bundle)
    result = yield from put_unique(key, bundle, crc32c=crc, tags=INDEX_TAGS)
    sent = _Sent(result.crc32c if result.status is PutStatus.LANDED else None)
    yield from _verify(key, len(bundle), crc, sent, capabilities)
    return len(bundle)


def _put_multipart(
    source: ByteSource, descriptor: SegmentDescriptor, key: str, on_multipart: Callable[[str], None] | None
) -> Steps[_Sent]:
    started: UploadStarted = yield StartUpload(key, SEGMENT_TAGS)
    if on_multipart is not None:
        on_multipart(started.upload_id)
    try:
        parts, all_checked = yield from _put_parts(source, descriptor, key, started.upload_id)
        result = yield from _complete(key, started.upload_id, parts)
    except TieredError:
        yield from _abort(key, started.upload_id)
        raise
    return _Sent(result.crc32c, parts_checked=all_checked)


def _put_parts(
    source: ByteSource, descriptor: SegmentDescriptor, key: str, upload_id: str
) -> Steps[tuple[tuple[PartStored, ...], bool]]:
    stored: list[PartStored] = []
    whole_crc, all_checked = 0, True
    requests: list[UploadPart] = []
    for number, start in enumerate(range(0, source.size, PART_BYTES), start=1):
        end = min(start + PART_BYTES, source.size)
        part_crc = 0
        for piece in _pieces(source, start, end):
            part_crc, whole_crc = crc32c(piece, part_crc), crc32c(piece, whole_crc)
        requests.append(UploadPart(key, upload_id, number, source, start, end, part_crc))
        if len(requests) == PARTS_TOGETHER or end == source.size:
            answers: tuple[PartStored, ...] = yield Together(tuple(requests))
            for request, answer in zip(requests, answers, strict=True):
                _check_part(request, answer)
                all_checked = all_checked and answer.crc32c is not None
            stored += answers
            requests = []
    if whole_crc != descriptor.crc32c:
        raise _changed(descriptor, whole_crc)
    return tuple(stored), all_checked


def _check_part(request: UploadPart, answer: PartStored) -> None:
    if answer.crc32c is not None and answer.crc32c != request.crc32c:
        raise CorruptionError(
            f"part {request.number} of {request.key} was stored with CRC32C {answer.crc32c:08x}, "
            f"{request.crc32c or 0:08x} was sent",
            path_or_key=request.key,
            position=request.start,
            hint="nothing was committed; the upload is repeated under a new name",
        )


def _complete(key: str, upload_id: str, parts: tuple[PartStored, ...]) -> Steps[PutResult]:
    cause = ""
    for attempt in range(1, COMPLETE_ATTEMPTS + 1):
        result: PutResult = yield CompleteUpload(key, upload_id, parts)
        if result.status in (PutStatus.LANDED, PutStatus.LOST):
            return result
        cause = result.cause or result.status.value
        found: Object | Missing = yield Head(key)
        if isinstance(found, Object):  # the name is ours alone: an attempt whose answer was lost has landed
            return PutResult(PutStatus.LOST)
        if attempt < COMPLETE_ATTEMPTS:
            yield Backoff(attempt)
    raise RemoteUnavailableError(
        f"{COMPLETE_ATTEMPTS} attempts to complete the upload of {key} were not answered ({cause})",
        hint="nothing was committed; the segment is still on this disk and is uploaded again",
    )


def _abort(key: str, upload_id: str) -> Steps[None]:
    try:
        yield AbortUpload(key, upload_id)
    except TieredError:
        return  # the journal names the upload: the next start aborts it, and so does the bucket's lifecycle rule


def _verify(key: str, size_bytes: int, crc: int, sent: _Sent, capabilities: Capabilities) -> Steps[None]:
    """Raises CorruptionError unless the store holds exactly these bytes under ``key``."""
    trusted = capabilities.returns_crc32c and capabilities.verifies_crc32c
    if trusted and sent.crc32c is not None:
        _check_stored(key, size_bytes, crc, size_bytes, sent.crc32c)
        return
    if trusted:
        found: Object | Missing = yield Head(key)
        if isinstance(found, Missing):
            raise _vanished(key)
        if found.crc32c is not None or sent.parts_checked:
            _check_stored(key, size_bytes, crc, found.size, found.crc32c if found.crc32c is not None else crc)
            return
    found_bytes, found_crc = yield from _read_back(key, size_bytes)
    _check_stored(key, size_bytes, crc, found_bytes, found_crc)


def _read_back(key: str, size_bytes: int) -> Steps[tuple[int, int]]:
    """(size, CRC32C) of what the store gives back."""
    crc, at, size = 0, 0, 0
    while at < max(size_bytes, 1):
        found: Object | Missing = yield Get(key, at, at + READ_BACK_BYTES)
        if isinstance(found, Missing):
            raise _vanished(key)
        size = found.size
        if not found.data:
            break
        crc = crc32c(found.data, crc)
        at += len(found.data)
    return size, crc


def _check_stored(key: str, size_bytes: int, crc: int, found_bytes: int, found_crc: int) -> None:
    if (found_bytes, found_crc) != (size_bytes, crc):
        raise CorruptionError(
            f"{key} holds {found_bytes} bytes with CRC32C {found_crc:08x}; "
            f"{size_bytes} bytes with CRC32C {crc:08x} were sent",
            path_or_key=key,
            hint="nothing was committed; the upload is repeated under a new name; if it happens again, distrust "
            "the network or the store",
        )


def _check_source(source: ByteSource, descriptor: SegmentDescriptor) -> None:
    crc = 0
    for piece in _pieces(source, 0, source.size):
        crc = crc32c(piece, crc)
    if crc != descriptor.crc32c:
        raise _changed(descriptor, crc)


def _pieces(source: ByteSource, start: int, end: int) -> Iterator[bytes]:
    for at in range(start, end, HASH_PIECE_BYTES):
        yield source.read_at(at, min(HASH_PIECE_BYTES, end - at))


def _changed(descriptor: SegmentDescriptor, crc: int) -> CorruptionError:
    return CorruptionError(
        f"segment {descriptor.base_offset} of {descriptor.topic_id}-{descriptor.partition} has CRC32C {crc:08x}, "
        f"{descriptor.crc32c:08x} was sealed",
        offset=descriptor.base_offset,
        hint="the file on disk changed after the seal; nothing was committed; run check on the log directory",
    )


def _vanished(key: str) -> CorruptionError:
    return CorruptionError(
        f"{key} was acknowledged and is not there",
        path_or_key=key,
        hint="look for a lifecycle rule or a person that deletes objects of this prefix",
    )
