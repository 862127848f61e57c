"""A file of a newer release is no damage: it is left as it is, and whoever meets it says "upgrade"."""

from __future__ import annotations

import json
from pathlib import Path

from tiered.errors import NewerFormatError


def refuse_newer(path: Path, value: object, known: int) -> None:
    """Raises NewerFormatError if ``value``, the file's JSON, names a version above ``known``."""
    version = value.get("version") if isinstance(value, dict) else None
    if isinstance(version, int) and not isinstance(version, bool) and version > known:
        raise NewerFormatError(
            f"{path} was written by a newer release: it has version {version}, this one knows {known}",
            path_or_key=str(path),
            hint="upgrade tieredlog; nothing was changed",
        )


def first_json(data: bytes) -> object:
    """The JSON value of the first line, None if that is none."""
    try:
        return json.loads(data.partition(b"\n")[0])
    except ValueError:
        return None
