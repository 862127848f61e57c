"""Number of forks between this process and its first ancestor. ``os.getpid`` would cost a system call each time."""

from __future__ import annotations

import os


class _Forks:
    """Counter of forks: after a fork the child's value is one higher."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0

    def add(self) -> None:
        """Count the fork that made this process."""
        self.count += 1


FORKS = _Forks()
os.register_at_fork(after_in_child=FORKS.add)
