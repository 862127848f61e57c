"""A lock that compiled code takes without a call; ``threading.Lock`` where the compiled kernels are not at work."""

from __future__ import annotations

import threading

from tiered.format import kernels

PlainLock = threading.Lock

if kernels.AT_WORK != kernels.PURE:
    from tiered.format import _kernels

    PlainLock = _kernels.PlainLock  # type: ignore[assignment,misc]
