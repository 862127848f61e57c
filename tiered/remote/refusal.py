"""Errors for refused intents, and the guard against concurrent commits."""

from __future__ import annotations

import threading

from tiered.errors import (
    ConfigError,
    FencedError,
    NotFoundError,
    OffsetGapError,
    OffsetOutOfRangeError,
    TieredError,
)
from tiered.format.keys import FLAG_MAINTAINER
from tiered.format.root import Root
from tiered.model import Row
from tiered.plan.catalog_edit import TrimIntent
from tiered.plan.commit import AppendIntent, ClaimIntent, Intent
from tiered.plan.ownership import Refusal, RefusalReason
from tiered.remote.catalog_view import CatalogView
from tiered.store.base import Steps


def refusal_error(refusal: Refusal, root: Root, intent: Intent) -> TieredError:
    """Return the error for an intent that was refused before anything was sent."""
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


def uncovered(snapshot: CatalogView, row: Row) -> Steps[str]:
    """Return why the catalog lacks the range of a committed row, ``""`` if it has the range or it was trimmed.

    A maintainer may have replaced the row by others over the same range; a writer's row stays as it was.
    """
    if row.next <= snapshot.start_offset:
        return ""
    if row.next > snapshot.next_offset:
        return f"ends at offset {snapshot.next_offset}, the committed row {row.base}..{row.next} is beyond it"
    found = yield from snapshot.at(max(row.base, snapshot.start_offset))
    if found is None:
        return f"no row holds offset {row.base}"
    if not found.flags & FLAG_MAINTAINER and found != row:
        return f"offset {row.base} is held by {found}, not by the committed {row}"
    return ""


class Exclusive:
    """Guard of one commit at a time. A second commit raises ConfigError. Abandoned steps release it."""

    def __init__(self, name: str) -> None:
        self._name, self._lock = name, threading.Lock()

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            raise ConfigError(f"{self._name}: a commit of this catalog is under way", hint="commit one after the other")

    def __exit__(self, *_: object) -> None:
        self._lock.release()
