"""Upload of one sealed segment as two verified objects, and the row that a commit puts into the catalog.

::

    plan_upload -> (caller journals keys) -> put .log -> put .idx -> verify -> Row
                                             |
                                             > 64 MiB: multipart, parts of 16 MiB, 4 together

Size and checksum are read once, at the seal. An object counts only when the store has acknowledged that checksum. A
store that returns no checksums, or accepted wrong ones in the probe, is read back. Failures leave orphans whose keys
carry the claim epoch. Nothing here deletes an object.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tiered.errors import CorruptionError
from tiered.format.bundle import encode_bundle
from tiered.format.kernels import crc32c
from tiered.format.keys import (
    FLAG_ABORTED_TXNS,
    FLAG_MAINTAINER,
    Role,
    SegmentName,
    index_key_of,
    segment_key,
    split_uid,
)
from tiered.model import ByteSource, Row, SealedSegment, SegmentDescriptor
from tiered.store.base import Capabilities, NewId, PutResult, Steps
from tiered.store.unique_upload import (
    PUT_DEADLINE_SECONDS,
    PartSizes,
    put_unique,
    upload_object,
    verify_stored,
)

HASH_PIECE_BYTES = 1024 * 1024
"""Piece size of the second read of a file, which shows whether the file or the object is damaged."""

SEGMENT_TAGS = (("kind", "segment"),)
INDEX_TAGS = (("kind", "index"),)


@dataclass(frozen=True, slots=True)
class UploadPlan:
    """Object keys and uid of one upload. The caller journals them before the first byte is sent."""

    log_key: str
    idx_key: str
    uid: str


def plan_upload(descriptor: SegmentDescriptor, *, uid: str, claim_epoch: int) -> UploadPlan:
    """Return the object keys for a writer's upload of a segment. ``uid``: 32 hex digits, new for each upload."""
    name = SegmentName(Role.WRITER, claim_epoch, descriptor.base_offset, uid)
    log_key = segment_key(descriptor.topic_id, descriptor.partition, name)
    return UploadPlan(log_key, index_key_of(log_key), uid)


def upload_segment(
    segment: SealedSegment,
    *,
    claim_epoch: int,
    capabilities: Capabilities,
    plan: UploadPlan | None = None,
    on_multipart: Callable[[str], None] | None = None,
    sizes: PartSizes = PartSizes(),  # noqa: B008 - it never changes
    deadline_seconds: float = PUT_DEADLINE_SECONDS,
) -> Steps[Row]:
    """Store and verify both objects of a writer's ``segment`` and return its row. Commits nothing.

    ``capabilities``: result of the store's probe. ``plan``: the journalled names; None takes fresh ones.
    ``on_multipart`` gets the id of each multipart upload before its first part is sent, for the journal.
    ``deadline_seconds`` bounds the retries of each object; one attempt is always made, and never cut short.

    Raises CorruptionError if the file differs from the seal or the object from what was sent, RemoteUnavailableError if
    the store does not answer. A failed multipart upload is aborted first.
    """
    descriptor = segment.descriptor
    if plan is None:
        # mutant object-names-are-unique
        uid: str = yield NewId()
        plan = plan_upload(descriptor, uid=uid, claim_epoch=claim_epoch)
    indexes = segment.indexes()  # first, so that a segment without usable indexes leaves no orphan
    source = segment.open_log()
    try:
        if source.size != descriptor.size_bytes:
            raise _changed(descriptor, f"{source.size} bytes", str(descriptor.size_bytes))
        try:
            sent = yield from upload_object(
                plan.log_key,
                source,
                descriptor.crc32c,
                SEGMENT_TAGS,
                sizes=sizes,
                deadline_seconds=deadline_seconds,
                on_started=on_multipart,
            )
            yield from verify_sent(plan.log_key, descriptor.size_bytes, descriptor.crc32c, sent, capabilities)
        except CorruptionError:
            check_source(source, descriptor)  # raises if the file is damaged, not the object
            raise
    finally:
        source.close()
    bundle = encode_bundle(descriptor, indexes, claim_epoch)
    crc = crc32c(bundle)
    # mutant index-before-commit
    sent = yield from put_unique(plan.idx_key, bundle, crc, INDEX_TAGS, deadline_seconds=deadline_seconds)
    yield from verify_sent(plan.idx_key, len(bundle), crc, sent, capabilities)
    aborts, idx_len = bool(indexes.txn_index), len(bundle)
    return row_of(descriptor, uid=plan.uid, role=Role.WRITER, claim_epoch=claim_epoch, idx_len=idx_len, aborts=aborts)


def row_of(descriptor: SegmentDescriptor, *, uid: str, role: Role, claim_epoch: int, idx_len: int, aborts: bool) -> Row:
    """Return the catalog row of an uploaded segment.

    ``idx_len``: size of its bundle. ``aborts``: the bundle has a transaction index.
    """
    id_hi, id_lo = split_uid(uid)
    flags = (FLAG_MAINTAINER if role is Role.MAINTAINER else 0) | (FLAG_ABORTED_TXNS if aborts else 0)
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
        appended_ms=descriptor.appended_ms,
    )


def verify_sent(key: str, size_bytes: int, crc: int, sent: PutResult, capabilities: Capabilities) -> Steps[None]:
    """Raise CorruptionError unless the store has the object as it was sent. ``sent``: the store's answer to the PUT.

    Sends no request if the store acknowledged this checksum and is known to check it. Otherwise sends a HEAD. Reads
    the object if the HEAD gives no trusted checksum. ``capabilities``: result of the store's probe.
    """
    trusted = capabilities.returns_crc32c and capabilities.verifies_crc32c
    if not (trusted and sent.etag and sent.crc32c == crc):
        yield from verify_stored(key, size_bytes, crc, capabilities)


def check_source(source: ByteSource, descriptor: SegmentDescriptor) -> None:
    """Read a segment's file. Raise CorruptionError if its checksum is not that of the sealed bytes."""
    crc = 0
    for at in range(0, source.size, HASH_PIECE_BYTES):
        crc = crc32c(source.read_at(at, min(HASH_PIECE_BYTES, source.size - at)), crc)
    if crc != descriptor.crc32c:
        raise _changed(descriptor, f"CRC32C {crc:08x}", f"{descriptor.crc32c:08x}")


def _changed(descriptor: SegmentDescriptor, found: str, sealed: str) -> CorruptionError:
    return CorruptionError(
        f"segment {descriptor.base_offset} of {descriptor.topic_id}-{descriptor.partition} has {found}, but had "
        f"{sealed} when it was sealed",
        offset=descriptor.base_offset,
        hint="`tiered check --log-dir DIR` names the damage, and the `tiered repair` for it; or put the file back from "
        "a copy of this disk",
    )
