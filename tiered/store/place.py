"""Stores as arguments of operations on whole logs.

A store is named as in ``tiered.open`` (``s3://bucket/prefix``, ``file:///dir``, a path), or is an open ``Store``.
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
"""An open store, or the URL or path of a store that is opened for the call."""
LOOK = StoreOptions(create=False)
"""Options of such a store: no folder is made."""


@contextlib.contextmanager
def open_place(place: Place, s3: S3Keywords) -> Iterator[Store]:
    """Open a store by URL or path, and close it at the end. Raises NotFoundError for a folder that is no store."""
    if not isinstance(place, str | os.PathLike):
        yield arguments.has("remote", place, ("execute",), "a URL, a path or an open store")
        return
    store = locate(place, s3).open(LOOK)
    try:
        yield store
    finally:
        store.close()


def location_of(place: Place, s3: S3Keywords) -> StoreLocation | None:
    """Return the location of a URL or path; None for an open store."""
    return locate(place, s3) if isinstance(place, str | os.PathLike) else None


def locate(place: str | Path, s3: S3Keywords) -> StoreLocation:
    """Return the store at a URL or path. Raises NotFoundError for a folder that is no store, and creates none."""
    location = StoreLocation.parse(place, **s3)
    location.require_folder()
    return location
