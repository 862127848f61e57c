"""One object under a name that nobody else will ever use: the only PUT that may be repeated after silence.

The name holds 128 random bits, so "it exists already" can only mean that an earlier attempt of this very PUT
landed although its answer was lost.
"""

from __future__ import annotations

from tiered.errors import RemoteUnavailableError
from tiered.store.base import ABSENT, Backoff, Body, Put, PutResult, PutStatus, Steps

PUT_ATTEMPTS = 8
"""Attempts of one PUT whose answers do not come; after them the store counts as unreachable."""


def put_unique(
    key: str, body: Body, *, crc32c: int | None = None, tags: tuple[tuple[str, str], ...] = ()
) -> Steps[PutResult]:
    """Stores ``body`` under the unique name ``key``; LOST in the result means that an earlier attempt landed.

    Raises RemoteUnavailableError after ``PUT_ATTEMPTS`` without an answer; the object may exist then.
    """
    cause = ""
    for attempt in range(1, PUT_ATTEMPTS + 1):
        result: PutResult = yield Put(key, body, ABSENT, crc32c=crc32c, tags=tags)
        if result.status in (PutStatus.LANDED, PutStatus.LOST):
            return result
        cause = result.cause or result.status.value
        if attempt < PUT_ATTEMPTS:
            yield Backoff(attempt)
    raise RemoteUnavailableError(
        f"{PUT_ATTEMPTS} attempts to store {key} were not answered ({cause})",
        hint="nothing is lost: the bytes are still where they were; the object, if it landed, is collected later",
    )
