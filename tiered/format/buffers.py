"""Buffers that files and bodies of answers are read into, used again when nobody refers to what they hold.

The pages of a fresh buffer cost as much CPU as the bytes that come into them from a socket.
"""

from __future__ import annotations

from collections import deque
from sys import getrefcount

from tiered.format.pure_kernels import Block

_MINE = 2  # references to a block that only one variable has: that one, and the argument of getrefcount
_LARGER = (1, 2, 4)
"""How many times as large as needed a buffer may be, in the order in which they are looked for."""


class BufferPool:
    """Thread-safe. A buffer belongs to whoever took it, and to all views of it, until the last of them is gone.

    At most about ``max_bytes`` are kept: who needs more at once gets fresh buffers, kept by nobody. None is smaller
    than ``least_bytes``. There is no lock that a forked child could find taken: a block is taken out of its queue,
    which one thread alone can do, before it is looked at.
    """

    def __init__(self, max_bytes: int, least_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._least_bytes = least_bytes
        self._blocks: dict[int, deque[Block]] = {}

    def forget(self) -> None:
        """Without any buffer; those in use are freed by their last view."""
        self._blocks = {}

    @property
    def size_bytes(self) -> int:
        """Of the buffers that are kept, in use or not."""
        return sum(size * len(blocks) for size, blocks in tuple(self._blocks.items()))

    def take(self, size_bytes: int) -> Block:
        """A buffer of ``size_bytes`` at least; what it holds is anything."""
        wanted = 1 << (max(size_bytes, self._least_bytes) - 1).bit_length()
        for times in _LARGER:
            found = _idle(self._blocks.get(times * wanted))
            if found is not None:
                return found
        made = Block(wanted)
        if self.size_bytes + wanted > self._max_bytes:
            self._make_room(wanted)
        if self.size_bytes + wanted <= self._max_bytes:
            self._blocks.setdefault(wanted, deque()).append(made)
        return made

    def _make_room(self, wanted: int) -> None:
        """Lets go of buffers of other sizes that nobody uses."""
        for blocks in tuple(self._blocks.values()):
            while self.size_bytes + wanted > self._max_bytes and (block := _idle(blocks)) is not None:
                _drop(blocks, block)


def _idle(blocks: deque[Block] | None) -> Block | None:
    """The one that nobody uses and that was used last: its bytes may still be in a CPU's cache."""
    for _ in range(len(blocks or ())):
        try:
            block = blocks.pop()  # type: ignore[union-attr]  # an empty range for None
        except IndexError:
            return None  # other threads look through them
        if getrefcount(block) <= _MINE:
            blocks.append(block)  # type: ignore[union-attr]
            return block
        blocks.appendleft(block)  # type: ignore[union-attr]
    return None


def _drop(blocks: deque[Block], block: Block) -> None:
    """By identity: two buffers may hold the same bytes."""
    for _ in range(len(blocks)):
        try:
            one = blocks.pop()
        except IndexError:
            return
        if one is block:
            return
        blocks.appendleft(one)
