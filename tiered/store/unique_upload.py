"""Steps that store one object under a unique key, although responses of the store may be lost.

Because the key is unique and created only once, "it exists already" can only mean that an earlier attempt of ours
landed. So LOST counts as landed, and an unknown outcome is decided by sending the same request again. (That is wrong
for ``root`` and ``topics/``, which other processes write, too: see ``remote.conditional_put.update``.)
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from tiered.errors import ConfigError, CorruptionError, RemoteUnavailableError, TieredError
from tiered.format.header import Buffer
from tiered.format.kernels import crc32c as crc32c_of
from tiered.model import ByteSource, BytesSource
from tiered.store.base import (
    ABSENT,
    AbortUpload,
    Backoff,
    Blocking,
    Body,
    Capabilities,
    CompleteUpload,
    Get,
    Head,
    Now,
    Object,
    PartStored,
    Put,
    PutResult,
    PutStatus,
    StartUpload,
    Steps,
    Together,
    UploadPart,
)
from tiered.store.key_rules import MAX_PART_NUMBER

PUT_DEADLINE_SECONDS = 120.0
"""Time after the first attempt up to which another may begin. Then an error is raised, and the caller starts over."""

MULTIPART_FROM_BYTES = 64 * 1024 * 1024
"""Size above which objects are uploaded in parts: below, one PUT is simpler and has a checksum of the whole."""

PART_BYTES = 16 * 1024 * 1024
PARALLEL_PARTS = 4

READ_BACK_BYTES = 8 * 1024 * 1024
"""Size of the ranges in which an object is read back for verification."""

Tags = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class PartSizes:
    """Sizes of multipart uploads. Objects above ``multipart_above_bytes`` are sent in parts of ``part_bytes``."""

    multipart_above_bytes: int = MULTIPART_FROM_BYTES
    part_bytes: int = PART_BYTES


def put_unique(
    key: str,
    body: Body,
    crc32c: int | None = None,
    tags: Tags = (),
    *,
    deadline_seconds: float = PUT_DEADLINE_SECONDS,
) -> Steps[PutResult]:
    """Create the object ``key``, which must be a unique key. Return a result with the status ``LANDED``.

    Its ETag and checksum are missing if an earlier attempt had landed. Raises ``RemoteUnavailableError`` if the outcome
    is still unknown at the deadline: the object may exist, so the key must not be used for other bytes. Raises
    ``CorruptionError`` if the body does not have ``crc32c``.
    """
    deadline = (yield Now()).monotonic + deadline_seconds
    attempt = 0
    while True:
        try:
            result: PutResult = yield Put(key, body, ABSENT, crc32c, tags)
        except RemoteUnavailableError as error:  # a store that raises instead of returning ``UNKNOWN``: the same
            result = PutResult(PutStatus.UNKNOWN, cause=str(error))
        settled = _settled(result)
        if settled is not None:
            return settled
        attempt += 1
        # mutant unanswered-upload-is-repeated
        yield from _wait(attempt, deadline, f"Put {key}", result)


def upload_object(
    key: str,
    body: ByteSource,
    crc32c: int | None = None,
    tags: Tags = (),
    *,
    sizes: PartSizes = PartSizes(),
    deadline_seconds: float = PUT_DEADLINE_SECONDS,
    on_started: Callable[[str], None] | None = None,
) -> Steps[PutResult]:
    """Create the object ``key``, which must be a unique key. ``sizes`` decides if it is a multipart upload.

    ``crc32c``: checksum of the body; a multipart upload does not check it. ``on_started``: called with the id of a
    multipart upload before its first part.

    Return a result with the status ``LANDED``. Raises ``RemoteUnavailableError`` if the store has not confirmed it
    ``deadline_seconds`` after the start, or after the last part: the object may exist then. Raises ``CorruptionError``
    if the body does not have ``crc32c``.
    """
    if body.size <= sizes.multipart_above_bytes:
        return put_unique(key, body, crc32c, tags, deadline_seconds=deadline_seconds)
    return upload_multipart(
        key, body, part_bytes=sizes.part_bytes, tags=tags, deadline_seconds=deadline_seconds, on_started=on_started
    )


def upload_multipart(
    key: str,
    body: ByteSource,
    *,
    part_bytes: int = PART_BYTES,
    tags: Tags = (),
    deadline_seconds: float = PUT_DEADLINE_SECONDS,
    on_started: Callable[[str], None] | None = None,
) -> Steps[PutResult]:
    """Create the object in parts, ``PARALLEL_PARTS`` at once. Return a result with the status ``LANDED``.

    ``on_started(upload_id)`` runs before the first part. A failed part is sent again until ``deadline_seconds`` after
    the last stored part. The same time bounds the completion, and the attempts with a new upload. Raises
    ``RemoteUnavailableError`` at the deadline: the object may exist then. After an error the upload is aborted if
    possible.
    """
    deadline = (yield Now()).monotonic + deadline_seconds
    attempt = 0
    while True:
        upload_id = (yield StartUpload(key, tags)).upload_id
        try:
            if on_started is not None:
                yield Blocking(partial(on_started, upload_id))
            parts = yield from _upload_parts(key, upload_id, body, part_bytes, deadline_seconds)
            until = (yield Now()).monotonic + deadline_seconds
            result = yield from _complete(CompleteUpload(key, upload_id, parts), until)
        except TieredError:
            yield from _abort(key, upload_id)
            raise
        if result.status is PutStatus.LANDED:
            if not result.etag:
                yield from _abort(key, upload_id)  # an earlier attempt of ours made the object: this upload is garbage
            return result
        # A conflict, or an upload that the store no longer knows while the key is absent: only a new upload helps.
        yield from _abort(key, upload_id)
        attempt += 1
        yield from _wait(attempt, deadline, f"CompleteUpload {key}", result)


class ObjectWriter:
    """Writer of an object whose bytes arrive bit by bit, and are sent as they arrive: one part of it is in memory.

    An object that fits into one part is one PUT at the end. It exists only after :meth:`finish`; a caller that stops
    earlier calls :meth:`abort`. ``size`` and ``crc32c`` are those of the bytes so far.
    """

    def __init__(self, key: str, tags: Tags = (), *, part_bytes: int = PART_BYTES) -> None:
        self.key = key
        self.size = 0
        self.crc32c = 0
        self._tags = tags
        self._part_bytes = part_bytes
        self._buffer = bytearray()
        self._upload_id = ""
        self._parts: list[PartStored] = []

    def write(self, data: Buffer) -> Steps[None]:
        """Add bytes to the object. Sends each part that is full.

        Raises RemoteUnavailableError, RemotePermissionError, and ConfigError if the object needs too many parts.
        """
        self.size += len(data)
        self.crc32c = crc32c_of(data, self.crc32c)
        self._buffer += data
        while len(self._buffer) > self._part_bytes:
            yield from self._send(self._part_bytes)

    def finish(self) -> Steps[PutResult]:
        """Send the remaining bytes and create the object. Return a result with the status ``LANDED``.

        Raises RemoteUnavailableError if the store has not confirmed it after ``PUT_DEADLINE_SECONDS``: the object may
        exist then. After an error the writer cannot be used again.
        """
        if not self._upload_id:
            body = bytes(self._buffer)
            return (yield from put_unique(self.key, body, self.crc32c, self._tags))
        yield from self._send(len(self._buffer))
        deadline = (yield Now()).monotonic + PUT_DEADLINE_SECONDS
        result = yield from _complete(CompleteUpload(self.key, self._upload_id, tuple(self._parts)), deadline)
        if result.status is not PutStatus.LANDED:
            raise RemoteUnavailableError(
                f"the upload of {self.key} was not completed: {result.cause or result.status.value}",
                hint="run it again: the object is written under another key",
            )
        self._upload_id = ""
        return result

    def abort(self) -> Steps[None]:
        """Delete the sent parts of an unfinished object."""
        self._buffer.clear()
        if self._upload_id:
            yield from _abort(self.key, self._upload_id)
            self._upload_id = ""

    def _send(self, length: int) -> Steps[None]:
        if not self._upload_id:
            self._upload_id = (yield StartUpload(self.key, self._tags)).upload_id
        part = bytes(self._buffer[:length])
        del self._buffer[:length]
        number = len(self._parts) + 1
        if number > MAX_PART_NUMBER:
            raise ConfigError(
                f"the upload of {self.key} needs more than {MAX_PART_NUMBER} parts", hint="lower merge.target.bytes"
            )
        self._parts.append((yield UploadPart(self.key, self._upload_id, number, BytesSource(part), 0, len(part))))


def verify_stored(key: str, size: int, crc32c: int, capabilities: Capabilities) -> Steps[Object]:
    """Verify that the store has an object with exactly this size and CRC32C. Return the outcome of its HEAD.

    A checksum that the store itself has verified is trusted; otherwise the object is read back. Raises
    ``CorruptionError`` if the object is absent, has another size or other bytes.
    """
    head = yield Head(key)
    if not isinstance(head, Object):
        raise _not_stored(key, "is absent although the store acknowledged it")
    if head.size != size:
        raise _not_stored(key, f"has {head.size} bytes, {size} were sent")
    if capabilities.verifies_crc32c and capabilities.returns_crc32c and head.crc32c == crc32c:
        return head
    found = 0
    step = READ_BACK_BYTES if capabilities.ranges else max(size, 1)
    for start in range(0, size, step):
        end = min(size, start + step)
        piece = yield Get(key, start, end)
        if not isinstance(piece, Object) or piece.etag != head.etag or len(piece.data) != end - start:
            raise _not_stored(key, f"could not be read back at {start}..{end}", position=start)
        found = crc32c_of(piece.data, found)
    if found != crc32c:
        raise _not_stored(key, f"has CRC32C {found:08x}, {crc32c:08x} was sent")
    return head


def _upload_parts(
    key: str, upload_id: str, body: ByteSource, part_bytes: int, deadline_seconds: float
) -> Steps[tuple[PartStored, ...]]:
    """Send the parts, ``PARALLEL_PARTS`` at once, and failed ones again. Return them in order.

    Raises permanent errors at once. Raises RemoteUnavailableError once no part was stored for ``deadline_seconds``.
    """
    part_bytes = max(part_bytes, -(-body.size // MAX_PART_NUMBER))
    starts = range(0, body.size, part_bytes) if body.size else range(1)
    left = {
        number: UploadPart(key, upload_id, number, body, start, min(body.size, start + part_bytes))
        for number, start in enumerate(starts, 1)
    }
    stored: list[PartStored] = []
    last_stored = (yield Now()).monotonic
    attempt = 0
    while left:
        outcomes = yield Together(tuple(itertools.islice(left.values(), PARALLEL_PARTS)), errors=True)
        for outcome in outcomes:
            if isinstance(outcome, PartStored):
                stored.append(outcome)
                del left[outcome.number]
                last_stored, attempt = (yield Now()).monotonic, 0
        failed = [outcome for outcome in outcomes if isinstance(outcome, TieredError)]
        for error in failed:
            if not isinstance(error, RemoteUnavailableError):
                raise error
        if failed:
            left_seconds = last_stored + deadline_seconds - (yield Now()).monotonic
            if left_seconds <= 0:
                raise failed[-1]
            attempt += 1
            yield Backoff(attempt, left_seconds)
    return tuple(sorted(stored, key=lambda part: part.number))


def _complete(request: CompleteUpload, deadline: float) -> Steps[PutResult]:
    """Complete an upload. Return ``LANDED``, or a result that only a new upload can change.

    Raises RemoteUnavailableError if the outcome is unknown at ``deadline`` (monotonic seconds).
    """
    attempt = 0
    while True:
        try:
            result: PutResult = yield request
        except RemoteUnavailableError as error:
            result = PutResult(PutStatus.UNKNOWN, cause=str(error))
        settled = _settled(result)
        if settled is not None or result.status is PutStatus.CONFLICT:
            return settled or result
        found = yield Head(request.key)
        if isinstance(found, Object):
            return PutResult(PutStatus.LANDED, found.etag, found.crc32c, cause=result.cause)
        if "NoSuchUpload" in result.cause:
            return result
        attempt += 1
        yield from _wait(attempt, deadline, f"CompleteUpload {request.key}", result)


def _settled(result: PutResult) -> PutResult | None:
    if result.status is PutStatus.LANDED:
        return result
    if result.status is PutStatus.LOST:
        return PutResult(PutStatus.LANDED, cause="an earlier attempt landed")
    return None


def _wait(attempt: int, deadline: float, what: str, result: PutResult) -> Steps[None]:
    now = yield Now()
    if now.monotonic >= deadline:
        raise RemoteUnavailableError(
            f"{what}: the upload is still {result.status.value} after {attempt} attempts"
            + (f"; {result.cause}" if result.cause else ""),
            hint="no action is needed: no source was deleted, and the next run stores the data under a new key",
        )
    yield Backoff(attempt, deadline - now.monotonic)


def _abort(key: str, upload_id: str) -> Steps[None]:
    try:
        yield AbortUpload(key, upload_id)
    except TieredError:
        return  # the journal and the bucket's lifecycle rule clean up


def _not_stored(key: str, why: str, *, position: int = -1) -> CorruptionError:
    return CorruptionError(
        f"the object {key} {why}",
        path_or_key=key,
        position=position,
        hint="no action is needed: no source was deleted, and the next run stores the data under another key",
    )
