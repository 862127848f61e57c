"""What the partitions of one log directory share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tiered.clock import Clock, IdSource
from tiered.config import LogConfig
from tiered.errors import TieredError
from tiered.local.disk.claims import Claims
from tiered.local.disk.files import Files
from tiered.local.disk.space import DiskReserve
from tiered.local.disk.uploads import UploadCheckpoint
from tiered.model import TopicPartition


@dataclass(frozen=True, slots=True)
class Surroundings:
    """``sealed`` is called, without locks, when a seal became durable.

    ``cut`` is called before a log is cut: at which offset it will end, and the lowest end that a crash may leave.
    ``failed`` is told what took a partition offline, possibly under its locks. ``claims`` and ``uploads``: what the
    directory's files say of claims and of committed ends, as of now.
    """

    files: Files
    clock: Clock
    ids: IdSource
    config: LogConfig
    reserve: DiskReserve
    sealed: Callable[[], None]
    cut: Callable[[TopicPartition, int, int], None]
    failed: Callable[[TieredError], None]
    claims: Claims
    uploads: UploadCheckpoint
