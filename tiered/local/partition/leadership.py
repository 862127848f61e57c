"""The leader epoch of the next record, and the list of the epochs before."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from tiered.errors import ConfigError, TieredError
from tiered.local.disk.epochs import LeaderEpochs
from tiered.local.partition.condition import Condition
from tiered.model import TopicPartition


class Leadership:
    """Changed under the partition's lock. ``epoch``: what the next record carries.

    ``unassigned``: that epoch has no entry in the list, because a cut took it. The next record makes the entry.
    """

    __slots__ = ("_condition", "_tp", "epoch", "epochs", "unassigned")

    def __init__(self, tp: TopicPartition, epochs: LeaderEpochs, condition: Condition, end: int) -> None:
        if epochs.latest < 0:
            epochs.assign(0, end)
        self.epochs = epochs
        self.epoch = epochs.latest
        self.unassigned = False
        self._tp = tp
        self._condition = condition

    @contextlib.contextmanager
    def or_none(self) -> Iterator[None]:
        """Leader epochs that are assigned in here are taken back if their records are not written."""
        known, epoch = self.epochs.entries, self.epoch
        try:
            yield
        except TieredError as error:
            self.epoch = epoch
            try:
                self.epochs.restore(known)
            except TieredError:
                self._condition.go_offline(error)
            raise

    def assign(self, end: int) -> None:
        """The entry that is missing begins at ``end``."""
        with self.or_none():
            self.epochs.assign(self.epoch, end)
        self.unassigned = False

    def lead(self, epoch: int, end: int) -> None:
        """Records from ``end`` on carry ``epoch``. ConfigError unless it is greater than all before."""
        latest = max(self.epochs.latest, self.epoch)
        if epoch <= latest:
            raise ConfigError(f"{self._tp}: leader epoch {epoch} is not above {latest}")
        with self.or_none():
            self.epochs.assign(epoch, end)
        self.epoch = epoch
        self.unassigned = False

    def look_for_entry(self) -> None:
        """Note whether entries were taken away."""
        self.unassigned = self.epochs.latest < self.epoch

    def begin(self, epoch: int, offset: int) -> None:
        """An empty log resumes at ``offset`` under ``epoch``."""
        self.epochs.assign(epoch, offset)
        self.epoch = epoch
        self.unassigned = False
