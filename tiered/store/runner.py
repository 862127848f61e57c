"""Runner of steps with a store, or none, and clocks. On threads; ``aio_runner`` on asyncio."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, TypeVar

from tiered.clock import Clock, IdSource
from tiered.errors import ConfigError
from tiered.store.base import Outcome, Steps, Store, StoreRequest
from tiered.store.driver import TOGETHER_REQUESTS, Taker, drive, drive_stream, refuse

T = TypeVar("T")


class _NoStore:
    """Store of a log without bucket: steps that only wait for the disk never use it."""

    url = ""

    def execute(self, request: StoreRequest) -> Outcome:
        """Raise ConfigError."""
        raise no_store(request)

    def close(self) -> None:
        """Do nothing."""


_NO_STORE = _NoStore()


@dataclass(frozen=True, slots=True)
class Runner:
    """Runner of steps on the calling thread. ``together``: the requests that are under way at once."""

    store: Store | None = None
    clock: Clock | None = None
    ids: IdSource | None = None
    together: int = TOGETHER_REQUESTS

    def run(self, steps: Steps[T], take: Taker = refuse) -> T:
        """Run ``steps`` to their end; ``take`` receives the values that they emit."""
        return drive(self.store or _NO_STORE, steps, clock=self.clock, ids=self.ids, take=take, together=self.together)

    def stream(
        self, steps: Steps[object], after: Callable[[], Steps[object]] | None = None
    ) -> Generator[Any, None, object]:
        """Iterate over what the steps emit. ``after`` runs at the end, also of a stream that is closed early."""
        emitted = drive_stream(self.store or _NO_STORE, steps, clock=self.clock, ids=self.ids)
        return emitted if after is None else self._stream_then(emitted, after)

    def _stream_then(
        self, emitted: Generator[Any, None, object], after: Callable[[], Steps[object]]
    ) -> Generator[Any, None, object]:
        try:
            return (yield from emitted)
        finally:
            if not sys.is_finalizing():  # sockets and imports are gone by then: a remaining pin expires
                self.run(after())


def no_store(request: StoreRequest) -> ConfigError:
    """Return the error of a request without a store."""
    return ConfigError(f"there is no store to carry out {type(request).__name__}", hint="name one")
