"""Python imports this at the start of each process that has this folder on its path: those of Spark in a bench.

Spark's daemon ignores SIGCHLD, so that the kernel forgets what its workers have spent once they end: all of a planner's
time, since that worker ends with its call. Here the daemon waits for them instead, and has their times in its own.
"""

from __future__ import annotations

import contextlib
import os
import signal
from types import FrameType
from typing import Any

_set = signal.signal


def _wait(_number: int, _frame: FrameType | None) -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _waiting(number: int, handler: Any) -> Any:
    return _set(number, _wait if number == signal.SIGCHLD and handler == signal.SIG_IGN else handler)


signal.signal = _waiting  # type: ignore[assignment]
