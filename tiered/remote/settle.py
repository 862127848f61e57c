"""A conditional PUT until its outcome is known: the one place that decides what 412, 409, timeouts and 5xx mean.

==========================  ==========================================================================
answer                      meaning
==========================  ==========================================================================
200                         landed
412                         this attempt did not land; an earlier one may have: the caller reads back
404 (to ``If-Match``)       the key is gone
409                         did not land, says nothing about anybody else: the same request again
5xx, timeout, reset         landed, lost or still under way: the same body, the same condition again
deadline                    ``CommitUnknown`` if any attempt is unknown, else ``RemoteUnavailableError``
403, 400, anything else     raised as it is; it may have landed all the same (below)
==========================  ==========================================================================

A read never settles an unknown PUT: the request may still be on its way. Another conditional PUT does, because ETags
never repeat: after its 200 or 412 the first one can never land.

A refusal (403, 400) proves nothing either: what stands before the store (a proxy, a gateway, an expired session) may
refuse the answer to a request that the store has carried out. It is raised as what it is, because no repeat mends it
and its hint is what helps; whoever sent the PUT treats it as in doubt.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

from tiered.errors import CommitUnknown, RemoteUnavailableError, TieredError
from tiered.store.base import Backoff, Now, Put, PutResult, PutStatus, Steps, Time

COMMIT_DEADLINE_MS = 60_000


@dataclass(frozen=True, slots=True)
class Settled:
    """``status`` is LANDED, LOST or ABSENT. ``etag`` only if landed."""

    status: PutStatus
    etag: str = ""


@dataclass(frozen=True, slots=True)
class Deadline:
    """An instant of the driver's monotonic clock, in seconds."""

    at: float
    after_ms: int

    @classmethod
    def after(cls, after_ms: int, time: Time) -> Deadline:
        """``after_ms`` from ``time`` on."""
        return cls(time.monotonic + after_ms / 1000, after_ms)

    def passed(self, time: Time) -> bool:
        """Whether it is over."""
        return time.monotonic >= self.at


def deadline_after(after_ms: int) -> Steps[Deadline]:
    """A deadline ``after_ms`` from now."""
    return Deadline.after(after_ms, (yield Now()))


def settle(put: Put, deadline: Deadline, what: str) -> Steps[Settled]:
    """Sends ``put`` until it landed, lost or the key is gone. ``what`` names topic and partition for messages.

    Raises CommitUnknown if the outcome is not known, RemoteUnavailableError if nothing can have landed. Any other
    error is the store's refusal: the PUT is in doubt after it.
    """
    attempt, cause = 0, ""
    while True:
        attempt += 1
        try:
            result: PutResult = yield put
        except RemoteUnavailableError as error:
            result = PutResult(PutStatus.UNKNOWN, cause=str(error))
        except TieredError as error:
            if cause:
                raise _unknown(what, put.key, cause) from error
            raise
        match result.status:
            case PutStatus.LANDED:
                return Settled(PutStatus.LANDED, result.etag)
            case PutStatus.LOST | PutStatus.ABSENT:
                # mutant lost-put-is-reported
                return Settled(result.status)
            case PutStatus.UNKNOWN:
                # mutant unknown-put-is-settled
                cause = result.cause or "no answer"
            case PutStatus.CONFLICT:
                pass
            case _:
                assert_never(result.status)
        if not deadline.passed((yield Now())):
            yield Backoff(attempt)
            if not deadline.passed((yield Now())):  # not if the process stood still: a PUT so late is nobody's wish
                continue
        if cause:
            raise _unknown(what, put.key, cause)
        raise RemoteUnavailableError(
            f"{what}: {attempt} PUTs of {put.key} in {deadline.after_ms} ms, all answered 409; nothing landed",
            hint="try again",
        )


def _unknown(what: str, key: str, cause: str) -> CommitUnknown:
    return CommitUnknown(
        f"{what}: it is not known whether the PUT of {key} landed ({cause}); nothing was deleted",
        hint="claim again: the claim settles it",
    )
