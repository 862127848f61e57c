"""Locks of compiled code; those of ``tiered.format.locks`` where the compiled kernels are not at work.

``PlainLock`` is taken by compiled code without a call.

``TurnLock`` is handed over in the order of the requests. Consider threads that wait for one fsync after the other.
Those whose records are safe go first, and a thread with a new record queues after them. The next fsync begins after the
last of them, and covers all new records. A lock without an order, as ``threading.Lock``, would go to the thread that
dropped it, for an fsync of a single record.
"""

from __future__ import annotations

from tiered.format import kernels, locks

PlainLock = locks.PlainLock
TurnLock = locks.PlainLock

if kernels.AT_WORK != kernels.PURE:
    from tiered.format import _kernels

    PlainLock = _kernels.PlainLock  # type: ignore[assignment,misc]
    TurnLock = _kernels.TurnLock  # type: ignore[assignment,misc]
