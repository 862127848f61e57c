"""An object of a store as a :class:`tiered.model.ByteSource`: bytes by ranged GETs, nothing held."""

from __future__ import annotations

from tiered.errors import ClosedError, CorruptionError, NotFoundError
from tiered.store.base import Get, Head, Missing, Object, Store


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
