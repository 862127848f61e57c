"""Files of an issue report in one archive: checks, settings, sizes of files and the daemon's status; no records."""

from __future__ import annotations

import io
import json
import os
import re
import tarfile
from collections.abc import Mapping
from pathlib import Path

from tiered.errors import ConfigError
from tiered.program.application import Application
from tiered.program.uploader_status import ask_uploader

MAX_LISTED = 20_000
"""Most files of the log directory that are listed."""
_SECRET = re.compile(r"//[^/@\s\"]+@")
"""User and password in a URL."""


def write_bundle(path: Path, app: Application, checks: Mapping[str, object]) -> None:
    """Write the archive. Raises ConfigError.

    Of the environment only the names of ``AWS_*`` and ``TIERED_*`` variables are in it, never their values.
    """
    documents: dict[str, object] = {
        "doctor.json": checks,
        "settings.json": {name: [str(value.value), value.origin] for name, value in app.values.items()},
        "environment.json": sorted(name for name in os.environ if name.startswith(("AWS_", "TIERED_"))),
    }
    if app.log_dir is not None and app.log_dir.is_dir():
        documents["files.json"] = _sizes(app.log_dir)
        documents["status.json"] = ask_uploader(app.log_dir, app.clock).document
    try:
        with tarfile.open(path, "w:gz") as archive:
            for name, document in documents.items():
                text = _SECRET.sub("//***@", json.dumps(document, indent=1, default=str)).encode()
                entry = tarfile.TarInfo(name)
                entry.size, entry.mtime = len(text), app.clock.now_ms() // 1000
                archive.addfile(entry, io.BytesIO(text))
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}", hint="choose another --bundle") from error
    app.out.say(f"{path}: look through it, then attach it to the report")


def _sizes(directory: Path) -> dict[str, int]:
    """Return the sizes of the files by path."""
    found: dict[str, int] = {}
    for folder, _, names in os.walk(directory):
        for name in sorted(names):
            if len(found) == MAX_LISTED:
                return found
            place = Path(folder, name)
            if place.is_file():
                found[str(place.relative_to(directory))] = place.stat().st_size
    return found
