"""Conditional writes of objects, and the one compare-and-swap step, :func:`update`.

Every mutable object is changed here: roots, registry entries, decisions, snapshots, pins. ``update`` looks, asks the
caller for the next body, sends it with the ETag that was seen, and interprets the answer::

    look ── change ── PUT If-Match / If-None-Match ── 200 ────────────────────────────────── written
      ^                     ^     |
      |                     |     ├── unknown, 409 ── the same PUT again
      |                     └─────┘
      |                           └── 412, 404 ── look ── the body is ours ────────────────── written
      └───────────── pause ────────────────────── look ── the body is not ours: not written

=============================  =======================  ========================================================
answer to the PUT              what a look finds        result
=============================  =======================  ========================================================
200                            no look                  written
412, 404 (``If-Match``)        our body                 written: an earlier attempt landed, its answer was lost
412, 404 (``If-Match``)        another body, or none    not written: ``change`` is asked again, on what was found
412, 404 (``If-Match``)        no answer until the      ``CommitUnknownError``: it may have lost to an attempt of
                               deadline                 its own
404, ``Cell.gone``             no look                  raised: an object that is never deleted is gone
409                            no look                  not written: the same PUT again
5xx, timeout, reset            no look                  unknown: the same PUT again, with the same condition
deadline, an attempt unknown   no look                  ``CommitUnknownError``
the same with ``last_look``    our body                 written
the same with ``last_look``    another ETag             not written: the condition never holds again
the same with ``last_look``    the same ETag            ``CommitUnknownError``
deadline, none is unknown      no look                  ``RemoteUnavailableError``: nothing was written
deadline, all races lost       another body             ``RemoteUnavailableError``: nothing was written
deadline, all races lost       no object                ``CommitUnknownError``: the winner of the race was deleted
deadline, ``never_ours``       another body             ``CommitUnknownError``: it may hold what was sent
403, 400, anything else        no look                  refused: raised as it is; the body may have landed
=============================  =======================  ========================================================

A look alone settles no unknown PUT: the request may still be on its way. Another conditional PUT settles it, because
ETags never repeat: after its 200 or 412 the first one can never land. ETags never repeat because each body holds a
token. The token also decides who wrote a body (``Cell.is_ours``).

A refusal proves nothing. A proxy, a gateway or an expired session may refuse the answer to a request that the store has
carried out. A refusal is raised as it is, because retries do not help and its hint does. The caller must treat the PUT
as in doubt.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, Literal, TypeVar, assert_never

from tiered.errors import CommitUnknownError, RemoteUnavailableError, TieredError
from tiered.format.kernels import crc32c
from tiered.store.base import (
    ABSENT,
    MAX_BODY_BYTES,
    Backoff,
    Get,
    Match,
    Now,
    Object,
    Put,
    PutResult,
    PutStatus,
    Steps,
    Time,
)

COMMIT_DEADLINE_MS = 60_000

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Deadline:
    """Time limit of an operation. ``at``: instant of the driver's monotonic clock, in seconds.

    ``after_ms``: length of the limit, for messages.
    """

    at: float
    after_ms: int

    def passed(self, time: Time) -> bool:
        """Return True if ``time`` is at or after the deadline."""
        return time.monotonic >= self.at


def deadline_after(after_ms: int) -> Steps[Deadline]:
    """Return the deadline that is ``after_ms`` milliseconds from now."""
    time: Time = yield Now()
    return Deadline(time.monotonic + after_ms / 1000, after_ms)


# -- compare and swap --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Tagged(Generic[T_co]):
    """Value of an object as read, and its ETag. The ETag is empty if there is no object."""

    value: T_co
    etag: str = ""


@dataclass(frozen=True, slots=True)
class NextBody(Generic[T_co]):
    """Bytes to write to an object, and the value that they encode. Each body must be unique, so that ETags never
    repeat.
    """

    body: bytes
    value: T_co


class Again(enum.Enum):
    """Type of :data:`LOOK`, the result of a ``change`` that needs a newer value of the object."""

    LOOK = "look"


LOOK: Final = Again.LOOK
"""Result of ``change``: read the object again, then call ``change`` with its value.

A ``change`` must not return this twice for the same reason.
"""

Look = Callable[[], Steps[Tagged[T]]]
Planned = Steps[NextBody[T] | Literal[Again.LOOK] | None]


@dataclass(frozen=True, slots=True)
class Updated(Generic[T_co]):
    """Value and ETag of an object after an :func:`update`. ``written``: True if this call wrote them.

    False: :func:`update` needed no change, or :func:`replace_once` lost to another call.
    """

    value: T_co
    etag: str
    written: bool


def read_cell(key: str, decode: Callable[[Object], T], max_bytes: int = MAX_BODY_BYTES) -> Look[T | None]:
    """Return a function for ``Cell.look``: its steps read ``key`` with one GET and decode the object.

    Their value is None without an object. ``max_bytes``: largest accepted body.
    """

    def read_back() -> Steps[Tagged[T | None]]:
        got = yield Get(key, max_bytes=max_bytes)
        return Tagged(decode(got), got.etag) if isinstance(got, Object) else Tagged(None)

    return read_back


def stored_bytes(got: Object) -> bytes:
    """Return the body of an object: a ``decode`` of :func:`read_cell` for objects that are compared as bytes."""
    return bytes(got.data)


def any_is_ours(found: object, sent: object) -> bool:
    """Return True if an object was found. For ``Cell.is_ours`` of objects that are created once.

    Each caller accepts the object that was written first.
    """
    return found is not None


def never_ours(found: object, sent: object) -> bool:
    """Return False. For ``Cell.is_ours`` of objects that do not show who wrote them.

    After a lost race ``change`` is asked again, and sees in the object itself if anything remains to be done.
    """
    return False


@dataclass(frozen=True, slots=True)
class Cell(Generic[T]):
    """Object that :func:`update` changes by compare-and-swap. ``what`` names it in messages.

    ``look``: reads it. ``is_ours(found, sent)``: True if the object found after a lost PUT contains what was sent, even
    if others changed it since; it may raise if that is unknown. ``hint``: hint of each CommitUnknownError. ``gone``:
    returns the error for an object that must never be absent, because an object found under its key later may be an
    older one.
    """

    key: str
    what: str
    look: Look[T]
    is_ours: Callable[[T, T], bool] = never_ours
    hint: str = "read the object in the bucket to see if it was changed, then try again"
    gone: Callable[[], TieredError] | None = None


def update(
    cell: Cell[T], change: Callable[[Tagged[T]], Planned[T]], deadline: Deadline, *, seen: Tagged[T] | None = None
) -> Steps[Updated[T]]:
    """Change an object by compare-and-swap, again after each lost race.

    Args:
        cell: the object.
        change: returns the next body for the seen value. None if nothing needs to change, ``LOOK`` if the seen value is
            too old to decide.
        deadline: bounds all attempts together.
        seen: a value that the caller has read already. Then no GET is sent before the first PUT.

    Raises:
        CommitUnknownError: a body of this call may or may not have been written.
        RemoteUnavailableError: nothing of this call was written.
        TieredError: the store refused the PUT, which is then in doubt; or ``change``, ``is_ours`` or ``gone`` raised.
    """
    now = seen or (yield from cell.look())
    attempt = 0
    while True:
        wanted = yield from change(now)
        if wanted is None:
            return Updated(now.value, now.etag, written=False)
        if wanted is LOOK:
            now = yield from cell.look()
            if deadline.passed((yield Now())):  # the process was suspended
                raise _none_won(cell, attempt, deadline)
            continue
        done = yield from replace_once(cell, now.etag, wanted, deadline)
        if done.written:
            return done
        # mutant lost-race-is-replanned
        now = Tagged(done.value, done.etag)
        attempt += 1
        if deadline.passed((yield Now())):
            raise _lost_all(cell, now, attempt, deadline)
        yield Backoff(attempt)


def replace_once(
    cell: Cell[T], etag: str, wanted: NextBody[T], deadline: Deadline, *, last_look: bool = False
) -> Steps[Updated[T]]:
    """Replace the object whose ETag is ``etag`` by ``wanted``, without a retry after a lost race.

    An empty ``etag`` creates the object. If another call was first, return the object that it wrote, with ``written``
    False. ``last_look``: if the outcome is still unknown at the deadline, read the object once more.

    Raises CommitUnknownError if ``wanted`` may or may not have been written, RemoteUnavailableError if it was not. A
    refusal of the store is raised as it is; ``wanted`` may then have been written or not.
    """
    # mutant put-matches-planned-etag
    put = Put(cell.key, wanted.body, Match(etag) if etag else ABSENT, crc32c(wanted.body))
    try:
        done = yield from conditional_put(put, deadline, cell.what, cell.hint)
        if done.status is PutStatus.LANDED:
            return Updated(wanted.value, done.etag, written=True)
        if done.status is PutStatus.ABSENT and cell.gone is not None:
            raise cell.gone()
        now = yield from _read_after_loss(cell, deadline)
    except CommitUnknownError:
        if not last_look:
            raise
        now = yield from _read_after_loss(cell, deadline)
        if now.etag == etag:  # the PUT may still be on its way
            raise
    return Updated(now.value, now.etag, written=cell.is_ours(now.value, wanted.value))


def _lost_all(cell: Cell[T], now: Tagged[T], attempts: int, deadline: Deadline) -> TieredError:
    """Return the error of an update that lost its last race to the object ``now``."""
    if not now.etag:  # the winner, maybe an attempt of its own, was deleted
        return CommitUnknownError(
            f"{cell.what}: it is unknown whether {cell.key} was changed: the PUT lost, and the object is missing now",
            hint=cell.hint,
        )
    if cell.is_ours is never_ours:  # only the next ``change`` could see whether it was written
        return CommitUnknownError(
            f"{cell.what}: the PUT of {cell.key} was refused, but an earlier attempt may have been stored",
            hint=cell.hint,
        )
    return _none_won(cell, attempts, deadline)


def _none_won(cell: Cell[T], attempts: int, deadline: Deadline) -> RemoteUnavailableError:
    text = (
        f"{cell.what}: {cell.key} was not changed within {deadline.after_ms} ms: {attempts} attempts lost to other "
        "writers; nothing was committed"
    )
    return RemoteUnavailableError(text, hint="try again")


def _read_after_loss(cell: Cell[T], deadline: Deadline) -> Steps[Tagged[T]]:
    """Read the object until the store answers. Only then is it known whether an earlier attempt of this PUT won.

    Raises CommitUnknownError at the deadline.
    """
    attempt = 0
    while True:
        try:
            return (yield from cell.look())
        except RemoteUnavailableError as error:
            attempt += 1
            if deadline.passed((yield Now())):
                text = f"{cell.what}: it is unknown whether {cell.key} was changed; reading it failed: {error.message}"
                raise CommitUnknownError(text, hint=cell.hint) from error
            yield Backoff(attempt)


# -- one conditional PUT -----------------------------------------------------------------------------------------------


def conditional_put(put: Put, deadline: Deadline, what: str, hint: str = "try again") -> Steps[PutResult]:
    """Send ``put`` again until its result is LANDED, LOST or ABSENT. Return it. ``what`` names the object in messages.

    Call it alone only for objects under unique keys: if such a PUT is lost, an earlier attempt of the same PUT landed.
    ``hint``: hint of the CommitUnknownError.

    Raises:
        CommitUnknownError: the outcome is not known.
        RemoteUnavailableError: nothing can have landed.
        TieredError: the store refused it; the PUT is in doubt.
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
                raise _unknown(what, put.key, cause, hint) from error
            raise
        match result.status:
            case PutStatus.LANDED:
                return result
            case PutStatus.LOST | PutStatus.ABSENT:
                # mutant lost-put-is-reported
                return result
            case PutStatus.UNKNOWN:
                # mutant unknown-put-is-settled
                cause = result.cause or "no answer"
            case PutStatus.CONFLICT:
                pass
            case _:
                assert_never(result.status)
        if not deadline.passed((yield Now())):
            yield Backoff(attempt)
            if not deadline.passed((yield Now())):  # a process that was suspended must not send so late
                continue
        if cause:
            raise _unknown(what, put.key, cause, hint)
        raise RemoteUnavailableError(
            f"{what}: the store answered 409 to all {attempt} PUTs of {put.key} in {deadline.after_ms} "
            "ms; nothing was stored",
            hint="try again",
        )


def _unknown(what: str, key: str, cause: str, hint: str) -> CommitUnknownError:
    return CommitUnknownError(
        f"{what}: it is unknown whether the PUT of {key} was stored ({cause}); nothing was deleted", hint=hint
    )
