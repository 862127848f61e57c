"""How long to wait before trying again: exponential with full jitter."""

from __future__ import annotations

from typing import Protocol

BASE_MS = 200
"""Ceiling of the first wait."""

CAP_MS = 60_000
"""Ceiling of every wait: a store that is back is noticed within a minute."""

RECHECK_PERMISSION_MS = 60_000
"""A refused operation is looked at again this often, so that a corrected policy drains unaided."""

RECHECK_FATAL_MS = 600_000
"""Ceiling of the same for what only a person can correct, most likely; the first looks follow soon."""

FATAL_ATTEMPTS = 3
"""Looks at a fatal failure before a one-shot run ends with it: damage on the way, unlike damage, does not repeat."""

_FATAL_BASE_MS = 500
_MAX_SHIFT = 20


class Dice(Protocol):
    """Chance, for jitter; ``tiered.clock.IdSource`` is one."""

    def random(self) -> float:
        """Uniform in [0, 1)."""


def retry_delay_ms(attempt: int, dice: Dice) -> int:
    """Wait before attempt ``attempt`` + 1 (``attempt`` from 1): uniform in [1, min(cap, base * 2 ** (attempt - 1))]."""
    ceiling = min(CAP_MS, BASE_MS << min(max(attempt - 1, 0), _MAX_SHIFT))
    return 1 + int(dice.random() * (ceiling - 1))


def fatal_delay_ms(attempt: int) -> int:
    """Wait after the fatal failure ``attempt`` (from 1): exponential up to ``RECHECK_FATAL_MS``."""
    return min(RECHECK_FATAL_MS, _FATAL_BASE_MS << min(max(attempt - 1, 0), _MAX_SHIFT))
