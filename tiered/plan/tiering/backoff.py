"""How long a partition waits after a failure, by its kind."""

from __future__ import annotations

from typing import Protocol

from tiered.plan.backoff import backoff_bound_seconds

RECHECK_PERMISSION_MS = 60_000
"""A refused operation is looked at again this often, so that a corrected policy drains unaided."""

RECHECK_FATAL_MS = 600_000
"""Ceiling of the same for what only a person can correct, most likely; the first looks follow soon."""

FATAL_ATTEMPTS = 3
"""Looks at a fatal failure before a one-shot run ends with it: damage on the way, unlike damage, does not repeat."""

_FATAL_BASE_MS = 500


class Dice(Protocol):
    """Chance, for jitter; ``tiered.clock.IdSource`` is one."""

    def random(self) -> float:
        """Uniform in [0, 1)."""


def retry_delay_ms(attempt: int, dice: Dice) -> int:
    """Return the wait before attempt ``attempt`` + 1 (``attempt`` from 1): at least 1 ms, with full jitter."""
    return 1 + int(dice.random() * (int(backoff_bound_seconds(attempt) * 1000) - 1))


def fatal_delay_ms(attempt: int) -> int:
    """Return the wait after the fatal failure ``attempt`` (from 1): exponential up to ``RECHECK_FATAL_MS``."""
    return int(backoff_bound_seconds(attempt, _FATAL_BASE_MS / 1000, RECHECK_FATAL_MS / 1000) * 1000)
