"""A store that counts what is asked of it, and that can be told to answer otherwise."""

from __future__ import annotations

from collections.abc import Callable

from tiered.store.base import Get, Outcome, Store, StoreAround, StoreRequest

Answer = Callable[[StoreRequest, Callable[[], Outcome]], Outcome]


class RecordingStore(StoreAround):
    """Passes requests on to ``inner`` and remembers them; ``answer`` may stand in between."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.requests: list[StoreRequest] = []
        self.answer: Answer | None = None

    def execute(self, request: StoreRequest) -> Outcome:
        self.requests.append(request)
        if self.answer is not None:
            return self.answer(request, lambda: self.inner.execute(request))
        return self.inner.execute(request)

    def gets(self, suffix: str = "") -> list[Get]:
        """The GETs so far of keys that end with ``suffix``."""
        return [r for r in self.requests if isinstance(r, Get) and r.key.endswith(suffix)]

    def forget(self) -> None:
        """Starts counting anew."""
        self.requests.clear()
