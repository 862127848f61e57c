"""``tiered-producer-ids.json``: the producer ids that this volume has given out. A broker ignores the file.

::

    {"version": 1, "first": 5909874999533895680, "next": 5909874999533896680}

Ids are reserved in blocks, durably, before the first of a block is used: none is ever given out twice. A volume begins
at a random id: ids of two volumes, or of a Kafka cluster (which counts from 0), do not collide when their logs meet.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tiered.clock import IdSource
from tiered.local.disk.checkpoints import read_json
from tiered.local.disk.files import Files
from tiered.local.disk.plain_lock import PlainLock

PRODUCER_IDS_NAME = "tiered-producer-ids.json"
VERSION = 1
_WITHOUT_IDS = (
    "remove it: ids then begin elsewhere; open transactions of this log are listed by `tiered transaction list`"
)

SEVERAL_NAME = "tiered-one-of-several"
"""Empty file of a directory that took part in transactions together with others: alone it does not know all topics."""

BLOCK_IDS = 1000
"""Ids reserved at once, as by Kafka's controller; ids of a block that a process leaves unused are never used."""

_VOLUME_BITS = 31
_COUNTER_BITS = 32

LEAST_ID = 1 << _COUNTER_BITS
"""Lower bound of the ids of any volume of ours; a Kafka cluster would have to give out four billion ids."""


class ProducerIds:
    """Producer ids of a log. Thread-safe. ``directories``: those of the log; each that gave out ids has its file."""

    def __init__(self, directories: Sequence[Path], files: Files, ids: IdSource) -> None:
        self._directories = list(directories)
        self._files = files
        self._ids = ids
        self._lock = PlainLock()
        self._left: list[int] = []

    def any_given(self) -> bool:
        """Return True if a transaction was ever begun here. Raises CorruptionError for a file that cannot be read."""
        return any(read_ids(directory, self._files) is not None for directory in self._directories)

    def is_ours(self, producer_id: int) -> bool:
        """Return True if this log gave the id out."""
        ranges = (read_ids(directory, self._files) for directory in self._directories)
        return any(given is not None and given[0] <= producer_id < given[1] for given in ranges)

    @property
    def sees_all(self) -> bool:
        """Return False if only one directory of a log with several is open: another may have a partition."""
        return len(self._directories) > 1 or self._files.state(self._directories[0] / SEVERAL_NAME) is None

    def next(self) -> int:
        """Return an id that was never given out. Raises LocalIOError, DiskFullError, CorruptionError."""
        with self._lock:
            if not self._left:
                self._left = list(reversed(self._reserve()))
            return self._left.pop()

    def _reserve(self) -> range:
        if len(self._directories) > 1:
            for directory in self._directories:
                if self._files.state(directory / SEVERAL_NAME) is None:
                    self._files.replace(directory / SEVERAL_NAME, b"")
        known = [(directory, given) for directory in self._directories if (given := read_ids(directory, self._files))]
        if known:
            directory, (first, start) = known[0]
        else:
            directory = self._directories[0]
            volume = 1 + int(self._ids.random() * (2**_VOLUME_BITS - 1))
            first = start = volume << _COUNTER_BITS
        value = {"version": VERSION, "first": first, "next": start + BLOCK_IDS}
        self._files.replace(directory / PRODUCER_IDS_NAME, json.dumps(value).encode() + b"\n")
        return range(start, start + BLOCK_IDS)


def read_ids(directory: Path, files: Files) -> tuple[int, int] | None:
    """Return (first, next) of one directory; None if it gave out no ids. Raises CorruptionError."""

    def decode(value: Any) -> tuple[int, int]:
        if value["version"] != VERSION:
            raise ValueError(f"version {value['version']}")
        return int(value["first"]), int(value["next"])

    return read_json(directory / PRODUCER_IDS_NAME, files, decode, _WITHOUT_IDS)
