"""Places whose store a test chooses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tiered.clock import SystemIds
from tiered.store.base import AioStore
from tiered.store.location import StoreLocation
from tiered.store.options import DEFAULTS, StoreOptions


@dataclass(frozen=True)
class Location(StoreLocation):
    """A location that opens ``store``."""

    store: Any = None

    def open_aio(self, options: StoreOptions = DEFAULTS) -> AioStore:
        store: AioStore = self.store
        return store


def location(name: str, store: AioStore | None = None) -> StoreLocation:
    plain = StoreLocation.parse(f"memory://{name}")
    return plain if store is None else Location(plain.scheme, plain.bucket, plain.prefix, store=store)


class Hasty(SystemIds):
    """No jitter: every wait after a failure is as good as none."""

    def random(self) -> float:
        return 0.0
