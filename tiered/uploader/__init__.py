"""The uploader inside an application: ``tiered.open(path, remote=..., uploader=tiered.uploader.Uploader())``.

The daemon's package is ``uploader``; this is the name to import it by. A file ``uploader.py`` of an application hides
the package, wherever it is found first: that is said here, before the wrong one is run.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path


def _check_name() -> None:
    """Looks at what ``uploader`` would be, without importing it: it may be the script that is running."""
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
