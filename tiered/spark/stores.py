"""Stores of a Python worker: opened once per process, because an SDK client costs 0.1 s and a pool of connections.

Workers are reused for many tasks. The process id is part of the key: a forked child must not use its parent's
connections. Workers end without cleaning up, so nothing here needs to be closed.
"""

from __future__ import annotations

import os
import threading

from tiered.store.base import Store
from tiered.store.location import open_store

_stores: dict[tuple[int, str, str | None, str | None], Store] = {}
_lock = threading.Lock()


def worker_store(url: str, endpoint_url: str | None = None, region: str | None = None) -> Store:
    """The store of this process for ``url``; credentials come from its environment. Raises ConfigError."""
    key = (os.getpid(), url, endpoint_url, region)
    with _lock:
        store = _stores.get(key)
        if store is None:
            store = _stores[key] = open_store(url, endpoint_url=endpoint_url, region=region, create=False)
        return store
