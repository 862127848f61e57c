"""Stores of one process, opened once each."""

from __future__ import annotations

import os
import threading
from typing import Unpack
from weakref import WeakKeyDictionary

from tiered.config import S3Keywords
from tiered.spark.options import ReadOptions
from tiered.spark.write_options import WriteOptions
from tiered.store.base import Capabilities, Store
from tiered.store.capabilities import check_capabilities, probe
from tiered.store.driver import drive
from tiered.store.location import StoreOptions, open_store

_stores: dict[tuple[object, ...], Store] = {}
_probed: WeakKeyDictionary[Store, Capabilities] = WeakKeyDictionary()
_lock = threading.Lock()


def store_of(path: str, options: ReadOptions | WriteOptions) -> Store:
    """Return the store of this process for ``path`` and ``options``. Raises ConfigError."""
    return worker_store(
        path,
        endpoint_url=options.endpoint_url,
        region=options.region,
        expected_bucket_owner=options.expected_bucket_owner,
    )


def worker_store(url: str, **s3: Unpack[S3Keywords]) -> Store:
    """Return the store of this process for ``url``; credentials come from its environment. Raises ConfigError.

    It is opened once per process, because an SDK client costs 0.1 s and a pool of connections, and workers are reused
    for many tasks. The process id is part of the key: a forked child must not use its parent's connections. Workers end
    without cleaning up, so nothing here needs to be closed.
    """
    key = (os.getpid(), url, *sorted(s3.items()))
    with _lock:
        store = _stores.get(key)
        if store is None:
            store = _stores[key] = open_store(url, StoreOptions(create=False), **s3)
        return store


def capabilities_of(store: Store) -> Capabilities:
    """Return the capabilities of a store of this process, probed once, because a probe costs some ten requests.

    Raises ConditionalWritesUnsupportedError if two writers could both win.
    """
    found = _probed.get(store)
    if found is None:
        found = _probed[store] = drive(store, probe())
    check_capabilities(found, store.url)
    return found
