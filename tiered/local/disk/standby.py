"""``tiered-standby.json``: marks a log directory that follows a bucket. Only ``tiered restore`` writes there.

::

    {"version": 1, "remote": "s3://acme-logs/prod", "pulled_ms": 1767225600000}      0: never whole yet

The file is made before anything else in the directory, and removed once a promotion has claimed every partition.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from tiered.errors import ConfigError
from tiered.local.disk.checkpoints import read_json, refuse_newer
from tiered.local.disk.files import Files

STANDBY_NAME = "tiered-standby.json"
VERSION = 1


class StandbyMark(NamedTuple):
    """Bucket that is followed, and the time of the newest pull that ended without an error."""

    remote: str
    pulled_ms: int = 0


def read_standby(directory: Path, files: Files) -> StandbyMark | None:
    """Return the mark of a directory that follows, None for any other. Raises CorruptionError."""
    path = directory / STANDBY_NAME

    def decode(value: Any) -> StandbyMark:
        refuse_newer(path, value, VERSION)
        return StandbyMark(str(value["remote"]), int(value["pulled_ms"]))

    return read_json(path, files, decode, "move the directory aside and follow the bucket into a new one")


def write_standby(directory: Path, files: Files, mark: StandbyMark) -> None:
    """Replace the mark, durably."""
    value = {"version": VERSION, **mark._asdict()}
    files.replace(directory / STANDBY_NAME, json.dumps(value).encode() + b"\n")


def end_standby(directory: Path, files: Files) -> None:
    """Remove the mark, durably: from now on the directory is a log like any other."""
    files.unlink(directory / STANDBY_NAME)
    files.sync_directory(directory)


def refuse_standby(directory: Path, files: Files) -> None:
    """Raise ConfigError for a directory that follows a bucket."""
    mark = read_standby(directory, files)
    # mutant standby-is-read-only
    if mark is not None:
        raise ConfigError(
            f"{directory} follows {mark.remote} and is read-only",
            hint=f"open it with tiered.open_reader; `tiered restore --promote --log-dir {directory} --remote "
            f"{mark.remote}` makes it the writer",
        )
