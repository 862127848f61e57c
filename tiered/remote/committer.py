"""A process that commits to a catalog: its claim, its clock, and the errors of refused intents.

A claim carries a random token and every append commit an id. Both are passed to ``persist`` and must be durable on the
volume *before* the root that carries them is sent. Written afterwards, a crash in between would lock the rightful owner
out. ``persist`` replaces opaque text (None: unchanged). The text holds the last id that is known to be in the root, and
all ids that may be on their way. So the volume can prove whichever of them landed.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass

from tiered.errors import (
    ConfigError,
    FencedError,
    NotFoundError,
    OffsetGapError,
    OffsetOutOfRangeError,
    TieredError,
)
from tiered.format.root import RoleState, Root
from tiered.plan.catalog_edit import TrimIntent
from tiered.plan.commit import AppendIntent, ClaimIntent, Intent
from tiered.plan.ownership import LOCAL_VOLUME, SPARK_VOLUME, Refusal, RefusalReason
from tiered.store.base import Object, Time

Persist = Callable[[str | None, str | None], None]
"""``persist(token, last_append)`` returns once both are fsynced. None leaves one unchanged. May raise."""


def owner_of(program: str) -> str:
    """Return the owner's name for a claim of this process: ``host:pid`` and the program."""
    return f"{socket.gethostname()}:{os.getpid()} {program}"


@dataclass(frozen=True, slots=True)
class Claim:
    """Result of a granted claim. This volume writes from ``next_offset`` on, under ``leader_epoch``.

    ``resumes``: True if a fresh volume takes over a partition that had a writer or records. Its local log begins at
    ``next_offset``. ``root``: the root with this claim. ``previous``: state of the same role in the replaced root.
    """

    epoch: int
    leader_epoch: int
    next_offset: int
    resumes: bool
    previous: RoleState
    root: Root

    @property
    def not_recovered(self) -> str:
        """Return a sentence about records that only the former volume may have, ``""`` if there can be none.

        There are none if the claim before was this volume's own, a sink's (whose records are all objects), a handover,
        or that of a repair, which has no volume.
        """
        before = self.previous.volume
        if not self.resumes or not self.previous.epoch:
            return ""
        if before == self.root.writer.volume or before in ("", SPARK_VOLUME, LOCAL_VOLUME):
            return ""
        return (
            f"{self.root.topic}-{self.root.partition} resumes at offset {self.next_offset}: if volume {before}, "
            f"claimed by {self.previous.owner}, appended beyond it, only its disk has these records"
        )


MAX_CLOCK_LEAD_MS = 3_600_000
"""Most that this machine's clock may be ahead of the store's at a commit, because grace times count from commits.

A machine whose clock is behind commits by the store's clock. Otherwise what it removed would be past its grace at once.
This machine's clock is compared, not the root's ``ts_ms``, which never goes back. After one commit dated ahead
(``file://`` has only the machine's clock), ``ts_ms`` would block commits until real time has caught up. Instead each
commit on such a root adds a millisecond. Its grace times last longer, never shorter.
"""


class StoreClock:
    """Estimate of the store's clock, from the dates of its answers. ``name``: name of the partition, for messages."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._date: tuple[int, float] | None = None  # in ms, and the monotonic instant at which it was so

    def note(self, got: object, time: Time) -> None:
        """Record the date of the store's answer ``got``, which arrived at ``time``."""
        if isinstance(got, Object) and got.date_ms:
            self._date = (got.date_ms, time.monotonic)

    def ahead_of_store_ms(self, at_ms: int, time: Time) -> int:
        """Return by how many ms ``at_ms`` is later than the store's clock, negative if it is earlier.

        Return 0 before the first answer with a date. ``time``: readings of this machine's clocks.
        """
        if self._date is None:
            return 0
        date_ms, read_at = self._date
        return at_ms - date_ms - int((time.monotonic - read_at) * 1000)

    def ahead(self, time: Time) -> bool:
        """Return True if this machine's clock, read as ``time``, seems over ``MAX_CLOCK_LEAD_MS`` ahead of the store's.

        After a suspension of the machine this may be wrong, because its monotonic clock did not count the time. The
        caller then sends a request for a new date, and calls this again.
        """
        return self.ahead_of_store_ms(time.now_ms, time) > MAX_CLOCK_LEAD_MS

    def trusted_ms(self, time: Time) -> int:
        """Return the wall clock in ``time``, or the store's if they differ by more than ``MAX_CLOCK_LEAD_MS``."""
        return time.now_ms if self.agrees(time) else time.now_ms - self.ahead_of_store_ms(time.now_ms, time)

    def agrees(self, time: Time) -> bool:
        """Return True if this machine's clock differs from the store's by at most ``MAX_CLOCK_LEAD_MS``.

        Return True also before the first answer with a date. ``time``: this machine's clocks, the outcome of ``Now``.
        """
        return abs(self.ahead_of_store_ms(time.now_ms, time)) <= MAX_CLOCK_LEAD_MS

    def commit_ms(self, time: Time) -> int:
        """Return the time to date a commit with: the later of the wall clock in ``time`` and the store's.

        Raises ConfigError if this machine's clock is more than ``MAX_CLOCK_LEAD_MS`` ahead.
        """
        ahead_ms = self.ahead_of_store_ms(time.now_ms, time)
        if self.ahead(time):
            raise ConfigError(
                f"{self._name}: the commit was not made: this machine's clock is {ahead_ms} ms later than the "
                "store's clock",
                hint="correct the clock of this machine: the grace time of objects depends on it",
            )
        return time.now_ms - min(ahead_ms, 0)


def refusal_error(refusal: Refusal, root: Root, intent: Intent) -> TieredError:
    """Return the error to raise for an intent that ``root`` did not allow. Nothing was sent."""
    if refusal.reason is RefusalReason.FENCED:
        return FencedError(refusal.message, hint=refusal.hint)
    if refusal.reason is RefusalReason.GAP and isinstance(intent, AppendIntent):
        return OffsetGapError(refusal.message, start=root.next_offset, end=intent.rows[0].base, hint=refusal.hint)
    if refusal.reason is RefusalReason.GAP and isinstance(intent, ClaimIntent) and intent.volume is not None:
        joints, end = intent.volume.joints or (), root.next_offset
        following = min((at for at in joints if at > end), default=end)
        return OffsetGapError(refusal.message, start=end, end=following, hint=refusal.hint)
    if refusal.reason is RefusalReason.GONE:
        return NotFoundError(refusal.message, hint=refusal.hint)
    if refusal.reason is RefusalReason.OUT_OF_RANGE and isinstance(intent, TrimIntent):
        return OffsetOutOfRangeError(
            refusal.message,
            requested=intent.offset,
            earliest=root.start_offset,
            latest=root.next_offset,
            hint=refusal.hint,
        )
    return ConfigError(refusal.message, hint=refusal.hint)
