"""Buffers that files and bodies of answers are read into, used again when nobody looks into them.

The pages of a fresh buffer cost as much CPU as the bytes that come into them from a socket.
"""

from __future__ import annotations

from collections import deque

from tiered.format.pure_kernels import Block

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

    def take(self, size_bytes: int) -> memoryview:
        """``size_bytes`` to be filled; what they hold is anything."""
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
        """Lets go of buffers of other sizes that nobody uses."""
        for blocks in tuple(self._blocks.values()):
            for _ in range(len(blocks)):
                if self.size_bytes + wanted <= self._max_bytes or not blocks:
                    break
                block = blocks.popleft()
                if _view_alone(block) is None:
                    blocks.append(block)


def _idle(blocks: deque[Block] | None) -> memoryview | None:
    """A view of the one that nobody uses and that was used last: its bytes may still be in a CPU's cache."""
    for _ in range(len(blocks or ())):
        try:
            block = blocks.pop()  # type: ignore[union-attr]  # an empty range for None
        except IndexError:
            return None  # other threads look through them
        view = _view_alone(block)
        if view is not None:
            blocks.append(block)  # type: ignore[union-attr]
            return view
        blocks.appendleft(block)  # type: ignore[union-attr]
    return None


def _view_alone(block: Block) -> memoryview | None:
    """A view of ``block``; None if there is one already: Python lets nobody change the length of such a block."""
    try:
        last = block.pop()
    except BufferError:
        return None
    block.append(last)  # within what is allocated: nothing is moved
    return memoryview(block)
