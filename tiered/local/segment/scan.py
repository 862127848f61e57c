"""Scan of one ``.log`` file, with ``preadv`` into a small reused buffer, without a memory map.

``segment`` checks every batch against the segment's range and order (``format.batch_scanner``). Use it for segments
that should be whole, and ``batches`` for files after a crash.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tiered.errors import CorruptionError
from tiered.format.batch import HEADER_BYTES, BatchHeader, read_header, verify_batch
from tiered.format.batch_scanner import MAX_IGNORED_TAIL_BYTES, NO_LIMIT, BatchPosition, BatchWalk, Offsets
from tiered.format.buffers import BufferPool
from tiered.format.kernel_values import Block
from tiered.local.disk.files import Files

BUFFER_BYTES = 256 * 1024
"""Default size of the reused buffer; a larger batch gets a buffer of its own, bounded by the file."""

FIRST_BYTES = 16 * 1024
"""Limit of the first piece of a walk: a read of one record, after an entry of the index, needs no more."""


POOL_BYTES = 8 * 1024 * 1024
"""Limit of the buffers that one process retains for reads of the local tier."""

BUFFERS = BufferPool(POOL_BYTES, BUFFER_BYTES)
"""Buffers of this process, for walks whose pieces may be retained."""


class _Buffers:
    """Buffers of one walk: a single one that is reused, or with ``kept`` a new one from the pool for each piece."""

    def __init__(self, *, kept: bool) -> None:
        self._only = None if kept else bytearray()

    def acquire(self, size_bytes: int) -> memoryview:
        """Return a buffer of ``size_bytes`` to fill."""
        if self._only is None:
            return BUFFERS.acquire(size_bytes)
        if len(self._only) < size_bytes:
            self._only = bytearray(size_bytes)
        return memoryview(self._only)[:size_bytes]


class LogFile:
    """One open ``.log`` file. Errors name its path, and the position and offset of the damage.

    ``handle``: an open handle of the file, which :meth:`close` leaves open; None opens ``path``.
    """

    def __init__(self, files: Files, path: Path, *, handle: int | None = None) -> None:
        self.path = path
        self._files = files
        self._owned = handle is None
        self._handle = files.open_read(path) if handle is None else handle
        self._looked: tuple[int, int, memoryview] | None = None  # position, end of the segment, first piece

    def close(self) -> None:
        """Close the file if this object opened it."""
        if self._owned:
            self._owned = False
            self._files.close(self._handle)

    def __enter__(self) -> LogFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def size(self) -> int:
        """Return the length of the file in bytes."""
        return self._files.size(self._handle)

    def read_into(self, buffer: bytearray, position: int) -> int:
        """Fill ``buffer`` from ``position`` on. Return the number of bytes, fewer only at the end of the file."""
        return self._files.read_into(self._handle, buffer, position)

    def read_at(self, position: int, length: int) -> bytes:
        """Return exactly ``length`` bytes from ``position`` on. Raises CorruptionError if the file ends before."""
        buffer = bytearray(length)
        if self._files.read_into(self._handle, buffer, position) < length:
            raise self.damage(position, f"the file ends within the {length} bytes that are expected here")
        return bytes(buffer)

    def segment(
        self, position: int, size_bytes: int, offsets: Offsets, *, dense: bool = False, reach: int = -1
    ) -> Iterator[tuple[BatchPosition, memoryview]]:
        """Yield each batch from ``position`` (a batch's start) to ``size_bytes``, the end of a whole segment.

        CRCs are not checked. The view is valid until the next step. Raises CorruptionError for a misplaced batch:
        outside ``offsets``, or not after the batch before. Raises it, too, if the batches do not end at
        ``size_bytes``, or end below the offset ``reach``. ``dense``: raise it also for a missing offset (v2 batches
        only, because older ones lack their first offset).
        """
        walk = self.walk(position, offsets, dense=dense)
        return self._through(walk, size_bytes, reach)

    def stretches(
        self,
        position: int,
        size_bytes: int,
        offsets: Offsets,
        start_offset: int,
        *,
        buffer_bytes: int = BUFFER_BYTES,
    ) -> Iterator[tuple[BatchPosition, memoryview, bool]]:
        """Yield (position and offsets, bytes, is verified) of the batches that end at or above ``start_offset``.

        Verified is a run of consecutive v2 batches with right CRCs, as long as the buffer allows. Not verified is a
        single batch whose CRC was not checked. Raises CorruptionError for a batch outside ``offsets``, or not after the
        batch before, and if the batches do not end at ``size_bytes``. ``position``: a batch's start.
        """
        walk = self.walk(position, offsets)
        for piece in self.pieces(walk, size_bytes, buffer_bytes=buffer_bytes, first_bytes=buffer_bytes):
            start = walk.position
            while rest := piece[walk.position - start :]:
                at = walk.position
                run = walk.verified(rest, NO_LIMIT) if walk.expected >= start_offset else None
                if run is not None:
                    yield BatchPosition(at, len(run.data), run.base_offset, run.next_offset - 1), run.data, True
                    continue
                one = next(walk.whole(rest), None)
                if one is None:
                    break
                if one[0].last_offset >= start_offset:
                    yield *one, False

    def walk(self, position: int, offsets: Offsets | None = None, *, dense: bool = False) -> BatchWalk:
        """Return a walk for :meth:`pieces` that starts at ``position``, a batch's start.

        It raises CorruptionError for an impossible length or magic, for a batch outside ``offsets``, and for one that
        is not after the batch before. ``dense``: raise it also for a missing offset. ``offsets`` None: neither offsets
        nor the end of the file are checked.
        """
        return BatchWalk(self.damage, position=position, offsets=offsets, dense=dense)

    def batches(
        self, position: int, end: int, *, buffer_bytes: int = BUFFER_BYTES
    ) -> Iterator[tuple[BatchPosition, memoryview]]:
        """Yield each whole batch from ``position`` (a batch's start) to ``end``, by declared length.

        CRCs are not checked. The view is valid until the next step. ``buffer_bytes`` are read at a time. A partial
        batch at the end is left out. Raises CorruptionError for an impossible length or magic.
        """
        return self._through(self.walk(position), end, buffer_bytes=buffer_bytes)

    def _through(
        self, walk: BatchWalk, end: int, reach: int = -1, *, buffer_bytes: int = BUFFER_BYTES
    ) -> Iterator[tuple[BatchPosition, memoryview]]:
        for piece in self.pieces(walk, end, reach=reach, buffer_bytes=buffer_bytes):
            yield from walk.whole(piece)

    def pieces(
        self,
        walk: BatchWalk,
        end: int,
        *,
        reach: int = -1,
        buffer_bytes: int = BUFFER_BYTES,
        first_bytes: int = FIRST_BYTES,
        kept: bool = False,
    ) -> Iterator[memoryview]:
        """Yield the bytes from the position of ``walk`` to ``end`` in pieces. A piece is valid until the next step.

        Before the next step the caller passes the piece to ``walk``, which advances over its whole batches. ``kept``: a
        piece is valid while it is referenced. ``first_bytes``, ``buffer_bytes``: size of the first and of later pieces.
        For a walk with offsets, the last step raises CorruptionError if the batches do not end at ``end``, or end below
        the offset ``reach``.
        """
        buffers, size_bytes = _Buffers(kept=kept), 0
        while end - walk.position > MAX_IGNORED_TAIL_BYTES:
            position = walk.position
            if not size_bytes:
                wanted = min(first_bytes, buffer_bytes, end - position)
                view = self._first_piece(position, end, wanted)
            else:
                wanted = min(size_bytes, end - position)
                view = buffers.acquire(wanted)
                view = view[: self._files.read_into(self._handle, view, position)]
            filled = len(view)
            yield view.toreadonly()
            if walk.position > position:
                size_bytes = size_bytes or buffer_bytes
                del view  # its buffer is the first one to be filled again
                continue
            if filled < wanted:
                break  # the file is shorter than its declared end
            size = walk.size_at(view)
            if size > end - position:
                break
            size_bytes = max(size, buffer_bytes)
        walk.finish(end, reach=reach)

    def _first_piece(self, position: int, end: int, wanted: int) -> memoryview:
        """Return at least ``wanted`` bytes, fewer only at the end of the file. Use bytes that were read already."""
        if self._looked is not None and self._looked[0] == position and end <= self._looked[1]:
            return self._looked[2][: end - position]
        view = memoryview(Block(wanted))
        return view[: self._files.read_into(self._handle, view, position)]

    def starts_batch(self, position: int, size_bytes: int, offsets: Offsets, *, at_or_below: int) -> bool:
        """Return True if a batch starts at ``position`` and its base offset is at most ``at_or_below``.

        The batch must also end by ``size_bytes``, the segment's length, and its offsets must be in ``offsets``. A walk
        that begins there uses the bytes read for this check.
        """
        view = self._first_piece(position, size_bytes, max(0, min(FIRST_BYTES, size_bytes - position)))
        self._looked = position, size_bytes, view
        try:
            header = self.header(view[:HEADER_BYTES], position)
        except CorruptionError:
            return False
        return (
            offsets.base <= header.base_offset <= at_or_below
            and header.last_offset < offsets.next
            and position + header.size_bytes <= size_bytes
        )

    def header_at(self, position: int, end: int) -> BatchHeader:
        """Return the header of the batch that starts at ``position``. Raises CorruptionError if none starts there.

        ``end``: byte at which the segment ends.
        """
        data = self.read_at(position, max(0, min(HEADER_BYTES, end - position)))
        return self.header(memoryview(data), position)

    def header(self, view: memoryview, position: int) -> BatchHeader:
        """Return the header of a batch that :meth:`batches` yielded. Raises CorruptionError if it is impossible."""
        try:
            return read_header(view)
        except CorruptionError as error:
            raise self.damage(position, error.message) from None

    def verify(self, span: BatchPosition, view: memoryview) -> BatchHeader:
        """Check a batch with its CRC and return its header. Raises CorruptionError if the batch is damaged.

        ``span``: its place, for that error.
        """
        try:
            return verify_batch(view)
        except CorruptionError as error:
            raise self.damage(span.position, error.message, span.base_offset) from None

    def is_intact(self, view: memoryview) -> bool:
        """Return True if the CRC of a batch that :meth:`batches` yielded is right."""
        try:
            verify_batch(view)
        except CorruptionError:
            return False
        return True

    def damage(self, position: int, what: str, offset: int = -1) -> CorruptionError:
        """Return a CorruptionError for wrong bytes at ``position``. ``what``: the text; ``offset``: -1 if unknown."""
        return CorruptionError(
            f"{self.path} at byte {position}: {what}",
            path_or_key=str(self.path),
            position=position,
            offset=offset,
            hint="run `tiered check` to list all damage, then `tiered repair`; the damaged bytes are not deleted",
        )
