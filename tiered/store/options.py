"""Options for opening a store. The module imports no store, as readers of only a disk use it, too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tiered.clock import Clock, IdSource
    from tiered.store.limit import Limits
    from tiered.store.metrics import StoreMetrics

RETRY_DEADLINE_SECONDS = 30.0
"""Time after the first attempt of a request up to which a retry may begin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOptions:
    """Options for opening a store. Every interface of one log gets the same value, so that none ignores a limit.

    ``deadline_seconds``: time for retries of one request, 0 for none. ``limits``: synchronous and asyncio stores may
    share them; None: no limits. ``create``: make the folder of a ``file://`` URL. ``notice_outages``: log when the
    store stops responding and when it responds again.
    """

    clock: Clock | None = None
    ids: IdSource | None = None
    metrics: StoreMetrics | None = None
    deadline_seconds: float = RETRY_DEADLINE_SECONDS
    limits: Limits | None = None
    create: bool = True
    notice_outages: bool = False


DEFAULTS = StoreOptions()
"""Options with retries only."""
