"""``{base}.seal``: totals of a ``.log`` file, so that its 64 MiB need not be read for them.

Written beside the segment when it is sealed and, for the active one, at a clean close. It is believed only while size
and base agree with the file; brokers ignore it; a missing or stale note costs one scan, never data.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable
from dataclasses import asdict
from pathlib import Path

from tiered.errors import NotFoundError
from tiered.format.batch import least_timestamp
from tiered.format.batch_scanner import Offsets
from tiered.format.kernels import crc32c
from tiered.format.local_names import DELETED_SUFFIX
from tiered.format.segment_builder import SegmentStats
from tiered.local.disk.files import Files
from tiered.local.segment.scan import LogFile

SEAL_SUFFIX = ".seal"
VERSION = 1
CHECK = "check"
"""CRC32C over the rest of the note; older notes have none."""

_NAME = re.compile(rf"(?P<base>[0-9]{{20}}){re.escape(SEAL_SUFFIX)}(?P<work>{re.escape(DELETED_SUFFIX)})?")


def measure(log: LogFile, size_bytes: int, offsets: Offsets, *, dense: bool = False) -> SegmentStats:
    """Return totals of a segment by reading all of it; verify batch CRCs, and that its batches fill it, in ``offsets``.

    ``dense``: no offset is left out. Raises CorruptionError with the place. Control records (transaction markers)
    count: they occupy offsets.
    """
    stats = SegmentStats()
    for span, view in log.segment(0, size_bytes, offsets, dense=dense, reach=offsets.next if dense else -1):
        header = log.verify(span, view)
        least = least_timestamp(header, view)
        stats.add(view, header.records_count, least, header.max_timestamp, header.leader_epoch)
    return stats


def leftover_notes(names: Iterable[str], bases: Collection[int]) -> list[str]:
    """Return the names of ``.seal`` files to remove: renamed ones, and those without a segment at ``bases``.

    A ``.seal`` file that stayed would make a later segment with the same base look too short.
    """
    matches = [match for name in names if (match := _NAME.fullmatch(name)) is not None]
    return [match[0] for match in matches if match["work"] or int(match["base"]) not in bases]


def write_note(files: Files, path: Path, stats: SegmentStats) -> None:
    """Replace the note of a segment."""
    value = {"version": VERSION, **asdict(stats)}
    files.replace(path, json.dumps({**value, CHECK: _check_of(value)}).encode())


def _check_of(value: dict[str, int]) -> int:
    """Return the CRC32C of a note's values, as written."""
    return crc32c(json.dumps(value).encode())


def read_note(files: Files, path: Path, size_bytes: int) -> SegmentStats | None:
    """Return the totals in a ``.seal`` file, None if it is missing or belongs to another file size."""
    stats = _decode_note(files, path)
    return stats if stats is not None and stats.size_bytes == size_bytes else None


def noted_size(files: Files, path: Path) -> int:
    """Return the number of sealed bytes in the note; -1 without one. The file may have been rewritten since."""
    stats = _decode_note(files, path)
    return -1 if stats is None else stats.size_bytes


def _decode_note(files: Files, path: Path) -> SegmentStats | None:
    try:
        value = json.loads(files.read(path))
        if CHECK in value and value.pop(CHECK) != _check_of(value):
            return None
        if value.pop("version") != VERSION or any(type(number) is not int for number in value.values()):
            return None
        return SegmentStats(**value)
    except (NotFoundError, ValueError, TypeError, KeyError, AttributeError):
        return None
