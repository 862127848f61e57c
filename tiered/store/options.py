"""The one value that says how a process asks its store. It imports no store: a reader of a disk alone has it, too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tiered.clock import Clock, IdSource
    from tiered.store.limit import Limits
    from tiered.store.metrics import StoreMetrics

RETRY_DEADLINE_SECONDS = 30.0
"""No repeat of a request begins later than this after its first attempt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOptions:
    """How a process asks a store. Every face of one log gets the same value, so that none ignores a limit.

    ``limits`` may be shared by stores of both kinds. ``create`` makes the folder of a ``file://`` URL.
    ``notice_outages``: the log says when the store stops to answer and when it answers again.
    """

    clock: Clock | None = None
    ids: IdSource | None = None
    metrics: StoreMetrics | None = None
    deadline_seconds: float = RETRY_DEADLINE_SECONDS
    limits: Limits | None = None
    create: bool = True
    notice_outages: bool = False


DEFAULTS = StoreOptions()
"""Retries, and nothing else."""
