"""Two locks, from compiled code. Without the compiled kernels, those of ``tiered.format.locks`` take their place.

``PlainLock`` is taken by compiled code without a call.

``TurnLock`` is handed over in the order of the requests. It serves threads that wait for an fsync. Threads whose
records the last fsync covered go first. A thread with a new record queues after them, so the next fsync covers it.
``threading.Lock`` has no order: the thread that released it would take it again, for an fsync of a single record.
"""

from __future__ import annotations

from tiered.format import kernels, locks

PlainLock = locks.PlainLock
TurnLock = locks.PlainLock

if kernels.AT_WORK != kernels.PURE:
    from tiered.format import _kernels

    PlainLock = _kernels.PlainLock  # type: ignore[misc]
    TurnLock = _kernels.TurnLock  # type: ignore[misc]
