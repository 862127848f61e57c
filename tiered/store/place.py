"""Stores as operations on whole logs name them.

A store is named as ``tiered.open`` names it (``s3://bucket/prefix``, ``file:///dir``, a path), or is an open ``Store``.
Options of S3 that are not given come from the environment (``TIERED_ENDPOINT_URL``, ``AWS_REGION`` and so on).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from tiered import arguments
from tiered.config import S3Keywords
from tiered.store.base import Store
from tiered.store.location import StoreLocation
from tiered.store.options import StoreOptions

Place = Store | str | Path
"""An open store, or the URL or path of one, which is opened for the call."""
LOOK = StoreOptions(create=False)
"""How it is opened: no folder is made."""


@contextlib.contextmanager
def open_place(place: Place, s3: S3Keywords | None = None) -> Iterator[Store]:
    """Opens a store that a URL or path names, and closes it. Raises NotFoundError for a folder that is no store."""
    if not isinstance(place, str | os.PathLike):
        yield arguments.has("store", place, ("execute",), "a URL, a path or an open store")
        return
    store = locate(place, s3 or {}).open(LOOK)
    try:
        yield store
    finally:
        store.close()


def locate(place: str | Path, s3: S3Keywords) -> StoreLocation:
    """The store at a URL or path. Raises NotFoundError for a folder that is none: a look must not make it one."""
    location = StoreLocation.parse(place, **s3)
    location.require_folder()
    return location
