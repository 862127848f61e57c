"""Offsets that are gone: an error, or with ``failOnDataLoss=false`` skipped, counted and told. One rule for both ends.

Gone means that the log itself says so: a newer root begins behind them, or no tier holds them. An object that the
catalog still names and the bucket does not have is damage, never data loss, and fails whatever the option says.
"""

from __future__ import annotations

import logging

from tiered.errors import OffsetOutOfRangeError

_logger = logging.getLogger("tiered.spark")


def lose(what: str, count: int, *, requested: int, held: tuple[int, int], fail: bool, hint: str = "") -> None:
    """``what`` is gone: ``count`` offsets. ``held``: earliest and latest offset (exclusive) of the log as it is now.

    Raises OffsetOutOfRangeError if ``fail``, else warns and returns: the caller skips them.
    """
    if fail:
        raise OffsetOutOfRangeError(
            what,
            requested=requested,
            earliest=held[0],
            latest=held[1],
            hint=hint,
        )
    _logger.warning("%s; %d offsets are skipped (failOnDataLoss=false)", what, count)
