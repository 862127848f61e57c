"""Steps that store one object under a unique key, although responses of the store may be lost.

Because the key is unique and created only once, "it exists already" can only mean that an earlier attempt of ours
landed. So LOST counts as landed, and an unknown outcome is decided by sending the same request again. (That is wrong
for ``root`` and ``topics/``, which other processes write, too: see ``remote.conditional_put.update``.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from tiered.errors import ConfigError, CorruptionError, NotFoundError, RemoteUnavailableError, TieredError
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

FRUITLESS_RESUMES = 20
"""Consecutive calls that may store no part of an upload before it is started again: not every store reports that it
has deleted an upload.
"""

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


class Parts:
    """State of one multipart upload: its id and stored parts. With it a later call resumes the upload after a failure.

    ``part_bytes`` is fixed when the upload starts, so that the number of a part implies its bytes. ``fruitless``:
    consecutive calls that stored no part.
    """

    __slots__ = ("fruitless", "part_bytes", "stored", "upload_id")

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Forget the upload, so that the next attempt starts another one."""
        self.upload_id = ""
        self.part_bytes = 0
        self.fruitless = 0
        self.stored: dict[int, PartStored] = {}

    def left(self, key: str, body: ByteSource) -> list[UploadPart]:
        """Return the requests for those parts of ``body`` that are not stored yet."""
        starts = range(0, body.size, self.part_bytes) if body.size else range(1)
        return [
            UploadPart(key, self.upload_id, number, body, start, min(body.size, start + self.part_bytes))
            for number, start in enumerate(starts, 1)
            if number not in self.stored
        ]

    def in_order(self) -> tuple[PartStored, ...]:
        """Return the stored parts in order, as the request to complete the upload needs them."""
        return tuple([self.stored[number] for number in sorted(self.stored)])


def upload_object(
    key: str,
    body: ByteSource,
    crc32c: int | None = None,
    tags: Tags = (),
    *,
    sizes: PartSizes = PartSizes(),
    deadline_seconds: float = PUT_DEADLINE_SECONDS,
    on_started: Callable[[str], None] | None = None,
    parts: Parts | None = None,
) -> Steps[PutResult]:
    """Create the object ``key``, which must be a unique key. ``sizes`` decides if it is a multipart upload.

    ``crc32c``: checksum of the body; a multipart upload does not check it. ``parts``: state of an upload to resume,
    which always is a multipart upload. ``on_started``: called with the id of a multipart upload before its first part.

    Return a result with the status ``LANDED``. Raises ``RemoteUnavailableError`` if the store has not confirmed it
    ``deadline_seconds`` after the start, or after the last part: the object may exist then. Raises ``CorruptionError``
    if the body does not have ``crc32c``.
    """
    begun = parts is not None and parts.upload_id
    if body.size <= sizes.multipart_above_bytes and not begun:
        return put_unique(key, body, crc32c, tags, deadline_seconds=deadline_seconds)
    return upload_multipart(
        key,
        body,
        part_bytes=sizes.part_bytes,
        tags=tags,
        deadline_seconds=deadline_seconds,
        on_started=on_started,
        parts=parts,
    )


def upload_multipart(
    key: str,
    body: ByteSource,
    *,
    part_bytes: int = PART_BYTES,
    parallel_parts: int = PARALLEL_PARTS,
    tags: Tags = (),
    deadline_seconds: float = PUT_DEADLINE_SECONDS,
    on_started: Callable[[str], None] | None = None,
    parts: Parts | None = None,
) -> Steps[PutResult]:
    """Create the object in parts, ``parallel_parts`` at once. Return a result with the status ``LANDED``.

    ``on_started(upload_id)`` runs before the first part. A failed part is sent again until ``deadline_seconds`` after
    the last stored part. The same time bounds the completion, and the attempts with a new upload. Raises
    ``RemoteUnavailableError`` at the deadline: the object may exist then.

    After an error the upload is aborted if possible. But if the store did not answer and the caller gave ``parts``, the
    upload stays open, and another call with the same ``parts`` sends only the missing ones.
    """
    progress = Parts() if parts is None else parts
    deadline = (yield Now()).monotonic + deadline_seconds
    attempt = 0
    while True:
        resumed = bool(progress.upload_id)
        try:
            if not resumed:
                progress.upload_id = (yield StartUpload(key, tags)).upload_id
                progress.part_bytes = max(part_bytes, -(-body.size // MAX_PART_NUMBER))
                if on_started is not None:
                    yield Blocking(partial(on_started, progress.upload_id))
            yield from _upload_parts(key, progress, body, parallel_parts, deadline_seconds)
            until = (yield Now()).monotonic + deadline_seconds
            result = yield from _complete(CompleteUpload(key, progress.upload_id, progress.in_order()), until)
        except TieredError as error:
            unanswered = isinstance(error, RemoteUnavailableError)
            if not (parts is not None and unanswered and progress.fruitless < FRUITLESS_RESUMES):
                yield from _abort(key, progress)
            if resumed and isinstance(error, NotFoundError):
                continue  # the store has deleted the parts of an earlier call
            raise
        if result.status is PutStatus.LANDED:
            if not result.etag:
                yield from _abort(key, progress)  # an earlier attempt of ours made the object: this upload is garbage
            return result
        # A conflict, or an upload that the store no longer knows while the key is absent: only a new upload helps.
        yield from _abort(key, progress)
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
            yield from _abort_upload(self.key, self._upload_id)
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
    key: str, progress: Parts, body: ByteSource, parallel_parts: int, deadline_seconds: float
) -> Steps[None]:
    """Send the parts that ``progress`` lacks, ``parallel_parts`` at once, and failed ones again.

    Raises permanent errors at once. Raises RemoteUnavailableError once no part was stored for ``deadline_seconds``.
    """
    together = max(1, parallel_parts)
    last_stored = (yield Now()).monotonic
    attempt = 0
    while left := progress.left(key, body):
        failed: TieredError | None = None
        for first in range(0, len(left), together):
            outcomes = yield Together(tuple(left[first : first + together]), errors=True)
            stored = {outcome.number: outcome for outcome in outcomes if isinstance(outcome, PartStored)}
            progress.stored |= stored
            if stored:
                last_stored, attempt, progress.fruitless = (yield Now()).monotonic, 0, 0
            for error in (outcome for outcome in outcomes if isinstance(outcome, TieredError)):
                if not isinstance(error, RemoteUnavailableError):
                    raise error
                failed = error
            if failed is not None:
                break
        if failed is not None:
            left_seconds = last_stored + deadline_seconds - (yield Now()).monotonic
            if left_seconds <= 0:
                progress.fruitless += 1
                raise failed
            attempt += 1
            yield Backoff(attempt, left_seconds)


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


def _abort(key: str, progress: Parts) -> Steps[None]:
    """Abort the upload, and reset ``progress``, so that the next attempt starts another upload."""
    upload_id = progress.upload_id
    progress.forget()
    if upload_id:
        yield from _abort_upload(key, upload_id)


def _abort_upload(key: str, upload_id: str) -> Steps[None]:
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
