"""Probe of a store: tests on objects of our own if it honours conditions, ranges and checksums.

Emulators and old servers respond 200 to a condition that they ignore: two writers could then both win. So each writing
process probes a store once, and refuses such a store.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace

from tiered.errors import (
    ConditionalWritesUnsupportedError,
    ConfigError,
    CorruptionError,
    RemoteUnavailableError,
    TieredError,
)
from tiered.format.kernels import crc32c
from tiered.format.keys import probe_key
from tiered.store.base import (
    ABSENT,
    INCAPABLE,
    Backoff,
    Capabilities,
    Condition,
    Delete,
    Deleted,
    Get,
    Head,
    Match,
    NewId,
    Object,
    Put,
    PutResult,
    PutStatus,
    Steps,
)

PROBE_ATTEMPTS = 6
"""Attempts of each conditional PUT of the probe whose outcome is unknown."""

_NO_SUCH_ETAG = '"00000000000000000000000000000000"'


def probe() -> Steps[Capabilities]:
    """Find out by about ten requests what the store can do. Return its capabilities.

    The requests use new ``probe/{uid}`` keys, which are deleted at the end. Raises RemoteUnavailableError (no clear
    answer), RemotePermissionError, NotFoundError (no bucket), ConfigError (wrong settings, or no S3 server).
    """
    keys: tuple[str, ...] = ()
    for _ in range(3):
        keys += (probe_key((yield NewId())),)
    try:
        found = yield from _probe(*keys)
    except ConditionalWritesUnsupportedError:
        found = INCAPABLE  # the store reports it itself
    except TieredError:
        yield from _clean(keys)
        raise
    return replace(found, multi_delete=(yield from _clean(keys)))


def check_capabilities(capabilities: Capabilities, url: str) -> None:
    """Raise ``ConditionalWritesUnsupportedError`` if two writers could both win on this store."""
    if not capabilities.conditional_writes:
        raise ConditionalWritesUnsupportedError(
            f"{url} ignores or refuses If-Match or If-None-Match: two writers could both win",
            hint="use a store with conditional writes (AWS S3, MinIO, R2, Ceph 19 or newer), or upgrade this one",
        )


def _probe(key: str, absent_key: str, checksum_key: str) -> Steps[Capabilities]:
    first, second = f"{key} first".encode(), f"{key} second".encode()
    created = yield from _put(key, first, ABSENT)
    current = yield Get(key)
    if created.status not in (PutStatus.LANDED, PutStatus.LOST) or not _holds(current, first):
        return INCAPABLE
    again = yield from _put(key, b"created twice", ABSENT)
    stale = yield from _put(key, b"stale", Match(_NO_SUCH_ETAG))
    absent = yield from _put(absent_key, b"absent", Match(_NO_SUCH_ETAG))
    swapped = yield from _put(key, second, Match(current.etag))
    after = yield Get(key)
    conditional = (
        again.status is PutStatus.LOST
        and stale.status is PutStatus.LOST
        and absent.status in (PutStatus.ABSENT, PutStatus.LOST)
        and swapped.status in (PutStatus.LANDED, PutStatus.LOST)  # LOST: the response of a landed attempt was lost
        and _holds(after, second)
        and after.etag != current.etag
    )
    ranged = yield Get(key, 1, 5)
    head = yield Head(key)
    expected = current if not _holds(after, second) else after
    whole = first if expected is current else second
    return Capabilities(
        conditional_writes=conditional,
        ranges=_holds(ranged, whole[1:5]) and ranged.size == len(whole),
        returns_crc32c=isinstance(head, Object) and head.crc32c == crc32c(whole),
        verifies_crc32c=(yield from _verifies(checksum_key)),
    )


def _verifies(key: str) -> Steps[bool]:
    body = b"a body with a wrong checksum"
    try:
        yield from _put(key, body, ABSENT, crc32c(body) ^ 1)
    except (CorruptionError, ConfigError):
        return True
    return False


def _put(key: str, body: bytes, condition: Condition, crc: int | None = None) -> Steps[PutResult]:
    """Put an object, again while the outcome is unknown or a conflict. Return the last result.

    Raises RemoteUnavailableError after ``PROBE_ATTEMPTS``. ``crc``: checksum to announce, None: that of ``body``.
    """
    request = Put(key, body, condition, crc32c(body) if crc is None else crc)
    result = PutResult(PutStatus.UNKNOWN)
    for attempt in range(1, PROBE_ATTEMPTS + 1):
        try:
            result = yield request
        except RemoteUnavailableError as error:
            result = PutResult(PutStatus.UNKNOWN, cause=str(error))
        if result.status not in (PutStatus.UNKNOWN, PutStatus.CONFLICT):
            return result
        if attempt == 1:
            with contextlib.suppress(RemoteUnavailableError):
                yield Get(key)  # a read finds out at once that the server does not speak S3: ConfigError
        if attempt < PROBE_ATTEMPTS:
            yield Backoff(attempt)
    raise RemoteUnavailableError(
        f"the store could not be probed: the test PUT of {key} had no clear answer ({result.status.value})"
        + (f"; {result.cause}" if result.cause else ""),
        hint="try again when the store answers; `tiered doctor` shows how it responds",
    )


def _holds(found: object, body: bytes) -> bool:
    return isinstance(found, Object) and found.data == body


def _clean(keys: tuple[str, ...]) -> Steps[bool]:
    """Delete the objects of the probe. Return False if the store cannot delete several keys at once."""
    with contextlib.suppress(TieredError):  # `maintain --orphans` deletes what a role must not delete, a day later
        deleted: Deleted = yield Delete(keys)
        return not deleted.one_by_one
    return True
