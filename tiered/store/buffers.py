"""Buffers that bodies of answers are read into, used again when nobody refers to what they hold.

A fresh buffer of 16 MiB costs as much CPU for its pages as the bytes cost on their way from the socket.
"""

from __future__ import annotations

import threading
from sys import getrefcount

from tiered.format.pure_kernels import Block

POOL_BYTES = 64 * 1024 * 1024
"""Most bytes of buffers that one process keeps; who needs more at once gets fresh ones, kept by nobody."""

LEAST_BYTES = 1024 * 1024
"""Smallest buffer."""

_MINE = 2  # references to a block that only the list has: that one, and the argument of getrefcount


class BufferPool:
    """Thread-safe. A buffer belongs to whoever took it, and to all views of it, until the last of them is gone."""

    def __init__(self, max_bytes: int = POOL_BYTES) -> None:
        self._max_bytes = max_bytes
        self.forget()

    def forget(self) -> None:
        """Without any buffer; those in use are freed by their last view. For a forked child, too: its lock is new."""
        self._lock = threading.Lock()
        self._blocks: list[Block] = []

    @property
    def size_bytes(self) -> int:
        """Of the buffers that are kept, in use or not."""
        with self._lock:
            return sum(map(len, self._blocks))

    def take(self, size_bytes: int) -> Block:
        """A buffer of ``size_bytes`` at least; what it holds is anything."""
        wanted = 1 << (max(size_bytes, LEAST_BYTES) - 1).bit_length()
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
