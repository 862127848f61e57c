"""What a crash left in a partition directory, before anything is loaded (docs/kafka-semantics.md#leftovers).

A replacement that had not begun to take effect is undone, one that had is finished; files on their way out, and indexes
and notes without their log, go.
"""

from __future__ import annotations

import logging
from pathlib import Path

from tiered.errors import CorruptionError
from tiered.format.keys import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    SWAP_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    LocalFile,
    local_name,
    parse_local_name,
)
from tiered.local.disk.files import Files, sweep_temporaries
from tiered.local.segment.scan import LogFile
from tiered.local.segment.seal import SEAL_SUFFIX, leftover_notes

LOGGER = logging.getLogger("tiered.local")

INDEX_SUFFIXES = (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)


def settle_leftovers(files: Files, directory: Path) -> list[int]:
    """Finishes or undoes what had begun; returns the bases of the segments that are there, ascending."""
    sweep_temporaries(files, directory)
    names = {name: parsed for name in files.names(directory) if (parsed := parse_local_name(name))}
    cleaned = [file.base for file in names.values() if file.work == CLEANED_SUFFIX]
    undone = min(cleaned, default=None)
    # The order matters if there is another crash: a .swap must not outlive the .cleaned that undoes it.
    for work in (DELETED_SUFFIX, SWAP_SUFFIX, CLEANED_SUFFIX):
        for name, file in list(names.items()):
            if file.work != work or (work == SWAP_SUFFIX and (undone is None or file.base < undone)):
                continue
            files.unlink(directory / name)
            del names[name]
    _complete_swaps(files, directory, names)
    logs = {file.base for file in names.values() if file.suffix == LOG_SUFFIX and not file.work}
    for file in names.values():
        if file.suffix in INDEX_SUFFIXES and file.base not in logs and not file.work:
            files.unlink(directory / local_name(file.base, file.suffix))
    for name in leftover_notes(files.names(directory), logs):
        files.unlink(directory / name)
    return sorted(logs)


def _complete_swaps(files: Files, directory: Path, names: dict[str, LocalFile]) -> None:
    """``.swap`` files replace every plain segment in the range that they cover together."""
    swaps = sorted(file for file in names.values() if file.work == SWAP_SUFFIX)
    logs = [file.base for file in swaps if file.suffix == LOG_SUFFIX]
    if logs:
        end = max(_end_of(files, directory / local_name(base, LOG_SUFFIX, SWAP_SUFFIX), base) for base in logs)
        for name, file in list(names.items()):
            if not file.work and file.suffix != SNAPSHOT_SUFFIX and min(logs) <= file.base < end:
                files.unlink(directory / name)
                files.unlink(directory / local_name(file.base, SEAL_SUFFIX))
                del names[name]
    for swap in sorted(swaps, key=lambda file: (file.base, file.suffix != LOG_SUFFIX)):
        plain = local_name(swap.base, swap.suffix)
        files.rename(directory / (plain + SWAP_SUFFIX), directory / plain)
        del names[plain + SWAP_SUFFIX]
        names[plain] = LocalFile(swap.base, swap.suffix)
    if swaps:
        files.sync_directory(directory)


def _end_of(files: Files, path: Path, base_offset: int) -> int:
    """The offset behind the last batch; of those that can be read, if the file is damaged."""
    end = base_offset + 1
    with LogFile(files, path) as log:
        try:
            for span, _ in log.batches(0, log.size()):
                end = max(end, span.last_offset + 1)
        except CorruptionError as error:
            LOGGER.warning("replacement_damaged path=%s error=%s", path, error)
    return end
