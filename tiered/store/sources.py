"""Byte sources (``model.ByteSource``) and stores: an object read as one, one read as a file."""

from __future__ import annotations

import io
from typing import Any

from tiered.errors import ClosedError, CorruptionError, NotFoundError, TieredError
from tiered.model import ByteSource
from tiered.store.base import Get, Head, Missing, Object, Store

PIECE_BYTES = 1024 * 1024
"""Bodies are read and sent in pieces of this size."""


class ObjectSource:
    """The object ``key`` as it was when this was made; one that is replaced by another size is noticed. Thread-safe."""

    def __init__(self, store: Store, key: str, size: int) -> None:
        self._store = store
        self._key = key
        self._size = size
        self._closed = False

    @classmethod
    def open(cls, store: Store, key: str) -> ObjectSource:
        """Asks for the size first. Raises ``NotFoundError`` if there is no such object."""
        found = store.execute(Head(key))
        if not isinstance(found, Object):
            raise NotFoundError(f"{store.url} has no object {key}", hint="correct the key")
        return cls(store, key, found.size)

    @property
    def size(self) -> int:
        return self._size

    def read_at(self, position: int, length: int) -> bytes:
        """Exactly ``length`` bytes. Raises ``NotFoundError``, ``CorruptionError``, and what the store raises."""
        if self._closed:
            raise ClosedError(f"{self._key} was closed before")
        if length == 0:
            return b""
        found = self._store.execute(Get(self._key, position, position + length))
        if isinstance(found, Missing):
            raise NotFoundError(f"the object {self._key} is gone", hint="read the catalog again")
        if not isinstance(found, Object) or len(found.data) != length or found.size != self._size:
            raise CorruptionError(
                f"the object {self._key} has not the {self._size} bytes that it should have",
                path_or_key=self._key,
                position=position,
                hint="run check",
            )
        return found.data

    def close(self) -> None:
        """Nothing to release; reading afterwards is an error."""
        self._closed = True


class SourceReader(io.RawIOBase):
    """A byte source as the seekable file that SDKs want. Reads ``PIECE_BYTES`` ahead and never more.

    ``failure`` keeps an error of the source: the SDKs wrap it as if the network had failed.
    """

    def __init__(self, source: ByteSource, start: int, end: int) -> None:
        super().__init__()
        self._source = source
        self._start = start
        self._size = end - start
        self._position = 0
        self._piece = b""
        self._piece_start = 0
        self.failure: TieredError | None = None

    def __len__(self) -> int:
        return self._size

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = max(0, base + offset)
        return self._position

    def read(self, size: int | None = -1) -> bytes:
        """At most ``size`` and at most one piece: a short read is legal, and holds the memory down."""
        left = self._size - self._position
        wanted = min(left, PIECE_BYTES, PIECE_BYTES if size is None or size < 0 else size)
        if wanted <= 0:
            return b""
        at = self._position - self._piece_start
        if not 0 <= at < len(self._piece):
            length = min(PIECE_BYTES, left)
            try:
                self._piece = self._source.read_at(self._start + self._position, length)
            except TieredError as error:
                self.failure = error
                raise
            self._piece_start, at = self._position, 0
        data = self._piece[at : at + wanted]
        self._position += len(data)
        return data

    def readinto(self, buffer: Any) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)
