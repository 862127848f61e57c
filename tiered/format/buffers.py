"""Reusable buffers for file contents and response bodies.

Touching the pages of a fresh buffer costs as much CPU as copying the bytes from a socket into them.
"""

from __future__ import annotations

from collections import deque

from tiered.format.kernel_values import Block

_LARGER = (1, 2, 4)
"""Factors of the needed size at which an idle buffer is accepted, in search order."""


class BufferPool:
    """Pool of reusable buffers. A buffer is in use until its last view is gone. Thread-safe.

    The pool keeps at most about ``max_bytes``. Beyond that, callers get fresh buffers that are not reused. No buffer
    is smaller than ``least_bytes``. There is no lock that a forked child could inherit locked: a thread pops a block
    from its deque before it inspects the block, and only one thread can pop it.
    """

    def __init__(self, max_bytes: int, least_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._least_bytes = least_bytes
        self._blocks: dict[int, deque[Block]] = {}

    def forget(self) -> None:
        """Remove all buffers from the pool. Buffers in use are freed with their last view."""
        self._blocks = {}

    @property
    def size_bytes(self) -> int:
        """Return the bytes of all buffers that the pool keeps, in use or idle."""
        return sum(size * len(blocks) for size, blocks in tuple(self._blocks.items()))

    def acquire(self, size_bytes: int) -> memoryview:
        """Return a view of ``size_bytes`` with undefined contents."""
        wanted = 1 << (max(size_bytes, self._least_bytes) - 1).bit_length()
        for times in _LARGER:
            found = _idle(self._blocks.get(times * wanted))
            if found is not None:
                return found[:size_bytes]
        made = Block(wanted)
        view = memoryview(made)
        if self.size_bytes + wanted > self._max_bytes:
            self._make_room(wanted)
        if self.size_bytes + wanted <= self._max_bytes:
            self._blocks.setdefault(wanted, deque()).append(made)
        return view[:size_bytes]

    def _make_room(self, wanted: int) -> None:
        """Drop idle buffers until ``wanted`` bytes fit into the pool, or no buffer is idle."""
        for blocks in tuple(self._blocks.values()):
            for _ in range(len(blocks)):
                if self.size_bytes + wanted <= self._max_bytes or not blocks:
                    break
                block = blocks.popleft()
                if _view_alone(block) is None:
                    blocks.append(block)


def _idle(blocks: deque[Block] | None) -> memoryview | None:
    """Return a view of the idle block that was used last, as it may still be in a CPU cache; None without one."""
    for _ in range(len(blocks or ())):
        try:
            block = blocks.pop()  # type: ignore[union-attr]  # an empty range for None
        except IndexError:
            return None  # other threads have popped the rest
        view = _view_alone(block)
        if view is not None:
            blocks.append(block)  # type: ignore[union-attr]
            return view
        blocks.appendleft(block)  # type: ignore[union-attr]
    return None


def _view_alone(block: Block) -> memoryview | None:
    """Return a view of ``block``, or None while an earlier view of it exists.

    Python refuses to resize a bytearray that has a view: a resize is the test.
    """
    try:
        last = block.pop()
    except BufferError:
        return None
    block.append(last)  # within what is allocated: nothing is moved
    return memoryview(block)
