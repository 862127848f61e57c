"""Buffers that files and bodies of answers are read into, used again when nobody refers to what they hold.

The pages of a fresh buffer cost as much CPU as the bytes that come into them from a socket.
"""

from __future__ import annotations

import os
import threading
import weakref
from sys import getrefcount

from tiered.format.pure_kernels import Block

_MINE = 2  # references to a block that only the list has: that one, and the argument of getrefcount


_POOLS: weakref.WeakSet[BufferPool] = weakref.WeakSet()


class BufferPool:
    """Thread-safe. A buffer belongs to whoever took it, and to all views of it, until the last of them is gone.

    At most ``max_bytes`` are kept: who needs more at once gets fresh buffers, kept by nobody. None is smaller than
    ``least_bytes``. A forked child begins without any.
    """

    def __init__(self, max_bytes: int, least_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._least_bytes = least_bytes
        self.forget()
        _POOLS.add(self)

    def forget(self) -> None:
        """Without any buffer; those in use are freed by their last view. The lock is new, too, for a forked child."""
        self._lock = threading.Lock()
        self._blocks: list[Block] = []

    @property
    def size_bytes(self) -> int:
        """Of the buffers that are kept, in use or not."""
        with self._lock:
            return sum(map(len, self._blocks))

    def take(self, size_bytes: int) -> Block:
        """A buffer of ``size_bytes`` at least; what it holds is anything."""
        wanted = 1 << (max(size_bytes, self._least_bytes) - 1).bit_length()
        with self._lock:
            blocks = self._blocks
            free = [at for at in range(len(blocks)) if getrefcount(blocks[at]) <= _MINE]
            fitting = [at for at in free if len(blocks[at]) >= wanted]
            if fitting:
                return blocks[min(fitting, key=lambda at: len(blocks[at]))]
            held = sum(map(len, blocks))
            for at in reversed(free):
                if held + wanted <= self._max_bytes:
                    break
                held -= len(blocks.pop(at))
            made = Block(wanted)
            if held + wanted <= self._max_bytes:
                blocks.append(made)
            return made


def _forget_all() -> None:
    for pool in tuple(_POOLS):
        pool.forget()


os.register_at_fork(after_in_child=_forget_all)
