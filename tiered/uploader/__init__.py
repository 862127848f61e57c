"""The uploader inside an application: ``tiered.open(path, remote=..., uploader=tiered.uploader.Uploader())``.

The daemon's package is ``uploader``, imported here. An application's own ``uploader.py`` may hide that package. The
import then raises an error before it runs the wrong module.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path


def _check_name() -> None:
    """Raise ImportError if ``uploader`` is another module. It is not imported: it may be the running script."""
    found = importlib.util.find_spec("uploader")
    origin = Path(found.origin) if found is not None and found.origin else None
    if origin is None or not origin.with_name("component.py").is_file():
        raise ImportError(
            f"{origin or 'something'} has the name of tieredlog's package `uploader` and is found before it: rename it"
        )


_check_name()

from uploader.component import Uploader  # noqa: E402 - not before the name is known to be ours
from uploader.config import Settings  # noqa: E402

__all__ = ["Settings", "Uploader"]
