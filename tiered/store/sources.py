"""Byte sources (``model.ByteSource``) and stores: an object as a source, and a source as a file."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

from tiered.errors import ClosedError, CorruptionError, NotFoundError, TieredError
from tiered.model import ByteSource, FillingSource, LendingSource
from tiered.store.base import Get, Head, Missing, Object, Store

PIECE_BYTES = 1024 * 1024
"""Size of the pieces in which bodies are read and sent."""

WHOLE_BYTES = 64 * 1024
"""Size from which lent memory is sent without copying: smaller pieces cost more to send than to copy."""


class ObjectSource:
    """Byte source over the object ``key``. Thread-safe. Raises CorruptionError if the object was replaced by one of
    another size.
    """

    def __init__(self, store: Store, key: str, size: int) -> None:
        self._store = store
        self._key = key
        self._size = size
        self._closed = False

    @classmethod
    def open(cls, store: Store, key: str) -> ObjectSource:
        """Return a byte source over an object, after a HEAD for its size. Raises ``NotFoundError`` if it is absent."""
        found = store.execute(Head(key))
        if not isinstance(found, Object):
            raise NotFoundError(f"{store.url} has no object {key}", hint="correct the key")
        return cls(store, key, found.size)

    @property
    def size(self) -> int:
        return self._size

    def read_at(self, position: int, length: int) -> bytes:
        """Return exactly ``length`` bytes from ``position``.

        Raises ``NotFoundError`` if the object was deleted, ``CorruptionError`` if it has another size than at the open.
        Raises ``ClosedError`` after :meth:`close`, and errors of the store.
        """
        if self._closed:
            raise ClosedError(f"the byte source of {self._key} is closed")
        if length == 0:
            return b""
        found = self._store.execute(Get(self._key, position, position + length))
        if isinstance(found, Missing):
            raise NotFoundError(f"the object {self._key} was deleted", hint="run it again with a newer catalog")
        if not isinstance(found, Object) or len(found.data) != length or found.size != self._size:
            raise CorruptionError(
                f"the object {self._key} no longer has {self._size} bytes",
                path_or_key=self._key,
                position=position,
                hint="`tiered check` names the objects that were changed",
            )
        return found.data

    def close(self) -> None:
        """Refuse further reads; there is nothing to release."""
        self._closed = True


def pieces_of(source: ByteSource, start: int, end: int) -> Iterator[bytes | memoryview]:
    """Yield bytes ``start`` to ``end`` (exclusive) of a source in pieces, each valid until the next one is requested.

    Memory that the source lends is not copied. Otherwise pieces have ``PIECE_BYTES``, and the pieces of a file share
    one buffer.
    """
    if isinstance(source, LendingSource):
        while start < end:
            piece = _lent_piece(source, start, min(PIECE_BYTES, end - start))
            yield piece
            start += len(piece)
        return
    filling = source if isinstance(source, FillingSource) else None
    buffer = memoryview(bytearray(min(PIECE_BYTES, end - start) if filling is not None else 0))
    for position in range(start, end, PIECE_BYTES):
        length = min(PIECE_BYTES, end - position)
        if filling is None:
            yield source.read_at(position, length)
        else:
            filling.fill_from(position, buffer[:length])
            yield buffer[:length]


def _lent_piece(source: LendingSource, position: int, length: int) -> bytes | memoryview:
    """Return the first bytes of a range of ``length`` bytes at ``position``.

    A large view of lent memory is returned as it is. If the first view is small, all views of the range are copied and
    joined.
    """
    views = source.views(position, length)
    return views[0] if len(views[0]) >= WHOLE_BYTES else b"".join(views)


class SourceReader(io.RawIOBase):
    """Bytes ``start`` to ``end`` of a byte source as the seekable file that SDKs want.

    Reads ``PIECE_BYTES`` ahead and never more. ``at_once``: the caller sends all that it reads before the next read. A
    file's pieces then share one buffer, lent memory is not copied, and :meth:`read` returns views of the whole rest of
    a piece: blocks of the SDK's size cost up to twice as much to send. ``failure``: an error of the source, which the
    SDKs wrap as if the network had failed.
    """

    def __init__(self, source: ByteSource, start: int, end: int, *, at_once: bool = False) -> None:
        super().__init__()
        self._source = source
        self._filling = source if at_once and isinstance(source, FillingSource) else None
        self._lending = source if at_once and isinstance(source, LendingSource) else None
        self._buffer = memoryview(b"")
        self._start = start
        self._size = end - start
        self._position = 0
        self._piece: bytes | memoryview = b""
        self._piece_start = 0
        self.failure: TieredError | None = None

    def __len__(self) -> int:
        return self._size

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:  # words: the name of `io.RawIOBase`
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = max(0, base + offset)
        return self._position

    def read(self, size: int | None = -1) -> bytes | memoryview:  # a view where at_once
        """Return the next bytes, at most ``size`` and at most ``PIECE_BYTES``; empty at the end.

        With ``at_once``, a file and lent memory ignore a ``size`` above 0: a view of the whole rest of the piece is
        returned.
        """
        left = self._size - self._position
        if size is None or size < 0 or (size and (self._filling or self._lending)):
            size = PIECE_BYTES
        wanted = min(left, PIECE_BYTES, size)
        if wanted <= 0:
            return b""
        at = self._position - self._piece_start
        if not 0 <= at < len(self._piece):
            self._read_piece(min(PIECE_BYTES, left))
            at = 0
        data = self._piece[at : at + wanted]
        self._position += len(data)
        return data

    def readinto(self, buffer: Any) -> int:
        data = self.read(len(buffer))
        if len(data) > len(buffer):  # the buffer has room for only a part of the piece
            self._position -= len(data) - len(buffer)
            data = data[: len(buffer)]
        buffer[: len(data)] = data
        return len(data)

    def _read_piece(self, length: int) -> None:
        """Read ``length`` bytes at the current position, for later calls of :meth:`read`.

        An error of the source is raised, and ``failure`` gets it.
        """
        self._piece = b""
        try:
            if self._lending is not None:
                self._piece = _lent_piece(self._lending, self._start + self._position, length)
            elif self._filling is None:
                self._piece = self._source.read_at(self._start + self._position, length)
            else:
                if not self._buffer:
                    self._buffer = memoryview(bytearray(min(PIECE_BYTES, self._size)))
                self._filling.fill_from(self._start + self._position, self._buffer[:length])
                self._piece = self._buffer[:length]
        except TieredError as error:
            self.failure = error
            raise
        self._piece_start = self._position
